/* SPDX-License-Identifier: Apache-2.0
 * Attention, the truth: row by row in double precision, two looks at the scores of a row (maximum
 * and sum, then results), nothing kept.
 *
 * Magnitudes. A score has an error of about growth(D) scale sum |q k| units, and of one unit of
 * each number it passes through; exp makes it a relative error of the weight. The tolerance
 * multiplies magnitudes by the growth of the outer sum, in which that error takes no part: so it
 * enters divided by it. In fields called `error` below it is counted in units. */
#include "ops/attention/attention.h"
#include "ops/convert/cpu/convert.h"
#include "cpu/cpu.h"
#include "cpu/scratch.h"

#include <float.h>
#include <math.h>
#include <string.h>

typedef struct truth {
    const mica_attention_desc *d;
    const mica_view *v;
    void *args[MICA_MAX_ARGS];
    attention_shape s;
    attention_dropout drop;
    double unit;                        /* roundoff of the arithmetic */
    double growth, growth_d, growth_dv; /* of the sums over keys or rows, D, Dv */
    double least; /* f32 weights lose digits below 2^-126: as a part of a unit */
    /* If q has 16 bits, engines may round what tensor cores multiply to its type, once each:
     * forward weights about their maximum; backward weights for dv, gradients of scores times the
     * slope of the soft cap for dq and dk. Rounding to nearest with p bits (bf16 8, f16 11) is off
     * by up to 2^-p of the number: 2^(24 - p) units. Subnormal numbers of f16 are off by up to
     * 2^-25, half a unit of 1. Few terms may make up a sum, so that nothing less would do. */
    double operand_units, operand_least;
    /* If q has 8 bits, else 0: what 1 is in units of attention_float8_unit, which engines declare
     * that round weights to e4m3; by the units of others roundings counted so are small. */
    double float8_units;
} truth;

/* One query: where it is, and its vectors. */
typedef struct row {
    int64_t n, h, i;
    attention_span queries, keys;
    int64_t shift;
    attention_range range;
    double scale, value_scale; /* with those of 8-bit types */
    double q[ATTENTION_MAX_DIM];
    double lse;                     /* bwd */
    double dout[ATTENTION_MAX_DIM]; /* bwd */
    double delta, delta_magnitude;  /* bwd: sum of dout out */
} row;

typedef struct score {
    double s, error;
    double slope; /* of the soft cap */
    bool beyond;  /* its terms may pass the end of f32 on the way */
} score;

static bool has(const truth *t, int arg)
{
    return t->v[arg].data != NULL;
}

static void load(const mica_view *v, int64_t offset, double *to)
{
    mica_to_f64(v->t.dtype, v->data, offset, v->t.strides[3], to, v->t.dims[3]);
}

static int64_t row_offset(const mica_tensor *t, const row *r)
{
    return r->queries.batch * t->strides[0] + r->h * t->strides[1] +
           (r->queries.first + r->i) * t->strides[2];
}

static double scale_of(const truth *t, int arg, int64_t kv_head)
{
    if (!has(t, arg)) return 1;
    const mica_tensor *s = &t->v[arg].t;
    return mica_get(&t->v[arg], s->dims[0] == 1 ? 0 : kv_head * s->strides[0]);
}

/* False if there is no such query. */
static bool row_open(const truth *t, int64_t n, int64_t h, int64_t i, row *r)
{
    r->n = n, r->h = h, r->i = i;
    r->queries = attention_queries(t->d, t->args, n);
    if (i >= r->queries.count) return false;
    r->keys = attention_keys(t->d, t->args, n);
    r->shift = attention_shift(t->d, r->queries.count, r->keys.count);
    r->range = attention_range_of(t->d, r->shift, r->keys.count, i);
    int64_t head = h / t->s.group;
    r->scale = t->d->scale * scale_of(t, MICA_ATTENTION_SCALE_Q, head) *
               scale_of(t, MICA_ATTENTION_SCALE_K, head);
    r->value_scale = scale_of(t, MICA_ATTENTION_SCALE_V, head);
    load(&t->v[MICA_ATTENTION_Q], row_offset(&t->d->q, r), r->q);
    return true;
}

/* Whether query r attends to key j, whose row then is loaded. */
static bool key_open(const truth *t, const row *r, int64_t j, double *k)
{
    if (j < r->range.from || j >= r->range.to) return false;
    if (has(t, MICA_ATTENTION_MASK)) {
        const mica_view *m = &t->v[MICA_ATTENTION_MASK];
        if (mica_get(m, attention_at(&m->t, r->n, r->h, r->i, j)) == 0) return false;
    }
    const mica_view *kv = &t->v[MICA_ATTENTION_K];
    int64_t at = attention_key_offset(t->d, &kv->t, t->args, r->n, &r->keys, r->h / t->s.group, j);
    if (at < 0) return false;
    load(kv, at, k);
    return true;
}

static void value_load(const truth *t, const row *r, int64_t j, double *v)
{
    const mica_view *view = &t->v[MICA_ATTENTION_V];
    load(view, attention_key_offset(t->d, &view->t, t->args, r->n, &r->keys, r->h / t->s.group, j),
         v);
}

static score score_of(const truth *t, const row *r, int64_t j, const double *k)
{
    double dot = 0, magnitude = 0;
    for (int64_t c = 0; c < t->s.d; c++) {
        dot += r->q[c] * k[c];
        magnitude += fabs(r->q[c] * k[c]);
    }
    score s = {.s = r->scale * dot, .slope = 1};
    const double most = t->unit > 0x1p-40 ? FLT_MAX / 4 : DBL_MAX;
    s.beyond = magnitude > most || 2 * fabs(r->scale) * magnitude > most;
    s.error = fabs(r->scale) * magnitude * t->growth_d + 2 * fabs(s.s);
    if (t->d->soft_cap > 0) {
        double tangent = tanh(s.s / t->d->soft_cap);
        s.slope = 1 - tangent * tangent;
        s.s = t->d->soft_cap * tangent;
        s.error = s.error * s.slope + 8 * fabs(s.s);
    }
    if (has(t, MICA_ATTENTION_SLOPES)) {
        const mica_view *v = &t->v[MICA_ATTENTION_SLOPES];
        double distance = fabs((double)(j - r->i - r->shift));
        double add = mica_get(v, r->h * v->t.strides[0]) * distance;
        s.s -= add;
        s.error += fabs(add) + fabs(s.s);
    }
    if (has(t, MICA_ATTENTION_BIAS)) {
        const mica_view *v = &t->v[MICA_ATTENTION_BIAS];
        double add = mica_get(v, attention_at(&v->t, r->n, r->h, r->i, j));
        s.s += add;
        s.error += fabs(add) + fabs(s.s);
    }
    return s;
}

/* What dropout makes of a weight: 0, 1, or 1 / (1 - dropout). */
static double kept(const truth *t, const row *r, int64_t j)
{
    if (t->d->dropout == 0) return 1;
    uint32_t word[4];
    attention_philox(&t->drop, r->n * t->s.heads + r->h, r->i, j / 4 * 4, word);
    return word[j % 4] < t->drop.threshold ? 0 : t->drop.scale;
}

static double sink_of(const truth *t, int64_t h)
{
    const mica_view *v = &t->v[MICA_ATTENTION_SINKS];
    return mica_get(v, h * v->t.strides[0]);
}

/* ---- forward ---- */

/* Maximum, sum about it, and the mean error of the weights. */
typedef struct statistics {
    double max, sum, error;
} statistics;

static void statistics_add(statistics *st, double s, double error)
{
    if (s > st->max) {
        double by = st->sum != 0 ? exp(st->max - s) : 0;
        st->sum *= by, st->error *= by;
        st->max = s;
    }
    double e = s == -INFINITY ? 0 : exp(s - st->max);
    st->sum += e;
    if (e > 0) st->error += e * (error + fabs(s) + fabs(st->max));
}

/* A sink of +inf takes all: exp(inf - inf) is meant to be 1 there. */
static void add_sink(statistics *st, double sink)
{
    if (sink == INFINITY && st->max < INFINITY && !isnan(st->sum))
        *st = (statistics){.max = INFINITY, .sum = 1};
    else
        statistics_add(st, sink, 0);
}

/* What rounding weights to e4m3 changes of a column. */
typedef struct rounding {
    double sum, squares;
} rounding;

/* Weights about their maximum are rounded times 2^8: by 2^-4 of themselves, or, below 2^-14, half
 * of 2^-17. p: divided by the sum of such weights. */
static void round_weight(double p, double least, int64_t columns, const double *v, rounding *to)
{
    double off = fmax(0x1p-4 * fabs(p), least);
    for (int64_t c = 0; c < columns; c++) {
        double e = off * fabs(v[c]);
        to[c].sum += e;
        to[c].squares += e * e;
    }
}

/* Values do not know how their weights are rounded: so the changes add up as random numbers do. Of
 * `e` they are 0.42 in the mean of squares (evenly spread inside a step of e4m3, weights evenly
 * over an octave): 1.75 times the root is 4.1 standard deviations. Beside it what all may be off in
 * the mean, less than 2^-9 of each. Never more than the sum. */
static double rounding_of(const rounding *r)
{
    return fmin(r->sum, 1.75 * sqrt(r->squares) + 0x1p-5 * r->sum);
}

/* Of a row's scores and weights those that it attends to; the others have theirs already. */
static void put_scores(const truth *t, const row *r, const statistics *st)
{
    const mica_view *scores = &t->v[MICA_ATTENTION_SCORES],
                    *weights = &t->v[MICA_ATTENTION_WEIGHTS];
    const double mean_error = st->sum != 0 ? st->error / st->sum : 0;
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    double *k = mica_scratch_take(ATTENTION_MAX_DIM * sizeof *k);
    for (int64_t j = r->range.from; j < r->range.to; j++) {
        if (!key_open(t, r, j, k)) continue;
        const score s = score_of(t, r, j, k);
        const double p = st->sum != 0 ? exp(s.s - st->max) / st->sum : 0;
        const double error = s.error + fabs(s.s) + fabs(st->max) + mean_error;
        if (scores->data)
            mica_put(scores, row_offset(&scores->t, r) + j * scores->t.strides[3], s.s,
                     s.beyond ? INFINITY : fabs(s.s) + s.error / t->growth);
        if (weights->data)
            mica_put(weights, row_offset(&weights->t, r) + j * weights->t.strides[3], p,
                     s.beyond ? INFINITY : p * (1 + error / t->growth) + t->least);
    }
}

static void forward_row(const truth *t, const row *r)
{
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    double *k = mica_scratch_take(ATTENTION_MAX_DIM * sizeof *k);
    double *v = mica_scratch_take(ATTENTION_MAX_DIM * sizeof *v);
    double *sum = mica_scratch_zeroed(ATTENTION_MAX_DIM * sizeof *sum);
    double *magnitude = mica_scratch_zeroed(ATTENTION_MAX_DIM * sizeof *magnitude);
    /* the part of the magnitude that errors of scores make */
    double *shifted = mica_scratch_zeroed(ATTENTION_MAX_DIM * sizeof *shifted);
    /* of values; 0 among them with a sink */
    double *low = mica_scratch_take(ATTENTION_MAX_DIM * sizeof *low);
    double *high = mica_scratch_take(ATTENTION_MAX_DIM * sizeof *high);
    rounding *rounded = mica_scratch_zeroed(ATTENTION_MAX_DIM * sizeof *rounded);
    for (int64_t c = 0; c < t->s.dv; c++) {
        low[c] = has(t, MICA_ATTENTION_SINKS) ? 0 : INFINITY;
        high[c] = has(t, MICA_ATTENTION_SINKS) ? 0 : -INFINITY;
    }
    statistics st = {.max = -INFINITY};
    bool beyond = false;
    for (int64_t j = r->range.from; j < r->range.to; j++) {
        if (!key_open(t, r, j, k)) continue;
        score s = score_of(t, r, j, k);
        statistics_add(&st, s.s, s.error);
        beyond |= s.beyond;
    }
    if (has(t, MICA_ATTENTION_SINKS)) add_sink(&st, sink_of(t, r->h));
    double lse = st.sum != 0 ? st.max + log(st.sum) : -INFINITY;
    double mean_error = st.sum != 0 ? st.error / st.sum : 0;
    double least = st.sum != 0 ? t->operand_least * r->value_scale / st.sum / t->growth : 0;
    for (int64_t j = r->range.from; j < r->range.to && st.sum != 0; j++) {
        if (!key_open(t, r, j, k)) continue;
        score s = score_of(t, r, j, k);
        /* Not exp(s - lse): where |max| is large, lse has lost the logarithm of the sum. */
        double p = exp(s.s - st.max) / st.sum * kept(t, r, j) * r->value_scale;
        double error = s.error + fabs(s.s) + fabs(st.max) + mean_error;
        if (p == 0) continue;
        value_load(t, r, j, v);
        for (int64_t c = 0; c < t->s.dv; c++) {
            sum[c] += p * v[c];
            magnitude[c] +=
                fabs(p * v[c]) * (1 + t->operand_units / t->growth) + fabs(v[c]) * least;
            shifted[c] += fabs(p * v[c]) * error / t->growth;
            low[c] = fmin(low[c], r->value_scale * v[c]);
            high[c] = fmax(high[c], r->value_scale * v[c]);
        }
        if (t->float8_units > 0)
            round_weight(p, 0x1p-18 / st.sum * fabs(r->value_scale), t->s.dv, v, rounded);
    }
    for (int64_t c = 0; c < t->s.dv; c++) {
        /* Weights stay positive and add up to 1, or less beside a sink, however wrong scores are.
         */
        double hull =
            t->d->dropout > 0 ? INFINITY : fmax(fmax(high[c] - sum[c], sum[c] - low[c]), 0);
        magnitude[c] += fmin(shifted[c], hull / (t->unit * t->growth));
        if (beyond) magnitude[c] = INFINITY;
        magnitude[c] += rounding_of(&rounded[c]) * t->float8_units / t->growth;
    }
    if (has(t, MICA_ATTENTION_SCORES) || has(t, MICA_ATTENTION_WEIGHTS)) put_scores(t, r, &st);
    const mica_view *out = &t->v[MICA_ATTENTION_OUT], *l = &t->v[MICA_ATTENTION_LSE];
    for (int64_t c = 0; c < t->s.dv; c++)
        mica_put(out, row_offset(&out->t, r) + c * out->t.strides[3], sum[c], magnitude[c]);
    if (l->data)
        mica_put(l, row_offset(&l->t, r), lse,
                 beyond        ? INFINITY
                 : st.sum != 0 ? 1 + (fabs(lse) + fabs(st.max) + mean_error) / t->growth
                               : 0);
}

static void put_all(const mica_view *v, double value)
{
    if (!v->data) return;
    int64_t count = mica_tensor_count(&v->t);
    for (int64_t i = 0; i < count; i++) mica_put(v, mica_offset(&v->t, i), value, 0);
}

static void forward(const truth *t)
{
    /* Rows of no sequence keep these. */
    put_all(&t->v[MICA_ATTENTION_OUT], 0);
    put_all(&t->v[MICA_ATTENTION_LSE], -INFINITY);
    put_all(&t->v[MICA_ATTENTION_SCORES], -INFINITY);
    put_all(&t->v[MICA_ATTENTION_WEIGHTS], 0);
    /* Beside a dimension of 0 the others may be anything. */
    if (mica_tensor_count(&t->d->out) == 0 && !has(t, MICA_ATTENTION_LSE) &&
        mica_tensor_count(&t->d->scores) == 0 && mica_tensor_count(&t->d->weights) == 0)
        return;
    int64_t rows = t->s.rows, lines = t->s.sequences * t->s.heads;
#pragma omp parallel for num_threads(mica_cpu_threads()) schedule(dynamic)
    for (int64_t a = 0; a < lines * rows; a++) {
        mica_scratch scope MICA_SCOPED = mica_scratch_open();
        row *r = mica_scratch_take(sizeof *r);
        if (row_open(t, a / rows / t->s.heads, a / rows % t->s.heads, a % rows, r))
            forward_row(t, r);
    }
}

/* ---- backward ---- */

static bool row_open_backward(const truth *t, int64_t n, int64_t h, int64_t i, row *r)
{
    if (!row_open(t, n, h, i, r)) return false;
    const mica_view *out = &t->v[MICA_ATTENTION_OUT], *dout = &t->v[MICA_ATTENTION_DOUT];
    const mica_view *lse = &t->v[MICA_ATTENTION_LSE];
    double o[ATTENTION_MAX_DIM];
    load(out, row_offset(&out->t, r), o);
    load(dout, row_offset(&dout->t, r), r->dout);
    r->lse = mica_get(lse, row_offset(&lse->t, r));
    r->delta = r->delta_magnitude = 0;
    for (int64_t c = 0; c < t->s.dv; c++) {
        r->delta += r->dout[c] * o[c];
        r->delta_magnitude += fabs(r->dout[c] * o[c]);
    }
    return r->lse != -INFINITY;
}

/* A weight, its gradient ds (of the score) and dq (of scale q k), and their magnitudes. */
typedef struct pair {
    double p, p_magnitude, ds, ds_magnitude, dq, dq_magnitude;
} pair;

/* False if they have nothing to do with each other. */
static bool pair_open(const truth *t, const row *r, int64_t j, double *k, pair *e)
{
    double v[ATTENTION_MAX_DIM];
    if (!key_open(t, r, j, k)) return false;
    value_load(t, r, j, v);
    score s = score_of(t, r, j, k);
    double p = exp(s.s - r->lse), keep = kept(t, r, j), dp = 0, dp_magnitude = 0;
    double error = s.error + fabs(s.s) + fabs(r->lse);
    for (int64_t c = 0; c < t->s.dv; c++) {
        dp += keep * r->dout[c] * v[c];
        dp_magnitude += keep * fabs(r->dout[c] * v[c]);
    }
    double difference = dp - r->delta;
    e->p = p * keep;
    e->p_magnitude = p * keep * (1 + (error + t->operand_units) / t->growth) +
                     keep * t->operand_least / t->growth;
    e->ds = p * difference;
    e->ds_magnitude = p * ((dp_magnitude + r->delta_magnitude) * (1 + t->growth_dv / t->growth) +
                           (error + 2) / t->growth * fabs(difference)) +
                      t->least * (dp_magnitude + r->delta_magnitude);
    e->dq = r->scale * s.slope * e->ds;
    double rounding = t->operand_units * s.slope * fabs(e->ds) + t->operand_least;
    if (t->d->soft_cap > 0) rounding += 8 * fabs(e->ds);
    e->dq_magnitude = fabs(r->scale) * (s.slope * e->ds_magnitude + rounding / t->growth);
    return true;
}

static void backward_query(const truth *t, const row *r)
{
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    double *k = mica_scratch_take(ATTENTION_MAX_DIM * sizeof *k);
    double *sum = mica_scratch_zeroed(ATTENTION_MAX_DIM * sizeof *sum);
    double *magnitude = mica_scratch_zeroed(ATTENTION_MAX_DIM * sizeof *magnitude);
    for (int64_t j = r->range.from; j < r->range.to; j++) {
        pair e;
        if (!pair_open(t, r, j, k, &e)) continue;
        for (int64_t c = 0; c < t->s.d; c++) {
            sum[c] += e.dq * k[c];
            magnitude[c] += e.dq_magnitude * fabs(k[c]);
        }
    }
    const mica_view *dq = &t->v[MICA_ATTENTION_DQ];
    for (int64_t c = 0; c < t->s.d; c++)
        mica_put(dq, row_offset(&dq->t, r) + c * dq->t.strides[3], sum[c], magnitude[c]);
}

/* Key j of sequence n in key head h: its gradients from all queries of the group. */
static void backward_key(const truth *t, int64_t n, int64_t h, int64_t j)
{
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    double *k = mica_scratch_take(ATTENTION_MAX_DIM * sizeof *k);
    double *dk = mica_scratch_zeroed(ATTENTION_MAX_DIM * sizeof *dk);
    double *dk_magnitude = mica_scratch_zeroed(ATTENTION_MAX_DIM * sizeof *dk_magnitude);
    double *dv = mica_scratch_zeroed(ATTENTION_MAX_DIM * sizeof *dv);
    double *dv_magnitude = mica_scratch_zeroed(ATTENTION_MAX_DIM * sizeof *dv_magnitude);
    row *r = mica_scratch_take(sizeof *r);
    for (int64_t a = 0; a < t->s.group * t->s.rows; a++) {
        pair e;
        if (!row_open_backward(t, n, h * t->s.group + a / t->s.rows, a % t->s.rows, r)) continue;
        if (!pair_open(t, r, j, k, &e)) continue;
        for (int64_t c = 0; c < t->s.d; c++) {
            dk[c] += e.dq * r->q[c];
            dk_magnitude[c] += e.dq_magnitude * fabs(r->q[c]);
        }
        for (int64_t c = 0; c < t->s.dv; c++) {
            dv[c] += e.p * r->dout[c];
            dv_magnitude[c] += e.p_magnitude * fabs(r->dout[c]);
        }
    }
    attention_span keys = attention_keys(t->d, t->args, n);
    const mica_view *k_view = &t->v[MICA_ATTENTION_DK], *v_view = &t->v[MICA_ATTENTION_DV];
    int64_t k_at = attention_key_offset(t->d, &k_view->t, t->args, n, &keys, h, j);
    int64_t v_at = attention_key_offset(t->d, &v_view->t, t->args, n, &keys, h, j);
    for (int64_t c = 0; c < t->s.d; c++)
        mica_put(k_view, k_at + c * k_view->t.strides[3], dk[c], dk_magnitude[c]);
    for (int64_t c = 0; c < t->s.dv; c++)
        mica_put(v_view, v_at + c * v_view->t.strides[3], dv[c], dv_magnitude[c]);
}

/* Element a of dbias, summed over what it was broadcast to. */
static void backward_bias(const truth *t, int64_t a)
{
    const mica_view *v = &t->v[MICA_ATTENTION_DBIAS];
    const int64_t full[4] = {t->s.sequences, t->s.heads, t->s.rows, t->s.keys};
    int64_t from[4], to[4], left = a;
    for (int d = 3; d >= 0; d--) {
        bool one = v->t.dims[d] == 1;
        from[d] = one ? 0 : left % v->t.dims[d];
        to[d] = one ? full[d] : from[d] + 1;
        left /= v->t.dims[d];
    }
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    double *k = mica_scratch_take(ATTENTION_MAX_DIM * sizeof *k);
    row *r = mica_scratch_take(sizeof *r);
    double sum = 0, magnitude = 0;
    for (int64_t n = from[0]; n < to[0]; n++)
        for (int64_t h = from[1]; h < to[1]; h++)
            for (int64_t i = from[2]; i < to[2]; i++) {
                if (!row_open_backward(t, n, h, i, r)) continue;
                for (int64_t j = from[3]; j < to[3]; j++) {
                    pair e;
                    if (!pair_open(t, r, j, k, &e)) continue;
                    sum += e.ds;
                    magnitude += e.ds_magnitude;
                }
            }
    mica_put(v, mica_offset(&v->t, a), sum, magnitude);
}

static void backward_sink(const truth *t, int64_t h)
{
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    row *r = mica_scratch_take(sizeof *r);
    double sum = 0, magnitude = 0, sink = sink_of(t, h);
    for (int64_t a = 0; a < t->s.sequences * t->s.rows; a++) {
        if (!row_open_backward(t, a / t->s.rows, h, a % t->s.rows, r)) continue;
        double p = sink == r->lse ? 1 : exp(sink - r->lse); /* of +inf, too */
        sum -= p * r->delta;
        magnitude += p * (r->delta_magnitude * (1 + t->growth_dv / t->growth) +
                          (fabs(sink) + fabs(r->lse)) / t->growth * fabs(r->delta));
    }
    const mica_view *v = &t->v[MICA_ATTENTION_DSINKS];
    mica_put(v, h * v->t.strides[0], sum, magnitude);
}

static void backward(const truth *t)
{
    const int outputs[] = {MICA_ATTENTION_DQ, MICA_ATTENTION_DK, MICA_ATTENTION_DV};
    for (int i = 0; i < 3; i++) put_all(&t->v[outputs[i]], 0);
    const attention_shape *s = &t->s;
    const mica_attention_desc *d = t->d;
    int64_t queries = mica_tensor_count(&d->dq) ? s->sequences * s->heads * s->rows : 0;
    bool any_key = mica_tensor_count(&d->dk) || mica_tensor_count(&d->dv);
    int64_t keys = any_key ? s->sequences * s->kv_heads * s->keys : 0;
#pragma omp parallel for num_threads(mica_cpu_threads()) schedule(dynamic)
    for (int64_t a = 0; a < queries; a++) {
        mica_scratch scope MICA_SCOPED = mica_scratch_open();
        row *r = mica_scratch_take(sizeof *r);
        int64_t line = a / s->rows;
        if (row_open_backward(t, line / s->heads, line % s->heads, a % s->rows, r))
            backward_query(t, r);
    }
#pragma omp parallel for num_threads(mica_cpu_threads()) schedule(dynamic)
    for (int64_t a = 0; a < keys; a++) {
        int64_t line = a / s->keys, n = line / s->kv_heads, j = a % s->keys;
        if (j < attention_keys(t->d, t->args, n).count) backward_key(t, n, line % s->kv_heads, j);
    }
    int64_t biases = has(t, MICA_ATTENTION_DBIAS) ? mica_tensor_count(&t->d->dbias) : 0;
#pragma omp parallel for num_threads(mica_cpu_threads()) schedule(dynamic)
    for (int64_t a = 0; a < biases; a++) backward_bias(t, a);
    int64_t sinks = has(t, MICA_ATTENTION_DSINKS) ? s->heads : 0;
    for (int64_t h = 0; h < sinks; h++) backward_sink(t, h);
}

void attention_reference(const void *desc, const mica_view *args, const double *scalars)
{
    (void)scalars;
    truth t = {.d = desc, .v = args};
    for (int i = 0; i < MICA_MAX_ARGS && i < mica_op_attention.arg_count; i++)
        t.args[i] = args[i].data;
    attention_shape_make(t.d, &t.s);
    t.unit = t.d->q.dtype == MICA_F64 ? 0x1p-53 : 0x1p-24;
    t.growth = attention_growth(attention_terms(desc));
    t.growth_d = attention_growth(t.s.d);
    t.growth_dv = attention_growth(t.s.dv);
    t.least = t.d->q.dtype == MICA_F64 ? 0 : 0x1p-149 / 0x1p-24 / t.growth;
    if (t.d->q.dtype == MICA_BF16) t.operand_units = 0x1p16;
    if (t.d->q.dtype == MICA_F16) t.operand_units = 0x1p13, t.operand_least = 0.5;
    if (t.d->q.dtype == MICA_E4M3 || t.d->q.dtype == MICA_E5M2)
        t.float8_units = 1 / attention_float8_unit(t.d);
    t.drop = attention_dropout_make(t.d, t.args[MICA_ATTENTION_RNG]);
    if (t.d->pass == MICA_ATTENTION_FWD)
        forward(&t);
    else
        backward(&t);
}
