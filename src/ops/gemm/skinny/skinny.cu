/* SPDX-License-Identifier: Apache-2.0
 * gemm where one side of c is a few lines: the wide operand is read once, at the speed of memory, straight
 * into registers. A block computes LINES lines of it by all of the few; its warps share K, and so do the
 * blocks of a cluster. Partial sums meet in shared memory and are added in a fixed order.
 *
 * Lane 4 g + t of a warp holds 16 bytes of K from chunk + 16 t on: of the few, line g; of the wide operand
 * lines g and g + 8 where it lies along K. Each product pairs equal places of both, so that the places may
 * be dealt to the tensor core's K as they come. Where the wide operand is not contiguous along K, a lane reads as many
 * rows of K, 16 bytes of neighbouring lines each, and transposes them in registers.
 *
 * Prologue: WARPS, GROUPS (of lines that a lane has at once), SPLIT (blocks of a cluster), CHUNKS (of K, read
 * ahead), MATRIX (tensor cores; else multiply-adds), FEW (a multiple of 8 if MATRIX), K_MAJOR (the wide
 * operand), FEW_K_MAJOR, SHIFTED (vectors begin at any element), SWAPPED, HAS_SCALE_A HAS_SCALE_B, types wide_t few_t c_t sum_t out_t, the epilogue's. */
#include "kernels/mma.cuh"
#include "kernels/overlap.cuh"
#include "kernels/shared.cuh"
#include "ops/gemm/skinny/skinny_args.h"

constexpr int VECTOR = 16 / (int)sizeof(wide_t);
constexpr int CHUNK = 4 * VECTOR;
constexpr int SPAN = K_MAJOR ? 16 : 8 * VECTOR; /* lines of a group */
constexpr int LINES = GROUPS * SPAN, THREADS = 32 * WARPS;
constexpr int TILE_M = SWAPPED ? LINES : FEW, TILE_N = SWAPPED ? FEW : LINES;
#include "ops/gemm/cuda/gemm_device.cuh"
#include "ops/gemm/skinny/skinny.cuh"

constexpr bool FLOAT8 = IS_FLOAT8<wide_t>;
constexpr int READS = K_MAJOR ? 2 : VECTOR;                     /* vectors that a lane reads of a group */
constexpr int OPERANDS = FLOAT8 ? 8 : 4;                        /* registers of a lane's 16 bytes, multiplied */
constexpr int FEW_TILES = MATRIX ? FEW / 8 : 1, FEW_READS = MATRIX ? FEW_TILES : FEW;
constexpr int SUMS = MATRIX ? FEW_TILES * 4 : 2 * FEW;          /* a lane's, of two lines */
constexpr int PAIRS = K_MAJOR ? 1 : VECTOR / 2;                 /* of lines that a lane has of a group */
constexpr int PITCH = LINES + 1;

/* What keeps the most reads in flight without spilling registers. */
constexpr bool LITTLE = K_MAJOR && FEW_K_MAJOR && FEW <= (MATRIX ? 8 : 4) && GROUPS * CHUNKS <= 4;
constexpr int RESIDENT = (LITTLE && !SHIFTED ? 768 : LITTLE && CHUNKS * GROUPS <= 2 ? 512 : 256) / THREADS;
typedef read_of<SHIFTED>::type wide_read;
typedef read_of<SHIFTED && FEW_K_MAJOR>::type few_read;

static_assert(sizeof(wide_t) == sizeof(few_t), "both operands have as many elements in 16 bytes");
static_assert(!MATRIX || FEW % 8 == 0, "whole tiles of the matrix unit");

template <bool SAFE>
__device__ __forceinline__ void read_wide_part(vector &to, const gemm_skinny_args &args, const wide_t *p, s64 left)
{
    if (SAFE || (args.whole && left >= VECTOR))
        to = read_once(p);
    else
        to = read_some(p, 1, left);
}
template <bool SAFE>
__device__ __forceinline__ void read_wide_part(shifted_piece &to, const gemm_skinny_args &args, const wide_t *p, s64 left)
{
    to = read_anywhere<SAFE>(p, left, args.wide_low, args.wide_high);
}

template <bool SAFE>
__device__ __forceinline__ void read_few_part(vector &to, const gemm_skinny_args &args, const few_t *p, s64 left)
{
    if (FEW_K_MAJOR && (SAFE || (args.whole && left >= VECTOR)))
        load_vector<4>((const u32 *)p, to.word);
    else
        to = read_some(p, args.few_k, left);
}
template <bool SAFE>
__device__ __forceinline__ void read_few_part(shifted_piece &to, const gemm_skinny_args &args, const few_t *p, s64 left)
{
    to = read_anywhere<SAFE>(p, left, args.few_low, args.few_high);
}

/* A lane's part of the wide operand at k. SAFE: nothing is missing, and all is aligned. */
template <bool SAFE>
__device__ __forceinline__ void read_wide(wide_read (&to)[GROUPS][READS], const gemm_skinny_args &args, const wide_t *wide,
                                          s64 line, s64 k, int g, int t)
{
    const s64 depth = args.gemm.shape.k, at = k + t * VECTOR;
#pragma unroll
    for (int group = 0; group < GROUPS; group++)
#pragma unroll
        for (int i = 0; i < READS; i++) {
            /* Lines that do not exist repeat the last one: their results are not stored. */
            const s64 first = K_MAJOR ? min(line + group * SPAN + g + 8 * i, args.wide - 1)
                                      : line + group * SPAN + g * VECTOR;
            const wide_t *p = K_MAJOR ? wide + first * args.wide_line + at : wide + first + (at + i) * args.wide_k;
            const s64 left = K_MAJOR ? depth - at : at + i < depth ? args.wide - first : 0;
            read_wide_part<SAFE>(to[group][i], args, p, left);
        }
}

template <bool SAFE>
__device__ __forceinline__ void read_few(few_read (&to)[FEW_READS], const gemm_skinny_args &args, const few_t *few, s64 k,
                                         int g, int t)
{
    const s64 at = k + t * VECTOR, left = args.gemm.shape.k - at;
#pragma unroll
    for (int i = 0; i < FEW_READS; i++) {
        const s64 line = min((s64)(MATRIX ? 8 * i + g : i), args.few - 1);
        const few_t *p = few + line * args.few_line + at * args.few_k;
        read_few_part<SAFE>(to[i], args, p, left);
    }
}

/* ---- operands of the tensor core: 32 bits of K of one line ---- */

template <typename W, typename F> struct unit_of : matrix_unit<typename widened<W>::type, typename widened<F>::type> {
};
template <> struct unit_of<s8, u8> {
    static __device__ __forceinline__ void multiply(s32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2])
    {
        asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
};

/* 16 bytes of one line. */
template <typename T> __device__ __forceinline__ void operands(const vector &v, u32 (&to)[OPERANDS])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if constexpr (FLOAT8) {
            to[2 * i] = widened<T>::two(v.word[i]);
            to[2 * i + 1] = widened<T>::two(v.word[i] >> 16);
        } else {
            to[i] = v.word[i];
        }
    }
}

/* Line `line` of vectors that are not contiguous along K. */
template <typename T, int N>
__device__ __forceinline__ void operands_across(const vector (&v)[N], int line, u32 (&to)[OPERANDS])
{
    constexpr int EACH = 4 / (int)sizeof(T); /* lines of a word */
    const int word = line / EACH, at = line % EACH;
#pragma unroll
    for (int i = 0; i < OPERANDS; i++) {
        if constexpr (sizeof(T) == 2) {
            to[i] = __byte_perm(v[2 * i].word[word], v[2 * i + 1].word[word], at ? 0x7632 : 0x5410);
        } else if constexpr (FLOAT8) {
            const u32 two = __byte_perm(v[2 * i].word[word], v[2 * i + 1].word[word], at < 2 ? 0x5140 : 0x7362);
            to[i] = widened<T>::two(at % 2 ? two >> 16 : two);
        } else {
            const u32 select = at < 2 ? 0x5140 : 0x7362;
            const u32 low = __byte_perm(v[4 * i].word[word], v[4 * i + 1].word[word], select);
            const u32 high = __byte_perm(v[4 * i + 2].word[word], v[4 * i + 3].word[word], select);
            to[i] = __byte_perm(low, high, at % 2 ? 0x7632 : 0x5410);
        }
    }
}

/* ---- multiplying: sums of GROUPS x PAIRS pairs of lines ---- */

__device__ __forceinline__ void multiply_matrix(sum_t (&sum)[GROUPS * PAIRS][SUMS], const vector (&wide)[GROUPS][READS],
                                                const vector (&few)[FEW_READS])
{
    u32 b[FEW_TILES][OPERANDS];
#pragma unroll
    for (int f = 0; f < FEW_TILES; f++) operands<few_t>(few[f], b[f]);
#pragma unroll
    for (int i = 0; i < GROUPS * PAIRS; i++) {
        const vector (&from)[READS] = wide[i / PAIRS];
        u32 low[OPERANDS], high[OPERANDS];
        if constexpr (K_MAJOR) {
            operands<wide_t>(from[0], low);
            operands<wide_t>(from[1], high);
        } else {
            operands_across<wide_t>(from, 2 * (i % PAIRS), low);
            operands_across<wide_t>(from, 2 * (i % PAIRS) + 1, high);
        }
#pragma unroll
        for (int f = 0; f < FEW_TILES; f++)
#pragma unroll
            for (int s = 0; s < OPERANDS; s += 2) {
                const u32 x[4] = {low[s], high[s], low[s + 1], high[s + 1]}, y[2] = {b[f][s], b[f][s + 1]};
                unit_of<wide_t, few_t>::multiply((sum_t(&)[4])sum[i][4 * f], x, y);
            }
    }
}

__device__ __forceinline__ void multiply_plain(sum_t (&sum)[GROUPS * PAIRS][SUMS], const vector (&wide)[GROUPS][READS],
                                               const vector (&few)[FEW_READS])
{
    wide_t w[GROUPS][READS][VECTOR];
    few_t x[FEW_READS][VECTOR];
    memcpy(w, wide, sizeof w);
    memcpy(x, few, sizeof x);
#pragma unroll
    for (int group = 0; group < GROUPS; group++)
#pragma unroll
        for (int i = 0; i < READS; i++)
#pragma unroll
            for (int j = 0; j < VECTOR; j++) {
                const int line = K_MAJOR ? i : j, k = K_MAJOR ? j : i;
#pragma unroll
                for (int f = 0; f < FEW; f++)
                    sum[group * PAIRS + line / 2][line % 2 * FEW + f] +=
                        widen<sum_t>(w[group][i][j]) * widen<sum_t>(x[f][k]);
            }
}

template <bool SAFE, int COUNT>
__device__ __forceinline__ void add_chunks(sum_t (&sum)[GROUPS * PAIRS][SUMS], const gemm_skinny_args &args,
                                           const wide_t *wide, const few_t *few, s64 line, s64 k, int g, int t)
{
    wide_read w[COUNT][GROUPS][READS];
    few_read x[COUNT][FEW_READS];
#pragma unroll
    for (int i = 0; i < COUNT; i++) read_wide<SAFE>(w[i], args, wide, line, k + i * CHUNK, g, t);
#pragma unroll
    for (int i = 0; i < COUNT; i++) read_few<SAFE>(x[i], args, few, k + i * CHUNK, g, t);
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        vector wide_now[GROUPS][READS], few_now[FEW_READS];
#pragma unroll
        for (int j = 0; j < GROUPS * READS; j++) wide_now[j / READS][j % READS] = settled(w[i][j / READS][j % READS]);
#pragma unroll
        for (int j = 0; j < FEW_READS; j++) few_now[j] = settled(x[i][j]);
        if constexpr (MATRIX)
            multiply_matrix(sum, wide_now, few_now);
        else
            multiply_plain(sum, wide_now, few_now);
    }
}

/* ---- from sums to c ---- */

/* A warp's sums to its part of shared memory: FEW rows of LINES. */
__device__ __forceinline__ void write_sums(sum_t (&sum)[GROUPS * PAIRS][SUMS], sum_t *to, int g, int t)
{
#pragma unroll
    for (int i = 0; i < GROUPS * PAIRS; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int line = i / PAIRS * SPAN + (K_MAJOR ? g + 8 * half : g * VECTOR + 2 * (i % PAIRS) + half);
            if constexpr (MATRIX) {
#pragma unroll
                for (int f = 0; f < FEW_TILES; f++)
#pragma unroll
                    for (int j = 0; j < 2; j++)
                        to[(8 * f + 2 * t + j) * PITCH + line] = sum[i][4 * f + 2 * half + j];
            } else {
#pragma unroll
                for (int f = 0; f < FEW; f++) {
                    sum_t v = sum[i][half * FEW + f];
                    v += __shfl_xor_sync(0xffffffffu, v, 1);
                    v += __shfl_xor_sync(0xffffffffu, v, 2);
                    if (t == 0) to[f * PITCH + line] = v;
                }
            }
        }
}

__device__ __forceinline__ u32 rank_of_block()
{
    u32 r = 0;
    if constexpr (SPLIT > 1) asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}

__device__ __forceinline__ void meet()
{
    if constexpr (SPLIT > 1)
        asm volatile("barrier.cluster.arrive.release.aligned;\n"
                     "barrier.cluster.wait.acquire.aligned;" ::: "memory");
    else
        __syncthreads();
}

__device__ __forceinline__ void finish_tile(const gemm_skinny_args &args, const place &p, sum_t (*parts)[FEW * PITCH],
                                            int rank)
{
    const gemm_shape &s = args.gemm.shape;
    const s64 first = SWAPPED ? p.row : p.col;
    __syncthreads();
    if constexpr (SPLIT > 1) {
        for (int i = (int)threadIdx.x; i < FEW * PITCH; i += THREADS)
#pragma unroll
            for (int w = 1; w < WARPS; w++) parts[0][i] += parts[w][i];
        meet();
    }
    for (int i = rank * THREADS + (int)threadIdx.x; i < FEW * LINES; i += SPLIT * THREADS) {
        const int few = i / LINES, line = i % LINES;
        if (few >= args.few || first + line >= args.wide) continue;
        const sum_t *from = &parts[0][few * PITCH + line];
        sum_t sum = SPLIT > 1 ? shared_load_remote_word<sum_t>(shared_address(from), 0) : *from;
#pragma unroll
        for (int j = 1; j < (SPLIT > 1 ? SPLIT : WARPS); j++)
            sum += SPLIT > 1 ? shared_load_remote_word<sum_t>(shared_address(from), j) : from[j * FEW * PITCH];
        const s64 row = SWAPPED ? first + line : few, col = SWAPPED ? few : first + line;
        c_t *c = (c_t *)args.gemm.c + p.c + row * s.c_m + col * s.c_n;
        *c = finish(args.gemm, p, row, col, sum, c);
    }
    meet(); /* sums stay until all have read them */
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) gemm_skinny(const __grid_constant__ gemm_skinny_args args)
{
    overlap_wait();
    __shared__ sum_t parts[WARPS][FEW * PITCH];
    const gemm_shape &s = args.gemm.shape;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int rank = (int)rank_of_block(), part = rank * WARPS + warp;
    const s64 tiles = (args.wide + LINES - 1) / LINES * s.batches;

    for (s64 tile = blockIdx.x / SPLIT; tile < tiles; tile += gridDim.x / SPLIT) {
        const place p = tile_place(s, tile);
        const wide_t *wide = SWAPPED ? (const wide_t *)args.gemm.a + p.a : (const wide_t *)args.gemm.b + p.b;
        const few_t *few = SWAPPED ? (const few_t *)args.gemm.b + p.b : (const few_t *)args.gemm.a + p.a;
        const s64 line = SWAPPED ? p.row : p.col;
        const bool safe = (SHIFTED || args.whole) && (K_MAJOR || line + LINES <= args.wide);
        sum_t sum[GROUPS * PAIRS][SUMS] = {};
        for (s64 k = (s64)part * CHUNKS * CHUNK; k < s.k; k += SPLIT * WARPS * CHUNKS * CHUNK) {
            if (safe && k + CHUNKS * CHUNK <= s.k)
                add_chunks<true, CHUNKS>(sum, args, wide, few, line, k, g, t);
            else
#pragma unroll 1
                for (int i = 0; i < CHUNKS && k + i * CHUNK < s.k; i++)
                    add_chunks<false, 1>(sum, args, wide, few, line, k + i * CHUNK, g, t);
        }
        write_sums(sum, parts[warp], g, t);
        finish_tile(args, p, parts, rank);
    }
}
