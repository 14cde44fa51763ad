/* SPDX-License-Identifier: Apache-2.0
 * Rotary embedding in parts, with tables of half the columns:
 *
 *     concat(x1 c - x2 s, x2 c + x1 s)          x1, x2: the halves of x, views or slices
 *     x C + concat(-x2, x1) S                   C = concat(c, c), S = concat(s, s)
 *
 * becomes rope, at the signs of its inverse rope's pass bwd. Row i of a table belongs to row i of
 * the sequence, which is dimension 2 of x, or 1. C and S may also be made of such a concat element
 * by element, as cos(concat(f, f)) is: they stay, and rope reads their first halves. A table of all
 * columns of another origin may have halves that differ: it is refused. */
#include "graph/rewrites/products.h"
#include "graph/rewrites/tree.h"
#include "mica/concat.h"
#include "mica/rope.h"
#include "mica/slice.h"

#include <string.h>

/* sum of x[i] t[i], the second with that sign */
typedef struct rotation {
    operand x[2], t[2];
    int sign;
} rotation;

enum { ROPE_NODES = 8 };
typedef struct rope_parts {
    operand x1, x2, c, s;
    int nodes[ROPE_NODES], count; /* that vanish, from the result inwards, */
    int results[ROPE_NODES];      /* and their tensors */
    int tables;                   /* those from here on make tables, which others may read */
    int sign;                     /* of x2 s: -1 forward */
} rope_parts;

/* An operand behind a slice of steps of 1 is a view of what is sliced. */
static operand sliced(const graph_rewriting *r, operand o, rope_parts *p)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    const int from = operand_writer(r, &o);
    if (!is_node(r, from, "slice")) return o;
    graph_desc(r, from, desc);
    const mica_slice_desc *d = (const mica_slice_desc *)(const void *)desc;
    const graph_node *n = &r->g->nodes[from];
    const int bind = graph_bind_of(n, MICA_SLICE_X);
    if (bind < 0) return o;
    operand base = {.tensor = n->binds[bind].tensor, .at = n->binds[bind].at, .view = d->x};
    if (d->pass != MICA_SLICE_FWD || r->g->tensors[base.tensor].changed) return o;
    for (int i = 0; i < d->x.rank; i++) {
        const int64_t start = d->start[i] < 0 ? d->start[i] + d->x.dims[i] : d->start[i];
        if (d->step[i] > 1 || d->step[i] < 0) return o;
        base.at += start * d->x.strides[i];
        base.view.dims[i] = o.view.dims[i];
    }
    base.view.strided = 1;
    if (p->count < ROPE_NODES) p->nodes[p->count] = from, p->results[p->count++] = o.tensor;
    return base;
}

static operand read_at(const source *s, int k, rope_parts *p)
{
    return sliced(s->r, operand_of(s->r, (int)(s->node - s->r->g->nodes), s->arg[k]), p);
}

/* Two products, added or subtracted. */
static bool read_rotation(const source *s, rotation *o, rope_parts *p)
{
    mica_expr e;
    mica_why why;
    if (tree_read(s, &e, &why) != MICA_OK) return false;
    const int at = e.results[0];
    if (!tree_is_call(&e, at, MICA_FN_add) && !tree_is_call(&e, at, MICA_FN_sub)) return false;
    o->sign = tree_is_call(&e, at, MICA_FN_add) ? 1 : -1;
    for (int i = 0; i < 2; i++) {
        const int product = e.nodes[at].arg[i];
        int k[2];
        if (!tree_is_call(&e, product, MICA_FN_mul) ||
            !tree_operand(&e, e.nodes[product].arg[0], &k[0]) ||
            !tree_operand(&e, e.nodes[product].arg[1], &k[1]))
            return false;
        o->x[i] = read_at(s, k[0], p);
        o->t[i] = read_at(s, k[1], p);
    }
    return true;
}

static void swap_operands(operand *a, operand *b)
{
    const operand c = *a;
    *a = *b;
    *b = c;
}

/* x2 lies half a row behind x1. */
static bool are_halves(const operand *a, const operand *b)
{
    const int last = a->view.rank - 1;
    return a->tensor == b->tensor && mica_tensor_equal(&a->view, &b->view) &&
           b->at - a->at == a->view.dims[last] * a->view.strides[last];
}

/* The two halves of a concat along the last dimension: nodes or memory, of the same size. */
static bool read_concat(const graph_rewriting *r, int node, operand half[2])
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    if (!is_node(r, node, "concat")) return false;
    graph_desc(r, node, desc);
    const mica_concat_desc *d = (const mica_concat_desc *)(const void *)desc;
    const int64_t axis = d->axis < 0 ? d->axis + d->x0.rank : d->axis;
    if (d->pass != MICA_CONCAT_FWD || axis != d->x0.rank - 1 || !mica_tensor_given(&d->x1) ||
        mica_tensor_given(&d->x2) || d->x0.dims[axis] != d->x1.dims[axis])
        return false;
    half[0] = operand_of(r, node, MICA_CONCAT_X0);
    half[1] = operand_of(r, node, MICA_CONCAT_X1);
    return true;
}

static void add(rope_parts *p, int node, int tensor)
{
    if (p->count < ROPE_NODES) p->nodes[p->count] = node, p->results[p->count++] = tensor;
}

/* ---- concat(x1 c - x2 s, x2 c + x1 s) ---- */

static bool match_pair(rotation u, rotation v, rope_parts *p)
{
    for (int way = 0; way < 8; way++) {
        rotation a = u, b = v;
        if (way & 1) swap_operands(&a.x[0], &a.t[0]);
        if (way & 2) swap_operands(&a.x[1], &a.t[1]);
        if (way & 4) {
            if (a.sign < 0) continue;
            swap_operands(&a.x[0], &a.x[1]);
            swap_operands(&a.t[0], &a.t[1]);
        }
        if (!are_halves(&a.x[0], &a.x[1])) continue;
        for (int other = 0; other < 8; other++) {
            rotation c = b;
            if (other & 1) swap_operands(&c.x[0], &c.t[0]);
            if (other & 2) swap_operands(&c.x[1], &c.t[1]);
            if (other & 4) {
                if (c.sign < 0) continue;
                swap_operands(&c.x[0], &c.x[1]);
                swap_operands(&c.t[0], &c.t[1]);
            }
            if (c.sign != -a.sign || !operand_same(&c.x[0], &a.x[1]) ||
                !operand_same(&c.x[1], &a.x[0]) || !operand_same(&c.t[0], &a.t[0]) ||
                !operand_same(&c.t[1], &a.t[1]))
                continue;
            p->x1 = a.x[0], p->x2 = a.x[1];
            p->c = a.t[0], p->s = a.t[1];
            p->sign = a.sign;
            return true;
        }
    }
    return false;
}

static bool find_pair(const graph_rewriting *r, int node, rope_parts *p)
{
    _Alignas(16) char first[MICA_MAX_DESC], second[MICA_MAX_DESC];
    operand half[2];
    rotation u, v;
    source a, b;
    if (!read_concat(r, node, half)) return false;
    const int from = operand_writer(r, &half[0]), to = operand_writer(r, &half[1]);
    if (!source_of_pointwise(r, from, first, &a) || !source_of_pointwise(r, to, second, &b))
        return false;
    add(p, from, half[0].tensor);
    add(p, to, half[1].tensor);
    p->tables = ROPE_NODES;
    return read_rotation(&a, &u, p) && read_rotation(&b, &v, p) && match_pair(u, v, p);
}

/* ---- x C + concat(-x2, x1) S ---- */

/* -x, of a view or slice of x. */
static bool read_negative(const graph_rewriting *r, const operand *o, operand *x, rope_parts *p)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    source s;
    const int from = operand_writer(r, o);
    if (!source_of_pointwise(r, from, desc, &s) || strcmp(s.text, "-x0") != 0) return false;
    add(p, from, o->tensor);
    *x = read_at(&s, 0, p);
    return true;
}

/* x1 and x2 from concat(-x2, x1), or concat(x2, -x1) of the inverse. */
static bool read_rotated(const graph_rewriting *r, const operand *o, const operand *x,
                         rope_parts *p)
{
    operand half[2];
    const int from = operand_writer(r, o), last = x->view.rank - 1;
    if (!read_concat(r, from, half)) return false;
    add(p, from, o->tensor);
    if (read_negative(r, &half[0], &p->x2, p)) {
        p->sign = -1;
        p->x1 = sliced(r, half[1], p);
    } else if (read_negative(r, &half[1], &p->x1, p)) {
        p->sign = 1;
        p->x2 = sliced(r, half[0], p);
    } else {
        return false;
    }
    mica_tensor whole = p->x1.view;
    whole.dims[last] *= 2;
    return are_halves(&p->x1, &p->x2) && p->x1.tensor == x->tensor && p->x1.at == x->at &&
           mica_tensor_equal(&whole, &x->view);
}

enum { TABLE_DEPTH = 6 }; /* nodes from a table back to its concat */
static bool has_equal_halves(const graph_rewriting *r, int tensor, int depth);

/* What operand k of an elementwise node gives the columns of its result: the same to all, or a
 * tensor of equal halves, column by column. */
static bool gives_equal_halves(const source *s, int k, int depth)
{
    const mica_tensor *y = &((const mica_pointwise_desc *)s->desc)->y0;
    const mica_tensor *x = mica_op_tensor(s->node->op, s->desc, s->arg[k]);
    const int bind = graph_bind_of(s->node, s->arg[k]);
    if (bind < 0) return true;
    if (x->rank == 0 || x->dims[x->rank - 1] == 1) return true;
    const graph_bound *b = &s->node->binds[bind];
    return !b->at && mica_tensor_equal(x, &s->r->g->tensors[b->tensor].t) &&
           x->dims[x->rank - 1] == y->dims[y->rank - 1] && has_equal_halves(s->r, b->tensor, depth);
}

static bool has_equal_halves(const graph_rewriting *r, int tensor, int depth)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    const graph_tensor *t = &r->g->tensors[tensor];
    operand half[2];
    source s;
    mica_expr e;
    mica_why why;
    if (t->writer < 0 || t->changed || !depth) return false;
    if (read_concat(r, t->writer, half)) return operand_same(&half[0], &half[1]);
    if (!source_of_pointwise(r, t->writer, desc, &s) || tree_read(&s, &e, &why) != MICA_OK)
        return false;
    for (int i = 0; i < e.count; i++) /* places differ from column to column */
        if (e.nodes[i].kind == MICA_EXPR_INPUT && e.nodes[i].index >= MICA_EXPR_INDEX) return false;
    for (int k = 0; k < EXPRESSION_X; k++)
        if (!gives_equal_halves(&s, k, depth - 1)) return false;
    return true;
}

/* Whether all rows of a view begin where rows of the tensor do, and are as long. */
static bool has_whole_rows(const operand *o, const mica_tensor *t)
{
    const int last = o->view.rank - 1, of = t->rank - 1;
    if (last < 0 || of < 0 || o->at || !mica_tensor_is_packed(t)) return false;
    const int64_t row = t->dims[of];
    if (o->view.dims[last] != row || o->view.strides[last] != 1) return false;
    for (int i = 0; i < last; i++)
        if (o->view.dims[i] > 1 && o->view.strides[i] % row) return false;
    return true;
}

/* One half of a table whose halves are the same. */
static mica_status read_half(const graph_rewriting *r, const operand *o, operand *table,
                             rope_parts *p, mica_why *why)
{
    operand half[2];
    const int from = operand_writer(r, o), last = o->view.rank - 1;
    const graph_tensor *t = &r->g->tensors[o->tensor];
    if (read_concat(r, from, half) && operand_same(&half[0], &half[1])) {
        add(p, from, o->tensor);
        *table = half[0];
        return MICA_OK;
    }
    if (!has_whole_rows(o, &t->t) || !has_equal_halves(r, o->tensor, TABLE_DEPTH))
        return mica_refuse(why, "%s has all columns, whose halves may differ: rope reads one half",
                           t->name);
    *table = *o;
    table->view.dims[last] /= 2;
    table->view.strided = 1;
    return MICA_OK;
}

static mica_status find_rotated(const graph_rewriting *r, int node, rope_parts *p, mica_why *why)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    rotation u;
    source s;
    if (!source_of_pointwise(r, node, desc, &s) || !read_rotation(&s, &u, p) || u.sign < 0)
        return MICA_NOT_FOUND;
    for (int way = 0; way < 8; way++) {
        rotation a = u;
        rope_parts q = {.count = 0};
        if (way & 1) swap_operands(&a.x[0], &a.t[0]);
        if (way & 2) swap_operands(&a.x[1], &a.t[1]);
        if (way & 4) swap_operands(&a.x[0], &a.x[1]), swap_operands(&a.t[0], &a.t[1]);
        if (!read_rotated(r, &a.x[1], &a.x[0], &q)) continue;
        *p = q;
        p->tables = q.count;
        MICA_TRY(read_half(r, &a.t[0], &p->c, p, why));
        return read_half(r, &a.t[1], &p->s, p, why);
    }
    return MICA_NOT_FOUND;
}

/* ---- the replacement ---- */

/* Rows of the sequence by columns, of a table that is repeated for all other dimensions; *rows: the
 * dimension of x that they are. */
static mica_status read_table(const operand *o, const mica_tensor *x, int *rows, mica_tensor *table,
                              mica_why *why)
{
    const mica_tensor *t = &o->view;
    const int apart = x->rank - t->rank, last = t->rank - 1;
    *rows = -1;
    for (int i = 0; i < last; i++) {
        if (t->dims[i] == 1) continue;
        if (*rows >= 0)
            return mica_refuse(why, "a table has rows of dimensions %d and %d, rope of one", *rows,
                               i + apart);
        *rows = i + apart;
    }
    if (last < 1 || (*rows != 1 && *rows != 2))
        return mica_refuse(why, "a table has rows of dimension %d of x, rope of 1 or 2", *rows);
    *table = (mica_tensor){.dtype = t->dtype, .rank = 2};
    table->dims[0] = t->dims[*rows - apart], table->strides[0] = t->strides[*rows - apart];
    table->dims[1] = t->dims[last], table->strides[1] = t->strides[last];
    mica_tensor_default_strides(table);
    return MICA_OK;
}

static void swap_dims(mica_tensor *t)
{
    const int64_t dim = t->dims[1], stride = t->strides[1];
    t->dims[1] = t->dims[2], t->strides[1] = t->strides[2];
    t->dims[2] = dim, t->strides[2] = stride;
}

static mica_status replace(graph_rewriting *r, int node, int result, const rope_parts *p,
                           mica_why *why)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    graph_node fresh;
    group g = {.nodes = {node}, .count = 1};
    int rows, other;
    graph_desc(r, node, desc);
    const graph_node *n = &r->g->nodes[node];
    const mica_tensor *y = mica_op_tensor(n->op, desc, result);
    const int last = p->x1.view.rank - 1;
    if (last != 3) return mica_refuse(why, "x has rank %d, rope's has 4", last + 1);
    mica_rope_desc d = {
        .pass = p->sign < 0 ? MICA_ROPE_FWD : MICA_ROPE_BWD, .q = p->x1.view, .q_out = *y};
    d.q.dims[last] *= 2;
    MICA_TRY(read_table(&p->c, &p->x1.view, &rows, &d.cos, why));
    MICA_TRY(read_table(&p->s, &p->x1.view, &other, &d.sin, why));
    if (rows != other) return mica_refuse(why, "the tables have rows of two dimensions");
    if (rows == 1) swap_dims(&d.q), swap_dims(&d.q_out);
    for (int i = 0; i < p->count; i++) {
        /* slices, and tables, may stay */
        if (is_node(r, p->nodes[i], "slice") || i >= p->tables)
            group_offer(r, &g, p->nodes[i], p->results[i]);
        else
            MICA_TRY(group_take(r, &g, p->nodes[i], p->results[i], why));
    }
    MICA_TRY(graph_node_begin(mica_op_find("rope"), &fresh));
    const graph_bound *b = &n->binds[graph_bind_of(n, result)];
    mica_status status = operand_bind(&fresh, MICA_ROPE_Q, &p->x1);
    if (status == MICA_OK) status = operand_bind(&fresh, MICA_ROPE_COS, &p->c);
    if (status == MICA_OK) status = operand_bind(&fresh, MICA_ROPE_SIN, &p->s);
    if (status == MICA_OK) status = graph_node_bind(&fresh, MICA_ROPE_Q_OUT, b->tensor, b->at);
    if (status != MICA_OK) {
        graph_node_free(&fresh);
        return status;
    }
    return graph_merge(r, g.nodes + 1, g.count - 1, node, &fresh, &d, why);
}

static mica_status apply(graph_rewriting *r, int node, mica_why *why)
{
    rope_parts p = {.count = 0};
    if (is_node(r, node, "concat"))
        return find_pair(r, node, &p) ? replace(r, node, MICA_CONCAT_Y, &p, why) : MICA_NOT_FOUND;
    if (!is_node(r, node, "pointwise")) return MICA_NOT_FOUND;
    MICA_TRY(find_rotated(r, node, &p, why));
    return replace(r, node, MICA_POINTWISE_Y0, &p, why);
}

const graph_rewrite graph_rewrite_rope = {
    .name = "rope",
    .doc = "concat(x1 c - x2 s, x2 c + x1 s), x C + concat(-x2, x1) S: rope",
    .apply = apply,
};
