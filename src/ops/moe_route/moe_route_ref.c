/* SPDX-License-Identifier: Apache-2.0
 * Routing, the truth. Which experts are chosen is decided by scores as engines round them
 * (moe_route_body.h); weights, losses and gradients are formed in long double. Magnitudes as in
 * softmax_ref.c: the error of an exponential grows with its distance from the maximum, which the
 * growth of the sum is divided out of. */
#include "ops/moe_route/moe_route.h"
#include "ops/moe_route/moe_route_body.h"
#include "cpu/scratch.h"

#include <float.h>
#include <math.h>

typedef struct token {
    const mica_moe_route_desc *d;
    const mica_view *v;
    int64_t at, experts;
    double x[MOE_ROUTE_EXPERTS];
    double key[MOE_ROUTE_EXPERTS]; /* what experts are compared by; out[]: not to be chosen */
    bool out[MOE_ROUTE_EXPERTS];
    int64_t chosen[MOE_ROUTE_SLOTS]; /* -1: none */
    /* The softmax of all, or with renormalise of the chosen. */
    long double max, sum;
    double spread, by; /* by: 1 / growth of the sum */
} token;

static double growth(int64_t n)
{
    return fmax(1, fmin((double)n, 4 * sqrt((double)n)));
}

/* ---- the choice ---- */

/* Whether a comes before b in an order where NaN is the largest. */
static bool is_larger(double a, double b)
{
    return isnan(a) ? !isnan(b) : a > b;
}

static double added(const token *t, double a, double b)
{
    return moe_route_is_wide(t->d) ? add64(a, b) : (double)add32((float)a, (float)b);
}

static void find_softmax_scores(token *t, double max)
{
    unsigned long long sum = 0;
    const bool wide = moe_route_is_wide(t->d);
    for (int64_t e = 0; e < t->experts; e++) {
        const double v = added(t, t->x[e], -max);
        t->key[e] = !isfinite(max) ? NAN : wide ? route_exp64(v) : (double)route_exp32((float)v);
        if (isfinite(max)) sum += wide ? route_fixed64(t->key[e]) : route_fixed32((float)t->key[e]);
    }
    for (int64_t e = 0; e < t->experts; e++)
        t->key[e] =
            wide ? t->key[e] / route_sum64(sum) : (double)((float)t->key[e] / route_sum32(sum));
}

static void find_keys(token *t)
{
    const mica_view *bias = &t->v[MICA_MOE_ROUTE_BIAS];
    double max = -INFINITY;
    for (int64_t e = 0; e < t->experts; e++) {
        t->key[e] = t->x[e];
        t->out[e] = false;
        if (is_larger(t->x[e], max)) max = t->x[e];
    }
    if (!moe_route_by_score(t->d)) return;
    if (t->d->score == MICA_MOE_ROUTE_SOFTMAX) find_softmax_scores(t, max);
    for (int64_t e = 0; e < t->experts; e++) {
        float rest32;
        double rest64;
        if (t->d->score == MICA_MOE_ROUTE_SIGMOID)
            t->key[e] = moe_route_is_wide(t->d) ? route_sigmoid64(t->x[e], &rest64)
                                                : (double)route_sigmoid32((float)t->x[e], &rest32);
        if (bias->data) t->key[e] = added(t, t->key[e], mica_get(bias, e * bias->t.strides[0]));
    }
}

static int64_t take_best(const double *key, bool *out, int64_t n)
{
    int64_t best = -1;
    for (int64_t i = 0; i < n; i++)
        if (!out[i] && (best < 0 || is_larger(key[i], key[best]))) best = i;
    out[best] = true;
    return best;
}

static void limit_groups(token *t)
{
    const int64_t groups = t->d->groups, size = t->experts / groups;
    double worth[MOE_ROUTE_GROUPS];
    bool out[MOE_ROUTE_GROUPS] = {false};
    for (int64_t g = 0; g < groups; g++) {
        const double *key = t->key + g * size;
        bool taken[MOE_ROUTE_EXPERTS] = {false};
        worth[g] = key[take_best(key, taken, size)];
        if (t->d->group_score == MICA_MOE_ROUTE_SUM2)
            worth[g] = added(t, worth[g], key[take_best(key, taken, size)]);
    }
    for (int64_t i = 0; i < t->d->topk_groups; i++) take_best(worth, out, groups);
    for (int64_t e = 0; e < t->experts; e++) t->out[e] = !out[e / size];
}

static void choose(token *t)
{
    find_keys(t);
    if (moe_route_limits_groups(t->d)) limit_groups(t);
    for (int64_t j = 0; j < t->d->k; j++) t->chosen[j] = take_best(t->key, t->out, t->experts);
}

/* ---- the softmax ---- */

static void add_spread(token *t, double x)
{
    const long double v = (long double)x - t->max, e = expl(v);
    t->sum += e;
    if (e > 0) t->spread += (double)(e * fabsl(v));
}

static void find_softmax(token *t, bool of_chosen)
{
    const int64_t n = of_chosen ? t->d->k : t->experts;
    bool nan = false;
    t->max = -INFINITY, t->sum = 0, t->spread = 0;
    for (int64_t i = 0; i < n; i++) {
        const int64_t e = of_chosen ? t->chosen[i] : i;
        if (e < 0) continue;
        nan |= isnan(t->x[e]) != 0;
        if (t->x[e] > (double)t->max) t->max = t->x[e];
    }
    if (nan || isinf(t->max)) t->max = NAN;
    for (int64_t i = 0; i < n; i++)
        if (!of_chosen || t->chosen[i] >= 0) add_spread(t, t->x[of_chosen ? t->chosen[i] : i]);
    t->spread /= (double)t->sum;
    t->by = 1 / growth(t->experts);
}

static long double probability(const token *t, int64_t e)
{
    return expl((long double)t->x[e] - t->max) / t->sum;
}

/* What it may be off by, in units. */
static double off(const token *t, int64_t e)
{
    const double v = fabs(t->x[e] - (double)t->max);
    return 1 + ((isfinite(v) ? v : 0) + t->spread) * t->by;
}

/* A logarithm's of the softmax of all. */
static long double lse(const token *t)
{
    return t->max + logl(t->sum);
}
static double lse_off(const token *t)
{
    return 1 + (double)(fabsl(t->max) + logl(t->sum) + (long double)t->spread) * t->by;
}

static long double sigmoid(double x)
{
    return x < 0 ? expl(x) / (1 + expl(x)) : 1 / (1 + expl(-(long double)x));
}

/* ---- passes ---- */

static int64_t index_at(const mica_view *indices, int64_t row, int64_t slot)
{
    return (
        (const int32_t *)indices->data)[row * indices->t.strides[0] + slot * indices->t.strides[1]];
}

static void load(token *t, const mica_moe_route_desc *d, const mica_view *v, int64_t row)
{
    const mica_view *x = &v[MICA_MOE_ROUTE_LOGITS];
    t->d = d, t->v = v, t->experts = x->t.dims[1];
    for (int64_t e = 0; e < t->experts; e++)
        t->x[e] = mica_get(x, row * x->t.strides[0] + e * x->t.strides[1]);
}

static void put_weights(token *t, int64_t row)
{
    const mica_moe_route_desc *d = t->d;
    const mica_view *w = &t->v[MICA_MOE_ROUTE_WEIGHTS];
    const double least = moe_route_is_wide(d) ? DBL_MIN : FLT_MIN;
    long double sum = (long double)ROUTE_LEAST;
    const bool softmax = d->score == MICA_MOE_ROUTE_SOFTMAX;
    if (softmax) find_softmax(t, d->renormalise);
    for (int64_t j = 0; !softmax && j < d->k; j++) sum += sigmoid(t->x[t->chosen[j]]);
    for (int64_t j = 0; j < d->k; j++) {
        const int64_t e = t->chosen[j];
        const long double by = d->renormalise && !softmax ? d->scale / sum : d->scale;
        const double v = (double)(by * (softmax ? probability(t, e) : sigmoid(t->x[e])));
        const double units = softmax ? off(t, e) : 1;
        mica_put(w, row * w->t.strides[0] + j * w->t.strides[1], v,
                 fabs(v) * units + fabs((double)by) * least);
    }
}

typedef struct losses {
    long double p[MOE_ROUTE_EXPERTS], z;
    double p_mag[MOE_ROUTE_EXPERTS], z_mag;
    int64_t counts[MOE_ROUTE_EXPERTS];
} losses;

static void add_losses(losses *l, token *t)
{
    const mica_moe_route_desc *d = t->d;
    for (int64_t j = 0; j < d->k; j++) l->counts[t->chosen[j]]++;
    if (!moe_route_needs_softmax(d)) return;
    find_softmax(t, false);
    for (int64_t e = 0; e < t->experts; e++) {
        const long double p = probability(t, e);
        l->p[e] += p;
        l->p_mag[e] += (double)p * off(t, e);
    }
    l->z += lse(t) * lse(t);
    l->z_mag += 2 * fabs((double)lse(t)) * lse_off(t) + (double)(lse(t) * lse(t));
}

static void put_losses(const losses *l, const mica_moe_route_desc *d, const mica_view *v)
{
    const mica_view *counts = &v[MICA_MOE_ROUTE_COUNTS];
    const double tokens = (double)d->logits.dims[0], experts = (double)d->logits.dims[1];
    long double aux = 0;
    double mag = 0;
    for (int64_t e = 0; e < d->logits.dims[1]; e++) {
        aux += (long double)l->counts[e] * l->p[e];
        mag += (double)l->counts[e] * l->p_mag[e];
        if (counts->data) mica_put(counts, e * counts->t.strides[0], (double)l->counts[e], 0);
    }
    const long double by = experts / tokens / tokens;
    if (v[MICA_MOE_ROUTE_AUX].data)
        mica_put(&v[MICA_MOE_ROUTE_AUX], 0, tokens > 0 ? (double)(by * aux) : NAN,
                 tokens > 0 ? (double)by * mag : 0);
    if (v[MICA_MOE_ROUTE_Z].data)
        mica_put(&v[MICA_MOE_ROUTE_Z], 0, tokens > 0 ? (double)l->z / tokens : NAN,
                 tokens > 0 ? l->z_mag / tokens : 0);
}

static void forward(const mica_moe_route_desc *d, const mica_view *v)
{
    const mica_view *indices = &v[MICA_MOE_ROUTE_INDICES];
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    losses *l = mica_scratch_zeroed(sizeof *l);
    token *t = mica_scratch_take(sizeof *t);
    for (int64_t row = 0; row < d->logits.dims[0]; row++) {
        load(t, d, v, row);
        choose(t);
        for (int64_t j = 0; j < d->k; j++)
            mica_put(indices, row * indices->t.strides[0] + j * indices->t.strides[1],
                     (double)t->chosen[j], 0);
        put_weights(t, row);
        if (moe_route_sums(d)) add_losses(l, t);
    }
    put_losses(l, d, v);
}

/* Gradients of logits by way of the weights: each slot's own, and with a softmax of all the part
 * that every expert has. */
static void weight_gradients(token *t, const double *dw, long double *dx, double *mag)
{
    const mica_moe_route_desc *d = t->d;
    const bool softmax = d->score == MICA_MOE_ROUTE_SOFTMAX, all = softmax && !d->renormalise;
    long double s[MOE_ROUTE_SLOTS], sum = (long double)ROUTE_LEAST, dot = 0;
    double size = 0;
    if (softmax) find_softmax(t, d->renormalise);
    for (int64_t j = 0; j < d->k; j++) {
        const int64_t e = t->chosen[j];
        s[j] = e < 0 ? 0 : softmax ? probability(t, e) : sigmoid(t->x[e]);
        sum += s[j];
        if (e < 0) continue;
        dot += s[j] * (long double)dw[j];
        size += (double)s[j] * fabs(dw[j]) * (softmax ? off(t, e) : 1);
    }
    if (softmax)
        sum = 1;
    else if (!d->renormalise)
        sum = 1, dot = 0, size = 0;
    for (int64_t j = 0; j < d->k; j++) {
        const int64_t e = t->chosen[j];
        if (e < 0) continue;
        const long double slope = softmax ? s[j] : s[j] * sigmoid(-t->x[e]);
        const long double inner = all ? 0 : dot / sum;
        dx[e] += d->scale * slope / sum * ((long double)dw[j] - inner);
        mag[e] += fabs(d->scale * (double)(slope / sum)) *
                      (fabs(dw[j]) + (all ? 0 : size / (double)sum)) * (softmax ? off(t, e) : 1) +
                  (moe_route_is_wide(d) ? DBL_MIN : FLT_MIN) * fabs(dw[j] * d->scale) / (double)sum;
    }
    for (int64_t e = 0; all && e < t->experts; e++) {
        dx[e] -= d->scale * probability(t, e) * dot;
        mag[e] += fabs(d->scale) * (double)probability(t, e) * size * off(t, e);
    }
}

static void loss_gradients(token *t, double daux, double dz, long double *dx, double *mag)
{
    const mica_view *counts = &t->v[MICA_MOE_ROUTE_COUNTS];
    const double tokens = (double)t->d->logits.dims[0], experts = (double)t->experts;
    const long double by = daux * experts / tokens / tokens;
    long double dot = 0;
    double size = 0;
    find_softmax(t, false);
    for (int64_t e = 0; counts->data && e < t->experts; e++) {
        const long double g = by * (long double)mica_get(counts, e * counts->t.strides[0]);
        dot += g * probability(t, e);
        size += (double)(fabsl(g) * probability(t, e)) * off(t, e);
    }
    const long double f = t->v[MICA_MOE_ROUTE_DZ].data ? 2 * dz * lse(t) / tokens : 0;
    const double f_mag = t->v[MICA_MOE_ROUTE_DZ].data
                             ? fabs(2 * dz / tokens) * (lse_off(t) + fabs((double)lse(t)))
                             : 0;
    for (int64_t e = 0; e < t->experts; e++) {
        const long double p = probability(t, e);
        const long double g =
            counts->data ? by * (long double)mica_get(counts, e * counts->t.strides[0]) : 0;
        dx[e] += p * (g - dot + f);
        mag[e] += (double)p * (double)(fabsl(g) + (long double)(size + f_mag)) * off(t, e);
    }
}

static double only(const mica_view *v)
{
    return v->data ? mica_get(v, 0) : 0;
}

static void backward(const mica_moe_route_desc *d, const mica_view *v)
{
    const mica_view *indices = &v[MICA_MOE_ROUTE_INDICES], *dw = &v[MICA_MOE_ROUTE_DWEIGHTS];
    const mica_view *dx = &v[MICA_MOE_ROUTE_DLOGITS];
    const bool losses = v[MICA_MOE_ROUTE_DAUX].data || v[MICA_MOE_ROUTE_DZ].data;
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    token *t = mica_scratch_take(sizeof *t);
    double *mag = mica_scratch_take((size_t)d->logits.dims[1] * sizeof *mag);
    long double *sum = mica_scratch_take((size_t)d->logits.dims[1] * sizeof *sum);
    for (int64_t row = 0; row < d->logits.dims[0]; row++) {
        double gradient[MOE_ROUTE_SLOTS];
        load(t, d, v, row);
        for (int64_t e = 0; e < t->experts; e++) sum[e] = 0, mag[e] = 0;
        for (int64_t j = 0; j < d->k; j++) {
            const int64_t e = index_at(indices, row, j);
            t->chosen[j] = e >= 0 && e < t->experts ? e : -1;
            gradient[j] = mica_get(dw, row * dw->t.strides[0] + j * dw->t.strides[1]);
        }
        weight_gradients(t, gradient, sum, mag);
        if (losses)
            loss_gradients(t, only(&v[MICA_MOE_ROUTE_DAUX]), only(&v[MICA_MOE_ROUTE_DZ]), sum, mag);
        for (int64_t e = 0; e < t->experts; e++)
            mica_put(dx, row * dx->t.strides[0] + e * dx->t.strides[1], (double)sum[e], mag[e]);
    }
}

void mica_moe_route_reference(const void *desc, const mica_view *args, const double *scalars)
{
    const mica_moe_route_desc *d = desc;
    (void)scalars;
    if (d->pass == MICA_MOE_ROUTE_FWD)
        forward(d, args);
    else
        backward(d, args);
}
