/* SPDX-License-Identifier: Apache-2.0
 * Pooling in plain loops over windows and taps. */
#include "ops/pool/pool.h"
#include "cpu/cpu.h"
#include "ops/convert/integer.h"

#include <math.h>

typedef struct job {
    const mica_pool_desc *d;
    const mica_view *x, *y, *indices, *input, *output, *samples;
    mica_pool_axis axes[3];
    long long x_strides[5], y_strides[5], i_strides[5], input_strides[5], output_strides[5];
    double alpha, beta;
} job;

typedef struct place {
    int64_t n, c, at[3];
} place;

static place place_of(const job *j, int64_t i, bool in_x)
{
    place p;
    for (int a = 2; a >= 0; a--) {
        int64_t size = in_x ? j->axes[a].x : j->axes[a].y;
        p.at[a] = i % size;
        i /= size;
    }
    p.c = i % j->d->x.dims[1];
    p.n = i / j->d->x.dims[1];
    return p;
}

static int64_t offset_of(const long long *strides, const place *p)
{
    return p->n * strides[0] + p->c * strides[1] + p->at[0] * strides[2] + p->at[1] * strides[3] +
           p->at[2] * strides[4];
}

/* First tap of window o in the plane of p. */
static int64_t first_of(const job *j, const place *p, int a, int64_t o)
{
    if (!j->samples->data) return mica_pool_first(&j->axes[a], o);
    const mica_tensor *t = &j->samples->t;
    const int i = a - (5 - j->d->x.rank);
    const bool wide = j->d->samples.dtype == MICA_F64;
    if (i < 0) return 0;
    const double sample =
        mica_get(j->samples, p->n * t->strides[0] + p->c * t->strides[1] + i * t->strides[2]);
    const mica_pool_steps s =
        mica_pool_steps_of(&j->axes[a], mica_pool_step(&j->axes[a], wide), sample, wide);
    return mica_pool_start(&s, o);
}

static int64_t index_of(const job *j, const place *p)
{
    return (p->at[0] * j->axes[1].x + p->at[1]) * j->axes[2].x + p->at[2];
}

static void put(const job *j, const mica_view *out, int64_t offset, double v, double magnitude)
{
    double old = j->beta != 0 ? mica_get(out, offset) : 0;
    double r = j->alpha == 1 && j->beta == 0 ? v
               : j->beta == 0                ? j->alpha * v
                                             : fma(j->alpha, v, j->beta * old);
    mica_put(out, offset, mica_round_integer(j->d->x.dtype, r),
             fabs(j->alpha) * magnitude + fabs(j->beta * old));
}

/* The divisor of an average: how many taps of the window count, or what was given. */
static double divisor(const job *j, const place *window)
{
    double n = 1;
    bool padding_counts = j->d->mode == MICA_POOL_AVG;
    if (j->d->divisor) return (double)j->d->divisor;
    for (int a = 0; a < 3; a++) {
        const mica_pool_axis *axis = &j->axes[a];
        int64_t at = mica_pool_first(axis, window->at[a]);
        int64_t end = padding_counts ? axis->end : axis->x, count = 0;
        for (int64_t k = mica_pool_taps(axis, window->at[a]); k > 0; k--, at += axis->dilation)
            count += at < end && (at >= 0 || padding_counts);
        n *= (double)count;
    }
    return n;
}

typedef struct tally {
    double best, sum, magnitude;
    long double powers;
    int64_t index; /* of best; -1: no element yet */
} tally;

static void take(const job *j, const place *from, tally *t)
{
    double v = mica_get(j->x, offset_of(j->x_strides, from));
    t->sum += v;
    t->magnitude += fabs(v);
    /* Equal values leave the first winner; the first NaN beats everything. */
    if (t->index < 0 || v > t->best || (v != v && t->best == t->best)) {
        t->best = v;
        t->index = index_of(j, from);
    }
}

/* What a walk over a window's elements finds. */
typedef enum walk { WALK_POOL, WALK_LARGEST, WALK_POWERS } walk;

/* The largest |x|, NaN if there is one; then powers of multiples of it. */
static void take_power(const job *j, const place *from, walk what, tally *t)
{
    double v = mica_get(j->x, offset_of(j->x_strides, from)), size = fabs(v);
    if (what == WALK_LARGEST) {
        if (!(size <= t->best) && t->best == t->best) t->best = size;
        return;
    }
    t->powers += powl((long double)(j->d->signed_powers ? v : size) / t->best, j->d->p);
    t->magnitude += pow(size / t->best, j->d->p);
}

static void visit(const job *j, const place *to, walk what, tally *t)
{
    place from = *to;
    int64_t first[3], taps[3];
    for (int a = 0; a < 3; a++) {
        first[a] = first_of(j, to, a, to->at[a]);
        taps[a] = mica_pool_taps(&j->axes[a], to->at[a]);
    }
    for (int64_t kd = 0; kd < taps[0]; kd++)
        for (int64_t kh = 0; kh < taps[1]; kh++)
            for (int64_t kw = 0; kw < taps[2]; kw++) {
                from.at[0] = first[0] + kd * j->axes[0].dilation;
                from.at[1] = first[1] + kh * j->axes[1].dilation;
                from.at[2] = first[2] + kw * j->axes[2].dilation;
                bool inside = true;
                for (int a = 0; a < 3; a++) inside &= from.at[a] >= 0 && from.at[a] < j->axes[a].x;
                if (!inside) continue;
                if (what == WALK_POOL)
                    take(j, &from, t);
                else
                    take_power(j, &from, what, t);
            }
}

static void norm(const job *j, int64_t i)
{
    place to = place_of(j, i, false);
    tally t = {.best = 0, .index = -1};
    visit(j, &to, WALK_LARGEST, &t);
    double v = t.best, magnitude = t.best;
    if (t.best > 0 && (isfinite(t.best) || j->d->signed_powers)) {
        /* A power of two near the largest leaves powers of integers exact, so that those that
         * cancel do. */
        int exponent;
        if (isinf(t.best))
            t.best = 1;
        else if (j->d->p <= 64)
            t.best = (frexp(t.best, &exponent), ldexp(1, exponent - 1));
        visit(j, &to, WALK_POWERS, &t);
        const long double sum = t.powers * mica_pool_rescale(j->d, j->axes, to.at);
        v = (double)(t.best * powl(sum, 1 / (long double)j->d->p));
        /* of powers that cancel more is lost */
        const double lost = t.powers == 0 ? 1 : t.magnitude / (double)fabsl(t.powers);
        magnitude = j->d->p == 1 ? t.best * t.magnitude : fabs(v) * fmax(lost, 1);
    }
    put(j, j->y, offset_of(j->y_strides, &to), v, magnitude);
}

static void forward(const job *j, int64_t i)
{
    place to = place_of(j, i, false);
    tally t = {.best = -INFINITY, .index = -1};
    visit(j, &to, WALK_POOL, &t);
    int64_t at = offset_of(j->y_strides, &to);
    if (j->d->mode == MICA_POOL_MAX) {
        put(j, j->y, at, t.best, fabs(t.best));
        if (j->indices->data)
            mica_put(j->indices, offset_of(j->i_strides, &to), (double)t.index, 0);
        return;
    }
    double n = divisor(j, &to);
    put(j, j->y, at, n > 0 ? t.sum / n : 0, n > 0 ? t.magnitude / n : 0);
}

static bool has_tap(const job *j, int a, const place *window, const place *element)
{
    const mica_pool_axis *axis = &j->axes[a];
    int64_t from_first = element->at[a] - first_of(j, element, a, window->at[a]);
    return from_first >= 0 && from_first % axis->dilation == 0 &&
           from_first / axis->dilation < mica_pool_taps(axis, window->at[a]);
}

/* A generous range of windows around an element: has_tap decides. */
static void near_windows(const mica_pool_axis *axis, int64_t element, int64_t *from, int64_t *to)
{
    int64_t span = (axis->window - 1) * axis->dilation + 1;
    int64_t low = axis->adaptive ? element * axis->y / axis->x - 1
                                 : (element + axis->pad - span) / axis->stride - 1;
    int64_t high = axis->adaptive ? (element + 1) * axis->y / axis->x + 1
                                  : (element + axis->pad) / axis->stride + 1;
    *from = low > 0 ? low : 0;
    *to = high < axis->y ? high + 1 : axis->y;
}

/* dy / dx of a norm, from x and y. */
static double slope(const job *j, const place *element, const place *window)
{
    const double p = j->d->p, by = mica_pool_rescale(j->d, j->axes, window->at);
    const double x = mica_get(j->input, offset_of(j->input_strides, element));
    const double y = mica_get(j->output, offset_of(j->output_strides, window));
    if (j->d->signed_powers) return p == 1 ? by : y == 0 ? 0 : by * pow(x / y, p - 1);
    if (x == 0 || y == 0) return 0;
    if (x != x) return x;
    return copysign(by * pow(fabs(x) / y, p - 1), x);
}

static void backward(const job *j, int64_t i)
{
    place to = place_of(j, i, true), from = to;
    double sum = 0, magnitude = 0;
    int64_t low[3], high[3];
    for (int a = 0; a < 3; a++) {
        near_windows(&j->axes[a], to.at[a], &low[a], &high[a]);
        if (j->samples->data) low[a] = 0, high[a] = j->axes[a].y;
    }
    for (from.at[0] = low[0]; from.at[0] < high[0]; from.at[0]++)
        for (from.at[1] = low[1]; from.at[1] < high[1]; from.at[1]++)
            for (from.at[2] = low[2]; from.at[2] < high[2]; from.at[2]++) {
                bool taps = true;
                for (int a = 0; a < 3; a++) taps &= has_tap(j, a, &from, &to);
                if (!taps) continue;
                double g = mica_get(j->y, offset_of(j->y_strides, &from));
                if (j->d->mode == MICA_POOL_LP)
                    g *= slope(j, &to, &from);
                else if (j->d->mode != MICA_POOL_MAX)
                    g /= divisor(j, &from);
                else if (mica_get(j->indices, offset_of(j->i_strides, &from)) !=
                         (double)index_of(j, &to))
                    continue;
                sum += g;
                magnitude += fabs(g);
            }
    put(j, j->x, offset_of(j->x_strides, &to), sum, magnitude);
}

void mica_pool_reference(const void *desc, const mica_view *args, const double *scalars)
{
    const mica_pool_desc *d = desc;
    job j = {.d = d,
             .x = &args[MICA_POOL_X],
             .y = &args[MICA_POOL_Y],
             .indices = &args[MICA_POOL_INDICES],
             .input = &args[MICA_POOL_INPUT],
             .output = &args[MICA_POOL_OUTPUT],
             .samples = &args[MICA_POOL_SAMPLES],
             .alpha = scalars[MICA_POOL_ALPHA],
             .beta = scalars[MICA_POOL_BETA]};
    mica_pool_axes(d, j.axes);
    mica_pool_strides(&j.x->t, j.x_strides);
    mica_pool_strides(&j.y->t, j.y_strides);
    if (j.indices->data) mica_pool_strides(&j.indices->t, j.i_strides);
    if (j.input->data) mica_pool_strides(&j.input->t, j.input_strides);
    if (j.output->data) mica_pool_strides(&j.output->t, j.output_strides);
    bool fwd = d->pass == MICA_POOL_FWD;
    int64_t count = mica_tensor_count(fwd ? &d->y : &d->x);
#pragma omp parallel for num_threads(mica_cpu_threads_for((double)count * 256)) schedule(static)
    for (int64_t i = 0; i < count; i++) {
        if (fwd && d->mode == MICA_POOL_LP)
            norm(&j, i);
        else if (fwd)
            forward(&j, i);
        else
            backward(&j, i);
    }
}
