/* SPDX-License-Identifier: Apache-2.0
 * copy of another type -> softmax or cross_entropy: their input is what was copied. They compute in
 * the type that the copy had, or a wider one; the copy stays where others read it. */
#include "graph/rewrites/products.h"
#include "mica/cross_entropy.h"
#include "mica/softmax.h"

#include <string.h>

static const struct {
    const char *op;
    int arg;
} rows[] = {{"softmax", MICA_SOFTMAX_X}, {"cross_entropy", MICA_CROSS_ENTROPY_X}};

static mica_status apply(graph_rewriting *r, int node, mica_why *why)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    graph_node fresh;
    group g = {.nodes = {node}, .count = 1};
    const graph_node *n = &r->g->nodes[node];
    size_t i = 0;
    while (i < sizeof rows / sizeof *rows && !is_node(r, node, rows[i].op)) i++;
    if (i == sizeof rows / sizeof *rows) return MICA_NOT_FOUND;
    const operand x = operand_of(r, node, rows[i].arg);
    if (x.tensor < 0 || !x.copy_count) return MICA_NOT_FOUND;
    group_offer_copies(r, &g, &x);
    graph_desc(r, node, desc);
    *(mica_tensor *)(void *)(desc + n->op->args[rows[i].arg].tensor) = x.view;
    MICA_TRY(graph_node_like(n, &fresh));
    graph_bound *b = &fresh.binds[graph_bind_of(&fresh, rows[i].arg)];
    b->tensor = x.tensor;
    b->at = x.at;
    return graph_merge(r, g.nodes + 1, g.count - 1, node, &fresh, desc, why);
}

const graph_rewrite graph_rewrite_cast_input = {
    .name = "cast_input",
    .doc = "copy of another type -> softmax, cross_entropy: their input",
    .apply = apply,
};
