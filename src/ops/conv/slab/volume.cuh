/* SPDX-License-Identifier: Apache-2.0
 * What the kernels of volumes share. A slab is the part of a plane of an image that a tile of 8 x HEIGHT
 * pixels reads through all taps down and across: PITCH pixels across, 32 channels (64 bytes) each,
 * swizzled by TMA; padding is what TMA fills with zeros. Constants: TAPS_DEEP,
 * TAPS_DOWN, TAPS_ACROSS; STEP_DOWN, STEP_ACROSS (dilation); HEIGHT; SLOTS; in_t. */
#pragma once
#include "kernels/tma.cuh"
#include "kernels/wgmma.cuh"
#include "ops/conv/slab/slots.cuh"
#include "ops/conv/slab/volume_args.h"

constexpr int ROW = 64; /* bytes of a pixel */
constexpr int TAPS = TAPS_DOWN * TAPS_ACROSS;
constexpr int PITCH = 8 + (TAPS_ACROSS - 1) * STEP_ACROSS;
constexpr int SLAB_BYTES = PITCH * (HEIGHT + (TAPS_DOWN - 1) * STEP_DOWN) * ROW;
constexpr int SLAB_ROOM = (SLAB_BYTES + 1023) / 1024 * 1024;
constexpr int PIXELS = 8 * HEIGHT;
static_assert(HEIGHT % 2 == 0 && HEIGHT <= 32, "pairs of rows; at most 256 pixels");
static_assert(sizeof(in_t) == 2, "MN-major operands");

struct place {
    int image, z, y, x; /* of the tile's first pixel; z counts by the planes of a tile */
};

__device__ __forceinline__ place tile_at(const conv_volume_args &a, int tile)
{
    const int row = tile / a.across, plane = row / a.down, image = plane / a.deep;
    return place{image, plane - image * a.deep, (row - plane * a.down) * HEIGHT, (tile - row * a.across) * 8};
}

/* Tiles of this block. */
__device__ __forceinline__ int own_tiles(const conv_volume_args &a)
{
    return (a.tiles - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
}
