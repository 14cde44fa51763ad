/* SPDX-License-Identifier: Apache-2.0
 * What the slab kernels share. A slab is the part of an image that a tile reads through all taps, 64
 * channels (128 bytes) of each pixel, swizzled by TMA; the image's padding is what TMA
 * fills with zeros. With strides it comes as lattices, one for each remainder of a position: within
 * one, neighbours are what neighbouring results read. A tap is a lattice from another pixel on: wgmma reads
 * groups of 8 pixels, a pitch apart, from any row; so slabs after the first, and lattices, may begin
 * anywhere. A tile is 8 pixels across and ROWS down; or, if LINE, ROWS rows of the image as one line of
 * positions, LINE to a row: the image's pixels and zeros, through which taps reach the next row's. Past the
 * slab's last row they reach zeros that stand behind it.
 * Groups of WIDTH channels lie side by side in a chunk of 64, one chunk to a block; their products are
 * those of the whole chunk, with zeros in the filter (wgrad: results that nobody stores) between groups.
 * Constants: TAPS_DOWN, TAPS_ACROSS; STEP_DOWN, STEP_ACROSS (dilation); STRIDE_DOWN, STRIDE_ACROSS;
 * LINE; ROWS; EIGHTS (groups of 8 positions, ROWS if there is no LINE); WIDTH (64: one group in a chunk);
 * SLOTS; in_t. */
#pragma once
#include "kernels/shared.cuh"
#include "kernels/tma.cuh"
#include "kernels/wgmma.cuh"
#include "ops/conv/slab/slab_args.h"
#include "ops/conv/slab/slots.cuh"

constexpr int ROW = 128; /* bytes of a pixel */
constexpr int TAPS = TAPS_DOWN * TAPS_ACROSS;
constexpr int PIXELS = 8 * EIGHTS;
constexpr int TILE_BYTES = PIXELS * ROW;
constexpr int TAP_BYTES = 64 * ROW; /* of the filter */
static_assert(EIGHTS <= 32 && (LINE ? LINE * ROWS <= PIXELS : EIGHTS == ROWS && ROWS % 2 == 0), "at most 256");
static_assert(!LINE || (STRIDE_DOWN == 1 && STRIDE_ACROSS == 1), "one lattice");
static_assert(STRIDE_DOWN * STRIDE_ACROSS <= MICA_CONV_SLAB_LATTICES, "a map for each lattice");
static_assert(64 % WIDTH == 0 && WIDTH % 4 == 0, "vectors of 4 channels, whole groups in a chunk");
static_assert(sizeof(in_t) == 2, "MN-major operands");

/* ---- lattices: of remainders modulo the stride, along one axis ---- */

/* How far in its lattice the last tap of it is; -1: no tap reads it. */
__device__ __forceinline__ constexpr int lattice_reach(int lattice, int taps, int step, int stride)
{
    int reach = -1;
    for (int t = 0; t < taps; t++)
        if (t * step % stride == lattice) reach = t * step / stride;
    return reach;
}

/* Pixels of a lattice, none if no tap reads it. */
__device__ __forceinline__ constexpr int lattice_width(int across)
{
    const int reach = lattice_reach(across, TAPS_ACROSS, STEP_ACROSS, STRIDE_ACROSS);
    return LINE ? LINE : reach < 0 ? 0 : 8 + reach;
}

__device__ __forceinline__ constexpr int lattice_height(int down)
{
    const int reach = lattice_reach(down, TAPS_DOWN, STEP_DOWN, STRIDE_DOWN);
    return reach < 0 ? 0 : ROWS + reach;
}

/* Bytes from the slab's first pixel to that of a lattice; of the one past the last: all of them. */
__device__ __forceinline__ constexpr int lattice_bytes(int lattice)
{
    int pixels = 0;
    for (int i = 0; i < lattice; i++) pixels += lattice_height(i / STRIDE_ACROSS) * lattice_width(i % STRIDE_ACROSS);
    return pixels * ROW;
}

/* Past what comes are the zeros that the last row's taps read. */
constexpr int SLAB_BYTES = lattice_bytes(STRIDE_DOWN * STRIDE_ACROSS);
constexpr int SLAB_READ =
    (PIXELS + (TAPS_DOWN - 1) * STEP_DOWN * LINE + (TAPS_ACROSS - 1) * STEP_ACROSS) * ROW;
constexpr int ZERO_BYTES = LINE && SLAB_READ > SLAB_BYTES ? SLAB_READ - SLAB_BYTES : 0;
constexpr int SLAB_ROOM = SLAB_BYTES + ZERO_BYTES;

/* ... to that of a tap. */
__device__ __forceinline__ constexpr int tap_bytes(int tap)
{
    const int down = tap / TAPS_ACROSS * STEP_DOWN, across = tap % TAPS_ACROSS * STEP_ACROSS;
    const int lattice = down % STRIDE_DOWN * STRIDE_ACROSS + across % STRIDE_ACROSS;
    return lattice_bytes(lattice) +
           (down / STRIDE_DOWN * lattice_width(across % STRIDE_ACROSS) + across / STRIDE_ACROSS) * ROW;
}

/* Bytes from 8 pixels of a tap to the next ones: those below, or in line. */
__device__ __forceinline__ constexpr int tap_pitch(int tap)
{
    return LINE ? 8 * ROW : lattice_width(tap % TAPS_ACROSS * STEP_ACROSS % STRIDE_ACROSS) * ROW;
}

/* The filter's coordinates of a tap. */
__device__ __forceinline__ int filter_down(const mica_conv_slab_args &a, int tap)
{
    return a.filter[0] + tap / TAPS_ACROSS * a.filter_step[0];
}

__device__ __forceinline__ int filter_across(const mica_conv_slab_args &a, int tap)
{
    return a.filter[1] + tap % TAPS_ACROSS * a.filter_step[1];
}

/* ---- tiles ---- */

/* Blocks that share a chunk's tiles stand in one line. */
struct line {
    int first, step, channel; /* this block's first tile, and the way to its next; the chunk's first channel */
};

__device__ __forceinline__ line own_line(const mica_conv_slab_args &a)
{
    const int at = (int)blockIdx.x / a.chunks;
    return line{at, (int)gridDim.x / a.chunks, ((int)blockIdx.x - at * a.chunks) * 64};
}

__device__ __forceinline__ int own_tiles(const mica_conv_slab_args &a, const line &l)
{
    return (a.tiles - l.first + l.step - 1) / l.step;
}

struct place {
    int image, z, y, x; /* of the tile's first pixel */
};

__device__ __forceinline__ place tile_at(const mica_conv_slab_args &a, const line &l, int index)
{
    const int tile = l.first + index * l.step, each = a.across * a.down, image = tile / each, rest = tile % each;
    return place{image, 0, rest / a.across * ROWS, rest % a.across * 8};
}

/* By all threads, before a barrier of theirs. */
__device__ __forceinline__ void place_zeros(u32 slabs, int slots, int pitch)
{
    constexpr int QUADS = ZERO_BYTES > 0 ? ZERO_BYTES / 16 : 1;
    if constexpr (ZERO_BYTES > 0) {
        const float zeros[4] = {0, 0, 0, 0};
        for (int i = (int)threadIdx.x; i < slots * QUADS; i += (int)blockDim.x)
            shared_store(slabs + i / QUADS * pitch + SLAB_BYTES + i % QUADS * 16, zeros);
        async_fence();
    }
}

__device__ __forceinline__ void load_slab(const mica_conv_slab_args &a, const place &p, int channel, u32 to, u32 bar)
{
#pragma unroll
    for (int i = 0; i < STRIDE_DOWN * STRIDE_ACROSS; i++) {
        const int down = i / STRIDE_ACROSS, across = i % STRIDE_ACROSS;
        if (lattice_height(down) == 0 || lattice_width(across) == 0) continue;
        tma_load(to + lattice_bytes(i), &a.image[i], bar, channel, p.x * STRIDE_ACROSS + a.start[1] + across,
                 p.y * STRIDE_DOWN + a.start[0] + down, p.image);
    }
}
