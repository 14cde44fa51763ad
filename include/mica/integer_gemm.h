/* SPDX-License-Identifier: Apache-2.0
 * Products of 8-bit integers with zero points and scales, what quantised models multiply:
 *
 *   t[m,n] = sum_k (a[m,k] - zero_a[m]) (b[k,n] - zero_b[n])
 *   v[m,n] = scale_a[m] scale_b[n] t[m,n] + bias[n]
 *   y      = t in s32;  v in f32, f16, bf16;  saturate(round(v / scale_y) + zero_y) in s8, u8
 *
 * a is M x K, b is K x N, any strides; each s8 or u8. Scales and zero points of a are one or M
 * elements (per token), those of b one or N (per channel). ONNX's MatMulInteger is y=s32, its
 * QLinearMatMul y=s8 or u8; vLLM's cutlass_scaled_mm_azp is zero_a (azp) with sums_b: t is made of
 * the product of the codes and of sums of a's rows and b's columns, in s32, and exact where
 * |t| < 2^31, whatever the corrections are. The product of the codes must fit s32: engines but for
 * the reference take K up to 65793 with a of u8, 131071 with a of s8. A caller whose b are weights
 * may give sums_b, the sums of b's columns as they are stored; else they are made in every run in
 * which a has zero points.
 *
 * Integers round to nearest even. K = 0: t is 0. */
#ifndef MICA_INTEGER_GEMM_H
#define MICA_INTEGER_GEMM_H

#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    MICA_INTEGER_GEMM_A,
    MICA_INTEGER_GEMM_B,
    MICA_INTEGER_GEMM_Y,
    MICA_INTEGER_GEMM_ZERO_A,
    MICA_INTEGER_GEMM_ZERO_B,
    MICA_INTEGER_GEMM_SUMS_B,
    MICA_INTEGER_GEMM_SCALE_A,
    MICA_INTEGER_GEMM_SCALE_B,
    MICA_INTEGER_GEMM_BIAS,
    MICA_INTEGER_GEMM_SCALE_Y,
    MICA_INTEGER_GEMM_ZERO_Y
};

typedef struct mica_integer_gemm_desc {
    mica_tensor a;       /* M x K, s8 or u8; needed */
    mica_tensor b;       /* K x N, s8 or u8; needed */
    mica_tensor y;       /* M x N: s32, f32, f16, bf16, s8, u8; 0 means inferred: s32 without scales
                            and bias, else f32; a type alone is kept */
    mica_tensor zero_a;  /* 1 or M of a's type or s32; 0 means none */
    mica_tensor zero_b;  /* 1 or N of b's type or s32; 0 means none */
    mica_tensor sums_b;  /* N of s32, with zero_a: sums of b's columns; 0 means made */
    mica_tensor scale_a; /* 1 or M of f32; 0 means none, as if 1; not for s32 */
    mica_tensor scale_b; /* 1 or N of f32; 0 means none, as if 1; not for s32 */
    mica_tensor bias;    /* N of f32, f16, bf16; 0 means none; not for s32 */
    mica_tensor scale_y; /* 1 of f32; 0 means none, as if 1; for s8 and u8 */
    mica_tensor zero_y;  /* 1 of y's type or s32; 0 means none; for s8 and u8 */
} mica_integer_gemm_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_integer_gemm_plan(mica_context *context,
                                                 const mica_integer_gemm_desc *desc,
                                                 const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "integer_gemm", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
