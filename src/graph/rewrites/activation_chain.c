/* SPDX-License-Identifier: Apache-2.0
 * activation -> pointwise: the same as an expression, where a pointwise node beside it, or a norm
 * or a reduction, can make one of the two. It is a rewrite by itself only as far as others follow.
 */
#include "graph/rewrites/products.h"
#include "mica/activation.h"
#include "mica/norm.h"
#include "mica/pointwise.h"
#include "base/format.h"
#include "ops/pointwise/expression.h"

#include <string.h>

/* The function's name, of one argument; NULL: there is none. */
static const char *function_of(const mica_op *op, const mica_activation_desc *d)
{
    const mica_field *f = op->fields;
    while (strcmp(f->name, "act") != 0) f++;
    const char *name = f->spellings[d->act];
    for (int i = 0; i < MICA_FUNCTIONS; i++)
        if (!strcmp(mica_functions[i].name, name))
            return mica_functions[i].arity == 1 ? name : NULL;
    return NULL;
}

static bool is_forward_pointwise(const graph_rewriting *r, int node)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    if (!is_node(r, node, "pointwise")) return false;
    graph_desc(r, node, desc);
    return ((const mica_pointwise_desc *)(const void *)desc)->pass == MICA_POINTWISE_FWD;
}

/* The node that alone reads what a tensor holds; -1: an output, or there are several. */
static int only_reader(const graph_rewriting *r, int tensor)
{
    const graph_tensor *t = &r->g->tensors[tensor];
    return t->kind == MICA_GRAPH_VIRTUAL && t->reads == 1 ? t->readers : -1;
}

static bool has_partner(const graph_rewriting *r, int node)
{
    const graph_node *n = &r->g->nodes[node];
    const int x = graph_bind_of(n, MICA_ACTIVATION_X), y = graph_bind_of(n, MICA_ACTIVATION_Y);
    if (x < 0 || y < 0) return false; /* refused when it is planned */
    const int from = graph_writer_of_bind(r, node, x), to = only_reader(r, n->binds[y].tensor);
    if (is_forward_pointwise(r, to) || is_node(r, to, "reduce")) return true;
    return only_reader(r, n->binds[x].tensor) == node &&
           (is_forward_pointwise(r, from) || is_node(r, from, "norm"));
}

static mica_status apply(graph_rewriting *r, int node, mica_why *why)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    graph_node fresh;
    if (!is_node(r, node, "activation")) return MICA_NOT_FOUND;
    const graph_node *n = &r->g->nodes[node];
    graph_desc(r, node, desc);
    const mica_activation_desc *d = (const mica_activation_desc *)(const void *)desc;
    if (d->pass != MICA_ACTIVATION_FWD || d->gated || !has_partner(r, node)) return MICA_NOT_FOUND;
    for (int i = 0; i < n->op->scalar_count; i++)
        if (n->scalar_of[i] >= 0 || n->scalars[i] != n->op->scalars[i].def)
            return mica_refuse(why, "the activation has a scalar, %s", n->op->scalars[i].name);
    const char *name = function_of(n->op, d);
    if (!name || d->act_a != 0 || d->act_b != 0)
        return mica_refuse(why, "the activation has parameters");
    mica_pointwise_desc p = {.x0 = d->x, .y0 = d->y};
    mica_format(p.expr, sizeof p.expr, "%s(x0)", name);
    const graph_bound *x = &n->binds[graph_bind_of(n, MICA_ACTIVATION_X)];
    const graph_bound *y = &n->binds[graph_bind_of(n, MICA_ACTIVATION_Y)];
    MICA_TRY(graph_node_begin(mica_op_find("pointwise"), &fresh));
    mica_status status = graph_node_bind(&fresh, MICA_POINTWISE_X0, x->tensor, x->at);
    if (status == MICA_OK) status = graph_node_bind(&fresh, MICA_POINTWISE_Y0, y->tensor, y->at);
    if (status != MICA_OK) {
        graph_node_free(&fresh);
        return status;
    }
    return graph_merge(r, NULL, 0, node, &fresh, &p, why);
}

const graph_rewrite graph_rewrite_activation_chain = {
    .name = "activation_chain",
    .doc = "activation beside pointwise, or behind norm: pointwise",
    .apply = apply,
};
