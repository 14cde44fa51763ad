/* SPDX-License-Identifier: Apache-2.0
 * pointwise -> pointwise: one expression. What is passed on stays in registers; it is computed
 * again for each operand that reads it, of which there is one. */
#include "graph/rewrites/expression.h"
#include "mica/pointwise.h"

#include <string.h>

static mica_status same_dims(const mica_tensor *y, const mica_tensor *of, mica_why *why)
{
    if (mica_tensor_count(y) == mica_tensor_count(of)) return MICA_OK;
    return mica_refuse(why, "its %lld values are repeated for %lld, each would be computed again",
                       (long long)mica_tensor_count(y), (long long)mica_tensor_count(of));
}

static bool same_shape(const mica_tensor *a, const mica_tensor *b)
{
    return a->rank == b->rank && !memcmp(a->dims, b->dims, (size_t)a->rank * sizeof *a->dims);
}

static mica_status join(graph_rewriting *r, int from, int node, int k, const source *outer,
                        const source *inner, mica_why *why)
{
    expression e = {.x_count = 0};
    graph_node fresh;
    mica_pointwise_desc d;
    const mica_tensor *y;
    const char *cast;
    memcpy(&d, outer->desc, sizeof d);
    MICA_TRY(source_result(inner, &y, &cast, why));
    MICA_TRY(same_dims(y, &d.y0, why));
    MICA_TRY(expression_join(&e, outer, k, inner, cast, why));
    if (e.places && !same_shape(y, &d.y0))
        return mica_refuse(why, "its places i0, i1, ... are those of other dimensions");
    memset(d.expr, 0, sizeof d.expr);
    memcpy(d.expr, e.text, strlen(e.text));
    MICA_TRY(graph_node_begin(outer->node->op, &fresh));
    mica_status status = expression_bind(&e, outer, &fresh, &d);
    for (int i = 0; i < e.s_count; i++) fresh.scalar_of[i] = e.scalar_of[i];
    for (int i = 0; status == MICA_OK && i < outer->node->bind_count; i++)
        if (outer->node->binds[i].arg >= MICA_POINTWISE_Y0)
            status = graph_node_bind(&fresh, outer->node->binds[i].arg,
                                     outer->node->binds[i].tensor, outer->node->binds[i].at);
    if (status != MICA_OK) {
        graph_node_free(&fresh);
        return status;
    }
    return graph_merge(r, &from, 1, node, &fresh, &d, why);
}

static mica_status apply(graph_rewriting *r, int node, mica_why *why)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    source outer;
    if (!source_of_pointwise(r, node, desc, &outer)) return MICA_NOT_FOUND;
    return expression_try(r, node, &outer, join, why);
}

const graph_rewrite graph_rewrite_pointwise_chain = {
    .name = "pointwise_chain",
    .doc = "pointwise -> pointwise: one expression",
    .apply = apply,
};
