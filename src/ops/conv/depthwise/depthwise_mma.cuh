/* SPDX-License-Identifier: Apache-2.0
 * What the depthwise kernels for tensor cores share. The units take 16 independent streams at a time, each
 * one the rows of a strip of an image that pass one after the other, and a tile of columns of them. A row
 * comes with channels side by side; in shared memory each channel has a plane of its own, of words of two
 * elements that the units want in one register: neighbours in a stream, in wgrad one column of two streams.
 * A thread transposes what it copied itself, so that a step of some rows needs one barrier.
 * Constants: KIND; ROWS, COLS (taps); DILATION_Y, DILATION_X; WARPS, EACH (channels of a warp); WINDOWS (of 8
 * columns of the result, in wgrad of b), TILE_W (columns that are used of them); STRIP_H (rows of a stream),
 * STEP_ROWS (of them at a time); WHOLE (images of up to 8 columns: a window reads them as they lie, without a
 * halo); DEPTH (steps in flight); BLOCKS (per multiprocessor, wanted); in_t, out_t. */
#pragma once
#include "kernels/mma.cuh"
#include "kernels/vector.cuh"
#include "ops/conv/conv_args.h"
#include "ops/conv/depthwise/depthwise_mma_args.h"

constexpr bool DGRAD = KIND == MICA_CONV_KIND_DGRAD;
constexpr int STREAMS = 16, WINDOW = 8, CHUNK = 8; /* columns; channels of 16 bytes */
constexpr int THREADS = 32 * WARPS, CHANNELS = WARPS * EACH, CHUNKS = CHANNELS / CHUNK;
constexpr int REACH = (COLS - 1) * DILATION_X;
constexpr int SPAN = WHOLE || REACH == 0 ? 1 : 2; /* windows of columns that one window's results need */
constexpr int READ_WINDOWS = WINDOWS + SPAN - 1, READ_COLS = WHOLE ? WINDOW : TILE_W + REACH;
/* Rows that a result needs, places for them in registers, rows of a strip that are read, and its steps. */
constexpr int NEEDED = (ROWS - 1) * DILATION_Y + 1, HELD = (NEEDED + STEP_ROWS - 1) / STEP_ROWS * STEP_ROWS;
constexpr int READ_ROWS = STRIP_H + NEEDED - 1, STEPS = (READ_ROWS + STEP_ROWS - 1) / STEP_ROWS;
static_assert(sizeof(in_t) == 2 && REACH <= WINDOW && CHANNELS % CHUNK == 0, "words of two, two windows, whole chunks");
static_assert(TILE_W <= WINDOWS * WINDOW && (!WHOLE || WINDOWS == 1), "tiles fill their windows");

/* ---- streams ---- */

struct stream {
    s64 n;
    int y; /* its first row of the result (wgrad: of b) */
    bool exists;
};

__device__ __forceinline__ stream stream_of(const conv_depthwise_mma_args &a, unsigned group, int i)
{
    const unsigned id = group * STREAMS + (unsigned)i, n = mica_fastdiv_of(a.strips, id);
    return stream{n, (int)(id - n * a.strips.divisor) * STRIP_H, n < (unsigned)a.images};
}

/* ---- planes in shared memory ---- */

/* LINES x WORDS words of each channel. LINES is 16, each of a stream, or 8, each of two. BYTES: of a word, 8
 * where it is two sums. */
template <int LINES, int WORDS, int BYTES = 4> struct planes {
    /* The 8 or 4 lines and 4 or 8 words that a warp reads at a time lie in 32 banks, */
    static constexpr int STEP = LINES == 16 ? 4 : 8;
    static constexpr int PITCH = WORDS / STEP % 2 ? WORDS : WORDS + STEP;
    /* and so do the words of CHUNKS chunks, or nearly so. */
    static constexpr int CHANNEL = LINES * PITCH + (CHUNKS == 2 && BYTES == 4 ? 2 : 1);
    static constexpr int SIZE = CHANNELS * CHANNEL;
    static constexpr int ALL = LINES * WORDS * CHUNKS, ITEMS = (ALL + THREADS - 1) / THREADS;
    static_assert(WORDS % STEP == 0, "whole windows");
};

/* The words of an item: one of every channel of a chunk. */
struct item {
    int chunk, word, line;
    bool exists;
};

template <typename P, int LINES, int WORDS> __device__ __forceinline__ item item_of(int i)
{
    const int at = (int)threadIdx.x + i * THREADS;
    return item{at % CHUNKS, at / CHUNKS % WORDS, at / (CHUNKS * WORDS), P::ALL % THREADS == 0 || at < P::ALL};
}

/* Words 8 lines apart of a window: of lines lane / 4 of streams, of pairs lane % 4 of them. */
template <typename P> __device__ __forceinline__ void load_window(const u32 *plane, int window, u32 (&w)[2])
{
    const int lane = (int)threadIdx.x % 32;
    if constexpr (P::STEP == 4) {
        w[0] = plane[lane / 4 * P::PITCH + window * 4 + lane % 4];
        w[1] = plane[(lane / 4 + 8) * P::PITCH + window * 4 + lane % 4];
    } else {
        w[0] = plane[lane % 4 * P::PITCH + window * 8 + lane / 4];
        w[1] = plane[(lane % 4 + 4) * P::PITCH + window * 8 + lane / 4];
    }
}

/* ---- rows from memory to planes ---- */

/* One of the two runs of 8 channels that an item is made of: where it is in the row that is copied next, and
 * which row that is, NOWHERE if there is none. */
struct run_of_channels {
    const in_t *from;
    int y;
};
constexpr int NOWHERE = -(1 << 30);

/* LINES x WORDS words of each of COUNT rows of a strip, DEPTH - 1 steps ahead in `staging`, of which every
 * thread has its own. */
template <int LINES, int WORDS, int COUNT> struct reader {
    typedef planes<LINES, WORDS> plane;
    static constexpr int ITEMS = plane::ITEMS, STEP_BYTES = STEP_ROWS * 2 * plane::ALL * 16;
    run_of_channels runs[ITEMS][2];
    s64 row;
    int height;
    bool aligned;
    unsigned char *staging;

    __device__ __forceinline__ unsigned char *place(int step, int row, int i, int half) const
    {
        return staging + step % DEPTH * STEP_BYTES + ((row * 2 + half) * plane::ALL + i * THREADS + (int)threadIdx.x) * 16;
    }
    template <bool ALIGNED> __device__ __forceinline__ void copy_rows(int step)
    {
#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            if (!item_of<plane, LINES, WORDS>(i).exists) continue;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                run_of_channels &r = runs[i][half];
#pragma unroll
                for (int k = 0; k < STEP_ROWS; k++) {
                    const bool inside = step * STEP_ROWS + k < COUNT && (unsigned)r.y < (unsigned)height;
                    unsigned char *to = place(step, k, i, half);
                    if constexpr (ALIGNED) {
                        copy_async<16>(shared_address(to), r.from, inside ? 16 : 0);
                    } else {
                        for (int c = 0; c < CHUNK; c++) ((in_t *)to)[c] = inside ? r.from[c] : in_t{};
                    }
                    r.from += row;
                    r.y++;
                }
            }
        }
    }
    /* The rows of step `step`, once each and in their order. Of what lies outside no byte is read. */
    __device__ __forceinline__ void copy(int step)
    {
        if (aligned)
            copy_rows<true>(step);
        else
            copy_rows<false>(step);
    }
    /* What this thread copied; its copies of the step have ended. A row's planes follow the last one's. */
    __device__ __forceinline__ void turn(int step, u32 *to) const
    {
#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            const item at = item_of<plane, LINES, WORDS>(i);
            if (!at.exists) continue;
#pragma unroll
            for (int k = 0; k < STEP_ROWS; k++) {
                u32 low[4], high[4];
                load_vector<4>((const u32 *)place(step, k, i, 0), low);
                load_vector<4>((const u32 *)place(step, k, i, 1), high);
                u32 *word = to + k * plane::SIZE + at.chunk * CHUNK * plane::CHANNEL + at.line * plane::PITCH + at.word;
#pragma unroll
                for (int c = 0; c < CHUNK; c += 2) {
                    word[c * plane::CHANNEL] = __byte_perm(low[c / 2], high[c / 2], 0x5410);
                    word[(c + 1) * plane::CHANNEL] = __byte_perm(low[c / 2], high[c / 2], 0x7632);
                }
            }
        }
    }
};
