/* SPDX-License-Identifier: Apache-2.0
 * What the kernels for small groups share. Constants: those of conv_halo.cuh; WIDTH (channels of a group,
 * on both sides: 2, 4, 8, 16 or 32); WARPS_P (warps that divide the pixels of 16 channels); in_t. */
#pragma once
#include "ops/conv/grouped/grouped_args.h"
#include "ops/conv/cuda/conv_halo.cuh"

constexpr int CHANNELS = 64, PITCH = CHANNELS + 8; /* rows of matrices start at different banks */
constexpr int TAPS = ROWS * COLS, PIXELS = TILE_H * TILE_W;
constexpr int ROW_BYTES = PITCH * (int)sizeof(in_t);
static_assert(WIDTH <= 32 && 32 % WIDTH == 0 && sizeof(in_t) == 2, "groups lie within 32 channels");

struct tile_place {
    int y, x; /* tile's row and column of tiles */
    s64 n;
};

__device__ __forceinline__ tile_place place_of(const conv_grouped_args &a, unsigned tile)
{
    tile_place p;
    unsigned rest = mica_fastdiv_of(a.across, tile);
    p.x = (int)(tile - rest * a.across.divisor);
    tile = rest, rest = mica_fastdiv_of(a.down, tile);
    p.y = (int)(tile - rest * a.down.divisor);
    p.n = rest;
    return p;
}

template <int H, int W, int THREADS>
__device__ __forceinline__ void copy_plane(in_t *to, const in_t *image, const conv_grouped_strides &s, const int (&size)[2],
                                           const tile_place &p, int channel, int channels, bool aligned, int y, int x)
{
    const plane_of_pixels plane = {image + p.n * s.n + channel * s.c, s.s[0], s.s[1], s.c, size[0], size[1], channels, aligned};
    copy_pixels<H, W, CHANNELS, PITCH, 8, false, THREADS>(to, plane, true, y, x);
}

template <int THREADS>
__device__ __forceinline__ void copy_halo(in_t *to, const conv_grouped_args &a, const tile_place &p, int channel)
{
    copy_plane<HALO_H, HALO_W, THREADS>(to, (const in_t *)a.image, a.from, a.size_from, p, channel, a.channels - channel,
                                        a.from_aligned, p.y * strip_start(TILE_H, STRIDE_Y) + a.origin[0],
                                        p.x * strip_start(TILE_W, STRIDE_X) + a.origin[1]);
}
