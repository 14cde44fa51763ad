/* SPDX-License-Identifier: Apache-2.0
 * Tiles of attention on the tensor cores of sm_80: lines in shared memory, products of fragments, scores
 * in accumulators.
 *
 * A block keeps OWN lines (rows of queries, or keys), a warp BLOCKS x 16 of them; tiles of OTHER lines
 * travel past. Products lie in accumulators: of 16 own lines and 8 others a thread of lane l has the own
 * lines l / 4 and l / 4 + 8 (its halves), and the others 2 (l % 4) and the next one. Packed to 16 bits,
 * accumulators of 16 columns are the left operand of the next product.
 *
 * Rows of shared memory are 16 bytes longer than their lines, so that eight
 * neighbouring rows lie in different banks.
 *
 * Prologue: OWN BLOCKS OTHER PARTS, D_WIDE V_WIDE (columns of q and k, of v, padded to multiples of 32),
 * PLAIN (scores are products alone, the scale is positive), CAP ALIBI BIAS MASK DROPOUT (whether scores
 * have them), types acc_t, x_t (of q, k, v, dout), bias_t. */
#pragma once
#include "kernels/mma.cuh"
#include "kernels/shared.cuh"
#include "kernels/vector.cuh"
#include "ops/attention/cuda/attention_lines.cuh"

constexpr int GROUPS = OWN / (16 * BLOCKS), WARPS = GROUPS * PARTS, THREADS = 32 * WARPS;
constexpr int D_PITCH = 2 * D_WIDE + 16, V_PITCH = 2 * V_WIDE + 16; /* bytes */
constexpr float LOG2E = 1.44269504088896341f;

static_assert(OWN % (16 * BLOCKS) == 0 && OTHER % 16 == 0 && OTHER <= 64, "whole fragments");
static_assert(D_WIDE % 32 == 0 && V_WIDE % 32 == 0, "results are stored by whole warps");
static_assert(OTHER <= THREADS && OWN <= THREADS, "a thread prepares one line");

__device__ __forceinline__ int lane() { return (int)threadIdx.x % 32; }
/* The first own line of this warp. */
__device__ __forceinline__ int warp_line() { return (int)threadIdx.x / 32 % GROUPS * 16 * BLOCKS; }

__device__ __forceinline__ float exp2_of(float v)
{
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}

__device__ __forceinline__ u32 pack_pair(float low, float high)
{
    const x_t l = narrow<x_t>(low), h = narrow<x_t>(high);
    return (u32)l.bits | (u32)h.bits << 16;
}

/* ---- lines to shared memory ---- */

/* 8 columns of a line, element by element: of tensors that are not aligned to 16 bytes. */
__device__ __forceinline__ void copy_apart(u32 to, const x_t *from, int count)
{
    u32 w[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const u32 low = 2 * i < count ? from[2 * i].bits : 0, high = 2 * i + 1 < count ? from[2 * i + 1].bits : 0;
        w[i] = low | high << 16;
    }
    shared_store(to, w);
}

/* LINES lines, zeros behind their columns and for those that are ABSENT. */
template <int LINES, int WIDE>
__device__ __forceinline__ void fetch(u32 to, const attention_operand &o, const s64 *lines, s64 columns)
{
    constexpr int CHUNKS = WIDE / 8, PIECES = LINES * CHUNKS, EACH = THREADS / CHUNKS;
    const x_t *data = (const x_t *)o.data;
    if (o.whole) {
        if constexpr (THREADS % CHUNKS == 0) {
            /* A thread has the same columns of all its lines. */
            const int c = (int)threadIdx.x % CHUNKS * 8, first = (int)threadIdx.x / CHUNKS;
            const int bytes = 2 * min(max((int)columns - c, 0), 8);
            to += first * (2 * WIDE + 16) + 2 * c;
#pragma unroll 4
            for (int r = 0; r < LINES; r += EACH) {
                if (LINES % EACH && first + r >= LINES) break;
                const s64 line = lines[first + r];
                const bool there = line != ABSENT && bytes > 0;
                copy_async<16>(to + r * (2 * WIDE + 16), there ? data + c + line : data, there ? bytes : 0);
            }
        } else {
#pragma unroll 4
            for (int i = 0; i < (PIECES + THREADS - 1) / THREADS; i++) {
                const int e = (int)threadIdx.x + i * THREADS, r = e / CHUNKS, c = e % CHUNKS * 8;
                if (PIECES % THREADS && e >= PIECES) break;
                const s64 line = lines[r];
                const int count = line == ABSENT ? 0 : min(max((int)columns - c, 0), 8);
                copy_async<16>(to + r * (2 * WIDE + 16) + 2 * c, count ? data + c + line : data, 2 * count);
            }
        }
        return;
    }
#pragma unroll 1
    for (int e = (int)threadIdx.x; e < PIECES; e += THREADS) {
        const int r = e / CHUNKS, c = e % CHUNKS * 8;
        const s64 line = lines[r];
        const int count = line == ABSENT ? 0 : min(max((int)columns - c, 0), 8);
        copy_apart(to + r * (2 * WIDE + 16) + 2 * c, data + line + c, count);
    }
}

/* ---- products ---- */

/* 16 lines from `line` on and 16 columns, as the left operand. */
template <int PITCH> __device__ __forceinline__ void load_left(u32 (&f)[4], u32 tile, int line, int column)
{
    load_matrices(f[0], f[1], f[2], f[3], tile + (line + lane() % 16) * PITCH + 2 * (column + lane() / 16 * 8));
}

/* s[own][other] += own other^T over WIDE columns. */
template <int WIDE, int N>
__device__ __forceinline__ void multiply_lines(float (&s)[BLOCKS][N][4], u32 own, u32 other)
{
    constexpr int PITCH = 2 * WIDE + 16;
    const u32 at = other + (lane() / 16 * 8 + lane() % 8) * PITCH + lane() / 8 % 2 * 16;
#pragma unroll
    for (int step = 0; step < WIDE / 16; step++) {
        u32 a[BLOCKS][4];
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) load_left<PITCH>(a[b], own, warp_line() + 16 * b, 16 * step);
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            u32 f[2][2];
            load_matrices(f[0][0], f[0][1], f[1][0], f[1][1], at + 8 * n * PITCH + 32 * step);
#pragma unroll
            for (int b = 0; b < BLOCKS; b++)
#pragma unroll
                for (int i = 0; i < 2; i++) matrix_unit<x_t, x_t>::multiply(s[b][n + i], a[b], f[i]);
        }
    }
}

/* sum[own][column] += weights other, columns from `first` on; the weights are accumulators. */
template <int WIDE, int K, int N>
__device__ __forceinline__ void add_lines(float (&sum)[BLOCKS][N][4], const float (&weights)[BLOCKS][K][4], u32 other,
                                          int first)
{
    constexpr int PITCH = 2 * WIDE + 16;
    const u32 at = other + lane() % 16 * PITCH + 2 * (first + lane() / 16 * 8);
#pragma unroll
    for (int step = 0; step < K / 2; step++) {
        u32 a[BLOCKS][4];
#pragma unroll
        for (int b = 0; b < BLOCKS; b++)
#pragma unroll
            for (int w = 0; w < 4; w++)
                a[b][w] = pack_pair(weights[b][2 * step + w / 2][w % 2 * 2], weights[b][2 * step + w / 2][w % 2 * 2 + 1]);
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            u32 f[2][2];
            load_transposed(f[0][0], f[0][1], f[1][0], f[1][1], at + 16 * step * PITCH + 16 * n);
#pragma unroll
            for (int b = 0; b < BLOCKS; b++)
#pragma unroll
                for (int i = 0; i < 2; i++) matrix_unit<x_t, x_t>::multiply(sum[b][n + i], a[b], f[i]);
        }
    }
}

template <int N> __device__ __forceinline__ void clear(float (&s)[BLOCKS][N][4])
{
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) s[b][n][i] = 0;
}

/* ---- rows of queries ---- */

/* What a block works on; in shared memory, because registers are short. */
struct job {
    sequence s;
    share w;
    s64 first; /* own line */
    int count; /* own lines that there are */
};

/* Prepared by one thread, for all behind a barrier. lines: of the sequence, own ones. */
__device__ __forceinline__ void find_job(const attention_cuda_args &args, const share &w, const sequence &s, s64 lines,
                                         job &j)
{
    if (threadIdx.x > 0) return;
    j.s = s, j.w = w;
    j.first = w.tile * OWN;
    j.count = (int)clamp_of(lines - j.first, 0, OWN);
}

/* A query as scores need it; positions are below 2^29. */
struct alignas(16) row {
    int from, to; /* sees keys [from, to) */
    float lse, delta;
    int i, head, diagonal;
    float slope;
    s64 bias, mask;
};

__device__ __forceinline__ row row_of(const query &x)
{
    return {(int)x.from, (int)x.to, x.lse, x.delta, (int)x.i, (int)x.head, (int)x.diagonal, x.slope, x.bias, x.mask};
}

/* What products are multiplied by. */
struct units {
    float scale, cap, cap_inverse; /* cap_inverse: doubled, for exp2 */
};

__device__ __forceinline__ units find_units(const attention_cuda_args &args)
{
    units u = {(float)args.scale};
    if constexpr (CAP) {
        u.cap = (float)args.soft_cap;
        u.cap_inverse = (float)(2 / args.soft_cap) * LOG2E;
    }
    return u;
}

/* The score of a product for key j that the query sees. slope: of the cap there. */
__device__ __forceinline__ float find_score(const attention_cuda_args &args, const units &u, const row &x, int j, float v,
                                            float &slope)
{
    slope = 1;
    v *= u.scale;
    if constexpr (CAP) {
        /* tanh x = 1 - 2 / (exp 2x + 1): the error is small beside the cap */
        const float t = 1 - __fdividef(2.0f, exp2_of(v * u.cap_inverse) + 1);
        v = u.cap * t;
        slope = 1 - t * t;
    }
    if constexpr (ALIBI) v -= x.slope * (float)abs(j - x.diagonal);
    if constexpr (BIAS) v += widen<float>(((const bias_t *)args.bias.data)[x.bias + j * args.bias.stride[3]]);
    return v;
}

__device__ __forceinline__ bool sees(const attention_cuda_args &args, const row &x, int j)
{
    if (j < x.from || j >= x.to) return false;
    if constexpr (MASK) return ((const u8 *)args.mask.data)[x.mask + j * args.mask.stride[3]] != 0;
    return true;
}

/* Which of the weights of 16 rows of queries and N x 8 keys from j on are dropped: bit 4 n + e is that of
 * accumulator e of block n. rows: this thread's of half 0; line: n H. Of four keys in a row even lanes make
 * the words of one row, odd lanes those of the other. */
template <int N>
__device__ __forceinline__ u32 find_dropped(const attention_cuda_args &args, const dropout &drop, const row *rows, s64 line,
                                            s64 j)
{
    const bool odd = lane() & 1;
    const row &x = rows[8 * odd];
    u32 dropped = 0;
#pragma unroll 1
    for (int n = 0; n < N; n++) {
        const words w = make_words(drop, line + x.head, x.i, j + 8 * n + lane() % 4 / 2 * 4);
        u32 bits = 0; /* of the four keys */
#pragma unroll
        for (int i = 0; i < 4; i++) bits |= (u32)(w.w[i] < args.threshold) << i;
        const u32 other = __shfl_xor_sync(0xffffffffu, bits, 1);
        const u32 mine = odd ? other >> 2 | (bits >> 2) << 2 : (bits & 3) | (other & 3) << 2;
        dropped |= mine << 4 * n;
    }
    return dropped;
}

/* ---- results ---- */

/* f32 words that a warp has for one of eight lines: the same for sums of all widths, since warps are not
 * at the same ones at the same time. */
constexpr int RESULTS = (D_WIDE > V_WIDE ? D_WIDE : V_WIDE) / PARTS + 8;

__device__ constexpr int number_of(f16) { return ATTENTION_F16; }
__device__ constexpr int number_of(bf16) { return ATTENTION_BF16; }

/* 8 columns of a line, from shared memory. */
__device__ __forceinline__ void store_chunk(const attention_operand &o, s64 line, int column, s64 columns, const float *from)
{
    const bool vector = o.whole && column + 8 <= columns;
    if (vector && (o.type == number_of(x_t{}) || o.type == ATTENTION_F32)) {
        float v[8];
        load_vector<8>(from, v);
        if (o.type == ATTENTION_F32) {
            store_vector<8>((float *)o.data + line + column, v);
        } else {
            u32 w[4];
#pragma unroll
            for (int i = 0; i < 4; i++) w[i] = pack_pair(v[2 * i], v[2 * i + 1]);
            store_vector<4>((u32 *)((x_t *)o.data + line + column), w);
        }
        return;
    }
#pragma unroll 1
    for (int i = 0; i < min(8, (int)columns - column); i++) store_any(o, line + (column + i) * o.stride[3], from[i]);
}

/* By whole warps, through a part of `memory` for each: the sums of a warp's eight lines number `part`, which are
 * those of half part % 2 of block part / 2. This thread's line is `line` or ABSENT. Columns from `first` on,
 * times factor; 0 whatever the sums are if that is 0. */
template <int N>
__device__ __forceinline__ void store_lines(float *memory, const attention_operand &o, s64 line,
                                            const float (&sum)[BLOCKS][N][4], int part, float factor, int first, s64 columns)
{
    constexpr int WIDE = 8 * N + 8; /* rows of half a warp's threads lie in different banks */
    static_assert(WIDE <= RESULTS, "lines fit");
    float *own = memory + threadIdx.x / 32 * 8 * RESULTS;
    __syncwarp();
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (part != 2 * b + half) continue;
#pragma unroll
            for (int n = 0; n < N; n++) {
                float v[2];
#pragma unroll
                for (int e = 0; e < 2; e++) v[e] = factor == 0 ? 0 : sum[b][n][2 * half + e] * factor;
                store_vector<2>(own + lane() / 4 * WIDE + 8 * n + lane() % 4 * 2, v);
            }
        }
    __syncwarp();
#pragma unroll 1
    for (int e = lane(); e < 8 * N; e += 32) {
        const int r = e / N, c = e % N * 8;
        const s64 to = __shfl_sync(0xffffffffu, line, 4 * r);
        if (to != ABSENT) store_chunk(o, to, first + c, columns, own + r * WIDE + c);
    }
}

/* This thread's own line of such a part. */
__device__ __forceinline__ int line_of_part(int part) { return warp_line() + 8 * part + lane() / 4; }
