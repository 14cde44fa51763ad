/* SPDX-License-Identifier: Apache-2.0
 * What Hopper's first-layer kernels share. A tile's rows of the image come to shared memory by TMA,
 * as they are, with zeros around the image. A row of the product is the window of PAIR neighbouring pixels of b:
 * windows then lie whole words (two elements) apart although one pixel's step may be an odd number of elements.
 * A window of one row of taps is a run of RUN words, the first LEAD of whose elements count for nothing. Words of
 * all rows of taps are counted through: `word` p is word p % RUN of row p / RUN. A tile lies in one plane of b and
 * has the planes of the image that its taps in depth meet.
 * Constants: DEPTH, ROWS, COLS (taps); STRIDE_Y, STRIDE_X, DILATION_Y; CHANNELS; PAIR; LEAD (0 or 1); SHIFT (words of a
 * row in shared memory before the first window); PITCH (words of such a row); TILE_H, TILE_W (pixels of b); WARPS;
 * in_t. */
#pragma once
#include "kernels/mbarrier.cuh"
#include "kernels/overlap.cuh"
#include "kernels/tma.cuh"
#include "kernels/types.cuh"
#include "kernels/wgmma.cuh"
#include "ops/conv/stem/sm90_stem_args.h"
#include "ops/conv/stem/stem_tile.cuh"

constexpr int THREADS = 32 * WARPS;
constexpr int STEP = PAIR * STRIDE_X * CHANNELS / 2; /* words from row to row of the product */
constexpr int RUN = (LEAD + ((PAIR - 1) * STRIDE_X + COLS) * CHANNELS + 1) / 2, PLANE_WORDS = ROWS * RUN;
constexpr int WORDS = DEPTH * PLANE_WORDS;
constexpr int LINE_W = TILE_W / PAIR, LINES_ALL = TILE_H * LINE_W;
constexpr int IMAGE_H = (TILE_H - 1) * STRIDE_Y + (ROWS - 1) * DILATION_Y + 1;
constexpr int PLANE_PITCH = IMAGE_H * PITCH; /* words */
constexpr u32 IMAGE_BYTES = DEPTH * PLANE_PITCH * 4, IMAGE_ROOM = (IMAGE_BYTES + 127) / 128 * 128;
static_assert(PAIR * STRIDE_X * CHANNELS % 2 == 0 && TILE_W % PAIR == 0, "rows of the product start at words");
static_assert(SHIFT + (LINE_W - 1) * STEP + RUN <= PITCH && PITCH % 4 == 0, "a tile's windows lie within a row");

/* Where word p lies, from the first word of a window on. */
__device__ __forceinline__ int word_offset(int p)
{
    const int r = p / RUN;
    return p < WORDS ? r / ROWS * PLANE_PITCH + r % ROWS * (DILATION_Y * PITCH) + p % RUN : 0;
}

/* Of a line of a tile, its window's first word. */
__device__ __forceinline__ int line_word(int line)
{
    return SHIFT + line / LINE_W * (STRIDE_Y * PITCH) + line % LINE_W * STEP;
}

struct plane_place {
    int image, z;
};

__device__ __forceinline__ plane_place plane_of(const conv_sm90_stem_args &a, const tile_place &p)
{
    const int image = (int)mica_fastdiv_of(a.planes, (unsigned)p.n);
    return {image, (int)p.n - image * (int)a.planes.divisor};
}

/* By one thread. */
__device__ __forceinline__ void load_image(const conv_sm90_stem_args &a, const tile_place &p, u32 to, u32 bar)
{
    const int first = (p.x * STRIDE_X - a.stem.pad[1]) * CHANNELS - LEAD - 2 * SHIFT; /* element */
    const plane_place at = plane_of(a, p);
    mbarrier_arrive_expect(bar, IMAGE_BYTES);
    tma_load(to, &a.image, bar, first / 4, p.y * STRIDE_Y - a.stem.pad[0], at.z * a.stride_z - a.pad_z, at.image);
}
