/* SPDX-License-Identifier: Apache-2.0
 * Tokens of a routing on the CPU: rounds over keys, integers in the order of the numbers, that
 * vector lanes take the largest of. */
#include "ops/moe_route/cpu/moe_route_cpu.h"
#include "ops/convert/cpu/real.h"
#include "ops/moe_route/moe_route_body.h"
#include "ops/reduce/cpu/rows.h"
#include "cpu/scratch.h"

#include <math.h>
#include <string.h>

#if REAL_F64
#define TOKENS  moe_route_f64
#define KEY     route_key64
#define VALUE   route_value64
#define EXP     route_exp64
#define SIGMOID route_sigmoid64
#define FIXED   route_fixed64
#define SUM     route_sum64
#define ADD     add64
typedef uint64_t order;
#else
#define TOKENS  moe_route_f32
#define KEY     route_key32
#define VALUE   route_value32
#define EXP     route_exp32
#define SIGMOID route_sigmoid32
#define FIXED   route_fixed32
#define SUM     route_sum32
#define ADD     add32
typedef uint32_t order;
#endif

typedef struct token {
    const moe_route_run *r;
    int64_t n; /* experts */
    real x[MOE_ROUTE_EXPERTS], e[MOE_ROUTE_EXPERTS], bias[MOE_ROUTE_EXPERTS];
    real dx[MOE_ROUTE_EXPERTS], pull[MOE_ROUTE_EXPERTS]; /* pull: gradient of aux by the softmax */
    order key[MOE_ROUTE_EXPERTS];
    real max, sum; /* of the softmax of all, whose exponentials e has */
} token;

/* ---- loops over experts ---- */

CLONES static void keys_of(const real *x, int64_t n, order *key)
{
    for (int64_t i = 0; i < n; i++) key[i] = KEY(x[i]);
}

CLONES static order largest(const order *key, int64_t n)
{
    order max = 0;
    for (int64_t i = 0; i < n; i++) max = key[i] > max ? key[i] : max;
    return max;
}

static int64_t take_best(order *key, int64_t n)
{
    const order best = largest(key, n);
    int64_t i = 0;
    while (key[i] != best) i++;
    key[i] = 0;
    return i;
}

CLONES static void sigmoids_of(const real *x, int64_t n, real *s)
{
    for (int64_t i = 0; i < n; i++) {
        real rest;
        s[i] = SIGMOID(x[i], &rest);
    }
}

CLONES static void softmax_scores(const real *x, real max, int64_t n, real *s)
{
    unsigned long long sum = 0;
    for (int64_t i = 0; i < n; i++) {
        s[i] = EXP(ADD(x[i], -max));
        sum += FIXED(s[i]);
    }
    const real by = SUM(sum);
    for (int64_t i = 0; i < n; i++) s[i] = s[i] / by;
}

CLONES static void add_to(real *s, const real *more, int64_t n)
{
    for (int64_t i = 0; i < n; i++) s[i] = ADD(s[i], more[i]);
}

/* ---- the choice ---- */

static void find_scores(token *t, real *s)
{
    const mica_moe_route_desc *d = t->r->d;
    if (d->score == MICA_MOE_ROUTE_SIGMOID) {
        sigmoids_of(t->x, t->n, s);
    } else {
        keys_of(t->x, t->n, t->key);
        const real max = VALUE(largest(t->key, t->n));
        if (isfinite(max))
            softmax_scores(t->x, max, t->n, s);
        else
            for (int64_t i = 0; i < t->n; i++) s[i] = (real)NAN;
    }
    if (mica_tensor_given(&d->bias)) add_to(s, t->bias, t->n);
}

static void limit_groups(token *t)
{
    const mica_moe_route_desc *d = t->r->d;
    const int64_t size = t->n / d->groups;
    order worth[MOE_ROUTE_GROUPS];
    for (int64_t g = 0; g < d->groups; g++) {
        order *key = t->key + g * size;
        worth[g] = largest(key, size);
        if (d->group_score != MICA_MOE_ROUTE_SUM2) continue;
        const order first = worth[g];
        const int64_t at = take_best(key, size);
        worth[g] = KEY(ADD(VALUE(first), VALUE(largest(key, size))));
        key[at] = first;
    }
    for (int64_t i = 0; i < d->topk_groups; i++) take_best(worth, d->groups);
    for (int64_t g = 0; g < d->groups; g++)
        if (worth[g]) memset(t->key + g * size, 0, (size_t)size * sizeof *t->key);
}

static void choose(token *t, int64_t *chosen)
{
    if (t->r->by_score) {
        find_scores(t, t->e);
        keys_of(t->e, t->n, t->key);
    } else {
        keys_of(t->x, t->n, t->key);
    }
    if (t->r->limits) limit_groups(t);
    for (int64_t j = 0; j < t->r->d->k; j++) chosen[j] = take_best(t->key, t->n);
}

/* ---- weights and losses ---- */

static void find_softmax(token *t)
{
    keys_of(t->x, t->n, t->key);
    t->max = VALUE(largest(t->key, t->n));
#if REAL_F64
    t->sum = mica_row_exp_sum_f64(t->x, t->max, t->n, t->e);
#else
    t->sum = mica_row_exp_sum(t->x, t->max, t->n, t->e, t->x, 0);
#endif
    if (!isfinite(t->max)) t->sum = (real)NAN;
}

/* Shares of the chosen, -1: of none, in their softmax. */
static void chosen_softmax(const token *t, const int64_t *chosen, int64_t k, real *w)
{
    order max = 0;
    real sum = 0;
    for (int64_t j = 0; j < k; j++)
        if (chosen[j] >= 0 && KEY(t->x[chosen[j]]) > max) max = KEY(t->x[chosen[j]]);
    for (int64_t j = 0; j < k; j++) {
        w[j] = chosen[j] < 0 ? 0 : EXP(t->x[chosen[j]] - VALUE(max));
        sum += w[j];
    }
    for (int64_t j = 0; j < k; j++) w[j] /= sum;
}

static void weights_of(token *t, const int64_t *chosen, real *w)
{
    const mica_moe_route_desc *d = t->r->d;
    const real scale = (real)d->scale;
    real sum = (real)ROUTE_LEAST, rest;
    if (t->r->softmax) find_softmax(t);
    if (d->score == MICA_MOE_ROUTE_SIGMOID) {
        for (int64_t j = 0; j < d->k; j++) sum += w[j] = SIGMOID(t->x[chosen[j]], &rest);
        for (int64_t j = 0; d->renormalise && j < d->k; j++) w[j] /= sum;
    } else if (d->renormalise) {
        chosen_softmax(t, chosen, d->k, w);
    } else {
        for (int64_t j = 0; j < d->k; j++) w[j] = t->e[chosen[j]] / t->sum;
    }
    for (int64_t j = 0; j < d->k; j++) w[j] *= scale;
}

static void add_losses(const token *t, const int64_t *chosen, moe_route_part *part)
{
    for (int64_t j = 0; j < t->r->d->k; j++) part->counts[chosen[j]]++;
    if (!t->r->softmax) return;
    for (int64_t i = 0; i < t->n; i++) part->p[i] += (double)(t->e[i] / t->sum);
    const double lse = (double)t->max + log((double)t->sum);
    part->z += lse * lse;
}

static void forward(token *t, int64_t row, moe_route_part *part)
{
    const mica_moe_route_desc *d = t->r->d;
    const mica_tensor *i = &d->indices, *w = &d->weights;
    int64_t chosen[MOE_ROUTE_SLOTS];
    real weights[MOE_ROUTE_SLOTS];
    int32_t *to = (int32_t *)t->r->run->args[MICA_MOE_ROUTE_INDICES] + row * i->strides[0];
    choose(t, chosen);
    for (int64_t j = 0; j < d->k; j++) to[j * i->strides[1]] = (int32_t)chosen[j];
    weights_of(t, chosen, weights);
    real_store(w->dtype, t->r->run->args[MICA_MOE_ROUTE_WEIGHTS], row * w->strides[0],
               w->strides[1], weights, d->k);
    if (part) add_losses(t, chosen, part);
}

/* ---- gradients ---- */

/* By way of a softmax of all: what every expert has, from what pulls at each and from the slots. */
CLONES static void softmax_gradients(const real *e, real by, const real *pull, real all, int64_t n,
                                     real *dx)
{
    for (int64_t i = 0; i < n; i++) dx[i] = e[i] * by * (pull[i] + all);
}

static real find_common(token *t, real slots)
{
    const mica_moe_route_desc *d = t->r->d;
    const real by = 1 / t->sum;
    real dot = 0, f = 0;
    if (mica_tensor_given(&d->daux))
        for (int64_t i = 0; i < t->n; i++) dot += t->e[i] * by * t->pull[i];
    if (mica_tensor_given(&d->dz)) {
        real dz;
        real_load(d->dz.dtype, t->r->run->args[MICA_MOE_ROUTE_DZ], 0, 1, &dz, 1);
        const double lse = (double)t->max + log((double)t->sum);
        f = (real)(2 * lse / (double)d->logits.dims[0] * (double)dz);
    }
    return f - dot - slots;
}

static void backward(token *t, int64_t row)
{
    const mica_moe_route_desc *d = t->r->d;
    const mica_tensor *in = &d->indices, *dw = &d->dweights, *to = &d->dlogits;
    const int32_t *from = (const int32_t *)t->r->run->args[MICA_MOE_ROUTE_INDICES];
    const bool softmax = d->score == MICA_MOE_ROUTE_SOFTMAX, all = softmax && !d->renormalise;
    int64_t chosen[MOE_ROUTE_SLOTS] = {0};
    real g[MOE_ROUTE_SLOTS], s[MOE_ROUTE_SLOTS], rest[MOE_ROUTE_SLOTS], dot = 0;
    real sum = (real)ROUTE_LEAST;
    real_load(dw->dtype, t->r->run->args[MICA_MOE_ROUTE_DWEIGHTS], row * dw->strides[0],
              dw->strides[1], g, d->k);
    for (int64_t j = 0; j < d->k; j++) {
        const int32_t e = from[row * in->strides[0] + j * in->strides[1]];
        chosen[j] = e >= 0 && e < t->n ? e : -1;
    }
    if (t->r->softmax) find_softmax(t);
    if (softmax && !all) chosen_softmax(t, chosen, d->k, s);
    for (int64_t j = 0; j < d->k; j++) {
        if (chosen[j] < 0) continue;
        if (all) s[j] = t->e[chosen[j]] / t->sum;
        if (!softmax) s[j] = SIGMOID(t->x[chosen[j]], &rest[j]);
        sum += s[j];
    }
    for (int64_t j = 0; j < d->k; j++) {
        if (chosen[j] < 0) continue;
        if (!softmax && d->renormalise) s[j] /= sum;
        dot += s[j] * (g[j] / 4);
    }
    const real scale = (real)d->scale, mean = d->renormalise ? dot : 0;
    memset(t->dx, 0, (size_t)t->n * sizeof *t->dx);
    if (t->r->softmax)
        softmax_gradients(t->e, 1 / t->sum, t->pull, find_common(t, all ? 4 * scale * dot : 0),
                          t->n, t->dx);
    for (int64_t j = 0; j < d->k; j++) {
        if (chosen[j] < 0) continue;
        /* Products first, and a fourth of the mean: what is large may have no room for more. */
        const real slope = softmax ? s[j] : s[j] * rest[j];
        t->dx[chosen[j]] += scale * (slope * g[j] - 4 * slope * mean);
    }
    real_store(to->dtype, t->r->run->args[MICA_MOE_ROUTE_DLOGITS], row * to->strides[0],
               to->strides[1], t->dx, t->n);
}

/* What aux adds to the gradient by each share of the softmax. */
static void find_pull(token *t)
{
    const mica_moe_route_desc *d = t->r->d;
    const int32_t *counts = t->r->run->args[MICA_MOE_ROUTE_COUNTS];
    real daux = 0;
    memset(t->pull, 0, (size_t)t->n * sizeof *t->pull);
    if (!mica_tensor_given(&d->daux)) return;
    real_load(d->daux.dtype, t->r->run->args[MICA_MOE_ROUTE_DAUX], 0, 1, &daux, 1);
    const double tokens = (double)d->logits.dims[0], by = (double)t->n / tokens / tokens;
    for (int64_t i = 0; i < t->n; i++)
        t->pull[i] = (real)(by * (double)counts[i * d->counts.strides[0]] * (double)daux);
}

void TOKENS(const moe_route_run *r, int64_t first, int64_t end, moe_route_part *part)
{
    const mica_moe_route_desc *d = r->d;
    const mica_tensor *x = &d->logits;
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    token *t = mica_scratch_take(sizeof *t);
    t->r = r;
    t->n = x->dims[1];
    if (d->pass == MICA_MOE_ROUTE_BWD) find_pull(t);
    if (mica_tensor_given(&d->bias))
        real_load(d->bias.dtype, r->run->args[MICA_MOE_ROUTE_BIAS], 0, d->bias.strides[0], t->bias,
                  t->n);
    for (int64_t row = first; row < end; row++) {
        real_load(x->dtype, r->run->args[MICA_MOE_ROUTE_LOGITS], row * x->strides[0], x->strides[1],
                  t->x, t->n);
        if (d->pass == MICA_MOE_ROUTE_FWD)
            forward(t, row, part);
        else
            backward(t, row);
    }
}
