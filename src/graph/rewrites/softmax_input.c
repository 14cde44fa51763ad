/* SPDX-License-Identifier: Apache-2.0
 * pointwise -> softmax: a factor, a mask that is added, or where(mask, x, -inf) become fields of
 * the softmax. A row that such a mask leaves empty gives 0 there, and NaN node by node. */
#include "graph/rewrites/logits.h"
#include "mica/pointwise.h"
#include "mica/softmax.h"

#include <string.h>

static mica_status join(graph_rewriting *r, int from, int node, const source *s, mica_why *why)
{
    logits l;
    graph_node fresh;
    _Alignas(16) char desc[MICA_MAX_DESC];
    const graph_node *n = &r->g->nodes[node];
    graph_desc(r, node, desc);
    mica_softmax_desc *d = (mica_softmax_desc *)(void *)desc;
    MICA_TRY(logits_read(s, &l, why));
    if (d->scale != 1) return mica_refuse(why, "softmax has a scale of %g", d->scale);
    if (l.causal) return mica_refuse(why, "a diagonal is no tensor, which masks of softmax are");
    if (l.mask >= 0 && l.bias >= 0) return mica_refuse(why, "it has a mask and a bias");
    const int mask = l.mask >= 0 ? l.mask : l.bias;
    if (mask >= 0 && mica_tensor_given(&d->mask)) return mica_refuse(why, "softmax has a mask");
    const int x = graph_bind_of(s->node, s->arg[l.x]);
    d->x = *mica_op_tensor(s->node->op, s->desc, s->arg[l.x]);
    d->scale = l.scale == 0 ? MICA_ZERO : l.scale;
    MICA_TRY(graph_node_like(n, &fresh));
    graph_bound *b = &fresh.binds[graph_bind_of(&fresh, MICA_SOFTMAX_X)];
    b->tensor = s->node->binds[x].tensor;
    b->at = s->node->binds[x].at;
    mica_status status = MICA_OK;
    if (mask >= 0) {
        const int bind = graph_bind_of(s->node, s->arg[mask]);
        d->mask = mask == l.mask ? l.as_mask : l.as_bias;
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
