/* SPDX-License-Identifier: Apache-2.0
 * Layers of experts, the truth: each choice by itself, in plain loops. Nothing of the families that
 * the engines are made of is used but the rule by which moe_route chooses, whose ties and roundings
 * have one definition. What engines keep between steps is rounded to x's type: numbers carry that
 * as an error (ops/numbers.h).
 *
 * Where activations become e4m3 the truth takes them as quantize makes them of its own numbers. Of
 * an input that is exact. h is off by an error, so its largest magnitude and its quotients lie
 * between bounds; rounding is monotone, so an engine's code lies between those of the bounds. A
 * number whose bounds have one code is off by nothing but the scale, all numbers of a block by the
 * same factor; one that lies near the border of two codes may be either, and is off by what lies
 * between them: at most, and by its chance, the part of the bounds that lies beyond the border, in
 * the squares of which a sum of many is off by. */
#include "ops/moe/moe.h"
#include "ops/epilogue/activation.h"
#include "ops/numbers.h"
#include "base/memory.h"
#include "cpu/scratch.h"

typedef mica_number number;
typedef mica_number_sum sum;

typedef struct truth {
    const mica_moe_desc *d;
    const mica_view *v;
    moe_sizes s;
    mica_accuracy a;
    int64_t choices;
    /* Of choices: what was chosen; the expert, -1 for none; the row among those of all experts;
     * weights. */
    int64_t *chosen, *expert, *row;
    number *weights, *dweights;
    number *logits, *dlogits; /* T x E */
    number *u, *h, *dh;       /* of one choice */
    number *taken, *drift;    /* what a product takes; of its blocks, relative errors of scales */
    number *likely;           /* of what it takes, errors by their chance */
    number *du, *wh;          /* bwd: of all of them; wh: h by its weight */
    sum *sums;                /* as many as a row of anything has */
} truth;

static number *take_numbers(number **memory, int64_t count)
{
    number *taken = *memory;
    *memory += count;
    return taken;
}

/* Sets out the truth's memory: the thread's scratch, or what is large, and then `owned`; without
 * any the results become NaN: a reference has no other way to say so. */
static bool begin(truth *t, const mica_moe_desc *d, const mica_view *v, void **owned)
{
    *t = (truth){.d = d, .v = v, .s = moe_sizes_of(d)};
    t->a = mica_accuracy_of(&mica_op_moe, d, d->x.dtype, d->compute == MICA_COMPUTE_TF32);
    const moe_sizes *s = &t->s;
    const int64_t longest = s->width > s->inner ? s->width : s->inner,
                  drifts = longest / MOE_BLOCK + 1;
    const int64_t routes = moe_routes(d) ? s->tokens * s->experts : 0;
    const bool backward = d->pass == MICA_MOE_BWD;
    int64_t widest = s->width > s->out ? s->width : s->out;
    t->choices = s->tokens * s->k;
    if (s->pre > widest) widest = s->pre;
    const int64_t kept = backward ? t->choices * (s->pre + s->inner) : 0;
    const int64_t numbers =
        2 * t->choices + 2 * routes + kept + s->pre + 2 * s->inner + 2 * longest + drifts;
    const size_t bytes = (size_t)numbers * sizeof(number) + (size_t)widest * sizeof(sum) +
                         (size_t)t->choices * 3 * sizeof(int64_t);
    enum { SMALL = 1 << 18 };
    *owned = bytes < SMALL ? NULL : mica_alloc(bytes);
    void *all = bytes < SMALL ? mica_scratch_zeroed(bytes + 1) : *owned;
    for (int i = 0; !all && i < mica_op_moe.arg_count; i++)
        if (mica_op_dir(&mica_op_moe, d, i) == MICA_OUT)
            for (int64_t e = 0; e < mica_tensor_count(&v[i].t); e++)
                mica_put(&v[i], mica_offset(&v[i].t, e), NAN, 0);
    if (!all) return false;
    t->sums = all;
    number *memory = (number *)(void *)(t->sums + widest);
    t->weights = take_numbers(&memory, t->choices);
    t->dweights = take_numbers(&memory, t->choices);
    t->logits = take_numbers(&memory, routes);
    t->dlogits = take_numbers(&memory, routes);
    t->u = take_numbers(&memory, s->pre);
    t->h = take_numbers(&memory, s->inner);
    t->dh = take_numbers(&memory, s->inner);
    t->taken = take_numbers(&memory, longest);
    t->likely = take_numbers(&memory, longest);
    t->drift = take_numbers(&memory, drifts);
    t->du = take_numbers(&memory, backward ? t->choices * s->pre : 0);
    t->wh = take_numbers(&memory, backward ? t->choices * s->inner : 0);
    t->expert = (int64_t *)(void *)memory;
    t->row = t->expert + t->choices;
    t->chosen = t->row + t->choices;
    return true;
}

static bool has(const truth *t, int arg)
{
    return t->v[arg].data != NULL;
}

static double at2(const mica_view *v, int64_t i, int64_t j)
{
    return mica_get(v, i * v->t.strides[0] + j * v->t.strides[1]);
}

/* What stands for row i of expert e, at its element j: a scale, or a zero point. */
static double of_group(const truth *t, int arg, int64_t e, int64_t i, int64_t j)
{
    const mica_view *v = &t->v[arg];
    const int64_t *s = v->t.strides;
    if (mica_tensor_count(&v->t) == 1) return mica_get(v, 0);
    if (t->d->activations == MICA_MOE_ACTIVATIONS_E4M3) i /= MOE_BLOCK;
    return mica_get(v, e * s[0] + i * s[1] + j / t->d->group * s[2]);
}

/* An element of w1, w2 or w3. Engines may multiply by the scale behind the sum. */
static number at3(const truth *t, int arg, int64_t e, int64_t i, int64_t j)
{
    const mica_view *v = &t->v[arg];
    const int64_t *s = v->t.strides;
    const double w = mica_get(v, e * s[0] + i * s[1] + j * s[2]);
    const int scales = arg - MICA_MOE_W1 + MICA_MOE_SCALES1;
    const int zeros = arg - MICA_MOE_W1 + MICA_MOE_ZEROS1;
    if (!moe_has_codes(t->d)) return mica_number_exact(w);
    const double less = has(t, zeros) ? (double)(float)(w - of_group(t, zeros, e, i, j)) : w;
    const double made = less * of_group(t, scales, e, i, j);
    return (number){made, 2 * fabs(made)};
}

/* ---- what products take ---- */

static double e4m3_of(double x, double scale)
{
    const double q = x == 0 && scale == 0 ? 0 : (double)((float)x / (float)scale), top = 448;
    return mica_fill_rounded(MICA_E4M3, q > top ? top : q < -top ? -top : q);
}

/* What lies between two codes, squared, by the chance that it is the other: that a quotient from
 * here to `end`, of `wide` in all, is beyond their border. */
static double by_chance(double code, double other, double end, double wide)
{
    const double beyond = fabs(end - (code + other) / 2), between = other - code;
    return between == 0 ? 0 : between * between * fmin(1, wide > 0 ? beyond / wide : 1);
}

static void quantise_block(const truth *t, const number *from, int64_t count, number *to,
                           number *likely, number *drift)
{
    double most = 0, least = 0, middle = 0;
    for (int64_t i = 0; i < count; i++) {
        const double size = fabs(from[i].v), off = from[i].error * t->a.unit;
        least = fmax(least, size - off), middle = fmax(middle, size);
        most = isfinite(size + off) ? fmax(most, size + off) : (double)INFINITY;
    }
    const double s = (double)(float)(middle / 448), s0 = (double)(float)(least / 448);
    const double s1 = (double)(float)(most / 448);
    /* Nothing is known of scales that may be 0, or without an end. */
    const bool known = isfinite(s1) && (s0 > 0 || s1 == 0);
    *drift = mica_number_exact(0);
    if (known && s > 0) drift->error = fmax(s1 - s, s - s0) / s / t->a.unit;
    for (int64_t i = 0; i < count; i++) {
        const double off = from[i].error * t->a.unit, v = from[i].v, code = e4m3_of(v, s);
        to[i] = likely[i] = (number){code * s, (double)INFINITY};
        if (!known) continue;
        const double low = fmin(e4m3_of(v - off, s0), e4m3_of(v - off, s1));
        const double high = fmax(e4m3_of(v + off, s0), e4m3_of(v + off, s1));
        to[i].error = likely[i].error = fmax(code - low, high - code) * s1 / t->a.unit;
        if (to[i].error == 0) continue;
        const double first = fmin((v - off) / s0, (v - off) / s1);
        const double last = fmax((v + off) / s0, (v + off) / s1);
        const double squares =
            by_chance(code, low, first, last - first) + by_chance(code, high, last, last - first);
        likely[i].error = fmin(to[i].error, sqrt(squares) * s1 / t->a.unit);
    }
}

/* Of x, or h, in place or not: as it enters products. */
static void enter_products(const truth *t, const number *from, int64_t count)
{
    for (int64_t i = 0; i < count; i += MOE_BLOCK) {
        const int64_t left = count - i < MOE_BLOCK ? count - i : MOE_BLOCK;
        number *drift = &t->drift[i / MOE_BLOCK];
        *drift = mica_number_exact(0);
        if (t->d->activations == MICA_MOE_ACTIVATIONS_E4M3)
            quantise_block(t, from + i, left, t->taken + i, t->likely + i, drift);
        else
            for (int64_t k = i; k < i + left; k++) t->likely[k] = t->taken[k] = from[k];
    }
}

/* The sum, which may hold a bias, and t->taken by row i of an expert. */
static number products(const truth *t, sum *s, int64_t count, int arg, int64_t e, int64_t i)
{
    mica_accuracy a = t->a;
    /* The tensor cores of sm_90 keep 13 bits of sums of 128 e4m3 products, which are added in f32:
     * the contract of grouped_gemm's engine sm90. */
    const int64_t terms = count < MOE_BLOCK ? count : MOE_BLOCK;
    if (t->d->activations == MICA_MOE_ACTIVATIONS_E4M3)
        a.sums += 2 * (double)(terms + 16) / 16 * 0x1p-14 / a.unit;
    double most = 0, shifted = 0;
    for (int64_t j = 0; j < count; j += MOE_BLOCK) {
        const long double before = s->v;
        const double rest = t->drift[j / MOE_BLOCK].error;
        for (int64_t k = j; k < j + MOE_BLOCK && k < count; k++) {
            const number w = at3(t, arg, e, i, k);
            const double off = t->taken[k].error * fabs(w.v), part = t->likely[k].error * fabs(w.v);
            mica_number_add(&t->a, s, t->likely[k], w);
            if (off == part) continue;
            s->linear += off - part;
            most = fmax(most, off);
        }
        /* All of a block are off by the same factor. */
        if (rest > 0) shifted += rest * fabs((double)(s->v - before));
    }
    number made = mica_number_total(&a, s);
    made.error += shifted;
    /* Few that are off by much: two, and what all are by their chances. */
    const double apart = 4 * sqrt(s->squares);
    if (most > 0) made.error += fmin(s->linear, apart + 2 * most) - fmin(s->linear, apart);
    return made;
}

static int64_t bias_at(const mica_tensor *t, int64_t e, int64_t i)
{
    return t->rank == 2 ? e * t->strides[0] + i * t->strides[1] : i * t->strides[0];
}

/* ---- routes ---- */

static void find_logits(truth *t)
{
    const mica_view *x = &t->v[MICA_MOE_X], *w = &t->v[MICA_MOE_ROUTER];
    const mica_accuracy plain = mica_accuracy_of(&mica_op_moe, t->d, moe_real(t->d), false);
    for (int64_t i = 0; i < t->s.tokens; i++)
        for (int64_t e = 0; e < t->s.experts; e++) {
            number *to = &t->logits[i * t->s.experts + e];
            sum s = {0};
            if (has(t, MICA_MOE_LOGITS)) {
                *to = mica_number_exact(at2(&t->v[MICA_MOE_LOGITS], i, e));
                continue;
            }
            for (int64_t h = 0; h < t->s.width; h++)
                mica_number_add(&t->a, &s, mica_number_exact(at2(x, i, h)),
                                mica_number_exact(at2(w, e, h)));
            *to = mica_number_rounded(&plain, mica_number_total(&t->a, &s));
            if (moe_real(t->d) == MICA_F32) to->v = (double)(float)to->v;
        }
}

static mica_view of_doubles(int64_t rows, int64_t columns, double *data, double *mag)
{
    return (mica_view){mica_tensor_packed(MICA_F64, 2, (int64_t[]){rows, columns}), data, mag,
                       mica_dtype_load(MICA_F64), mica_dtype_store(MICA_F64)};
}

/* A row at a time, by the rule of moe_route. */
static void choose(truth *t, int64_t token)
{
    enum { EXPERTS = 1024, SLOTS = 32 };
    const int64_t k = t->s.k, experts = t->s.experts;
    double indices[SLOTS], weights[SLOTS], mag[SLOTS], off = 0;
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    double *logits = mica_scratch_take(EXPERTS * sizeof *logits);
    mica_view *views = mica_scratch_zeroed(MICA_MAX_ARGS * sizeof *views);
    mica_moe_route_desc r = moe_route_of(t->d, MICA_MOE_ROUTE_FWD);
    for (int64_t e = 0; e < experts; e++) {
        const number n = t->logits[token * experts + e];
        logits[e] = n.v;
        off = fmax(off, n.error);
    }
    r.logits.dims[0] = r.indices.dims[0] = r.weights.dims[0] = 1;
    views[MICA_MOE_ROUTE_LOGITS] = of_doubles(1, experts, logits, NULL);
    views[MICA_MOE_ROUTE_BIAS] = t->v[MICA_MOE_SCORE_BIAS];
    views[MICA_MOE_ROUTE_INDICES] = of_doubles(1, k, indices, NULL);
    views[MICA_MOE_ROUTE_WEIGHTS] = of_doubles(1, k, weights, mag);
    const mica_op *op = mica_op_find("moe_route");
    mica_op_reference(op, &r, views, NULL);
    mica_contract c;
    mica_op_contract(op, &r, &c);
    const double units = mica_contract_phi(&c) / c.unit + 2 * c.ulps;
    for (int64_t j = 0; j < k; j++) {
        t->expert[token * k + j] = t->chosen[token * k + j] = (int64_t)indices[j];
        t->weights[token * k + j] =
            (number){weights[j], mag[j] * units + 2 * off * fabs(weights[j])};
    }
}

static void route(truth *t)
{
    const mica_view *indices = &t->v[MICA_MOE_INDICES];
    if (moe_routes(t->d)) {
        find_logits(t);
        for (int64_t i = 0; i < t->s.tokens; i++) choose(t, i);
    }
    for (int64_t c = 0; !moe_routes(t->d) && c < t->choices; c++) {
        const double e = at2(indices, c / t->s.k, c % t->s.k);
        t->expert[c] = e >= 0 && e < (double)t->s.experts ? (int64_t)e : -1;
        t->weights[c] = mica_number_exact(at2(&t->v[MICA_MOE_WEIGHTS], c / t->s.k, c % t->s.k));
    }
    int64_t first = 0;
    for (int64_t e = 0; e < t->s.experts; e++) {
        int64_t taken = 0;
        for (int64_t c = 0; c < t->choices; c++) {
            if (t->expert[c] != e) continue;
            if (t->d->capacity && taken == t->d->capacity)
                t->expert[c] = -1;
            else
                t->row[c] = first + taken++;
        }
        first += taken;
    }
}

/* ---- experts ---- */

static number through(const truth *t, number u, double (*of)(mica_act, double, double, double),
                      double (*size_of)(mica_act, double, double, double))
{
    const mica_moe_desc *d = t->d;
    const double v = of(d->act, u.v, d->act_a, d->act_b), by = u.error * t->a.unit;
    const double less = of(d->act, u.v - by, d->act_a, d->act_b) - v;
    const double more = of(d->act, u.v + by, d->act_a, d->act_b) - v;
    const double moved = u.error == 0 ? 0 : fmax(fabs(less), fabs(more)) / t->a.unit;
    const double own = 8 * size_of(d->act, u.v, d->act_a, d->act_b) + t->a.least;
    return (number){v, isfinite(by) ? mica_number_known(moved + own) : (double)INFINITY};
}

/* What enters the activation of choice c. */
static void enter(const truth *t, int64_t c)
{
    const mica_moe_desc *d = t->d;
    const int64_t token = c / t->s.k, e = t->expert[c];
    const mica_view *hidden = &t->v[MICA_MOE_HIDDEN];
    for (int64_t h = 0; h < t->s.width; h++)
        t->taken[h] = mica_number_exact(at2(&t->v[MICA_MOE_X], token, h));
    enter_products(t, t->taken, t->s.width);
    for (int64_t n = 0; n < t->s.pre; n++) {
        sum s = {0};
        if (d->pass == MICA_MOE_BWD && hidden->data) {
            t->u[n] = mica_number_exact(at2(hidden, t->row[c], n));
            continue;
        }
        const bool other = mica_tensor_given(&d->w3) && n >= t->s.inner;
        const int w = other ? MICA_MOE_W3 : MICA_MOE_W1, b = other ? MICA_MOE_B3 : MICA_MOE_B1;
        const int64_t i = other ? n - t->s.inner : n;
        if (has(t, b))
            mica_number_add(&t->a, &s, mica_number_exact(1),
                            mica_number_exact(mica_get(&t->v[b], bias_at(&t->v[b].t, e, i))));
        t->u[n] = mica_number_rounded(&t->a, products(t, &s, t->s.width, w, e, i));
        if (hidden->data)
            mica_number_put(&t->a, hidden,
                            t->row[c] * hidden->t.strides[0] + n * hidden->t.strides[1], t->u[n]);
    }
}

static void activate(const truth *t)
{
    const bool plain = !t->d->gated && t->d->act == MICA_ACT_IDENTITY;
    for (int64_t i = 0; i < t->s.inner; i++) {
        number h = t->u[i];
        if (!plain) h = through(t, h, mica_act_value, mica_act_value_size);
        if (t->d->gated) h = mica_number_product(&t->a, h, t->u[t->s.inner + i]);
        t->h[i] = plain ? h : mica_number_rounded(&t->a, h);
    }
}

static void forward(const truth *t)
{
    const mica_view *y = &t->v[MICA_MOE_Y], *b = &t->v[MICA_MOE_B2];
    for (int64_t token = 0; token < t->s.tokens; token++) {
        for (int64_t o = 0; o < t->s.out; o++) t->sums[o] = (sum){0};
        for (int64_t c = token * t->s.k; c < (token + 1) * t->s.k; c++) {
            const int64_t e = t->expert[c];
            if (e < 0) continue;
            enter(t, c);
            activate(t);
            enter_products(t, t->h, t->s.inner);
            for (int64_t o = 0; o < t->s.out; o++) {
                sum s = {0};
                if (b->data)
                    mica_number_add(&t->a, &s, mica_number_exact(1),
                                    mica_number_exact(mica_get(b, bias_at(&b->t, e, o))));
                const number made =
                    mica_number_rounded(&t->a, products(t, &s, t->s.inner, MICA_MOE_W2, e, o));
                mica_number_add(&t->a, &t->sums[o], made, t->weights[c]);
            }
        }
        for (int64_t o = 0; o < t->s.out; o++)
            mica_number_put(&t->a, y, token * y->t.strides[0] + o * y->t.strides[1],
                            mica_number_total(&t->a, &t->sums[o]));
    }
}

/* ---- gradients ---- */

/* du of choice c from its dh, which is taken by the weight; wh and the weight's own. */
static void slopes(const truth *t, int64_t c)
{
    const mica_moe_desc *d = t->d;
    const int64_t inner = t->s.inner;
    const bool plain = !d->gated && d->act == MICA_ACT_IDENTITY;
    number *du = t->du + c * t->s.pre, *wh = t->wh + c * inner;
    sum dot = {0};
    for (int64_t i = 0; i < inner; i++) {
        const number dh =
            mica_number_rounded(&t->a, mica_number_product(&t->a, t->dh[i], t->weights[c]));
        mica_number_add(&t->a, &dot, t->h[i], t->dh[i]);
        wh[i] = mica_number_rounded(&t->a, mica_number_product(&t->a, t->h[i], t->weights[c]));
        du[i] = dh;
        if (plain) continue;
        number slope = through(t, t->u[i], mica_act_slope, mica_act_slope_size);
        du[i] = mica_number_product(&t->a, dh, slope);
        if (d->gated) {
            const number value = through(t, t->u[i], mica_act_value, mica_act_value_size);
            du[i] = mica_number_product(&t->a, du[i], t->u[inner + i]);
            du[inner + i] = mica_number_rounded(&t->a, mica_number_product(&t->a, dh, value));
        }
        du[i] = mica_number_rounded(&t->a, du[i]);
    }
    t->dweights[c] = mica_number_total(&t->a, &dot);
}

/* The weight's gradient is <what the expert made, dy>; engines may sum it in another order. */
static void finish_weight(const truth *t, int64_t c)
{
    const mica_view *b = &t->v[MICA_MOE_B2];
    const int64_t e = t->expert[c];
    sum biases = {0};
    long double dot = 0;
    for (int64_t o = 0; o < t->s.out; o++) {
        const number dy = mica_number_exact(at2(&t->v[MICA_MOE_DY], c / t->s.k, o));
        number bias = mica_number_exact(b->data ? mica_get(b, bias_at(&b->t, e, o)) : 0);
        long double made = (long double)bias.v;
        for (int64_t i = 0; i < t->s.inner; i++)
            made += (long double)t->h[i].v * (long double)at3(t, MICA_MOE_W2, e, o, i).v;
        dot += made * (long double)dy.v;
        bias = mica_number_rounded(&t->a, bias);
        if (b->data) mica_number_add(&t->a, &biases, bias, dy);
    }
    t->dweights[c].v = (double)dot;
    t->dweights[c].error += mica_number_total(&t->a, &biases).error + fabs((double)dot);
}

static void find_slopes(const truth *t)
{
    for (int64_t c = 0; c < t->choices; c++) {
        const int64_t e = t->expert[c];
        t->dweights[c] = mica_number_exact(0);
        if (e < 0) continue;
        enter(t, c);
        activate(t);
        for (int64_t i = 0; i < t->s.inner; i++) {
            sum s = {0};
            for (int64_t o = 0; o < t->s.out; o++)
                mica_number_add(&t->a, &s,
                                mica_number_exact(at2(&t->v[MICA_MOE_DY], c / t->s.k, o)),
                                at3(t, MICA_MOE_W2, e, o, i));
            t->dh[i] = mica_number_rounded(&t->a, mica_number_total(&t->a, &s));
        }
        slopes(t, c);
        finish_weight(t, c);
    }
}

static long double sigmoid(double x)
{
    return x < 0 ? expl(x) / (1 + expl(x)) : 1 / (1 + expl(-(long double)x));
}

/* Gradients of a token's logits: of w_j = scale s_j / S, where s are the exponentials of all or of
 * the chosen, or sigmoids, and S their sum or 1. */
static void route_slopes(const truth *t, int64_t token)
{
    const mica_moe_desc *d = t->d;
    const int64_t experts = t->s.experts, k = t->s.k, *expert = t->chosen + token * k;
    const number *x = t->logits + token * experts;
    number *dx = t->dlogits + token * experts;
    const bool softmax = d->score == MICA_MOE_ROUTE_SOFTMAX, all = softmax && !d->renormalise;
    long double max = -INFINITY, total = softmax ? 0 : 1e-20L, dot = 0;
    double size = 0, off = 0, passed = 0;
    for (int64_t i = 0; i < (all ? experts : k); i++)
        max = fmaxl(max, (long double)x[all ? i : expert[i]].v);
    for (int64_t i = 0; i < (all ? experts : k); i++) {
        const number n = x[all ? i : expert[i]];
        total += softmax ? expl((long double)n.v - max) : sigmoid(n.v);
        /* An exponential is as many units off as its argument, and that of the largest. */
        off = fmax(off, 2 * n.error + 2 * fabs((double)max - n.v));
    }
    if (!softmax && !d->renormalise) total = 1;
    off += t->a.growth + 2 * log((double)experts) + 16;
    for (int64_t j = 0; j < k; j++) {
        const number dw = t->dweights[token * k + j];
        const long double s =
            softmax ? expl((long double)x[expert[j]].v - max) : sigmoid(x[expert[j]].v);
        dot += s / total * (long double)dw.v;
        size += (double)(s / total) * fabs(dw.v);
        passed += (double)(s / total) * dw.error;
    }
    if (!softmax && !d->renormalise) dot = 0, size = 0, passed = 0;
    for (int64_t e = 0; e < experts; e++) dx[e] = mica_number_exact(0);
    for (int64_t e = 0; all && e < experts; e++) {
        const double p = d->scale * (double)(expl((long double)x[e].v - max) / total);
        dx[e] = (number){-p * (double)dot, fabs(p) * (size * off + passed)};
    }
    for (int64_t j = 0; j < k; j++) {
        const int64_t e = expert[j];
        const number dw = t->dweights[token * k + j];
        const long double s = softmax ? expl((long double)x[e].v - max) / total
                                      : sigmoid(x[e].v) * sigmoid(-x[e].v) / total;
        const double by = d->scale * (double)s;
        dx[e].v += by * (dw.v - (all ? 0 : (double)dot));
        dx[e].error +=
            fabs(by) * ((fabs(dw.v) + (all ? 0 : size)) * off + dw.error + (all ? 0 : passed));
    }
}

static void put_input_gradient(const truth *t)
{
    const mica_view *dx = &t->v[MICA_MOE_DX];
    const bool routed = has(t, MICA_MOE_ROUTER), other = mica_tensor_given(&t->d->w3);
    for (int64_t token = 0; token < t->s.tokens; token++)
        for (int64_t h = 0; h < t->s.width; h++) {
            sum all = {0};
            for (int64_t c = token * t->s.k; c < (token + 1) * t->s.k; c++) {
                const int64_t e = t->expert[c];
                sum s = {0};
                number first = {0};
                for (int64_t n = 0; e >= 0 && n < t->s.pre; n++) {
                    const bool second = other && n >= t->s.inner;
                    /* The first product of two is kept as it is stored. */
                    if (second && n == t->s.inner)
                        first = mica_number_rounded(&t->a, mica_number_total(&t->a, &s));
                    mica_number_add(&t->a, &s, t->du[c * t->s.pre + n],
                                    second ? at3(t, MICA_MOE_W3, e, n - t->s.inner, h)
                                           : at3(t, MICA_MOE_W1, e, n, h));
                }
                number row = mica_number_total(&t->a, &s);
                row.error += first.error;
                if (e >= 0)
                    mica_number_add(&t->a, &all, mica_number_rounded(&t->a, row),
                                    mica_number_exact(1));
            }
            for (int64_t e = 0; routed && e < t->s.experts; e++)
                mica_number_add(&t->a, &all, t->dlogits[token * t->s.experts + e],
                                mica_number_exact(at2(&t->v[MICA_MOE_ROUTER], e, h)));
            mica_number_put(&t->a, dx, token * dx->t.strides[0] + h * dx->t.strides[1],
                            mica_number_total(&t->a, &all));
        }
}

/* Of rows of choices: numbers by columns. */
typedef struct factor {
    const number
        *kept; /* with `columns` for each choice; or NULL: an argument's row of the token */
    int64_t columns, first;
    int arg;
} factor;

static number factor_at(const truth *t, const factor *f, int64_t c, int64_t i)
{
    if (f->kept) return f->kept[c * f->columns + f->first + i];
    return mica_number_exact(at2(&t->v[f->arg], c / t->s.k, i));
}

static void put_weight_gradient(const truth *t, int arg, factor g, factor x)
{
    const mica_view *to = &t->v[arg];
    const int64_t *dims = to->t.dims, *by = to->t.strides;
    for (int64_t i = 0; to->data && i < dims[0] * dims[1] * dims[2]; i++) {
        const int64_t e = i / dims[2] / dims[1], row = i / dims[2] % dims[1], column = i % dims[2];
        sum s = {0};
        for (int64_t c = 0; c < t->choices; c++)
            if (t->expert[c] == e)
                mica_number_add(&t->a, &s, factor_at(t, &g, c, row), factor_at(t, &x, c, column));
        mica_number_put(&t->a, to, e * by[0] + row * by[1] + column * by[2],
                        mica_number_total(&t->a, &s));
    }
}

/* by_weight: g is taken by the choice's weight, as x's type holds it. */
static void put_bias_gradient(const truth *t, int arg, factor g, bool by_weight)
{
    const mica_view *to = &t->v[arg];
    const int64_t experts = to->t.rank == 2 ? t->s.experts : 1;
    const int64_t outputs = to->data ? to->t.dims[to->t.rank - 1] : 0;
    for (int64_t i = 0; i < experts * outputs; i++) {
        sum s = {0};
        for (int64_t c = 0; c < t->choices; c++) {
            const int64_t e = t->expert[c];
            if (e < 0 || (to->t.rank == 2 && e != i / outputs)) continue;
            const number w =
                by_weight ? mica_number_rounded(&t->a, t->weights[c]) : mica_number_exact(1);
            mica_number_add(&t->a, &s, factor_at(t, &g, c, i % outputs), w);
        }
        mica_number_put(&t->a, to, bias_at(&to->t, i / outputs, i % outputs),
                        mica_number_total(&t->a, &s));
    }
}

static void backward(const truth *t)
{
    const moe_sizes *s = &t->s;
    const factor du = {t->du, s->pre, 0, 0}, second = {t->du, s->pre, s->inner, 0};
    const factor wh = {t->wh, s->inner, 0, 0}, x = {NULL, 0, 0, MICA_MOE_X};
    const factor dy = {NULL, 0, 0, MICA_MOE_DY};
    const mica_view *dweights = &t->v[MICA_MOE_DWEIGHTS], *dlogits = &t->v[MICA_MOE_DLOGITS];
    const mica_view *drouter = &t->v[MICA_MOE_DROUTER];
    find_slopes(t);
    for (int64_t i = 0; moe_routes(t->d) && i < s->tokens; i++) route_slopes(t, i);
    for (int64_t i = 0; dlogits->data && i < s->tokens * s->experts; i++)
        mica_number_put(&t->a, dlogits, mica_offset(&dlogits->t, i), t->dlogits[i]);
    for (int64_t i = 0; has(t, MICA_MOE_ROUTER) && i < s->tokens * s->experts; i++)
        t->dlogits[i] = mica_number_rounded(&t->a, t->dlogits[i]);
    for (int64_t c = 0; dweights->data && c < t->choices; c++)
        mica_number_put(&t->a, dweights, mica_offset(&dweights->t, c), t->dweights[c]);
    put_input_gradient(t);
    put_weight_gradient(t, MICA_MOE_DW1, du, x);
    put_weight_gradient(t, MICA_MOE_DW3, second, x);
    put_weight_gradient(t, MICA_MOE_DW2, dy, wh);
    put_bias_gradient(t, MICA_MOE_DB1, du, false);
    put_bias_gradient(t, MICA_MOE_DB3, second, false);
    put_bias_gradient(t, MICA_MOE_DB2, dy, true);
    for (int64_t i = 0; drouter->data && i < s->experts * s->width; i++) {
        const int64_t e = i / s->width, h = i % s->width;
        sum r = {0};
        for (int64_t token = 0; token < s->tokens; token++)
            mica_number_add(&t->a, &r, t->dlogits[token * s->experts + e],
                            mica_number_exact(at2(&t->v[MICA_MOE_X], token, h)));
        mica_number_put(&t->a, drouter, e * drouter->t.strides[0] + h * drouter->t.strides[1],
                        mica_number_total(&t->a, &r));
    }
}

void moe_reference(const void *desc, const mica_view *args, const double *scalars)
{
    truth t;
    void *owned;
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    (void)scalars;
    if (!begin(&t, desc, args, &owned)) return;
    const mica_view *hidden = &args[MICA_MOE_HIDDEN];
    const bool kept = t.d->pass == MICA_MOE_FWD && hidden->data;
    for (int64_t i = 0; kept && i < mica_tensor_count(&hidden->t); i++)
        mica_put(hidden, mica_offset(&hidden->t, i), 0, 0);
    route(&t);
    if (t.d->pass == MICA_MOE_FWD)
        forward(&t);
    else
        backward(&t);
    mica_release(owned);
}
