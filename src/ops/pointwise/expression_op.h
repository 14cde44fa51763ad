/* SPDX-License-Identifier: Apache-2.0
 * The family "pointwise": shapes of its descriptor, and its engines. */
#ifndef MICA_OPS_POINTWISE_EXPRESSION_OP_H
#define MICA_OPS_POINTWISE_EXPRESSION_OP_H

#include "mica/pointwise.h"
#include "ops/pointwise/expression.h"
#include "ops/pointwise/pointwise.h"

extern const mica_op mica_op_pointwise;

/* The tensor of an argument; NULL: not given. */
const mica_tensor *mica_expr_given(const mica_pointwise_desc *d, int arg);
/* The dimensions that the inputs have together; without inputs those of the first result. */
mica_status mica_expr_dims(const mica_pointwise_desc *d, mica_tensor *dims, mica_why *why);
/* t with the rank of dims; what repeats has stride 0. */
mica_tensor mica_expr_expanded(const mica_tensor *t, const mica_tensor *dims);
/* Dimensions of dims along which t has one element that stands for all: bit i. */
unsigned mica_expr_repeated(const mica_tensor *t, const mica_tensor *dims);

extern const mica_engine *const mica_expr_engines[];

#endif
