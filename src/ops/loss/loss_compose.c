/* SPDX-License-Identifier: Apache-2.0
 * Engine "compose": expressions of `reduce` and `pointwise`. A loss of elements is one step, which
 * reads each tensor once: of a mean or sum a reduction with the expression in front; and so are its
 * gradients, of which one that a row of the table gives itself is a further step. A loss of rows is
 * a step for each of their sums and one for what becomes of them; its gradients go the same way
 * back. Of labels the x of each is gathered and the classes they name are marked; then pairs are
 * summed as elements of a tensor that has a dimension more, in which x and the labels repeat by
 * strides of 0. Cost: x and marks of a byte for a label of a row; for a list of C labels, C^2
 * values a row from the caches. */
#include "ops/loss/loss.h"
#include "mica/gather.h"
#include "mica/reduce.h"
#include "mica/scan.h"
#include "mica/scatter.h"
#include "base/format.h"
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
    mica_tensor labels, own, valid, marks,
        of_label; /* of labels: them, their x, whether they are */
    mica_memory labels_at, own_at, valid_at, marks_at, of_label_at; /* there; classes; weights */
    char pair[LOSS_TEXT], slope[LOSS_TEXT];
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

/* ---- labels ---- */

static mica_memory temporary(steps *p, const mica_tensor *t)
{
    const size_t bytes = (size_t)mica_dtype_bits(t->dtype) / 8;
    return mica_compose_temporary(&p->list, (size_t)mica_tensor_count(t) * bytes);
}

/* One element stands for all. */
static mica_tensor constant(mica_dtype type, const mica_tensor *dims)
{
    const mica_tensor single = one(type);
    return mica_loss_expanded(&single, dims);
}

/* Those of a list up to the first that is below 0; the others are -1. */
static void end_lists(steps *p)
{
    const mica_tensor given = p->labels;
    mica_pointwise_desc there = {.expr = "u8(x0>=0)"}, ended = {.expr = "where(x1,x0,-1)"};
    mica_memory memory[MICA_POINTWISE_ARGS];
    p->valid = mica_tensor_packed(MICA_U8, given.rank, given.dims);
    const mica_memory any = temporary(p, &p->valid);
    place(&there, memory, MICA_POINTWISE_X0, given, mica_compose_arg(MICA_LOSS_TARGET));
    place(&there, memory, MICA_POINTWISE_Y0, p->valid, any);
    add_expression(p, &there, memory);
    const mica_scan_desc s = {.kind = MICA_SCAN_KIND_MIN, .x = p->valid, .y = p->valid, .axis = -1};
    p->valid_at = temporary(p, &p->valid);
    mica_compose_step(&p->list, "scan", &s, sizeof s, NULL);
    mica_compose_bind(&p->list, MICA_SCAN_X, any);
    mica_compose_bind(&p->list, MICA_SCAN_Y, p->valid_at);
    p->labels = mica_tensor_packed(given.dtype, given.rank, given.dims);
    p->labels_at = temporary(p, &p->labels);
    place(&ended, memory, MICA_POINTWISE_X0, given, mica_compose_arg(MICA_LOSS_TARGET));
    place(&ended, memory, MICA_POINTWISE_X0 + 1, p->valid, p->valid_at);
    place(&ended, memory, MICA_POINTWISE_Y0, p->labels, p->labels_at);
    add_expression(p, &ended, memory);
}

static void mark_labels(steps *p)
{
    const mica_tensor *x = &p->d->x;
    mica_pointwise_desc e = {.expr = "u8(0);u8(1)"};
    mica_memory memory[MICA_POINTWISE_ARGS], unset = mica_compose_temporary(&p->list, 2), set;
    set = unset, set.at = 1;
    place(&e, memory, MICA_POINTWISE_Y0, one(MICA_U8), unset);
    place(&e, memory, MICA_POINTWISE_Y0 + 1, one(MICA_U8), set);
    add_expression(p, &e, memory);
    p->marks = mica_tensor_packed(MICA_U8, x->rank, x->dims);
    p->marks_at = temporary(p, &p->marks);
    const mica_scatter_desc s = {.x = constant(MICA_U8, x),
                                 .index = p->labels,
                                 .u = constant(MICA_U8, &p->labels),
                                 .y = p->marks,
                                 .axis = -1};
    mica_compose_step(&p->list, "scatter", &s, sizeof s, NULL);
    mica_compose_bind(&p->list, MICA_SCATTER_X, unset);
    mica_compose_bind(&p->list, MICA_SCATTER_INDEX, p->labels_at);
    mica_compose_bind(&p->list, MICA_SCATTER_U, set);
    mica_compose_bind(&p->list, MICA_SCATTER_Y, p->marks_at);
}

static void gather(steps *p, const mica_gather_desc *g, int from, mica_memory y)
{
    mica_compose_step(&p->list, "gather", g, sizeof *g, NULL);
    mica_compose_bind(&p->list, MICA_GATHER_X, mica_compose_arg(from));
    mica_compose_bind(&p->list, MICA_GATHER_INDEX, p->labels_at);
    mica_compose_bind(&p->list, MICA_GATHER_Y, y);
}

/* In the logical order of the rows, those of x and what they are marked by. */
static void find_labels(steps *p)
{
    const mica_loss_desc *d = p->d;
    p->labels = d->target;
    p->labels_at = mica_compose_arg(MICA_LOSS_TARGET);
    if (mica_loss_row_of(d)->labels == LOSS_LABEL_LIST)
        end_lists(p);
    else
        p->labels.dims[p->labels.rank] = 1, p->labels.strides[p->labels.rank++] = 1;
    p->own = mica_tensor_packed(d->x.dtype, p->labels.rank, p->labels.dims);
    p->own_at = temporary(p, &p->own);
    gather(
        p,
        &(mica_gather_desc){
            .mode = MICA_GATHER_ELEMENTS, .x = d->x, .index = p->labels, .y = p->own, .axis = -1},
        MICA_LOSS_X, p->own_at);
    mark_labels(p);
    if (!mica_tensor_given(&d->weight)) return;
    p->of_label = mica_tensor_packed(d->weight.dtype, d->target.rank, d->target.dims);
    p->of_label_at = temporary(p, &p->of_label);
    gather(p, &(mica_gather_desc){.x = d->weight, .index = d->target, .y = p->of_label},
           MICA_LOSS_WEIGHT, p->of_label_at);
}

/* As elements of all pairs: of labels, by the dimension before the last, and classes. */
static mica_tensor of_pairs(const steps *p, const mica_tensor *t, bool of_labels)
{
    const int last = t->rank - 1;
    mica_tensor wide = *t;
    wide.rank++;
    wide.dims[last] = p->labels.dims[last];
    wide.dims[last + 1] = p->d->x.dims[last];
    wide.strides[last] = of_labels ? t->strides[last] : 0;
    wide.strides[last + 1] = of_labels ? 0 : t->strides[last];
    return wide;
}

/* Sums of `text` over pairs, of those along the last two dimensions, labels and classes. */
static void sum_pairs(steps *p, const char *text, bool labels, bool classes, mica_tensor y,
                      mica_memory at)
{
    const bool list = mica_tensor_given(&p->valid);
    const int rank = p->d->x.rank;
    mica_reduce_desc r = {.x = of_pairs(p, &p->d->x, false),
                          .x1 = of_pairs(p, &p->own, true),
                          .x2 = of_pairs(p, &p->marks, false),
                          .y = y};
    int axes = 0;
    if (labels) r.axes[axes++] = MICA_REDUCE_AXIS(rank - 1);
    if (classes) r.axes[axes++] = MICA_REDUCE_AXIS(rank);
    if (list) r.x3 = of_pairs(p, &p->valid, true);
    mica_format(r.map, sizeof r.map, "where(x2!=0%s,0.0,%s)", list ? "||x3==0" : "", text);
    mica_compose_step(&p->list, "reduce", &r, sizeof r, NULL);
    mica_compose_bind(&p->list, MICA_REDUCE_X, mica_compose_arg(MICA_LOSS_X));
    mica_compose_bind(&p->list, MICA_REDUCE_X1, p->own_at);
    mica_compose_bind(&p->list, MICA_REDUCE_X2, p->marks_at);
    if (list) mica_compose_bind(&p->list, MICA_REDUCE_X3, p->valid_at);
    mica_compose_bind(&p->list, MICA_REDUCE_Y, at);
}

static double of_classes(const mica_loss_desc *d)
{
    return 1 / (double)d->x.dims[d->x.rank - 1];
}

static void forward_labels(steps *p)
{
    const mica_loss_desc *d = p->d;
    const bool weighted = mica_tensor_given(&d->weight);
    const mica_memory sums = temporary(p, &p->rows);
    char text[64];
    find_labels(p);
    sum_pairs(p, p->pair, true, true, p->rows, sums);
    mica_format(text, sizeof text, "x0*%.17g%s", of_classes(d), weighted ? "*x1" : "");
    if (d->reduction == MICA_LOSS_NONE) {
        mica_pointwise_desc e = {0};
        mica_memory memory[MICA_POINTWISE_ARGS];
        copy_text(e.expr, text);
        place(&e, memory, MICA_POINTWISE_X0, p->rows, sums);
        if (weighted) place(&e, memory, MICA_POINTWISE_X0 + 1, p->of_label, p->of_label_at);
        place(&e, memory, MICA_POINTWISE_Y0, d->y, mica_compose_arg(MICA_LOSS_Y));
        add_expression(p, &e, memory);
        return;
    }
    mica_reduce_desc r = {.kind = reduction_of(d), .x = p->rows, .y = d->y};
    mica_format(r.map, sizeof r.map, "%s", text);
    if (weighted) r.x1 = p->of_label;
    mica_compose_step(&p->list, "reduce", &r, sizeof r, NULL);
    mica_compose_bind(&p->list, MICA_REDUCE_X, sums);
    if (weighted) mica_compose_bind(&p->list, MICA_REDUCE_X1, p->of_label_at);
    mica_compose_bind(&p->list, MICA_REDUCE_Y, mica_compose_arg(MICA_LOSS_Y));
}

/* What classes that are none receive of all labels, less what these do, each where it is. */
static void gradients_of_lists(steps *p, mica_tensor *t, mica_memory *at)
{
    char negative[LOSS_TEXT];
    mica_tensor of_labels = mica_tensor_packed(p->real, p->labels.rank, p->labels.dims);
    *t = mica_tensor_packed(p->real, p->d->x.rank, p->d->x.dims);
    *at = temporary(p, t);
    sum_pairs(p, p->slope, true, false, *t, *at);
    const mica_memory less = temporary(p, &of_labels);
    mica_format(negative, sizeof negative, "-(%s)", p->slope);
    sum_pairs(p, negative, false, true, of_labels, less);
    const mica_scatter_desc s = {.reduction = MICA_SCATTER_ADD,
                                 .x = *t,
                                 .index = p->labels,
                                 .u = of_labels,
                                 .y = *t,
                                 .axis = -1};
    mica_compose_step(&p->list, "scatter", &s, sizeof s, NULL);
    mica_compose_bind(&p->list, MICA_SCATTER_X, *at);
    mica_compose_bind(&p->list, MICA_SCATTER_INDEX, p->labels_at);
    mica_compose_bind(&p->list, MICA_SCATTER_U, less);
    mica_compose_bind(&p->list, MICA_SCATTER_Y, *at);
}

static void backward_labels(steps *p)
{
    const mica_loss_desc *d = p->d;
    const mica_tensor dy = mica_loss_expanded(&d->dy, &p->rows);
    mica_pointwise_desc e = {0};
    mica_memory memory[MICA_POINTWISE_ARGS];
    find_labels(p);
    if (mica_loss_row_of(d)->labels == LOSS_LABEL_LIST) {
        mica_tensor t;
        mica_memory at;
        gradients_of_lists(p, &t, &at);
        place(&e, memory, MICA_POINTWISE_X0, t, at);
        mica_format(e.expr, sizeof e.expr, "x0");
    } else {
        const mica_memory sums = temporary(p, &p->rows);
        sum_pairs(p, p->slope, true, true, p->rows, sums);
        place(&e, memory, MICA_POINTWISE_X0, d->x, mica_compose_arg(MICA_LOSS_X));
        place(&e, memory, MICA_POINTWISE_X0 + 1, mica_loss_expanded(&p->own, &d->x), p->own_at);
        place(&e, memory, MICA_POINTWISE_X0 + 2, p->marks, p->marks_at);
        place(&e, memory, MICA_POINTWISE_X0 + 3, mica_loss_of_rows(&p->rows, &d->x), sums);
        mica_format(e.expr, sizeof e.expr, "where(x2!=0,-x3,%s)", p->slope);
    }
    mica_text text = {e.expr, sizeof e.expr, strlen(e.expr)};
    mica_text_add(&text, "*(x4*%.17g", of_classes(d) * mica_loss_scale(d));
    place(&e, memory, MICA_POINTWISE_X0 + 4, mica_loss_of_rows(&dy, &d->x),
          mica_compose_arg(MICA_LOSS_DY));
    if (mica_tensor_given(&d->weight)) {
        mica_text_add(&text, "*x5");
        place(&e, memory, MICA_POINTWISE_X0 + 5, mica_loss_of_rows(&p->of_label, &d->x),
              p->of_label_at);
    }
    mica_text_add(&text, ")");
    place(&e, memory, MICA_POINTWISE_Y0, d->dx, mica_compose_arg(MICA_LOSS_DX));
    add_expression(p, &e, memory);
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
    if (mica_loss_row_of(d)->labels) {
        mica_loss_make_pair(d, p->pair, p->slope);
        (bwd ? backward_labels : forward_labels)(p);
    } else if (bwd)
        (rows ? backward_rows : backward_elements)(p);
    else
        (rows ? forward_rows : forward_elements)(p);
}

/* ---- engine ---- */

static void list_steps(const void *desc, mica_compose *list)
{
    steps p;
    make_steps(desc, &p);
    *list = p.list;
}

const mica_engine mica_loss_compose = {.name = "compose", MICA_COMPOSED(list_steps)};

const mica_engine mica_loss_compose_cuda = {
    .name = "compose", .cuda = true, MICA_COMPOSED(list_steps)};
