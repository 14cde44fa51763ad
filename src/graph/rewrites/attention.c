/* SPDX-License-Identifier: Apache-2.0
 * gemm -> pointwise -> softmax -> gemm: attention, without scores and weights in memory. Scale and
 * mask are those of the softmax, or of a pointwise node in front of it (logits.h). Batch dimensions
 * are sequence and head. */
#include "graph/rewrites/logits.h"
#include "mica/attention.h"
#include "mica/gemm.h"
#include "mica/softmax.h"

#include <string.h>

/* Nothing but the product: all that is not a, b and c is as in a descriptor of these alone. */
static mica_status is_plain(const graph_node *n, const void *desc, bool scaled, mica_why *why)
{
    mica_gemm_desc d, only = {.compute = MICA_COMPUTE_DEFAULT};
    _Alignas(16) char plain[MICA_MAX_DESC] = {0};
    memcpy(&d, desc, sizeof d);
    only.a = d.a, only.b = d.b, only.c = d.c, only.compute = d.compute;
    if (mica_op_resolve(n->op, &only, sizeof only, plain, why) != MICA_OK) return MICA_UNSUPPORTED;
    if (memcmp(plain, desc, n->op->desc_size) != 0)
        return mica_refuse(why, "a product has more than a, b and c");
    if (n->scalar_of[MICA_GEMM_ALPHA] >= 0)
        return mica_refuse(why, "alpha of a product is a run-time scalar");
    if (!scaled && n->scalars[MICA_GEMM_ALPHA] != 1)
        return mica_refuse(why, "alpha of the second product is %g", n->scalars[MICA_GEMM_ALPHA]);
    return MICA_OK;
}

/* Ranks 2 to 4, as batch x heads x rows x columns. */
static mica_status four(const mica_tensor *t, mica_tensor *wide, mica_why *why)
{
    const int apart = 4 - t->rank;
    if (apart < 0) return mica_refuse(why, "a product of rank %d, attention has 4", t->rank);
    *wide = (mica_tensor){.dtype = t->dtype, .rank = 4};
    for (int i = 0; i < 4; i++) {
        wide->dims[i] = i < apart ? 1 : t->dims[i - apart];
        /* what is there once may lie anywhere */
        wide->strides[i] = i < apart ? t->dims[0] * t->strides[0] : t->strides[i - apart];
    }
    mica_tensor_default_strides(wide);
    return MICA_OK;
}

static void swap_last(mica_tensor *t)
{
    const int64_t dim = t->dims[2], stride = t->strides[2];
    t->dims[2] = t->dims[3], t->strides[2] = t->strides[3];
    t->dims[3] = dim, t->strides[3] = stride;
}

/* A mask that is repeated by strides of 0 has a dimension of 1 there. */
static void shrink(mica_tensor *t)
{
    for (int i = 0; i < t->rank; i++)
        if (t->strides[i] == 0) t->dims[i] = 1;
}

typedef struct parts {
    int first, middle, softmax, second; /* nodes; middle -1: none */
    _Alignas(16) char middle_desc[MICA_MAX_DESC];
    source between;
    logits in_front;
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
    MICA_TRY(is_plain(first, &p->scores, true, why));
    MICA_TRY(is_plain(&r->g->nodes[p->second], &p->values, false, why));
    *d = (mica_attention_desc){.compute = p->scores.compute};
    MICA_TRY(four(&p->scores.a, &d->q, why));
    MICA_TRY(four(&p->scores.b, &d->k, why));
    MICA_TRY(four(&p->values.b, &d->v, why));
    MICA_TRY(four(&p->values.c, &d->out, why));
    swap_last(&d->k);
    const double factor = p->middle < 0 ? 1 : p->in_front.scale;
    d->scale = p->weights.scale * factor * first->scalars[MICA_GEMM_ALPHA];
    if (d->scale == 0) return mica_refuse(why, "the scale is 0");
    const mica_tensor *own = &p->weights.mask;
    const mica_tensor *other = p->middle < 0 || p->in_front.mask < 0 ? NULL : &p->in_front.as_mask;
    if (p->middle >= 0 && (p->weights.scale != 1 || mica_tensor_given(own)))
        return mica_refuse(why, "the softmax has a scale or a mask of its own");
    if (other) own = other;
    if (!mica_tensor_given(own)) return MICA_OK;
    const bool bits = own->dtype == MICA_BOOL || own->dtype == MICA_U8;
    mica_tensor *mask = bits ? &d->mask : &d->bias;
    MICA_TRY(four(own, mask, why));
    shrink(mask);
    return MICA_OK;
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
    const bool outside = p->middle >= 0 && p->in_front.mask >= 0;
    const graph_node *masks = outside ? p->between.node : softmax;
    const int mask = outside ? p->between.arg[p->in_front.mask] : MICA_SOFTMAX_MASK;
    MICA_TRY(bind_like(fresh, MICA_ATTENTION_Q, first, MICA_GEMM_A));
    MICA_TRY(bind_like(fresh, MICA_ATTENTION_K, first, MICA_GEMM_B));
    MICA_TRY(bind_like(fresh, MICA_ATTENTION_V, second, MICA_GEMM_B));
    MICA_TRY(bind_like(fresh, MICA_ATTENTION_OUT, second, MICA_GEMM_C));
    if (mica_tensor_given(&d->mask)) MICA_TRY(bind_like(fresh, MICA_ATTENTION_MASK, masks, mask));
    if (mica_tensor_given(&d->bias)) MICA_TRY(bind_like(fresh, MICA_ATTENTION_BIAS, masks, mask));
    return MICA_OK;
}

static bool is(const graph_rewriting *r, int node, const char *op)
{
    return node >= 0 && !strcmp(r->g->nodes[node].op->name, op);
}

/* The product in front of the softmax, or of the node in front of that. */
static bool find_first(const graph_rewriting *r, parts *p)
{
    mica_why why;
    p->middle = -1;
    p->first = graph_writer(r, p->softmax, MICA_SOFTMAX_X);
    if (is(r, p->first, "gemm")) return true;
    if (!source_of_pointwise(r, p->first, p->middle_desc, &p->between)) return false;
    if (logits_read(&p->between, &p->in_front, &why) != MICA_OK) return false;
    p->middle = p->first;
    p->first = graph_writer(r, p->middle, p->between.arg[p->in_front.x]);
    return is(r, p->first, "gemm");
}

/* Who made what it reads, all the way. */
static bool find_parts(const graph_rewriting *r, int node, parts *p)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    p->second = node;
    if (!is(r, node, "gemm")) return false;
    p->softmax = graph_writer(r, node, MICA_GEMM_A);
    if (!is(r, p->softmax, "softmax")) return false;
    graph_desc(r, p->softmax, desc);
    memcpy(&p->weights, desc, sizeof p->weights);
    if (p->weights.pass != MICA_SOFTMAX_FWD || !find_first(r, p)) return false;
    graph_desc(r, p->first, desc);
    memcpy(&p->scores, desc, sizeof p->scores);
    graph_desc(r, node, desc);
    memcpy(&p->values, desc, sizeof p->values);
    return true;
}

static mica_status may_absorb(const graph_rewriting *r, const parts *p, mica_why *why)
{
    const graph_node *second = &r->g->nodes[p->second], *softmax = &r->g->nodes[p->softmax];
    const int in = graph_bind_of(softmax, MICA_SOFTMAX_X);
    MICA_TRY(graph_may_absorb(r, p->softmax, p->second, graph_bind_of(second, MICA_GEMM_A), why));
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
    const int from[] = {p.first, p.softmax, p.middle};
    return graph_merge(r, from, p.middle < 0 ? 2 : 3, node, &fresh, &d, why);
}

const graph_rewrite graph_rewrite_attention = {
    .name = "attention",
    .doc = "gemm -> pointwise -> softmax -> gemm: attention",
    .apply = apply,
};
