/* SPDX-License-Identifier: Apache-2.0
 * The gradient of attention as frameworks write it, of P = exp(logits(Q K') - lse):
 *
 *     D  = sum(dO O)            dS = (dO V' - D) P scale
 *     dV = P' dO                dQ = dS K                dK = dS' Q
 *
 * becomes attention's pass bwd at the last of the three products, of whichever come first. Where
 * several query heads share a head of keys, dK and dV are summed over them behind their products;
 * the sum of (dP - D) P over what a bias is repeated for is its gradient; dropout, with attention's
 * own numbering, drops of P in dV and of dP. Copies
 * that transpose or change types may stand everywhere between. D and the logits' masks may be read
 * elsewhere: then their nodes stay. */
#include "graph/rewrites/attention_grad.h"
#include "base/memory.h"
#include "mica/reduce.h"

#include <math.h>
#include <string.h>

static const char *const names[] = {"dq", "dk", "dv", "dbias"};

static mica_status check_scales(const graph_rewriting *r, const grad_parts *p, double *scale,
                                mica_why *why)
{
    const graph_node *nodes = r->g->nodes;
    const int products[] = {p->scores, p->dp, p->result[DQ], p->result[DK], p->result[DV]};
    for (int i = 0; i < 5; i++) MICA_TRY(product_is_plain(r, products[i], why));
    *scale = p->logits.scale * nodes[p->scores].scalars[MICA_GEMM_ALPHA];
    if (*scale == 0) return mica_refuse(why, "the scale is 0");
    for (int i = DQ; i <= DK; i++) {
        const double own = p->ds_scale * nodes[p->dp].scalars[MICA_GEMM_ALPHA] *
                           nodes[p->result[i]].scalars[MICA_GEMM_ALPHA];
        /* numbers of f32 and of f64 for the same */
        if (!(fabs(own - *scale) <= 1e-6 * fabs(*scale)))
            return mica_refuse(why, "scores are scaled by %g, %s by %g", *scale, names[i], own);
    }
    for (int i = 1; i < 5; i += 3)
        if (nodes[products[i]].scalars[MICA_GEMM_ALPHA] != 1)
            return mica_refuse(why, "alpha of node %d is %g", products[i],
                               nodes[products[i]].scalars[MICA_GEMM_ALPHA]);
    return MICA_OK;
}

/* ---- the replacement ---- */

static mica_gemm_desc product_desc(const graph_rewriting *r, int node)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    mica_gemm_desc d;
    graph_desc(r, node, desc);
    memcpy(&d, desc, sizeof d);
    return d;
}

static mica_reduce_desc sum_desc(const graph_rewriting *r, int node)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    mica_reduce_desc d;
    graph_desc(r, node, desc);
    memcpy(&d, desc, sizeof d);
    return d;
}

/* batch x heads x queries x 1 */
static mica_status describe_lse(const grad_parts *p, const mica_tensor *scores,
                                mica_attention_desc *d, mica_why *why)
{
    mica_tensor wide;
    MICA_TRY(product_heads(&p->lse.view, scores, &wide, why));
    for (int i = 0; i < 4; i++)
        if (wide.dims[i] != (i < 3 ? d->q.dims[i] : 1))
            return mica_refuse(why, "lse has %lld elements in dimension %d of 4, it needs %lld",
                               (long long)wide.dims[i], i, (long long)(i < 3 ? d->q.dims[i] : 1));
    d->lse = (mica_tensor){.dtype = wide.dtype, .rank = 3};
    memcpy(d->lse.dims, wide.dims, 3 * sizeof *wide.dims);
    memcpy(d->lse.strides, wide.strides, 3 * sizeof *wide.strides);
    mica_tensor_default_strides(&d->lse);
    return MICA_OK;
}

/* dk or dv behind a sum over query heads: what it sums is the product's result, all of it. */
static mica_status describe_sum(const graph_rewriting *r, int node, const mica_gemm_desc *g,
                                int64_t heads, mica_tensor *result, mica_why *why)
{
    const mica_reduce_desc d = sum_desc(r, node);
    const int rank = d.x.rank;
    mica_tensor x, c, y = d.y;
    MICA_TRY(product_heads(&d.x, &d.x, &x, why));
    MICA_TRY(product_heads(&g->c, &g->c, &c, why));
    if (!mica_tensor_equal(&x, &c))
        return mica_refuse(why, "node %d sums a view that is not the heads of the product's result",
                           node);
    const int64_t group = d.x.dims[rank - 3], summed = group ? c.dims[1] / group : 0;
    if (summed != heads)
        return mica_refuse(why, "node %d leaves %lld heads, the keys have %lld", node,
                           (long long)summed, (long long)heads);
    if (!d.keepdims && rank == 4) { /* of one key head */
        y.rank = 4;
        for (int i = 3; i > 1; i--) y.dims[i] = d.y.dims[i - 1], y.strides[i] = d.y.strides[i - 1];
        y.dims[1] = 1;
        y.strides[1] = d.y.dims[1] * d.y.strides[1];
    }
    return product_heads(&y, &y, result, why);
}

/* The sum of (dP - D) P over what the bias is repeated for. */
static mica_status describe_bias(const graph_rewriting *r, const grad_parts *p,
                                 mica_attention_desc *d, mica_why *why)
{
    const int node = p->end[DBIAS];
    bool reduced[MICA_MAX_RANK] = {false}, heads[5] = {false};
    const graph_tensor *t = &r->g->tensors[p->of_dlogits];
    mica_tensor y = t->t, wide;
    if (node < 0) return MICA_OK;
    if (!mica_tensor_given(&d->bias))
        return mica_refuse(why, "node %d sums a gradient of scores that have no bias", node);
    if (p->dlogits_scale != 1)
        return mica_refuse(why, "the gradient of the bias is scaled by %g", p->dlogits_scale);
    if (node != p->dlogits) {
        const mica_reduce_desc own = sum_desc(r, node);
        if (!mica_tensor_equal(&own.x, &t->t)) return mica_refuse(why, "node %d sums a view", node);
        (void)grad_sum(r, node, reduced);
        y = own.y;
    }
    MICA_TRY(product_heads(&t->t, &t->t, &wide, why));
    const int rank = t->t.rank, apart = rank < 4 ? 4 - rank : 0;
    for (int i = 0; i < rank; i++) heads[i + apart] = reduced[i];
    if (rank == 5 && heads[1] != heads[2] && t->t.dims[1] > 1 && t->t.dims[2] > 1)
        return mica_refuse(why, "node %d sums over some heads, not all", node);
    if (rank == 5) heads[1] = t->t.dims[1] > 1 ? heads[1] : heads[2];
    for (int i = 0; i < 4; i++) {
        const bool sums = heads[rank == 5 && i > 1 ? i + 1 : i];
        if (wide.dims[i] > 1 && sums != (d->bias.dims[i] == 1))
            return mica_refuse(
                why,
                "node %d %s dimension %d of 4 of the gradient of the bias, of which it has %lld",
                node, sums ? "sums" : "keeps", i, (long long)d->bias.dims[i]);
    }
    const mica_tensor packed = mica_tensor_packed(y.dtype, y.rank, y.dims);
    if (!mica_tensor_equal(&packed, &y))
        return mica_refuse(why, "the gradient of the bias is not packed");
    d->dbias = mica_tensor_packed(y.dtype, 4, d->bias.dims);
    return MICA_OK;
}

static mica_status describe(const graph_rewriting *r, const grad_parts *p, mica_attention_desc *d,
                            mica_why *why)
{
    const mica_gemm_desc scores = product_desc(r, p->scores), dp = product_desc(r, p->dp);
    *d = (mica_attention_desc){.pass = MICA_ATTENTION_BWD};
    MICA_TRY(check_scales(r, p, &d->scale, why));
    MICA_TRY(product_heads(&p->q.view, &scores.c, &d->q, why));
    MICA_TRY(product_heads(&p->k.view, &scores.c, &d->k, why));
    MICA_TRY(product_heads(&p->v.view, &dp.c, &d->v, why));
    MICA_TRY(product_heads(&p->out.view, &dp.c, &d->out, why));
    MICA_TRY(product_heads(&p->dout.view, &dp.c, &d->dout, why));
    MICA_TRY(describe_lse(p, &scores.c, d, why));
    mica_tensor *const results[] = {&d->dq, &d->dk, &d->dv};
    d->compute = scores.compute;
    for (int i = 0; i < ROLES; i++) {
        const mica_gemm_desc g = product_desc(r, p->result[i]);
        if (p->end[i] == p->result[i])
            MICA_TRY(product_heads(&g.c, &g.c, results[i], why));
        else
            MICA_TRY(describe_sum(r, p->end[i], &g, d->k.dims[1], results[i], why));
        if (g.compute != d->compute) d->compute = MICA_COMPUTE_DEFAULT;
    }
    for (int i = DK; i <= DV; i++)
        if (results[i]->dims[1] != d->k.dims[1])
            return mica_refuse(why, "%s has %lld heads and no sum for the %lld of the keys",
                               names[i], (long long)results[i]->dims[1], (long long)d->k.dims[1]);
    dropping_take(&p->drop_p, d);
    MICA_TRY(attention_take_logits(&p->logits, d, why));
    return describe_bias(r, p, d, why);
}

/* The argument that a result is. */
static int result_arg(const graph_rewriting *r, int node)
{
    return is_node(r, node, "gemm")     ? MICA_GEMM_C
           : is_node(r, node, "reduce") ? MICA_REDUCE_Y
                                        : MICA_POINTWISE_Y0;
}

static mica_status bind_all(const graph_rewriting *r, const grad_parts *p, graph_node *fresh)
{
    const operand *const read[] = {&p->q, &p->k, &p->v, &p->out, &p->lse, &p->dout};
    for (int i = 0; i < 6; i++) MICA_TRY(operand_bind(fresh, MICA_ATTENTION_Q + i, read[i]));
    for (int i = 0; i < RESULTS; i++) {
        if (p->end[i] < 0) continue;
        const graph_node *n = &r->g->nodes[p->end[i]];
        const graph_bound *b = &n->binds[graph_bind_of(n, result_arg(r, p->end[i]))];
        MICA_TRY(graph_node_bind(fresh, MICA_ATTENTION_DQ + i, b->tensor, b->at));
    }
    MICA_TRY(dropping_bind(&p->drop_p, fresh));
    return attention_bind_logits(&p->p_source, &p->logits, fresh);
}

/* The products of the results run later; a cast behind one is part of it first. */
static mica_status take_results(const graph_rewriting *r, const grad_parts *p, int node, group *g,
                                mica_why *why)
{
    g->nodes[g->count++] = node;
    for (int i = 0; i < RESULTS; i++)
        if (p->end[i] >= 0 && p->end[i] != node) g->nodes[g->count++] = p->end[i];
    for (int i = 0; i < RESULTS; i++) {
        const int from = p->end[i];
        if (from < 0 || from == p->dlogits) continue;
        const int c = grad_result(&r->g->nodes[from], result_arg(r, from));
        if (c < 0) return mica_refuse(why, "%s is a part of a tensor", names[i]);
        const graph_tensor *t = &r->g->tensors[c];
        MICA_TRY(graph_may_move(r, from, c, why));
        MICA_TRY(group_may_wait(r, g, from, node, c, why));
        if (t->kind != MICA_GRAPH_VIRTUAL || t->reads != 1 || !is_node(r, t->readers, "pointwise"))
            continue;
        const operand copied = operand_of(r, t->readers, MICA_POINTWISE_X0);
        _Alignas(16) char desc[MICA_MAX_DESC];
        source s;
        if (source_of_pointwise(r, t->readers, desc, &s) && !strcmp(s.text, "x0") &&
            operand_writer(r, &copied) == from && !strstr(r->without ? r->without : "", "epilogue"))
            return mica_refuse(why, "%s changes its type in node %d, which comes first", names[i],
                               t->readers);
    }
    return MICA_OK;
}

static void offer_operands(const graph_rewriting *r, const grad_parts *p, group *g)
{
    const operand *const read[] = {&p->q, &p->k, &p->v, &p->out, &p->lse, &p->dout};
    for (int i = 0; i < 6; i++) group_offer_copies(r, g, read[i]);
    for (int i = 0; i < ROLES; i++) {
        const operand b = i == DQ ? operand_of_keys(r, p->result[i], MICA_GEMM_B, true)
                                  : operand_of(r, p->result[i], MICA_GEMM_B);
        group_offer_copies(r, g, &b);
    }
}

/* A gradient of the bias that is not summed is written by `node`, behind which dS is gone. */
static mica_status take_dlogits(const graph_rewriting *r, const grad_parts *p, int node, group *g,
                                mica_why *why)
{
    if (p->dlogits == p->ds) return MICA_OK;
    if (p->end[DBIAS] != p->dlogits) return group_take(r, g, p->dlogits, p->of_dlogits, why);
    MICA_TRY(graph_may_move(r, p->dlogits, p->of_dlogits, why));
    return group_may_wait(r, g, p->dlogits, node, p->of_dlogits, why);
}

static mica_status take_dropped(const graph_rewriting *r, const dropping *d, group *g,
                                mica_why *why)
{
    return d->node < 0 ? MICA_OK : group_take(r, g, d->node, d->y, why);
}

/* All that has to go, from the results inwards, and then what may. */
static mica_status take_all(const graph_rewriting *r, const grad_parts *p, int node, group *g,
                            mica_why *why)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    MICA_TRY(take_results(r, p, node, g, why));
    for (int i = 0; i < ROLES; i++) group_offer_copies(r, g, &p->a[i]);
    for (int i = 0; i < ROLES; i++)
        if (p->end[i] != p->result[i])
            MICA_TRY(group_take(r, g, p->result[i],
                                grad_result(&r->g->nodes[p->result[i]], MICA_GEMM_C), why));
    MICA_TRY(group_take(r, g, p->ds, p->of_ds, why));
    MICA_TRY(take_dlogits(r, p, node, g, why));
    MICA_TRY(take_dropped(r, &p->drop_dp, g, why));
    MICA_TRY(take_dropped(r, &p->drop_p, g, why));
    MICA_TRY(group_take(r, g, p->dp, grad_result(&r->g->nodes[p->dp], MICA_GEMM_C), why));
    MICA_TRY(group_take(r, g, p->p, p->of_p, why));
    MICA_TRY(group_take(r, g, p->scores, grad_result(&r->g->nodes[p->scores], MICA_GEMM_C), why));
    attention_offer_diagonal(r, g, &p->p_source, &p->logits);
    group_offer_copies(r, g, &p->delta);
    if (p->factor >= 0) group_offer(r, g, p->factor, p->delta.tensor);
    const int sum = grad_result(&r->g->nodes[p->sum], MICA_REDUCE_Y);
    if (sum >= 0 && (p->factor < 0 || group_has(g, p->factor))) group_offer(r, g, p->sum, sum);
    const int product = graph_writer(r, p->sum, MICA_REDUCE_X);
    graph_desc(r, p->sum, desc);
    if (group_has(g, p->sum) && !*((const mica_reduce_desc *)(const void *)desc)->map)
        group_offer(r, g, product, grad_result(&r->g->nodes[product], MICA_POINTWISE_Y0));
    for (int i = 0; i < 2; i++) group_offer_copies(r, g, &p->summed[i]);
    offer_operands(r, p, g);
    return MICA_OK;
}

static mica_status replace(graph_rewriting *r, int node, grad_parts *p, mica_why *why)
{
    graph_node fresh;
    mica_attention_desc d;
    group g = {.count = 0};
    MICA_TRY(grad_read_operands(r, p, why));
    MICA_TRY(grad_read_delta(r, p, why));
    MICA_TRY(describe(r, p, &d, why));
    MICA_TRY(take_all(r, p, node, &g, why));
    MICA_TRY(graph_node_begin(mica_op_find("attention"), &fresh));
    mica_status status = bind_all(r, p, &fresh);
    if (status != MICA_OK) {
        graph_node_free(&fresh);
        return status;
    }
    return graph_merge(r, g.nodes + 1, g.count - 1, node, &fresh, &d, why);
}

static mica_status apply(graph_rewriting *r, int node, mica_why *why)
{
    if (!is_node(r, node, "gemm") && !is_node(r, node, "reduce")) return MICA_NOT_FOUND;
    grad_parts *p = mica_alloc(sizeof *p);
    if (!p) return mica_fail_memory(sizeof *p);
    const mica_status status = grad_find(r, node, p) ? replace(r, node, p, why) : MICA_NOT_FOUND;
    mica_release(p);
    return status;
}

const graph_rewrite graph_rewrite_attention_grad = {
    .name = "attention_grad",
    .doc = "exp(gemm - lse), its gradient, three gemms: attention, pass bwd",
    .apply = apply,
};
