/* SPDX-License-Identifier: Apache-2.0
 * Numbers with errors, for truths of several steps.
 *
 * Errors are counted in units of the accumulator (2^-24, of f64 2^-53) and go from step to step:
 * what a product takes was rounded to a type, a function passes on what its argument is off by.
 * Those of a sum's terms are independent, so that of n of them 4 sqrt(n) times their size is left,
 * n at most. The tolerance multiplies magnitudes by the growth of the longest sum: they are errors
 * divided by it. */
#ifndef MICA_OPS_NUMBERS_H
#define MICA_OPS_NUMBERS_H

#include "ops/op.h"

#include <float.h>
#include <math.h>

typedef struct mica_number {
    double v, error;
} mica_number;

typedef struct mica_accuracy {
    double unit, growth;
    double sums;     /* error of a sum by its size, where tensor cores truncate more than growth */
    double rounding; /* of a number of the problem's type, in units */
    double operand;  /* what tf32 loses of a number when it is multiplied */
    double least;   /* what rounding subnormal numbers of the problem's type costs, in units of 1 */
    double most;    /* the end of the accumulator's type */
    double largest; /* of the problem's type */
} mica_accuracy;

/* Of an operation whose sums are of numbers of `type`. */
static inline mica_accuracy mica_accuracy_of(const mica_op *op, const void *desc, mica_dtype type,
                                             bool tf32)
{
    mica_contract c;
    mica_op_contract(op, desc, &c);
    mica_accuracy a = {.unit = c.unit, .growth = mica_contract_phi(&c) / c.unit};
    a.rounding = mica_dtype_unit(type) / c.unit;
    a.operand = tf32 && type == MICA_F32 ? mica_dtype_unit(MICA_F16) / c.unit : 0;
    /* Steps of 8 terms and more are cut off, parts of the sum are then added up. */
    a.sums = a.rounding > 1 || a.operand > 0 ? fmax(a.growth, (double)c.n_seq / 4 + 46) : a.growth;
    const bool wide = c.unit < mica_dtype_unit(MICA_F32);
    a.most = wide ? DBL_MAX : (double)FLT_MAX;
    a.least = type == MICA_F16    ? 1
              : type == MICA_BF16 ? 0x1p-109
              : wide              ? DBL_MIN
                                  : (double)FLT_MIN;
    a.largest = type == MICA_F16 ? 65504 : a.most / 4;
    return a;
}

typedef struct mica_number_sum {
    long double v; /* terms may pass the end of double on the way */
    double size, linear, squares;
} mica_number_sum;

static inline mica_number mica_number_exact(double v)
{
    return (mica_number){v, 0};
}

/* Nothing is known of what follows from infinities. */
static inline double mica_number_known(double error)
{
    return isnan(error) ? (double)INFINITY : error;
}

/* As it is stored. */
static inline mica_number mica_number_rounded(const mica_accuracy *a, mica_number n)
{
    n.error += a->rounding * fabs(n.v) + a->least;
    if (!(fabs(n.v) + n.error * a->unit < a->largest)) n.error = (double)INFINITY;
    return n;
}

static inline mica_number mica_number_product(const mica_accuracy *a, mica_number x, mica_number y)
{
    const double v = x.v * y.v, both = x.error * y.error * a->unit;
    const double error = fabs(x.v) * y.error + x.error * fabs(y.v) + both + fabs(v);
    return (mica_number){v, fabs(v) < a->most / 4 ? mica_number_known(error) : (double)INFINITY};
}

static inline void mica_number_add(const mica_accuracy *a, mica_number_sum *s, mica_number x,
                                   mica_number y)
{
    const double ex = x.error + a->operand * fabs(x.v), ey = y.error + a->operand * fabs(y.v);
    const double e = mica_number_known(fabs(x.v) * ey + ex * fabs(y.v) + ex * ey * a->unit);
    s->v += (long double)x.v * (long double)y.v;
    s->size += fabs(x.v * y.v);
    s->linear += e;
    s->squares += e * e;
}

static inline mica_number mica_number_total(const mica_accuracy *a, const mica_number_sum *s)
{
    const double error = a->sums * s->size + fmin(s->linear, 4 * sqrt(s->squares));
    return (mica_number){(double)s->v, s->size < a->most / 4 ? error : (double)INFINITY};
}

static inline void mica_number_put(const mica_accuracy *a, const mica_view *v, int64_t offset,
                                   mica_number n)
{
    mica_put(v, offset, n.v, n.error / a->growth);
}

#endif
