/* SPDX-License-Identifier: Apache-2.0
 * Tensors side by side along an axis, and back: y is x0, x1, ... x7 one behind the other. pass=bwd
 * is the gradient and a split: each x receives its part of y. Absent ones are left out; all types,
 * bit by bit. */
#ifndef MICA_CONCAT_H
#define MICA_CONCAT_H

#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    MICA_CONCAT_X0,
    MICA_CONCAT_X1,
    MICA_CONCAT_X2,
    MICA_CONCAT_X3,
    MICA_CONCAT_X4,
    MICA_CONCAT_X5,
    MICA_CONCAT_X6,
    MICA_CONCAT_X7,
    MICA_CONCAT_Y
};

typedef enum mica_concat_pass { MICA_CONCAT_FWD, MICA_CONCAT_BWD } mica_concat_pass;

typedef struct mica_concat_desc {
    mica_concat_pass pass; /* 0 means fwd */
    mica_tensor x0;        /* needed; bwd: a result, as all x */
    mica_tensor x1;        /* 0 means none */
    mica_tensor x2;        /* 0 means none */
    mica_tensor x3;        /* 0 means none */
    mica_tensor x4;        /* 0 means none */
    mica_tensor x5;        /* 0 means none */
    mica_tensor x6;        /* 0 means none */
    mica_tensor x7;        /* 0 means none */
    mica_tensor y;         /* 0 means inferred: packed, of x0's type */
    int64_t axis;          /* below 0 counts from the end; 0 means axis 0 */
} mica_concat_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_concat_plan(mica_context *context, const mica_concat_desc *desc,
                                           const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "concat", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
