/* SPDX-License-Identifier: Apache-2.0
 * What the gemm kernels share: where a tile lies, and the epilogue. Constants: TILE_M TILE_N
 * HAS_SCALE_A HAS_SCALE_B; types c_t, sum_t (sums), out_t (of the epilogue: double or float),
 * and the epilogue's. */
#pragma once
#include "kernels/epilogue.cuh"
#include "ops/gemm/gemm_args.h"

constexpr int RASTER = 8; /* tiles along M that are computed together: they share columns of b in L2 */

struct place {
    s64 row, col;       /* first of the tile */
    s64 a, b, c, r;     /* offsets of the batch item */
};

__device__ __forceinline__ place tile_place(const gemm_shape &s, s64 tile)
{
    s64 down = (s.m + TILE_M - 1) / TILE_M, across = (s.n + TILE_N - 1) / TILE_N;
    place p = {};
    s64 item = tile / (down * across);
    tile -= item * down * across;
    s64 band = tile / (RASTER * across), inside = tile - band * RASTER * across;
    s64 high = down - band * RASTER < RASTER ? down - band * RASTER : RASTER;
    p.row = (band * RASTER + inside % high) * TILE_M;
    p.col = inside / high * TILE_N;
    for (int i = s.batch_rank - 1; i >= 0; i--) {
        s64 next = item / s.batch[i], at = item - next * s.batch[i];
        p.a += at * s.a_batch[i];
        p.b += at * s.b_batch[i];
        p.c += at * s.c_batch[i];
        p.r += at * s.r_batch[i];
        item = next;
    }
    return p;
}

/* No contraction: integer outputs are rounded from the reference's own numbers. */
__device__ __forceinline__ float product(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double product(double a, double b) { return __dmul_rn(a, b); }
__device__ __forceinline__ float total(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ double total(double a, double b) { return __dadd_rn(a, b); }

/* What belongs to rows and columns beside the product. */
struct companions {
    const float *scale_a, *scale_b;
    mica_epilogue_args epilogue;
    s64 r; /* where the residual begins */
};

/* Whether c can be the sums as they are: it is if alpha is 1 and beta 0. finish() would give the same. Integers it
 * takes through double: on an H200 that took 6 to 13 % of a product with a K of 8192. sm80 asks for integers alone. */
constexpr bool SUMS_ARE_INTEGERS = same_type<sum_t, s32> && same_type<c_t, s32>;
constexpr bool SUMS_MAY_BE_C = (SUMS_ARE_INTEGERS || (same_type<sum_t, float> && same_type<out_t, float>)) &&
                               !HAS_SCALE_A && !HAS_SCALE_B && EPILOGUE_STEPS == 0;

/* The product's element, times what belongs to its row and column. */
__device__ __forceinline__ out_t scaled(const gemm_args &args, const float *scale_a, const float *scale_b, s64 row, s64 col,
                                        sum_t sum)
{
    out_t v = product((out_t)args.alpha, (out_t)sum);
    if constexpr (HAS_SCALE_A) v = product(v, (out_t)scale_a[row * args.scale_a_stride]);
    if constexpr (HAS_SCALE_B) v = product(v, (out_t)scale_b[col * args.scale_b_stride]);
    return v;
}

/* The element that replaces *c; residual() is the residual's. */
template <typename R>
__device__ __forceinline__ c_t finish_with(const gemm_args &args, const companions &of, s64 row, s64 col, sum_t sum,
                                           const c_t *c, const R &residual)
{
    out_t v = scaled(args, of.scale_a, of.scale_b, row, col, sum);
    if (args.beta != 0) v = total(v, product((out_t)args.beta, widen<out_t>(*c)));
    return narrow<c_t>(epilogue_with(of.epilogue, v, col, residual));
}

__device__ __forceinline__ c_t finish(const gemm_args &args, const companions &of, s64 row, s64 col, sum_t sum,
                                      const c_t *c)
{
    const gemm_shape &s = args.shape;
    return finish_with(args, of, row, col, sum, c, residual_at{of.epilogue, of.r + row * s.r_m + col * s.r_n});
}

__device__ __forceinline__ c_t finish(const gemm_args &args, const place &p, s64 row, s64 col, sum_t sum, const c_t *c)
{
    return finish(args, companions{args.scale_a, args.scale_b, args.epilogue, p.r}, row, col, sum, c);
}
