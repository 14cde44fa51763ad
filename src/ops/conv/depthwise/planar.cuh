/* SPDX-License-Identifier: Apache-2.0
 * What the kernels of whole planes share. Planes lie one after the other, rows and pixels side by side,
 * so a block brings some planes, or some rows of one, to shared memory as they lie: one run of elements,
 * copied 16 bytes at a time wherever it begins. THREADS / PLANES threads compute strips of THREAD_H x
 * THREAD_W pixels of one plane. What a window needs outside its plane is not read: rows in its place are
 * zero, columns are compared, as far as the compiler does not know them.
 * Constants: those of conv_halo.cuh (TILE_H: rows of a block; TILE_W: whole rows, in whole strips);
 * FROM_H, FROM_W, TO_H, TO_W (planes of the image that is read, of the result; wgrad: of a and of b);
 * ORIGIN_Y, ORIGIN_X (where the halo of tile 0 starts), PHASE_Y, PHASE_X (dgrad: how far tiles start behind
 * a pixel that tap 0 falls on);
 * PLANES (more than one: all rows are in a tile); THREAD_H, THREAD_W; STRIP_THREADS (of a plane); in_t. */
#pragma once
#include "ops/conv/cuda/conv_halo.cuh"
#include "ops/conv/depthwise/planar_args.h"

constexpr int THREADS = PLANES * STRIP_THREADS;
constexpr int STRIPS_X = TILE_W / THREAD_W, STRIPS_Y = TILE_H / THREAD_H, STRIPS = STRIPS_X * STRIPS_Y;
constexpr int TILES = (TO_H + TILE_H - 1) / TILE_H; /* of a plane */
constexpr bool WHOLE = TILES == 1;
constexpr int EACH = 16 / (int)sizeof(in_t);
constexpr int UNROLLED = 8; /* iterations of a loop over what is copied */
static_assert(WHOLE || PLANES == 1, "what is copied has no gaps");
static_assert(TILE_H % THREAD_H == 0 && TILE_W % THREAD_W == 0, "whole strips");
static_assert(!DGRAD || (THREAD_H % STRIDE_Y == 0 && THREAD_W % STRIDE_X == 0), "strips of one phase");

constexpr int round_up(int n) { return (n + EACH - 1) / EACH * EACH; }

/* Shared memory, in elements: a row of zeros, as wide as a window at least, and the run of `rows` rows of
 * `cols` of each plane. */
constexpr int WINDOW = halo_size(THREAD_W + PHASE_X, COLS, STRIDE_X, DILATION_X);
constexpr int ZEROS = round_up(FROM_W > WINDOW ? FROM_W : WINDOW);
constexpr int run_elements(int rows, int cols) { return round_up(PLANES * rows * cols) + EACH; }
constexpr int TILE_HALO = halo_size(TILE_H + PHASE_Y, ROWS, STRIDE_Y, DILATION_Y);
constexpr int FROM_ROWS = WHOLE || TILE_HALO > FROM_H ? FROM_H : TILE_HALO; /* of a tile, at most */
constexpr int FROM_RUN = run_elements(FROM_ROWS, FROM_W);

/* Starts the copies of `count` elements, MOST at most, from `first` on of a tensor of `total` elements;
 * where the first of them stands. */
template <int MOST>
__device__ __forceinline__ const in_t *copy_run(in_t *to, const in_t *tensor, s64 first, int count, s64 total, bool aligned)
{
    constexpr int STEP = THREADS * EACH;
    const int skew = (int)(first % EACH), end = skew + count, thread = (int)threadIdx.x;
    const s64 start = first - skew;
    const int whole = aligned ? (int)min((s64)round_up(end), (total - start) / EACH * EACH) : 0; /* inside the tensor */
    const in_t *const from = tensor + start;
#pragma unroll UNROLLED
    for (int k = 0; k < MOST; k += STEP) {
        const int i = k + thread * EACH;
        if (i < whole) copy_async<16>(shared_address(to + i), from + i, 16);
    }
#pragma unroll 1
    for (int i = max(whole, skew) + thread; i < end; i += THREADS) to[i] = from[i];
    return to + skew;
}

/* ---- rows with their halo ---- */

constexpr int LINES = halo_size(THREAD_H + PHASE_Y, ROWS, STRIDE_Y, DILATION_Y);
constexpr int STEP_Y = strip_start(THREAD_H, STRIDE_Y); /* of the image from strip to strip */
constexpr int STEP_X = strip_start(THREAD_W, STRIDE_X);

/* The line of a strip, the column of its window that a tap of a pixel needs, or -1. */
constexpr int line_of(int o, int t) { return halo_of(o + PHASE_Y, t, ROWS, STRIDE_Y, DILATION_Y); }
constexpr int column_of(int o, int t) { return halo_of(o + PHASE_X, t, COLS, STRIDE_X, DILATION_X); }

/* Whether a line of a strip is a row of the plane in each strip, in any. */
constexpr bool line_is_sure(int i) { return WHOLE && ORIGIN_Y + i >= 0 && ORIGIN_Y + i + (STRIPS_Y - 1) * STEP_Y < FROM_H; }
constexpr bool line_is_ever(int i) { return !WHOLE || (ORIGIN_Y + i + (STRIPS_Y - 1) * STEP_Y >= 0 && ORIGIN_Y + i < FROM_H); }

/* Whether column i of a window is inside the plane in each strip, in any. */
constexpr bool is_sure(int i) { return ORIGIN_X + i >= 0 && ORIGIN_X + i + (STRIPS_X - 1) * STEP_X < FROM_W; }
constexpr bool is_ever(int i) { return ORIGIN_X + i + (STRIPS_X - 1) * STEP_X >= 0 && ORIGIN_X + i < FROM_W; }

/* Elements of one access: pixels at multiples of it are such in memory. */
constexpr int access_of(int width, int step)
{
    int n = EACH;
    while (width % n || step % n) n /= 2;
    return n;
}
constexpr int ACCESS = access_of(FROM_W, STEP_X);
/* Where the access begins that column i of a window is read with, if the window has all of it. */
constexpr int access_start(int i) { return i - ((ORIGIN_X + i) % ACCESS + ACCESS) % ACCESS; }
constexpr bool has_access(int i)
{
    const int first = access_start(i), last = first + ACCESS - 1;
    return ACCESS > 1 && first >= 0 && last < WINDOW && is_sure(first) && is_sure(last);
}

/* row: its column 0; x: that of the window's first. A column outside is read from zeros: a load under a
 * condition would be a branch. */
__device__ __forceinline__ void load_window(const in_t *row, const in_t *zeros, int x, float (&window)[WINDOW])
{
#pragma unroll
    for (int i = 0; i < WINDOW; i++) {
        if (has_access(i)) {
            if (access_start(i) == i) unpack_pairs(fetch<ACCESS>(row + x + i, true), &window[i]);
            continue;
        }
        window[i] = 0;
        const in_t *const from = is_sure(i) || (unsigned)(x + i) < (unsigned)FROM_W ? row + x : zeros;
        if (is_ever(i)) window[i] = widen<float>(from[i]);
    }
}

/* Rows of the image that a tile needs and that exist: the first, and one behind the last. */
struct rows_of_tile {
    int first, end;
};
__device__ __forceinline__ rows_of_tile rows_of(int tile)
{
    if (WHOLE) return {0, FROM_H};
    const int y = tile * strip_start(TILE_H, STRIDE_Y) + ORIGIN_Y;
    return {min(max(y, 0), FROM_H), max(min(y + TILE_HALO, FROM_H), 0)};
}

/* Where row y stands, which is a line of a strip, or zeros do. */
__device__ __forceinline__ const in_t *row_at(const in_t *rows, const in_t *zeros, const rows_of_tile &has, int y, int line)
{
    return line_is_sure(line) || (y >= has.first && y < has.end) ? rows + (y - has.first) * FROM_W : zeros;
}

__device__ __forceinline__ void write_zeros(in_t *zeros)
{
#pragma unroll UNROLLED
    for (int k = 0; k < ZEROS; k += THREADS)
        if (k + (int)threadIdx.x < ZEROS) zeros[k + (int)threadIdx.x] = in_t{};
}
