/* SPDX-License-Identifier: Apache-2.0
 * Engine "compose": expressions of `reduce` and `pointwise`. A loss of elements is one step, which
 * reads each tensor once: of a mean or sum a reduction with the expression in front; and so are its
 * gradients, of which one that a row of the table gives itself is a further step. A loss of rows is
 * a step for each of their sums and one for what becomes of them; its gradients go the same way
 * back. */
#include "ops/loss/loss.h"
#include "mica/reduce.h"
#include "ops/compose/compose.h"

#include <string.h>

typedef struct steps {
    const mica_loss_desc *d;
    mica_compose list;
    mica_loss_texts text;
    mica_dtype real;
    mica_memory sums[LOSS_SUMS], gradients[LOSS_SUMS];
    mica_tensor rows;                   /* of them */
    mica_memory weights, mean_gradient; /* of a mean over weights: their sum, and dy over it */
} steps;

static const mica_tensor *input(const steps *p, int k)
{
    return mica_op_tensor(&mica_op_loss, p->d, k);
}

/* ---- reductions ---- */

static mica_tensor *reduce_input(mica_reduce_desc *r, int k)
{
    return k ? &r->x1 + (k - 1) : &r->x;
}

/* The first input that it has takes the place of x0, which decides about the shape. */
static void reduce_text(steps *p, mica_reduce_desc *r, const char *text, mica_memory y)
{
    int first = 0;
    while (!mica_loss_has(text, first)) first++;
    mica_text map = {r->map, sizeof r->map, 0};
    for (const char *at = text; *at; at++) {
        const bool name = first && at[0] == 'x' && at[1] == '0' + first &&
                          (at == text || !strchr("abcdefghijklmnopqrstuvwxyz_", at[-1]));
        mica_text_add(&map, "%.*s", 1, at);
        if (name) mica_text_add(&map, "0");
        at += name;
    }
    for (int k = first; k < LOSS_DY; k++)
        if (mica_loss_has(text, k)) *reduce_input(r, k == first ? 0 : k) = *input(p, k);
    mica_compose_step(&p->list, "reduce", r, sizeof *r, NULL);
    for (int k = first; k < LOSS_DY; k++)
        if (mica_loss_has(text, k))
            mica_compose_bind(&p->list, k == first ? MICA_REDUCE_X : MICA_REDUCE_X1 + k - 1,
                              mica_compose_arg(k));
    mica_compose_bind(&p->list, MICA_REDUCE_Y, y);
}

/* The mean of no batches is NaN, as a mean is. */
static mica_reduce_kind reduction_of(const mica_loss_desc *d)
{
    const bool none = d->reduction == MICA_LOSS_BATCHMEAN && d->x.dims[0] == 0;
    return d->reduction == MICA_LOSS_MEAN || none ? MICA_REDUCE_KIND_MEAN : MICA_REDUCE_KIND_SUM;
}

/* ---- expressions ---- */

static mica_tensor *pointwise_tensor(mica_pointwise_desc *e, int arg)
{
    return &e->x0 + arg;
}

static void add_expression(steps *p, mica_pointwise_desc *e, const mica_memory *memory)
{
    mica_compose_step(&p->list, "pointwise", e, sizeof *e, NULL);
    for (int i = 0; i < MICA_POINTWISE_ARGS; i++)
        if (mica_tensor_given(pointwise_tensor(e, i))) mica_compose_bind(&p->list, i, memory[i]);
}

static void copy_text(char *to, const char *text)
{
    mica_text t = {to, MICA_POINTWISE_EXPR, 0};
    mica_text_add(&t, "%s", text);
}

static void place(mica_pointwise_desc *e, mica_memory *memory, int arg, mica_tensor tensor,
                  mica_memory at)
{
    *pointwise_tensor(e, arg) = tensor;
    memory[arg] = at;
}

/* Inputs that a text has, with x's dimensions. */
static void place_inputs(const steps *p, const char *text, mica_pointwise_desc *e,
                         mica_memory *memory)
{
    for (int k = 0; k < LOSS_DY; k++)
        if (mica_loss_has(text, k))
            place(e, memory, MICA_POINTWISE_X0 + k, mica_loss_expanded(input(p, k), &p->d->x),
                  mica_compose_arg(k));
}

/* ---- a mean over weights ---- */

static mica_tensor one(mica_dtype type)
{
    return mica_tensor_packed(type, 0, NULL);
}

static void sum_weights(steps *p)
{
    mica_reduce_desc r = {.x = mica_loss_expanded(&p->d->weight, &p->d->x), .y = one(p->real)};
    p->weights = mica_compose_temporary(&p->list, sizeof(double));
    mica_compose_step(&p->list, "reduce", &r, sizeof r, NULL);
    mica_compose_bind(&p->list, MICA_REDUCE_X, mica_compose_arg(MICA_LOSS_WEIGHT));
    mica_compose_bind(&p->list, MICA_REDUCE_Y, p->weights);
}

static void divide_by_weights(steps *p, mica_tensor x, mica_memory at, mica_tensor y,
                              mica_memory to)
{
    mica_pointwise_desc e = {.expr = "x0/x1"};
    mica_memory memory[MICA_POINTWISE_ARGS];
    place(&e, memory, MICA_POINTWISE_X0, x, at);
    place(&e, memory, MICA_POINTWISE_X0 + 1, one(p->real), p->weights);
    place(&e, memory, MICA_POINTWISE_Y0, y, to);
    add_expression(p, &e, memory);
}

static void forward_over_weights(steps *p)
{
    mica_reduce_desc r = {.kind = MICA_REDUCE_KIND_SUM, .y = one(p->real)};
    const mica_memory sum = mica_compose_temporary(&p->list, sizeof(double));
    sum_weights(p);
    reduce_text(p, &r, p->text.value, sum);
    divide_by_weights(p, one(p->real), sum, p->d->y, mica_compose_arg(MICA_LOSS_Y));
}

/* ---- elements ---- */

static void forward_elements(steps *p)
{
    const mica_loss_desc *d = p->d;
    if (mica_loss_is_over_weights(d)) {
        forward_over_weights(p);
        return;
    }
    if (d->reduction != MICA_LOSS_NONE) {
        mica_reduce_desc r = {.kind = reduction_of(d), .y = d->y};
        reduce_text(p, &r, p->text.value, mica_compose_arg(MICA_LOSS_Y));
        return;
    }
    mica_pointwise_desc e = {0};
    mica_memory memory[MICA_POINTWISE_ARGS];
    copy_text(e.expr, p->text.value);
    place_inputs(p, p->text.value, &e, memory);
    place(&e, memory, MICA_POINTWISE_Y0, d->y, mica_compose_arg(MICA_LOSS_Y));
    add_expression(p, &e, memory);
}

static bool is_wanted(const steps *p, int k)
{
    return mica_tensor_given(input(p, MICA_LOSS_DX + k));
}

/* The result's gradient, of each element. */
static mica_tensor spread_gradient(const mica_loss_desc *d)
{
    return mica_loss_expanded(&d->dy, &d->x);
}

static void backward_elements(steps *p)
{
    const mica_loss_desc *d = p->d;
    mica_pointwise_desc derived = {.pass = MICA_POINTWISE_BWD};
    mica_memory memory[MICA_POINTWISE_ARGS];
    bool any = false;
    mica_tensor dy = spread_gradient(d);
    mica_memory dy_at = mica_compose_arg(MICA_LOSS_DY);
    if (mica_loss_is_over_weights(d)) {
        const mica_tensor mean = one(p->real);
        p->mean_gradient = mica_compose_temporary(&p->list, sizeof(double));
        sum_weights(p);
        divide_by_weights(p, d->dy, dy_at, mean, p->mean_gradient);
        dy = mica_loss_expanded(&mean, &d->x), dy_at = p->mean_gradient;
    }
    for (int k = 0; k < 3; k++) {
        const char *text = p->text.gradient[k];
        if (!is_wanted(p, k)) continue;
        const mica_tensor dx = *input(p, MICA_LOSS_DX + k);
        if (!*text) {
            place(&derived, memory, MICA_POINTWISE_DX0 + k, dx, mica_compose_arg(MICA_LOSS_DX + k));
            any = true;
            continue;
        }
        mica_pointwise_desc e = {0};
        mica_memory own[MICA_POINTWISE_ARGS];
        copy_text(e.expr, text);
        place_inputs(p, text, &e, own);
        place(&e, own, MICA_POINTWISE_X0 + LOSS_DY, dy, dy_at);
        place(&e, own, MICA_POINTWISE_Y0, dx, mica_compose_arg(MICA_LOSS_DX + k));
        add_expression(p, &e, own);
    }
    if (!any) return;
    copy_text(derived.expr, p->text.value);
    place_inputs(p, p->text.value, &derived, memory);
    place(&derived, memory, MICA_POINTWISE_DY0, dy, dy_at);
    add_expression(p, &derived, memory);
}

/* ---- rows ---- */

static void sum_rows(steps *p)
{
    const mica_loss_desc *d = p->d;
    for (int i = 0; i < p->text.sums; i++) {
        mica_reduce_desc r = {.y = p->rows, .axes = {MICA_REDUCE_AXIS(d->x.rank - 1)}};
        p->sums[i] =
            mica_compose_temporary(&p->list, (size_t)mica_tensor_count(&p->rows) * sizeof(double));
        reduce_text(p, &r, p->text.sum[i], p->sums[i]);
    }
}

/* The sums and, where the value has it, the target. */
static void place_sums(const steps *p, mica_pointwise_desc *e, mica_memory *memory)
{
    for (int i = 0; i < p->text.sums; i++)
        place(e, memory, MICA_POINTWISE_X0 + i, p->rows, p->sums[i]);
    if (mica_loss_has(p->text.value, LOSS_SUMS))
        place(e, memory, MICA_POINTWISE_X0 + LOSS_SUMS, p->d->target,
              mica_compose_arg(MICA_LOSS_TARGET));
    copy_text(e->expr, p->text.value);
}

static void forward_rows(steps *p)
{
    const mica_loss_desc *d = p->d;
    mica_pointwise_desc e = {0};
    mica_memory memory[MICA_POINTWISE_ARGS];
    sum_rows(p);
    place_sums(p, &e, memory);
    if (d->reduction == MICA_LOSS_NONE) {
        place(&e, memory, MICA_POINTWISE_Y0, d->y, mica_compose_arg(MICA_LOSS_Y));
        add_expression(p, &e, memory);
        return;
    }
    mica_reduce_desc r = {.kind = reduction_of(d), .y = d->y};
    memcpy(r.map, e.expr, sizeof r.map);
    for (int k = 0; k <= LOSS_SUMS; k++) *reduce_input(&r, k) = *pointwise_tensor(&e, k);
    mica_compose_step(&p->list, "reduce", &r, sizeof r, NULL);
    for (int k = 0; k <= LOSS_SUMS; k++)
        if (mica_tensor_given(reduce_input(&r, k)))
            mica_compose_bind(&p->list, k ? MICA_REDUCE_X1 + k - 1 : MICA_REDUCE_X, memory[k]);
    mica_compose_bind(&p->list, MICA_REDUCE_Y, mica_compose_arg(MICA_LOSS_Y));
}

static void backward_rows(steps *p)
{
    const mica_loss_desc *d = p->d;
    mica_pointwise_desc of_sums = {.pass = MICA_POINTWISE_BWD};
    mica_pointwise_desc of_elements = {.pass = MICA_POINTWISE_BWD};
    mica_memory memory[MICA_POINTWISE_ARGS], more[MICA_POINTWISE_ARGS];
    sum_rows(p);
    place_sums(p, &of_sums, memory);
    place(&of_sums, memory, MICA_POINTWISE_DY0, mica_loss_expanded(&d->dy, &p->rows),
          mica_compose_arg(MICA_LOSS_DY));
    mica_text expr = {of_elements.expr, sizeof of_elements.expr, 0};
    for (int i = 0; i < p->text.sums; i++) {
        p->gradients[i] =
            mica_compose_temporary(&p->list, (size_t)mica_tensor_count(&p->rows) * sizeof(double));
        place(&of_sums, memory, MICA_POINTWISE_DX0 + i, p->rows, p->gradients[i]);
        place(&of_elements, more, MICA_POINTWISE_DY0 + i, mica_loss_of_rows(&p->rows, &d->x),
              p->gradients[i]);
        mica_text_add(&expr, "%s%s", i ? ";" : "", p->text.sum[i]);
    }
    place_inputs(p, of_elements.expr, &of_elements, more);
    for (int k = 0; k < 3; k++)
        if (is_wanted(p, k))
            place(&of_elements, more, MICA_POINTWISE_DX0 + k, *input(p, MICA_LOSS_DX + k),
                  mica_compose_arg(MICA_LOSS_DX + k));
    add_expression(p, &of_sums, memory);
    add_expression(p, &of_elements, more);
}

static void make_steps(const mica_loss_desc *d, steps *p)
{
    const bool bwd = d->pass == MICA_LOSS_BWD, rows = mica_loss_row_of(d)->sums;
    memset(p, 0, sizeof *p);
    p->d = d;
    p->real = mica_loss_real(d);
    p->rows = mica_loss_rows_of(d);
    p->rows.dtype = p->real;
    mica_loss_make_texts(d, bwd || d->reduction == MICA_LOSS_BATCHMEAN ? mica_loss_scale(d) : 1,
                         &p->text);
    if (bwd && mica_tensor_count(&d->x) == 0) return;
    if (bwd)
        (rows ? backward_rows : backward_elements)(p);
    else
        (rows ? forward_rows : forward_elements)(p);
}

/* ---- engine ---- */

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

const mica_engine mica_loss_compose = {
    .name = "compose", .predict = predict, .build = build, .run = mica_compose_run};

const mica_engine mica_loss_compose_cuda = {
    .name = "compose", .cuda = true, .predict = predict, .build = build, .run = mica_compose_run};
