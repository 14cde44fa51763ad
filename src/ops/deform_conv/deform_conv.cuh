/* SPDX-License-Identifier: Apache-2.0
 * What the kernels of deform_conv share: which tap of which pixel a thread has, and where that reads. Constant
 * MASK; types x_t, real. */
#pragma once
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

struct tap_t {
    s64 image, group, tap, k, pixel, p, q; /* k: of all taps of all offset groups */
    deform_pair h, w;
    real mask;
};

/* The tap of each window whose numbers are in t: image, group, tap and pixel. */
DEFORM void find_tap(const mica_deform_conv_args &a, tap_t &t)
{
    const long long *os = a.offset_step.at, *ms = a.mask_step.at;
    t.p = t.pixel / a.axis[1].out, t.q = t.pixel - t.p * a.axis[1].out;
    t.k = t.group * a.taps + t.tap;
    const s64 r = t.tap / a.axis[1].taps, s = t.tap - r * a.axis[1].taps;
    const x_t *offset = (const x_t *)a.offset + t.image * os[0] + 2 * t.k * os[1] + t.p * os[2] + t.q * os[3];
    t.h = deform_pair_of(t.p * a.axis[0].stride - a.axis[0].pad + r * a.axis[0].dilation,
                         widen<real>(offset[0]), a.axis[0].in);
    t.w = deform_pair_of(t.q * a.axis[1].stride - a.axis[1].pad + s * a.axis[1].dilation,
                         widen<real>(offset[os[1]]), a.axis[1].in);
    t.mask = 1;
    if (MASK)
        t.mask = widen<real>(((const x_t *)a.mask)[t.image * ms[0] + t.k * ms[1] + t.p * ms[2] + t.q * ms[3]]);
}
