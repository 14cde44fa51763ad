/* SPDX-License-Identifier: Apache-2.0
 * Samples. A thread finds the taps of an output once and goes through GROUP channels that are a stride apart;
 * its neighbours have the next outputs, so that y is written whole and x read from lines that they share. Or,
 * with CHANNELS_LAST, it has GROUP neighbouring channels, and its neighbours those beside them. Bound by
 * memory: x once where the grid is smooth, the grid (once for each group), y. Constants beside those of
 * grid_sample.cuh: CHANNELS_LAST, GROUP; types x_t, offset_t. */
#include "ops/grid_sample/grid_sample.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK) grid_sample_forward(const mica_grid_sample_args a)
{
    overlap_wait();
    const s64 outputs = a.shape.n * a.shape.out_count;
    const s64 groups = (a.shape.c + GROUP - 1) / GROUP, blocks = (outputs + BLOCK - 1) / BLOCK;
    s64 i, group;
    if (CHANNELS_LAST) {
        i = (s64)blockIdx.x * BLOCK + threadIdx.x;
        group = i >> 32 ? i % groups : (s64)((u32)i % (u32)groups);
        i = i >> 32 ? i / groups : (s64)((u32)i / (u32)groups);
    } else {
        group = (s64)blockIdx.x / blocks;
        i = ((s64)blockIdx.x - group * blocks) * BLOCK + threadIdx.x;
    }
    if (i >= outputs) return;
    const output_t o = find_output(a, i);
    const axes_t t = axes_of(a, o);
    const s64 c = group * GROUP;
    const int some = a.shape.c - c < GROUP ? (int)(a.shape.c - c) : GROUP;
    const x_t *x = (const x_t *)a.x + o.n * a.x_step.n + c * a.x_step.c;
    x_t *y = (x_t *)a.y + place_of(o, a.y_step) + c * a.y_step.c;
    offset_t at[TAPS];
    real w[TAPS];
#pragma unroll
    for (int k = 0; k < TAPS; k++) {
        at[k] = tap_place<offset_t>(t, k, a.x_step.at);
        w[k] = tap_weight(t, k, -1);
    }
    if constexpr (CHANNELS_LAST) {
        real sum[GROUP];
        const bool whole = a.whole && some == GROUP;
#pragma unroll
        for (int e = 0; e < GROUP; e++) sum[e] = 0;
#pragma unroll
        for (int k = 0; k < TAPS; k++) {
            x_t v[GROUP];
            if (at[k] == NO_TAP<offset_t>) continue;
            load_some<GROUP>(x + at[k], v, some, whole);
#pragma unroll
            for (int e = 0; e < GROUP; e++)
                if (e < some) sum[e] += w[k] * widen<real>(v[e]);
        }
        x_t r[GROUP];
#pragma unroll
        for (int e = 0; e < GROUP; e++) r[e] = narrow<x_t>(sum[e]);
        store_some<GROUP>(y, r, some, whole);
    } else {
#pragma unroll 4
        for (int e = 0; e < some; e++) {
            real sum = 0;
#pragma unroll
            for (int k = 0; k < TAPS; k++)
                if (at[k] != NO_TAP<offset_t>) sum += w[k] * widen<real>(x[at[k]]);
            *y = narrow<x_t>(sum);
            x += a.x_step.c, y += a.y_step.c;
        }
    }
}
