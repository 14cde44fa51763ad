/* SPDX-License-Identifier: Apache-2.0
 * Finding the nodes of the gradient of attention: the two expressions, the products around them and
 * the sum D. */
#include "graph/rewrites/attention_grad.h"
#include "mica/random.h"
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

/* The product behind dP, and what drops of it. */
static bool read_dp(const graph_rewriting *r, int node, grad_parts *p)
{
    p->dp = node;
    if (dropping_find(r, node, MICA_DROPOUT_BWD, &p->drop_dp))
        p->dp = graph_writer(r, node, MICA_DROPOUT_DY);
    return is_node(r, p->dp, "gemm");
}

/* The dropout of P, of which dV is made. */
static void find_dropped(const graph_rewriting *r, grad_parts *p)
{
    for (int i = 0; i < r->g->node_count; i++)
        if (!r->g->nodes[i].gone && dropping_find(r, i, MICA_DROPOUT_FWD, &p->drop_p) &&
            p->drop_p.x == p->of_p)
            return;
    p->drop_p.node = -1;
}

/* (dP - D) P scale */
static bool read_product(const graph_rewriting *r, int node, grad_parts *p)
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
    if (of_p < 0 || dp < 0 || !read_dp(r, graph_writer(r, node, s->arg[dp]), p)) return false;
    const operand weights = operand_of_source(s, of_p);
    p->dlogits = node;
    p->of_dlogits = grad_result(s->node, MICA_POINTWISE_Y0);
    p->delta = operand_of_source(s, delta);
    p->dlogits_scale = t.number;
    const int from = operand_writer(r, &weights);
    if (p->of_dlogits < 0 || from < 0 || !read_weights(r, from, p)) return false;
    find_dropped(r, p);
    return true;
}

/* dS: that, or a multiple of it that stands alone, because a gradient of the bias reads it too. */
static bool read_gradient(const graph_rewriting *r, int node, grad_parts *p)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    source s;
    int x;
    double factor = 1;
    if (!read_product(r, node, p)) {
        if (!source_of_pointwise(r, node, desc, &s) || !tree_node_scaled(&s, &x, &factor))
            return false;
        const operand inner = operand_of_source(&s, x);
        const int from = operand_writer(r, &inner);
        if (from < 0 || !read_product(r, from, p)) return false;
    }
    p->ds = node;
    p->of_ds = grad_result(&r->g->nodes[node], MICA_POINTWISE_Y0);
    p->ds_scale = factor * p->dlogits_scale;
    return p->of_ds >= 0;
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
    const int weights = p->drop_p.node < 0 ? p->of_p : p->drop_p.y;
    *which = a->tensor == weights ? DV : as_is ? DQ : DK;
    return (a->tensor == weights && turned) || (a->tensor == p->of_ds && (as_is || turned));
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

/* dS from a node that reads P, or (dP - D) P. */
static bool find_gradient_of(const graph_rewriting *r, int tensor, grad_parts *p)
{
    for (int i = 0; i < r->g->node_count; i++) {
        const graph_node *n = &r->g->nodes[i];
        if (n->gone || !is_node(r, i, "pointwise")) continue;
        for (int b = 0; b < n->bind_count; b++)
            if (n->binds[b].tensor == tensor && n->binds[b].arg < MICA_POINTWISE_Y0 &&
                read_gradient(r, i, p) && (p->of_p == tensor || p->of_dlogits == tensor) &&
                find_results(r, p))
                return true;
    }
    return false;
}

bool grad_sum(const graph_rewriting *r, int node, bool reduced[MICA_MAX_RANK])
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    const mica_reduce_desc *d = (const mica_reduce_desc *)(const void *)desc;
    if (!is_node(r, node, "reduce")) return false;
    graph_desc(r, node, desc);
    for (int i = 0; i < MICA_MAX_RANK; i++) reduced[i] = !d->axes[0];
    for (int i = 0; i < MICA_REDUCE_MAX_AXES && d->axes[i]; i++) {
        const int axis = d->axes[i] - 1;
        const int at = axis < MICA_MAX_RANK ? axis : MICA_MAX_RANK - 1 - axis + d->x.rank;
        if (at >= 0 && at < MICA_MAX_RANK) reduced[at] = true;
    }
    return d->pass == MICA_REDUCE_FWD && d->kind == MICA_REDUCE_KIND_SUM && !*d->map;
}

/* The only node that sums a tensor, which it reads whole. */
static int summed_by(const graph_rewriting *r, int tensor)
{
    bool reduced[MICA_MAX_RANK];
    int found = -1;
    for (int i = 0; i < r->g->node_count; i++) {
        const graph_node *n = &r->g->nodes[i];
        if (n->gone || !is_node(r, i, "reduce")) continue;
        const int x = grad_result(n, MICA_REDUCE_X);
        if (x != tensor || x < 0 || !grad_sum(r, i, reduced)) continue;
        if (found >= 0) return -1;
        found = i;
    }
    return found;
}

/* A sum over the query heads of a group: the third dimension from the end, alone. */
static bool sums_a_group(const graph_rewriting *r, int node)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    bool reduced[MICA_MAX_RANK];
    if (node < 0 || !grad_sum(r, node, reduced)) return false;
    graph_desc(r, node, desc);
    const int rank = ((const mica_reduce_desc *)(const void *)desc)->x.rank;
    for (int i = 0; i < rank; i++)
        if (reduced[i] != (i == rank - 3)) return false;
    return rank == 4 || rank == 5;
}

/* Who writes the results. */
static void find_ends(const graph_rewriting *r, grad_parts *p)
{
    for (int i = 0; i < ROLES; i++) {
        const int c = grad_result(&r->g->nodes[p->result[i]], MICA_GEMM_C);
        p->end[i] = p->result[i];
        if (i == DQ || c < 0 || r->g->tensors[c].kind != MICA_GRAPH_VIRTUAL ||
            r->g->tensors[c].reads != 1)
            continue;
        const int sum = summed_by(r, c);
        if (sums_a_group(r, sum)) p->end[i] = sum;
    }
    const graph_tensor *t = &r->g->tensors[p->of_dlogits];
    p->end[DBIAS] = summed_by(r, p->of_dlogits);
    if (p->end[DBIAS] < 0 && p->dlogits != p->ds && t->kind == MICA_GRAPH_OUTPUT)
        p->end[DBIAS] = p->dlogits;
}

/* From one of the products. */
static bool find_from(const graph_rewriting *r, int node, grad_parts *p)
{
    const operand a = operand_of(r, node, MICA_GEMM_A);
    if (a.tensor < 0 || a.at) return false;
    int tensor = a.tensor, from = r->g->tensors[tensor].writer;
    if (dropping_find(r, from, MICA_DROPOUT_FWD, &p->drop_p)) {
        tensor = p->drop_p.x;
        from = r->g->tensors[tensor].writer;
    }
    if (!is_node(r, from, "pointwise")) return false;
    return (read_gradient(r, from, p) && find_results(r, p)) ||
           (read_weights(r, from, p) && find_gradient_of(r, tensor, p));
}

bool grad_find(const graph_rewriting *r, int node, grad_parts *p)
{
    bool found = is_node(r, node, "gemm") && find_from(r, node, p);
    if (is_node(r, node, "reduce")) {
        const int x = grad_result(&r->g->nodes[node], MICA_REDUCE_X);
        const int from = x < 0 ? -1 : r->g->tensors[x].writer;
        if (is_node(r, from, "gemm"))
            found = find_from(r, from, p);
        else if (is_node(r, from, "pointwise"))
            found = (read_gradient(r, from, p) && find_results(r, p)) ||
                    (read_product(r, from, p) && find_gradient_of(r, x, p));
    }
    if (!found) return false;
    find_ends(r, p);
    int last = p->end[DQ];
    for (int i = 0; i < RESULTS; i++)
        if (p->end[i] >= 0 && group_position(r, p->end[i]) > group_position(r, last))
            last = p->end[i];
    return last == node;
}

/* ---- what the products read ---- */

static mica_status same(const operand *a, const operand *b, const char *what, int node,
                        mica_why *why)
{
    if (operand_same(a, b)) return MICA_OK;
    return mica_refuse(why, "node %d multiplies another tensor than %s", node, what);
}

/* Weights and their gradient lose the same. */
static mica_status read_dropping(const graph_rewriting *r, const grad_parts *p, mica_why *why)
{
    const dropping *a = &p->drop_p, *b = &p->drop_dp;
    if ((a->node < 0) != (b->node < 0))
        return mica_refuse(why, "node %d drops some of %s, nobody of %s",
                           a->node < 0 ? b->node : a->node,
                           a->node < 0 ? "the gradient of the weights" : "the weights",
                           a->node < 0 ? "the weights" : "their gradient");
    MICA_TRY(dropping_check(r, a, why));
    MICA_TRY(dropping_check(r, b, why));
    if (a->node < 0) return MICA_OK;
    if (a->p != b->p)
        return mica_refuse(why, "node %d drops %g of the weights, node %d %g of their gradient",
                           a->node, a->p, b->node, b->p);
    if (a->from.tensor == b->from.tensor && a->from.at == b->from.at &&
        mica_tensor_equal(&a->rng, &b->rng))
        return MICA_OK;
    return mica_refuse(why, "nodes %d and %d drop by two rng", a->node, b->node);
}

mica_status grad_read_operands(const graph_rewriting *r, grad_parts *p, mica_why *why)
{
    p->q = operand_of(r, p->scores, MICA_GEMM_A);
    p->k = operand_of_keys(r, p->scores, MICA_GEMM_B, true);
    p->dout = operand_of(r, p->dp, MICA_GEMM_A);
    p->v = operand_of_keys(r, p->dp, MICA_GEMM_B, true);
    operand_swap(&p->k);
    operand_swap(&p->v);
    const operand *const own[] = {&p->k, &p->q, &p->dout};
    static const char *const of[] = {"the keys of the scores", "the queries of the scores",
                                     "the gradient that meets the values"};
    for (int i = 0; i < ROLES; i++) {
        const operand b = i == DQ ? operand_of_keys(r, p->result[i], MICA_GEMM_B, true)
                                  : operand_of(r, p->result[i], MICA_GEMM_B);
        MICA_TRY(same(&b, own[i], of[i], p->result[i], why));
    }
    return read_dropping(r, p, why);
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
