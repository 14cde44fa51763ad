/* SPDX-License-Identifier: Apache-2.0
 * Matrix multiplication, batched and strided:
 *
 *     c[m,n] = epilogue(alpha * scale_a[m] * scale_b[n] * sum_k a[m,k] b[k,n] + beta * c[m,n])
 *
 * With scales of blocks of 128, of a along K, of b along K and N, they stand inside the sum:
 *
 *     alpha * sum_k scale_a[m, k/128] scale_b[k/128, n/128] a[m,k] b[k,n]
 *
 * a is [batch x] M x K, b is [batch x] K x N, c is [batch x] M x N, ranks 2 to 8. Batch dimensions
 * are aligned at the last one; those of size 1, or missing in a or b, are broadcast. Transposes are
 * strides: layout t in text.
 * Types: f64 by f64, c f64 or f32; f32, f16 and bf16 in any pairing, c any of them, e4m3, e5m2 or
 * s8; s8 or u8 by s8 with exact integer sums, c s32, s8, u8, f32, f16 or bf16; e4m3 and e5m2 in any
 * pairing, c f32, f16, bf16, e4m3, e5m2 or s8. With integer inputs all that follows the sum is
 * computed in double precision and rounded once, to nearest even; integers saturate. beta = 0 does
 * not read c. K = 0 is a sum of nothing: c = epilogue(beta * c). M, N or a batch of 0: nothing to
 * do (amax, if there is one, becomes 0). The residual may be the same memory as c if the two
 * tensors are equal.
 *
 * Gated pairs (SwiGLU, GeGLU): with gate the product t has N columns and c half of them,
 *
 *     pairs    c[m,j] = act(t[m,2j]) t[m,2j+1]       t[m,n] = steps before the activation of
 *     halves   c[m,j] = act(t[m,j]) t[m,j+N/2]              alpha scale_a scale_b sum
 *
 * so that the epilogue needs an activation (identity: a plain product of both). bias, scale and
 * shift have N elements and come before it; a residual has the shape of c and comes after it. beta
 * * c, with the old c, is added to the gated product, before the residual. Not with scales of
 * blocks.
 *
 * aux receives t as it stands before the activation, for a backward pass: M x N, with a gate the N
 * of both halves. It needs an activation, too.
 *
 * Quantised results: e4m3, e5m2 or s8 from floating sums,
 *
 *     c = saturate(round(scale_c v)),    amax = max |v|
 *
 * v being the result of all steps. Rounding is to nearest even; e4m3 stops at 448, e5m2 at 57344,
 * infinities too, s8 at -128 and 127; a NaN stays one (in s8: 0). beta takes the old content of c
 * as it is stored. amax, over all of c and before scale_c and rounding, goes with any type of c:
 * rounded to nearest, a NaN if there is one among the v, the same bits in each run. The run sets
 * it, nothing needs to be zeroed.
 *
 * Edges: with alpha 0, a and b are to be finite; NaN and infinities of theirs, times 0, may come
 * through, or, where a library of BLAS's kind does not read them then, may not. With beta 0 the old
 * c is never read. Sums whose terms pass the end of the accumulator's type on the way are infinite
 * or NaN, by the order of the terms. */
#ifndef MICA_GEMM_H
#define MICA_GEMM_H

#include "mica/epilogue.h"
#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    MICA_GEMM_A,
    MICA_GEMM_B,
    MICA_GEMM_C,
    MICA_GEMM_SCALE_A,
    MICA_GEMM_SCALE_B,
    MICA_GEMM_BIAS,
    MICA_GEMM_SCALE,
    MICA_GEMM_SHIFT,
    MICA_GEMM_RESIDUAL,
    MICA_GEMM_SCALE_C,
    MICA_GEMM_AUX,
    MICA_GEMM_AMAX
};
enum { MICA_GEMM_ALPHA, MICA_GEMM_BETA };

typedef enum mica_gemm_gate {
    MICA_GEMM_GATE_NONE,
    MICA_GEMM_GATE_PAIRS, /* columns 2j and 2j + 1 belong together */
    MICA_GEMM_GATE_HALVES /* columns j and j + N/2 */
} mica_gemm_gate;

typedef struct mica_gemm_desc {
    mica_tensor a, b; /* needed */
    mica_tensor c; /* 0 means inferred: packed; of the inputs' type if they agree, else f32; f32 for
                      e4m3 and e5m2, s32 for s8 and u8. With a type only, the rest is inferred */
    mica_compute compute; /* tf32 allows engines to round f32 inputs; it has no effect on others; 0
                             means default */
    mica_tensor
        scale_a; /* f32, 8-bit inputs only: 1 element, or M (one per row); e4m3, e5m2 without batch:
                    also M x ceil(K/128) with a scale_b of blocks; 0 means none, as if it were 1 */
    mica_tensor scale_b; /* 1 element, or N (one per column); in blocks ceil(K/128) x ceil(N/128); 0
                            means none, as if it were 1 */
    int32_t epilogue[MICA_MAX_STEPS]; /* 0 means none */
    double act_a, act_b;              /* 0 means the function's own */
    mica_tensor bias, scale, shift;   /* N; 0 means inferred with its step: f32 (f64 if c is f64) */
    mica_tensor residual; /* f64 f32 f16 bf16 s32 s8 u8; 0 means inferred with its step: as c */
    mica_gemm_gate gate;  /* 0 means none */
    mica_tensor scale_c;  /* 1 element of f32, for an 8-bit c; 0 means none, as if it were 1. A type
                             is enough here and below: the rest is inferred */
    mica_tensor aux;      /* as the product: f32 f16 bf16; f64 or f32 for f64; 0 means none */
    mica_tensor amax;     /* 1 element of f32; f64 for f64; 0 means none */
} mica_gemm_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_gemm_plan(mica_context *context, const mica_gemm_desc *desc,
                                         const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "gemm", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
