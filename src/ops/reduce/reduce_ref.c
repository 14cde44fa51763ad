/* SPDX-License-Identifier: Apache-2.0
 * Reductions, the truth: element by element in the order of the dimensions, floats in long double,
 * integers in 64 bits. Magnitudes: a sum's is that of its terms; what selects an element rounds
 * nothing but the result; a logarithm's is as in softmax_ref.c; deviations are off by a unit of
 * what they are differences of. */
#include "ops/reduce/reduce_op.h"
#include "cpu/cpu.h"

#include <math.h>
#include <string.h>

typedef struct slice {
    const mica_reduce_row *row;
    const mica_view *x;
    mica_tensor elements; /* of a slice: kept dimensions are of size 1 */
    int64_t at, n;
    double correction;
    bool integers;
} slice;

typedef struct result {
    double value, magnitude;
    int64_t whole; /* of integers, truths and counts */
} result;

static int64_t whole_at(const slice *s, int64_t i)
{
    const int64_t at = s->at + mica_offset(&s->elements, i);
    if (s->x->t.dtype == MICA_S64) return ((const int64_t *)s->x->data)[at];
    return (int64_t)mica_get(s->x, at);
}

/* Of an integer the opposite is its complement, which always exists. */
static int64_t whole_front(const slice *s, int64_t i)
{
    const int64_t v = whole_at(s, i);
    switch (s->row->front) {
    case REDUCE_ABS:
        return v < 0 ? (int64_t) - (uint64_t)v : v;
    case REDUCE_OPPOSITE:
        return ~v;
    case REDUCE_NONZERO:
        return v != 0;
    case REDUCE_IS_ZERO:
        return v == 0;
    default:
        return v;
    }
}

static double front(const slice *s, int64_t i)
{
    const double v = mica_get(s->x, s->at + mica_offset(&s->elements, i));
    switch (s->row->front) {
    case REDUCE_ABS:
        return fabs(v);
    case REDUCE_OPPOSITE:
        return -v;
    case REDUCE_NONZERO:
        return v != 0;
    case REDUCE_IS_ZERO:
        return v == 0;
    default:
        return v;
    }
}

static result of_integers(const slice *s)
{
    const int by = s->row->by;
    /* Unsigned: sums and products wrap around. */
    uint64_t sum = 0, product = 1;
    int64_t best = 0, place = 0;
    for (int64_t i = 0; i < s->n; i++) {
        const int64_t v = whole_front(s, i);
        sum += (uint64_t)v, product *= (uint64_t)v;
        if (i == 0 || v > best) best = v, place = i;
    }
    if (s->n == 0 && by == REDUCE_MAX)
        best = s->row->front == REDUCE_ABS || s->row->result == REDUCE_TRUTHS ? 0 : INT64_MIN;
    int64_t v = by == REDUCE_SUM       ? (int64_t)sum
                : by == REDUCE_PRODUCT ? (int64_t)product
                : by == REDUCE_ARG     ? place
                                       : best;
    if (s->row->behind == REDUCE_BACK) v = ~v;
    if (s->row->behind == REDUCE_NOT) v = !v;
    return (result){.whole = v};
}

static double growth(int64_t n)
{
    return fmax(1, fmin((double)n, 4 * sqrt((double)n)));
}

/* NaN wins. */
static result of_maximum(const slice *s)
{
    const bool none = s->row->front == REDUCE_ABS || s->row->result == REDUCE_TRUTHS;
    double best = none ? 0 : -INFINITY;
    int64_t place = 0;
    for (int64_t i = 0; i < s->n; i++) {
        const double v = front(s, i);
        if (isnan(best)) break;
        if (i == 0 || isnan(v) || v > best) best = v, place = i;
    }
    if (s->row->by == REDUCE_ARG) return (result){.whole = place};
    if (s->row->behind == REDUCE_BACK) best = -best;
    if (s->row->behind == REDUCE_NOT) best = best == 0;
    return (result){.value = best, .whole = best != 0};
}

static result of_exponentials(const slice *s)
{
    double max = -INFINITY, spread = 0;
    long double sum = 0;
    bool nan = false;
    for (int64_t i = 0; i < s->n; i++) {
        const double v = front(s, i);
        max = fmax(max, v);
        nan |= isnan(v) != 0;
    }
    if (nan) return (result){.value = NAN};
    if (isinf(max)) return (result){.value = max};
    for (int64_t i = 0; i < s->n; i++) {
        const double v = front(s, i) - max;
        const long double e = expl((long double)v);
        sum += e;
        if (e > 0) spread += (double)e * fabs(v);
    }
    const double log_sum = (double)logl(sum);
    spread /= (double)sum;
    return (result){.value = (double)((long double)max + logl(sum)),
                    .magnitude = 1 + (fabs(max) + log_sum + spread) / growth(s->n)};
}

static result of_moments(const slice *s)
{
    long double mean = 0, squares = 0;
    double most = 0;
    for (int64_t i = 0; i < s->n; i++) {
        const double v = front(s, i);
        mean += (long double)v / (long double)s->n;
        most = fmax(most, fabs(v));
    }
    for (int64_t i = 0; i < s->n; i++) {
        const long double v = (long double)front(s, i) - mean;
        squares += v * v;
    }
    const long double left = (long double)s->n - (long double)s->correction;
    const double variance = (double)(squares / (left > 0 ? left : 0));
    const double share = (double)((long double)s->n / (left > 0 ? left : 1)), root = sqrt(variance);
    /* Twice the deviation times what it is off by, and that squared where all are equal. */
    if (s->row->behind == REDUCE_VARIANCE)
        return (result){.value = variance,
                        .magnitude = variance + share * (2 * root * most + 0x1p-20 * most * most)};
    return (result){.value = root, .magnitude = root + 2 * sqrt(share) * most};
}

static result of_sum(const slice *s)
{
    const bool product = s->row->by == REDUCE_PRODUCT, squares = s->row->by == REDUCE_SQUARES;
    long double sum = product ? 1 : 0, magnitude = 0;
    for (int64_t i = 0; i < s->n; i++) {
        const long double v = (long double)front(s, i);
        if (product)
            sum *= v;
        else
            sum += squares ? v * v : v;
        magnitude += squares ? v * v : fabsl(v);
    }
    if (product) magnitude = fabsl(sum);
    if (s->row->behind == REDUCE_MEAN) sum /= (long double)s->n, magnitude /= (long double)s->n;
    if (s->row->behind == REDUCE_ROOT) sum = sqrtl(sum), magnitude = sum;
    if (s->row->result == REDUCE_COUNTS) return (result){.whole = (int64_t)sum};
    return (result){.value = (double)sum, .magnitude = (double)magnitude};
}

static result reduce(const slice *s)
{
    if (s->integers) return of_integers(s);
    switch (s->row->by) {
    case REDUCE_MAX:
    case REDUCE_ARG:
        return of_maximum(s);
    case REDUCE_EXP:
        return of_exponentials(s);
    case REDUCE_MOMENTS:
        return of_moments(s);
    default:
        return of_sum(s);
    }
}

void mica_reduce_reference(const void *desc, const mica_view *args, const double *scalars)
{
    const mica_reduce_desc *d = desc;
    const mica_view *x = &args[MICA_REDUCE_X], *y = &args[MICA_REDUCE_Y];
    const unsigned axes = mica_reduce_axes(d);
    const mica_reduce_row *row = mica_reduce_row_of(d);
    const bool integers = mica_dtype_is_integer(d->x.dtype);
    const bool whole = integers || row->result >= REDUCE_TRUTHS;
    mica_tensor kept = x->t, elements = x->t;
    (void)scalars;
    for (int i = 0; i < kept.rank; i++) *(axes >> i & 1 ? &kept.dims[i] : &elements.dims[i]) = 1;
    const int64_t count = mica_tensor_count(&kept), n = mica_tensor_count(&elements);
    const mica_tensor to = mica_reduce_of_slices(&y->t, &kept, axes);
#pragma omp parallel for num_threads(mica_cpu_threads_for((double)count *(double)(n + 1) * 8))
    for (int64_t i = 0; i < count; i++) {
        const slice s = {row, x, elements, mica_offset(&kept, i), n, d->correction, integers};
        const result r = reduce(&s);
        const int64_t at = mica_offset(&to, i);
        if (whole && y->t.dtype == MICA_S64 && !y->mag)
            ((int64_t *)y->data)[at] = r.whole;
        else
            mica_put(y, at, whole ? (double)r.whole : r.value, whole ? 0 : r.magnitude);
    }
}
