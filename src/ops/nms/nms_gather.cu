/* SPDX-License-Identifier: Apache-2.0
 * Boxes in the order of their scores, as ends and areas; what is left out is gone from the first. */
#include "ops/nms/nms.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK) nms_gather(const arguments a)
{
    overlap_wait();
    const s64 list = (s64)blockIdx.x / a.parts, i = ((s64)blockIdx.x - list * a.parts) * BLOCK + threadIdx.x;
    if (i >= a.n) return;
    const item_t item = ((const item_t *)a.items[a.from])[list * a.n + i];
    const s64 index = (s64)index_of(item), b = list / a.per_batch;
    const box_t *p = (const box_t *)a.boxes + b * a.box_batch + index * a.box_n;
    const nms_box box = nms_box_make(widen<real>(p[0]), widen<real>(p[a.box_column]), widen<real>(p[2 * a.box_column]),
                                     widen<real>(p[3 * a.box_column]), CENTER, (real)OFFSET);
    real *to = (real *)a.sorted + list * 5 * a.n + i;
    to[0] = box.low[0], to[a.n] = box.low[1];
    to[2 * a.n] = box.high[0], to[3 * a.n] = box.high[1];
    to[4 * a.n] = box.area;
    a.gone[list * a.n + i] = is_left_out(item);
    if (CLASSES) a.ids[list * a.n + i] = (s64)((const class_t *)a.classes)[b * a.class_batch + index * a.class_n];
}
