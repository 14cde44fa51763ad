/* SPDX-License-Identifier: Apache-2.0
 * Winograd: tiles of an image to points, a thread per tile and channel; 0 outside of the image and in tiles
 * that do not exist. Constants: those of winograd.cuh; BLOCK; CHANNEL_FAST; GRADIENT: tiles are of the
 * result's gradient, without the halo that a filter reads; image_t. */
#include "kernels/overlap.cuh"
#include "ops/conv/winograd/winograd.cuh"

template <typename Map>
__device__ __forceinline__ void transform(const conv_winograd_args &a, const place &p, sum_t (&v)[POINTS][POINTS])
{
    const conv_winograd_image &g = a.image;
    const image_t *from = (const image_t *)a.from + p.n * g.n + p.channel * g.c + p.y * g.s[0] + p.x * g.s[1];
    sum_t d[Map::FROM][Map::FROM];
    bool column[Map::FROM];
#pragma unroll
    for (int x = 0; x < Map::FROM; x++) column[x] = (unsigned)(p.x + x) < (unsigned)g.size[1];
#pragma unroll
    for (int y = 0; y < Map::FROM; y++, from += g.s[0]) {
        const bool row = p.exists && (unsigned)(p.y + y) < (unsigned)g.size[0];
        const image_t *at = from;
#pragma unroll
        for (int x = 0; x < Map::FROM; x++, at += g.s[1]) {
            d[y][x] = 0;
            if (row && column[x]) d[y][x] = widen<sum_t>(*at);
        }
    }
    both_axes<Map>(d, v);
}

extern "C" __global__ void __launch_bounds__(BLOCK)
conv_winograd_image_points(const __grid_constant__ conv_winograd_args a)
{
    overlap_wait();
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= a.count) return;
    const place p = find_place<CHANNEL_FAST>(a, i);
    sum_t v[POINTS][POINTS];
    if constexpr (GRADIENT)
        transform<result_to_points>(a, p, v);
    else
        transform<image_to_points>(a, p, v);
    store_points(a, i, v);
}
