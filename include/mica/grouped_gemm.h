/* SPDX-License-Identifier: Apache-2.0
 * Grouped matrix multiplication: G products in one launch, as mixtures of experts need them. How
 * large each is, is data: a vector in the memory of the device, read when the plan runs, so that
 * one plan (and one CUDA graph) serves every routing.
 *
 *   fwd, a of rank 2   the rows of a, sorted by group, times the b of their group:
 *                      a is M x K, b is G x K x N, c is M x N. groups[g] is where group g ends: it
 *                      has the rows from groups[g-1] (0 for the first) to before groups[g].
 *   fwd, a of rank 3   each group has room for M rows, of which the first groups[g] count:
 *                      a is G x M x K, b is G x K x N, c is G x M x N. Without groups all count.
 *   wgrad              the terms of the sum, sorted by group, as in a gradient of the weights:
 *                      a is M x K, b is K x N, c is G x M x N; group g sums the terms from
 *                      groups[g-1] to before groups[g], and no terms make a sum of zero.
 *
 * Each element is that of a gemm,
 *
 *     c[m,n] = epilogue(alpha * scale_a * scale_b * sum_k a[m,k] b[k,n] + beta * c[m,n])
 *
 * in the same types and with the same steps. Transposes are strides, as there: the usual weights,
 * G x N x K in memory, are b=bf16:GxKxN:t; the gradient's operands, tokens x features in memory,
 * are a=bf16:MxK:t and b=bf16:KxN. The gradient of a is fwd with b transposed.
 *
 * Rows of c that belong to no group (past the last end, or past the rows that count) keep what they
 * hold. What lies there in a is not used: it may be NaN. Any content of groups is safe: an end
 * below the one before it, or below 0, makes an empty group; an end or number past the last row
 * counts as the last row. Nothing is read or written outside the tensors.
 *
 * The residual may be the same memory as c if the two tensors are equal. */
#ifndef MICA_GROUPED_GEMM_H
#define MICA_GROUPED_GEMM_H

#include "mica/epilogue.h"
#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mica_grouped_gemm_pass {
    MICA_GROUPED_GEMM_FWD,
    MICA_GROUPED_GEMM_WGRAD
} mica_grouped_gemm_pass;

enum {
    MICA_GROUPED_GEMM_A,
    MICA_GROUPED_GEMM_B,
    MICA_GROUPED_GEMM_C,
    MICA_GROUPED_GEMM_SCALE_A,
    MICA_GROUPED_GEMM_SCALE_B,
    MICA_GROUPED_GEMM_BIAS,
    MICA_GROUPED_GEMM_SCALE,
    MICA_GROUPED_GEMM_SHIFT,
    MICA_GROUPED_GEMM_RESIDUAL,
    MICA_GROUPED_GEMM_GROUPS
};
enum { MICA_GROUPED_GEMM_ALPHA, MICA_GROUPED_GEMM_BETA };

/* Scales are f32 and for 8-bit inputs, one element for all or, by the rank of a,
 *
 *     scale_a   rank 2: M, or in blocks M x ceil(K/128);
 *               rank 3: G, G x M, or in blocks G x M x ceil(K/128); wgrad: G, G x M
 *     scale_b   G, G x N, or in blocks G x ceil(K/128) x ceil(N/128); wgrad: G, G x N
 *
 * Blocks are those of gemm: for e4m3 and e5m2, of both operands or none, counted from the first k.
 */
typedef struct mica_grouped_gemm_desc {
    mica_grouped_gemm_pass pass; /* 0 means fwd */
    mica_tensor a, b;            /* needed */
    mica_tensor c;               /* as gemm's; 0 means inferred, in wgrad from groups */
    mica_tensor groups;          /* G, s32 or s64; 0 means inferred where ends are needed: as s32 */
    mica_compute compute;        /* 0 means default */
    mica_tensor scale_a, scale_b;     /* 0 means none, as if they were 1 */
    int32_t epilogue[MICA_MAX_STEPS]; /* 0 means none */
    double act_a, act_b;              /* 0 means the function's own */
    mica_tensor bias, scale,
        shift; /* G x N, or N for all groups; 0 means inferred with its step: G x N of f32 */
    mica_tensor residual; /* 0 means inferred with its step: as c */
    int64_t expected;     /* rows (wgrad: terms) that a group usually has: it only helps to choose a
                             kernel; 0 means equal shares, for a of rank 3 all rows */
} mica_grouped_gemm_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_grouped_gemm_plan(mica_context *context,
                                                 const mica_grouped_gemm_desc *desc,
                                                 const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "grouped_gemm", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
