/* SPDX-License-Identifier: Apache-2.0
 * What does not wait for decisions: which boxes of the next chunk suppress which of it, 64 pairs a thread;
 * and boxes behind this chunk, each compared with those that the chunk selected until one suppresses it.
 * The first blocks of a list do the former. Constants beside those of nms.cuh: SELF (blocks for that). */
#include "ops/nms/nms.cuh"

INLINE void compare_chunk(const arguments &a, s64 list, int thread)
{
    const int word = thread / CHUNK, i = thread % CHUNK;
    const s64 first = (a.chunk + 1) * CHUNK;
    if (word < i / 64) return; /* nobody asks */
    u64 bits = 0;
    if (first + i < a.n) {
        const nms_box own = box_at(a, list, first + i);
        const s64 id = class_at(a, list, first + i);
#pragma unroll 1
        for (int b = 0; b < 64; b++) {
            const int j = word * 64 + b;
            if (j <= i || first + j >= a.n) continue;
            const nms_box other = box_at(a, list, first + j);
            const bool same = !CLASSES || class_at(a, list, first + j) == id;
            if (same && nms_overlap(&own, &other, (real)OFFSET, (real)a.iou)) bits |= (u64)1 << b;
        }
    }
    a.row[(list * WORDS + word) * CHUNK + i] = bits;
}

INLINE void compare_behind(const arguments &a, s64 list, s64 part)
{
    __shared__ nms_box boxes[BLOCK];
    __shared__ s64 ids[BLOCK];
    const int thread = threadIdx.x, end = a.kept_count[2 * list];
    const s64 i = (a.chunk + 1) * CHUNK + part * BLOCK + thread;
    bool asks = i < a.n && !a.gone[list * a.n + i];
    nms_box own = {};
    s64 id = 0;
    if (asks) own = box_at(a, list, i), id = class_at(a, list, i);
#pragma unroll 1
    for (int first = a.kept_count[2 * list + 1]; first < end; first += BLOCK) {
        const int count = end - first < BLOCK ? end - first : BLOCK;
        __syncthreads();
        if (thread < count) {
            const s64 position = a.kept[list * a.limit + first + thread];
            boxes[thread] = box_at(a, list, position);
            ids[thread] = class_at(a, list, position);
        }
        __syncthreads();
#pragma unroll 1
        for (int k = 0; asks && k < count; k++) {
            if (CLASSES && ids[k] != id) continue;
            if (!nms_overlap(&boxes[k], &own, (real)OFFSET, (real)a.iou)) continue;
            a.gone[list * a.n + i] = 1;
            asks = false;
        }
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK) nms_sweep(const arguments a)
{
    overlap_wait();
    const s64 list = (s64)blockIdx.x / a.parts, part = (s64)blockIdx.x - list * a.parts;
    if (part < SELF)
        compare_chunk(a, list, (int)part * BLOCK + (int)threadIdx.x);
    else
        compare_behind(a, list, part - SELF);
}
