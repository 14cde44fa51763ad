/* SPDX-License-Identifier: Apache-2.0
 * gemm where one side of c is one to four lines: a matrix times vectors. SHARE warps go through K together, each
 * with LINES lines of the wide operand, of which a warp reads 512 bytes at a time: memory gives whole pages
 * that way, and a product costs a multiply-add or two, which is less than the time to read it. Blocks are
 * many and short, so that the last ones end together.
 *
 * Prologue: WARPS, SHARE, LINES, CHUNKS (vectors of each line that a lane reads ahead), FEW, BATCHED, SWAPPED,
 * SHIFTED (vectors begin at any element), HAS_SCALE_A HAS_SCALE_B, types wide_t few_t c_t sum_t out_t, the epilogue's. */
#include "kernels/overlap.cuh"
#include "ops/gemm/skinny/skinny_args.h"

constexpr int VECTOR = 16 / (int)sizeof(wide_t);
constexpr int SPAN = 32 * VECTOR; /* of K, that a warp reads at once */
constexpr int STEP = CHUNKS * SPAN, TEAMS = WARPS / SHARE, BLOCK_LINES = TEAMS * LINES, THREADS = 32 * WARPS;
constexpr int TILE_M = SWAPPED ? BLOCK_LINES : FEW, TILE_N = SWAPPED ? FEW : BLOCK_LINES;
#include "ops/gemm/cuda/gemm_device.cuh"
#include "ops/gemm/skinny/skinny.cuh"

static_assert(sizeof(wide_t) == sizeof(few_t), "both operands have as many elements in 16 bytes");
static_assert(LINES * FEW <= 32, "a lane for each result");

/* ---- 16 bytes as factors: floats, or words of four bytes ---- */

template <typename T> constexpr bool IS_BYTE = sizeof(T) == 1 && !IS_FLOAT8<T>;
template <bool INTEGER> struct factor_of {
    typedef float type;
};
template <> struct factor_of<true> {
    typedef u32 type;
};
typedef factor_of<IS_BYTE<wide_t>>::type factor;
constexpr int FACTORS = IS_BYTE<wide_t> ? 4 : VECTOR;

template <typename T> __device__ __forceinline__ void factors(const vector &v, factor (&to)[FACTORS])
{
    if constexpr (IS_BYTE<T>) {
        memcpy(to, v.word, sizeof v);
    } else if constexpr (IS_FLOAT8<T>) {
#pragma unroll
        for (int i = 0; i < VECTOR / 2; i++) {
            const u32 two = widened<T>::two(v.word[i / 2] >> 16 * (i % 2));
            to[2 * i] = to_float(f16{(u16)two});
            to[2 * i + 1] = to_float(f16{(u16)(two >> 16)});
        }
    } else {
        T e[VECTOR];
        memcpy(e, v.word, sizeof v);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) to[i] = widen<float>(e[i]);
    }
}

template <typename T> constexpr bool IS_SIGNED = (T)-1 < (T)0;

/* Four products of bytes and a sum. */
template <typename W, typename F> __device__ __forceinline__ void add_bytes(s32 &sum, u32 a, u32 b)
{
    if constexpr (IS_SIGNED<W> && IS_SIGNED<F>)
        asm("dp4a.s32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(a), "r"(b));
    else if constexpr (IS_SIGNED<W>)
        asm("dp4a.s32.u32 %0, %1, %2, %0;" : "+r"(sum) : "r"(a), "r"(b));
    else if constexpr (IS_SIGNED<F>)
        asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(a), "r"(b));
    else
        asm("dp4a.u32.u32 %0, %1, %2, %0;" : "+r"(sum) : "r"(a), "r"(b));
}

template <typename W, typename F>
__device__ __forceinline__ void add_products(sum_t &sum, const factor (&a)[FACTORS], const factor (&b)[FACTORS])
{
#pragma unroll
    for (int i = 0; i < FACTORS; i++) {
        if constexpr (IS_BYTE<W>)
            add_bytes<W, F>(sum, a[i], b[i]);
        else
            sum += a[i] * b[i];
    }
}

/* ---- sums over K ---- */

/* SAFE: nothing is missing, and all is aligned. */
template <bool SAFE, typename T> __device__ __forceinline__ vector read_part(const T *p, s64 left, bool whole)
{
    if (SAFE || (whole && left >= VECTOR)) return read_once(p);
    return read_some(p, 1, left);
}

typedef read_of<SHIFTED>::type read_t;

template <bool SAFE>
__device__ __forceinline__ void read_wide(vector &to, const gemm_skinny_args &args, const wide_t *p, s64 left)
{
    to = read_part<SAFE>(p, left, args.whole);
}
template <bool SAFE>
__device__ __forceinline__ void read_wide(shifted_piece &to, const gemm_skinny_args &args, const wide_t *p, s64 left)
{
    to = read_anywhere<SAFE>(p, left, args.wide_low, args.wide_high);
}

template <bool SAFE>
__device__ __forceinline__ vector read_few(const gemm_skinny_args &args, const few_t *p, s64 left)
{
    vector v;
    if (SHIFTED)
        v = settled(read_anywhere<SAFE>(p, left, args.few_low, args.few_high));
    else if (SAFE)
        load_vector<4>((const u32 *)p, v.word);
    else
        v = read_part<false>(p, left, args.whole);
    return v;
}

/* COUNT vectors of each line, from k on. */
template <bool SAFE, int COUNT>
__device__ __forceinline__ void add_vectors(sum_t (&sum)[LINES][FEW], const gemm_skinny_args &args,
                                            const wide_t *const (&wide)[LINES], const few_t *few, s64 k)
{
    const s64 depth = args.gemm.shape.k;
    read_t w[COUNT][LINES];
#pragma unroll
    for (int i = 0; i < COUNT; i++)
#pragma unroll
        for (int line = 0; line < LINES; line++)
            read_wide<SAFE>(w[i][line], args, wide[line] + k + i * SPAN, depth - k - i * SPAN);
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        factor x[FEW][FACTORS];
#pragma unroll
        for (int f = 0; f < FEW; f++) {
            /* Lines that do not exist repeat the last one: their results are not stored. */
            const few_t *p = few + min((s64)f, args.few - 1) * args.few_line + k + i * SPAN;
            factors<few_t>(read_few<SAFE>(args, p, depth - k - i * SPAN), x[f]);
        }
#pragma unroll
        for (int line = 0; line < LINES; line++) {
            factor y[FACTORS];
            factors<wide_t>(settled(w[i][line]), y);
#pragma unroll
            for (int f = 0; f < FEW; f++) add_products<wide_t, few_t>(sum[line][f], y, x[f]);
        }
    }
}

/* This lane's sums of its warp's lines. `share`: the warp's number among those of its lines. */
__device__ __forceinline__ void add_up(sum_t (&sum)[LINES][FEW], const gemm_skinny_args &args, const place &p, s64 line,
                                       int share, int lane)
{
    const wide_t *all = SWAPPED ? (const wide_t *)args.gemm.a + p.a : (const wide_t *)args.gemm.b + p.b;
    const few_t *few = SWAPPED ? (const few_t *)args.gemm.b + p.b : (const few_t *)args.gemm.a + p.a;
    const wide_t *wide[LINES];
#pragma unroll
    for (int i = 0; i < LINES; i++) wide[i] = all + min(line + i, args.wide - 1) * args.wide_line;
    const s64 depth = args.gemm.shape.k;
    s64 first = (s64)share * STEP;
    if (SHIFTED || args.whole)
        for (; first + STEP <= depth; first += SHARE * STEP)
            add_vectors<true, CHUNKS>(sum, args, wide, few, first + lane * VECTOR);
    for (; first < depth; first += SHARE * STEP)
#pragma unroll 1
        for (int i = 0; i < CHUNKS && first + i * SPAN < depth; i++)
            add_vectors<false, 1>(sum, args, wide, few, first + i * SPAN + lane * VECTOR);
}

/* Result i of a warp, in lane i: line i / FEW, and i % FEW of the few. */
__device__ __forceinline__ sum_t gather(const sum_t (&sum)[LINES][FEW], int lane)
{
    sum_t mine = 0;
#pragma unroll
    for (int i = 0; i < LINES * FEW; i++) {
        sum_t v = sum[i / FEW][i % FEW];
#pragma unroll
        for (int by = 16; by > 0; by /= 2) v += __shfl_xor_sync(0xffffffffu, v, by);
        if (lane == i) mine = v;
    }
    return mine;
}

__device__ __forceinline__ void finish_one(const gemm_skinny_args &args, const place &p, s64 line, int few, sum_t sum)
{
    if (few >= args.few || line >= args.wide) return;
    const s64 row = SWAPPED ? line : few, col = SWAPPED ? few : line;
    c_t *c = (c_t *)args.gemm.c + p.c + row * args.gemm.shape.c_m + col * args.gemm.shape.c_n;
    *c = finish(args.gemm, p, row, col, sum, c);
}

__device__ __forceinline__ place block_place(const gemm_skinny_args &args, s64 tile)
{
    if constexpr (BATCHED) return tile_place(args.gemm.shape, tile);
    place p = {};
    (SWAPPED ? p.row : p.col) = tile * BLOCK_LINES;
    return p;
}

/* What keeps the most reads in flight without spilling registers. */
extern "C" __global__ void __launch_bounds__(THREADS, (FEW == 1 && VECTOR < 16 && !SHIFTED ? 768 : 512) / THREADS)
    gemm_gemv(const __grid_constant__ gemm_skinny_args args)
{
    overlap_wait();
    __shared__ sum_t parts[WARPS][LINES * FEW];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, team = warp / SHARE, share = warp % SHARE;
    const s64 tiles = (args.wide + BLOCK_LINES - 1) / BLOCK_LINES * args.gemm.shape.batches;

    for (s64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const place p = block_place(args, tile);
        const s64 line = (SWAPPED ? p.row : p.col) + team * LINES;
        sum_t sum[LINES][FEW] = {};
        add_up(sum, args, p, line, share, lane);
        sum_t mine = gather(sum, lane);
        if constexpr (SHARE > 1) {
            if (lane < LINES * FEW) parts[warp][lane] = mine;
            __syncthreads();
            if (share == 0 && lane < LINES * FEW)
#pragma unroll
                for (int i = 1; i < SHARE; i++) mine += parts[warp + i][lane];
            __syncthreads(); /* parts stay until all have read them */
        }
        if (share == 0 && lane < LINES * FEW) finish_one(args, p, line + lane / FEW, lane % FEW, mine);
    }
}
