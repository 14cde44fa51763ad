/* SPDX-License-Identifier: Apache-2.0
 * The gradient of a depthwise filter from planes: see planar.cuh. A block has PLANES channels and
 * every `parts`th image, or some rows of one; each thread sums all taps up in registers. At the end the
 * sums of a channel's threads are added in their order, those of the parts by conv_parts.cu. Constants:
 * those of planar.cuh, BLOCKS (per multiprocessor); out_t. */
#include "kernels/overlap.cuh"
#include "ops/conv/depthwise/planar.cuh"

constexpr int TO_ACCESS = access_of(TO_W, THREAD_W);
constexpr int TO_RUN = run_elements(WHOLE ? TO_H : TILE_H, TO_W);
static_assert(TO_W % THREAD_W == 0 && TO_H % THREAD_H == 0, "strips are whole: nothing outside takes part");

typedef float sums[ROWS][COLS];

typedef float factors[THREAD_H][THREAD_W];

__device__ __forceinline__ void load_factors(const in_t *from, factors &factor)
{
#pragma unroll
    for (int i = 0; i < THREAD_H; i++)
#pragma unroll
        for (int k = 0; k < THREAD_W; k += TO_ACCESS) unpack_pairs(fetch<TO_ACCESS>(from + i * TO_W + k, true), &factor[i][k]);
}

/* One row of taps over one row of the image. */
__device__ __forceinline__ void add_row(float (&sum)[COLS], const float (&window)[WINDOW], const float (&factor)[THREAD_W])
{
#pragma unroll
    for (int s = 0; s < COLS; s++)
#pragma unroll
        for (int k = 0; k < THREAD_W; k++) {
            const int at = column_of(k, s);
            if (is_ever(at)) sum[s] += window[at] * factor[k];
        }
}

/* Lines from LINE on. Not a loop: of many lines the compiler would unroll some, and compare at run time. */
template <int LINE = 0>
__device__ __forceinline__ void add_lines(sums &sum, const in_t *rows, const in_t *zeros, const rows_of_tile &has,
                                          const factors &factor, int y, int x)
{
    if constexpr (line_is_ever(LINE)) {
        float window[WINDOW];
        load_window(row_at(rows, zeros, has, y + LINE, LINE), zeros, x, window);
#pragma unroll
        for (int o = 0; o < THREAD_H; o++)
#pragma unroll
            for (int t = 0; t < ROWS; t++)
                if (line_of(o, t) == LINE) add_row(sum[t], window, factor[o]);
    }
    if constexpr (LINE + 1 < LINES) add_lines<LINE + 1>(sum, rows, zeros, has, factor, y, x);
}

__device__ __forceinline__ void store_sum(const conv_planar_args &a, s64 channel, unsigned part, int tap, float sum)
{
    if (channel >= a.channels) return;
    out_t *out = (out_t *)a.out + part * a.part + channel * a.filter_c + tap / COLS * a.filter_row + tap % COLS * a.filter_col;
    float v = sum * (float)a.alpha;
    if (a.beta != 0) v += (float)a.beta * widen<float>(*out);
    *out = narrow<out_t>(v);
}

/* each: [plane][thread][column] of one row of taps. */
__device__ __forceinline__ void store_sums(const conv_planar_args &a, const sums &sum, float *each, s64 channel, unsigned part)
{
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        __syncthreads();
#pragma unroll
        for (int s = 0; s < COLS; s++) each[threadIdx.x * COLS + s] = sum[row][s];
        __syncthreads();
        for (int i = (int)threadIdx.x; i < PLANES * COLS; i += THREADS) {
            const float *from = each + i / COLS * STRIP_THREADS * COLS + i % COLS;
            float v = 0;
#pragma unroll 8
            for (int t = 0; t < STRIP_THREADS; t++) v += from[t * COLS];
            store_sum(a, channel + i / COLS, part, row * COLS + i % COLS, v);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) conv_planar_wgrad(const __grid_constant__ conv_planar_args a)
{
    overlap_wait();
    extern __shared__ __align__(16) unsigned char memory[];
    in_t *const zeros = (in_t *)memory, *const image = zeros + ZEROS, *const other = image + FROM_RUN;
    const unsigned part = blockIdx.x % (unsigned)a.parts;
    const s64 channel = blockIdx.x / (unsigned)a.parts * (s64)PLANES;
    const int planes = (int)min((s64)PLANES, a.channels - channel), plane = (int)threadIdx.x / STRIP_THREADS;
    sums sum = {};
    write_zeros(zeros);
    for (s64 i = part; i < a.images * TILES; i += a.parts) {
        const s64 first = i / TILES * a.channels + channel;
        const int tile = (int)(i % TILES);
        const rows_of_tile has = rows_of(tile);
        const int rows = max(has.end - has.first, 0), to_rows = WHOLE ? TO_H : min(TILE_H, TO_H - tile * TILE_H);
        const in_t *const run = copy_run<FROM_RUN>(image, (const in_t *)a.image, (first * FROM_H + has.first) * FROM_W,
                                                   planes * rows * FROM_W, a.planes * FROM_H * FROM_W, a.from_aligned);
        const in_t *const to = copy_run<TO_RUN>(other, (const in_t *)a.other, (first * TO_H + tile * TILE_H) * TO_W,
                                                planes * to_rows * TO_W, a.planes * TO_H * TO_W, a.to_aligned);
        copies_commit();
        copies_wait<0>();
        __syncthreads();
        if (plane < planes)
#pragma unroll 1
            for (int strip = (int)threadIdx.x % STRIP_THREADS; strip < STRIPS; strip += STRIP_THREADS) {
                const int row = strip / STRIPS_X * THREAD_H, x = strip % STRIPS_X * THREAD_W;
                if (row >= to_rows) break;
                factors factor;
                load_factors(to + (plane * TO_H + row) * TO_W + x, factor);
                add_lines(sum, run + plane * FROM_ROWS * FROM_W, zeros, has, factor,
                          strip_start(tile * TILE_H + row, STRIDE_Y) + ORIGIN_Y, x * STRIDE_X + ORIGIN_X);
            }
        __syncthreads(); /* what was copied is replaced next */
    }
    store_sums(a, sum, (float *)memory, channel, part);
}
