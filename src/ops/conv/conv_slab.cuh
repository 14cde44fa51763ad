/* SPDX-License-Identifier: Apache-2.0
 * What the slab kernels share. A slab is the part of an image that a tile of 8 x HEIGHT pixels reads
 * through all taps: PITCH pixels across, 64 channels (128 bytes) each, swizzled by the copy engine; the
 * image's padding is what the copy engine fills with zeros. A tap is the slab from another pixel on:
 * wgmma reads groups of 8 pixels, PITCH apart, from any row; so slabs after the first may begin anywhere.
 * Constants: TAPS_DOWN, TAPS_ACROSS; STEP_DOWN, STEP_ACROSS (dilation); HEIGHT; SLOTS; in_t. */
#pragma once
#include "cuda/device/tma.cuh"
#include "cuda/device/wgmma.cuh"
#include "ops/conv/conv_slab_args.h"
#include "ops/conv/conv_slots.cuh"

constexpr int ROW = 128; /* bytes of a pixel */
constexpr int TAPS = TAPS_DOWN * TAPS_ACROSS;
constexpr int PITCH = 8 + (TAPS_ACROSS - 1) * STEP_ACROSS;
constexpr int SLAB_BYTES = PITCH * (HEIGHT + (TAPS_DOWN - 1) * STEP_DOWN) * ROW;
constexpr int TILE_BYTES = 8 * HEIGHT * ROW;
constexpr int PIXELS = 8 * HEIGHT;
static_assert(HEIGHT % 2 == 0 && HEIGHT <= 32, "pairs of rows; at most 256 pixels");
static_assert(sizeof(in_t) == 2, "MN-major operands");

/* Bytes from the slab's first pixel to that of a tap. */
__device__ __forceinline__ constexpr int tap_bytes(int tap)
{
    return (tap / TAPS_ACROSS * STEP_DOWN * PITCH + tap % TAPS_ACROSS * STEP_ACROSS) * ROW;
}

struct place {
    int image, y, x; /* of the tile's first pixel */
};

__device__ __forceinline__ place tile_at(const mica_conv_slab_args &a, int tile)
{
    const int each = a.across * a.down, image = tile / each, rest = tile % each;
    return place{image, rest / a.across * HEIGHT, rest % a.across * 8};
}

/* Tiles of this block. */
__device__ __forceinline__ int own_tiles(const mica_conv_slab_args &a)
{
    return (a.tiles - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
}
