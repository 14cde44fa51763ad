/* SPDX-License-Identifier: Apache-2.0
 * Depthwise convolution of planes, and its gradient with respect to the image: see conv_planar.cuh.
 * A strip's rows go by one after the other, each to all rows of the result that it is in the window of.
 * Constants: those of conv_planar.cuh and the epilogue's; TO_ACCESS (pixels of the result that lie side
 * by side at multiples of it), HAS_RESIDUAL, HELD (weights stay in registers), BLOCKS (per multiprocessor, wanted); out_t. */
#include "cuda/device/epilogue.cuh"
#include "cuda/device/overlap.cuh"
#include "ops/conv/conv_planar.cuh"

constexpr int TAPS = ROWS * COLS, LINES = halo_size(THREAD_H, ROWS, STRIDE_Y, DILATION_Y);
static_assert(THREAD_W % TO_ACCESS == 0 && (TO_ACCESS == 1 || SHIFT_X == 0), "stores are aligned");

typedef float sums[THREAD_H][THREAD_W];

/* ---- sums ---- */

__device__ __forceinline__ void copy_filter(const conv_planar_args &a, float *to, s64 first)
{
    for (int i = (int)threadIdx.x; i < PLANES * TAPS; i += THREADS) {
        const s64 plane = first + i / TAPS;
        const int tap = i % TAPS, c = (int)(plane - (s64)mica_fastdiv_of(a.by_channels, (unsigned)plane) * a.channels);
        float v = 0;
        if (plane < a.planes)
            v = widen<float>(((const in_t *)a.other)[c * a.filter_c + tap / COLS * a.filter_row + tap % COLS * a.filter_col]);
        to[i] = v;
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
            const int at = halo_of(o, t, COLS, STRIDE_X, DILATION_X);
            if (at >= 0 && is_ever(at)) sum[o] += window[at] * w;
        }
    }
}

__device__ __forceinline__ void add_strip(sums &sum, const in_t *rows, const in_t *zeros, const rows_of_tile &has,
                                          const float *weights, int y, int x)
{
#pragma unroll
    for (int line = 0; line < LINES; line++) {
        float window[WINDOW];
        load_window(row_at(rows, zeros, has, y + line), x, window);
#pragma unroll
        for (int o = 0; o < THREAD_H; o++)
#pragma unroll
            for (int t = 0; t < ROWS; t++)
                if (halo_of(o, t, ROWS, STRIDE_Y, DILATION_Y) == line) add_row(sum[o], window, weights + t * COLS);
    }
}

/* ---- results ---- */

struct target {
    out_t *out; /* pixel 0, 0 of the plane */
    s64 residual;
    int channel;
};

__device__ __forceinline__ void store_pixels(const conv_planar_args &a, const target &to, const float *sum, int y, int x)
{
    const bool exact = SHIFT_X == 0 && TO_W % THREAD_W == 0;
    float v[TO_ACCESS];
    out_t *const out = to.out + y * a.to.row + x * a.to.col;
#pragma unroll
    for (int k = 0; k < TO_ACCESS; k++) {
        if (!exact && (unsigned)(x + k) >= (unsigned)TO_W) continue;
        s64 residual = 0;
        if constexpr (HAS_RESIDUAL) residual = to.residual + y * a.residual.row + (x + k) * a.residual.col;
        v[k] = sum[k] * (float)a.alpha;
        if (a.beta != 0) v[k] += (float)a.beta * widen<float>(out[k * a.to.col]);
        v[k] = epilogue(a.epilogue, v[k], to.channel, residual);
        if (TO_ACCESS == 1 || !a.to_aligned) out[k * a.to.col] = narrow<out_t>(v[k]);
    }
    if (TO_ACCESS > 1 && a.to_aligned) store_elements<out_t, TO_ACCESS>(out, true, v);
}

__device__ __forceinline__ void store_strip(const conv_planar_args &a, const target &to, const sums &sum, int y, int x)
{
#pragma unroll
    for (int i = 0; i < THREAD_H; i++) {
        if ((unsigned)(y + i) >= (unsigned)TO_H) continue;
#pragma unroll
        for (int k = 0; k < THREAD_W; k += TO_ACCESS) {
            if (TO_ACCESS > 1 && TO_W % THREAD_W != 0 && x + k >= TO_W) continue;
            store_pixels(a, to, &sum[i][k], y + i, x + k);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) conv_planar(const __grid_constant__ conv_planar_args a)
{
    overlap_wait();
    extern __shared__ __align__(16) unsigned char memory[];
    in_t *const zeros = (in_t *)memory;
    float *const weights = (float *)(zeros + ZEROS + FROM_RUN); /* a multiple of 16 bytes */
    const s64 first = blockIdx.x / TILES * (s64)PLANES;
    const int tile = (int)(blockIdx.x % TILES);
    const rows_of_tile has = rows_of(tile);
    const int planes = (int)min((s64)PLANES, a.planes - first), rows = max(has.end - has.first, 0);
    const in_t *const run = copy_run(zeros + ZEROS, (const in_t *)a.image, (first * FROM_H + has.first) * FROM_W,
                                     planes * rows * FROM_W, a.planes * FROM_H * FROM_W, a.from_aligned);
    copies_commit();
    write_zeros(zeros);
    copy_filter(a, weights, first);
    copies_wait<0>();
    __syncthreads();

    const int plane = (int)threadIdx.x / STRIP_THREADS;
    if (plane >= planes) return;
    float held[HELD ? TAPS : 1];
    if constexpr (HELD)
#pragma unroll
        for (int t = 0; t < TAPS; t++) held[t] = weights[plane * TAPS + t];
    const float *const filter = HELD ? held : weights + plane * TAPS;
    const unsigned at = (unsigned)(first + plane), n = mica_fastdiv_of(a.by_channels, at);
    target to;
    to.channel = (int)(at - n * (unsigned)a.channels);
    to.out = (out_t *)a.out + n * a.to.n + to.channel * a.to.c;
    to.residual = n * a.residual.n + to.channel * a.residual.c;
#pragma unroll 1
    for (int strip = (int)threadIdx.x % STRIP_THREADS; strip < STRIPS; strip += STRIP_THREADS) {
        const int y = tile * TILE_H + strip / STRIPS_X * THREAD_H, x = strip % STRIPS_X * THREAD_W;
        if (y - SHIFT_Y >= TO_H) break;
        sums sum = {};
        add_strip(sum, run + plane * FROM_ROWS * FROM_W, zeros, has, filter, strip_start(y, STRIDE_Y) + ORIGIN_Y,
                  strip_start(x, STRIDE_X) + ORIGIN_X);
        store_strip(a, to, sum, y - SHIFT_Y, x - SHIFT_X);
    }
}
