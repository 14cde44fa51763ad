/* SPDX-License-Identifier: Apache-2.0
 * conv or gemm -> activation or pointwise: steps of the epilogue, in the same launch. Of a
 * pointwise expression every function on the way from the operand to the result must be a step: "+"
 * a bias per channel or a residual of the result's dimensions, "*" a scale per channel, or an
 * activation without parameters. */
#include "graph/rewrite.h"
#include "mica/activation.h"
#include "mica/epilogue.h"
#include "mica/pointwise.h"
#include "ops/pointwise/expression.h"

#include <string.h>

/* Operations with an epilogue, and the dimension of their results that has the channels. */
static const struct taker {
    const char *op;
    int channel; /* negative: from the end */
} takers[] = {{"conv", 1}, {"gemm", -1}};
enum { TAKERS = sizeof takers / sizeof *takers, NO_ARG = -1 };

/* Steps that a node asks for, the innermost first. */
typedef struct steps {
    int32_t list[MICA_MAX_STEPS];
    int arg[MICA_MAX_STEPS]; /* argument of the node that is the step's tensor, or NO_ARG */
    int count;
    double act_a, act_b;
} steps;

static const struct taker *taker_of(const graph_node *n)
{
    for (int i = 0; i < TAKERS; i++)
        if (!strcmp(n->op->name, takers[i].op)) return &takers[i];
    return NULL;
}

/* A field of the descriptor by its name, NULL if there is none. */
static void *field_of(const mica_op *op, void *desc, const char *name)
{
    for (int i = 0; i < op->field_count; i++)
        if (!strcmp(op->fields[i].name, name)) return (char *)desc + op->fields[i].offset;
    return NULL;
}

static mica_tensor *tensor_of(const mica_op *op, void *desc, int arg)
{
    return (mica_tensor *)(void *)((char *)desc + op->args[arg].tensor);
}

static int result_of(const mica_op *op, const void *desc)
{
    int arg = 0;
    while (mica_op_dir(op, desc, arg) != MICA_OUT) arg++;
    return arg;
}

/* ---- what a node asks for ---- */

static mica_status add_step(steps *s, int32_t step, int arg, mica_why *why)
{
    if (s->count == MICA_MAX_STEPS - 1)
        return mica_refuse(why, "more than %d steps", MICA_MAX_STEPS - 1);
    s->list[s->count] = step;
    s->arg[s->count++] = arg;
    return MICA_OK;
}

static mica_status steps_of_activation(const graph_node *n, const void *desc, int arg, steps *s,
                                       mica_why *why)
{
    const mica_activation_desc *d = desc;
    if (arg != MICA_ACTIVATION_X || d->pass != MICA_ACTIVATION_FWD) return MICA_NOT_FOUND;
    if (d->gated) return mica_refuse(why, "the activation is gated");
    for (int i = 0; i < n->op->scalar_count; i++)
        if (n->scalar_of[i] >= 0 || n->scalars[i] != n->op->scalars[i].def)
            return mica_refuse(why, "the activation has a scalar, %s", n->op->scalars[i].name);
    s->act_a = d->act_a;
    s->act_b = d->act_b;
    return add_step(s, MICA_STEP_ACT + (int32_t)d->act, NO_ARG, why);
}

/* The step that is a function of one argument, or 0. */
static int32_t step_named(const mica_op *op, const char *name)
{
    const mica_field *f = op->fields;
    while (strcmp(f->name, "epilogue") != 0) f++;
    for (int32_t i = MICA_STEP_ACT; f->spellings[i]; i++)
        if (!strcmp(f->spellings[i], name)) return i;
    return 0;
}

static bool depends(const mica_expr *e, int node, int input)
{
    const mica_expr_node *n = &e->nodes[node];
    if (n->kind == MICA_EXPR_INPUT) return n->index == input;
    bool found = false;
    for (int i = 0; n->kind == MICA_EXPR_CALL && i < mica_functions[n->index].arity; i++)
        found |= depends(e, n->arg[i], input);
    return found;
}

static mica_status peel_binary(const mica_expr *e, const mica_expr_node *n, int input, steps *s,
                               int *next, mica_why *why)
{
    const bool second = depends(e, n->arg[1], input);
    const mica_expr_node *other = &e->nodes[n->arg[!second]];
    *next = n->arg[second];
    if (depends(e, n->arg[!second], input))
        return mica_refuse(why, "both sides of %s have x%d", mica_functions[n->index].name, input);
    if (other->kind != MICA_EXPR_INPUT || other->index >= MICA_EXPR_X)
        return mica_refuse(why, "what %s takes beside x%d is no tensor",
                           mica_functions[n->index].name, input);
    /* which of bias, shift and residual it is, dimensions say */
    return add_step(s, n->index == MICA_FN_mul ? MICA_STEP_SCALE : MICA_STEP_BIAS, other->index,
                    why);
}

/* From the result inwards, until the operand is reached. */
static mica_status peel(const mica_op *taker, const mica_expr *e, int input, steps *s,
                        mica_why *why)
{
    int node = e->results[0];
    while (e->nodes[node].kind != MICA_EXPR_INPUT) {
        const mica_expr_node *n = &e->nodes[node];
        if (n->kind != MICA_EXPR_CALL) return mica_refuse(why, "x%d is not on the way", input);
        const mica_function *f = &mica_functions[n->index];
        const int32_t step = f->arity == 1 ? step_named(taker, f->name) : 0;
        if (n->index == MICA_FN_add || n->index == MICA_FN_mul) {
            MICA_TRY(peel_binary(e, n, input, s, &node, why));
        } else if (step) {
            MICA_TRY(add_step(s, step, NO_ARG, why));
            node = n->arg[0];
        } else {
            return mica_refuse(why, "%s is no step of an epilogue", f->name);
        }
    }
    for (int i = 0, k = s->count - 1; i < k; i++, k--) {
        int32_t step = s->list[i];
        int arg = s->arg[i];
        s->list[i] = s->list[k], s->arg[i] = s->arg[k];
        s->list[k] = step, s->arg[k] = arg;
    }
    return MICA_OK;
}

static mica_status steps_of_pointwise(const mica_op *taker, const void *desc, int arg, steps *s,
                                      mica_why *why)
{
    const mica_pointwise_desc *d = desc;
    mica_expr e = {.rank = d->y0.rank, .extent = INT32_MAX};
    if (d->pass != MICA_POINTWISE_FWD || arg >= MICA_POINTWISE_X0 + MICA_EXPR_X)
        return MICA_NOT_FOUND;
    if (strchr(d->expr, ';')) return mica_refuse(why, "the expression has several results");
    for (int k = 0; k < MICA_EXPR_INPUTS; k++)
        e.inputs[k] = k < MICA_EXPR_X       ? (&d->x0)[k].dtype
                      : k < MICA_EXPR_INDEX ? MICA_F64
                                            : MICA_S64;
    if (mica_expr_parse(&e, d->expr, why) != MICA_OK) return MICA_UNSUPPORTED;
    return peel(taker, &e, arg - MICA_POINTWISE_X0, s, why);
}

/* ---- tensors of steps ---- */

/* The arguments that they are in. */
static const char *const names[] = {[MICA_STEP_BIAS] = "bias",
                                    [MICA_STEP_SCALE] = "scale",
                                    [MICA_STEP_SHIFT] = "shift",
                                    [MICA_STEP_RESIDUAL] = "residual"};

static bool has_step(const int32_t *list, int32_t step)
{
    for (int i = 0; i < MICA_MAX_STEPS && list[i]; i++)
        if (list[i] == step) return true;
    return false;
}

static bool same_dims(const mica_tensor *a, const mica_tensor *b)
{
    return a->rank == b->rank && !memcmp(a->dims, b->dims, (size_t)a->rank * sizeof *a->dims);
}

/* Whether, aligned at the last dimension, t has only channels: those, as one dimension. */
static bool is_vector(const mica_tensor *t, const mica_tensor *y, int channel, mica_tensor *vector)
{
    const int apart = y->rank - t->rank, c = channel - apart;
    if (c < 0 || c >= t->rank || t->dims[c] != y->dims[channel]) return false;
    for (int i = 0; i < t->rank; i++)
        if (i != c && t->dims[i] != 1) return false;
    *vector = (mica_tensor){.dtype = t->dtype, .rank = 1};
    vector->dims[0] = t->dims[c];
    vector->strides[0] = t->strides[c];
    mica_tensor_default_strides(vector);
    return t->strides[c] != 0 || t->dims[c] == 1;
}

/* The step that a tensor stands for: by its dimensions, and what is taken already. */
static mica_status settle(const int32_t *list, int32_t *step, mica_tensor *t, const mica_tensor *y,
                          int channel, mica_why *why)
{
    mica_tensor vector;
    const bool scale = *step == MICA_STEP_SCALE;
    if (is_vector(t, y, channel, &vector)) {
        if (!scale && has_step(list, MICA_STEP_BIAS)) *step = MICA_STEP_SHIFT;
        *t = vector;
    } else if (!scale && same_dims(t, y)) {
        *step = MICA_STEP_RESIDUAL;
    } else {
        char text[256];
        mica_tensor_text(t, text, sizeof text);
        return mica_refuse(why, "%s is neither %lld channels of dimension %d%s", text,
                           (long long)y->dims[channel], channel, scale ? "" : " nor as the result");
    }
    if (has_step(list, *step)) return mica_refuse(why, "a second %s", names[*step]);
    return MICA_OK;
}

/* ---- the replacement ---- */

static mica_status take_step(graph_node *fresh, void *desc, const graph_node *n, const void *other,
                             const steps *s, int i, int channel, mica_why *why)
{
    const mica_op *op = fresh->op;
    int32_t *list = field_of(op, desc, "epilogue"), step = s->list[i];
    int count = 0;
    while (list[count]) count++;
    if (count == MICA_MAX_STEPS - 1)
        return mica_refuse(why, "more than %d steps", MICA_MAX_STEPS - 1);
    if (s->arg[i] != NO_ARG) {
        const int bind = graph_bind_of(n, s->arg[i]);
        mica_tensor t = *mica_op_tensor(n->op, other, s->arg[i]);
        MICA_TRY(
            settle(list, &step, &t, mica_op_tensor(op, desc, result_of(op, desc)), channel, why));
        const int arg = mica_op_arg_index(op, names[step]);
        *tensor_of(op, desc, arg) = t;
        MICA_TRY(graph_node_bind(fresh, arg, n->binds[bind].tensor, n->binds[bind].at));
    } else {
        *(double *)field_of(op, desc, "act_a") = s->act_a;
        *(double *)field_of(op, desc, "act_b") = s->act_b;
    }
    list[count] = step;
    return MICA_OK;
}

/* Sums that are stored as they are; what is rounded to integers or eight bits has to be. */
static mica_status check_taker(const mica_op *op, void *desc, const mica_tensor *y, mica_why *why)
{
    const int32_t *gate = field_of(op, desc, "gate");
    if (gate && *gate) return mica_refuse(why, "%s has a gate", op->name);
    if (mica_dtype_is_common(y->dtype) || y->dtype == MICA_S32) return MICA_OK;
    return mica_refuse(why, "the result of %s is rounded to %s first", op->name,
                       mica_dtype_name(y->dtype));
}

static mica_status replace(graph_rewriting *r, int from, int node, const void *other,
                           const steps *s, const struct taker *t, mica_why *why)
{
    const graph_node *n = &r->g->nodes[node];
    _Alignas(16) char desc[MICA_MAX_DESC];
    graph_node fresh;
    graph_desc(r, from, desc);
    const mica_op *op = r->g->nodes[from].op;
    const int result = result_of(op, desc), of_node = result_of(n->op, other);
    const mica_tensor *y = mica_op_tensor(n->op, other, of_node);
    const mica_tensor *sums = mica_op_tensor(op, desc, result);
    const int channel = t->channel < 0 ? sums->rank + t->channel : t->channel;
    if (!same_dims(sums, y)) return mica_refuse(why, "the result is repeated along a dimension");
    MICA_TRY(check_taker(op, desc, sums, why));
    MICA_TRY(graph_node_like(&r->g->nodes[from], &fresh));
    mica_status status = MICA_OK;
    for (int i = 0; status == MICA_OK && i < s->count; i++)
        status = take_step(&fresh, desc, n, other, s, i, channel, why);
    if (status != MICA_OK) {
        graph_node_free(&fresh);
        return status;
    }
    *tensor_of(op, desc, result) = *y;
    fresh.binds[graph_bind_of(&fresh, result)].tensor = n->binds[graph_bind_of(n, of_node)].tensor;
    return graph_merge(r, &from, 1, node, &fresh, desc, why);
}

static mica_status try_bind(graph_rewriting *r, int node, int bind, const void *desc, mica_why *why)
{
    const graph_node *n = &r->g->nodes[node];
    const int from = graph_writer_of_bind(r, node, bind), arg = n->binds[bind].arg;
    const struct taker *t = from >= 0 && from != node ? taker_of(&r->g->nodes[from]) : NULL;
    _Alignas(16) char made[MICA_MAX_DESC];
    steps s = {.count = 0};
    if (!t || mica_op_dir(n->op, desc, arg) != MICA_IN) return MICA_NOT_FOUND;
    const mica_op *op = r->g->nodes[from].op;
    graph_desc(r, from, made);
    if (mica_op_pass(op, made) != 0) return MICA_NOT_FOUND;
    if (graph_bind_of(&r->g->nodes[from], result_of(op, made)) < 0) return MICA_NOT_FOUND;
    MICA_TRY(graph_may_absorb(r, from, node, bind, why));
    MICA_TRY(!strcmp(n->op->name, "activation") ? steps_of_activation(n, desc, arg, &s, why)
                                                : steps_of_pointwise(op, desc, arg, &s, why));
    return replace(r, from, node, desc, &s, t, why);
}

static mica_status apply(graph_rewriting *r, int node, mica_why *why)
{
    const graph_node *n = &r->g->nodes[node];
    _Alignas(16) char desc[MICA_MAX_DESC];
    mica_status found = MICA_NOT_FOUND;
    if (strcmp(n->op->name, "activation") != 0 && strcmp(n->op->name, "pointwise") != 0)
        return MICA_NOT_FOUND;
    graph_desc(r, node, desc);
    for (int b = 0; b < n->bind_count; b++) {
        mica_status status = try_bind(r, node, b, desc, why);
        if (status == MICA_NOT_FOUND) continue;
        if (status != MICA_UNSUPPORTED) return status;
        found = status;
    }
    return found;
}

const graph_rewrite graph_rewrite_epilogue = {
    .name = "epilogue",
    .doc = "conv, gemm -> bias, scale, residual, activation: steps of the epilogue",
    .apply = apply,
};
