/* SPDX-License-Identifier: Apache-2.0
 * Softmax and log-softmax over one axis.
 *
 *   fwd   y = exp(x - max) / sum, or its logarithm
 *   bwd   dx = y (dy - sum(y dy));  log: dx = dy - exp(y) sum(dy). Reads y, not x.
 *
 * Types f64 f32 f16 bf16, which may differ between tensors; sums are in f32, or in f64 if any of
 * them is f64. In place is allowed: y on x, dx on dy, with equal tensors. A slice of -inf alone
 * gives NaN, as one with +inf or NaN in it does. */
#ifndef MICA_SOFTMAX_H
#define MICA_SOFTMAX_H

#include "mica/epilogue.h"
#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mica_softmax_pass { MICA_SOFTMAX_FWD, MICA_SOFTMAX_BWD } mica_softmax_pass;
enum { MICA_SOFTMAX_X, MICA_SOFTMAX_Y, MICA_SOFTMAX_DY, MICA_SOFTMAX_DX };

typedef struct mica_softmax_desc {
    mica_softmax_pass pass; /* 0 means fwd */
    mica_tensor x;          /* needed in fwd */
    mica_tensor y;          /* 0 means inferred in fwd, needed in bwd */
    mica_tensor dy;         /* bwd; 0 means inferred: as y */
    mica_tensor dx;         /* bwd; 0 means inferred: as y */
    int64_t axis; /* negative counts from the end; 0 means axis 0, which is rarely what you want */
    bool log;     /* 0 means no */
} mica_softmax_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_softmax_plan(mica_context *context, const mica_softmax_desc *desc,
                                            const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "softmax", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
