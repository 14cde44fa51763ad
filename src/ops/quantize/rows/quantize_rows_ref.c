/* SPDX-License-Identifier: Apache-2.0
 * The truth of quantize_rows, row by row in double precision. Quotients are handed on as they are,
 * with what a unit of relative rounding anywhere before them could move them by: the result's type
 * rounds them. */
#include "ops/quantize/rows/quantize_rows.h"
#include "cpu/cpu.h"
#include "cpu/scratch.h"

#include <math.h>

typedef struct number {
    double value, mag;
} number;

typedef struct truth {
    const mica_quantize_rows_desc *d;
    const mica_view *views;
    quantize_rows_sizes s;
    int64_t across; /* columns of x */
    double phi;     /* of a sum over a row */
} truth;

static const double least = 0x1p-125; /* stands for the underflow of a product */

static double get(const truth *t, int arg, int64_t i, double absent)
{
    const mica_view *v = &t->views[arg];
    return v->data ? mica_get(v, mica_offset(&v->t, i)) : absent;
}

static void put(const truth *t, int arg, int64_t i, number n)
{
    const mica_view *v = &t->views[arg];
    if (v->data) mica_put(v, mica_offset(&v->t, i), n.value, n.mag);
}

/* ---- what is in front ---- */

static void activated(const truth *t, int64_t row, number *v)
{
    const mica_quantize_rows_desc *d = t->d;
    for (int64_t c = 0; c < t->s.columns; c++) {
        const int64_t at = row * t->across + c;
        const double u = get(t, MICA_QUANTIZE_ROWS_X, at, 0),
                     gate = d->gated ? get(t, MICA_QUANTIZE_ROWS_X, at + t->s.columns, 0) : 1;
        const double size = fmax(mica_act_value_size(d->act, u, d->act_a, d->act_b), least);
        v[c].value = mica_act_value(d->act, u, d->act_a, d->act_b) * gate;
        v[c].mag = size * fabs(gate);
    }
}

typedef struct moments {
    number mean, rstd;
} moments;

static moments moments_of(const truth *t, const number *u)
{
    const int64_t n = t->s.columns;
    number mean = {0, 0};
    double squares = 0, moved = 0;
    for (int64_t c = 0; c < n && t->d->norm == MICA_QUANTIZE_ROWS_LAYER; c++)
        mean.value += u[c].value / (double)n, mean.mag += u[c].mag / (double)n;
    for (int64_t c = 0; c < n; c++) {
        const double deviation = u[c].value - mean.value;
        squares += deviation * deviation;
        moved += 2 * fabs(deviation) * u[c].mag;
    }
    const double var = squares / (double)n, sum = var + t->d->eps;
    const double var_mag = 3 * var + t->phi * mean.mag * mean.mag + moved / (double)n;
    const double rstd = 1 / sqrt(sum) + (sum - sum);
    return (moments){mean, {rstd, rstd * (4 + 0.5 * var_mag / sum)}};
}

static void normalised(const truth *t, int64_t row, number *v)
{
    for (int64_t c = 0; c < t->s.columns; c++) {
        const int64_t at = row * t->across + c;
        const double x = get(t, MICA_QUANTIZE_ROWS_X, at, 0),
                     r = get(t, MICA_QUANTIZE_ROWS_RESIDUAL, at, 0);
        v[c] = (number){x + r, fabs(x) + fabs(r) + least};
    }
    const moments m = moments_of(t, v);
    for (int64_t c = 0; c < t->s.columns; c++) {
        const double w = get(t, MICA_QUANTIZE_ROWS_WEIGHT, c, 1),
                     b = get(t, MICA_QUANTIZE_ROWS_BIAS, c, 0),
                     deviation = v[c].value - m.mean.value;
        put(t, MICA_QUANTIZE_ROWS_SUM, row * t->across + c, v[c]);
        const double mag = m.rstd.value * (v[c].mag + m.mean.mag) + fabs(deviation) * m.rstd.mag;
        v[c].value = w * deviation * m.rstd.value + b;
        v[c].mag = fabs(w) * mag + fabs(b) + least * (1 + fabs(w));
    }
}

/* ---- codes ---- */

static bool is_float(mica_dtype d)
{
    return d == MICA_E4M3 || d == MICA_E5M2;
}

static double top_of(mica_dtype d)
{
    return d == MICA_E4M3 ? 448 : d == MICA_E5M2 ? 57344 : d == MICA_U8 ? 255 : 127;
}

/* As quantize rounds it, so that where v is exact codes are, too. */
static double rounded(double v)
{
    return (double)(float)v;
}

/* Of one group of v. */
static number scale_of(const truth *t, const number *v, int64_t n)
{
    const double top = top_of(t->d->y.dtype);
    number a = {0, 0};
    for (int64_t i = 0; i < n; i++) {
        if (isnan(v[i].value)) return (number){NAN, 0};
        a.value = fmax(a.value, fabs(v[i].value));
        a.mag = fmax(a.mag, v[i].mag);
    }
    return (number){rounded(rounded(a.value) / top), (a.value + a.mag) / top + least};
}

static number code_of(const truth *t, number v, number scale)
{
    const mica_dtype type = t->d->y.dtype;
    const double top = top_of(type), low = type == MICA_U8 ? 0 : type == MICA_S8 ? -128 : -top;
    const double x = rounded(v.value);
    double q = x == 0 && scale.value == 0 ? 0 : rounded(x / scale.value);
    if (isnan(q)) return (number){is_float(type) ? q : 0, 0};
    q = fmin(fmax(q, low), top);
    if (scale.value == 0 || isinf(scale.value)) return (number){q, 0};
    const double s = fabs(scale.value);
    return (number){q, v.mag / s + fabs(q) * (1 + scale.mag / s)};
}

static void row_of(const truth *t, int64_t row, number *v)
{
    const quantize_rows_sizes *s = &t->s;
    if (t->d->norm)
        normalised(t, row, v);
    else
        activated(t, row, v);
    for (int64_t g = 0; g < s->groups; g++) {
        const int64_t first = g * s->group, left = s->columns - first;
        const int64_t n = left < s->group ? left : s->group;
        const int64_t at = row * s->groups + g;
        number scale;
        if (t->d->pass == MICA_QUANTIZE_ROWS_AMAX) {
            scale = scale_of(t, v + first, n);
            put(t, MICA_QUANTIZE_ROWS_SCALE, at, scale);
        } else {
            scale.value = get(t, MICA_QUANTIZE_ROWS_SCALE, s->one_scale ? 0 : at, 1);
            scale.mag = 0;
        }
        for (int64_t i = 0; i < n; i++)
            put(t, MICA_QUANTIZE_ROWS_Y, row * s->columns + first + i,
                code_of(t, v[first + i], scale));
    }
}

void mica_quantize_rows_reference(const void *desc, const mica_view *views, const double *scalars)
{
    truth t = {.d = desc, .views = views};
    (void)scalars;
    t.s = mica_quantize_rows_sizes(desc);
    if (t.s.rows == 0 || t.s.columns == 0) return;
    t.across = t.d->gated ? 2 * t.s.columns : t.s.columns;
    const double n = (double)t.s.columns;
    t.phi = mica_dtype_unit(MICA_F32) * fmin(n, 4 * sqrt(n));
#pragma omp parallel num_threads(mica_cpu_threads_for(64 * (double)(t.s.rows * t.across)))
    {
        mica_scratch scope MICA_SCOPED = mica_scratch_open();
        number *v = mica_scratch_take((size_t)t.s.columns * sizeof *v);
#pragma omp for schedule(static)
        for (int64_t row = 0; row < t.s.rows; row++) row_of(&t, row, v);
    }
}
