/* SPDX-License-Identifier: Apache-2.0
 * What the first-layer kernels share. Few channels lie side by side with their neighbours in a row, so
 * the taps of one filter row are one run of elements: rows of the image come to shared memory as they
 * are, and words (two elements) of a run are the pairs of terms that the tensor cores want. Words of all
 * rows of taps are counted through: `word` p is word p % RUN of row p / RUN.
 * Constants: ROWS, COLS (taps); STRIDE_Y, STRIDE_X, DILATION_Y; REAL (channels), CHANNELS (with one more
 * where a pixel's step were an odd number of elements); TILE_H, TILE_W (pixels of b); WARPS; FLAT (rows of
 * the image are runs of elements in memory); in_t. */
#pragma once
#include "kernels/mma.cuh"
#include "kernels/vector.cuh"
#include "ops/conv/stem/stem_args.h"

constexpr int THREADS = 32 * WARPS;
constexpr int RUN = (COLS * CHANNELS + 1) / 2, WORDS = ROWS * RUN;
constexpr int STEP = STRIDE_X * CHANNELS / 2; /* words from pixel to pixel */
constexpr int IMAGE_H = (TILE_H - 1) * STRIDE_Y + (ROWS - 1) * DILATION_Y + 1;
/* A run may be longer than its taps by one element, and the last word of the last run is read. */
constexpr int IMAGE_W = (TILE_W - 1) * STEP + RUN;
constexpr int IMAGE_WORDS = IMAGE_H * IMAGE_W;
static_assert(STRIDE_X * CHANNELS % 2 == 0 && sizeof(in_t) == 2, "pixels start at words");
static_assert(!FLAT || REAL == CHANNELS, "nothing between pixels");

#include "ops/conv/stem/stem_tile.cuh"

/* Where word p of the taps lies, from the first word of a pixel on. */
__device__ __forceinline__ int word_offset(int p)
{
    return p < WORDS ? p / RUN * (DILATION_Y * IMAGE_W) + p % RUN : 0;
}

/* Elements e and e + 1 of a row of the image, from column col on. Those outside of it are zero, and so are
 * those of channels that do not exist. */
__device__ __forceinline__ void load_word(const conv_stem_args &a, const in_t *row, bool exists, int col, int e, in_t (&v)[2])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        v[i] = in_t{};
        if constexpr (FLAT) {
            const int at = col * CHANNELS + e + i;
            if (exists && (unsigned)at < (unsigned)(a.size_from[1] * CHANNELS)) v[i] = row[at];
        } else {
            const int c = (e + i) % CHANNELS, x = col + (e + i) / CHANNELS;
            if (exists && c < REAL && (unsigned)x < (unsigned)a.size_from[1]) v[i] = row[x * a.from.s[1] + c * a.from.c];
        }
    }
}

/* BATCH words are in flight before the first is stored: one by one, each would wait for memory. */
__device__ __forceinline__ void copy_image(const conv_stem_args &a, const tile_place &p, u32 *to)
{
    constexpr int BATCH = 8;
    const in_t *image = (const in_t *)a.image + p.n * a.from.n;
    const int y0 = p.y * STRIDE_Y - a.pad[0], x0 = p.x * STRIDE_X - a.pad[1];
    for (int first = (int)threadIdx.x; first < IMAGE_WORDS; first += BATCH * THREADS) {
        in_t v[BATCH][2];
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            const int i = first + b * THREADS, row = y0 + i / IMAGE_W;
            const bool exists = i < IMAGE_WORDS && (unsigned)row < (unsigned)a.size_from[0];
            load_word(a, image + row * a.from.s[0], exists, x0, i % IMAGE_W * 2, v[b]);
        }
#pragma unroll
        for (int b = 0; b < BATCH; b++)
            if (first + b * THREADS < IMAGE_WORDS) memcpy(&to[first + b * THREADS], v[b], 4);
    }
}
