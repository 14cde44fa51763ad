/* SPDX-License-Identifier: Apache-2.0
 * The gradient of the grid: for each output the sums over channels of dy times each tap's element, which then
 * meet the slopes. With CHANNELS_LAST, LANES neighbours of a warp share out an output's channels, GROUP at a
 * time; else a warp has 32 outputs, and warps of a block share out the channels. Reads x, where the grid is
 * smooth, and dy once. Constants beside those of grid_sample.cuh: CHANNELS_LAST, GROUP, LANES; types x_t,
 * dgrid_t. */
#include "ops/grid_sample/grid_sample.cuh"

constexpr int WARP = 32, SHARERS = BLOCK / WARP;

INLINE void store_slopes(const mica_grid_sample_args &a, const output_t &o, const axes_t &t, const offset_t *at,
                         const real *dot)
{
    dgrid_t *to = (dgrid_t *)a.dgrid + place_of(o, a.dgrid_step);
#pragma unroll
    for (int d = 0; d < AXES; d++) {
        real sum = 0;
#pragma unroll
        for (int k = 0; k < TAPS; k++)
            if (at[k] != NO_TAP<offset_t>) sum += t.axis[d].slope[tap_of(k, d)] * tap_weight(t, k, d) * dot[k];
        to[(AXES - 1 - d) * a.dgrid_step.c] = narrow<dgrid_t>(t.scale[d] != 0 ? sum * t.scale[d] : (real)0);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK) grid_sample_slopes(const mica_grid_sample_args a)
{
    __shared__ real shared[CHANNELS_LAST ? 1 : SHARERS * TAPS * WARP];
    overlap_wait();
    const s64 outputs = a.shape.n * a.shape.out_count;
    const int lane = CHANNELS_LAST ? (int)threadIdx.x % LANES : (int)threadIdx.x / WARP;
    const s64 first = (s64)blockIdx.x * (CHANNELS_LAST ? BLOCK / LANES : WARP);
    const s64 i = first + (CHANNELS_LAST ? (int)threadIdx.x / LANES : (int)threadIdx.x % WARP);
    const bool own = i < outputs;
    const output_t o = find_output(a, own ? i : 0);
    const axes_t t = axes_of(a, o);
    offset_t at[TAPS];
    real dot[TAPS];
#pragma unroll
    for (int k = 0; k < TAPS; k++) at[k] = tap_place<offset_t>(t, k, a.x_step.at), dot[k] = 0;
    const x_t *x = (const x_t *)a.x + o.n * a.x_step.n;
    const x_t *dy = (const x_t *)a.dy + place_of(o, a.y_step);
    if constexpr (CHANNELS_LAST) {
        for (s64 c = lane * GROUP; own && c < a.shape.c; c += LANES * GROUP) {
            const int some = a.shape.c - c < GROUP ? (int)(a.shape.c - c) : GROUP;
            const bool whole = a.whole && some == GROUP;
            x_t g[GROUP];
            load_some<GROUP>(dy + c, g, some, whole);
#pragma unroll
            for (int k = 0; k < TAPS; k++) {
                x_t v[GROUP];
                if (at[k] == NO_TAP<offset_t>) continue;
                load_some<GROUP>(x + at[k] + c, v, some, whole);
#pragma unroll
                for (int e = 0; e < GROUP; e++)
                    if (e < some) dot[k] += widen<real>(g[e]) * widen<real>(v[e]);
            }
        }
#pragma unroll
        for (int k = 0; k < TAPS; k++)
#pragma unroll
            for (int by = LANES / 2; by > 0; by /= 2) dot[k] += __shfl_xor_sync(0xffffffffu, dot[k], by);
        if (own && lane == 0) store_slopes(a, o, t, at, dot);
    } else {
#pragma unroll 1
        for (s64 c = lane; own && c < a.shape.c; c += SHARERS) {
            const real g = widen<real>(dy[c * a.y_step.c]);
#pragma unroll
            for (int k = 0; k < TAPS; k++)
                if (at[k] != NO_TAP<offset_t>) dot[k] += g * widen<real>(x[at[k] + c * a.x_step.c]);
        }
#pragma unroll
        for (int k = 0; k < TAPS; k++) shared[(lane * TAPS + k) * WARP + threadIdx.x % WARP] = dot[k];
        __syncthreads();
        if (lane || !own) return;
#pragma unroll
        for (int k = 0; k < TAPS; k++)
            for (int s = 1; s < SHARERS; s++) dot[k] += shared[(s * TAPS + k) * WARP + threadIdx.x];
        store_slopes(a, o, t, at, dot);
    }
}
