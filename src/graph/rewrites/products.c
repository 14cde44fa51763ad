/* SPDX-License-Identifier: Apache-2.0
 * Products, what they read, and nodes that vanish together. */
#include "graph/rewrites/products.h"
#include "mica/pointwise.h"
#include "mica/tile.h"
#include "mica/transform.h"

#include <string.h>

bool is_node(const graph_rewriting *r, int node, const char *op)
{
    return node >= 0 && !strcmp(r->g->nodes[node].op->name, op);
}

/* ---- what an argument reads ---- */

void tensor_swap(mica_tensor *t)
{
    const int i = t->rank - 2, k = t->rank - 1;
    if (i < 0) return;
    const int64_t dim = t->dims[i], stride = t->strides[i];
    t->dims[i] = t->dims[k], t->strides[i] = t->strides[k];
    t->dims[k] = dim, t->strides[k] = stride;
}

void operand_swap(operand *o)
{
    tensor_swap(&o->view);
}

bool operand_same(const operand *a, const operand *b)
{
    return a->tensor >= 0 && a->tensor == b->tensor && a->at == b->at &&
           mica_tensor_equal(&a->view, &b->view);
}

static bool same_dims(const mica_tensor *a, const mica_tensor *b)
{
    return a->rank == b->rank && !memcmp(a->dims, b->dims, (size_t)a->rank * sizeof *a->dims);
}

static bool copies_floats(const mica_tensor *x, const mica_tensor *y)
{
    return mica_dtype_is_common(x->dtype) && mica_dtype_is_common(y->dtype);
}

/* A node that copies, and its source with the dimensions of its result. */
static bool source_of_copy(const graph_rewriting *r, int node, int *arg, mica_tensor *from)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    const graph_node *n = &r->g->nodes[node];
    if (is_node(r, node, "pointwise")) {
        graph_desc(r, node, desc);
        const mica_pointwise_desc *d = (const mica_pointwise_desc *)(const void *)desc;
        *arg = MICA_POINTWISE_X0;
        *from = d->x0;
        return d->pass == MICA_POINTWISE_FWD && !strcmp(d->expr, "x0") &&
               same_dims(&d->x0, &d->y0) && copies_floats(&d->x0, &d->y0);
    }
    if (!is_node(r, node, "transform")) return false;
    if (n->scalar_of[MICA_TRANSFORM_ALPHA] >= 0 || n->scalar_of[MICA_TRANSFORM_BETA] >= 0 ||
        n->scalars[MICA_TRANSFORM_ALPHA] != 1 || n->scalars[MICA_TRANSFORM_BETA] != 0)
        return false;
    graph_desc(r, node, desc);
    const mica_transform_desc *d = (const mica_transform_desc *)(const void *)desc;
    bool permuted = false;
    *arg = MICA_TRANSFORM_X;
    *from = d->x;
    for (int i = 0; i < d->x.rank; i++) permuted |= d->perm[i] != 0;
    for (int i = 0; permuted && i < d->x.rank; i++) {
        from->dims[i] = d->x.dims[d->perm[i]];
        from->strides[i] = d->x.strides[d->perm[i]];
    }
    return copies_floats(&d->x, &d->y);
}

static bool undo_copy(const graph_rewriting *r, operand *o)
{
    const graph_tensor *t = &r->g->tensors[o->tensor];
    mica_tensor from, swapped = t->t;
    int arg;
    if (t->writer < 0 || o->at || t->changed || o->copy_count == OPERAND_COPIES) return false;
    tensor_swap(&swapped);
    const bool as_is = mica_tensor_equal(&o->view, &t->t);
    if (!as_is && !mica_tensor_equal(&o->view, &swapped)) return false;
    if (!source_of_copy(r, t->writer, &arg, &from)) return false;
    const graph_node *n = &r->g->nodes[t->writer];
    const int bind = graph_bind_of(n, arg);
    if (bind < 0 || r->g->tensors[n->binds[bind].tensor].changed) return false;
    if (!as_is) tensor_swap(&from);
    o->copies[o->copy_count++] = t->writer;
    o->tensor = n->binds[bind].tensor;
    o->at = n->binds[bind].at;
    o->view = from;
    return true;
}

/* The dimension of the query heads that share a key head; -1: it has none. */
static int group_of(const mica_tensor *t)
{
    return t->rank == 4 || t->rank == 5 ? t->rank - 3 : -1;
}

static bool tiles_group(const mica_tile_desc *d)
{
    const int group = group_of(&d->x);
    if (d->pass != MICA_TILE_FWD || group < 0 || d->x.dims[group] != 1) return false;
    for (int i = 0; i < d->x.rank; i++)
        if (d->shift[i] || (i != group && d->repeats[i] > 1)) return false;
    return true;
}

/* A node that copies keys for each query head of a group, and what it copies. */
static bool repeats_keys(const graph_rewriting *r, int node, int *arg, mica_tensor *from)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    if (is_node(r, node, "tile")) {
        graph_desc(r, node, desc);
        const mica_tile_desc *d = (const mica_tile_desc *)(const void *)desc;
        *arg = MICA_TILE_X;
        *from = d->x;
        return tiles_group(d);
    }
    if (node < 0 || !source_of_copy(r, node, arg, from)) return false;
    const int group = group_of(from);
    return group >= 0 && from->strides[group] == 0;
}

static bool undo_repeat(const graph_rewriting *r, operand *o)
{
    const graph_tensor *t = &r->g->tensors[o->tensor];
    mica_tensor from, whole = t->t, swapped;
    mica_why why;
    int arg;
    if (t->writer < 0 || o->at || t->changed || o->copy_count == OPERAND_COPIES) return false;
    if (o->view.rank == 4 && t->t.rank == 5 && product_heads(&t->t, &t->t, &whole, &why) != MICA_OK)
        return false;
    swapped = whole;
    tensor_swap(&swapped);
    const bool as_is = mica_tensor_equal(&o->view, &whole);
    if (!as_is && !mica_tensor_equal(&o->view, &swapped)) return false;
    if (!repeats_keys(r, t->writer, &arg, &from) || from.dtype != t->t.dtype) return false;
    const graph_node *n = &r->g->nodes[t->writer];
    const int bind = graph_bind_of(n, arg);
    if (bind < 0 || r->g->tensors[n->binds[bind].tensor].changed) return false;
    if (!as_is) tensor_swap(&from);
    o->copies[o->copy_count++] = t->writer;
    o->tensor = n->binds[bind].tensor;
    o->at = n->binds[bind].at;
    o->view = from;
    return true;
}

static operand read_operand(const graph_rewriting *r, int node, int arg)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    operand o = {.tensor = -1};
    const graph_node *n = &r->g->nodes[node];
    const int bind = graph_bind_of(n, arg);
    if (bind < 0) return o;
    graph_desc(r, node, desc);
    o.tensor = n->binds[bind].tensor;
    o.at = n->binds[bind].at;
    o.view = *mica_op_tensor(n->op, desc, arg);
    return o;
}

operand operand_of(const graph_rewriting *r, int node, int arg)
{
    operand o = read_operand(r, node, arg);
    while (o.tensor >= 0 && undo_copy(r, &o)) {
    }
    return o;
}

operand operand_of_keys(const graph_rewriting *r, int node, int arg, bool all)
{
    operand o = read_operand(r, node, arg);
    while (o.tensor >= 0 && (undo_repeat(r, &o) || (all && undo_copy(r, &o)))) {
    }
    const int group = o.tensor < 0 ? -1 : group_of(&o.view);
    if (group >= 0 && o.view.strides[group] == 0) o.view.dims[group] = 1;
    return o;
}

int operand_writer(const graph_rewriting *r, const operand *o)
{
    if (o->tensor < 0 || o->at) return -1;
    const graph_tensor *t = &r->g->tensors[o->tensor];
    return mica_tensor_equal(&o->view, &t->t) ? t->writer : -1;
}

mica_status operand_bind(graph_node *fresh, int arg, const operand *o)
{
    return graph_node_bind(fresh, arg, o->tensor, o->at);
}

/* ---- products ---- */

mica_status product_is_plain(const graph_rewriting *r, int node, mica_why *why)
{
    const graph_node *n = &r->g->nodes[node];
    mica_gemm_desc d, only = {.compute = MICA_COMPUTE_DEFAULT};
    _Alignas(16) char plain[MICA_MAX_DESC] = {0}, desc[MICA_MAX_DESC];
    graph_desc(r, node, desc);
    memcpy(&d, desc, sizeof d);
    only.a = d.a, only.b = d.b, only.c = d.c, only.compute = d.compute;
    if (mica_op_resolve(n->op, &only, sizeof only, plain, why) != MICA_OK) return MICA_UNSUPPORTED;
    if (memcmp(plain, desc, n->op->desc_size) != 0)
        return mica_refuse(why, "a product has more than a, b and c");
    if (n->scalar_of[MICA_GEMM_ALPHA] >= 0)
        return mica_refuse(why, "alpha of a product is a run-time scalar");
    if (n->scalar_of[MICA_GEMM_BETA] >= 0 || n->scalars[MICA_GEMM_BETA] != 0)
        return mica_refuse(why, "a product is added to what is there");
    return MICA_OK;
}

/* Key heads and groups become heads, in this order. */
static mica_status merge_heads(mica_tensor *t, const mica_tensor *c, mica_why *why)
{
    const int64_t keys = t->dims[1], group = t->dims[2];
    const bool once = group == 1 || t->strides[2] == 0;
    if (!once && keys == 1 && c->rank == 5 && c->dims[1] != 1)
        return mica_refuse(why, "%lld heads are repeated behind one another, not head by head",
                           (long long)group);
    if (!once && keys != 1 && t->strides[1] != group * t->strides[2])
        return mica_refuse(why,
                           "%lld groups of %lld heads lie %lld and %lld apart, not behind one "
                           "another",
                           (long long)keys, (long long)group, (long long)t->strides[1],
                           (long long)t->strides[2]);
    t->dims[1] = once ? keys : keys * group;
    if (!once) t->strides[1] = t->strides[2];
    for (int i = 2; i < 4; i++) t->dims[i] = t->dims[i + 1], t->strides[i] = t->strides[i + 1];
    t->dims[4] = t->strides[4] = 0;
    t->rank = 4;
    return MICA_OK;
}

mica_status product_heads(const mica_tensor *t, const mica_tensor *c, mica_tensor *wide,
                          mica_why *why)
{
    const int most = t->rank > c->rank ? t->rank : c->rank, rank = most < 4 ? 4 : most;
    const int apart = rank - t->rank;
    if (rank > 5) return mica_refuse(why, "a product of rank %d, attention has 4", rank);
    *wide = (mica_tensor){.dtype = t->dtype, .rank = rank};
    for (int i = 0; i < rank; i++) {
        wide->dims[i] = i < apart ? 1 : t->dims[i - apart];
        /* what is there once may lie anywhere */
        wide->strides[i] = i < apart ? t->dims[0] * t->strides[0] : t->strides[i - apart];
    }
    if (rank == 5) MICA_TRY(merge_heads(wide, c, why));
    mica_tensor_default_strides(wide);
    return MICA_OK;
}

/* ---- nodes that vanish together ---- */

bool group_has(const group *g, int node)
{
    for (int i = 0; i < g->count; i++)
        if (g->nodes[i] == node) return true;
    return false;
}

static int reads_inside(const graph_rewriting *r, const group *g, int tensor)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    int reads = 0;
    for (int i = 0; i < g->count; i++) {
        const graph_node *n = &r->g->nodes[g->nodes[i]];
        graph_desc(r, g->nodes[i], desc);
        for (int b = 0; b < n->bind_count; b++)
            reads += n->binds[b].tensor == tensor && graph_access(n, desc, b) != MICA_OUT;
    }
    return reads;
}

mica_status group_take(const graph_rewriting *r, group *g, int from, int tensor, mica_why *why)
{
    const graph_tensor *t = &r->g->tensors[tensor];
    if (group_has(g, from)) return MICA_OK;
    if (g->count == GROUP_NODES)
        return mica_refuse(why, "it is made of more than %d nodes", GROUP_NODES);
    if (t->kind != MICA_GRAPH_VIRTUAL)
        return mica_refuse(why, "%s, which node %d makes, is an output of the graph", t->name,
                           from);
    const int inside = reads_inside(r, g, tensor);
    if (t->reads != inside)
        return mica_refuse(why, "%s, which node %d makes, is read %d times, %d of them here",
                           t->name, from, t->reads, inside);
    if (t->changed) return mica_refuse(why, "%s is changed in place", t->name);
    MICA_TRY(graph_may_move(r, from, tensor, why));
    g->nodes[g->count++] = from;
    return MICA_OK;
}

void group_offer(const graph_rewriting *r, group *g, int from, int tensor)
{
    mica_why why;
    (void)group_take(r, g, from, tensor, &why);
}

void group_offer_copies(const graph_rewriting *r, group *g, const operand *o)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    for (int i = 0; i < o->copy_count; i++) {
        const graph_node *n = &r->g->nodes[o->copies[i]];
        graph_desc(r, o->copies[i], desc);
        for (int b = 0; b < n->bind_count; b++)
            if (graph_access(n, desc, b) == MICA_OUT)
                group_offer(r, g, o->copies[i], n->binds[b].tensor);
    }
}

int group_position(const graph_rewriting *r, int node)
{
    return r->position[node];
}

mica_status group_may_wait(const graph_rewriting *r, const group *g, int from, int node, int tensor,
                           mica_why *why)
{
    const int end = group_position(r, node);
    const graph_tensor *t = &r->g->tensors[tensor];
    if (t->changed) return mica_refuse(why, "%s is changed in place", t->name);
    for (int i = group_position(r, from) + 1; i < end; i++) {
        const int other = r->g->order[i];
        const graph_node *n = &r->g->nodes[other];
        for (int b = 0; b < n->bind_count && !n->gone && !group_has(g, other); b++)
            if (n->binds[b].tensor == tensor)
                return mica_refuse(why, "%s is read by node %d, before node %d is reached", t->name,
                                   other, node);
    }
    return MICA_OK;
}
