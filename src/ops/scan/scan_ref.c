/* SPDX-License-Identifier: Apache-2.0
 * Scans, the truth: element after element in the order of the scan, floats in long double, integers
 * in 64 bits; gradients by their definition. Magnitudes: a sum's is that of its terms; what selects
 * an element rounds nothing but the result; logarithms are as in reduce_ref.c. */
#include "ops/scan/scan.h"
#include "cpu/cpu.h"
#include "cpu/scratch.h"

#include <math.h>

typedef struct slice {
    const mica_scan_desc *d;
    const mica_view *args;
    int64_t offset[MICA_SCAN_DX + 1], along[MICA_SCAN_DX + 1];
    int64_t n;
} slice;

/* Where step k of the scan is: a position on the axis, and an element of argument `arg`. */
static int64_t position(const slice *s, int64_t k)
{
    return s->d->reverse ? s->n - 1 - k : k;
}

static int64_t place(const slice *s, int arg, int64_t k)
{
    return s->offset[arg] + position(s, k) * s->along[arg];
}

static double at(const slice *s, int arg, int64_t k)
{
    return mica_get(&s->args[arg], place(s, arg, k));
}

static int64_t whole_at(const slice *s, int arg, int64_t k)
{
    const mica_view *v = &s->args[arg];
    if (v->t.dtype == MICA_S64) return ((const int64_t *)v->data)[place(s, arg, k)];
    return (int64_t)mica_get(v, place(s, arg, k));
}

static void put(const slice *s, int arg, int64_t k, long double value, long double magnitude)
{
    mica_put(&s->args[arg], place(s, arg, k), (double)value, (double)magnitude);
}

static void put_whole(const slice *s, int arg, int64_t k, int64_t value)
{
    const mica_view *v = &s->args[arg];
    if (v->t.dtype == MICA_S64 && !v->mag)
        ((int64_t *)v->data)[place(s, arg, k)] = value;
    else
        mica_put(v, place(s, arg, k), (double)value, 0);
}

/* Whether a segment begins with step k: of those of a reverse scan flags are at the ends. */
static bool begins(const slice *s, int64_t k)
{
    if (k == 0 || !s->args[MICA_SCAN_FLAGS].data) return k == 0;
    return at(s, MICA_SCAN_FLAGS, s->d->reverse ? k - 1 : k) != 0;
}

static int64_t end_of_segment(const slice *s, int64_t k)
{
    do k++;
    while (k < s->n && !begins(s, k));
    return k;
}

/* ---- forward ---- */

static void scan_integers(const slice *s)
{
    const mica_scan_kind kind = s->d->kind;
    const bool sums = kind == MICA_SCAN_KIND_SUM || kind == MICA_SCAN_KIND_PROD;
    const int64_t lowest = kind == MICA_SCAN_KIND_MAX ? INT64_MIN : INT64_MAX;
    const uint64_t none = sums ? kind == MICA_SCAN_KIND_PROD : (uint64_t)lowest;
    uint64_t run = none;
    int64_t index = -1;
    for (int64_t k = 0; k < s->n; k++) {
        if (begins(s, k)) run = none, index = -1;
        const uint64_t before = run;
        const int64_t index_before = index, v = whole_at(s, MICA_SCAN_X, k), best = (int64_t)run;
        if (kind == MICA_SCAN_KIND_SUM) run += (uint64_t)v;
        if (kind == MICA_SCAN_KIND_PROD) run *= (uint64_t)v;
        if (!sums && (kind == MICA_SCAN_KIND_MAX ? v >= best : v <= best))
            run = (uint64_t)v, index = position(s, k);
        const int64_t shown = (int64_t)(s->d->exclusive ? before : run);
        put_whole(s, MICA_SCAN_Y, k, sums ? mica_scan_wrapped(s->d->y.dtype, shown) : shown);
        if (s->args[MICA_SCAN_INDEX].data)
            put_whole(s, MICA_SCAN_INDEX, k, s->d->exclusive ? index_before : index);
    }
}

static void scan_sums(const slice *s)
{
    const bool product = s->d->kind == MICA_SCAN_KIND_PROD;
    long double run = 0, magnitude = 0;
    for (int64_t k = 0; k < s->n; k++) {
        if (begins(s, k)) run = product, magnitude = 0;
        if (s->d->exclusive) put(s, MICA_SCAN_Y, k, run, product ? fabsl(run) : magnitude);
        const long double v = (long double)at(s, MICA_SCAN_X, k);
        run = product ? run * v : run + v;
        magnitude += fabsl(v);
        if (!s->d->exclusive) put(s, MICA_SCAN_Y, k, run, product ? fabsl(run) : magnitude);
    }
}

static void put_extreme(const slice *s, int64_t k, double best, int64_t index)
{
    put(s, MICA_SCAN_Y, k, (long double)best, 0);
    if (s->args[MICA_SCAN_INDEX].data) put_whole(s, MICA_SCAN_INDEX, k, index);
}

static void scan_extremes(const slice *s)
{
    const bool min = s->d->kind == MICA_SCAN_KIND_MIN;
    const double none = min ? (double)INFINITY : -(double)INFINITY;
    double best = none;
    int64_t index = -1;
    for (int64_t k = 0; k < s->n; k++) {
        if (begins(s, k)) best = none, index = -1;
        if (s->d->exclusive) put_extreme(s, k, best, index);
        const double v = at(s, MICA_SCAN_X, k);
        if (isnan(v) || (!isnan(best) && (min ? v <= best : v >= best)))
            best = v, index = position(s, k);
        if (!s->d->exclusive) put_extreme(s, k, best, index);
    }
}

static double growth(int64_t n)
{
    return fmax(1, fmin((double)n, 4 * sqrt((double)n)));
}

/* The sum of exponentials about the maximum so far, and of their distances from it. */
typedef struct exponentials {
    double max;
    long double sum, spread;
    bool nan;
} exponentials;

static void add_exponential(exponentials *e, double v)
{
    if (isnan(v)) e->nan = true;
    if (v > e->max) {
        const long double apart = (long double)v - (long double)e->max;
        const long double less = isinf(e->max) || isinf(v) ? 0 : expl(-apart);
        e->spread = less > 0 ? less * (e->spread + apart * e->sum) : 0;
        e->sum *= less;
        e->max = v;
    }
    if (isnan(v) || isinf(v)) return;
    const long double apart = (long double)e->max - (long double)v;
    e->sum += expl(-apart);
    if (!isinf(e->max)) e->spread += expl(-apart) * apart;
}

static void put_log(const slice *s, int64_t k, const exponentials *e)
{
    if (e->nan || isinf(e->max)) {
        put(s, MICA_SCAN_Y, k, e->nan ? (long double)NAN : (long double)e->max, 0);
        return;
    }
    const long double log_sum = logl(e->sum), spread = e->spread / e->sum;
    put(s, MICA_SCAN_Y, k, (long double)e->max + log_sum,
        1 + (fabsl((long double)e->max) + log_sum + spread) / (long double)growth(s->n));
}

static void scan_exponentials(const slice *s)
{
    const exponentials none = {.max = -(double)INFINITY};
    exponentials e = none;
    for (int64_t k = 0; k < s->n; k++) {
        if (begins(s, k)) e = none;
        if (s->d->exclusive) put_log(s, k, &e);
        add_exponential(&e, at(s, MICA_SCAN_X, k));
        if (!s->d->exclusive) put_log(s, k, &e);
    }
}

/* ---- gradients: of a segment of steps [from, to) ---- */

static void sum_slopes(const slice *s, int64_t from, int64_t to)
{
    long double run = 0, magnitude = 0;
    for (int64_t k = to - 1; k >= from; k--) {
        const long double v = (long double)at(s, MICA_SCAN_DY, k);
        if (s->d->exclusive) put(s, MICA_SCAN_DX, k, run, magnitude);
        run += v, magnitude += fabsl(v);
        if (!s->d->exclusive) put(s, MICA_SCAN_DX, k, run, magnitude);
    }
}

enum { BLOCK = 1024 };

/* before[i]: the product of what is before step block + i. */
static void products_before(const slice *s, int64_t from, int64_t block, int64_t end,
                            long double *before)
{
    long double run = 1;
    for (int64_t k = from; k < end; k++) {
        if (k >= block) before[k - block] = run;
        run *= (long double)at(s, MICA_SCAN_X, k);
    }
}

/* dx[j] = sum over i of dy[i] and all x up to i (of exclusive: before it) but x[j]. */
static void product_slopes(const slice *s, int64_t from, int64_t to)
{
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    long double *before = mica_scratch_take(BLOCK * sizeof *before);
    long double later = 0, magnitude = 0; /* sum of dy[i] and all x behind j up to i */
    for (int64_t block = from + (to - 1 - from) / BLOCK * BLOCK, end = to; block >= from;
         end = block, block -= BLOCK) {
        products_before(s, from, block, end, before);
        for (int64_t k = end - 1; k >= block; k--) {
            const long double v = (long double)at(s, MICA_SCAN_DY, k);
            const long double x = (long double)at(s, MICA_SCAN_X, k), b = before[k - block];
            if (!s->d->exclusive) later += v, magnitude += fabsl(v);
            put(s, MICA_SCAN_DX, k, b * later, fabsl(b) * magnitude);
            later *= x, magnitude *= fabsl(x);
            if (s->d->exclusive) later += v, magnitude += fabsl(v);
        }
    }
}

/* dx[j] = sum over i of dy[i] exp(x[j] - y[i]): about the least y. */
static void log_slopes(const slice *s, int64_t from, int64_t to)
{
    long double sum = 0, magnitude = 0, spread = 0;
    double least = (double)INFINITY;
    for (int64_t k = to - 1, next = to - 1; k >= from; k--) {
        const double x = at(s, MICA_SCAN_X, k);
        for (; next >= k + s->d->exclusive; next--) {
            const double y = at(s, MICA_SCAN_Y, next);
            const long double v = (long double)at(s, MICA_SCAN_DY, next);
            if (isnan(y)) sum = (long double)NAN;
            if (isnan(y) || isinf(y)) continue;
            if (y < least) {
                const long double apart = (long double)least - (long double)y;
                const long double less = isinf(least) ? 0 : expl(-apart);
                spread = less > 0 ? less * (spread + apart * magnitude) : 0;
                sum *= less, magnitude *= less;
                least = y;
            }
            const long double apart = (long double)y - (long double)least, e = expl(-apart);
            sum += v * e, magnitude += fabsl(v) * e, spread += fabsl(v) * e * apart;
        }
        const bool none = isinf(least);
        const long double e = none ? (x < (double)INFINITY ? 0 : (long double)NAN)
                                   : expl((long double)x - (long double)least);
        const long double far = none ? 0 : fabsl((long double)x - (long double)least);
        put(s, MICA_SCAN_DX, k, sum * e, e * (magnitude * (1 + far) + spread));
    }
}

/* Each dy to where the index points to. */
static void scatter(const slice *s)
{
    for (int64_t k = 0; k < s->n; k++) put(s, MICA_SCAN_DX, k, 0, 0);
    long double run = 0, magnitude = 0;
    for (int64_t k = s->n - 1; k >= 0; k--) {
        const int64_t to = whole_at(s, MICA_SCAN_INDEX, k);
        const long double v = (long double)at(s, MICA_SCAN_DY, k);
        run += v, magnitude += fabsl(v);
        if (k > 0 && whole_at(s, MICA_SCAN_INDEX, k - 1) == to) continue;
        if (to >= 0 && to < s->n) {
            const int64_t there = s->offset[MICA_SCAN_DX] + to * s->along[MICA_SCAN_DX];
            mica_put(&s->args[MICA_SCAN_DX], there, (double)run, (double)magnitude);
        }
        run = 0, magnitude = 0;
    }
}

/* ---- all slices ---- */

static void do_slice(const slice *s)
{
    const mica_scan_kind kind = s->d->kind;
    const bool extreme = kind == MICA_SCAN_KIND_MAX || kind == MICA_SCAN_KIND_MIN;
    if (s->d->pass == MICA_SCAN_FWD) {
        if (mica_dtype_is_integer(s->d->x.dtype))
            scan_integers(s);
        else if (extreme)
            scan_extremes(s);
        else if (kind == MICA_SCAN_KIND_LOGSUMEXP)
            scan_exponentials(s);
        else
            scan_sums(s);
        return;
    }
    if (extreme) {
        scatter(s);
        return;
    }
    for (int64_t from = 0, to; from < s->n; from = to) {
        to = end_of_segment(s, from);
        if (kind == MICA_SCAN_KIND_PROD)
            product_slopes(s, from, to);
        else if (kind == MICA_SCAN_KIND_LOGSUMEXP)
            log_slopes(s, from, to);
        else
            sum_slopes(s, from, to);
    }
}

void mica_scan_reference(const void *desc, const mica_view *args, const double *scalars)
{
    const mica_scan_desc *d = desc;
    const mica_tensor *t = d->pass == MICA_SCAN_FWD ? &d->x : &d->dy;
    const int64_t n = t->dims[d->axis], count = n > 0 ? mica_tensor_count(t) / n : 0;
    (void)scalars;
#pragma omp parallel for num_threads(mica_cpu_threads_for((double)count *(double)n * 8))
    for (int64_t i = 0; i < count; i++) {
        slice s = {.d = d, .args = args, .n = n};
        for (int a = 0; a <= MICA_SCAN_DX; a++) {
            if (!args[a].data) continue;
            mica_tensor first = args[a].t;
            s.along[a] = first.strides[d->axis];
            first.dims[d->axis] = 1;
            s.offset[a] = mica_offset(&first, i);
        }
        do_slice(&s);
    }
}
