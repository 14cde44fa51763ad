/* SPDX-License-Identifier: Apache-2.0
 * A softmax in parts, as frameworks write it: m = max(x), e = exp(x - m), s = sum(e), e / s. */
#include "graph/rewrites/expression.h"
#include "mica/pointwise.h"
#include "mica/reduce.h"
#include "mica/softmax.h"
#include "ops/pointwise/expression.h"

#include <string.h>

/* A node whose expression is `outer` of two operands, or `outer` of `inner` of them. */
static bool is_function(const source *s, int outer, int inner, int *first, int *second)
{
    const mica_pointwise_desc *d = s->desc;
    mica_expr e = {.rank = MICA_EXPR_INDICES, .extent = INT32_MAX};
    mica_why why;
    for (int k = 0; k < MICA_EXPR_INPUTS; k++)
        e.inputs[k] = k < MICA_EXPR_X       ? (&d->x0)[k].dtype
                      : k < MICA_EXPR_INDEX ? MICA_F64
                                            : MICA_S64;
    if (strchr(d->expr, ';') || mica_expr_parse(&e, d->expr, &why) != MICA_OK) return false;
    const mica_expr_node *v = &e.nodes[e.results[0]];
    if (v->kind != MICA_EXPR_CALL || v->index != outer) return false;
    if (inner >= 0) v = &e.nodes[v->arg[0]];
    if (v->kind != MICA_EXPR_CALL || (inner >= 0 && v->index != inner)) return false;
    const mica_expr_node *a = &e.nodes[v->arg[0]], *b = &e.nodes[v->arg[1]];
    *first = a->index, *second = b->index;
    return a->kind == MICA_EXPR_INPUT && b->kind == MICA_EXPR_INPUT && *first < MICA_EXPR_X &&
           *second < MICA_EXPR_X;
}

/* A reduction of that kind over one dimension, which stays as 1. */
static bool is_reduction(const graph_rewriting *r, int node, mica_reduce_kind kind, int64_t *axis)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    if (node < 0 || strcmp(r->g->nodes[node].op->name, "reduce") != 0) return false;
    graph_desc(r, node, desc);
    const mica_reduce_desc *d = (const mica_reduce_desc *)(const void *)desc;
    if (d->pass != MICA_REDUCE_FWD || d->kind != kind || !d->keepdims || *d->map) return false;
    if (!d->axes[0] || d->axes[1]) return false;
    *axis = d->axes[0] <= MICA_MAX_RANK ? d->axes[0] - 1 : MICA_MAX_RANK - d->axes[0] + d->x.rank;
    return true;
}

static int tensor_of(const graph_node *n, int arg)
{
    const int bind = graph_bind_of(n, arg);
    return bind < 0 || n->binds[bind].at ? -1 : n->binds[bind].tensor;
}

typedef struct parts {
    int max, exp, sum;          /* nodes */
    int of_max, of_exp, of_sum; /* their results */
    int x;                      /* operand of exp's node */
    int64_t axis;
} parts;

static bool find_parts(const graph_rewriting *r, const source *quotient, void *desc, source *exp,
                       parts *p)
{
    int a, b, m;
    int64_t of_max;
    if (!is_function(quotient, MICA_FN_div, -1, &a, &b)) return false;
    p->of_exp = tensor_of(quotient->node, quotient->arg[a]);
    p->of_sum = tensor_of(quotient->node, quotient->arg[b]);
    if (p->of_exp < 0 || p->of_sum < 0) return false;
    p->exp = r->g->tensors[p->of_exp].writer;
    p->sum = r->g->tensors[p->of_sum].writer;
    if (!is_reduction(r, p->sum, MICA_REDUCE_KIND_SUM, &p->axis)) return false;
    if (tensor_of(&r->g->nodes[p->sum], MICA_REDUCE_X) != p->of_exp) return false;
    if (!source_of_pointwise(r, p->exp, desc, exp)) return false;
    if (!is_function(exp, MICA_FN_exp, MICA_FN_sub, &p->x, &m)) return false;
    p->of_max = tensor_of(exp->node, exp->arg[m]);
    if (p->of_max < 0) return false;
    p->max = r->g->tensors[p->of_max].writer;
    return is_reduction(r, p->max, MICA_REDUCE_KIND_MAX, &of_max) && of_max == p->axis &&
           tensor_of(&r->g->nodes[p->max], MICA_REDUCE_X) == tensor_of(exp->node, exp->arg[p->x]);
}

static mica_status may_vanish(const graph_rewriting *r, int node, int tensor, int reads,
                              mica_why *why)
{
    const graph_tensor *t = &r->g->tensors[tensor];
    if (t->kind != MICA_GRAPH_VIRTUAL)
        return mica_refuse(why, "%s, which node %d makes, is an output of the graph", t->name,
                           node);
    if (t->reads != reads)
        return mica_refuse(why, "%s is read %d times, by the softmax %d", t->name, t->reads, reads);
    return graph_may_move(r, node, tensor, why);
}

static mica_status apply(graph_rewriting *r, int node, mica_why *why)
{
    _Alignas(16) char desc[MICA_MAX_DESC], exp_desc[MICA_MAX_DESC];
    source quotient, exp;
    graph_node fresh;
    parts p;
    if (!source_of_pointwise(r, node, desc, &quotient)) return MICA_NOT_FOUND;
    if (!find_parts(r, &quotient, exp_desc, &exp, &p)) return MICA_NOT_FOUND;
    MICA_TRY(may_vanish(r, p.max, p.of_max, 1, why));
    MICA_TRY(may_vanish(r, p.exp, p.of_exp, 2, why));
    MICA_TRY(may_vanish(r, p.sum, p.of_sum, 1, why));
    const mica_tensor *x = mica_op_tensor(exp.node->op, exp.desc, exp.arg[p.x]);
    const mica_pointwise_desc *d = quotient.desc;
    if (!mica_dtype_is_common(x->dtype) || !mica_dtype_is_common(d->y0.dtype))
        return mica_refuse(why, "logits of %s, weights of %s", mica_dtype_name(x->dtype),
                           mica_dtype_name(d->y0.dtype));
    mica_softmax_desc softmax = {.x = *x, .y = d->y0, .axis = p.axis};
    MICA_TRY(graph_node_begin(mica_op_find("softmax"), &fresh));
    mica_status status =
        graph_node_bind(&fresh, MICA_SOFTMAX_X, tensor_of(exp.node, exp.arg[p.x]), 0);
    if (status == MICA_OK)
        status =
            graph_node_bind(&fresh, MICA_SOFTMAX_Y, tensor_of(quotient.node, MICA_POINTWISE_Y0), 0);
    if (status != MICA_OK) {
        graph_node_free(&fresh);
        return status;
    }
    return graph_merge(r, (const int[]){p.max, p.exp, p.sum}, 3, node, &fresh, &softmax, why);
}

const graph_rewrite graph_rewrite_softmax_parts = {
    .name = "softmax_parts",
    .doc = "max, exp(x - max), sum, quotient: softmax",
    .apply = apply,
};
