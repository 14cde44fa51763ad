/* SPDX-License-Identifier: Apache-2.0
 * pointwise -> softmax: a factor, a mask that is added, or where(mask, x, -inf) become fields of
 * the softmax. A row that such a mask leaves empty gives 0 there, and NaN node by node. */
#include "graph/rewrites/logits.h"
#include "mica/pointwise.h"
#include "mica/softmax.h"
#include "ops/pointwise/expression.h"

#include <math.h>
#include <string.h>

/* The number that a node is, of run-time scalars those that are fixed. */
static bool number_of(const mica_expr *e, int node, const graph_node *n, double *value)
{
    const mica_expr_node *v = &e->nodes[node];
    if (v->kind == MICA_EXPR_CALL && v->index == MICA_FN_neg && number_of(e, v->arg[0], n, value)) {
        *value = -*value;
        return true;
    }
    if (v->kind == MICA_EXPR_SCALAR && n->scalar_of[v->index] < 0) {
        *value = n->scalars[v->index];
        return true;
    }
    *value = v->value;
    return v->kind == MICA_EXPR_NUMBER;
}

static bool operand_of(const mica_expr *e, int node, int *operand)
{
    *operand = e->nodes[node].index;
    return e->nodes[node].kind == MICA_EXPR_INPUT && *operand < MICA_EXPR_X;
}

/* x, x c, c x or x / c */
static bool read_scaled(const mica_expr *e, int node, const graph_node *n, logits *l)
{
    const mica_expr_node *v = &e->nodes[node];
    l->scale = 1;
    if (operand_of(e, node, &l->x)) return true;
    if (v->kind != MICA_EXPR_CALL) return false;
    if (v->index == MICA_FN_div && operand_of(e, v->arg[0], &l->x) &&
        number_of(e, v->arg[1], n, &l->scale)) {
        l->scale = 1 / l->scale;
        return true;
    }
    for (int i = 0; v->index == MICA_FN_mul && i < 2; i++)
        if (operand_of(e, v->arg[i], &l->x) && number_of(e, v->arg[!i], n, &l->scale)) return true;
    return false;
}

static bool read_logits(const mica_expr *e, const graph_node *n, logits *l)
{
    const int node = e->results[0];
    const mica_expr_node *v = &e->nodes[node];
    double other;
    l->mask = -1;
    if (read_scaled(e, node, n, l)) return true;
    if (v->kind != MICA_EXPR_CALL) return false;
    /* of two operands the one that is scaled, or comes first, is the logits */
    for (int i = 0; v->index == MICA_FN_add && i < 2; i++) {
        if (e->nodes[v->arg[i]].kind == MICA_EXPR_INPUT &&
            e->nodes[v->arg[!i]].kind != MICA_EXPR_INPUT)
            continue;
        if (read_scaled(e, v->arg[i], n, l) && operand_of(e, v->arg[!i], &l->mask)) return true;
    }
    l->picks = v->index == MICA_FN_where && number_of(e, v->arg[2], n, &other) &&
               other == -INFINITY && operand_of(e, v->arg[0], &l->mask) &&
               read_scaled(e, v->arg[1], n, l);
    return l->picks;
}

/* Aligned at the last dimension; what is repeated has stride 0. */
static bool expand(const mica_tensor *t, const mica_tensor *x, mica_tensor *wide)
{
    const int apart = x->rank - t->rank;
    if (apart < 0) return false;
    *wide = *x;
    wide->dtype = t->dtype;
    for (int i = 0; i < x->rank; i++) {
        const bool own = i >= apart && (t->dims[i - apart] != 1 || x->dims[i] == 1);
        if (own && t->dims[i - apart] != x->dims[i]) return false;
        wide->strides[i] = own ? t->strides[i - apart] : 0;
    }
    wide->strided = 1;
    mica_tensor_default_strides(wide);
    return true;
}

static bool same_dims(const mica_tensor *a, const mica_tensor *b)
{
    return a->rank == b->rank && !memcmp(a->dims, b->dims, (size_t)a->rank * sizeof *a->dims);
}

mica_status logits_read(const source *s, logits *l, mica_why *why)
{
    const mica_pointwise_desc *d = s->desc;
    mica_expr e = {.rank = MICA_EXPR_INDICES, .extent = INT32_MAX};
    if (strchr(d->expr, ';')) return mica_refuse(why, "its expression has several results");
    for (int k = 0; k < MICA_EXPR_INPUTS; k++)
        e.inputs[k] = k < MICA_EXPR_X       ? (&d->x0)[k].dtype
                      : k < MICA_EXPR_INDEX ? MICA_F64
                                            : MICA_S64;
    if (mica_expr_parse(&e, d->expr, why) != MICA_OK) return MICA_UNSUPPORTED;
    if (!read_logits(&e, s->node, l))
        return mica_refuse(why, "%s is no factor, mask that is added or where(mask,x,-inf)",
                           d->expr);
    const mica_tensor *x = &(&d->x0)[l->x];
    if (!mica_dtype_is_common(x->dtype) || !mica_dtype_is_common(d->y0.dtype))
        return mica_refuse(why, "its logits are %s", mica_dtype_name(x->dtype));
    if (!same_dims(x, &d->y0)) return mica_refuse(why, "its logits are repeated");
    if (l->mask < 0) return MICA_OK;
    const mica_tensor *mask = &(&d->x0)[l->mask];
    const bool bits = mask->dtype == MICA_BOOL || mask->dtype == MICA_U8;
    if (!expand(mask, x, &l->as_mask) || bits != l->picks ||
        !(bits || mica_dtype_is_common(mask->dtype)))
        return mica_refuse(why, "x%d, of %s, is no mask", l->mask, mica_dtype_name(mask->dtype));
    return MICA_OK;
}

static mica_status join(graph_rewriting *r, int from, int node, const source *s, mica_why *why)
{
    logits l = {.x = 0};
    graph_node fresh;
    _Alignas(16) char desc[MICA_MAX_DESC];
    const graph_node *n = &r->g->nodes[node];
    graph_desc(r, node, desc);
    mica_softmax_desc *d = (mica_softmax_desc *)(void *)desc;
    MICA_TRY(logits_read(s, &l, why));
    if (d->scale != 1) return mica_refuse(why, "softmax has a scale of %g", d->scale);
    if (l.mask >= 0 && mica_tensor_given(&d->mask)) return mica_refuse(why, "softmax has a mask");
    const int x = graph_bind_of(s->node, s->arg[l.x]);
    d->x = *mica_op_tensor(s->node->op, s->desc, s->arg[l.x]);
    d->scale = l.scale == 0 ? MICA_ZERO : l.scale;
    MICA_TRY(graph_node_like(n, &fresh));
    graph_bound *b = &fresh.binds[graph_bind_of(&fresh, MICA_SOFTMAX_X)];
    b->tensor = s->node->binds[x].tensor;
    b->at = s->node->binds[x].at;
    mica_status status = MICA_OK;
    if (l.mask >= 0) {
        const int bind = graph_bind_of(s->node, s->arg[l.mask]);
        d->mask = l.as_mask;
        status = graph_node_bind(&fresh, MICA_SOFTMAX_MASK, s->node->binds[bind].tensor,
                                 s->node->binds[bind].at);
    }
    if (status != MICA_OK) {
        graph_node_free(&fresh);
        return status;
    }
    return graph_merge(r, &from, 1, node, &fresh, desc, why);
}

static mica_status apply(graph_rewriting *r, int node, mica_why *why)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    source s;
    const graph_node *n = &r->g->nodes[node];
    if (strcmp(n->op->name, "softmax") != 0) return MICA_NOT_FOUND;
    const int bind = graph_bind_of(n, MICA_SOFTMAX_X);
    const int from = graph_writer_of_bind(r, node, bind);
    if (!source_of_pointwise(r, from, desc, &s)) return MICA_NOT_FOUND;
    _Alignas(16) char own[MICA_MAX_DESC];
    graph_desc(r, node, own);
    if (((const mica_softmax_desc *)(const void *)own)->pass != MICA_SOFTMAX_FWD)
        return MICA_NOT_FOUND;
    MICA_TRY(graph_may_absorb(r, from, node, bind, why));
    return join(r, from, node, &s, why);
}

const graph_rewrite graph_rewrite_softmax_input = {
    .name = "softmax_input",
    .doc = "pointwise -> softmax: a factor and a mask are fields of the softmax",
    .apply = apply,
};
