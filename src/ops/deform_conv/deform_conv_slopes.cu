/* SPDX-License-Identifier: Apache-2.0
 * Gradients of offsets and masks. A warp has 32 taps of neighbouring pixels, and warps of a block share out the
 * channels of the offset group: each sums the products of the columns' gradient and the four elements around its
 * place; sums of warps are added in their order, and multiplied with slopes, weights and the mask once. Reads the columns'
 * gradient once, x from caches. Constants: BLOCK, MASK, DOFFSET, DMASK (which are wanted); types x_t, real. */
#include "ops/deform_conv/deform_conv.cuh"

constexpr int WARP = 32, SHARERS = BLOCK / WARP;

/* Elements that have no part are left out, whatever they are. */
DEFORM real interpolated(const real *h, const real *w, const real *dot)
{
    real sum = 0;
#pragma unroll
    for (int corner = 0; corner < 4; corner++) {
        const real factor = h[corner / 2] * w[corner % 2];
        if (factor != 0) sum += factor * dot[corner];
    }
    return sum;
}

DEFORM s64 place_of(const mica_deform_conv_strides &s, const tap_t &t, s64 channel)
{
    return t.image * s.at[0] + channel * s.at[1] + t.p * s.at[2] + t.q * s.at[3];
}

extern "C" __global__ void __launch_bounds__(BLOCK) deform_slopes(const mica_deform_conv_args a)
{
    __shared__ real shared[SHARERS][4][WARP];
    overlap_wait();
    const int lane = (int)threadIdx.x % WARP, sharer = (int)threadIdx.x / WARP;
    s64 i = (s64)blockIdx.x * WARP + lane;
    const bool own = i < a.count;
    const long long *xs = a.x_step.at;
    if (!own) i = 0;
    tap_t t;
    t.pixel = split_off(i, a.pixels), t.tap = split_off(i, a.taps);
    t.group = split_off(i, a.offset_groups), t.image = i;
    find_tap(a, t);
    real dot[4] = {0, 0, 0, 0};
    const x_t *x = (const x_t *)a.x + t.image * xs[0] + t.h.first * xs[2] + t.w.first * xs[3];
    const x_t *column = (const x_t *)a.columns + t.image * a.column_image + t.tap * a.column_row + t.pixel;
#pragma unroll 1
    for (s64 e = sharer; own && e < a.of_group; e += SHARERS) {
        const s64 c = t.group * a.of_group + e;
        const real g = widen<real>(column[c * a.taps * a.column_row]);
#pragma unroll
        for (int corner = 0; corner < 4; corner++)
            if (t.h.slope[corner / 2] != 0 && t.w.slope[corner % 2] != 0)
                dot[corner] += g * widen<real>(x[c * xs[1] + corner / 2 * xs[2] + corner % 2 * xs[3]]);
    }
#pragma unroll
    for (int corner = 0; corner < 4; corner++) shared[sharer][corner][lane] = dot[corner];
    __syncthreads();
    if (sharer || !own) return;
#pragma unroll
    for (int corner = 0; corner < 4; corner++)
        for (int s = 1; s < SHARERS; s++) dot[corner] += shared[s][corner][lane];
    if (DOFFSET) {
        x_t *to = (x_t *)a.doffset;
        to[place_of(a.doffset_step, t, 2 * t.k)] = narrow<x_t>(interpolated(t.h.slope, t.w.weight, dot) * t.mask);
        to[place_of(a.doffset_step, t, 2 * t.k + 1)] = narrow<x_t>(interpolated(t.h.weight, t.w.slope, dot) * t.mask);
    }
    if (DMASK) ((x_t *)a.dmask)[place_of(a.dmask_step, t, t.k)] = narrow<x_t>(interpolated(t.h.weight, t.w.weight, dot));
}
