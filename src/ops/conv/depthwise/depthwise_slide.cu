/* SPDX-License-Identifier: Apache-2.0
 * Depthwise convolution and its gradient with respect to the image where channels lie side by side, at the
 * speed of memory: a thread goes down a strip of THREAD_W columns of two channels and holds the sums of all
 * rows that the line at hand belongs to. So a line is read and converted once, from memory to registers; the
 * next one is in flight meanwhile. Only what neighbouring strips share is read twice, from L1, and the
 * lines that the blocks above and below share. Constants: those of conv_halo.cuh; CHANNELS (of a block),
 * THREAD_H (rows that an iteration finishes), THREAD_W; BLOCKS (per multiprocessor, wanted); FROM_STEP,
 * TO_STEP (elements from pixel to pixel); of a strip's columns, those from READ_SURE on and before
 * READ_SURE_END lie inside the image in every strip, those outside READ_EVER, READ_EVER_END in none, and so
 * for results WRITE_SURE, WRITE_SURE_END; HELD (weights stay in registers); the epilogue's; types in_t,
 * out_t. */
#include "kernels/epilogue.cuh"
#include "kernels/overlap.cuh"
#include "ops/conv/depthwise/depthwise_place.cuh"
#include "ops/conv/cuda/conv_halo.cuh"

/* Lines of the image go by, STEP_LINES of them finish STEP_ROWS rows: a step. LIVE steps are unfinished. */
constexpr int STEP_LINES = DGRAD ? 1 : STRIDE_Y, STEP_ROWS = DGRAD ? STRIDE_Y : 1;
constexpr int LIVE = before(ROWS, STRIDE_Y, DILATION_Y) + 1, TURN = THREAD_H / STEP_ROWS;
constexpr int WINDOW = halo_size(THREAD_W, COLS, STRIDE_X, DILATION_X);
constexpr int PAIRS = CHANNELS / 2, THREADS = PAIRS * (TILE_W / THREAD_W), TAPS = ROWS * COLS;

static_assert(CHANNELS % 2 == 0 && TILE_W % THREAD_W == 0, "whole pairs and strips");
static_assert(THREAD_H % STEP_ROWS == 0 && TILE_H % STEP_ROWS == 0, "whole steps");
static_assert(!DGRAD || THREAD_W % STRIDE_X == 0, "strips of one phase");

typedef lanes<in_t, 2> pixel;
typedef float sums[STEP_ROWS][THREAD_W][2];

/* ---- what comes in ---- */

/* [tap][channel] */
__device__ __forceinline__ void copy_filter(const conv_depthwise_args &a, float *to, const depthwise_place &p)
{
    const in_t *filter = (const in_t *)a.filter + p.channel * a.taps.c;
    for (int i = (int)threadIdx.x; i < TAPS * CHANNELS; i += THREADS) {
        const int c = i / TAPS, tap = i % TAPS;
        float v = 0;
        if (p.channel + c < a.channels)
            v = widen<float>(filter[c * a.taps.c + tap / COLS * a.taps.s[1] + tap % COLS * a.taps.s[2]]);
        to[tap * CHANNELS + c] = v;
    }
}

/* The pair's weights: in registers, or where they stand in shared memory. */
struct weights {
    float held[HELD ? TAPS : 1][2];
    const float *shared;

    __device__ __forceinline__ void take(const float *from)
    {
        shared = from;
        if constexpr (HELD)
#pragma unroll
            for (int t = 0; t < TAPS; t++) load_vector<2>(from + t * CHANNELS, held[t]);
    }
    __device__ __forceinline__ void get(int tap, float (&w)[2]) const
    {
        if constexpr (HELD) {
            w[0] = held[tap][0];
            w[1] = held[tap][1];
        } else
            load_vector<2>(shared + tap * CHANNELS, w);
    }
};

template <bool WHOLE>
__device__ __forceinline__ void read_pixels(pixel (&line)[WINDOW], const in_t *from, int x, int cols)
{
#pragma unroll
    for (int i = READ_EVER; i < READ_EVER_END; i++) {
        const bool sure = i >= READ_SURE && i < READ_SURE_END;
        line[i] = pixel{};
        if (sure || (unsigned)(x + i) < (unsigned)cols) line[i] = fetch<2>(from + i * FROM_STEP, WHOLE);
    }
}

/* ---- sums ---- */

__device__ __forceinline__ void add_row(float (&sum)[THREAD_W][2], const float (&window)[WINDOW][2],
                                        const weights &filter, int row)
{
#pragma unroll
    for (int t = 0; t < COLS; t++) {
        float w[2];
        filter.get(row * COLS + t, w);
#pragma unroll
        for (int o = 0; o < THREAD_W; o++) {
            const int at = halo_of(o, t, COLS, STRIDE_X, DILATION_X);
            if (at < READ_EVER || at >= READ_EVER_END) continue;
            sum[o][0] += window[at][0] * w[0];
            sum[o][1] += window[at][1] * w[1];
        }
    }
}

/* Line `line` of step `step` of an iteration, to all rows that have it. */
__device__ __forceinline__ void add_line(sums (&sum)[LIVE], const float (&window)[WINDOW][2], const weights &filter,
                                         int step, int line)
{
#pragma unroll
    for (int s = 0; s < LIVE; s++)
#pragma unroll
        for (int o = 0; o < STEP_ROWS; o++)
#pragma unroll
            for (int t = 0; t < ROWS; t++)
                if (halo_of(s * STEP_ROWS + o, t, ROWS, STRIDE_Y, DILATION_Y) == (LIVE - 1) * STEP_LINES + line)
                    add_row(sum[(step + s) % LIVE][o], window, filter, t);
}

/* After an iteration the sums that it began with stand where its first step expects them. */
__device__ __forceinline__ void turn_round(sums (&sum)[LIVE])
{
    if constexpr (TURN % LIVE != 0) {
        sums old[LIVE];
        memcpy(old, sum, sizeof old);
#pragma unroll
        for (int s = 0; s < LIVE; s++) memcpy(sum[s], old[(s + TURN) % LIVE], sizeof old[s]);
    }
}

/* ---- results ---- */

struct target {
    out_t *out; /* row y, the strip's first column; may lie outside, as y may */
    s64 residual;
    int channel, x, y;
    float alpha, beta;
    bool plain; /* alpha is 1, beta 0 */
};

__device__ __forceinline__ bool is_written(const conv_depthwise_args &a, const target &to, int col)
{
    return (col >= WRITE_SURE && col < WRITE_SURE_END) || (unsigned)(to.x + col) < (unsigned)a.size_to[2];
}

__device__ __forceinline__ void scale_row(const conv_depthwise_args &a, const target &to, float (&sum)[THREAD_W][2])
{
#pragma unroll
    for (int k = 0; k < THREAD_W; k++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            sum[k][e] *= to.alpha;
            if (to.beta != 0 && is_written(a, to, k)) sum[k][e] += to.beta * widen<float>(to.out[k * TO_STEP + e]);
        }
}

__device__ __forceinline__ void finish_row(const conv_depthwise_args &a, const target &to, float (&sum)[THREAD_W][2])
{
    if (!to.plain) scale_row(a, to, sum);
#pragma unroll
    for (int k = 0; k < THREAD_W; k++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            if (!HAS_RESIDUAL || is_written(a, to, k))
                sum[k][e] = epilogue(a.epilogue, sum[k][e], to.channel + e,
                                     to.residual + k * a.residual.s[2] + e * a.residual.c);
}

/* One conversion for both. */
__device__ __forceinline__ void store_pair(f16 *to, const float (&v)[2])
{
    u32 both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(v[1]), "f"(v[0]));
    *(u32 *)to = both;
}
__device__ __forceinline__ void store_pair(bf16 *to, const float (&v)[2])
{
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(v[1]), "f"(v[0]));
    *(u32 *)to = both;
}
template <typename T> __device__ __forceinline__ void store_pair(T *to, const float (&v)[2])
{
    store_elements<T, 2>(to, true, v);
}

template <bool WHOLE>
__device__ __forceinline__ void write_row(const conv_depthwise_args &a, const target &to,
                                          const float (&sum)[THREAD_W][2])
{
#pragma unroll
    for (int k = 0; k < THREAD_W; k++)
        if (is_written(a, to, k)) {
            if constexpr (WHOLE)
                store_pair(to.out + k * TO_STEP, sum[k]);
            else
                store_elements<out_t, 2>(to.out + k * TO_STEP, false, sum[k]);
        }
}

/* The rows of a step, if they are any of the block's; then nothing is in their sums. */
__device__ __forceinline__ void end_step(const conv_depthwise_args &a, target &to, sums &sum, bool exists)
{
#pragma unroll
    for (int o = 0; o < STEP_ROWS; o++) {
        if (exists && (unsigned)to.y < (unsigned)a.size_to[1]) {
            finish_row(a, to, sum[o]);
            if (a.to_aligned)
                write_row<true>(a, to, sum[o]);
            else
                write_row<false>(a, to, sum[o]);
        }
        to.y++;
        to.out += a.to.s[1];
        if constexpr (HAS_RESIDUAL) to.residual += a.residual.s[1];
    }
    memset(sum, 0, sizeof sum);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
conv_depthwise_slide(const __grid_constant__ conv_depthwise_args a)
{
    overlap_wait();
    extern __shared__ __align__(16) unsigned char memory[];
    const int pair = (int)threadIdx.x % PAIRS, strip = (int)threadIdx.x / PAIRS;
    const depthwise_place p = block_place(a);
    copy_filter(a, (float *)memory, p);
    __syncthreads();
    weights filter;
    filter.take((const float *)memory + 2 * pair);

    target to;
    to.channel = p.channel + 2 * pair;
    to.x = p.x * TILE_W - a.shift[1] + strip * THREAD_W;
    if (to.channel >= a.channels || to.x >= a.size_to[2]) return;
    const int top = p.y * TILE_H - a.shift[0];
    to.y = top - (LIVE - 1) * STEP_ROWS; /* the first rows belong to the block above */
    to.out = (out_t *)a.out + p.n * a.to.n + p.z * a.to.s[0] + to.channel + to.y * a.to.s[1] + (s64)to.x * TO_STEP;
    to.residual = p.n * a.residual.n + p.z * a.residual.s[0] + to.channel * a.residual.c + to.y * a.residual.s[1] +
                  to.x * a.residual.s[2];
    to.alpha = (float)a.alpha;
    to.beta = (float)a.beta;
    to.plain = a.alpha == 1 && a.beta == 0;

    /* one tap in depth: which plane it falls on, if any */
    int z = DGRAD ? p.z + a.depth_pad : p.z * a.depth_stride - a.depth_pad;
    bool exists = z >= 0;
    if constexpr (DGRAD) {
        exists &= z % a.depth_stride == 0;
        z /= a.depth_stride;
    }
    exists &= z < a.size_from[0];

    const int steps = LIVE - 1 + min(TILE_H, a.size_to[1] - top + STEP_ROWS - 1) / STEP_ROWS;
    const int x = p.x * strip_start(TILE_W, STRIDE_X) + a.origin[1] + strip_start(strip * THREAD_W, STRIDE_X);
    int line = p.y * strip_start(TILE_H, STRIDE_Y) + a.origin[0];
    const int last = exists ? min(line + HALO_H, a.size_from[1]) : 0;
    /* in place of a line outside, its neighbour is read: loads without a branch need no copies of registers */
    const in_t *from = (const in_t *)a.image + p.n * a.from.n + (exists ? z * a.from.s[0] : 0) + to.channel +
                       min(max(line, 0), a.size_from[1] - 1) * a.from.s[1] + (s64)x * FROM_STEP;

    pixel next[WINDOW];
    const auto read_line = [&]() {
        if (a.from_aligned)
            read_pixels<true>(next, from, x, a.size_from[2]);
        else
            read_pixels<false>(next, from, x, a.size_from[2]);
    };
    sums sum[LIVE] = {};
    read_line();
#pragma unroll 1
    for (int first = 0; first < steps; first += TURN) {
#pragma unroll
        for (int step = 0; step < TURN; step++) {
#pragma unroll
            for (int i = 0; i < STEP_LINES; i++) {
                float window[WINDOW][2];
#pragma unroll
                for (int k = READ_EVER; k < READ_EVER_END; k++) unpack_pairs(next[k], window[k]);
                const bool inside = line >= 0 && line < last;
                if (line >= 0 && line < a.size_from[1] - 1) from += a.from.s[1];
                line++;
                read_line();
                if (inside) add_line(sum, window, filter, step, i);
            }
            end_step(a, to, sum[step % LIVE], first + step >= LIVE - 1 && first + step < steps);
        }
        turn_round(sum);
    }
}
