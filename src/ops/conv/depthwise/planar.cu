/* SPDX-License-Identifier: Apache-2.0
 * Depthwise convolution of planes, and its gradient with respect to the image: see planar.cuh.
 * A strip's rows go by one after the other, each to all rows of the result that it is in the window of.
 * Results that lie packed as well (STAGED) meet in shared memory and leave it as one run, 16 bytes at a
 * time: what the threads have at a time lies far apart.
 * Constants: those of planar.cuh and the epilogue's; TO_ACCESS (pixels of the result that lie side
 * by side at multiples of it), FILTER_PACKED (channels, rows and taps follow each other), HAS_RESIDUAL, HELD (weights stay in registers), BLOCKS (per multiprocessor,
 * wanted); out_t. */
#include "kernels/epilogue.cuh"
#include "kernels/overlap.cuh"
#include "ops/conv/depthwise/planar.cuh"

constexpr int TAPS = ROWS * COLS;
static_assert(THREAD_W % TO_ACCESS == 0 && TO_W % TO_ACCESS == 0, "stores are aligned");

/* Of results, in elements: 16 bytes; the room of a block's run and what is copied before it. */
constexpr int TO_EACH = 16 / (int)sizeof(out_t);
constexpr int TO_ROWS = WHOLE ? TO_H : TILE_H;
constexpr int TO_RUN = STAGED ? (PLANES * TO_ROWS * TO_W + TO_EACH - 1) / TO_EACH * TO_EACH + TO_EACH : 0;

typedef float sums[THREAD_H][THREAD_W];

/* ---- sums ---- */

/* Of planes from `first` on. */
__device__ __forceinline__ void copy_filter(const conv_planar_args &a, float *to, int first)
{
#pragma unroll UNROLLED
    for (int k = 0; k < PLANES * TAPS; k += THREADS) {
        const int i = k + (int)threadIdx.x, tap = i % TAPS;
        if (k + THREADS > PLANES * TAPS && i >= PLANES * TAPS) continue;
        const unsigned plane = (unsigned)min(first + i / TAPS, (int)a.planes - 1);
        const int c = (int)(plane - mica_fastdiv_of(a.by_channels, plane) * (unsigned)a.channels);
        const s64 at = FILTER_PACKED ? c * (s64)TAPS + tap
                                     : c * a.filter_c + tap / COLS * a.filter_row + tap % COLS * a.filter_col;
        to[i] = widen<float>(((const in_t *)a.other)[at]);
    }
}

/* One row of taps over one row of the image. */
__device__ __forceinline__ void add_row(float (&sum)[THREAD_W], const float (&window)[WINDOW], const float *weights)
{
#pragma unroll
    for (int t = 0; t < COLS; t++) {
        const float w = weights[t];
#pragma unroll
        for (int o = 0; o < THREAD_W; o++) {
            const int at = column_of(o, t);
            if (at >= 0 && is_ever(at)) sum[o] += window[at] * w;
        }
    }
}

/* Lines from LINE on. Not a loop: of many lines the compiler would unroll some, and compare at run time. */
template <int LINE = 0>
__device__ __forceinline__ void add_lines(sums &sum, const in_t *rows, const in_t *zeros, const rows_of_tile &has,
                                          const float *weights, int y, int x)
{
    if constexpr (line_is_ever(LINE)) {
        float window[WINDOW];
        load_window(row_at(rows, zeros, has, y + LINE, LINE), zeros, x, window);
#pragma unroll
        for (int o = 0; o < THREAD_H; o++)
#pragma unroll
            for (int t = 0; t < ROWS; t++)
                if (line_of(o, t) == LINE) add_row(sum[o], window, weights + t * COLS);
    }
    if constexpr (LINE + 1 < LINES) add_lines<LINE + 1>(sum, rows, zeros, has, weights, y, x);
}

/* ---- results ---- */

struct target {
    out_t *out;    /* pixel 0, 0 of the plane */
    out_t *staged; /* the same in shared memory */
    s64 residual;
    int channel;
};

/* Sums become results. What lies outside reads what its neighbour inside does. */
__device__ __forceinline__ void finish_strip(const conv_planar_args &a, const target &to, sums &sum, int y, int x)
{
    const int last_y = TO_H % THREAD_H ? TO_H - 1 - y : THREAD_H, last_x = TO_W % THREAD_W ? TO_W - 1 - x : THREAD_W;
    const float alpha = (float)a.alpha, beta = (float)a.beta;
    if (alpha != 1)
#pragma unroll
        for (int i = 0; i < THREAD_H; i++)
#pragma unroll
            for (int k = 0; k < THREAD_W; k++) sum[i][k] *= alpha;
    if (a.beta != 0) /* one branch for all: one for each pixel would cost more than the rest */
#pragma unroll
        for (int i = 0; i < THREAD_H; i++)
#pragma unroll
            for (int k = 0; k < THREAD_W; k++)
                sum[i][k] += beta * widen<float>(to.out[(y + min(i, last_y)) * a.to.row + (x + min(k, last_x)) * a.to.col]);
#pragma unroll
    for (int i = 0; i < THREAD_H; i++)
#pragma unroll
        for (int k = 0; k < THREAD_W; k++) {
            s64 residual = 0;
            if constexpr (HAS_RESIDUAL)
                residual = to.residual + (y + min(i, last_y)) * a.residual.row + (x + min(k, last_x)) * a.residual.col;
            sum[i][k] = epilogue(a.epilogue, sum[i][k], to.channel, residual);
        }
}

/* ACCESS_TO pixels at a time. */
template <int ACCESS_TO>
__device__ __forceinline__ void store_strip(out_t *out, s64 row, s64 col, const sums &sum, int y, int x)
{
#pragma unroll
    for (int i = 0; i < THREAD_H; i++) {
        if (TO_H % THREAD_H != 0 && y + i >= TO_H) continue;
#pragma unroll
        for (int k = 0; k < THREAD_W; k += ACCESS_TO)
            if (TO_W % THREAD_W == 0 || x + k < TO_W)
                store_elements<out_t, ACCESS_TO>(out + (y + i) * row + (x + k) * col, true, &sum[i][k]);
    }
}

/* The strips of one thread in a plane of the image. */
__device__ __forceinline__ void form_strips(const conv_planar_args &a, const target &to, const in_t *rows, const in_t *zeros,
                                            const rows_of_tile &has, const float *weights, int tile)
{
    float held[HELD ? TAPS : 1];
    if constexpr (HELD)
#pragma unroll
        for (int t = 0; t < TAPS; t++) held[t] = weights[t];
#pragma unroll 1
    for (int strip = (int)threadIdx.x % STRIP_THREADS; strip < STRIPS; strip += STRIP_THREADS) {
        const int y = tile * TILE_H + strip / STRIPS_X * THREAD_H, x = strip % STRIPS_X * THREAD_W;
        if (y >= TO_H) break;
        sums sum = {};
        add_lines(sum, rows, zeros, has, HELD ? held : weights, strip_start(y, STRIDE_Y) + ORIGIN_Y,
                  strip_start(x, STRIDE_X) + ORIGIN_X);
        finish_strip(a, to, sum, y, x);
        if constexpr (STAGED)
            store_strip<TO_ACCESS>(to.staged, TO_W, 1, sum, y, x);
        else if (TO_ACCESS > 1 && a.to_aligned)
            store_strip<TO_ACCESS>(to.out, a.to.row, 1, sum, y, x);
        else
            store_strip<1>(to.out, a.to.row, a.to.col, sum, y, x);
    }
}

/* Stores `count` results from element `first` on; from: as much before the first as 16 bytes need. */
__device__ __forceinline__ void store_run(out_t *tensor, const out_t *from, s64 first, int count, bool aligned)
{
    constexpr int STEP = THREADS * TO_EACH;
    const int skew = (int)(first % TO_EACH), end = skew + count, thread = (int)threadIdx.x;
    const int begin = aligned ? (skew + TO_EACH - 1) / TO_EACH * TO_EACH : end, whole = end / TO_EACH * TO_EACH;
    out_t *const to = tensor + (first - skew);
#pragma unroll UNROLLED
    for (int k = 0; k < TO_RUN; k += STEP) {
        const int i = k + thread * TO_EACH;
        if (i >= begin && i < whole) *(uint4 *)(to + i) = *(const uint4 *)(from + i);
    }
    /* what stands before and behind whole ones */
#pragma unroll 1
    for (int i = skew + thread; i < min(begin, end); i += THREADS) to[i] = from[i];
#pragma unroll 1
    for (int i = max(begin, whole) + thread; i < end; i += THREADS) to[i] = from[i];
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) conv_planar(const __grid_constant__ conv_planar_args a)
{
    overlap_wait();
    extern __shared__ __align__(16) unsigned char memory[];
    in_t *const zeros = (in_t *)memory;
    out_t *const results = (out_t *)(zeros + ZEROS + FROM_RUN);
    float *const weights = (float *)(results + TO_RUN); /* multiples of 16 bytes */
    const int first = (int)(blockIdx.x / TILES) * PLANES; /* plane */
    const int tile = (int)(blockIdx.x % TILES);
    const rows_of_tile has = rows_of(tile);
    const int planes = min(PLANES, (int)a.planes - first), rows = max(has.end - has.first, 0);
    const in_t *const run = copy_run<FROM_RUN>(zeros + ZEROS, (const in_t *)a.image, ((s64)first * FROM_H + has.first) * FROM_W,
                                               planes * rows * FROM_W, a.planes * FROM_H * FROM_W, a.from_aligned);
    copies_commit();
    write_zeros(zeros);
    copy_filter(a, weights, first);
    copies_wait<0>();
    __syncthreads();

    const int plane = (int)threadIdx.x / STRIP_THREADS;
    const s64 first_result = ((s64)first * TO_H + tile * TILE_H) * TO_W; /* STAGED */
    if (plane < planes) {
        const unsigned at = (unsigned)(first + plane), n = mica_fastdiv_of(a.by_channels, at);
        target to;
        to.channel = (int)(at - n * (unsigned)a.channels);
        to.out = (out_t *)a.out + n * a.to.n + to.channel * a.to.c;
        to.staged = results + first_result % TO_EACH + (plane * TO_ROWS - tile * TILE_H) * TO_W;
        to.residual = n * a.residual.n + to.channel * a.residual.c;
        form_strips(a, to, run + plane * FROM_ROWS * FROM_W, zeros, has, weights + plane * TAPS, tile);
    }
    if constexpr (STAGED) {
        __syncthreads();
        const int to_rows = WHOLE ? TO_H : min(TILE_H, TO_H - tile * TILE_H);
        store_run((out_t *)a.out, results, first_result, planes * to_rows * TO_W, a.to_aligned);
    }
}
