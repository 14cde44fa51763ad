/* SPDX-License-Identifier: Apache-2.0
 * Finding the nodes of the gradient of attention: the two expressions, the products around them and
 * the sum D. */
#include "graph/rewrites/attention_grad.h"
#include "mica/reduce.h"

#include <string.h>

int grad_result(const graph_node *n, int arg)
{
    const int bind = graph_bind_of(n, arg);
    return bind < 0 || n->binds[bind].at ? -1 : n->binds[bind].tensor;
}

static operand operand_of_source(const source *s, int k)
{
    return operand_of(s->r, (int)(s->node - s->r->g->nodes), s->arg[k]);
}

/* ---- the two expressions ---- */

/* exp(logits - lse), of a product. */
static bool read_weights(const graph_rewriting *r, int node, grad_parts *p)
{
    mica_expr e;
    mica_why why;
    source *s = &p->p_source;
    int x = 0;
    if (!source_of_pointwise(r, node, p->p_desc, s) || tree_read(s, &e, &why) != MICA_OK)
        return false;
    if (!tree_is_call(&e, e.results[0], MICA_FN_exp)) return false;
    while (x < EXPRESSION_X && !is_node(r, graph_writer(r, node, s->arg[x]), "gemm")) x++;
    const mica_pointwise_desc *d = s->desc;
    const int inside = e.nodes[e.results[0]].arg[0];
    if (x == EXPRESSION_X ||
        logits_read_at(s, &e, inside, &d->y0, x, &p->logits, &why) != MICA_OK || p->logits.less < 0)
        return false;
    p->p = node;
    p->of_p = grad_result(s->node, MICA_POINTWISE_Y0);
    p->scores = graph_writer(r, node, s->arg[p->logits.x]);
    p->lse = operand_of_source(s, p->logits.less);
    return p->of_p >= 0;
}

/* (dP - D) P scale */
static bool read_gradient(const graph_rewriting *r, int node, grad_parts *p)
{
    mica_expr e;
    mica_why why;
    tree_product t;
    source *s = &p->ds_source;
    int of_p = -1, dp = -1, delta = -1, k;
    if (!source_of_pointwise(r, node, p->ds_desc, s) || tree_read(s, &e, &why) != MICA_OK)
        return false;
    if (!tree_factors(s, &e, e.results[0], &t) || t.count != 2 || t.below[0] || t.below[1])
        return false;
    for (int i = 0; i < 2; i++) {
        const mica_expr_node *v = &e.nodes[t.factors[i]];
        if (tree_operand(&e, t.factors[i], &k))
            of_p = k;
        else if (tree_is_call(&e, t.factors[i], MICA_FN_sub) &&
                 (!tree_operand(&e, v->arg[0], &dp) || !tree_operand(&e, v->arg[1], &delta)))
            return false;
    }
    if (of_p < 0 || dp < 0 || !is_node(r, graph_writer(r, node, s->arg[dp]), "gemm")) return false;
    const operand weights = operand_of_source(s, of_p);
    p->ds = node;
    p->of_ds = grad_result(s->node, MICA_POINTWISE_Y0);
    p->dp = graph_writer(r, node, s->arg[dp]);
    p->delta = operand_of_source(s, delta);
    p->ds_scale = t.number;
    const int from = operand_writer(r, &weights);
    return p->of_ds >= 0 && from >= 0 && read_weights(r, from, p);
}

/* dS from a node that reads P. */
static bool find_gradient_of(const graph_rewriting *r, int tensor, grad_parts *p)
{
    for (int i = 0; i < r->g->node_count; i++) {
        const graph_node *n = &r->g->nodes[i];
        if (n->gone || !is_node(r, i, "pointwise")) continue;
        for (int b = 0; b < n->bind_count; b++)
            if (n->binds[b].tensor == tensor && n->binds[b].arg < MICA_POINTWISE_Y0 &&
                read_gradient(r, i, p) && p->of_p == tensor)
                return true;
    }
    return false;
}

/* ---- the products ---- */

/* Which result a product is. */
static bool role_of(const graph_rewriting *r, int node, const grad_parts *p, role *which,
                    operand *a)
{
    *a = operand_of(r, node, MICA_GEMM_A);
    if (a->tensor < 0 || a->at) return false;
    mica_tensor swapped = r->g->tensors[a->tensor].t;
    tensor_swap(&swapped);
    const bool as_is = mica_tensor_equal(&a->view, &r->g->tensors[a->tensor].t);
    const bool turned = mica_tensor_equal(&a->view, &swapped);
    *which = a->tensor == p->of_p ? DV : as_is ? DQ : DK;
    return (a->tensor == p->of_p && turned) || (a->tensor == p->of_ds && (as_is || turned));
}

static bool find_results(const graph_rewriting *r, grad_parts *p)
{
    role which;
    operand a;
    for (int i = 0; i < ROLES; i++) p->result[i] = -1;
    for (int i = 0; i < r->g->node_count; i++) {
        if (r->g->nodes[i].gone || !is_node(r, i, "gemm")) continue;
        if (!role_of(r, i, p, &which, &a)) continue;
        if (p->result[which] >= 0) return false;
        p->result[which] = i;
        p->a[which] = a;
    }
    return p->result[DQ] >= 0 && p->result[DK] >= 0 && p->result[DV] >= 0;
}

bool grad_find(const graph_rewriting *r, int node, grad_parts *p)
{
    if (!is_node(r, node, "gemm")) return false;
    const operand a = operand_of(r, node, MICA_GEMM_A);
    if (a.tensor < 0 || a.at) return false;
    const int from = r->g->tensors[a.tensor].writer;
    if (!is_node(r, from, "pointwise")) return false;
    if (!read_gradient(r, from, p) &&
        !(read_weights(r, from, p) && find_gradient_of(r, a.tensor, p)))
        return false;
    if (!find_results(r, p)) return false;
    int last = node;
    for (int i = 0; i < ROLES; i++)
        if (group_position(r, p->result[i]) > group_position(r, last)) last = p->result[i];
    return last == node;
}

/* ---- what the products read ---- */

static mica_status same(const operand *a, const operand *b, const char *what, int node,
                        mica_why *why)
{
    if (operand_same(a, b)) return MICA_OK;
    return mica_refuse(why, "node %d multiplies another tensor than %s", node, what);
}

mica_status grad_read_operands(const graph_rewriting *r, grad_parts *p, mica_why *why)
{
    p->q = operand_of(r, p->scores, MICA_GEMM_A);
    p->k = operand_of(r, p->scores, MICA_GEMM_B);
    p->dout = operand_of(r, p->dp, MICA_GEMM_A);
    p->v = operand_of(r, p->dp, MICA_GEMM_B);
    operand_swap(&p->k);
    operand_swap(&p->v);
    const operand *const own[] = {&p->k, &p->q, &p->dout};
    static const char *const of[] = {"the keys of the scores", "the queries of the scores",
                                     "the gradient that meets the values"};
    for (int i = 0; i < ROLES; i++) {
        const operand b = operand_of(r, p->result[i], MICA_GEMM_B);
        MICA_TRY(same(&b, own[i], of[i], p->result[i], why));
    }
    return MICA_OK;
}

/* The last dimension alone, kept or not, of a product of two tensors. */
static mica_status read_sum(const graph_rewriting *r, grad_parts *p, mica_why *why)
{
    _Alignas(16) char desc[MICA_MAX_DESC], map_desc[MICA_MAX_DESC];
    int k[2];
    const mica_reduce_desc *d = (const mica_reduce_desc *)(const void *)desc;
    if (!is_node(r, p->sum, "reduce"))
        return mica_refuse(why, "what is subtracted is no sum of a product");
    graph_desc(r, p->sum, desc);
    const int rank = d->x.rank, axis = d->axes[0] - 1;
    if (d->pass != MICA_REDUCE_FWD || d->kind != MICA_REDUCE_KIND_SUM || !d->axes[0] ||
        d->axes[1] || (axis < MICA_MAX_RANK ? axis : MICA_MAX_RANK - 1 - axis + rank) != rank - 1)
        return mica_refuse(why, "what is subtracted is no sum over the last dimension");
    source s = {.r = r, .node = &r->g->nodes[p->sum], .desc = desc, .text = d->map};
    for (int i = 0; i < EXPRESSION_X; i++) s.arg[i] = i ? MICA_REDUCE_X1 + i - 1 : MICA_REDUCE_X;
    if (!*d->map && !source_of_pointwise(r, graph_writer(r, p->sum, MICA_REDUCE_X), map_desc, &s))
        return mica_refuse(why, "what is subtracted is no sum of a product");
    if (!tree_node_call(&s, MICA_FN_mul, &k[0], &k[1]))
        return mica_refuse(why, "what is subtracted sums %s, not a product of two", s.text);
    for (int i = 0; i < 2; i++) p->summed[i] = operand_of_source(&s, k[i]);
    return MICA_OK;
}

/* D: who made it, and of what. */
mica_status grad_read_delta(const graph_rewriting *r, grad_parts *p, mica_why *why)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    source s;
    int x;
    double factor;
    p->factor = -1;
    p->sum = p->delta.tensor < 0 || p->delta.at ? -1 : r->g->tensors[p->delta.tensor].writer;
    if (source_of_pointwise(r, p->sum, desc, &s)) {
        if (!tree_node_scaled(&s, &x, &factor))
            return mica_refuse(why, "what is subtracted is %s, no multiple of a sum", s.text);
        if (factor != 1)
            return mica_refuse(why, "the sum that is subtracted is scaled by %g", factor);
        p->factor = p->sum;
        p->sum = graph_writer(r, p->factor, s.arg[x]);
    }
    MICA_TRY(read_sum(r, p, why));
    const bool first = operand_same(&p->summed[0], &p->dout);
    if (!first && !operand_same(&p->summed[1], &p->dout))
        return mica_refuse(why, "node %d sums another gradient than that of the values", p->sum);
    p->out = p->summed[first];
    return MICA_OK;
}
