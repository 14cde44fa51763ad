/* SPDX-License-Identifier: Apache-2.0
 * Depthwise convolution and its gradient with respect to the image: a block brings a tile with its halo
 * and the filters of its channels into shared memory; a thread computes strips of THREAD_H x THREAD_W
 * pixels of two channels. With three axes, or a gradient of several channels in a group, the block does
 * so for each plane that it sums over. Constants: those of depthwise.cuh and the epilogue's;
 * UNROLLED (a strip's rows are known to the compiler), ONE_PLANE, PAIR_STORES (the result's channels lie
 * side by side), STAGED (the result goes through shared memory, for pixels side by side), HAS_RESIDUAL,
 * BLOCKS (per multiprocessor, wanted); types weight_t (in shared memory), out_t. */
#include "kernels/epilogue.cuh"
#include "kernels/overlap.cuh"
#include "ops/conv/depthwise/depthwise.cuh"
#include "ops/conv/depthwise/depthwise_place.cuh"

static_assert(UNROLLED || THREAD_H == 1, "rows one by one");
static_assert(!UNROLLED || !DGRAD || THREAD_H % STRIDE_Y == 0, "strips of one phase");
static_assert(ONE_PLANE || STRIPS <= GROUPS, "sums stay in registers from plane to plane");

constexpr int OUT_PITCH = CHANNELS + 1;

/* [tap][channel] */
__device__ __forceinline__ void copy_filter(const conv_depthwise_args &a, weight_t *to, const depthwise_place &p, int j, int depth_tap)
{
    const in_t *filter = (const in_t *)a.filter + p.channel * a.taps.c + j * a.taps.j + depth_tap * a.taps.s[0];
    for (int i = (int)threadIdx.x; i < ROWS * COLS * CHANNELS; i += THREADS) {
        const int c = i / (ROWS * COLS), tap = i % (ROWS * COLS);
        in_t v = {};
        if (p.channel + c < a.channels)
            v = filter[c * a.taps.c + tap / COLS * a.taps.s[1] + tap % COLS * a.taps.s[2]];
        to[tap * CHANNELS + c] = narrow<weight_t>(widen<float>(v));
    }
}

__device__ __forceinline__ void load_weights(const weight_t *p, float (&v)[2])
{
    weight_t e[2];
    load_vector<2>(p, e);
    v[0] = widen<float>(e[0]);
    v[1] = widen<float>(e[1]);
}

typedef float sums[THREAD_H][THREAD_W][2];

/* One row of taps over one row of the halo. */
__device__ __forceinline__ void add_row(float (&sum)[THREAD_W][2], const float (&window)[WINDOW][2], const weight_t *weights)
{
#pragma unroll
    for (int t = 0; t < COLS; t++) {
        float w[2];
        load_weights(weights + t * CHANNELS, w);
#pragma unroll
        for (int o = 0; o < THREAD_W; o++) {
            const int at = halo_of(o, t, COLS, STRIDE_X, DILATION_X);
            if (at < 0) continue;
            sum[o][0] += window[at][0] * w[0];
            sum[o][1] += window[at][1] * w[1];
        }
    }
}

__device__ __forceinline__ void load_window(const in_t *row, float (&window)[WINDOW][2])
{
#pragma unroll
    for (int i = 0; i < WINDOW; i++) load_pair(row + i * PITCH, window[i]);
}

__device__ __forceinline__ void add_strip(sums &sum, const in_t *halo, const weight_t *weights, int strip, int pair)
{
    const int row0 = strip / STRIPS_X * THREAD_H, col0 = strip % STRIPS_X * THREAD_W;
    halo += strip_start(col0, STRIDE_X) * PITCH + 2 * pair;
    weights += 2 * pair;
    if constexpr (UNROLLED) {
        constexpr int LINES = halo_size(THREAD_H, ROWS, STRIDE_Y, DILATION_Y);
        halo += strip_start(row0, STRIDE_Y) * HALO_W * PITCH;
#pragma unroll
        for (int line = 0; line < LINES; line++) {
            float window[WINDOW][2];
            load_window(halo + line * HALO_W * PITCH, window);
#pragma unroll
            for (int o = 0; o < THREAD_H; o++)
#pragma unroll
                for (int t = 0; t < ROWS; t++)
                    if (halo_of(o, t, ROWS, STRIDE_Y, DILATION_Y) == line)
                        add_row(sum[o], window, weights + t * COLS * CHANNELS);
        }
    } else {
#pragma unroll 1
        for (int t = 0; t < ROWS; t++) {
            const int line = halo_of(row0, t, ROWS, STRIDE_Y, DILATION_Y);
            if (line < 0) continue;
            float window[WINDOW][2];
            load_window(halo + line * HALO_W * PITCH, window);
            add_row(sum[0], window, weights + t * COLS * CHANNELS);
        }
    }
}

/* ---- results ---- */

struct target {
    out_t *out;
    s64 residual;
    int channel, channels; /* counted in channels of the result; the first, and groups from there */
    int y, x;
};

__device__ __forceinline__ float finished(const conv_depthwise_args &a, const target &to, s64 offset, s64 residual, int c,
                                          float sum)
{
    float v = sum * (float)a.alpha;
    if (a.beta != 0) v += (float)a.beta * widen<float>(to.out[offset]);
    return epilogue(a.epilogue, v, to.channel + c * (DGRAD ? 1 : a.multiplier), to.residual + residual);
}

__device__ __forceinline__ bool offsets(const conv_depthwise_args &a, const target &to, int row, int col, int c, s64 &offset,
                                        s64 &residual)
{
    row += to.y, col += to.x;
    if ((unsigned)row >= (unsigned)a.size_to[1] || (unsigned)col >= (unsigned)a.size_to[2]) return false;
    offset = row * a.to.s[1] + col * a.to.s[2] + c * a.to.c;
    residual = 0;
    if constexpr (HAS_RESIDUAL) residual = row * a.residual.s[1] + col * a.residual.s[2] + c * a.residual.c;
    return true;
}

__device__ __forceinline__ void store_strip(const conv_depthwise_args &a, const target &to, const sums &sum, int strip,
                                            int pair)
{
    const int row0 = strip / STRIPS_X * THREAD_H, col0 = strip % STRIPS_X * THREAD_W, c = 2 * pair;
    if (c >= to.channels) return;
#pragma unroll
    for (int i = 0; i < THREAD_H; i++)
#pragma unroll
        for (int k = 0; k < THREAD_W; k++) {
            s64 at, residual;
            if (!offsets(a, to, row0 + i, col0 + k, c, at, residual)) continue;
            const s64 step = PAIR_STORES ? 1 : a.to.c;
            const bool both = c + 1 < to.channels;
            float v[2] = {finished(a, to, at, residual, c, sum[i][k][0])};
            if (both) v[1] = finished(a, to, at + step, residual + (HAS_RESIDUAL ? a.residual.c : 0), c + 1, sum[i][k][1]);
            if (PAIR_STORES && both && a.to_aligned) {
                store_elements<out_t, 2>(to.out + at, true, v);
            } else {
                to.out[at] = narrow<out_t>(v[0]);
                if (both) to.out[at + step] = narrow<out_t>(v[1]);
            }
        }
}

__device__ __forceinline__ void stage_strip(float *staged, const sums &sum, int strip, int pair)
{
    const int row0 = strip / STRIPS_X * THREAD_H, col0 = strip % STRIPS_X * THREAD_W;
#pragma unroll
    for (int i = 0; i < THREAD_H; i++)
#pragma unroll
        for (int k = 0; k < THREAD_W; k++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                staged[((row0 + i) * TILE_W + col0 + k) * OUT_PITCH + 2 * pair + e] = sum[i][k][e];
}

__device__ __forceinline__ void store_staged(const conv_depthwise_args &a, const target &to, const float *staged)
{
    for (int i = (int)threadIdx.x; i < TILE_H * TILE_W * CHANNELS; i += THREADS) {
        const int pixel = i % (TILE_H * TILE_W), c = i / (TILE_H * TILE_W);
        s64 at, residual;
        if (c >= to.channels || !offsets(a, to, pixel / TILE_W, pixel % TILE_W, c, at, residual)) continue;
        to.out[at] = narrow<out_t>(finished(a, to, at, residual, c, staged[pixel * OUT_PITCH + c]));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) conv_depthwise(const __grid_constant__ conv_depthwise_args a)
{
    overlap_wait();
    extern __shared__ __align__(16) unsigned char memory[];
    in_t *const halo = (in_t *)memory;
    weight_t *const weights = (weight_t *)(halo + (HALO_H * HALO_W * PITCH + 7) / 8 * 8);
    float *const staged = (float *)(weights + ROWS * COLS * CHANNELS); /* a multiple of 16 elements */
    const int pair = (int)threadIdx.x % PAIRS, group = (int)threadIdx.x / PAIRS;
    const depthwise_place p = block_place(a);
    const int y0 = p.y * strip_start(TILE_H, STRIDE_Y) + a.origin[0], x0 = p.x * strip_start(TILE_W, STRIDE_X) + a.origin[1];
    const int channels = a.channels - p.channel;
    const in_t *const image = (const in_t *)a.image + p.n * a.from.n + p.channel * a.from.c;

    target to;
    to.out = (out_t *)a.out + p.n * a.to.n + p.z * a.to.s[0] + p.channel * a.to.c + p.j * a.to.j;
    to.residual = p.n * a.residual.n + p.z * a.residual.s[0] + p.channel * a.residual.c + p.j * a.residual.j;
    to.channel = DGRAD ? p.channel : p.channel * a.multiplier + p.j;
    to.channels = channels;
    to.y = p.y * TILE_H - a.shift[0];
    to.x = p.x * TILE_W - a.shift[1];

    sums sum = {};
    for (int j = DGRAD ? 0 : p.j; j < (DGRAD ? a.multiplier : p.j + 1); j++)
        for (int tap = 0; tap < a.depth_taps; tap++) {
            int z = DGRAD ? p.z + a.depth_pad - tap * a.depth_dilation
                          : p.z * a.depth_stride - a.depth_pad + tap * a.depth_dilation;
            bool exists = z >= 0;
            if constexpr (DGRAD) {
                exists &= z % a.depth_stride == 0;
                z /= a.depth_stride;
            }
            exists &= z < a.size_from[0];
            if (!ONE_PLANE && !exists) continue;
            if constexpr (!ONE_PLANE) __syncthreads();
            const in_t *first = image + (DGRAD ? j * a.from.j : 0) + (exists ? z * a.from.s[0] : 0);
            copy_tile_of<HALO_H, HALO_W>(halo, plane_of(first, a.from, a.size_from, channels, a.from_aligned), exists, y0, x0);
            copies_commit();
            copy_filter(a, weights, p, j, tap);
            copies_wait<0>();
            __syncthreads();
            if constexpr (!ONE_PLANE)
                if (group < STRIPS) add_strip(sum, halo, weights, group, pair);
        }
    for (int strip = group; strip < STRIPS; strip += GROUPS) {
        if constexpr (ONE_PLANE) {
            memset(sum, 0, sizeof sum);
            add_strip(sum, halo, weights, strip, pair);
        }
        if constexpr (STAGED)
            stage_strip(staged, sum, strip, pair);
        else
            store_strip(a, to, sum, strip, pair);
    }
    if constexpr (STAGED) {
        __syncthreads();
        store_staged(a, to, staged);
    }
}
