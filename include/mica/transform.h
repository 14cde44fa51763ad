/* SPDX-License-Identifier: Apache-2.0
 * Change of memory order and type: y = alpha * x + beta * y, element by element in logical order.
 * perm permutes dimensions first: y's dimension i is x's dimension perm[i]. Conversions round once,
 * to nearest even; integers saturate, NaN becomes 0; e5m2 and f16 overflow to infinity as IEEE has
 * it, where quantised results of conv and gemm saturate, e4m3 stops at 448; bool is whether a value
 * is not zero. Without alpha and beta, equal types are copied bit by bit; with them the result is
 * formed in f64 as fma(alpha, x, beta * y), bit for bit the same on every device. Types: all but
 * the sub-byte and complex ones. */
#ifndef MICA_TRANSFORM_H
#define MICA_TRANSFORM_H

#include "mica/epilogue.h"
#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { MICA_TRANSFORM_X, MICA_TRANSFORM_Y };
enum { MICA_TRANSFORM_ALPHA, MICA_TRANSFORM_BETA };

typedef struct mica_transform_desc {
    mica_tensor x; /* needed */
    mica_tensor y; /* 0 means inferred: of x's type; packed with perm, else in x's memory order. A
                      type alone is kept */
    int64_t perm[MICA_MAX_RANK]; /* all 0 means no permutation */
} mica_transform_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_transform_plan(mica_context *context,
                                              const mica_transform_desc *desc,
                                              const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "transform", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
