/* SPDX-License-Identifier: Apache-2.0
 * Matrix multiplication, batched and strided: c = epilogue(alpha * a b + beta * c).
 * a is [batch x] M x K, b is [batch x] K x N, c is [batch x] M x N. Transposes are strides:
 * layout t in text. Batch dimensions of size 1 are broadcast.
 * Types: f64 f32 f16 bf16 and mixtures c in f32; s8 and u8 by s8 with exact s32 sums, c s32, f32
 * or s8; e4m3 and e5m2 in any pairing, c f32 f16 bf16, times scale_a and scale_b.  */
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
    MICA_GEMM_RESIDUAL
};
enum { MICA_GEMM_ALPHA, MICA_GEMM_BETA };

typedef struct mica_gemm_desc {
    mica_tensor a, b;
    mica_tensor c; /* inferred: packed, of a's type (f32 for narrow types, s32 for s8) */
    mica_compute compute;
    mica_tensor scale_a; /* f32: 1 element, or M (one per row of a); absent: 1 */
    mica_tensor scale_b; /* f32: 1 element, or N (one per column of b); absent: 1 */
    int32_t epilogue[MICA_MAX_STEPS];
    double act_a, act_b;
    mica_tensor bias, scale, shift; /* N; inferred as f32 (f64 for f64) */
    mica_tensor residual;           /* as c; inferred */
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
