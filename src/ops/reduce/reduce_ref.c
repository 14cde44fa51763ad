/* SPDX-License-Identifier: Apache-2.0
 * Reductions, the truth: element by element in the order of the dimensions, floats in long double,
 * integers in 64 bits. Magnitudes: a sum's is that of its terms; what selects an element rounds
 * nothing but the result; a logarithm's is as in softmax_ref.c; deviations are off by a unit of
 * what they are differences of. */
#include "ops/reduce/reduce_op.h"
#include "ops/reduce/map.h"
#include "ops/pointwise/pointwise.h"
#include "cpu/cpu.h"
#include "cpu/scratch.h"

#include <math.h>
#include <string.h>

/* Inputs of a map: those that are not given have no type. */
typedef struct mapped {
    const mica_expr_program *program;
    const mica_view *args;
    mica_tensor kept[MICA_EXPR_X], elements[MICA_EXPR_X];
} mapped;

/* What values of a map are off by, in units of roundoff. */
typedef struct errors {
    double sum, most, relative;
} errors;

typedef struct slice {
    const mica_reduce_row *row;
    const mica_view *x;
    mica_tensor elements; /* of a slice: kept dimensions are of size 1 */
    int64_t at, n;
    double correction;
    bool integers;
    const mapped *map; /* NULL: elements are x's own */
    int64_t index;     /* among slices */
    errors *errors;
    bool norm; /* of order p */
    double p;
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

static double mapped_value(const slice *s, int64_t i)
{
    double v[MICA_POINTWISE_OPERANDS] = {0}, mag[MICA_POINTWISE_OPERANDS] = {0};
    for (int k = 0; k < MICA_EXPR_X; k++)
        if (mica_tensor_given(&s->map->kept[k]))
            v[k] = mica_get(&s->map->args[mica_reduce_map_arg(k)],
                            mica_offset(&s->map->kept[k], s->index) +
                                mica_offset(&s->map->elements[k], i));
    mica_expr_truth(s->map->program, NULL, v, mag);
    const double value = v[REDUCE_MAP_RESULT], error = mag[REDUCE_MAP_RESULT];
    s->errors->sum += error;
    s->errors->most = fmax(s->errors->most, error);
    if (error > 0) s->errors->relative += error / fabs(value);
    return value;
}

static double front(const slice *s, int64_t i)
{
    const double v =
        s->map ? mapped_value(s, i) : mica_get(s->x, s->at + mica_offset(&s->elements, i));
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

/* What errors of the values do to the result; those of terms meet like those of additions. */
static double carried(const slice *s, const result *r)
{
    const errors *e = s->errors;
    const double n = (double)s->n, several = growth(s->n);
    switch (s->row->by) {
    case REDUCE_SUM:
        return e->sum / (s->row->result == REDUCE_COUNTS ? 1 : several) /
               (s->row->behind == REDUCE_MEAN ? n : 1);
    case REDUCE_SQUARES:
        return e->most * sqrt(n) / several;
    case REDUCE_PRODUCT:
        return e->relative > 0 ? fabs(r->value) * e->relative / several : 0;
    case REDUCE_MOMENTS:
        return 4 * e->most * (s->row->behind == REDUCE_VARIANCE ? sqrt(r->value) : 1);
    default:
        return e->most;
    }
}

/* By shares of the extreme magnitude; what a power is off by, a root multiplies. */
static result of_norm(const slice *s)
{
    double most = 0, least = INFINITY;
    int64_t count = 0;
    bool nan = false;
    for (int64_t i = 0; i < s->n; i++) {
        const double v = front(s, i);
        most = fmax(most, v), least = fmin(least, v);
        nan |= isnan(v) != 0;
        count += v != 0;
    }
    if (s->p == 0) return (result){.value = (double)count, .magnitude = (double)count};
    if (nan) return (result){.value = NAN};
    const double extreme = s->p > 0 ? most : least;
    if (isinf(s->p) || extreme == 0 || isinf(extreme)) return (result){.value = extreme};
    long double sum = 0;
    for (int64_t i = 0; i < s->n; i++)
        sum += powl((long double)front(s, i) / (long double)extreme, (long double)s->p);
    const double y = (double)((long double)extreme * powl(sum, 1 / (long double)s->p));
    return (result){.value = y, .magnitude = y * (10 + (10 + log((double)s->n)) / fabs(s->p))};
}

static result reduce(const slice *s)
{
    if (s->integers) return of_integers(s);
    if (s->norm) return of_norm(s);
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

/* The views may be packed copies: their own strides hold. */
static void make_inputs(const mica_reduce_desc *d, mapped *map, unsigned axes)
{
    mica_reduce_desc viewed = *d;
    for (int k = 0; k < MICA_EXPR_X; k++) {
        const int arg = mica_reduce_map_arg(k);
        if (!mica_reduce_map_input(d, k)) continue;
        memcpy((char *)&viewed + mica_op_reduce.args[arg].tensor, &map->args[arg].t,
               sizeof(mica_tensor));
        map->kept[k] = map->elements[k] = mica_reduce_map_expanded(&viewed, k);
        for (int i = 0; i < d->x.rank; i++)
            *(axes >> i & 1 ? &map->kept[k].dims[i] : &map->elements[k].dims[i]) = 1;
    }
}

void mica_reduce_reference(const void *desc, const mica_view *args, const double *scalars)
{
    const mica_reduce_desc *d = desc;
    const mica_view *x = &args[MICA_REDUCE_X], *y = &args[MICA_REDUCE_Y];
    const unsigned axes = mica_reduce_axes(d);
    const mica_reduce_row *row = mica_reduce_row_of(d);
    const bool integers = mica_reduce_of_integers(d);
    const bool whole = integers || row->result >= REDUCE_TRUTHS;
    mica_tensor kept = x->t, elements = x->t;
    (void)scalars;
    if (d->pass == MICA_REDUCE_BWD) {
        mica_reduce_bwd_reference(d, args);
        return;
    }
    for (int i = 0; i < kept.rank; i++) *(axes >> i & 1 ? &kept.dims[i] : &elements.dims[i]) = 1;
    const int64_t count = mica_tensor_count(&kept), n = mica_tensor_count(&elements);
    const mica_tensor to = mica_reduce_of_slices(&y->t, &kept, axes);
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    mica_expr_program *program = mica_scratch_take(sizeof *program);
    mapped map = {.program = program, .args = args};
    if (mica_reduce_is_mapped(d)) {
        mica_reduce_map_program(d, program);
        make_inputs(d, &map, axes);
    }
#pragma omp parallel for num_threads(mica_cpu_threads_for((double)count *(double)(n + 1) * 8))
    for (int64_t i = 0; i < count; i++) {
        errors e = {0};
        const slice s = {row,
                         x,
                         elements,
                         mica_offset(&kept, i),
                         n,
                         d->correction,
                         integers,
                         mica_reduce_is_mapped(d) ? &map : NULL,
                         i,
                         &e,
                         d->kind == MICA_REDUCE_KIND_NORM,
                         d->p};
        result r = reduce(&s);
        if (s.map) r.magnitude += carried(&s, &r);
        const int64_t at = mica_offset(&to, i);
        if (whole && y->t.dtype == MICA_S64 && !y->mag)
            ((int64_t *)y->data)[at] = r.whole;
        else
            mica_put(y, at, whole ? (double)r.whole : r.value, whole && !s.map ? 0 : r.magnitude);
    }
}
