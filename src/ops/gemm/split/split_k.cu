/* SPDX-License-Identifier: Apache-2.0
 * gemm whose K is split: adds up the parts' sums, in order, and the products of what K has beyond whole parts. A
 * thread has VECTOR neighbours of c, or the warps of a block share the parts of 32 such.
 *
 * Prologue: TEAM (warps that share parts; 1: none do), SWAPPED (lines of partial sums are columns of c), HAS_SCALE_A HAS_SCALE_B, types a_t b_t c_t sum_t out_t,
 * the epilogue's. */
#include "kernels/overlap.cuh"
#include "kernels/vector.cuh"
#include "ops/gemm/split/split_k_args.h"

constexpr int TILE_M = 1, TILE_N = 1; /* nothing here is tiled */
#include "ops/gemm/cuda/gemm_device.cuh"

constexpr int THREADS = TEAM > 1 ? 32 * TEAM : 128, VECTOR = 4;
constexpr int AHEAD = 8; /* parts that are read before the first is added */

/* Products of K from `tail` on, of VECTOR neighbours. */
__device__ __forceinline__ void add_tail(sum_t (&sum)[VECTOR], const gemm_split_args &args, s64 line, s64 across, int count)
{
    const gemm_shape &s = args.gemm.shape;
    const a_t *a = (const a_t *)args.gemm.a + (SWAPPED ? across : line) * s.a_m;
    const b_t *b = (const b_t *)args.gemm.b + (SWAPPED ? line : across) * s.b_n;
    const s64 a_step = SWAPPED ? s.a_m : 0, b_step = SWAPPED ? 0 : s.b_n;
#pragma unroll 4
    for (s64 k = args.tail; k < s.k; k++)
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            const int at = min(i, count - 1); /* past the end the last again, which is not stored */
            sum[i] += widen<sum_t>(a[k * s.a_k + at * a_step]) * widen<sum_t>(b[k * s.b_k + at * b_step]);
        }
}

/* Sums of parts from `part` on, before `end`. */
__device__ __forceinline__ void add_parts(sum_t (&sum)[VECTOR], const gemm_split_args &args, const sum_t *from, int part,
                                          int end, int count)
{
    for (; part < end; part += AHEAD) {
        sum_t held[AHEAD][VECTOR] = {};
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (part + i < end) load_some<VECTOR>(from + (part + i) * args.part, held[i], count, true);
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
#pragma unroll
            for (int j = 0; j < VECTOR; j++) sum[j] += held[i][j];
    }
}

/* The first warp gets all warps' sums. */
__device__ __forceinline__ void meet(sum_t (&sum)[VECTOR], int warp, int lane)
{
    __shared__ sum_t sums[TEAM][32 * VECTOR];
    store_vector<VECTOR>(&sums[warp][lane * VECTOR], sum);
    __syncthreads();
    if (warp > 0) return;
#pragma unroll
    for (int w = 1; w < TEAM; w++) {
        sum_t more[VECTOR];
        load_vector<VECTOR>(&sums[w][lane * VECTOR], more);
#pragma unroll
        for (int j = 0; j < VECTOR; j++) sum[j] += more[j];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) gemm_split_k(const __grid_constant__ gemm_split_args args)
{
    overlap_wait();
    const gemm_shape &s = args.gemm.shape;
    const int warp = TEAM > 1 ? (int)threadIdx.x / 32 : 0, lane = TEAM > 1 ? (int)threadIdx.x % 32 : (int)threadIdx.x;
    const s64 vectors = (args.across + VECTOR - 1) / VECTOR, number = (s64)blockIdx.x * (TEAM > 1 ? 32 : THREADS) + lane;
    const s64 line = number / vectors, across = (number - line * vectors) * VECTOR;
    const bool there = line < args.lines;
    const int count = there ? (int)min(args.across - across, (s64)VECTOR) : 0, share = (args.parts + TEAM - 1) / TEAM;
    const sum_t *from = (const sum_t *)args.partial + line * args.pitch + across;
    sum_t sum[VECTOR] = {};
    if (there) add_parts(sum, args, from, warp * share, min(args.parts, (warp + 1) * share), count);
    if constexpr (TEAM > 1) meet(sum, warp, lane);
    if (!there || warp > 0) return;
    add_tail(sum, args, line, across, count);

    c_t *c = (c_t *)args.gemm.c + (SWAPPED ? across * s.c_m + line * s.c_n : line * s.c_m + across * s.c_n);
    const s64 step = SWAPPED ? s.c_m : s.c_n;
    const bool whole = args.whole && count == VECTOR;
    c_t v[VECTOR] = {};
    if (args.gemm.beta != 0)
#pragma unroll
        for (int i = 0; i < VECTOR; i++) v[i] = c[min(i, count - 1) * step];
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        const s64 at = across + min(i, count - 1);
        v[i] = finish(args.gemm, place{}, SWAPPED ? at : line, SWAPPED ? line : at, sum[i], &v[i]);
    }
    if (whole) {
        store_vector<VECTOR>(c, v);
    } else {
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            if (i < count) c[i * step] = v[i];
    }
}
