/* SPDX-License-Identifier: Apache-2.0
 * What becomes of a first layer's sums: results in memory, and sums by filter of what is stored. Constants: those
 * of stem_tile.cuh and the epilogue's; WARPS, THREADS; LINES (16 rows of the product each, of a warp); PAIR (pixels of b of a row
 * of the product); GROUPS (of 32 columns: those of a row's first pixel, then those of its next); HAS_RESIDUAL; STATS
 * (sums and sums of squares by filter are formed of what is stored, for lowered/stats_sum.cu); out_t. */
#pragma once
#include "kernels/epilogue_terms.cuh"
#include "kernels/vector.cuh"
#include "ops/conv/cuda/conv_halve.cuh"
#include "ops/conv/stem/stem_tile.cuh"

constexpr int EACH = GROUPS / PAIR; /* groups of a pixel */
static_assert(GROUPS % PAIR == 0 && TILE_W % PAIR == 0, "whole pixels");

/* Columns of the units are filters in such an order that a thread's sums of four units are of 8
 * neighbouring filters. group: of its pixel. */
__device__ __forceinline__ int filter_of(int group, int unit, int column)
{
    return 32 * group + 8 * (column / 2) + 2 * unit + column % 2;
}

typedef float sums[LINES][GROUPS][4][4];

/* ---- sums by filter ---- */

/* Of 8 filters, as a thread meets them. */
struct column_sums {
    float sum[8], square[8];
};

/* Of a warp's pixels, divided among its lanes: 2 of each 32 filters. */
struct statistics {
    float v[EACH][2];
};

__device__ __forceinline__ void add_stored(column_sums &s, const out_t (&stored)[8])
{
#pragma unroll
    for (int e = 0; e < 8; e++) {
        const float f = widen<float>(stored[e]);
        s.sum[e] += f;
        s.square[e] = fmaf(f, f, s.square[e]);
    }
}

/* The sums are kept by lanes of the lower half of a warp, the squares by the others. */
__device__ __forceinline__ void add_pixels(float (&to)[2], const column_sums &s)
{
    float v[16];
    memcpy(v, s.sum, sizeof s.sum);
    memcpy(v + 8, s.square, sizeof s.square);
    halve<16>(v, 16);
    halve<8>(v, 8);
    halve<4>(v, 4);
#pragma unroll
    for (int e = 0; e < 2; e++) to[e] += v[e];
}

/* After the block's last tile; shared: 2 x 32 EACH numbers of each warp, where the filters were. */
__device__ __forceinline__ void store_statistics(const conv_stem_args &a, unsigned row, int first, float *shared,
                                                 const statistics &s)
{
    constexpr int FILTERS = 32 * EACH;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int filter = lane % 4 * 8 + lane / 8 % 2 * 4 + lane / 4 % 2 * 2;
    __syncthreads(); /* the filters may still be read */
#pragma unroll
    for (int group = 0; group < EACH; group++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            shared[(2 * warp + lane / 16) * FILTERS + 32 * group + filter + e] = s.v[group][e];
    __syncthreads();
    for (int i = (int)threadIdx.x; i < 2 * FILTERS; i += THREADS) {
        const int k = first + i % FILTERS;
        double sum = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) sum += (double)shared[w * 2 * FILTERS + i];
        if (k < a.filters) a.sums[(2LL * row + i / FILTERS) * a.filters + k] = sum;
    }
}

/* ---- results ---- */

/* Whether nothing old is read and every 8 filters are there and stored at once. */
__device__ __forceinline__ bool is_plain(const conv_stem_args &a, int first)
{
    return a.beta == 0 && a.to_aligned && first + 32 * EACH <= a.filters;
}

/* What a step has by channel, of the block's filters. */
__device__ __forceinline__ float *channel_values(int step)
{
    __shared__ __align__(16) float memory[EPILOGUE_STEPS + 1][32 * EACH];
    return memory[step];
}

/* By all threads; a barrier follows. */
__device__ __forceinline__ void copy_terms(const conv_stem_args &a, int first)
{
    if constexpr (EPILOGUE_STEPS > 0)
        for (int i = (int)threadIdx.x; i < 32 * EACH; i += THREADS) {
            channel_terms t = {};
            if (first + i < a.filters) load_terms(a.epilogue, first + i, t);
#pragma unroll
            for (int step = 0; step < EPILOGUE_STEPS; step++) channel_values(step)[i] = t.step[step];
        }
}

/* 8 neighbouring filters of a pixel, of the block's from `own` on: none is missing, and nothing old is read. */
__device__ __forceinline__ void store_plain(const conv_stem_args &a, out_t *out, s64 residual, int own, const float (&v)[8],
                                            column_sums &sums)
{
    float steps[EPILOGUE_STEPS + 1][8];
    out_t r[8];
#pragma unroll
    for (int step = 0; step < EPILOGUE_STEPS; step++)
        if (EPILOGUE[step] < STEP_ACT && EPILOGUE[step] != STEP_RESIDUAL) load_vector<8>(channel_values(step) + own, steps[step]);
#pragma unroll
    for (int e = 0; e < 8; e++) {
        channel_terms t;
        float before = 0;
#pragma unroll
        for (int step = 0; step < EPILOGUE_STEPS; step++) t.step[step] = steps[step][e];
        if constexpr (HAS_RESIDUAL) before = widen<float>(((const residual_t *)a.epilogue.residual)[residual + e * a.residual.c]);
        r[e] = narrow<out_t>(apply_terms(a.epilogue, t, v[e] * a.alpha, before));
    }
    if constexpr (STATS) add_stored(sums, r);
    store_vector<8>(out, r);
}

/* Any 8 neighbouring filters of a pixel. */
__device__ __forceinline__ void store_any(const conv_stem_args &a, out_t *out, s64 residual, int k, const float (&v)[8],
                                          column_sums &sums)
{
    const int count = a.filters - k;
    out_t r[8];
    if (count <= 0) return;
#pragma unroll
    for (int e = 0; e < 8; e++) {
        float f = v[e] * a.alpha;
        const bool exists = e < count;
        if (a.beta != 0 && exists) f += a.beta * widen<float>(out[e * a.to.c]);
        if (exists) f = epilogue(a.epilogue, f, k + e, residual + (HAS_RESIDUAL ? e * a.residual.c : 0));
        r[e] = narrow<out_t>(f);
    }
    if constexpr (STATS) add_stored(sums, r);
    if (count >= 8 && a.to_aligned) {
        store_vector<8>(out, r);
        return;
    }
#pragma unroll
    for (int e = 0; e < 8; e++)
        if (e < count) out[e * a.to.c] = r[e];
}

/* Where an image of b begins. */
struct image_place {
    s64 out, residual;
};

/* first: filter; line: of the tile's rows of the product, this warp's first. */
template <bool PLAIN>
__device__ __forceinline__ void store_lines(const conv_stem_args &a, const image_place &image, const tile_place &p,
                                            int first, int line, const sums &sum, statistics &stats)
{
    constexpr int LINE_W = TILE_W / PAIR;
    const int lane = (int)threadIdx.x % 32, k = first + lane % 4 * 8;
    const s64 group_step = 32 * (PLAIN ? 1 : a.to.c);
    column_sums own[EACH];
    if constexpr (STATS) memset(own, 0, sizeof own);
#pragma unroll
    for (int i = 0; i < 2 * LINES; i++) {
        const int l = line + i * 8 + lane / 4, y = p.y + l / LINE_W, x = p.x + l % LINE_W * PAIR;
        if (l >= TILE_H * LINE_W || y >= a.size_to[0]) continue;
        out_t *out = (out_t *)a.out + image.out + y * a.to.s[0] + x * a.to.s[1] + k * (PLAIN ? 1 : a.to.c);
        s64 residual = 0;
        if constexpr (HAS_RESIDUAL)
            residual = image.residual + y * a.residual.s[0] + x * a.residual.s[1] + k * a.residual.c;
#pragma unroll
        for (int group = 0; group < GROUPS; group++) {
            const int pixel = group / EACH, g = group % EACH;
            if (x + pixel >= a.size_to[1]) continue;
            float v[8];
#pragma unroll
            for (int e = 0; e < 8; e++) v[e] = sum[i / 2][group][e / 2][i % 2 * 2 + e % 2];
            out_t *const to = out + pixel * a.to.s[1] + g * group_step;
            const s64 at = residual + (HAS_RESIDUAL ? pixel * a.residual.s[1] + g * 32 * a.residual.c : 0);
            if constexpr (PLAIN)
                store_plain(a, to, at, k - first + 32 * g, v, own[g]);
            else
                store_any(a, to, at, k + 32 * g, v, own[g]);
        }
    }
    if constexpr (STATS)
#pragma unroll
        for (int group = 0; group < EACH; group++) add_pixels(stats.v[group], own[group]);
}
