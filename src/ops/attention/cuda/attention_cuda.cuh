/* SPDX-License-Identifier: Apache-2.0
 * Scores and tiles of attention's engine "cuda".
 *
 * A block keeps OWN lines (rows of queries, or keys) in shared memory, whole; OTHER lines at a time
 * travel past it, in chunks of 64 columns. THREADS are TY x TX: a thread has ROWS neighbouring own
 * lines, and of the others the COLS neighbours tx COLS, ...; of a chunk of sums the LANES columns
 * tx LANES, ... Products are plain multiply-adds in acc_t, in a fixed order.
 *
 * Prologue: TX TY ROWS OTHER, CHUNKS (of 64 columns that sums are kept for), CAP ALIBI BIAS MASK
 * DROPOUT (whether scores have them), types acc_t, bias_t. */
#pragma once
#include "kernels/types.cuh"

constexpr int CHUNK = 64, THREADS = TX * TY, OWN = TY * ROWS, COLS = OTHER / TX, LANES = CHUNK / TX;
constexpr int GROUP = 4; /* neighbours read at once */
constexpr int PAD = 16 / (int)sizeof(acc_t);
constexpr int PITCH = CHUNK + PAD, WEIGHTS = OTHER + PAD;

#include "ops/attention/cuda/attention_lines.cuh"

static_assert(OTHER % TX == 0 && OTHER % GROUP == 0 && OWN % GROUP == 0, "whole tiles");
static_assert((TX & (TX - 1)) == 0 && TX <= 32 && THREADS % 32 == 0, "a row's threads lie in a warp");
static_assert(OTHER <= THREADS && OWN <= THREADS, "a thread prepares one line");

template <int N> struct alignas(N * sizeof(acc_t) < 16 ? N * sizeof(acc_t) : 16) pack {
    acc_t v[N];
};

typedef acc_t tile_t[ROWS][COLS];
typedef acc_t sums_t[CHUNKS][ROWS][LANES];

__device__ __forceinline__ int tx() { return (int)threadIdx.x % TX; }
__device__ __forceinline__ int ty() { return (int)threadIdx.x / TX; }

/* ---- scores ---- */

/* Some keys in a row, and which of them a query may see. */
struct keys {
    s64 first;
    int from, to;
};

__device__ __forceinline__ keys find_keys(const query &x, s64 first)
{
    return {first, (int)clamp_of(x.from - first, 0, OTHER), (int)clamp_of(x.to - first, 0, OTHER)};
}

/* Whether the query sees key number c of them. */
__device__ __forceinline__ bool sees(const attention_cuda_args &args, const query &x, const keys &k, int c)
{
    if (c < k.from || c >= k.to) return false;
    if constexpr (MASK) return ((const u8 *)args.mask.data)[x.mask + (k.first + c) * args.mask.stride[3]] != 0;
    return true;
}

/* s: scale q k. slope: that of the cap there. */
__device__ __forceinline__ acc_t finish_score(const attention_cuda_args &args, const query &x, s64 j, acc_t s, acc_t &slope)
{
    slope = 1;
    if constexpr (CAP) {
        const acc_t cap = (acc_t)args.soft_cap, t = tanh_of(s / cap);
        s = cap * t;
        slope = 1 - t * t;
    }
    if constexpr (ALIBI) s -= x.slope * abs_of((acc_t)(j - x.diagonal));
    if constexpr (BIAS) s += widen<acc_t>(((const bias_t *)args.bias.data)[x.bias + j * args.bias.stride[3]]);
    return s;
}

/* Of keys j / 4 * 4 to + 3. */
__device__ __forceinline__ words find_words(const attention_cuda_args &args, const dropout &drop, s64 n, const query &x, s64 j)
{
    return make_words(drop, n * args.heads + x.head, x.i, j);
}

/* ---- tiles ---- */

__device__ __forceinline__ int pitch_of(s64 columns) { return ((int)columns + GROUP - 1) / GROUP * GROUP + PAD; }

/* Whole own lines; line(r) is the offset of line r. Columns are padded with zeros. */
template <typename F>
__device__ __forceinline__ void load_own(acc_t *to, const attention_operand &o, s64 columns, const F &line)
{
    const int pitch = pitch_of(columns), width = pitch - PAD;
#pragma unroll 1
    for (int e = (int)threadIdx.x; e < OWN * width; e += THREADS) {
        const int r = e / width, c = e % width;
        const s64 at = line(r);
        to[r * pitch + c] = at != ABSENT && c < columns ? load_any(o, at + c * o.stride[3]) : (acc_t)0;
    }
}

/* Where the other line r lies in a stage that is used by products: a thread's COLS are neighbours. */
__device__ __forceinline__ int slot_of(int r) { return r % COLS * TX + r / COLS; }

/* `width` columns of LINES other lines, from column `first` on; those past the tensor's are zero.
 * across: neighbouring threads read neighbouring lines. */
template <int LINES, int WIDTH, bool SLOTS, typename T>
__device__ __forceinline__ void load_stage(acc_t *stage, const attention_operand &o, const s64 *lines, int first,
                                           s64 columns, int width, bool across)
{
    constexpr int WIDE = WIDTH + PAD;
    const int count = (int)min(columns - first, (s64)width), thread = (int)threadIdx.x;
    const s64 step = o.stride[3];
    const T *from = (const T *)o.data + first * step;
    if (across) {
        const int r = thread % LINES;
        const s64 line = lines[r];
        stage += (SLOTS ? slot_of(r) : r) * WIDE;
#pragma unroll 4
        for (int c = thread / LINES; c < width; c += THREADS / LINES)
            stage[c] = line != ABSENT && c < count ? widen<acc_t>(from[line + c * step]) : (acc_t)0;
        return;
    }
    constexpr int ALONG = WIDTH < THREADS ? WIDTH : THREADS;
    for (int c = thread % ALONG; c < width; c += ALONG) {
        const T *at = from + c * step;
#pragma unroll 4
        for (int r = thread / ALONG; r < LINES; r += THREADS / ALONG) {
            const s64 line = lines[r];
            stage[(SLOTS ? slot_of(r) : r) * WIDE + c] = line != ABSENT && c < count ? widen<acc_t>(at[line]) : (acc_t)0;
        }
    }
}

/* s[own][other] += own other^T over `width` columns, a multiple of GROUP. */
__device__ __forceinline__ void multiply(tile_t &s, const acc_t *own, int pitch, const acc_t *stage, int width)
{
    own += ty() * ROWS * pitch;
    stage += tx() * PITCH;
#pragma unroll 2
    for (int d = 0; d < width; d += GROUP) {
        pack<GROUP> x[ROWS], y[COLS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) x[r] = *(const pack<GROUP> *)&own[r * pitch + d];
#pragma unroll
        for (int c = 0; c < COLS; c++) y[c] = *(const pack<GROUP> *)&stage[c * TX * PITCH + d];
#pragma unroll
        for (int k = 0; k < GROUP; k++)
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int c = 0; c < COLS; c++) s[r][c] += x[r].v[k] * y[c].v[k];
    }
}

/* All chunks of that, through the stage. A barrier has made the lines visible. */
template <typename T>
__device__ __forceinline__ void multiply_lines(tile_t &s, const acc_t *own, acc_t *stage, const attention_operand &o,
                                               const s64 *lines, s64 columns, bool across)
{
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int c = 0; c < COLS; c++) s[r][c] = 0;
    const int pitch = pitch_of(columns);
    for (int first = 0; first < columns; first += CHUNK) {
        const int width = min(pitch - PAD - first, CHUNK);
        __syncthreads();
        load_stage<OTHER, CHUNK, true, T>(stage, o, lines, first, columns, width, across);
        __syncthreads();
        multiply(s, own + first, pitch, stage, width);
    }
}

/* Where the others' products with weights are formed: [own line][other line]. */
__device__ __forceinline__ void store_weights(acc_t *weights, const tile_t &s)
{
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int c = 0; c < COLS; c++) weights[(ty() * ROWS + r) * WEIGHTS + tx() * COLS + c] = s[r][c];
}

/* sum[own][column] += weights other, all columns of some lines at a time. */
template <typename T>
__device__ __forceinline__ void add_lines(sums_t &sum, const acc_t *weights, acc_t *stage, const attention_operand &o,
                                          const s64 *lines, s64 columns, bool across)
{
    constexpr int LINES = OTHER / CHUNKS, STEP = CHUNKS > 4 ? 1 : GROUP, WIDE = CHUNKS * CHUNK + PAD;
    if (columns == 0) return;
    weights += ty() * ROWS * WEIGHTS;
#pragma unroll 1
    for (int first = 0; first < OTHER; first += LINES) {
        __syncthreads();
        load_stage<LINES, CHUNKS * CHUNK, false, T>(stage, o, lines + first, 0, columns, pitch_of(columns) - PAD, across);
        __syncthreads();
#pragma unroll 1
        for (int k = 0; k < LINES; k += STEP) {
            pack<STEP> w[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; r++) w[r] = *(const pack<STEP> *)&weights[r * WEIGHTS + first + k];
#pragma unroll
            for (int g = 0; g < STEP; g++)
#pragma unroll
                for (int i = 0; i < CHUNKS; i++) {
                    const pack<LANES> y = *(const pack<LANES> *)&stage[(k + g) * WIDE + i * CHUNK + tx() * LANES];
#pragma unroll
                    for (int r = 0; r < ROWS; r++)
#pragma unroll
                        for (int l = 0; l < LANES; l++) sum[i][r][l] += w[r].v[g] * y.v[l];
                }
        }
    }
}

/* Sums as lines of `memory`, a barrier before and behind. */
__device__ __forceinline__ void store_sums(acc_t *memory, const sums_t &sum)
{
    constexpr int WIDE = CHUNKS * CHUNK + PAD;
    __syncthreads();
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            pack<LANES> v;
#pragma unroll
            for (int l = 0; l < LANES; l++) v.v[l] = sum[i][r][l];
            *(pack<LANES> *)&memory[(ty() * ROWS + r) * WIDE + i * CHUNK + tx() * LANES] = v;
        }
    __syncthreads();
}
/* put(line, column, value) for the first `count` of them. */
template <typename F>
__device__ __forceinline__ void each_sum(const acc_t *memory, int count, s64 columns, const F &put)
{
    const int width = (int)columns;
#pragma unroll 1
    for (int e = (int)threadIdx.x; e < count * width; e += THREADS) {
        const int r = e / width, c = e % width;
        put(r, c, memory[r * (CHUNKS * CHUNK + PAD) + c]);
    }
}

__device__ __forceinline__ acc_t row_max(acc_t v)
{
#pragma unroll
    for (int by = TX / 2; by > 0; by /= 2) v = max_of(v, __shfl_xor_sync(0xffffffffu, v, by));
    return v;
}
__device__ __forceinline__ acc_t row_sum(acc_t v)
{
#pragma unroll
    for (int by = TX / 2; by > 0; by /= 2) v += __shfl_xor_sync(0xffffffffu, v, by);
    return v;
}
