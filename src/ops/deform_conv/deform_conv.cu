/* SPDX-License-Identifier: Apache-2.0
 * Columns of deformable convolution. A thread has a pixel of a tap, finds its place once, and reads `each`
 * channels there; neighbours have the next pixels, so that rows of the matrix are written whole. Floor: the
 * matrix written once, offsets and masks read once, x from caches. Constants: BLOCK, MASK; types x_t, real. */
#include "ops/deform_conv/deform_conv.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK) deform_columns(const mica_deform_conv_args a)
{
    overlap_wait();
    s64 i = (s64)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= a.count) return;
    const long long *xs = a.x_step.at;
    tap_t t;
    t.pixel = split_off(i, a.pixels);
    const s64 part = split_off(i, a.parts);
    t.tap = split_off(i, a.taps), t.group = split_off(i, a.offset_groups), t.image = i;
    find_tap(a, t);
    const s64 first = t.group * a.of_group + part * a.each, rest = (part + 1) * a.each - a.of_group;
    const s64 end = first + a.each - (rest > 0 ? rest : 0);
    const x_t *x = (const x_t *)a.x + t.image * xs[0] + t.h.first * xs[2] + t.w.first * xs[3];
    x_t *to = (x_t *)a.columns + t.image * a.column_image + (first * a.taps + t.tap) * a.column_row + t.pixel;
#pragma unroll 1
    for (s64 c = first; c < end; c++, to += a.taps * a.column_row) {
        real sum = 0;
#pragma unroll
        for (int corner = 0; corner < 4; corner++) {
            const real weight = t.h.weight[corner / 2] * t.w.weight[corner % 2];
            if (weight != 0) sum += weight * widen<real>(x[c * xs[1] + corner / 2 * xs[2] + corner % 2 * xs[3]]);
        }
        *to = narrow<x_t>(sum * t.mask);
    }
}
