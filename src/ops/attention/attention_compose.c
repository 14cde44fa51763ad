/* SPDX-License-Identifier: Apache-2.0
 * Engine "compose": attention whose scores or weights are wanted. The results without them by the
 * best engine for these; then scores as a product of all queries and keys in f32 (f64), which an
 * expression scales, caps, biases and masks; and weights of them by the maximum and the sum of each
 * row, which do not lose what lse would where scores are large. Cost: that of attention, and B H Sq
 * Sk numbers of 4 bytes that are written twice and read three times, four with weights. */
#include "mica/gemm.h"
#include "mica/pointwise.h"
#include "base/format.h"
#include "ops/attention/attention.h"
#include "ops/compose/held.h"

#include <string.h>

typedef mica_held operand;

typedef struct steps {
    const mica_attention_desc *d;
    mica_compose list;
    attention_shape s;
    mica_dtype real;
} steps;

static operand temporary(steps *p, int rank, const int64_t *dims)
{
    return mica_held_temporary(&p->list, p->real, rank, dims);
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
    char text[MICA_POINTWISE_EXPR];
    operand x[8];
    int count;
} expression;

/* Its number: x0 to x7. */
static int read_operand(expression *e, operand x)
{
    e->x[e->count] = x;
    return e->count++;
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
static void write_count(steps *p, expression *e, char text[24], const mica_tensor *lengths, int arg,
                        int64_t rows, const int64_t dims[4])
{
    char inside[64];
    if (!mica_tensor_given(lengths)) {
        mica_format(text, 24, "%lld", (long long)rows);
        return;
    }
    const operand given = mica_held_arg(lengths, arg);
    const operand count = mica_held_temporary(&p->list, MICA_S64, 1, lengths->dims);
    mica_format(inside, sizeof inside, "min(max(s64(x0),0),%lld)", (long long)rows);
    mica_held_expression(&p->list, inside, count, &given, 1);
    mica_format(text, 24, "x%d", read_operand(e, listed(count, 0, dims)));
}

/* What keeps a query from a key, and the distance from the diagonal. */
static void write_score(steps *p, expression *e, operand product)
{
    const mica_attention_desc *d = p->d;
    const int64_t *dims = product.t.dims;
    char queries[24], keys[24], distance[96];
    mica_text to = {e->text, sizeof e->text, 0};
    read_operand(e, product);
    write_count(p, e, queries, &d->seq_q, MICA_ATTENTION_SEQ_Q, p->s.rows, dims);
    write_count(p, e, keys, &d->seq_k, MICA_ATTENTION_SEQ_K, p->s.keys, dims);
    mica_text t = {distance, sizeof distance, 0};
    mica_text_add(&t, "(i3-i2-(%lld)", (long long)d->diagonal);
    if (d->align == MICA_ATTENTION_ALIGN_BOTTOM_RIGHT) mica_text_add(&t, "-%s+%s", keys, queries);
    mica_text_add(&t, ")");
    mica_text_add(&to, "where(i2<%s&&i3<%s", queries, keys);
    if (d->causal != MICA_ATTENTION_NOT_CAUSAL) mica_text_add(&to, "&&%s<=0", distance);
    if (d->window_left) mica_text_add(&to, "&&%s>-%lld", distance, (long long)d->window_left);
    if (d->window_right) mica_text_add(&to, "&&%s<%lld", distance, (long long)d->window_right);
    if (mica_tensor_given(&d->mask))
        mica_text_add(&to, "&&x%d!=0",
                      read_operand(e, spread(mica_held_arg(&d->mask, MICA_ATTENTION_MASK), dims)));
    mica_text_add(&to, ",");
    if (d->soft_cap > 0)
        mica_text_add(&to, "%.17g*tanh(x0*%.17g/%.17g)", d->soft_cap, d->scale, d->soft_cap);
    else
        mica_text_add(&to, "x0*%.17g", d->scale);
    if (mica_tensor_given(&d->slopes))
        mica_text_add(
            &to, "-x%d*abs%s",
            read_operand(e, listed(mica_held_arg(&d->slopes, MICA_ATTENTION_SLOPES), 1, dims)),
            distance);
    if (mica_tensor_given(&d->bias))
        mica_text_add(&to, "+x%d",
                      read_operand(e, spread(mica_held_arg(&d->bias, MICA_ATTENTION_BIAS), dims)));
    mica_text_add(&to, ",-inf)");
}

/* As the caller's tensor, if its type is that of the arithmetic. */
static operand make_scores(steps *p)
{
    const mica_attention_desc *d = p->d;
    const operand product = multiply(p), given = mica_held_arg(&d->scores, MICA_ATTENTION_SCORES);
    const bool wanted = mica_tensor_given(&d->scores),
               direct = wanted && d->scores.dtype == p->real;
    const operand scores = direct ? given : temporary(p, 4, product.t.dims);
    expression e = {.count = 0};
    write_score(p, &e, product);
    mica_held_expression(&p->list, e.text, scores, e.x, e.count);
    if (wanted && !direct) mica_held_expression(&p->list, "x0", given, &scores, 1);
    return scores;
}

/* ---- weights ---- */

/* A sink of +inf takes all, unless the row is NaN beside it. */
static void make_weights(steps *p, operand scores)
{
    const mica_attention_desc *d = p->d;
    const int64_t *dims = scores.t.dims, rows[] = {dims[0], dims[1], dims[2], 1};
    const bool sinks = mica_tensor_given(&d->sinks);
    const operand given = mica_held_arg(&d->sinks, MICA_ATTENTION_SINKS);
    const operand sink = listed(given, 1, rows);
    operand most = temporary(p, 4, rows), sum = temporary(p, 4, rows);
    reduction(p, MICA_REDUCE_KIND_MAX, NULL, scores, NULL, most);
    if (sinks) {
        const operand both[] = {most, sink};
        most = temporary(p, 4, rows);
        mica_held_expression(&p->list, "max(x0,x1)", most, both, 2);
    }
    const operand about = spread(most, dims);
    reduction(p, MICA_REDUCE_KIND_SUM, "where(isneginf(x0),0.0,exp(x0-x1))", scores, &about, sum);
    const operand read[] = {scores, about, spread(sum, dims), listed(given, 1, dims)};
    mica_held_expression(&p->list,
                         sinks
                             ? "where(isneginf(x0)||x3==inf&&x2==x2,0.0,exp(x0-x1)/(x2+exp(x3-x1)))"
                             : "where(isneginf(x0),0.0,exp(x0-x1)/x2)",
                         mica_held_arg(&d->weights, MICA_ATTENTION_WEIGHTS), read, sinks ? 4 : 3);
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

static void list_steps(const void *desc, mica_compose *list)
{
    steps p;
    make_steps(desc, &p);
    *list = p.list;
}

const mica_engine mica_attention_compose = {
    .name = "compose", .accepts = accepts, MICA_COMPOSED(list_steps)};

const mica_engine mica_attention_compose_cuda = {
    .name = "compose", .cuda = true, .accepts = accepts, MICA_COMPOSED(list_steps)};
