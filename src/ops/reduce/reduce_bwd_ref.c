/* SPDX-License-Identifier: Apache-2.0
 * Gradients of reductions, the truth: each slice's numbers are found in long double, then each
 * element's gradient from them. Magnitudes: products', but where an element stands beside a mean,
 * which is off by units of what it is made of; exponentials as in softmax_ref.c. */
#include "ops/reduce/reduce_op.h"
#include "cpu/cpu.h"

#include <float.h>
#include <math.h>

typedef struct slice {
    const mica_reduce_desc *d;
    const mica_view *x, *dx;
    mica_tensor from, to; /* elements of a slice of x and dx: kept dimensions are of size 1 */
    int64_t at, to_at, n;
    double dy;
    /* Of all: sum, squares, product of what is not 0, and exponentials about the maximum. */
    long double sum, squares, product, exponentials;
    double best, magnitude, most, spread; /* best: as the kind has it */
    int64_t equal, zeros;
    long double norm; /* of order p */
} slice;

static double element(const slice *s, int64_t i)
{
    return mica_get(s->x, s->at + mica_offset(&s->from, i));
}

static bool same(double a, double b)
{
    return a == b || (isnan(a) && isnan(b));
}

/* What max, min and amax compare. */
static double compared(const slice *s, double v)
{
    if (s->d->kind == MICA_REDUCE_KIND_AMAX) return fabs(v);
    if (s->d->kind == MICA_REDUCE_KIND_NORM) return s->d->p > 0 ? fabs(v) : -fabs(v);
    return s->d->kind == MICA_REDUCE_KIND_MIN ? -v : v;
}

static double growth(int64_t n)
{
    return fmax(1, fmin((double)n, 4 * sqrt((double)n)));
}

static void look(slice *s)
{
    s->product = 1;
    s->best = -INFINITY;
    for (int64_t i = 0; i < s->n; i++) {
        const double v = element(s, i), c = compared(s, v);
        s->sum += (long double)v;
        s->magnitude += fabs(v);
        s->most = fmax(s->most, fabs(v));
        if (v == 0)
            s->zeros++;
        else
            s->product *= (long double)v;
        if (!isnan(s->best) && (isnan(c) || c > s->best)) s->best = c;
    }
    const long double mean = s->sum / (long double)s->n;
    const bool moments = s->d->kind == MICA_REDUCE_KIND_VAR || s->d->kind == MICA_REDUCE_KIND_STD;
    const double extreme = fabs(s->best), p = s->d->p;
    long double powers = 0;
    for (int64_t i = 0; i < s->n; i++) {
        const double v = element(s, i);
        const long double off = (long double)v - (moments ? mean : 0);
        const long double e = expl((long double)v - (long double)s->best);
        s->squares += off * off;
        s->exponentials += e;
        if (e > 0) s->spread += (double)e * fabs(v - s->best);
        s->equal += same(compared(s, v), s->best);
        powers += powl(fabsl((long double)v) / (long double)extreme, (long double)p);
    }
    const bool whole = extreme == 0 || isinf(extreme);
    s->norm =
        whole ? (long double)extreme : (long double)extreme * powl(powers, 1 / (long double)p);
    s->spread /= (double)s->exponentials;
}

static void put(const slice *s, int64_t i, long double v, double magnitude)
{
    mica_put(s->dx, s->to_at + mica_offset(&s->to, i), (double)v, magnitude);
}

/* Of norm2 and std: y as the forward pass has it in the type of sums, which matters where that is
 * subnormal or 0. */
static double as_summed(const slice *s, long double v, double squares)
{
    const mica_reduce_desc *d = s->d;
    const bool wide = d->x.dtype == MICA_F64 || d->dy.dtype == MICA_F64 || d->dx.dtype == MICA_F64;
    return wide && squares == 0 ? 0 : wide ? (double)v : (double)(float)v;
}

static double sign(double v)
{
    return v > 0 ? 1 : v < 0 ? -1 : v;
}

static void put_product(const slice *s, int64_t i, double v)
{
    const bool takes = s->zeros == 0 || (s->zeros == 1 && v == 0);
    const long double others = s->zeros ? s->product : s->product / (long double)v;
    const long double g = takes ? (long double)s->dy * others : 0;
    put(s, i, g, (double)fabsl(g));
}

static void put_share(const slice *s, int64_t i, double v)
{
    const double off = fabs(v - s->best);
    const double p = (double)(expl((long double)v - (long double)s->best) / s->exponentials);
    const double g = s->dy * p;
    put(s, i, g, p > 0 ? fabs(g) * (2 + (off + s->spread) / growth(s->n)) : 0);
}

static void put_moment(const slice *s, int64_t i, double v)
{
    const long double left = fmaxl((long double)s->n - (long double)s->d->correction, 0);
    const long double mean = s->sum / (long double)s->n, off = (long double)v - mean;
    const double error = fabs(v) + s->magnitude / (double)s->n;
    if (s->d->kind == MICA_REDUCE_KIND_VAR) {
        const long double share = 2 * (long double)s->dy / left;
        put(s, i, off * share, error * (double)fabsl(share));
        return;
    }
    const double deviation = as_summed(s, sqrtl(s->squares / left), 1);
    const long double share = (long double)s->dy / left / (long double)deviation;
    const long double g = deviation == 0 ? 0 : off * share;
    put(s, i, g,
        deviation == 0
            ? 0
            : error * (double)fabsl(share) + (double)fabsl(g) * (1 + 2 * s->most / deviation));
}

static void put_norm(const slice *s, int64_t i, double v)
{
    const double p = s->d->p, y = as_summed(s, s->norm, s->norm != 0);
    const double least = s->x->t.dtype == MICA_F64 ? DBL_MIN : (double)FLT_MIN; /* in roundoff */
    const double error = 11 + (10 + log((double)s->n)) / fabs(p) + least / y;
    if (p == 0) {
        put(s, i, 0, 0);
    } else if (isinf(p)) {
        const bool takes = same(compared(s, v), s->best);
        const double g = takes ? sign(v) * s->dy / (double)s->equal : 0;
        put(s, i, (long double)g, fabs(g));
    } else if (v == 0 || y == 0) {
        put(s, i, 0, 0);
    } else {
        const long double share =
            powl(fabsl((long double)v) / (long double)y, (long double)(p - 1));
        const long double g = (long double)sign(v) * share * (long double)s->dy;
        put(s, i, g,
            (double)fabsl(g) * (8 + fabs(p - 1) * error) + (1 + fabs(p)) * least * fabs(s->dy));
    }
}

static void put_gradient(const slice *s, int64_t i)
{
    const double v = element(s, i);
    const long double dy = (long double)s->dy, n = (long double)s->n;
    const double norm = as_summed(s, sqrtl(s->squares), (double)s->squares);
    long double g = dy;
    switch (s->d->kind) {
    case MICA_REDUCE_KIND_PROD:
        put_product(s, i, v);
        return;
    case MICA_REDUCE_KIND_LOGSUMEXP:
        put_share(s, i, v);
        return;
    case MICA_REDUCE_KIND_VAR:
    case MICA_REDUCE_KIND_STD:
        put_moment(s, i, v);
        return;
    case MICA_REDUCE_KIND_NORM:
        put_norm(s, i, v);
        return;
    case MICA_REDUCE_KIND_MEAN:
        g = dy / n;
        break;
    case MICA_REDUCE_KIND_MAX:
    case MICA_REDUCE_KIND_MIN:
        g = same(compared(s, v), s->best) ? dy / (long double)s->equal : 0;
        break;
    case MICA_REDUCE_KIND_AMAX:
        g = same(fabs(v), s->best) ? (long double)sign(v) * dy / (long double)s->equal : 0;
        break;
    case MICA_REDUCE_KIND_NORM1:
        g = (long double)sign(v) * dy;
        break;
    case MICA_REDUCE_KIND_NORM2:
        g = norm == 0 ? 0 : (long double)v * (dy / (long double)norm);
        break;
    default:
        break;
    }
    put(s, i, g, (double)fabsl(g));
}

void mica_reduce_bwd_reference(const mica_reduce_desc *d, const mica_view *args)
{
    const mica_view *x = &args[MICA_REDUCE_X], *dx = &args[MICA_REDUCE_DX];
    const mica_view *dy = &args[MICA_REDUCE_DY];
    const unsigned axes = mica_reduce_axes(d);
    mica_tensor kept = x->t, from = x->t, to = dx->t, to_kept = dx->t;
    for (int i = 0; i < kept.rank; i++) {
        const bool reduced = axes >> i & 1;
        *(reduced ? &kept.dims[i] : &from.dims[i]) = 1;
        *(reduced ? &to_kept.dims[i] : &to.dims[i]) = 1;
    }
    const int64_t count = mica_tensor_count(&kept), n = mica_tensor_count(&from);
    const mica_tensor of_dy = mica_reduce_of_slices(&dy->t, &kept, axes);
#pragma omp parallel for num_threads(mica_cpu_threads_for((double)count *(double)(n + 1) * 64))
    for (int64_t k = 0; k < count; k++) {
        slice s = {.d = d, .x = x, .dx = dx, .from = from, .to = to, .n = n};
        s.at = mica_offset(&kept, k), s.to_at = mica_offset(&to_kept, k);
        s.dy = mica_get(dy, mica_offset(&of_dy, k));
        look(&s);
        for (int64_t i = 0; i < n; i++) put_gradient(&s, i);
    }
}
