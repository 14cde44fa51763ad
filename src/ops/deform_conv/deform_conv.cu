/* SPDX-License-Identifier: Apache-2.0
 * Columns of deformable convolution. A thread has a pixel of a tap, finds its place once, and reads `each`
 * channels there; neighbours have the next pixels, so that rows of the matrix are written whole. Floor: the
 * matrix written once, offsets and masks read once, x from caches. Constants: BLOCK, MASK; types x_t, real. */
#include "kernels/overlap.cuh"
#include "kernels/types.cuh"
#include "ops/deform_conv/deform_conv_args.h"

#define DEFORM __device__ __forceinline__
DEFORM float add_of(float a, float b) { return __fadd_rn(a, b); }
DEFORM double add_of(double a, double b) { return __dadd_rn(a, b); }
DEFORM float floor_of(float v) { return floorf(v); }
DEFORM double floor_of(double v) { return floor(v); }
#include "ops/deform_conv/deform_conv_body.h"

/* i % size, and i / size in i. */
DEFORM s64 split_off(s64 &i, s64 size)
{
    const s64 q = i / size, r = i - q * size;
    i = q;
    return r;
}

extern "C" __global__ void __launch_bounds__(BLOCK) deform_columns(const mica_deform_conv_args a)
{
    overlap_wait();
    s64 i = (s64)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= a.count) return;
    const long long *xs = a.x_step.at, *os = a.offset_step.at, *ms = a.mask_step.at;
    const s64 pixel = split_off(i, a.pixels), part = split_off(i, a.parts), tap = split_off(i, a.taps);
    const s64 group = split_off(i, a.offset_groups), p = pixel / a.axis[1].out, q = pixel - p * a.axis[1].out;
    const s64 r = tap / a.axis[1].taps, s = tap - r * a.axis[1].taps, k = group * a.taps + tap;
    const x_t *offset = (const x_t *)a.offset + i * os[0] + 2 * k * os[1] + p * os[2] + q * os[3];
    const deform_pair h = deform_pair_of(p * a.axis[0].stride - a.axis[0].pad + r * a.axis[0].dilation,
                                         widen<real>(offset[0]), a.axis[0].in);
    const deform_pair w = deform_pair_of(q * a.axis[1].stride - a.axis[1].pad + s * a.axis[1].dilation,
                                         widen<real>(offset[os[1]]), a.axis[1].in);
    real mask = 1;
    if (MASK) mask = widen<real>(((const x_t *)a.mask)[i * ms[0] + k * ms[1] + p * ms[2] + q * ms[3]]);
    const s64 first = group * a.of_group + part * a.each, rest = (part + 1) * a.each - a.of_group;
    const s64 end = first + a.each - (rest > 0 ? rest : 0);
    const x_t *x = (const x_t *)a.x + i * xs[0] + h.first * xs[2] + w.first * xs[3];
    x_t *to = (x_t *)a.columns + ((i * a.channels + first) * a.taps + tap) * a.pixels + pixel;
#pragma unroll 1
    for (s64 c = first; c < end; c++, to += a.taps * a.pixels) {
        real sum = 0;
#pragma unroll
        for (int corner = 0; corner < 4; corner++) {
            const real weight = h.weight[corner / 2] * w.weight[corner % 2];
            if (weight != 0) sum += weight * widen<real>(x[c * xs[1] + corner / 2 * xs[2] + corner % 2 * xs[3]]);
        }
        *to = narrow<x_t>(sum * mask);
    }
}
