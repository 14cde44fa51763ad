/* SPDX-License-Identifier: Apache-2.0
 * gemm on the tensor cores of sm_80 and later: mma.sync, ldmatrix, cp.async. A block computes one tile
 * at a time. Prologue: that of kernels/mma_tile.cuh and of gemm_device.cuh. */
#include "kernels/mma_tile.cuh"
#include "kernels/overlap.cuh"
#include "ops/gemm/cuda/gemm_device.cuh"
#include "ops/gemm/sm80/sm80_args.h"

/* One operand's slice, as a thread sees it: its pieces are `step` elements apart. */
template <typename O, typename T> struct matrix {
    const T *first;
    s64 step;
    int lines, depth; /* that exist */
    bool aligned;
    const char *low, *high; /* of SHIFTED: the ends of memory */

    __device__ __forceinline__ int locate(int i, int line, int k, const T *&p) const
    {
        p = first + i * step;
        const int there = O::K_FAST ? depth - k : lines - line;
        if (O::K_FAST ? line >= lines : k >= depth) return 0;
        return there < 0 ? 0 : there < O::VECTOR ? there : O::VECTOR;
    }
};

struct product_tile {
    static constexpr bool TABLES = false;
    const gemm_sm80_args &args;
    const a_t *first_a; /* the thread's first pieces of slice 0 */
    const b_t *first_b;
    int rows, cols;

    __device__ __forceinline__ product_tile(const gemm_sm80_args &g, const a_t *a, const b_t *b, int r, int c)
        : args(g), first_a(a + operand_a::line(0) * g.g.shape.a_m + operand_a::depth(0) * g.g.shape.a_k),
          first_b(b + operand_b::line(0) * g.g.shape.b_n + operand_b::depth(0) * g.g.shape.b_k), rows(r), cols(c)
    {
    }
    __device__ __forceinline__ void prepare(s64) const {}
    __device__ __forceinline__ int depth(s64 slice) const
    {
        const s64 left = args.g.shape.k - slice * TILE_K;
        return left < TILE_K ? (int)left : TILE_K;
    }
    __device__ __forceinline__ matrix<operand_a, a_t> a(s64 slice) const
    {
        const gemm_shape &s = args.g.shape;
        const s64 step = operand_a::EACH * (operand_a::K_FAST ? s.a_m : s.a_k);
        return {first_a + slice * TILE_K * s.a_k, step, rows, depth(slice), args.a_aligned != 0, args.a_low, args.a_high};
    }
    __device__ __forceinline__ matrix<operand_b, b_t> b(s64 slice) const
    {
        const gemm_shape &s = args.g.shape;
        const s64 step = operand_b::EACH * (operand_b::K_FAST ? s.b_n : s.b_k);
        return {first_b + slice * TILE_K * s.b_k, step, cols, depth(slice), args.b_aligned != 0, args.b_low, args.b_high};
    }
};

/* A sum that the tensor cores lost, as multiply-adds give it. */
__device__ __noinline__ float plain_sum(const float *a, const float *b, s64 a_k, s64 b_k, s64 k)
{
    float sum = 0;
    for (s64 i = 0; i < k; i++) sum = fmaf(a[i * a_k], b[i * b_k], sum);
    return sum;
}

__device__ __forceinline__ sum_t whole_sum(const gemm_shape &s, const place &p, const void *a, const void *b, s64 row,
                                           s64 col, sum_t sum)
{
    if constexpr (PRECISE)
        if (is_lost(sum))
            return plain_sum((const float *)a + p.a + row * s.a_m, (const float *)b + p.b + col * s.b_n, s.a_k, s.b_k,
                             s.k);
    return sum;
}

__device__ __forceinline__ int at_most(s64 n, int most) { return n < most ? (int)n : most; }

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    gemm_sm80(const __grid_constant__ gemm_sm80_args args)
{
    overlap_wait();
    extern __shared__ __align__(128) char shared[];
    const gemm_shape &s = args.g.shape;
    const bool as_they_are = SUMS_MAY_BE_C && SUMS_ARE_INTEGERS && args.g.alpha == 1 && args.g.beta == 0;
    const s64 tiles = (s.m + TILE_M - 1) / TILE_M * ((s.n + TILE_N - 1) / TILE_N) * s.batches;

    for (s64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const place p = tile_place(s, tile);
        product_tile source(args, (const a_t *)args.g.a + p.a + p.row * s.a_m,
                            (const b_t *)args.g.b + p.b + p.col * s.b_n, at_most(s.m - p.row, TILE_M),
                            at_most(s.n - p.col, TILE_N));
        sums sum = {};
        multiply_tile(sum, shared, source, (s.k + TILE_K - 1) / TILE_K);
        c_t *c = (c_t *)args.g.c + p.c + p.row * s.c_m + p.col * s.c_n;
        const auto result = [&](s64 m, s64 n, sum_t whole, const c_t *old) {
            return as_they_are ? narrow<c_t>(whole) : finish(args.g, p, m, n, whole, old);
        };
        if constexpr (C_VECTOR == 1 && !has_residual()) {
            store_scalars(sum, shared, source.rows, source.cols, c, s.c_m, s.c_n, [&](int row, int col, sum_t value, const c_t *old) {
                const s64 m = p.row + row, n = p.col + col;
                return result(m, n, whole_sum(s, p, args.g.a, args.g.b, m, n, value), old);
            });
            __syncthreads();
            continue;
        }
        const auto fetch = [&](int row, int col, int count) {
            if constexpr (has_residual()) {
                const s64 at = p.r + (p.row + row) * s.r_m + (p.col + col) * s.r_n;
                return residual_piece<residual_t>::read((const residual_t *)args.g.epilogue.residual + at,
                                                        C_N_FAST ? s.r_n : s.r_m, count, args.residual_aligned != 0);
            } else {
                return no_more{};
            }
        };
        store_tile(sum, shared, source.rows, source.cols, fetch, [&](int row, int col, int count, const sum_t(&piece)[C_VECTOR], const auto &more) {
            c_t *to = c + row * s.c_m + col * s.c_n, v[C_VECTOR];
            if (args.g.beta != 0) load_some<C_VECTOR>(to, v, count, args.c_aligned != 0);
#pragma unroll
            for (int i = 0; i < C_VECTOR; i++) {
                const int at = min(i, count - 1); /* past the end the last again: a branch would make each wait for its loads */
                const s64 m = p.row + row + (C_N_FAST ? 0 : at), n = p.col + col + (C_N_FAST ? at : 0);
                const sum_t whole = whole_sum(s, p, args.g.a, args.g.b, m, n, piece[i]);
                const companions of = {args.g.scale_a, args.g.scale_b, args.g.epilogue, p.r};
                if constexpr (has_residual())
                    v[i] = finish_with(args.g, of, m, n, whole, &v[i], [&] { return more.v[i]; });
                else
                    v[i] = result(m, n, whole, &v[i]);
            }
            if constexpr (C_VECTOR == 1)
                *to = v[0];
            else
                store_some<C_VECTOR>(to, v, count, args.c_aligned != 0);
        });
        __syncthreads();
    }
}
