/* SPDX-License-Identifier: Apache-2.0
 * Multi-head attention, the truth: plain loops in double precision, step by step through the
 * tensors between the steps. Nothing of the family attention is used.
 *
 * Errors are counted in units of the accumulator (2^-24, of f64 2^-53), and what is stored is
 * rounded to its type: `rounding` units of it (of bf16 2^16). A product passes on the errors of its
 * factors; those of a sum's terms are independent, so that of n of them 4 sqrt(n) times their size
 * is left, n at most (as mica_contract_phi has it for sums). The tolerance multiplies magnitudes by
 * the growth of the longest sum: they are errors divided by it. */
#include "ops/mha/mha.h"
#include "cpu/cpu.h"
#include "cpu/scratch.h"
#include "kernels/philox.h"

#include <math.h>

typedef struct truth {
    const mica_mha_desc *d;
    const mica_view *v;
    mha_sizes s;
    double beta, growth;
    double sums;     /* error of a sum by its size, where tensor cores truncate more than growth */
    double rounding; /* of a number of the problem's type, in units */
    double operand;  /* what tf32 loses of a number when it is multiplied */
    double least;    /* f16: what rounding subnormal numbers costs, in units of 1 */
} truth;

/* A number that was stored, or that stands between. */
typedef struct number {
    double v, error;
} number;

typedef struct sum {
    double v, size, linear, squares;
} sum;

static void add(sum *s, number a, number b)
{
    double e = fabs(a.v) * b.error + a.error * fabs(b.v);
    s->v += a.v * b.v;
    s->size += fabs(a.v * b.v);
    s->linear += e;
    s->squares += e * e;
}

static double error_of(const truth *t, const sum *s)
{
    return t->sums * s->size + fmin(s->linear, 4 * sqrt(s->squares));
}

static number get(const truth *t, int arg, int64_t offset)
{
    const mica_view *v = &t->v[arg];
    number n = {.v = mica_get(v, offset)};
    n.error = t->operand * fabs(n.v);
    if (v->mag) n.error += t->growth * v->mag[offset] + t->rounding * fabs(n.v) + t->least;
    return n;
}

static void put(const truth *t, int arg, int64_t offset, double value, double error)
{
    mica_put(&t->v[arg], offset, value, error / t->growth);
}

/* A last result: beta times what was there comes to it. */
static void put_sum(const truth *t, int arg, int64_t offset, sum s)
{
    if (t->beta != 0) add(&s, (number){.v = t->beta}, (number){.v = mica_get(&t->v[arg], offset)});
    put(t, arg, offset, s.v, error_of(t, &s));
}

/* Row i of batch item n, column c; of heads side by side where the tensor has them. */
static int64_t at(const mica_tensor *x, int64_t n, int64_t i, int64_t c)
{
    const int64_t *s = x->strides;
    if (x->rank == 3) return n * s[0] + i * s[1] + c * s[2];
    return n * s[0] + c / x->dims[3] * s[1] + i * s[2] + c % x->dims[3] * s[3];
}

static int64_t in_head(const mica_tensor *x, int64_t n, int64_t h, int64_t i)
{
    return n * x->strides[0] + h * x->strides[1] + i * x->strides[2];
}

/* ---- projections ---- */

typedef struct projection {
    int x, w, y, bias; /* arguments; bias: -1 for none */
    bool turned, last; /* y = x w in place of x w^T; y is a last result */
    int64_t rows;
} projection;

static void project(const truth *t, const projection *p)
{
    const mica_tensor *x = &t->v[p->x].t, *w = &t->v[p->w].t, *y = &t->v[p->y].t;
    int64_t columns = w->dims[p->turned ? 1 : 0], terms = w->dims[p->turned ? 0 : 1];
    int64_t by_column = w->strides[p->turned ? 1 : 0], by_term = w->strides[p->turned ? 0 : 1];
    if (mica_tensor_count(y) == 0) return;
    int64_t count = y->dims[0] * p->rows * columns;
#pragma omp parallel for num_threads(mica_cpu_threads())
    for (int64_t a = 0; a < count; a++) {
        int64_t n = a / columns / p->rows, i = a / columns % p->rows, c = a % columns;
        sum s = {0};
        for (int64_t k = 0; k < terms; k++)
            add(&s, get(t, p->x, at(x, n, i, k)), get(t, p->w, c * by_column + k * by_term));
        if (p->bias >= 0 && t->v[p->bias].data)
            add(&s, get(t, p->bias, c * t->v[p->bias].t.strides[0]), (number){.v = 1});
        if (p->last)
            put_sum(t, p->y, at(y, n, i, c), s);
        else
            put(t, p->y, at(y, n, i, c), s.v, error_of(t, &s));
    }
}

/* dw = dy^T x, and the sums of dy's columns. */
static void project_weights(const truth *t, int dy_arg, int x_arg, int w_arg, int bias_arg,
                            int64_t rows)
{
    const mica_tensor *dy = &t->v[dy_arg].t, *x = &t->v[x_arg].t, *w = &t->v[w_arg].t;
    int64_t count = mica_tensor_count(w), all = x->dims[0] * rows;
#pragma omp parallel for num_threads(mica_cpu_threads())
    for (int64_t a = 0; a < count; a++) {
        int64_t m = a / w->dims[1], k = a % w->dims[1];
        sum s = {0};
        for (int64_t r = 0; r < all; r++)
            add(&s, get(t, dy_arg, at(dy, r / rows, r % rows, m)),
                get(t, x_arg, at(x, r / rows, r % rows, k)));
        put_sum(t, w_arg, m * w->strides[0] + k * w->strides[1], s);
    }
    if (!t->v[bias_arg].data) return;
    const mica_tensor *bias = &t->v[bias_arg].t;
    for (int64_t m = 0; m < bias->dims[0]; m++) {
        sum s = {0};
        for (int64_t r = 0; r < all; r++)
            add(&s, get(t, dy_arg, at(dy, r / rows, r % rows, m)), (number){.v = 1});
        put_sum(t, bias_arg, m * bias->strides[0], s);
    }
}

/* ---- which keys ---- */

/* Rows of one sequence: in batch item `batch`, from `first` on. */
typedef struct span {
    int64_t batch, first, count;
} span;

static bool has(const truth *t, int arg)
{
    return t->v[arg].data != NULL;
}

static int64_t listed(const truth *t, int arg, int64_t i, int64_t low, int64_t high)
{
    int64_t x = (int64_t)mica_get(&t->v[arg], i * t->v[arg].t.strides[0]);
    return x < low ? low : x > high ? high : x;
}

static span span_of(const truth *t, int cu, int seq, int64_t rows, int64_t n)
{
    if (has(t, cu)) {
        int64_t from = listed(t, cu, n, 0, rows);
        return (span){0, from, listed(t, cu, n + 1, from, rows) - from};
    }
    return (span){n, 0, has(t, seq) ? listed(t, seq, n, 0, rows) : rows};
}

static span keys_of(const truth *t, int64_t n)
{
    return span_of(t, MICA_MHA_CU_K, MICA_MHA_SEQ_K, t->s.keys, n);
}

static int64_t sequences(const truth *t)
{
    return has(t, MICA_MHA_CU_Q) ? t->v[MICA_MHA_CU_Q].t.dims[0] - 1 : t->s.batch;
}

/* Query i of sequence n, head h. */
typedef struct query {
    int64_t n, h, i;
    span queries, keys;
    int64_t diagonal; /* the key that lies on it */
} query;

/* False if the sequence is shorter. */
static bool query_open(const truth *t, int64_t n, int64_t h, int64_t i, query *q)
{
    *q = (query){.n = n, .h = h, .i = i};
    q->queries = span_of(t, MICA_MHA_CU_Q, MICA_MHA_SEQ_Q, t->s.rows, n);
    q->keys = keys_of(t, n);
    bool last = t->d->align == MICA_ATTENTION_ALIGN_BOTTOM_RIGHT;
    q->diagonal = i + (last ? q->keys.count - q->queries.count : 0);
    return i < q->queries.count;
}

static int64_t broadcast(const mica_tensor *x, const query *q, int64_t j)
{
    const int64_t where[] = {q->n, q->h, q->i, j};
    int64_t offset = 0;
    for (int a = 0; a < 4; a++) offset += x->dims[a] == 1 ? 0 : where[a] * x->strides[a];
    return offset;
}

static bool sees(const truth *t, const query *q, int64_t j)
{
    int64_t d = j - q->diagonal;
    if (t->d->causal && d > 0) return false;
    if (t->d->window_left && d <= -t->d->window_left) return false;
    if (t->d->window_right && d >= t->d->window_right) return false;
    const mica_view *m = &t->v[MICA_MHA_MASK];
    return !m->data || mica_get(m, broadcast(&m->t, q, j)) != 0;
}

/* What dropout makes of a weight of 1. */
static double kept(const truth *t, const query *q, int64_t j)
{
    if (t->d->dropout == 0) return 1;
    const mica_view *rng = &t->v[MICA_MHA_RNG];
    const uint64_t *numbers = rng->data;
    uint64_t seed = numbers[0], offset = numbers[rng->t.strides[0]];
    const uint32_t key[] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t word[] = {(uint32_t)(uint64_t)(j / 4), (uint32_t)(uint64_t)q->i,
                       (uint32_t)(uint64_t)(q->n * t->s.heads + q->h), (uint32_t)offset};
    mica_philox(key, word);
    return word[j % 4] < (uint32_t)(t->d->dropout * 0x1p32) ? 0 : 1 / (1 - t->d->dropout);
}

/* ---- attention ---- */

static int64_t query_row(const mica_tensor *x, const query *q)
{
    return in_head(x, q->queries.batch, q->h, q->queries.first + q->i);
}

static int64_t key_row(const truth *t, const mica_tensor *x, const query *q, int64_t j)
{
    return in_head(x, q->keys.batch, q->h / (t->s.heads / t->s.kv_heads), q->keys.first + j);
}

static void increase(number *s, double by)
{
    s->v += by;
    s->error += fabs(by) + fabs(s->v);
}

/* slope: of the soft cap. */
static number score(const truth *t, const query *q, int64_t j, double *slope)
{
    const mica_tensor *queries = &t->v[MICA_MHA_QH].t, *keys = &t->v[MICA_MHA_KH].t;
    int64_t from_q = query_row(queries, q), from_k = key_row(t, keys, q, j);
    sum dot = {0};
    for (int64_t c = 0; c < t->s.d; c++)
        add(&dot, get(t, MICA_MHA_QH, from_q + c * queries->strides[3]),
            get(t, MICA_MHA_KH, from_k + c * keys->strides[3]));
    number s = {.v = t->d->scale * dot.v};
    s.error = fabs(t->d->scale) * error_of(t, &dot) + 3 * fabs(s.v);
    *slope = 1;
    if (t->d->soft_cap > 0) {
        double tangent = tanh(s.v / t->d->soft_cap);
        *slope = 1 - tangent * tangent;
        s.v = t->d->soft_cap * tangent;
        s.error = s.error * *slope + 8 * fabs(s.v);
    }
    const mica_view *slopes = &t->v[MICA_MHA_SLOPES], *bias = &t->v[MICA_MHA_BIAS];
    if (slopes->data)
        increase(&s,
                 -mica_get(slopes, q->h * slopes->t.strides[0]) * fabs((double)(j - q->diagonal)));
    if (bias->data) increase(&s, mica_get(bias, broadcast(&bias->t, q, j)));
    return s;
}

static double sink_of(const truth *t, int64_t h)
{
    const mica_view *v = &t->v[MICA_MHA_SINKS];
    return v->data ? mica_get(v, h * v->t.strides[0]) : -INFINITY;
}

/* about: the logarithm of the sum, or the maximum */
static number weight(number s, double about, double error)
{
    double p = exp(s.v - about);
    return (number){p, p * (s.error + error + fabs(about))};
}

/* A weight as a tensor core gets it: dropped or not, and rounded. */
static number operand(const truth *t, number p, double keep)
{
    p.v *= keep;
    p.error = keep * (p.error + t->least) + (t->rounding + t->operand) * p.v;
    return p;
}

static void forward_row(const truth *t, const query *q)
{
    double sink = sink_of(t, q->h), max = sink, total = 0, error = 0, slope;
    for (int64_t j = 0; j < q->keys.count; j++)
        if (sees(t, q, j)) max = fmax(max, score(t, q, j, &slope).v);
    for (int64_t j = 0; j < q->keys.count; j++) {
        if (!sees(t, q, j)) continue;
        number s = score(t, q, j, &slope);
        total += exp(s.v - max);
        error += exp(s.v - max) * (s.error + fabs(max));
    }
    if (sink != -INFINITY) {
        double e = sink == max ? 1 : exp(sink - max); /* +inf takes all */
        total += e;
        error += e * (fabs(sink) + fabs(max));
    }
    double lse = total != 0 ? max + log(total) : -INFINITY;
    const mica_tensor *l = &t->v[MICA_MHA_LSE].t, *o = &t->v[MICA_MHA_OH].t;
    const mica_tensor *values = &t->v[MICA_MHA_VH].t;
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    sum *sums = mica_scratch_zeroed(MHA_MAX_DIM * sizeof *sums);
    for (int64_t j = 0; j < q->keys.count && total != 0; j++) {
        if (!sees(t, q, j)) continue;
        /* Not exp(s - lse): where |max| is large, lse has lost the logarithm of the sum. */
        number s = score(t, q, j, &slope), p = weight(s, max, error / total + fabs(lse));
        p.v /= total, p.error /= total;
        p = operand(t, p, kept(t, q, j));
        int64_t from = key_row(t, values, q, j);
        for (int64_t c = 0; c < t->s.dv; c++)
            add(&sums[c], p, get(t, MICA_MHA_VH, from + c * values->strides[3]));
    }
    for (int64_t c = 0; c < t->s.dv; c++)
        put(t, MICA_MHA_OH, query_row(o, q) + c * o->strides[3], sums[c].v,
            t->sums * sums[c].size + sums[c].linear);
    put(t, MICA_MHA_LSE, query_row(l, q), lse,
        total != 0 ? t->growth + error / total + fabs(lse) + fabs(max) : 0);
}

/* Rows of no sequence keep it. */
static void put_all(const truth *t, int arg, double value)
{
    const mica_tensor *x = &t->v[arg].t;
    int64_t count = has(t, arg) ? mica_tensor_count(x) : 0;
    for (int64_t i = 0; i < count; i++) put(t, arg, mica_offset(x, i), value, 0);
}

static void forward_heads(const truth *t)
{
    put_all(t, MICA_MHA_OH, 0);
    put_all(t, MICA_MHA_LSE, -INFINITY);
    int64_t rows = t->s.rows, lines = sequences(t) * t->s.heads;
#pragma omp parallel for num_threads(mica_cpu_threads()) schedule(dynamic)
    for (int64_t a = 0; a < lines * rows; a++) {
        query q;
        if (query_open(t, a / rows / t->s.heads, a / rows % t->s.heads, a % rows, &q))
            forward_row(t, &q);
    }
}

static number product_of(const truth *t, int a_arg, int64_t a, int b_arg, int64_t b)
{
    int64_t by_a = t->v[a_arg].t.strides[3], by_b = t->v[b_arg].t.strides[3];
    sum s = {0};
    for (int64_t c = 0; c < t->s.dv; c++)
        add(&s, get(t, a_arg, a + c * by_a), get(t, b_arg, b + c * by_b));
    return (number){s.v, error_of(t, &s)};
}

/* The gradient of a row's scores has this share of every one, by its weight. */
static number delta_of(const truth *t, const query *q)
{
    return product_of(t, MICA_MHA_DOH, query_row(&t->v[MICA_MHA_DOH].t, q), MICA_MHA_OH,
                      query_row(&t->v[MICA_MHA_OH].t, q));
}

static double lse_of(const truth *t, const query *q)
{
    return mica_get(&t->v[MICA_MHA_LSE], query_row(&t->v[MICA_MHA_LSE].t, q));
}

/* What a query and a key have to do with each other: the weight, the gradient of the score, and
 * that of what the soft cap was applied to; weight and the last one as tensor cores get them. */
typedef struct pair {
    number p, ds, dx;
} pair;

/* False for nothing. */
static bool pair_open(const truth *t, const query *q, int64_t j, pair *e)
{
    double lse = lse_of(t, q), slope;
    if (lse == -INFINITY || !sees(t, q, j)) return false;
    number dp = product_of(t, MICA_MHA_DOH, query_row(&t->v[MICA_MHA_DOH].t, q), MICA_MHA_VH,
                           key_row(t, &t->v[MICA_MHA_VH].t, q, j));
    number delta = delta_of(t, q), p = weight(score(t, q, j, &slope), lse, 0);
    double keep = kept(t, q, j), difference = keep * dp.v - delta.v;
    e->p = operand(t, p, keep);
    e->ds.v = p.v * difference;
    e->ds.error =
        p.v * (keep * dp.error + delta.error) + p.error * fabs(difference) + 2 * fabs(e->ds.v);
    e->dx.v = slope * e->ds.v;
    e->dx.error = slope * e->ds.error + (t->rounding + t->operand) * fabs(e->dx.v) + t->least;
    if (t->d->soft_cap > 0) e->dx.error += 8 * fabs(e->ds.v);
    return true;
}

static void put_head(const truth *t, int arg, int64_t from, int64_t columns, const sum *sums,
                     double scale)
{
    for (int64_t c = 0; c < columns; c++)
        put(t, arg, from + c * t->v[arg].t.strides[3], scale * sums[c].v,
            fabs(scale) * (t->sums * sums[c].size + sums[c].linear));
}

static void backward_query(const truth *t, const query *q)
{
    const mica_tensor *k = &t->v[MICA_MHA_KH].t;
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    sum *sums = mica_scratch_zeroed(MHA_MAX_DIM * sizeof *sums);
    pair e;
    for (int64_t j = 0; j < q->keys.count; j++) {
        if (!pair_open(t, q, j, &e)) continue;
        int64_t from = key_row(t, k, q, j);
        for (int64_t c = 0; c < t->s.d; c++)
            add(&sums[c], e.dx, get(t, MICA_MHA_KH, from + c * k->strides[3]));
    }
    put_head(t, MICA_MHA_DQH, query_row(&t->v[MICA_MHA_DQH].t, q), t->s.d, sums, t->d->scale);
}

static void backward_key(const truth *t, int64_t n, int64_t g, int64_t j)
{
    const mica_tensor *q = &t->v[MICA_MHA_QH].t, *dout = &t->v[MICA_MHA_DOH].t;
    int64_t group = t->s.heads / t->s.kv_heads;
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    sum *dk = mica_scratch_zeroed(MHA_MAX_DIM * sizeof *dk);
    sum *dv = mica_scratch_zeroed(MHA_MAX_DIM * sizeof *dv);
    span keys = keys_of(t, n);
    if (j >= keys.count) return;
    for (int64_t a = 0; a < group * t->s.rows; a++) {
        query from;
        pair e;
        if (!query_open(t, n, g * group + a / t->s.rows, a % t->s.rows, &from)) continue;
        if (!pair_open(t, &from, j, &e)) continue;
        int64_t from_q = query_row(q, &from), from_do = query_row(dout, &from);
        for (int64_t c = 0; c < t->s.d; c++)
            add(&dk[c], e.dx, get(t, MICA_MHA_QH, from_q + c * q->strides[3]));
        for (int64_t c = 0; c < t->s.dv; c++)
            add(&dv[c], e.p, get(t, MICA_MHA_DOH, from_do + c * dout->strides[3]));
    }
    int64_t row = keys.first + j;
    put_head(t, MICA_MHA_DKH, in_head(&t->v[MICA_MHA_DKH].t, keys.batch, g, row), t->s.d, dk,
             t->d->scale);
    put_head(t, MICA_MHA_DVH, in_head(&t->v[MICA_MHA_DVH].t, keys.batch, g, row), t->s.dv, dv, 1);
}

/* Element a of dbias: the sum over what bias was broadcast to. */
static void backward_bias(const truth *t, int64_t a)
{
    const mica_tensor *x = &t->v[MICA_MHA_DBIAS].t;
    const int64_t all[] = {t->s.batch, t->s.heads, t->s.rows, t->s.keys};
    int64_t from[4], to[4], left = a;
    for (int i = 3; i >= 0; i--) {
        from[i] = left % x->dims[i];
        to[i] = from[i] + 1;
        if (x->dims[i] == 1) from[i] = 0, to[i] = all[i];
        left /= x->dims[i];
    }
    sum s = {0};
    for (int64_t n = from[0]; n < to[0]; n++)
        for (int64_t h = from[1]; h < to[1]; h++)
            for (int64_t i = from[2]; i < to[2]; i++) {
                query q;
                pair e;
                if (!query_open(t, n, h, i, &q)) continue;
                for (int64_t j = from[3]; j < to[3] && j < q.keys.count; j++)
                    if (pair_open(t, &q, j, &e)) add(&s, e.ds, (number){.v = 1});
            }
    put(t, MICA_MHA_DBIAS, mica_offset(x, a), s.v, t->sums * s.size + s.linear);
}

static void backward_sink(const truth *t, int64_t h)
{
    sum s = {0};
    double sink = sink_of(t, h);
    for (int64_t a = 0; a < sequences(t) * t->s.rows; a++) {
        query q;
        if (!query_open(t, a / t->s.rows, h, a % t->s.rows, &q)) continue;
        double lse = lse_of(t, &q);
        if (lse == -INFINITY) continue;
        number p = weight((number){sink, fabs(sink)}, lse, 0);
        add(&s, delta_of(t, &q), (number){-p.v, p.error});
    }
    put(t, MICA_MHA_DSINKS, h * t->v[MICA_MHA_DSINKS].t.strides[0], s.v,
        t->sums * s.size + s.linear);
}

static void backward_heads(const truth *t)
{
    const mha_sizes *s = &t->s;
    const int gradients[] = {MICA_MHA_DQH, MICA_MHA_DKH, MICA_MHA_DVH};
    for (int i = 0; i < 3; i++) put_all(t, gradients[i], 0);
    int64_t rows = sequences(t) * s->heads * s->rows, keys = sequences(t) * s->kv_heads * s->keys;
#pragma omp parallel for num_threads(mica_cpu_threads()) schedule(dynamic)
    for (int64_t a = 0; a < rows; a++) {
        query q;
        if (query_open(t, a / s->rows / s->heads, a / s->rows % s->heads, a % s->rows, &q))
            backward_query(t, &q);
    }
#pragma omp parallel for num_threads(mica_cpu_threads()) schedule(dynamic)
    for (int64_t a = 0; a < keys; a++)
        backward_key(t, a / s->keys / s->kv_heads, a / s->keys % s->kv_heads, a % s->keys);
    int64_t biases = has(t, MICA_MHA_DBIAS) ? mica_tensor_count(&t->v[MICA_MHA_DBIAS].t) : 0;
#pragma omp parallel for num_threads(mica_cpu_threads()) schedule(dynamic)
    for (int64_t a = 0; a < biases; a++) backward_bias(t, a);
    int64_t sinks = has(t, MICA_MHA_DSINKS) ? s->heads : 0;
    for (int64_t h = 0; h < sinks; h++) backward_sink(t, h);
}

/* ---- passes ---- */

static void forward(const truth *t)
{
    const mha_sizes *s = &t->s;
    const projection in[] = {{MICA_MHA_Q, MICA_MHA_WQ, MICA_MHA_QH, MICA_MHA_BQ, .rows = s->rows},
                             {MICA_MHA_K, MICA_MHA_WK, MICA_MHA_KH, MICA_MHA_BK, .rows = s->keys},
                             {MICA_MHA_V, MICA_MHA_WV, MICA_MHA_VH, MICA_MHA_BV, .rows = s->keys}};
    for (int i = 0; i < 3; i++) project(t, &in[i]);
    forward_heads(t);
    const projection out = {MICA_MHA_OH, MICA_MHA_WO,  MICA_MHA_OUT,
                            MICA_MHA_BO, .last = true, .rows = s->rows};
    project(t, &out);
}

static void backward_data(const truth *t)
{
    const mha_sizes *s = &t->s;
    const projection in = {MICA_MHA_OUT, MICA_MHA_WO, MICA_MHA_DOH, -1, true, false, s->rows};
    project(t, &in);
    backward_heads(t);
    const projection out[] = {{MICA_MHA_DQH, MICA_MHA_WQ, MICA_MHA_Q, -1, true, true, s->rows},
                              {MICA_MHA_DKH, MICA_MHA_WK, MICA_MHA_K, -1, true, true, s->keys},
                              {MICA_MHA_DVH, MICA_MHA_WV, MICA_MHA_V, -1, true, true, s->keys}};
    for (int i = 0; i < 3; i++) project(t, &out[i]);
}

static void backward_weights(const truth *t)
{
    const mha_sizes *s = &t->s;
    project_weights(t, MICA_MHA_DQH, MICA_MHA_Q, MICA_MHA_WQ, MICA_MHA_BQ, s->rows);
    project_weights(t, MICA_MHA_DKH, MICA_MHA_K, MICA_MHA_WK, MICA_MHA_BK, s->keys);
    project_weights(t, MICA_MHA_DVH, MICA_MHA_V, MICA_MHA_WV, MICA_MHA_BV, s->keys);
    project_weights(t, MICA_MHA_OUT, MICA_MHA_OH, MICA_MHA_WO, MICA_MHA_BO, s->rows);
}

static truth truth_of(const mica_mha_desc *d, const mica_view *v)
{
    mica_contract c;
    mica_op_contract(&mica_op_mha, d, &c);
    truth t = {.d = d, .v = v, .s = mha_sizes_of(d)};
    t.growth = mica_contract_phi(&c) / c.unit;
    t.rounding = mica_dtype_unit(d->q.dtype) / c.unit;
    bool narrow = t.rounding > 1, tf32 = d->q.dtype == MICA_F32 && d->compute == MICA_COMPUTE_TF32;
    t.operand = tf32 ? mica_dtype_unit(MICA_F16) / c.unit : 0;
    /* Steps of 8 terms and more are cut off, parts of the sum are then added up. */
    t.sums = narrow || tf32 ? fmax(t.growth, (double)c.n_seq / 4 + 46) : t.growth;
    t.least = d->q.dtype == MICA_F16 ? 1 : 0;
    return t;
}

void mha_reference(const void *desc, const mica_view *v, const double *scalars)
{
    const mica_mha_desc *d = desc;
    truth t = truth_of(d, v);
    t.beta = scalars[MICA_MHA_BETA];
    if (d->pass == MICA_MHA_FWD)
        forward(&t);
    else if (d->pass == MICA_MHA_BWD_DATA)
        backward_data(&t);
    else
        backward_weights(&t);
}

void mha_reference_attention(const mica_mha_desc *d, const mica_view *v)
{
    truth t = truth_of(d, v);
    forward_heads(&t);
}
