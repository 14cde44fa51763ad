/* SPDX-License-Identifier: Apache-2.0
 * x0 + x1 -> norm: the norm's residual and sum. The sum is written where it was, for what reads it
 * behind the norm. */
#include "graph/rewrites/products.h"
#include "graph/rewrites/tree.h"
#include "mica/norm.h"

#include <string.h>

/* A norm with two results takes nothing more behind it: what follows comes first. */
static bool has_more(const graph_rewriting *r, const graph_node *norm)
{
    const graph_tensor *y = &r->g->tensors[norm->binds[graph_bind_of(norm, MICA_NORM_Y)].tensor];
    return y->kind == MICA_GRAPH_VIRTUAL && y->reads == 1 &&
           (is_node(r, y->readers, "pointwise") || is_node(r, y->readers, "activation"));
}

/* Two operands of the sum's own dimensions and type. */
static bool read_sum(const source *s, const mica_tensor *sum, int k[2])
{
    mica_expr e;
    mica_why why;
    if (tree_read(s, &e, &why) != MICA_OK || !tree_is_call(&e, e.results[0], MICA_FN_add))
        return false;
    for (int i = 0; i < 2; i++) {
        if (!tree_operand(&e, e.nodes[e.results[0]].arg[i], &k[i])) return false;
        const mica_tensor *x = mica_op_tensor(s->node->op, s->desc, s->arg[k[i]]);
        if (x->dtype != sum->dtype || x->rank != sum->rank ||
            memcmp(x->dims, sum->dims, (size_t)x->rank * sizeof *x->dims) != 0)
            return false;
    }
    return k[0] != k[1];
}

static mica_status apply(graph_rewriting *r, int node, mica_why *why)
{
    _Alignas(16) char desc[MICA_MAX_DESC], made[MICA_MAX_DESC];
    graph_node fresh;
    group g = {.nodes = {node}, .count = 1};
    source s;
    int k[2];
    if (!is_node(r, node, "norm")) return MICA_NOT_FOUND;
    const graph_node *n = &r->g->nodes[node];
    graph_desc(r, node, desc);
    mica_norm_desc *d = (mica_norm_desc *)(void *)desc;
    if (d->pass != MICA_NORM_FWD || (d->kind != MICA_NORM_LAYER && d->kind != MICA_NORM_RMS) ||
        mica_tensor_given(&d->residual) || graph_bind_of(n, MICA_NORM_Y) < 0)
        return MICA_NOT_FOUND;
    const operand x = operand_of(r, node, MICA_NORM_X);
    const int from = x.copy_count ? -1 : operand_writer(r, &x);
    if (!source_of_pointwise(r, from, made, &s) || !read_sum(&s, &x.view, k)) return MICA_NOT_FOUND;
    if (has_more(r, n)) return mica_refuse(why, "more follows behind the norm");
    MICA_TRY(graph_may_move(r, from, x.tensor, why));
    MICA_TRY(group_may_wait(r, &g, from, node, x.tensor, why));
    const int at[] = {graph_bind_of(s.node, s.arg[k[0]]), graph_bind_of(s.node, s.arg[k[1]])};
    if (at[0] < 0 || at[1] < 0) return MICA_NOT_FOUND;
    const graph_bound *a = &s.node->binds[at[0]], *b = &s.node->binds[at[1]];
    d->sum = d->x;
    d->x = *mica_op_tensor(s.node->op, made, s.arg[k[0]]);
    d->residual = *mica_op_tensor(s.node->op, made, s.arg[k[1]]);
    MICA_TRY(graph_node_like(n, &fresh));
    graph_bound *to = &fresh.binds[graph_bind_of(&fresh, MICA_NORM_X)];
    to->tensor = a->tensor;
    to->at = a->at;
    mica_status status = graph_node_bind(&fresh, MICA_NORM_RESIDUAL, b->tensor, b->at);
    if (status == MICA_OK) status = graph_node_bind(&fresh, MICA_NORM_SUM, x.tensor, 0);
    if (status != MICA_OK) {
        graph_node_free(&fresh);
        return status;
    }
    return graph_merge(r, &from, 1, node, &fresh, desc, why);
}

const graph_rewrite graph_rewrite_norm_sum = {
    .name = "norm_sum",
    .doc = "x0 + x1 -> norm: its residual and sum",
    .apply = apply,
};
