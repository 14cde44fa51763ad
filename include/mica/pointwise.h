/* SPDX-License-Identifier: Apache-2.0
 * Expressions of element functions, on tensors of any types and strides.
 *   fwd   y0, y1, ... = the expressions of `expr`, divided by ';', of x0 .. x7, s0 .. s3, i0 .. i7
 *   bwd   dx_k = sum over r of dy_r dy_r/dx_k, for the x of floating-point types
 *
 *     mica_pointwise_desc d = { .expr = "gelu(x0+x1)*s0", .x0 = ..., .x1 = ... };
 *
 * Operators are those of C: || && | ^ & == != < <= > >= << >> + - * / % and unary - ! ~; '/'
 * divides integers as reals. Operands are x0 .. x7, s0 .. s3, i0 .. i7, numbers, pi, e, inf, nan
 * and function(...); docs/functions.md lists the functions, their accuracy and their values at the
 * edges. i0 is the place of the element along dimension 0 of the results, from 0, as an s64, and so
 * on: where(i1<=i0,x0,0) is a lower triangle. No spaces.
 *
 * Shapes broadcast as in NumPy: they are aligned at the last dimension, and a dimension of 1 is
 * repeated: bwd sums the gradient of x over it, in f32 or in f64 as below, in an order that does
 * not depend on threads; that needs workspace for all elements of the results. A stride of 0
 * repeats as well; dx has a gradient for each element there, or, where its dimension is 1, the sum.
 * Types: x may be f64, f32, f16, bf16, e4m3, e5m2, s64, s32, u32, s8, u8 or bool. Reals are
 * computed in f32, or in f64 if a tensor is f64, or if integers of 32 bits or more or no
 * floating-point tensors are there. Integers wrap, at 64 bits those of s64, s32 with u32 and
 * places: they never pass through reals, and become them, rounded to f64, where they meet one. A
 * real becomes an integer by a cast alone: s8(x0*2). In place is allowed: y_k on x_k, dx_k on dy_k,
 * with equal tensors. */
#ifndef MICA_POINTWISE_H
#define MICA_POINTWISE_H

#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Characters of an expression, its end included. */
#define MICA_POINTWISE_EXPR 480

typedef enum mica_pointwise_pass { MICA_POINTWISE_FWD, MICA_POINTWISE_BWD } mica_pointwise_pass;
/* Run arguments: x_k is MICA_POINTWISE_X0 + k, and so on. */
enum {
    MICA_POINTWISE_X0,
    MICA_POINTWISE_Y0 = 8,
    MICA_POINTWISE_DY0 = 12,
    MICA_POINTWISE_DX0 = 16,
    MICA_POINTWISE_ARGS = 24
};
enum { MICA_POINTWISE_S0, MICA_POINTWISE_S1, MICA_POINTWISE_S2, MICA_POINTWISE_S3 };

typedef struct mica_pointwise_desc {
    mica_pointwise_pass pass;                   /* 0 means fwd */
    char expr[MICA_POINTWISE_EXPR];             /* needed */
    mica_tensor x0, x1, x2, x3, x4, x5, x6, x7; /* 0 means not given */
    mica_tensor y0, y1, y2, y3;                 /* fwd; 0 means inferred, one for each expression */
    mica_tensor dy0, dy1, dy2, dy3;             /* bwd; 0 means inferred, one for each expression */
    /* bwd; 0 means not wanted, or where none is given inferred as x */
    mica_tensor dx0, dx1, dx2, dx3, dx4, dx5, dx6, dx7;
} mica_pointwise_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_pointwise_plan(mica_context *context,
                                              const mica_pointwise_desc *desc,
                                              const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "pointwise", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
