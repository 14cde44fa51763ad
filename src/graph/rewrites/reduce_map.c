/* SPDX-License-Identifier: Apache-2.0
 * pointwise -> reduce: the expression becomes the reduction's map, so that what is reduced is never
 * in memory. */
#include "graph/rewrites/expression.h"
#include "mica/pointwise.h"
#include "mica/reduce.h"

#include <string.h>

/* Argument of operand k: x is x0. */
static int arg_of(int k)
{
    return k ? MICA_REDUCE_X1 + k - 1 : MICA_REDUCE_X;
}

static bool same_dims(const mica_tensor *a, const mica_tensor *b)
{
    return a->rank == b->rank && !memcmp(a->dims, b->dims, (size_t)a->rank * sizeof *a->dims);
}

/* The first operand gives the shape. */
static mica_status choose_first(expression *e, const source *outer, int hole, const source *inner,
                                const mica_tensor *x, mica_why *why)
{
    int index;
    for (int i = 0; i < 2; i++) {
        const source *s = i ? inner : outer;
        for (int k = 0; k < EXPRESSION_X; k++) {
            if ((s == outer && k == hole) || graph_bind_of(s->node, s->arg[k]) < 0) continue;
            if (same_dims(mica_op_tensor(s->node->op, s->desc, s->arg[k]), x))
                return expression_operand(e, s, k, &index, why);
        }
    }
    return mica_refuse(why, "no operand has the dimensions of what is reduced");
}

static mica_status join(graph_rewriting *r, int from, int node, int hole, const source *outer,
                        const source *inner, mica_why *why)
{
    expression e = {.x_count = 0};
    graph_node fresh;
    mica_reduce_desc d;
    const mica_tensor *y;
    const char *cast;
    const mica_op *op = outer->node->op;
    memcpy(&d, outer->desc, sizeof d);
    MICA_TRY(source_result(inner, &y, &cast, why));
    if (!mica_dtype_is_float(y->dtype) || *cast)
        return mica_refuse(why, "it reduces %s, a map gives reals", mica_dtype_name(y->dtype));
    MICA_TRY(choose_first(&e, outer, hole, inner, &d.x, why));
    MICA_TRY(expression_join(&e, outer, hole, inner, cast, why));
    if (e.places) return mica_refuse(why, "a map has no places i0, i1, ...");
    if (e.s_count) return mica_refuse(why, "a map has no run-time scalars");
    memset(d.map, 0, sizeof d.map);
    memcpy(d.map, e.text, strlen(e.text));
    MICA_TRY(graph_node_begin(op, &fresh));
    mica_status status = expression_bind(&e, outer, &fresh, &d);
    const int result = graph_bind_of(outer->node, MICA_REDUCE_Y);
    if (status == MICA_OK)
        status = graph_node_bind(&fresh, MICA_REDUCE_Y, outer->node->binds[result].tensor,
                                 outer->node->binds[result].at);
    if (status != MICA_OK) {
        graph_node_free(&fresh);
        return status;
    }
    return graph_merge(r, &from, 1, node, &fresh, &d, why);
}

static mica_status apply(graph_rewriting *r, int node, mica_why *why)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    source outer = {.r = r, .node = &r->g->nodes[node], .desc = desc};
    if (strcmp(outer.node->op->name, "reduce") != 0) return MICA_NOT_FOUND;
    graph_desc(r, node, desc);
    const mica_reduce_desc *d = (const mica_reduce_desc *)(const void *)desc;
    if (d->pass != MICA_REDUCE_FWD || graph_bind_of(outer.node, MICA_REDUCE_Y) < 0)
        return MICA_NOT_FOUND;
    outer.text = *d->map ? d->map : "x0";
    for (int k = 0; k < EXPRESSION_X; k++) outer.arg[k] = arg_of(k);
    return expression_try(r, node, &outer, join, why);
}

const graph_rewrite graph_rewrite_reduce_map = {
    .name = "reduce_map",
    .doc = "pointwise -> reduce: the expression is the reduction's map",
    .apply = apply,
};
