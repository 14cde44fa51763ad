/* SPDX-License-Identifier: Apache-2.0
 * Norms in parts, as frameworks write them: mean, x - mean, mean of squares, 1 / sqrt(.. + eps),
 * and a product of both; then scale, bias, activation and a change of type behind a norm. Mean and
 * rstd may be wanted elsewhere: they become results of the norm. */
#include "graph/rewrites/norm.h"
#include "mica/norm.h"
#include "mica/reduce.h"

#include <string.h>

static int whole_result(const graph_node *n, int arg)
{
    const int bind = graph_bind_of(n, arg);
    return bind < 0 || n->binds[bind].at ? -1 : n->binds[bind].tensor;
}

/* ---- x to y ---- */

/* A statistic is left out, or becomes a result. */
static mica_status take_statistic(const graph_rewriting *r, group *g, int node, int from,
                                  int tensor, int axes, const mica_tensor *x, mica_tensor *result,
                                  mica_why *why)
{
    const graph_tensor *t = &r->g->tensors[tensor];
    if (group_take(r, g, from, tensor, why) == MICA_OK) return MICA_OK;
    MICA_TRY(graph_may_move(r, from, tensor, why));
    if (g->count == GROUP_NODES || t->t.dtype != MICA_F32)
        return mica_refuse(why, "%s is %s, a norm writes f32", t->name,
                           mica_dtype_name(t->t.dtype));
    g->nodes[g->count++] = from;
    MICA_TRY(group_may_wait(r, g, from, node, tensor, why));
    *result = (mica_tensor){.dtype = t->t.dtype, .rank = x->rank - axes};
    for (int i = 0; i < result->rank; i++) {
        result->dims[i] = t->t.dims[i];
        result->strides[i] = t->t.strides[i];
    }
    mica_tensor_default_strides(result);
    return MICA_OK;
}

static mica_status check(const norm_parts *p, mica_why *why)
{
    const bool centred = p->is_var || p->squared.centred;
    if (!operand_same(&p->value.x, &p->squared.x))
        return mica_refuse(why, "what is scaled and what is squared are two tensors");
    if (p->value.centred != centred)
        return mica_refuse(why, "what is scaled %s its mean, what is squared %s",
                           p->value.centred ? "is without" : "has",
                           centred ? "is without" : "has it");
    if (p->value.centred && p->value.mean.axes != p->variance.axes)
        return mica_refuse(why, "the mean is over %d dimensions, the variance over %d",
                           p->value.mean.axes, p->variance.axes);
    return MICA_OK;
}

/* What is left out, from y inwards. */
static mica_status take_all(const graph_rewriting *r, const norm_parts *p, int node, group *g,
                            mica_norm_desc *d, mica_why *why)
{
    const mica_tensor *x = &d->x;
    const int axes = p->variance.axes;
    const norm_mean *v = &p->variance;
    const norm_value *const values[] = {&p->value, &p->squared};
    group_offer_copies(r, g, &p->scale);
    group_offer_copies(r, g, &p->bias);
    if (p->is_std)
        MICA_TRY(group_take(r, g, p->root, p->rstd, why));
    else
        MICA_TRY(take_statistic(r, g, node, p->root, p->rstd, axes, x, &d->rstd, why));
    if (v->scaled >= 0) MICA_TRY(group_take(r, g, v->scaled, v->tensor, why));
    MICA_TRY(group_take(r, g, v->reduce, v->of_sum, why));
    for (int i = 0; i < 2; i++)
        if (values[i]->node >= 0)
            MICA_TRY(group_take(r, g, values[i]->node, values[i]->tensor, why));
    for (int i = 0; i < 2; i++) {
        const norm_mean *m = &values[i]->mean;
        if (!values[i]->centred) continue;
        if (m->scaled >= 0) {
            MICA_TRY(group_take(r, g, m->scaled, m->tensor, why));
            MICA_TRY(group_take(r, g, m->reduce, m->of_sum, why));
        } else if (!group_has(g, m->reduce)) {
            MICA_TRY(take_statistic(r, g, node, m->reduce, m->tensor, axes, x, &d->mean, why));
        }
    }
    group_offer_copies(r, g, &p->value.x);
    return MICA_OK;
}

static mica_status bind_all(const graph_rewriting *r, const norm_parts *p, int node,
                            const mica_norm_desc *d, graph_node *fresh)
{
    MICA_TRY(operand_bind(fresh, MICA_NORM_X, &p->value.x));
    if (p->scale.tensor >= 0) MICA_TRY(operand_bind(fresh, MICA_NORM_SCALE, &p->scale));
    if (p->bias.tensor >= 0) MICA_TRY(operand_bind(fresh, MICA_NORM_BIAS, &p->bias));
    if (mica_tensor_given(&d->rstd)) MICA_TRY(graph_node_bind(fresh, MICA_NORM_RSTD, p->rstd, 0));
    if (mica_tensor_given(&d->mean))
        MICA_TRY(graph_node_bind(fresh, MICA_NORM_MEAN, p->value.mean.tensor, 0));
    const graph_node *n = &r->g->nodes[node];
    const graph_bound *y = &n->binds[graph_bind_of(n, MICA_POINTWISE_Y0)];
    return graph_node_bind(fresh, MICA_NORM_Y, y->tensor, y->at);
}

/* With results beside y, scale and bias have to be in the expression: they come first. */
static bool has_more(const graph_rewriting *r, int node)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    source s;
    const int y = whole_result(&r->g->nodes[node], MICA_POINTWISE_Y0);
    if (y < 0) return false;
    const graph_tensor *t = &r->g->tensors[y];
    if (t->kind != MICA_GRAPH_VIRTUAL || t->reads != 1) return false;
    if (!source_of_pointwise(r, t->readers, desc, &s)) return false;
    const mica_pointwise_desc *d = s.desc;
    return mica_tensor_count(&d->y0) == mica_tensor_count(&t->t);
}

static mica_status join_parts(graph_rewriting *r, int node, const norm_parts *p, mica_why *why)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    graph_node fresh;
    group g = {.nodes = {node}, .count = 1};
    graph_desc(r, node, desc);
    mica_norm_desc d = {.kind = p->value.centred ? MICA_NORM_LAYER : MICA_NORM_RMS,
                        .x = p->value.x.view,
                        .y = ((const mica_pointwise_desc *)(const void *)desc)->y0,
                        .axes = p->variance.axes,
                        .eps = p->eps == 0 ? MICA_ZERO : p->eps};
    if (p->scale.tensor >= 0) d.scale = p->scale.view;
    if (p->bias.tensor >= 0) d.bias = p->bias.view;
    MICA_TRY(check(p, why));
    MICA_TRY(take_all(r, p, node, &g, &d, why));
    if ((mica_tensor_given(&d.mean) || mica_tensor_given(&d.rstd)) && has_more(r, node))
        return mica_refuse(why, "its statistics are wanted, and more follows");
    MICA_TRY(graph_node_begin(mica_op_find("norm"), &fresh));
    mica_status status = bind_all(r, p, node, &d, &fresh);
    if (status != MICA_OK) {
        graph_node_free(&fresh);
        return status;
    }
    return graph_merge(r, g.nodes + 1, g.count - 1, node, &fresh, &d, why);
}

/* ---- what follows ---- */

/* The value of norm's field act that a function of one argument is; 0: none. */
static int act_named(const mica_op *op, const char *name)
{
    const mica_field *f = op->fields;
    while (strcmp(f->name, "act") != 0) f++;
    for (int i = 1; f->spellings[i]; i++)
        if (!strcmp(f->spellings[i], name)) return i;
    return 0;
}

typedef struct behind {
    int act, scale, bias; /* operands; -1: none */
} behind;

/* act(x scale + bias), each of the three or none. */
static bool read_behind(const source *s, const mica_op *norm, int x, behind *b)
{
    mica_expr e;
    mica_why why;
    int k;
    *b = (behind){.scale = -1, .bias = -1};
    if (tree_read(s, &e, &why) != MICA_OK) return false;
    int at = e.results[0];
    const mica_expr_node *v = &e.nodes[at];
    if (v->kind == MICA_EXPR_CALL && mica_functions[v->index].arity == 1) {
        b->act = act_named(norm, mica_functions[v->index].name);
        if (!b->act) return false;
        at = v->arg[0];
    }
    for (int step = 0; step < 2; step++) {
        v = &e.nodes[at];
        int *to = step ? &b->scale : &b->bias;
        if (!tree_is_call(&e, at, step ? MICA_FN_mul : MICA_FN_add)) continue;
        const bool second = tree_operand(&e, v->arg[0], &k) && k != x;
        if (!tree_operand(&e, v->arg[!second], to) || *to == x) return false;
        at = v->arg[second];
    }
    return tree_operand(&e, at, &k) && k == x;
}

/* One number for each place in a set. */
static mica_status take_vector(graph_node *fresh, const source *s, int k, int arg,
                               const mica_norm_desc *d, mica_tensor *vector, mica_why *why)
{
    const mica_tensor *t = mica_op_tensor(s->node->op, s->desc, s->arg[k]);
    const graph_bound *b = &s->node->binds[graph_bind_of(s->node, s->arg[k])];
    const int axes = (int)d->axes;
    bool fits = t->rank >= axes;
    *vector = (mica_tensor){.dtype = t->dtype, .rank = axes};
    for (int i = 0; fits && i < t->rank; i++) {
        const int to = i - (t->rank - axes);
        fits = t->dims[i] == (to < 0 ? 1 : d->x.dims[d->x.rank - axes + to]);
        if (to < 0) continue;
        vector->dims[to] = t->dims[i];
        vector->strides[to] = t->strides[i];
    }
    if (!fits) {
        char text[256];
        mica_tensor_text(t, text, sizeof text);
        return mica_refuse(why, "%s is not one number for each of the last %d dimensions", text,
                           axes);
    }
    mica_tensor_default_strides(vector);
    return graph_node_bind(fresh, arg, b->tensor, b->at);
}

static mica_status extend(graph_rewriting *r, int from, int node, const source *s, int k,
                          mica_why *why)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    graph_node fresh;
    behind b;
    const graph_node *n = &r->g->nodes[from];
    const int bind = graph_bind_of(s->node, s->arg[k]);
    const mica_pointwise_desc *outer = s->desc;
    graph_desc(r, from, desc);
    mica_norm_desc *d = (mica_norm_desc *)(void *)desc;
    if (d->pass != MICA_NORM_FWD || (d->kind != MICA_NORM_LAYER && d->kind != MICA_NORM_RMS))
        return MICA_NOT_FOUND;
    if (!read_behind(s, n->op, k, &b)) return MICA_NOT_FOUND;
    MICA_TRY(graph_may_absorb(r, from, node, bind, why));
    if (mica_tensor_count(&outer->y0) != mica_tensor_count(&d->y))
        return mica_refuse(why, "its result is repeated along a dimension");
    if (d->act) return mica_refuse(why, "the norm has an activation");
    if (mica_tensor_given(&d->bias) && (b.scale >= 0 || b.bias >= 0))
        return mica_refuse(why, "the norm has a bias");
    if (mica_tensor_given(&d->scale) && b.scale >= 0)
        return mica_refuse(why, "the norm has a scale");
    MICA_TRY(graph_node_like(n, &fresh));
    mica_status status = MICA_OK;
    if (b.scale >= 0) status = take_vector(&fresh, s, b.scale, MICA_NORM_SCALE, d, &d->scale, why);
    if (status == MICA_OK && b.bias >= 0)
        status = take_vector(&fresh, s, b.bias, MICA_NORM_BIAS, d, &d->bias, why);
    if (status != MICA_OK) {
        graph_node_free(&fresh);
        return status;
    }
    d->act = (mica_act)b.act;
    d->y = outer->y0;
    const graph_bound *y = &s->node->binds[graph_bind_of(s->node, MICA_POINTWISE_Y0)];
    graph_bound *to = &fresh.binds[graph_bind_of(&fresh, MICA_NORM_Y)];
    to->tensor = y->tensor;
    to->at = y->at;
    return graph_merge(r, &from, 1, node, &fresh, desc, why);
}

static mica_status apply(graph_rewriting *r, int node, mica_why *why)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    norm_parts p;
    source s;
    mica_status found = MICA_NOT_FOUND;
    if (!source_of_pointwise(r, node, desc, &s)) return MICA_NOT_FOUND;
    if (norm_find(r, node, &p)) return join_parts(r, node, &p, why);
    for (int k = 0; k < EXPRESSION_X; k++) {
        const int from = graph_writer(r, node, s.arg[k]);
        if (!is_node(r, from, "norm")) continue;
        const mica_status status = extend(r, from, node, &s, k, why);
        if (status == MICA_OK || (status != MICA_NOT_FOUND && status != MICA_UNSUPPORTED))
            return status;
        if (status == MICA_UNSUPPORTED) found = status;
    }
    return found;
}

const graph_rewrite graph_rewrite_norm = {
    .name = "norm",
    .doc = "mean, x - mean, mean of squares, 1 / sqrt, product, scale, bias: norm",
    .apply = apply,
};
