/* SPDX-License-Identifier: Apache-2.0
 * Padding: y is x with elements added before and after each dimension, or, where the number is
 * negative, taken away. What is added is a constant, or comes from x:
 *
 *     constant      v v | a b c d | v v      v: the run-time scalar `value`
 *     reflect       c b | a b c d | c b
 *     edge          a a | a b c d | d d      replicate in PyTorch
 *     wrap          c d | a b c d | a b      circular
 *
 * as in NumPy's and ONNX's, more than once around where as many are added. The gradient, pass=bwd,
 * is the sum of all elements of dy that came from one of x; 0 if none did. Any types; constants and
 * gradients are those of the real types of a byte or more. */
#ifndef MICA_PAD_H
#define MICA_PAD_H

#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { MICA_PAD_X, MICA_PAD_Y, MICA_PAD_DY, MICA_PAD_DX };
enum { MICA_PAD_VALUE };

typedef enum mica_pad_pass { MICA_PAD_FWD, MICA_PAD_BWD } mica_pad_pass;
typedef enum mica_pad_mode {
    MICA_PAD_CONSTANT,
    MICA_PAD_REFLECT,
    MICA_PAD_EDGE,
    MICA_PAD_WRAP
} mica_pad_mode;

typedef struct mica_pad_desc {
    mica_pad_pass pass; /* 0 means fwd */
    mica_pad_mode mode; /* 0 means constant */
    mica_tensor x;      /* fwd: needed */
    mica_tensor y;      /* 0 means inferred: fwd: packed, x's dimensions and what is added */
    mica_tensor dy;     /* 0 means inferred: bwd: as y would be */
    mica_tensor dx;     /* bwd: needed */
    int64_t before[MICA_MAX_RANK]; /* elements before dimension i; 0 means none */
    int64_t after[MICA_MAX_RANK];  /* 0 means none */
} mica_pad_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_pad_plan(mica_context *context, const mica_pad_desc *desc,
                                        const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "pad", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
