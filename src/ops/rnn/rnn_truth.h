/* SPDX-License-Identifier: Apache-2.0
 * Numbers with errors, for the truth of recurrent nets.
 *
 * Errors are counted in units of the accumulator (2^-24, of f64 2^-53) and go from step to step:
 * what a product takes was rounded to the type of x, a function passes on the error of its argument
 * by its largest slope nearby. Those of a sum's terms are independent, so that of n of them
 * 4 sqrt(n) times their size is left, n at most. The tolerance multiplies magnitudes by the growth
 * of the longest sum: they are errors divided by it. */
#ifndef MICA_OPS_RNN_RNN_TRUTH_H
#define MICA_OPS_RNN_RNN_TRUTH_H

#include "ops/rnn/rnn.h"

#include <float.h>
#include <math.h>

/* A number that an engine has with an error. */
typedef struct number {
    double v, error;
} number;

typedef struct truth {
    const mica_rnn_desc *d;
    const mica_view *v;
    rnn_sizes s;
    double unit, growth;
    double sums;     /* error of a sum by its size, where tensor cores truncate more than growth */
    double rounding; /* of a number of the problem's type, in units */
    double operand;  /* what tf32 loses of a number when it is multiplied */
    double least;   /* what rounding subnormal numbers of the problem's type costs, in units of 1 */
    double tiny;    /* and those of the accumulator's */
    double most;    /* the end of the accumulator\'s type */
    double largest; /* of the type of x */
    double beta;
    double low, high; /* bounds of what is clipped, as the accumulator holds them */
    number *in, *out; /* of a layer: steps x batch x sides x hidden */
} truth;

typedef struct sum {
    long double v; /* terms may pass the end of double on the way */
    double size, linear, squares;
} sum;

/* Nothing is known of the sum of which a term passes the end of the accumulator's type, nor of what
 * follows from it. */
static inline double known(double error)
{
    return isnan(error) ? (double)INFINITY : error;
}

static inline number exactly(double v)
{
    return (number){v, 0};
}

/* What an engine has passed the end of the accumulator's type with is no number any more. */
static inline number within(const truth *t, number n)
{
    if (!(fabs(n.v) < t->most / 4)) n.error = (double)INFINITY;
    return n;
}

static inline number add(const truth *t, number a, number b)
{
    const double v = a.v + b.v;
    return within(t, (number){v, a.error + b.error + fabs(v)});
}

static inline number multiply(const truth *t, number a, number b)
{
    const double v = a.v * b.v, both = a.error * b.error * t->unit;
    return within(t, (number){v, known(fabs(a.v) * b.error + a.error * fabs(b.v) + both + fabs(v)) +
                                     t->tiny});
}

/* As it is stored for a product. */
static inline number rounded(const truth *t, number n)
{
    n.error += t->rounding * fabs(n.v) + t->least;
    if (!(fabs(n.v) + n.error * t->unit < t->largest)) n.error = (double)INFINITY;
    return n;
}

static inline void add_product(const truth *t, sum *s, number a, number b)
{
    const double ea = a.error + t->operand * fabs(a.v), eb = b.error + t->operand * fabs(b.v);
    const double e = known(fabs(a.v) * eb + ea * fabs(b.v) + ea * eb * t->unit);
    s->v += (long double)a.v * (long double)b.v;
    s->size += fabs(a.v * b.v);
    s->linear += e;
    s->squares += e * e;
}

static inline number total(const truth *t, const sum *s)
{
    const double error = t->sums * s->size + fmin(s->linear, 4 * sqrt(s->squares));
    double v = (double)s->v;
    if (isinf(v) && !isinf(s->v)) v = copysign(DBL_MAX, v);
    return (number){v, s->size < t->most / 4 ? error : (double)INFINITY};
}

static inline void show(const truth *t, int arg, int64_t offset, number n)
{
    mica_put(&t->v[arg], offset, n.v, n.error / t->growth);
}

/* y of a layer, stored, as the next layer takes it, or its gradient. at: step x sequence x i. */
number rnn_dropped(const truth *t, int64_t layer, int64_t at, number n);
truth rnn_truth_of(const mica_rnn_desc *d, const mica_view *v);
void rnn_reference_slopes(truth *t);
void rnn_reference_weights(truth *t);

/* Zeroed memory of the caller's scratch, or where that is small of its own, which goes to `owned`.
 * Without any the results become NaN and NULL is returned: a reference has no other way to say so.
 */
number *rnn_take(const truth *t, int64_t count, number **owned);

#endif
