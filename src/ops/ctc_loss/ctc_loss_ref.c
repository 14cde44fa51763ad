/* SPDX-License-Identifier: Apache-2.0
 * CTC, the truth: logarithms in long double, the whole of both tables. Magnitudes: a step's error
 * is relative, so that of a logarithm is absolute; of logits each step also carries a rounding of
 * its logarithm of a sum. */
#include "ops/ctc_loss/ctc_loss.h"
#include "cpu/cpu.h"

#include <math.h>
#include <stdlib.h>

typedef long double real;

/* A sequence. Its states: 2 i is the blank before label i, 2 i + 1 that label. */
typedef struct sequence {
    const mica_ctc_loss_desc *d;
    const mica_view *args;
    mica_ctc_loss_sizes sizes;
    int64_t b, steps, count, first, states;
    bool bad;
    double rounding; /* what a step's logarithm may be off by, in units of its last place */
    real *lse;
} sequence;

static int64_t element(const mica_view *v, int64_t i)
{
    return (int64_t)mica_get(v, i * v->t.strides[0]);
}

static real label_of(const sequence *s, int64_t i)
{
    const mica_view *v = &s->args[MICA_CTC_LOSS_LABELS];
    if (!s->sizes.padded) return mica_get(v, (s->first + i) * v->t.strides[0]);
    return mica_get(v, s->b * v->t.strides[0] + i * v->t.strides[1]);
}

static double x_at(const sequence *s, int64_t t, int64_t c)
{
    const mica_view *x = &s->args[MICA_CTC_LOSS_X];
    const int64_t *by = x->t.strides;
    return mica_get(x, t * by[0] + s->b * by[1] + c * by[2]);
}

static real log_prob(const sequence *s, int64_t t, int64_t c)
{
    return (real)x_at(s, t, c) - (s->lse ? s->lse[t] : 0);
}

static int64_t class_of(const sequence *s, int64_t state)
{
    return state % 2 ? (int64_t)label_of(s, state / 2) : s->d->blank;
}

static real lse_of(const sequence *s, int64_t t)
{
    real max = -(real)INFINITY, sum = 0;
    for (int64_t c = 0; c < s->sizes.classes; c++) {
        const real v = x_at(s, t, c);
        if (v != v) return v;
        if (v > max) max = v;
    }
    if (max - max != 0) return max;
    for (int64_t c = 0; c < s->sizes.classes; c++) sum += expl((real)x_at(s, t, c) - max);
    return max + logl(sum);
}

static void find_lengths(sequence *s, int64_t first)
{
    const mica_view *inputs = &s->args[MICA_CTC_LOSS_INPUT_LENGTHS];
    s->steps = inputs->data ? element(inputs, s->b) : s->sizes.steps;
    s->count = element(&s->args[MICA_CTC_LOSS_LABEL_LENGTHS], s->b);
    s->first = first;
    s->bad = s->steps < 0 || s->steps > s->sizes.steps || s->count < 0 || s->count > s->sizes.most;
    if (!s->sizes.padded)
        s->bad =
            s->bad || first < 0 || first > s->sizes.labels || s->count > s->sizes.labels - first;
    for (int64_t i = 0; !s->bad && i < s->count; i++) {
        const int64_t label = (int64_t)label_of(s, i);
        s->bad = label < 0 || label >= s->sizes.classes || label == s->d->blank;
    }
    if (s->bad) s->count = s->steps = 0;
    s->states = 2 * s->count + 1;
}

/* ---- tables ---- */

/* Of probability 0 nothing comes, whatever it is multiplied with. */
static real times(real a, real b)
{
    const real none = -(real)INFINITY;
    return a == none || b == none ? none : a + b;
}

static real plus(real a, real b)
{
    if (a != a || b != b) return a + b;
    const real top = a > b ? a : b, low = a > b ? b : a;
    if (top - top != 0 || low == -(real)INFINITY) return top;
    return top + log1pl(expl(low - top));
}

/* What state k is reached from, or reaches, of a step's states `by` apart. */
static real reached(const sequence *s, const real *from, int64_t k, int64_t by)
{
    const int64_t last = s->states - 1;
    real sum = from[k];
    if (k + by >= 0 && k + by <= last) sum = plus(sum, from[k + by]);
    if (k % 2 == 0 || k + 2 * by < 0 || k + 2 * by > last) return sum;
    return class_of(s, k) == class_of(s, k + 2 * by) ? sum : plus(sum, from[k + 2 * by]);
}

/* alpha[t]: all that says the states up to k, step t included. beta[t]: what comes behind, without
 * it. */
static void fill_tables(const sequence *s, real *alpha, real *beta)
{
    const int64_t n = s->states;
    real *with = &beta[s->steps * n];
    for (int64_t t = 0; t < s->steps; t++)
        for (int64_t k = 0; k < n; k++) {
            real before = k < 2 ? 0 : -(real)INFINITY;
            if (t > 0) before = reached(s, &alpha[(t - 1) * n], k, -1);
            alpha[t * n + k] = times(before, log_prob(s, t, class_of(s, k)));
        }
    for (int64_t t = s->steps - 1; t >= 0; t--) {
        real *row = &beta[t * n];
        for (int64_t k = 0; k < n; k++)
            row[k] = t < s->steps - 1 ? reached(s, with, k, 1) : k >= n - 2 ? 0 : -(real)INFINITY;
        for (int64_t k = 0; k < n; k++) with[k] = times(row[k], log_prob(s, t, class_of(s, k)));
    }
}

/* The logarithm of all alignments' probability. */
static real total_of(const sequence *s, const real *alpha, const real *beta)
{
    if (s->steps == 0) return s->count == 0 ? 0 : -(real)INFINITY;
    real sum = -(real)INFINITY;
    for (int64_t k = 0; k < s->states; k++) sum = plus(sum, times(alpha[k], beta[k]));
    return sum;
}

/* ---- a sequence ---- */

static void write_loss(const sequence *s, real total, double *loss, double *magnitude)
{
    *loss = s->bad ? NAN : -(double)total;
    *magnitude = fabs(*loss) + 1 + s->rounding;
    if (s->bad || total != -(real)INFINITY || !s->d->zero_infinity) return;
    *loss = 0, *magnitude = 0;
}

static void put_row(const sequence *s, int64_t t, double g, real total, const real *share)
{
    const mica_view *dx = &s->args[MICA_CTC_LOSS_DX];
    const bool none = total == -(real)INFINITY, inside = t < s->steps;
    const bool nan = s->bad || (inside && (total != total || (none && !s->d->zero_infinity)));
    for (int64_t c = 0; c < s->sizes.classes; c++) {
        const int64_t *by = dx->t.strides, to = t * by[0] + s->b * by[1] + c * by[2];
        if (nan || !inside || none) {
            mica_put(dx, to, nan ? NAN : 0, 0);
            continue;
        }
        const real l = log_prob(s, t, c);
        const real p = s->d->gradient == MICA_CTC_LOSS_BY_LOGITS ? expl(l) : 0;
        const double off = 1 + s->rounding, own = p > 0 ? (double)fabsl(l) : 0;
        mica_put(dx, to, (double)((real)g * (p - share[c])),
                 fabs(g) * ((double)p * (off + own) + (double)share[c] * off));
    }
}

static void write_gradient(const sequence *s, double g, real total, const real *alpha,
                           const real *beta)
{
    real *share = malloc((size_t)s->sizes.classes * sizeof *share);
    for (int64_t t = 0; share && t < s->sizes.steps; t++) {
        for (int64_t c = 0; c < s->sizes.classes; c++) share[c] = 0;
        const bool some = !s->bad && t < s->steps && total != -(real)INFINITY;
        for (int64_t k = 0; some && k < s->states; k++) {
            const real both = times(alpha[t * s->states + k], beta[t * s->states + k]);
            share[class_of(s, k)] += both == -(real)INFINITY ? 0 : expl(both - total);
        }
        put_row(s, t, g, total, share);
    }
    free(share);
}

static double gradient_of(const sequence *s)
{
    const mica_view *dloss = &s->args[MICA_CTC_LOSS_DLOSS];
    if (s->d->reduction == MICA_REDUCE_NONE) return mica_get(dloss, s->b * dloss->t.strides[0]);
    const double g = mica_get(dloss, 0);
    if (s->d->reduction == MICA_REDUCE_SUM) return g;
    return g / (double)s->sizes.batch / (s->count > 1 ? (double)s->count : 1);
}

static void do_sequence(sequence *s, double *loss, double *magnitude)
{
    const int64_t n = s->bad ? 0 : s->states * s->steps;
    real *alpha = malloc((size_t)(2 * n + s->states + s->sizes.steps + 1) * sizeof *alpha);
    if (!alpha) return;
    real *beta = alpha + n, *lse = beta + n + (s->bad ? 0 : s->states), total = NAN;
    s->lse = s->d->input == MICA_CTC_LOSS_LOGITS ? lse : NULL;
    for (int64_t t = 0; s->lse && !s->bad && t < s->steps; t++) {
        lse[t] = lse_of(s, t);
        if (fabsl(lse[t]) < INFINITY && (double)fabsl(lse[t]) > s->rounding)
            s->rounding = (double)fabsl(lse[t]);
    }
    if (!s->bad) {
        fill_tables(s, alpha, beta);
        total = total_of(s, alpha, beta);
    }
    if (s->d->pass == MICA_CTC_LOSS_FWD)
        write_loss(s, total, loss, magnitude);
    else
        write_gradient(s, gradient_of(s), total, alpha, beta);
    free(alpha);
}

/* ---- all of them ---- */

static int64_t within(int64_t n, int64_t most)
{
    return n < 0 ? 0 : n > most ? most : n;
}

static void write_sum(const mica_ctc_loss_desc *d, const mica_view *args, const double *losses,
                      const double *magnitudes)
{
    const mica_view *loss = &args[MICA_CTC_LOSS_LOSS];
    const bool mean = d->reduction == MICA_REDUCE_MEAN;
    const int64_t batch = d->x.dims[1];
    long double sum = 0, magnitude = 0;
    for (int64_t b = 0; b < batch; b++) {
        int64_t count = mean ? element(&args[MICA_CTC_LOSS_LABEL_LENGTHS], b) : 1;
        if (count < 1) count = 1;
        sum += (long double)losses[b] / (long double)count;
        magnitude += (long double)magnitudes[b] / (long double)count;
    }
    const long double by = mean ? (long double)batch : 1;
    mica_put(loss, 0, (double)(sum / by), (double)(magnitude / by));
}

void mica_ctc_loss_reference(const void *desc, const mica_view *args, const double *scalars)
{
    const mica_ctc_loss_desc *d = desc;
    const mica_ctc_loss_sizes sizes = mica_ctc_loss_sizes_of(d);
    double *losses = calloc(2 * (size_t)sizes.batch + 1, sizeof *losses);
    int64_t *first = calloc((size_t)sizes.batch + 1, sizeof *first);
    const mica_view *lengths = &args[MICA_CTC_LOSS_LABEL_LENGTHS];
    (void)scalars;
    if (losses && first) {
        for (int64_t b = 0; b < sizes.batch; b++)
            first[b + 1] = first[b] + within(element(lengths, b), sizes.labels);
#pragma omp parallel for num_threads(mica_cpu_threads()) schedule(dynamic)
        for (int64_t b = 0; b < sizes.batch; b++) {
            sequence s = {.d = d, .args = args, .sizes = sizes, .b = b};
            find_lengths(&s, first[b]);
            do_sequence(&s, &losses[b], &losses[sizes.batch + b]);
            const mica_view *loss = &args[MICA_CTC_LOSS_LOSS];
            if (d->pass == MICA_CTC_LOSS_FWD && d->reduction == MICA_REDUCE_NONE)
                mica_put(loss, b * loss->t.strides[0], losses[b], losses[sizes.batch + b]);
        }
        if (d->pass == MICA_CTC_LOSS_FWD && d->reduction != MICA_REDUCE_NONE)
            write_sum(d, args, losses, losses + sizes.batch);
    }
    free(losses);
    free(first);
}
