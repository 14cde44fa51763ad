/* SPDX-License-Identifier: Apache-2.0
 * The transforms of Winograd's minimal filtering, F(2,3) at the points 0, 1, -1 and infinity and F(4,3)
 * with 2 and -2 besides (Lavin and Gray 2016), one axis after the other. With their matrices
 *
 *     y  = A' [ (G g G') * (B' d B) ] A      and its transpose    dg = G' [ (A dy A') * (B' d B) ] G
 *
 * Constant: TILE, 2 or 4. Computed in f32. */
#pragma once
#include "kernels/types.cuh"
#include "ops/conv/winograd/winograd_args.h"

static_assert(TILE == 2 || TILE == 4, "the transforms there are");
typedef float sum_t;
constexpr int TAPS = 3, POINTS = TILE + TAPS - 1;

/* B' d */
struct image_to_points {
    static constexpr int FROM = POINTS, TO = POINTS;
    static __device__ __forceinline__ void axis(const sum_t *d, sum_t *o)
    {
        if constexpr (TILE == 2) {
            o[0] = d[0] - d[2];
            o[1] = d[1] + d[2];
            o[2] = d[2] - d[1];
            o[3] = d[1] - d[3];
        } else {
            const sum_t even = d[4] - 4 * d[2], odd = d[3] - 4 * d[1];
            const sum_t near_even = d[4] - d[2], near_odd = 2 * (d[3] - d[1]);
            o[0] = 4 * d[0] - 5 * d[2] + d[4];
            o[1] = even + odd;
            o[2] = even - odd;
            o[3] = near_even + near_odd;
            o[4] = near_even - near_odd;
            o[5] = 4 * d[1] - 5 * d[3] + d[5];
        }
    }
};

/* G g */
struct filter_to_points {
    static constexpr int FROM = TAPS, TO = POINTS;
    static __device__ __forceinline__ void axis(const sum_t *g, sum_t *o)
    {
        const sum_t outer = g[0] + g[2];
        o[0] = g[0];
        o[POINTS - 1] = g[2];
        if constexpr (TILE == 2) {
            o[1] = (outer + g[1]) * (sum_t)0.5;
            o[2] = (outer - g[1]) * (sum_t)0.5;
        } else {
            const sum_t sixth = (sum_t)1 / 6, wide = g[0] + 4 * g[2];
            o[0] = g[0] * (sum_t)0.25;
            o[1] = -(outer + g[1]) * sixth;
            o[2] = (g[1] - outer) * sixth;
            o[3] = (wide + 2 * g[1]) * (sixth / 4);
            o[4] = (wide - 2 * g[1]) * (sixth / 4);
        }
    }
};

/* A' m */
struct points_to_result {
    static constexpr int FROM = POINTS, TO = TILE;
    static __device__ __forceinline__ void axis(const sum_t *m, sum_t *y)
    {
        const sum_t even = m[1] + m[2], odd = m[1] - m[2];
        if constexpr (TILE == 2) {
            y[0] = m[0] + even;
            y[1] = odd - m[3];
        } else {
            const sum_t wide_even = m[3] + m[4], wide_odd = m[3] - m[4];
            y[0] = m[0] + even + wide_even;
            y[1] = odd + 2 * wide_odd;
            y[2] = even + 4 * wide_even;
            y[3] = odd + 8 * wide_odd + m[5];
        }
    }
};

/* A dy */
struct result_to_points {
    static constexpr int FROM = TILE, TO = POINTS;
    static __device__ __forceinline__ void axis(const sum_t *y, sum_t *o)
    {
        o[0] = y[0];
        if constexpr (TILE == 2) {
            o[1] = y[0] + y[1];
            o[2] = y[0] - y[1];
            o[3] = -y[1];
        } else {
            const sum_t even = y[0] + y[2], odd = y[1] + y[3];
            const sum_t wide_even = y[0] + 4 * y[2], wide_odd = 2 * y[1] + 8 * y[3];
            o[1] = even + odd;
            o[2] = even - odd;
            o[3] = wide_even + wide_odd;
            o[4] = wide_even - wide_odd;
            o[5] = y[3];
        }
    }
};

/* G' m */
struct points_to_filter {
    static constexpr int FROM = POINTS, TO = TAPS;
    static __device__ __forceinline__ void axis(const sum_t *m, sum_t *g)
    {
        const sum_t even = m[1] + m[2], odd = m[1] - m[2];
        if constexpr (TILE == 2) {
            g[0] = m[0] + even * (sum_t)0.5;
            g[1] = odd * (sum_t)0.5;
            g[2] = even * (sum_t)0.5 + m[3];
        } else {
            const sum_t sixth = (sum_t)1 / 6, wide_even = m[3] + m[4], wide_odd = m[3] - m[4];
            g[0] = m[0] * (sum_t)0.25 - even * sixth + wide_even * (sixth / 4);
            g[1] = wide_odd * (sixth / 2) - odd * sixth;
            g[2] = (wide_even - even) * sixth + m[5];
        }
    }
};

template <typename Map>
__device__ __forceinline__ void both_axes(const sum_t (&from)[Map::FROM][Map::FROM], sum_t (&to)[Map::TO][Map::TO])
{
    sum_t half[Map::TO][Map::FROM];
#pragma unroll
    for (int x = 0; x < Map::FROM; x++) {
        sum_t in[Map::FROM], out[Map::TO];
#pragma unroll
        for (int y = 0; y < Map::FROM; y++) in[y] = from[y][x];
        Map::axis(in, out);
#pragma unroll
        for (int y = 0; y < Map::TO; y++) half[y][x] = out[y];
    }
#pragma unroll
    for (int y = 0; y < Map::TO; y++) Map::axis(half[y], to[y]);
}

/* Point i of each plane, the planes one after the other. */
__device__ __forceinline__ void store_points(const conv_winograd_args &a, unsigned i, const sum_t (&v)[POINTS][POINTS])
{
    sum_t *to = (sum_t *)a.to + i;
#pragma unroll
    for (int p = 0; p < POINTS * POINTS; p++) to[(s64)p * a.count] = v[p / POINTS][p % POINTS];
}

__device__ __forceinline__ void load_points(const conv_winograd_args &a, unsigned i, sum_t (&v)[POINTS][POINTS])
{
    const sum_t *from = (const sum_t *)a.from + i;
#pragma unroll
    for (int p = 0; p < POINTS * POINTS; p++) v[p / POINTS][p % POINTS] = from[(s64)p * a.count];
}

/* A tile and a channel: point i of a plane, whose neighbours are channels if CHANNEL_FAST, else tiles. */
struct place {
    unsigned n, channel;
    int y, x; /* of the tile's first pixel */
    bool exists;
};

template <bool CHANNEL_FAST>
__device__ __forceinline__ place find_place(const conv_winograd_args &a, unsigned i)
{
    const unsigned row = mica_fastdiv_of(a.columns, i), column = i - row * a.columns.divisor;
    unsigned tile = a.first + (CHANNEL_FAST ? row : column);
    place p = {};
    p.channel = CHANNEL_FAST ? column : row;
    p.exists = tile < a.tiles;
    unsigned rest = mica_fastdiv_of(a.across, tile);
    p.x = (int)(tile - rest * a.across.divisor) * TILE + a.image.start[1];
    tile = rest, rest = mica_fastdiv_of(a.down, tile);
    p.y = (int)(tile - rest * a.down.divisor) * TILE + a.image.start[0];
    p.n = rest;
    return p;
}
