/* SPDX-License-Identifier: Apache-2.0
 * gemm -> act(u) v, u and v being halves of its columns, or columns by turns: gemm's gate. One
 * product that is read through two views, or by a gated activation; or two products of one a, whose
 * b lie together as halves or pairs of columns. */
#include "graph/rewrites/products.h"
#include "graph/rewrites/tree.h"
#include "mica/activation.h"

#include <string.h>

typedef struct gated {
    int u, v;     /* products; the same if it is one */
    int32_t step; /* the activation's */
    mica_gemm_gate gate;
    double act_a, act_b;
    bool inside; /* the activation is u's epilogue already */
    mica_tensor b;
    int64_t b_at;
} gated;

static mica_gemm_desc product_desc(const graph_rewriting *r, int node)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    mica_gemm_desc d;
    graph_desc(r, node, desc);
    memcpy(&d, desc, sizeof d);
    return d;
}

/* The step that a function of one argument is; 0: none. */
static int32_t step_named(const mica_op *gemm, const char *name)
{
    const mica_field *f = gemm->fields;
    while (strcmp(f->name, "epilogue") != 0) f++;
    for (int32_t i = MICA_STEP_ACT; f->spellings[i]; i++)
        if (!strcmp(f->spellings[i], name)) return i;
    return 0;
}

/* How u and v lie: of `n` columns each, `stride` apart, v `apart` elements behind u. */
static mica_gemm_gate how(int64_t n, int64_t stride, int64_t apart, int64_t *of_both)
{
    *of_both = stride;
    if (apart == n * stride) return MICA_GEMM_GATE_HALVES;
    *of_both = apart;
    return apart * 2 == stride ? MICA_GEMM_GATE_PAIRS : MICA_GEMM_GATE_NONE;
}

static bool same_but_columns(const mica_tensor *a, const mica_tensor *b, int64_t times)
{
    if (a->rank != b->rank || a->dtype != b->dtype) return false;
    for (int i = 0; i < a->rank; i++) {
        if (a->dims[i] * (i == a->rank - 1 ? times : 1) != b->dims[i]) return false;
        if (i < a->rank - 1 && a->dims[i] > 1 && a->strides[i] != b->strides[i]) return false;
    }
    return true;
}

/* One product, read through two views. */
static mica_status one_product(const graph_rewriting *r, int node, const operand *u,
                               const operand *v, gated *g, mica_why *why)
{
    const graph_tensor *t = &r->g->tensors[u->tensor];
    const int last = u->view.rank - 1;
    int64_t stride;
    g->u = g->v = t->writer;
    if (!same_but_columns(&u->view, &t->t, 2) || !same_but_columns(&v->view, &t->t, 2) ||
        u->view.strides[last] != v->view.strides[last])
        return mica_refuse(why, "what node %d reads is not half of %s's columns", node, t->name);
    if (v->at < u->at)
        return mica_refuse(why, "the activation is of the columns behind, a gate has it in front");
    g->gate = how(u->view.dims[last], u->view.strides[last], v->at - u->at, &stride);
    if (u->at || g->gate == MICA_GEMM_GATE_NONE || stride != t->t.strides[last])
        return mica_refuse(why, "the two are neither halves nor pairs of %s's columns", t->name);
    const mica_gemm_desc d = product_desc(r, g->u);
    g->b = d.b;
    g->b_at = r->g->nodes[g->u].binds[graph_bind_of(&r->g->nodes[g->u], MICA_GEMM_B)].at;
    return MICA_OK;
}

/* Two products of one a. */
static mica_status two_products(const graph_rewriting *r, gated *g, mica_why *why)
{
    const operand a = operand_of(r, g->u, MICA_GEMM_A), other = operand_of(r, g->v, MICA_GEMM_A);
    const operand u = operand_of(r, g->u, MICA_GEMM_B), v = operand_of(r, g->v, MICA_GEMM_B);
    const mica_gemm_desc d = product_desc(r, g->u), e = product_desc(r, g->v);
    const int last = u.view.rank - 1;
    if (!operand_same(&a, &other)) return mica_refuse(why, "the products have two a");
    if (u.tensor != v.tensor || u.copy_count || v.copy_count)
        return mica_refuse(why, "the products' b are two tensors, a gate has columns of one");
    if (!same_but_columns(&u.view, &v.view, 1) || u.view.strides[last] != v.view.strides[last])
        return mica_refuse(why, "the products' b differ in more than their place");
    g->b = d.b;
    g->b_at = u.at;
    g->b.dims[last] *= 2;
    g->gate = how(d.b.dims[last], d.b.strides[last], v.at - u.at, &g->b.strides[last]);
    if (g->gate == MICA_GEMM_GATE_NONE)
        return mica_refuse(why, "the products' b are neither halves nor pairs of columns");
    if (mica_tensor_given(&d.bias) || mica_tensor_given(&e.bias) || mica_tensor_given(&d.scale) ||
        mica_tensor_given(&e.scale))
        return mica_refuse(why, "the products have a bias or a scale, each its own");
    if (d.compute != e.compute) return mica_refuse(why, "the products differ in compute");
    return MICA_OK;
}

/* ---- what a node asks for ---- */

/* act(u) v */
static mica_status of_pointwise(const graph_rewriting *r, int node, const source *s, gated *g,
                                mica_why *why)
{
    mica_expr e;
    int u = -1, v = -1;
    if (tree_read(s, &e, why) != MICA_OK || !tree_is_call(&e, e.results[0], MICA_FN_mul))
        return MICA_NOT_FOUND;
    const mica_expr_node *n = &e.nodes[e.results[0]];
    const mica_op *gemm = mica_op_find("gemm");
    for (int i = 0; i < 2; i++) {
        const mica_expr_node *f = &e.nodes[n->arg[i]];
        if (f->kind != MICA_EXPR_CALL || mica_functions[f->index].arity != 1) continue;
        g->step = step_named(gemm, mica_functions[f->index].name);
        if (!g->step || !tree_operand(&e, f->arg[0], &u) || !tree_operand(&e, n->arg[!i], &v))
            return MICA_NOT_FOUND;
    }
    if (u < 0 && (!tree_operand(&e, n->arg[0], &u) || !tree_operand(&e, n->arg[1], &v)))
        return MICA_NOT_FOUND;
    for (int i = 0; !g->step && i < 2; i++) {
        /* one of the two has the activation already */
        const int from = graph_writer(r, node, s->arg[i ? v : u]);
        if (!is_node(r, from, "gemm")) continue;
        const mica_gemm_desc d = product_desc(r, from);
        if (d.gate || d.epilogue[0] < MICA_STEP_ACT || d.epilogue[1]) continue;
        g->step = d.epilogue[0];
        g->act_a = d.act_a, g->act_b = d.act_b;
        g->inside = true;
        if (i) n = NULL;
    }
    if (!g->step) return MICA_NOT_FOUND;
    const int first = n ? u : v, second = n ? v : u;
    const operand from = operand_of(r, node, s->arg[first]);
    const operand to = operand_of(r, node, s->arg[second]);
    if (from.tensor < 0 || to.tensor < 0 || from.copy_count || to.copy_count) return MICA_NOT_FOUND;
    g->u = r->g->tensors[from.tensor].writer;
    g->v = r->g->tensors[to.tensor].writer;
    if (!is_node(r, g->u, "gemm") || !is_node(r, g->v, "gemm")) return MICA_NOT_FOUND;
    if (from.tensor == to.tensor)
        return g->inside ? MICA_NOT_FOUND : one_product(r, node, &from, &to, g, why);
    if (operand_writer(r, &from) != g->u || operand_writer(r, &to) != g->v) return MICA_NOT_FOUND;
    return two_products(r, g, why);
}

static mica_status of_activation(const graph_rewriting *r, int node, gated *g)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    const graph_node *n = &r->g->nodes[node];
    graph_desc(r, node, desc);
    const mica_activation_desc *d = (const mica_activation_desc *)(const void *)desc;
    const int64_t axis = d->axis < 0 ? d->axis + d->x.rank : d->axis;
    if (d->pass != MICA_ACTIVATION_FWD || !d->gated || axis != d->x.rank - 1) return MICA_NOT_FOUND;
    for (int i = 0; i < n->op->scalar_count; i++)
        if (n->scalar_of[i] >= 0 || n->scalars[i] != n->op->scalars[i].def) return MICA_NOT_FOUND;
    const operand x = operand_of(r, node, MICA_ACTIVATION_X);
    g->u = g->v = operand_writer(r, &x);
    if (x.copy_count || !is_node(r, g->u, "gemm")) return MICA_NOT_FOUND;
    g->step = MICA_STEP_ACT + (int32_t)d->act;
    g->act_a = d->act_a, g->act_b = d->act_b;
    g->gate = MICA_GEMM_GATE_HALVES;
    g->b = product_desc(r, g->u).b;
    g->b_at = r->g->nodes[g->u].binds[graph_bind_of(&r->g->nodes[g->u], MICA_GEMM_B)].at;
    return MICA_OK;
}

/* ---- the replacement ---- */

static mica_status check_product(const graph_rewriting *r, int node, bool act, mica_why *why)
{
    const mica_gemm_desc d = product_desc(r, node);
    const graph_node *n = &r->g->nodes[node];
    if (d.gate) return mica_refuse(why, "the product of node %d has a gate", node);
    for (int i = 0; d.epilogue[i]; i++)
        if (d.epilogue[i] != MICA_STEP_BIAS && d.epilogue[i] != MICA_STEP_SCALE &&
            d.epilogue[i] != MICA_STEP_SHIFT && !act)
            return mica_refuse(why, "the product of node %d has an activation or a residual", node);
    if (n->scalar_of[MICA_GEMM_BETA] >= 0 || n->scalars[MICA_GEMM_BETA] != 0)
        return mica_refuse(why, "the product of node %d is added to what is there", node);
    if (!mica_dtype_is_common(d.c.dtype))
        return mica_refuse(why, "the product of node %d is rounded to %s first", node,
                           mica_dtype_name(d.c.dtype));
    return MICA_OK;
}

static mica_status replace(graph_rewriting *r, int node, const gated *g, int result, mica_why *why)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    graph_node fresh;
    group all = {.nodes = {node}, .count = 1};
    const graph_node *u = &r->g->nodes[g->u], *v = &r->g->nodes[g->v], *n = &r->g->nodes[node];
    MICA_TRY(check_product(r, g->u, g->inside, why));
    MICA_TRY(check_product(r, g->v, false, why));
    if (u->scalar_of[MICA_GEMM_ALPHA] != v->scalar_of[MICA_GEMM_ALPHA] ||
        u->scalars[MICA_GEMM_ALPHA] != v->scalars[MICA_GEMM_ALPHA])
        return mica_refuse(why, "the products differ in alpha");
    MICA_TRY(group_take(r, &all, g->u, u->binds[graph_bind_of(u, MICA_GEMM_C)].tensor, why));
    MICA_TRY(group_take(r, &all, g->v, v->binds[graph_bind_of(v, MICA_GEMM_C)].tensor, why));
    mica_gemm_desc d = product_desc(r, g->u);
    int steps = 0;
    while (d.epilogue[steps]) steps++;
    if (!g->inside && steps == MICA_MAX_STEPS - 1)
        return mica_refuse(why, "more than %d steps", MICA_MAX_STEPS - 1);
    if (!g->inside) d.epilogue[steps] = g->step;
    d.act_a = g->act_a, d.act_b = g->act_b;
    d.gate = g->gate;
    d.b = g->b;
    graph_desc(r, node, desc);
    d.c = *mica_op_tensor(n->op, desc, result);
    MICA_TRY(graph_node_like(u, &fresh));
    fresh.binds[graph_bind_of(&fresh, MICA_GEMM_B)].at = g->b_at;
    graph_bound *c = &fresh.binds[graph_bind_of(&fresh, MICA_GEMM_C)];
    c->tensor = n->binds[graph_bind_of(n, result)].tensor;
    c->at = n->binds[graph_bind_of(n, result)].at;
    return graph_merge(r, all.nodes + 1, all.count - 1, node, &fresh, &d, why);
}

static mica_status apply(graph_rewriting *r, int node, mica_why *why)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    gated g = {.step = 0};
    source s;
    if (is_node(r, node, "activation")) {
        MICA_TRY(of_activation(r, node, &g));
        return replace(r, node, &g, MICA_ACTIVATION_Y, why);
    }
    if (!source_of_pointwise(r, node, desc, &s)) return MICA_NOT_FOUND;
    MICA_TRY(of_pointwise(r, node, &s, &g, why));
    return replace(r, node, &g, MICA_POINTWISE_Y0, why);
}

const graph_rewrite graph_rewrite_gated = {
    .name = "gated",
    .doc = "gemm -> act(u) v, or two gemms of one a: a gate",
    .apply = apply,
};
