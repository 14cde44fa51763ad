/* SPDX-License-Identifier: Apache-2.0
 * Reductions over any set of dimensions.
 *
 *   sum mean prod max min      of the elements; NaN wins
 *   amax norm1 norm2           largest magnitude, sum of magnitudes, root of the sum of squares
 *   norm                       (sum |x|^p)^(1/p) for any p, by PyTorch's vector_norm: of p = 0 how
 *                              many are not 0, of inf the largest, of -inf the smallest magnitude;
 *                              powers are of shares of the largest (p < 0: smallest) magnitude, so
 *                              that none overflows or vanishes. No map but for 1, 2 and inf
 *   any all count              of elements that are not 0; NaN is not 0
 *   logsumexp                  log(sum(exp(x)))
 *   var std                    sum((x - mean)^2) / (elements - correction), and its root
 *   argmax argmin              position of the first among equals; of NaN the first, if there is
 * one
 *
 * A position counts the elements of a slice in the order of x's reduced dimensions, the last one
 * fastest. Over no elements a sum is 0, a product 1, max and logsumexp -inf, min inf (of integers
 * the least and the greatest, of bool false and true), amax 0, norm 0 (p < 0: inf), all true, a
 * mean and what follows NaN; a position is refused. Types: x f64 f32 f16 bf16 e4m3 e5m2, with y f64
 * f32 f16 bf16; where that is no mean, root, logarithm or variance also s8 u8 s32 u32 s64 bool,
 * with y of integers: sums of those are in s64 and wrap around, and are stored saturated. any, all,
 * count and positions are integers whatever x is. Sums of floats are in f32, or in f64 if x or y is
 * f64; norm2, var and std form squares in f64. Results do not depend on the number of threads.
 *
 * With `map` what is reduced are the values of an expression of x and up to seven further tensors,
 * in the language of pointwise.h; x is x0 there, and gives the shape, to which the others are
 * broadcast. The values are reals, in f32, or in f64 if a tensor is f64 or 32-bit integers are
 * there, and pass from the expression to the sum without memory: a loss is one pass. Positions of
 * such values are not found.
 *
 *     mica_reduce_desc d = { .kind = MICA_REDUCE_KIND_MEAN, .map = "square(x0-x1)",
 *                            .x = ..., .x1 = ... };
 *
 * pass=bwd is the gradient of what has no map, is no truth, count or position, and whose x is f64
 * f32 f16 bf16. It reads x and dy and finds y and what else it needs again:
 *
 *   sum mean         dx = dy, dy / elements
 *   prod             dy times the product of the others, zeros included: where a slice has one
 *                    zero, that alone has a gradient, where it has more, none
 *   max min          dy, in equal parts to all that are equal to y, as torch.amax (NaN equals NaN)
 *   amax             the same of magnitudes, times sign(x); of zeros 0
 *   norm1 norm2      sign(x) dy, x dy / y; of norm2 0 where y is 0
 *   norm             sign(x) (|x| / y)^(p-1) dy, 0 where x or y is 0; of p = 0 nothing, of -inf
 *                    in equal parts to all of that magnitude, times sign(x)
 *   logsumexp        dy softmax(x), of a slice with +inf or of -inf alone NaN
 *   var std          2 dy (x - mean) / (elements - correction), dy (x - mean) / (elements -
 *                    correction) / y; of std 0 where y is 0 */
#ifndef MICA_REDUCE_H
#define MICA_REDUCE_H

#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mica_reduce_kind {
    MICA_REDUCE_KIND_SUM,
    MICA_REDUCE_KIND_MEAN,
    MICA_REDUCE_KIND_PROD,
    MICA_REDUCE_KIND_MAX,
    MICA_REDUCE_KIND_MIN,
    MICA_REDUCE_KIND_AMAX,
    MICA_REDUCE_KIND_NORM1,
    MICA_REDUCE_KIND_NORM2,
    MICA_REDUCE_KIND_ANY,
    MICA_REDUCE_KIND_ALL,
    MICA_REDUCE_KIND_COUNT,
    MICA_REDUCE_KIND_LOGSUMEXP,
    MICA_REDUCE_KIND_VAR,
    MICA_REDUCE_KIND_STD,
    MICA_REDUCE_KIND_ARGMAX,
    MICA_REDUCE_KIND_ARGMIN,
    MICA_REDUCE_KIND_NORM
} mica_reduce_kind;

/* Length of `axes`, of which the last is 0. */
#define MICA_REDUCE_MAX_AXES (MICA_MAX_RANK + 1)
/* Dimension i in `axes`; negative ones count from the end. */
#define MICA_REDUCE_AXIS(i) ((i) >= 0 ? (i) + 1 : MICA_MAX_RANK - (i))

/* Characters of a map, its end included. */
#define MICA_REDUCE_MAP 480

enum {
    MICA_REDUCE_X,
    MICA_REDUCE_Y,
    MICA_REDUCE_X1,
    MICA_REDUCE_X2,
    MICA_REDUCE_X3,
    MICA_REDUCE_X4,
    MICA_REDUCE_X5,
    MICA_REDUCE_X6,
    MICA_REDUCE_X7,
    MICA_REDUCE_DY,
    MICA_REDUCE_DX
};

typedef enum mica_reduce_pass { MICA_REDUCE_FWD, MICA_REDUCE_BWD } mica_reduce_pass;

typedef struct mica_reduce_desc {
    mica_reduce_kind kind; /* 0 means sum */
    mica_tensor x;         /* needed */
    mica_tensor y; /* 0 means inferred: packed, of x's type or f32, of s64 for sums of integers,
                      counts and positions, bool for any and all */
    int32_t axes[MICA_REDUCE_MAX_AXES];     /* MICA_REDUCE_AXIS of each, ended by 0; 0 means all */
    bool keepdims;                          /* reduced dimensions stay, of size 1; 0 means no */
    double correction;                      /* var, std; 1 is Bessel's; 0 means none */
    char map[MICA_REDUCE_MAP];              /* 0 means x itself */
    mica_tensor x1, x2, x3, x4, x5, x6, x7; /* of map; 0 means not given */
    mica_reduce_pass pass;                  /* 0 means fwd */
    mica_tensor dy;                         /* bwd; 0 means inferred: as y would be */
    mica_tensor dx;                         /* bwd; 0 means inferred: as x */
    double p;                               /* norm; 0 means 2 */
} mica_reduce_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_reduce_plan(mica_context *context, const mica_reduce_desc *desc,
                                           const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "reduce", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
