/* SPDX-License-Identifier: Apache-2.0
 * Pooling in plain loops over windows and taps. */
#include "ops/pool/pool.h"
#include "cpu/cpu.h"
#include "ops/convert/integer.h"

#include <math.h>

typedef struct job {
    const mica_pool_desc *d;
    const mica_view *x, *y, *indices;
    mica_pool_axis axes[3];
    long long x_strides[5], y_strides[5], i_strides[5];
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

static void forward(const job *j, int64_t i)
{
    place to = place_of(j, i, false), from = to;
    tally t = {.best = -INFINITY, .index = -1};
    int64_t first[3], taps[3];
    for (int a = 0; a < 3; a++) {
        first[a] = mica_pool_first(&j->axes[a], to.at[a]);
        taps[a] = mica_pool_taps(&j->axes[a], to.at[a]);
    }
    for (int64_t kd = 0; kd < taps[0]; kd++)
        for (int64_t kh = 0; kh < taps[1]; kh++)
            for (int64_t kw = 0; kw < taps[2]; kw++) {
                from.at[0] = first[0] + kd * j->axes[0].dilation;
                from.at[1] = first[1] + kh * j->axes[1].dilation;
                from.at[2] = first[2] + kw * j->axes[2].dilation;
                bool inside = true;
                for (int a = 0; a < 3; a++) inside &= from.at[a] >= 0 && from.at[a] < j->axes[a].x;
                if (inside) take(j, &from, &t);
            }
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

static bool has_tap(const mica_pool_axis *axis, int64_t window, int64_t element)
{
    int64_t from_first = element - mica_pool_first(axis, window);
    return from_first >= 0 && from_first % axis->dilation == 0 &&
           from_first / axis->dilation < mica_pool_taps(axis, window);
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

static void backward(const job *j, int64_t i)
{
    place to = place_of(j, i, true), from = to;
    double sum = 0, magnitude = 0;
    int64_t low[3], high[3];
    for (int a = 0; a < 3; a++) near_windows(&j->axes[a], to.at[a], &low[a], &high[a]);
    for (from.at[0] = low[0]; from.at[0] < high[0]; from.at[0]++)
        for (from.at[1] = low[1]; from.at[1] < high[1]; from.at[1]++)
            for (from.at[2] = low[2]; from.at[2] < high[2]; from.at[2]++) {
                bool taps = true;
                for (int a = 0; a < 3; a++) taps &= has_tap(&j->axes[a], from.at[a], to.at[a]);
                if (!taps) continue;
                double g = mica_get(j->y, offset_of(j->y_strides, &from));
                if (j->d->mode != MICA_POOL_MAX)
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
             .alpha = scalars[MICA_POOL_ALPHA],
             .beta = scalars[MICA_POOL_BETA]};
    mica_pool_axes(d, j.axes);
    mica_pool_strides(&j.x->t, j.x_strides);
    mica_pool_strides(&j.y->t, j.y_strides);
    if (j.indices->data) mica_pool_strides(&j.indices->t, j.i_strides);
    bool fwd = d->pass == MICA_POOL_FWD;
    int64_t count = mica_tensor_count(fwd ? &d->y : &d->x);
#pragma omp parallel for num_threads(mica_cpu_threads_for((double)count * 256)) schedule(static)
    for (int64_t i = 0; i < count; i++) {
        if (fwd)
            forward(&j, i);
        else
            backward(&j, i);
    }
}
