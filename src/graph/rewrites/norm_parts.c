/* SPDX-License-Identifier: Apache-2.0
 * Finding the nodes of a norm. */
#include "graph/rewrites/norm.h"
#include "mica/reduce.h"

#include <math.h>
#include <string.h>

static operand operand_at(const source *s, int k)
{
    return operand_of(s->r, (int)(s->node - s->r->g->nodes), s->arg[k]);
}

/* Who writes one number for each set: dimensions of 1 at the end may be left out. */
static int statistic_writer(const graph_rewriting *r, const operand *o)
{
    if (o->tensor < 0 || o->at) return -1;
    const graph_tensor *t = &r->g->tensors[o->tensor];
    const mica_tensor *a = &o->view, *b = &t->t;
    for (int i = 0; i < a->rank || i < b->rank; i++) {
        const int64_t n = i < a->rank ? a->dims[i] : 1, m = i < b->rank ? b->dims[i] : 1;
        if (n != m || (n > 1 && a->strides[i] != b->strides[i])) return -1;
    }
    return t->writer;
}

/* How many of the last dimensions are reduced; 0: others. */
static int last_axes(const mica_reduce_desc *d)
{
    bool in[MICA_MAX_RANK] = {false};
    int count = 0;
    for (; d->axes[count]; count++) {
        const int a = d->axes[count];
        const int i = a <= MICA_MAX_RANK ? a - 1 : MICA_MAX_RANK - a + d->x.rank;
        if (i < 0 || i >= d->x.rank) return 0;
        in[i] = true;
    }
    for (int i = 0; i < count; i++)
        if (!in[d->x.rank - 1 - i]) return 0;
    return count;
}

/* The reduction behind a statistic; *d: its descriptor. */
static bool find_reduction(const graph_rewriting *r, const operand *o, norm_mean *m,
                           mica_reduce_desc *d)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    source s;
    int k;
    *m = (norm_mean){.reduce = statistic_writer(r, o), .scaled = -1, .tensor = o->tensor};
    m->of_sum = m->tensor;
    m->factor = 1;
    if (source_of_pointwise(r, m->reduce, desc, &s) && tree_node_scaled(&s, &k, &m->factor)) {
        const operand inner = operand_at(&s, k);
        m->scaled = m->reduce;
        m->reduce = statistic_writer(r, &inner);
        m->of_sum = inner.tensor;
    }
    if (!is_node(r, m->reduce, "reduce")) return false;
    graph_desc(r, m->reduce, desc);
    memcpy(d, desc, sizeof *d);
    m->axes = last_axes(d);
    return d->pass == MICA_REDUCE_FWD && m->axes > 0;
}

/* Whether factor * reduction is a mean. */
static bool is_mean(const mica_reduce_desc *d, int axes, double factor)
{
    double n = 1;
    for (int i = 0; i < axes; i++) n *= (double)d->x.dims[d->x.rank - 1 - i];
    if (d->kind == MICA_REDUCE_KIND_MEAN) return factor == 1;
    return d->kind == MICA_REDUCE_KIND_SUM && fabs(factor * n - 1) <= 1e-6;
}

/* a - b, b being the mean of a. */
static bool is_centred(const source *s, int a, int b, norm_value *v)
{
    mica_reduce_desc d;
    const operand mean = operand_at(s, b);
    v->x = operand_at(s, a);
    if (!find_reduction(s->r, &mean, &v->mean, &d) || *d.map) return false;
    const operand of = operand_of(s->r, v->mean.reduce, MICA_REDUCE_X);
    v->centred = operand_same(&of, &v->x) && is_mean(&d, v->mean.axes, v->mean.factor);
    return v->centred;
}

static bool read_value(const source *s, const mica_expr *e, int node, norm_value *v)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    source made;
    int a, b;
    const mica_expr_node *n = &e->nodes[node];
    *v = (norm_value){.node = -1, .tensor = -1};
    if (tree_is_call(e, node, MICA_FN_sub))
        return tree_operand(e, n->arg[0], &a) && tree_operand(e, n->arg[1], &b) &&
               is_centred(s, a, b, v);
    if (!tree_operand(e, node, &a)) return false;
    const operand x = operand_at(s, a);
    const int from = operand_writer(s->r, &x);
    if (source_of_pointwise(s->r, from, desc, &made) &&
        tree_node_call(&made, MICA_FN_sub, &a, &b) && is_centred(&made, a, b, v)) {
        v->node = from;
        v->tensor = x.tensor;
        return true;
    }
    v->x = x;
    v->centred = false;
    return true;
}

/* square(value), as the map of a reduction, or in front of one. */
static bool read_square(const source *s, norm_value *v)
{
    mica_expr e;
    mica_why why;
    if (tree_read(s, &e, &why) != MICA_OK) return false;
    const mica_expr_node *n = &e.nodes[e.results[0]];
    const bool squared = tree_is_call(&e, e.results[0], MICA_FN_square);
    const bool multiplied = tree_is_call(&e, e.results[0], MICA_FN_mul) && n->arg[0] == n->arg[1];
    return (squared || multiplied) && read_value(s, &e, n->arg[0], v);
}

/* What is squared in the variance, and its mean. */
static bool read_variance(const graph_rewriting *r, const operand *o, double factor, norm_parts *p)
{
    mica_reduce_desc d;
    if (!find_reduction(r, o, &p->variance, &d)) return false;
    p->variance.factor *= factor;
    p->is_var = d.kind == MICA_REDUCE_KIND_VAR && !*d.map;
    if (p->is_var) {
        p->squared = (norm_value){.node = -1, .tensor = -1};
        p->squared.x = operand_of(r, p->variance.reduce, MICA_REDUCE_X);
        return d.correction == 0 && p->variance.factor == 1;
    }
    if (!*d.map || !is_mean(&d, p->variance.axes, p->variance.factor)) return false;
    source s = {.r = r, .node = &r->g->nodes[p->variance.reduce], .desc = &d, .text = d.map};
    for (int i = 0; i < EXPRESSION_X; i++) s.arg[i] = i ? MICA_REDUCE_X1 + i - 1 : MICA_REDUCE_X;
    return read_square(&s, &p->squared);
}

/* 1 / sqrt(variance + eps), or with below its inverse. */
static bool read_root(const graph_rewriting *r, int node, bool below, norm_parts *p)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    mica_expr e;
    mica_why why;
    source s;
    double one, factor;
    int k;
    if (!source_of_pointwise(r, node, desc, &s) || tree_read(&s, &e, &why) != MICA_OK) return false;
    int at = e.results[0];
    if (below) {
        if (!tree_is_call(&e, at, MICA_FN_sqrt)) return false;
    } else if (tree_is_call(&e, at, MICA_FN_recip) ||
               (tree_is_call(&e, at, MICA_FN_div) &&
                tree_number(&s, &e, e.nodes[at].arg[0], &one) && one == 1)) {
        at = e.nodes[at].arg[tree_is_call(&e, at, MICA_FN_div)];
        if (!tree_is_call(&e, at, MICA_FN_sqrt)) return false;
    } else if (!tree_is_call(&e, at, MICA_FN_rsqrt)) {
        return false;
    }
    at = e.nodes[at].arg[0];
    if (!tree_is_call(&e, at, MICA_FN_add)) return false;
    for (int i = 0; i < 2; i++) {
        if (!tree_number(&s, &e, e.nodes[at].arg[i], &p->eps)) continue;
        if (!tree_scaled(&s, &e, e.nodes[at].arg[!i], &k, &factor)) return false;
        const operand variance = operand_at(&s, k);
        return read_variance(r, &variance, factor, p);
    }
    return false;
}

/* One number for each place in a set, the same in all sets. */
static bool is_vector(const operand *o, const mica_tensor *y, int axes, operand *vector)
{
    const mica_tensor *t = &o->view;
    *vector = *o;
    vector->view = (mica_tensor){.dtype = t->dtype, .rank = axes};
    for (int i = 0; i < t->rank; i++) {
        const int to = i - (t->rank - axes);
        if (to < 0 && t->dims[i] != 1) return false;
        if (to < 0) continue;
        if (t->dims[i] != y->dims[y->rank - axes + to]) return false;
        vector->view.dims[to] = t->dims[i];
        vector->view.strides[to] = t->strides[i];
    }
    mica_tensor_default_strides(&vector->view);
    return t->rank >= axes;
}

static bool read_product(const source *s, const mica_expr *e, int node, norm_parts *p)
{
    tree_product t;
    int k, found = -1;
    const mica_pointwise_desc *d = s->desc;
    if (!tree_factors(s, e, node, &t) || t.number != 1 || t.count < 2 || t.count > 3) return false;
    for (int i = 0; i < t.count && found < 0; i++) {
        if (!tree_operand(e, t.factors[i], &k)) continue;
        const operand o = operand_at(s, k);
        p->root = statistic_writer(s->r, &o);
        p->rstd = o.tensor;
        p->is_std = t.below[i];
        if (p->root >= 0 && read_root(s->r, p->root, t.below[i], p)) found = i;
    }
    if (found < 0) return false;
    bool valued = false, scaled = false;
    for (int i = 0; i < t.count; i++) {
        if (i == found) continue;
        if (t.below[i]) return false;
        const bool vector = tree_operand(e, t.factors[i], &k) && t.count == 3 && !scaled;
        const operand o = vector ? operand_at(s, k) : (operand){.tensor = -1};
        if (vector && mica_tensor_count(&o.view) != mica_tensor_count(&d->y0) &&
            is_vector(&o, &d->y0, p->variance.axes, &p->scale))
            scaled = true;
        else if (!valued && read_value(s, e, t.factors[i], &p->value))
            valued = true;
        else
            return false;
    }
    return valued;
}

bool norm_find(const graph_rewriting *r, int node, norm_parts *p)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    mica_expr e;
    mica_why why;
    source s;
    int k;
    *p = (norm_parts){.scale.tensor = -1, .bias.tensor = -1};
    if (!source_of_pointwise(r, node, desc, &s) || tree_read(&s, &e, &why) != MICA_OK) return false;
    const int at = e.results[0];
    if (!tree_is_call(&e, at, MICA_FN_add)) return read_product(&s, &e, at, p);
    const mica_pointwise_desc *d = s.desc;
    for (int i = 0; i < 2; i++) {
        if (!tree_operand(&e, e.nodes[at].arg[!i], &k)) continue;
        const operand o = operand_at(&s, k);
        if (read_product(&s, &e, e.nodes[at].arg[i], p) &&
            is_vector(&o, &d->y0, p->variance.axes, &p->bias))
            return true;
    }
    return false;
}
