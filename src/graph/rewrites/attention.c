/* SPDX-License-Identifier: Apache-2.0
 * gemm -> pointwise -> softmax -> dropout -> gemm: attention, without scores and weights in memory.
 * Scale and mask are those of the softmax, or of a pointwise node in front of it (logits.h). Batch
 * dimensions are sequence and head, or sequence, key head and query head of a group. */
#include "graph/rewrites/attention.h"
#include "mica/gemm.h"
#include "mica/random.h"
#include "mica/softmax.h"

#include <string.h>

/* ---- dropout ---- */

bool dropping_find(const graph_rewriting *r, int node, int pass, dropping *d)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    *d = (dropping){.node = -1};
    if (!is_node(r, node, "dropout")) return false;
    graph_desc(r, node, desc);
    const graph_node *n = &r->g->nodes[node];
    const mica_dropout_desc *own = (const mica_dropout_desc *)(const void *)desc;
    if ((int)own->pass != pass) return false;
    const bool bwd = pass == MICA_DROPOUT_BWD;
    const int x = graph_bind_of(n, bwd ? MICA_DROPOUT_DY : MICA_DROPOUT_X);
    const int y = graph_bind_of(n, bwd ? MICA_DROPOUT_DX : MICA_DROPOUT_Y);
    const int rng = graph_bind_of(n, MICA_DROPOUT_RNG);
    if (x < 0 || y < 0 || n->binds[x].at || n->binds[y].at) return false;
    *d = (dropping){node, n->binds[x].tensor, n->binds[y].tensor, own->p, own->rng, {0}};
    d->from.tensor = -1;
    if (rng >= 0) d->from = n->binds[rng];
    return true;
}

mica_status dropping_check(const graph_rewriting *r, const dropping *d, mica_why *why)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    if (d->node < 0) return MICA_OK;
    graph_desc(r, d->node, desc);
    const mica_dropout_desc *own = (const mica_dropout_desc *)(const void *)desc;
    const bool bwd = own->pass == MICA_DROPOUT_BWD;
    const mica_tensor *x = bwd ? &own->dy : &own->x, *y = bwd ? &own->dx : &own->y;
    if (mica_tensor_given(&own->mask) || mica_tensor_given(&own->bits))
        return mica_refuse(why, "the dropout of node %d has a mask in memory", d->node);
    if (mica_tensor_given(&own->residual))
        return mica_refuse(why, "the dropout of node %d adds a residual", d->node);
    if (own->numbering != MICA_DROPOUT_BY_ATTENTION)
        return mica_refuse(why,
                           "the dropout of node %d draws by index; attention's own mask is "
                           "numbering=attention",
                           d->node);
    if (own->p >= 1) return mica_refuse(why, "node %d drops everything", d->node);
    if (!mica_tensor_equal(x, &r->g->tensors[d->x].t) ||
        !mica_tensor_equal(y, &r->g->tensors[d->y].t))
        return mica_refuse(why, "the dropout of node %d works on a view", d->node);
    return d->from.tensor >= 0 ? MICA_OK : mica_refuse(why, "rng of node %d is not bound", d->node);
}

void dropping_take(const dropping *d, mica_attention_desc *desc)
{
    if (d->node < 0 || d->p == 0) return;
    desc->dropout = d->p;
    desc->rng = d->rng;
}

mica_status dropping_bind(const dropping *d, graph_node *fresh)
{
    if (d->node < 0 || d->p == 0) return MICA_OK;
    return graph_node_bind(fresh, MICA_ATTENTION_RNG, d->from.tensor, d->from.at);
}

/* ---- masks ---- */

/* A mask of scores x that is repeated by strides of 0 has a dimension of 1 there. */
static mica_status widen_mask(const mica_tensor *t, const mica_tensor *x, mica_tensor *wide,
                              mica_why *why)
{
    MICA_TRY(product_heads(t, x, wide, why));
    for (int i = 0; i < wide->rank; i++)
        if (wide->strides[i] == 0) wide->dims[i] = 1;
    return MICA_OK;
}

mica_status attention_take_logits(const logits *l, mica_attention_desc *d, mica_why *why)
{
    if (l->mask >= 0) MICA_TRY(widen_mask(&l->as_mask, &l->as_mask, &d->mask, why));
    if (l->bias >= 0) MICA_TRY(widen_mask(&l->as_bias, &l->as_bias, &d->bias, why));
    d->causal = l->causal ? MICA_ATTENTION_TOP_LEFT : MICA_ATTENTION_NOT_CAUSAL;
    d->diagonal = l->diagonal;
    return MICA_OK;
}

mica_status attention_bind_logits(const source *s, const logits *l, graph_node *fresh)
{
    const int args[] = {MICA_ATTENTION_MASK, MICA_ATTENTION_BIAS}, from[] = {l->mask, l->bias};
    for (int i = 0; i < 2; i++) {
        if (from[i] < 0) continue;
        const graph_bound *b = &s->node->binds[graph_bind_of(s->node, s->arg[from[i]])];
        MICA_TRY(graph_node_bind(fresh, args[i], b->tensor, b->at));
    }
    return MICA_OK;
}

void attention_offer_diagonal(const graph_rewriting *r, group *g, const source *s, const logits *l)
{
    if (l->diagonal_in < 0) return;
    const graph_bound *b = &s->node->binds[graph_bind_of(s->node, s->arg[l->diagonal_in])];
    group_offer(r, g, r->g->tensors[b->tensor].writer, b->tensor);
}

/* ---- the pattern ---- */

typedef struct parts {
    int first, middle, softmax, second; /* nodes; middle -1: none */
    _Alignas(16) char middle_desc[MICA_MAX_DESC];
    source between;
    logits in_front;
    operand k, v;
    dropping drop;
    mica_gemm_desc scores, values;
    mica_softmax_desc weights;
} parts;

static mica_status describe(const graph_rewriting *r, const parts *p, mica_attention_desc *d,
                            mica_why *why)
{
    const graph_node *first = &r->g->nodes[p->first];
    if (p->weights.kind != MICA_SOFTMAX_KIND_SOFTMAX || p->weights.log)
        return mica_refuse(why, "it is no plain softmax");
    int64_t axis = p->weights.axis;
    if (axis < 0) axis += p->weights.x.rank;
    if (axis != p->weights.x.rank - 1)
        return mica_refuse(why, "the softmax is over dimension %lld, not the last",
                           (long long)axis);
    MICA_TRY(product_is_plain(r, p->first, why));
    MICA_TRY(product_is_plain(r, p->second, why));
    const double last = r->g->nodes[p->second].scalars[MICA_GEMM_ALPHA];
    if (last != 1) return mica_refuse(why, "alpha of the second product is %g", last);
    *d = (mica_attention_desc){.compute = p->scores.compute};
    MICA_TRY(product_heads(&p->scores.a, &p->scores.c, &d->q, why));
    MICA_TRY(product_heads(&p->k.view, &p->scores.c, &d->k, why));
    MICA_TRY(product_heads(&p->v.view, &p->values.c, &d->v, why));
    MICA_TRY(product_heads(&p->values.c, &p->values.c, &d->out, why));
    MICA_TRY(dropping_check(r, &p->drop, why));
    dropping_take(&p->drop, d);
    tensor_swap(&d->k);
    const double factor = p->middle < 0 ? 1 : p->in_front.scale;
    d->scale = p->weights.scale * factor * first->scalars[MICA_GEMM_ALPHA];
    if (d->scale == 0) return mica_refuse(why, "the scale is 0");
    const mica_tensor *own = &p->weights.mask;
    if (p->middle >= 0 && (p->weights.scale != 1 || mica_tensor_given(own)))
        return mica_refuse(why, "the softmax has a scale or a mask of its own");
    if (p->middle >= 0) return attention_take_logits(&p->in_front, d, why);
    if (!mica_tensor_given(own)) return MICA_OK;
    const bool bits = own->dtype == MICA_BOOL || own->dtype == MICA_U8;
    return widen_mask(own, &p->weights.x, bits ? &d->mask : &d->bias, why);
}

static mica_status bind_like(graph_node *fresh, int arg, const graph_node *from, int its)
{
    const graph_bound *b = &from->binds[graph_bind_of(from, its)];
    return graph_node_bind(fresh, arg, b->tensor, b->at);
}

static mica_status bind_all(const graph_rewriting *r, const parts *p, const mica_attention_desc *d,
                            graph_node *fresh)
{
    const graph_node *first = &r->g->nodes[p->first], *second = &r->g->nodes[p->second];
    const graph_node *softmax = &r->g->nodes[p->softmax];
    MICA_TRY(bind_like(fresh, MICA_ATTENTION_Q, first, MICA_GEMM_A));
    MICA_TRY(operand_bind(fresh, MICA_ATTENTION_K, &p->k));
    MICA_TRY(operand_bind(fresh, MICA_ATTENTION_V, &p->v));
    MICA_TRY(dropping_bind(&p->drop, fresh));
    MICA_TRY(bind_like(fresh, MICA_ATTENTION_OUT, second, MICA_GEMM_C));
    if (p->middle >= 0) return attention_bind_logits(&p->between, &p->in_front, fresh);
    if (mica_tensor_given(&d->mask))
        MICA_TRY(bind_like(fresh, MICA_ATTENTION_MASK, softmax, MICA_SOFTMAX_MASK));
    if (mica_tensor_given(&d->bias))
        MICA_TRY(bind_like(fresh, MICA_ATTENTION_BIAS, softmax, MICA_SOFTMAX_MASK));
    return MICA_OK;
}

/* The product in front of the softmax, or of the node in front of that. */
static bool find_first(const graph_rewriting *r, parts *p)
{
    mica_why why;
    p->middle = -1;
    p->first = graph_writer(r, p->softmax, MICA_SOFTMAX_X);
    if (is_node(r, p->first, "gemm")) return true;
    if (!source_of_pointwise(r, p->first, p->middle_desc, &p->between)) return false;
    if (logits_read(&p->between, &p->in_front, &why) != MICA_OK) return false;
    p->middle = p->first;
    p->first = graph_writer(r, p->middle, p->between.arg[p->in_front.x]);
    return is_node(r, p->first, "gemm");
}

/* Who made what it reads, all the way. */
static bool find_parts(const graph_rewriting *r, int node, parts *p)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    p->second = node;
    if (!is_node(r, node, "gemm")) return false;
    p->softmax = graph_writer(r, node, MICA_GEMM_A);
    if (dropping_find(r, p->softmax, MICA_DROPOUT_FWD, &p->drop))
        p->softmax = graph_writer(r, p->drop.node, MICA_DROPOUT_X);
    if (!is_node(r, p->softmax, "softmax")) return false;
    graph_desc(r, p->softmax, desc);
    memcpy(&p->weights, desc, sizeof p->weights);
    if (p->weights.pass != MICA_SOFTMAX_FWD || !find_first(r, p)) return false;
    graph_desc(r, p->first, desc);
    memcpy(&p->scores, desc, sizeof p->scores);
    graph_desc(r, node, desc);
    memcpy(&p->values, desc, sizeof p->values);
    p->k = operand_of_keys(r, p->first, MICA_GEMM_B, false);
    p->v = operand_of_keys(r, node, MICA_GEMM_B, false);
    return p->k.tensor >= 0 && p->v.tensor >= 0;
}

static mica_status may_absorb(const graph_rewriting *r, const parts *p, mica_why *why)
{
    const graph_node *second = &r->g->nodes[p->second], *softmax = &r->g->nodes[p->softmax];
    const int in = graph_bind_of(softmax, MICA_SOFTMAX_X);
    const int weights = graph_bind_of(second, MICA_GEMM_A);
    const int drop = p->drop.node;
    if (drop < 0) {
        MICA_TRY(graph_may_absorb(r, p->softmax, p->second, weights, why));
    } else {
        MICA_TRY(graph_may_absorb(r, drop, p->second, weights, why));
        MICA_TRY(graph_may_absorb(r, p->softmax, drop,
                                  graph_bind_of(&r->g->nodes[drop], MICA_DROPOUT_X), why));
    }
    if (p->middle < 0) return graph_may_absorb(r, p->first, p->softmax, in, why);
    MICA_TRY(graph_may_absorb(r, p->middle, p->softmax, in, why));
    return graph_may_absorb(r, p->first, p->middle,
                            graph_bind_of(p->between.node, p->between.arg[p->in_front.x]), why);
}

static mica_status apply(graph_rewriting *r, int node, mica_why *why)
{
    parts p;
    graph_node fresh;
    mica_attention_desc d;
    if (!find_parts(r, node, &p)) return MICA_NOT_FOUND;
    MICA_TRY(may_absorb(r, &p, why));
    MICA_TRY(describe(r, &p, &d, why));
    MICA_TRY(graph_node_begin(mica_op_find("attention"), &fresh));
    mica_status status = bind_all(r, &p, &d, &fresh);
    if (status != MICA_OK) {
        graph_node_free(&fresh);
        return status;
    }
    group g = {.nodes = {node, p.first, p.softmax}, .count = 3};
    if (p.middle >= 0) g.nodes[g.count++] = p.middle;
    if (p.drop.node >= 0) g.nodes[g.count++] = p.drop.node;
    group_offer_copies(r, &g, &p.k);
    group_offer_copies(r, &g, &p.v);
    if (p.middle >= 0) attention_offer_diagonal(r, &g, &p.between, &p.in_front);
    return graph_merge(r, g.nodes + 1, g.count - 1, node, &fresh, &d, why);
}

const graph_rewrite graph_rewrite_attention = {
    .name = "attention",
    .doc = "gemm -> pointwise -> softmax -> dropout -> gemm: attention",
    .apply = apply,
};
