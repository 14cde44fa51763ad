/* SPDX-License-Identifier: Apache-2.0
 * Engine "compose": attention whose scores or weights are wanted. The results without them by the
 * best engine for these; then scores as a product of all queries and keys in f32 (f64), which an
 * expression scales, caps, biases and masks; and weights of them by the maximum and the sum of each
 * row, which do not lose what lse would where scores are large. Cost: that of attention, and B H Sq
 * Sk numbers of 4 bytes that are written twice and read three times, four with weights. */
#include "mica/gemm.h"
#include "mica/pointwise.h"
#include "mica/reduce.h"
#include "base/format.h"
#include "ops/attention/attention.h"
#include "ops/compose/compose.h"

#include <string.h>

/* A tensor and where it lies. */
typedef struct operand {
    mica_tensor t;
    mica_memory at;
} operand;

typedef struct steps {
    const mica_attention_desc *d;
    mica_compose list;
    attention_shape s;
    mica_dtype real;
} steps;

static operand temporary(steps *p, int rank, const int64_t *dims)
{
    const mica_tensor t = mica_tensor_packed(p->real, rank, dims);
    const size_t bytes = (size_t)mica_dtype_bits(p->real) / 8;
    return (operand){t, mica_compose_temporary(&p->list, (size_t)mica_tensor_count(&t) * bytes)};
}

static operand argument(const mica_tensor *t, int arg)
{
    return (operand){*t, mica_compose_arg(arg)};
}

/* Repeated along dimensions in which it has one element. */
static operand spread(operand o, const int64_t dims[4])
{
    for (int i = 0; i < 4; i++)
        if (o.t.dims[i] != dims[i]) o.t.dims[i] = dims[i], o.t.strides[i] = 0;
    return o;
}

/* Elements of a list along dimension `along` of four. */
static operand listed(operand o, int along, const int64_t dims[4])
{
    const int64_t stride = o.t.strides[0];
    o.t.rank = 4;
    for (int i = 0; i < 4; i++) o.t.dims[i] = dims[i], o.t.strides[i] = i == along ? stride : 0;
    return o;
}

/* ---- an expression and what it reads ---- */

typedef struct expression {
    mica_pointwise_desc d;
    mica_text text;
    mica_memory at[8];
    int count;
} expression;

static void begin(expression *e)
{
    memset(e, 0, sizeof *e);
    e->text = (mica_text){e->d.expr, sizeof e->d.expr, 0};
}

/* Its number: x0 to x7. */
static int read_operand(expression *e, operand x)
{
    (&e->d.x0)[e->count] = x.t;
    e->at[e->count] = x.at;
    return e->count++;
}

static void end(steps *p, expression *e, operand y)
{
    e->d.y0 = y.t;
    mica_compose_step(&p->list, "pointwise", &e->d, sizeof e->d, NULL);
    for (int i = 0; i < e->count; i++) mica_compose_bind(&p->list, MICA_POINTWISE_X0 + i, e->at[i]);
    mica_compose_bind(&p->list, MICA_POINTWISE_Y0, y.at);
}

static void reduction(steps *p, mica_reduce_kind kind, const char *map, operand x,
                      const operand *x1, operand y)
{
    mica_reduce_desc r = {
        .kind = kind, .x = x.t, .y = y.t, .keepdims = true, .axes = {MICA_REDUCE_AXIS(3)}};
    if (map) mica_format(r.map, sizeof r.map, "%s", map);
    if (x1) r.x1 = x1->t;
    mica_compose_step(&p->list, "reduce", &r, sizeof r, NULL);
    mica_compose_bind(&p->list, MICA_REDUCE_X, x.at);
    if (x1) mica_compose_bind(&p->list, MICA_REDUCE_X1, x1->at);
    mica_compose_bind(&p->list, MICA_REDUCE_Y, y.at);
}

/* ---- scores ---- */

/* q k^T of B x Hk groups of heads. */
static operand multiply(steps *p)
{
    const mica_tensor *q = &p->d->q, *k = &p->d->k;
    const int64_t group = p->s.group, kv = p->s.kv_heads;
    const int64_t dims[] = {q->dims[0], kv, group, p->s.rows, p->s.keys};
    const operand product = temporary(p, 5, dims);
    const mica_gemm_desc g = {
        .a = {.dtype = q->dtype,
              .rank = 5,
              .dims = {q->dims[0], kv, group, p->s.rows, p->s.d},
              .strides = {q->strides[0], group * q->strides[1], q->strides[1], q->strides[2],
                          q->strides[3]}},
        .b = {.dtype = k->dtype,
              .rank = 5,
              .dims = {q->dims[0], kv, 1, p->s.d, p->s.keys},
              .strides = {k->strides[0], k->strides[1], 0, k->strides[3], k->strides[2]}},
        .c = product.t,
        .compute = p->d->compute};
    mica_compose_step(&p->list, "gemm", &g, sizeof g, NULL);
    mica_compose_bind(&p->list, MICA_GEMM_A, mica_compose_arg(MICA_ATTENTION_Q));
    mica_compose_bind(&p->list, MICA_GEMM_B, mica_compose_arg(MICA_ATTENTION_K));
    mica_compose_bind(&p->list, MICA_GEMM_C, product.at);
    const int64_t heads[] = {q->dims[0], p->s.heads, p->s.rows, p->s.keys};
    return (operand){mica_tensor_packed(p->real, 4, heads), product.at};
}

/* How many rows of a sequence count: text of a number, or of an element inside the tensor. */
static void write_count(expression *e, char text[48], const mica_tensor *lengths, int arg,
                        int64_t rows, const int64_t dims[4])
{
    if (!mica_tensor_given(lengths))
        mica_format(text, 48, "%lld", (long long)rows);
    else
        mica_format(text, 48, "min(max(s64(x%d),0),%lld)",
                    read_operand(e, listed(argument(lengths, arg), 0, dims)), (long long)rows);
}

/* What keeps a query from a key, and the distance from the diagonal. */
static void write_score(steps *p, expression *e, operand product)
{
    const mica_attention_desc *d = p->d;
    const int64_t *dims = product.t.dims;
    char queries[48], keys[48], distance[160], condition[512];
    mica_text c = {condition, sizeof condition, 0};
    read_operand(e, product);
    write_count(e, queries, &d->seq_q, MICA_ATTENTION_SEQ_Q, p->s.rows, dims);
    write_count(e, keys, &d->seq_k, MICA_ATTENTION_SEQ_K, p->s.keys, dims);
    mica_text t = {distance, sizeof distance, 0};
    mica_text_add(&t, "(i3-i2-(%lld)", (long long)d->diagonal);
    if (d->align == MICA_ATTENTION_ALIGN_BOTTOM_RIGHT) mica_text_add(&t, "-%s+%s", keys, queries);
    mica_text_add(&t, ")");
    mica_text_add(&c, "i2<%s&&i3<%s", queries, keys);
    if (d->causal != MICA_ATTENTION_NOT_CAUSAL) mica_text_add(&c, "&&%s<=0", distance);
    if (d->window_left) mica_text_add(&c, "&&%s>-%lld", distance, (long long)d->window_left);
    if (d->window_right) mica_text_add(&c, "&&%s<%lld", distance, (long long)d->window_right);
    if (mica_tensor_given(&d->mask))
        mica_text_add(&c, "&&x%d!=0",
                      read_operand(e, spread(argument(&d->mask, MICA_ATTENTION_MASK), dims)));
    mica_text_add(&e->text, "where(%s,", condition);
    if (d->soft_cap > 0)
        mica_text_add(&e->text, "%.17g*tanh(x0*%.17g/%.17g)", d->soft_cap, d->scale, d->soft_cap);
    else
        mica_text_add(&e->text, "x0*%.17g", d->scale);
    if (mica_tensor_given(&d->slopes))
        mica_text_add(&e->text, "-x%d*abs%s",
                      read_operand(e, listed(argument(&d->slopes, MICA_ATTENTION_SLOPES), 1, dims)),
                      distance);
    if (mica_tensor_given(&d->bias))
        mica_text_add(&e->text, "+x%d",
                      read_operand(e, spread(argument(&d->bias, MICA_ATTENTION_BIAS), dims)));
    mica_text_add(&e->text, ",-inf)");
}

/* As the caller's tensor, if its type is that of the arithmetic. */
static operand make_scores(steps *p)
{
    const mica_attention_desc *d = p->d;
    const operand product = multiply(p), given = argument(&d->scores, MICA_ATTENTION_SCORES);
    const bool wanted = mica_tensor_given(&d->scores),
               direct = wanted && d->scores.dtype == p->real;
    const operand scores = direct ? given : temporary(p, 4, product.t.dims);
    expression e;
    begin(&e);
    write_score(p, &e, product);
    end(p, &e, scores);
    if (direct || !wanted) return scores;
    begin(&e);
    mica_text_add(&e.text, "x%d", read_operand(&e, scores));
    end(p, &e, given);
    return scores;
}

/* ---- weights ---- */

/* A sink of +inf takes all, unless the row is NaN beside it. */
static void make_weights(steps *p, operand scores)
{
    const mica_attention_desc *d = p->d;
    const int64_t *dims = scores.t.dims, rows[] = {dims[0], dims[1], dims[2], 1};
    const bool sinks = mica_tensor_given(&d->sinks);
    const operand sink = listed(argument(&d->sinks, MICA_ATTENTION_SINKS), 1, rows);
    operand most = temporary(p, 4, rows), sum = temporary(p, 4, rows);
    expression e;
    reduction(p, MICA_REDUCE_KIND_MAX, NULL, scores, NULL, most);
    if (sinks) {
        const operand before = most;
        most = temporary(p, 4, rows);
        begin(&e);
        read_operand(&e, before), read_operand(&e, sink);
        mica_text_add(&e.text, "max(x0,x1)");
        end(p, &e, most);
    }
    const operand about = spread(most, dims);
    reduction(p, MICA_REDUCE_KIND_SUM, "where(isneginf(x0),0.0,exp(x0-x1))", scores, &about, sum);
    begin(&e);
    read_operand(&e, scores), read_operand(&e, about), read_operand(&e, spread(sum, dims));
    if (sinks) {
        read_operand(&e, listed(argument(&d->sinks, MICA_ATTENTION_SINKS), 1, dims));
        mica_text_add(&e.text,
                      "where(isneginf(x0)||x3==inf&&x2==x2,0.0,exp(x0-x1)/(x2+exp(x3-x1)))");
    } else {
        mica_text_add(&e.text, "where(isneginf(x0),0.0,exp(x0-x1)/x2)");
    }
    end(p, &e, argument(&d->weights, MICA_ATTENTION_WEIGHTS));
}

static void make_steps(const mica_attention_desc *d, steps *p)
{
    mica_attention_desc plain = *d;
    memset(p, 0, sizeof *p);
    p->d = d;
    p->real = d->q.dtype == MICA_F64 ? MICA_F64 : MICA_F32;
    attention_shape_make(d, &p->s);
    memset(&plain.scores, 0, sizeof plain.scores);
    memset(&plain.weights, 0, sizeof plain.weights);
    mica_compose_step(&p->list, "attention", &plain, sizeof plain, NULL);
    mica_compose_pass(&p->list, MICA_ATTENTION_SCORES);
    const mica_tensor *any = mica_tensor_given(&d->scores) ? &d->scores : &d->weights;
    if (mica_tensor_count(any) == 0) return;
    const operand scores = make_scores(p);
    if (mica_tensor_given(&d->weights)) make_weights(p, scores);
}

/* ---- engine ---- */

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    const mica_attention_desc *d = desc;
    (void)device;
    if (mica_tensor_given(&d->scores) || mica_tensor_given(&d->weights)) return MICA_OK;
    return mica_refuse(why, "neither scores nor weights are wanted");
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    steps p;
    (void)config;
    make_steps(desc, &p);
    return mica_compose_predict(&p.list, device);
}

static mica_status build(mica_plan *plan)
{
    steps p;
    make_steps(plan->desc, &p);
    return mica_compose_build(plan, &p.list);
}

const mica_engine mica_attention_compose = {.name = "compose",
                                            .accepts = accepts,
                                            .predict = predict,
                                            .build = build,
                                            .run = mica_compose_run};

const mica_engine mica_attention_compose_cuda = {.name = "compose",
                                                 .cuda = true,
                                                 .accepts = accepts,
                                                 .predict = predict,
                                                 .build = build,
                                                 .run = mica_compose_run};
