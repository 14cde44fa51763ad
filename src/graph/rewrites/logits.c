/* SPDX-License-Identifier: Apache-2.0
 * What stands in front of a softmax. */
#include "graph/rewrites/logits.h"

#include <math.h>
#include <string.h>

/* Aligned at the last dimension; what is repeated has stride 0. */
static bool expand(const mica_tensor *t, const mica_tensor *x, mica_tensor *wide)
{
    const int apart = x->rank - t->rank;
    if (apart < 0) return false;
    *wide = *x;
    wide->dtype = t->dtype;
    for (int i = 0; i < x->rank; i++) {
        const bool own = i >= apart && (t->dims[i - apart] != 1 || x->dims[i] == 1);
        if (own && t->dims[i - apart] != x->dims[i]) return false;
        wide->strides[i] = own ? t->strides[i - apart] : 0;
    }
    wide->strided = 1;
    mica_tensor_default_strides(wide);
    return true;
}

static bool same_dims(const mica_tensor *a, const mica_tensor *b)
{
    return a->rank == b->rank && !memcmp(a->dims, b->dims, (size_t)a->rank * sizeof *a->dims);
}

typedef struct reader {
    const source *s;
    const mica_expr *e;
    const mica_tensor *z;
    int x; /* wanted; -1: any */
} reader;

/* A mask that another node makes of places. */
static bool is_made_diagonal(const reader *r, int operand, int64_t *shift)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    mica_expr e;
    mica_why why;
    source made;
    const int bind = graph_bind_of(r->s->node, r->s->arg[operand]);
    if (bind < 0 || r->s->node->binds[bind].at) return false;
    const graph_tensor *t = &r->s->r->g->tensors[r->s->node->binds[bind].tensor];
    const mica_tensor *read = mica_op_tensor(r->s->node->op, r->s->desc, r->s->arg[operand]);
    const int rank = read->rank;
    if (t->changed || !mica_tensor_equal(read, &t->t) || rank < 2) return false;
    for (int i = 1; i <= 2; i++)
        if (r->z->rank < 2 || read->dims[rank - i] != r->z->dims[r->z->rank - i]) return false;
    if (!source_of_pointwise(r->s->r, t->writer, desc, &made)) return false;
    if (tree_read(&made, &e, &why) != MICA_OK) return false;
    return tree_is_diagonal(&e, e.results[0], rank, shift);
}

static bool is_bits(mica_dtype type)
{
    return type == MICA_BOOL || type == MICA_U8;
}

static bool read_node(const reader *r, int node, logits *l);

/* where(what counts, scores, what does not) */
static bool read_where(const reader *r, const mica_expr_node *v, logits *l)
{
    double fill;
    int operand;
    int64_t shift;
    if (!tree_number(r->s, r->e, v->arg[2], &fill) || !(fill <= -1e30)) return false;
    if (!read_node(r, v->arg[1], l)) return false;
    const bool given = tree_operand(r->e, v->arg[0], &operand);
    const bool made = given && is_made_diagonal(r, operand, &shift);
    const bool few = mica_tensor_count(r->z) > 0 && r->z->rank > 1 &&
                     r->z->dims[r->z->rank - 1] < TREE_PLACES &&
                     r->z->dims[r->z->rank - 2] < TREE_PLACES;
    if (few && (made || tree_is_diagonal(r->e, v->arg[0], r->z->rank, &shift))) {
        /* a row without keys would be the mean of all values with a finite number */
        if (l->causal || (fill != -INFINITY && shift < 0)) return false;
        l->causal = true;
        l->diagonal = shift;
        l->diagonal_in = made ? operand : -1;
        return true;
    }
    if (!given || fill != -INFINITY || l->mask >= 0) return false;
    l->mask = operand;
    return is_bits(r->e->inputs[operand]);
}

static bool read_sum(const reader *r, const mica_expr_node *v, logits *l)
{
    for (int i = 0; i < 2; i++) {
        const logits before = *l;
        /* of two operands the one that is scaled, or comes first, is the logits */
        if (r->x < 0 && r->e->nodes[v->arg[i]].kind == MICA_EXPR_INPUT &&
            r->e->nodes[v->arg[!i]].kind != MICA_EXPR_INPUT)
            continue;
        if (read_node(r, v->arg[i], l) && l->bias < 0 && tree_operand(r->e, v->arg[!i], &l->bias) &&
            l->bias != l->x)
            return true;
        *l = before;
    }
    return false;
}

static bool read_node(const reader *r, int node, logits *l)
{
    const mica_expr_node *v = &r->e->nodes[node];
    int operand;
    double factor;
    if (tree_scaled(r->s, r->e, node, &operand, &factor) && (r->x < 0 || operand == r->x)) {
        l->x = operand;
        l->scale = factor;
        return true;
    }
    if (tree_is_call(r->e, node, MICA_FN_where)) return read_where(r, v, l);
    if (tree_is_call(r->e, node, MICA_FN_sub))
        return read_node(r, v->arg[0], l) && l->less < 0 && tree_operand(r->e, v->arg[1], &l->less);
    return tree_is_call(r->e, node, MICA_FN_add) && read_sum(r, v, l);
}

static mica_status check_mask(const source *s, int operand, const mica_tensor *x, bool bits,
                              mica_tensor *wide, mica_why *why)
{
    const mica_tensor *t = mica_op_tensor(s->node->op, s->desc, s->arg[operand]);
    if (expand(t, x, wide) && (bits ? is_bits(t->dtype) : mica_dtype_is_common(t->dtype)))
        return MICA_OK;
    return mica_refuse(why, "x%d, of %s, is no mask", operand, mica_dtype_name(t->dtype));
}

mica_status logits_read_at(const source *s, const mica_expr *e, int at, const mica_tensor *z, int x,
                           logits *l, mica_why *why)
{
    const reader r = {s, e, z, x};
    *l = (logits){.x = -1, .bias = -1, .mask = -1, .less = -1, .diagonal_in = -1, .scale = 1};
    if (!read_node(&r, at, l))
        return mica_refuse(why, "%s is no factor, mask that is added or where(mask,x,-inf)",
                           s->text);
    const mica_tensor *t = mica_op_tensor(s->node->op, s->desc, s->arg[l->x]);
    if (!mica_dtype_is_common(t->dtype) || !mica_dtype_is_common(z->dtype))
        return mica_refuse(why, "its logits are %s", mica_dtype_name(t->dtype));
    if (!same_dims(t, z)) return mica_refuse(why, "its logits are repeated");
    if (l->bias >= 0) MICA_TRY(check_mask(s, l->bias, t, false, &l->as_bias, why));
    if (l->mask >= 0) MICA_TRY(check_mask(s, l->mask, t, true, &l->as_mask, why));
    return MICA_OK;
}

mica_status logits_read(const source *s, logits *l, mica_why *why)
{
    mica_expr e;
    MICA_TRY(tree_read(s, &e, why));
    const mica_pointwise_desc *d = s->desc;
    MICA_TRY(logits_read_at(s, &e, e.results[0], &d->y0, -1, l, why));
    return l->less < 0 ? MICA_OK : mica_refuse(why, "x%d is subtracted from its logits", l->less);
}
