/* SPDX-License-Identifier: Apache-2.0
 * Expressions as trees. */
#include "graph/rewrites/tree.h"

#include <string.h>

mica_status tree_read(const source *s, mica_expr *e, mica_why *why)
{
    *e = (mica_expr){.rank = MICA_EXPR_INDICES, .extent = INT32_MAX};
    if (strchr(s->text, ';')) return mica_refuse(why, "its expression has several results");
    for (int k = 0; k < MICA_EXPR_INPUTS; k++) {
        if (k < MICA_EXPR_X)
            e->inputs[k] = mica_op_tensor(s->node->op, s->desc, s->arg[k])->dtype;
        else
            e->inputs[k] = k < MICA_EXPR_INDEX ? MICA_F64 : MICA_S64;
    }
    return mica_expr_parse(e, s->text, why) == MICA_OK ? MICA_OK : MICA_UNSUPPORTED;
}

bool tree_is_call(const mica_expr *e, int node, int function)
{
    return e->nodes[node].kind == MICA_EXPR_CALL && e->nodes[node].index == function;
}

bool tree_operand(const mica_expr *e, int node, int *operand)
{
    *operand = e->nodes[node].index;
    return e->nodes[node].kind == MICA_EXPR_INPUT && *operand < MICA_EXPR_X;
}

static bool constant_of(const source *s, int operand, double *value)
{
    const int bind = graph_bind_of(s->node, s->arg[operand]);
    if (bind < 0 || s->node->binds[bind].at) return false;
    const graph_tensor *t = &s->r->g->tensors[s->node->binds[bind].tensor];
    return t->kind == MICA_GRAPH_CONSTANT && mica_tensor_count(&t->t) == 1 &&
           mica_tensor_load(&t->t, t->data, value) == MICA_OK;
}

bool tree_number(const source *s, const mica_expr *e, int node, double *value)
{
    const mica_expr_node *v = &e->nodes[node];
    int operand;
    if (tree_is_call(e, node, MICA_FN_neg) && tree_number(s, e, v->arg[0], value)) {
        *value = -*value;
        return true;
    }
    if (v->kind == MICA_EXPR_SCALAR && s->node->scalar_of[v->index] < 0) {
        *value = s->node->scalars[v->index];
        return true;
    }
    if (tree_operand(e, node, &operand)) return constant_of(s, operand, value);
    *value = v->value;
    return v->kind == MICA_EXPR_NUMBER;
}

bool tree_scaled(const source *s, const mica_expr *e, int node, int *operand, double *factor)
{
    tree_product p;
    if (!tree_factors(s, e, node, &p) || p.count != 1 || p.below[0]) return false;
    *factor = p.number;
    return tree_operand(e, p.factors[0], operand);
}

static bool add_factors(const source *s, const mica_expr *e, int node, bool below, tree_product *p)
{
    const mica_expr_node *v = &e->nodes[node];
    double number;
    if (tree_number(s, e, node, &number)) {
        p->number = below ? p->number / number : p->number * number;
        return true;
    }
    if (tree_is_call(e, node, MICA_FN_mul) || tree_is_call(e, node, MICA_FN_div))
        return add_factors(s, e, v->arg[0], below, p) &&
               add_factors(s, e, v->arg[1], below != (v->index == MICA_FN_div), p);
    if (p->count == TREE_FACTORS) return false;
    p->factors[p->count] = node;
    p->below[p->count++] = below;
    return true;
}

bool tree_factors(const source *s, const mica_expr *e, int node, tree_product *p)
{
    *p = (tree_product){.number = 1};
    return add_factors(s, e, node, false, p);
}

bool tree_node_scaled(const source *s, int *operand, double *factor)
{
    mica_expr e;
    mica_why why;
    return tree_read(s, &e, &why) == MICA_OK && tree_scaled(s, &e, e.results[0], operand, factor);
}

bool tree_node_call(const source *s, int function, int *first, int *second)
{
    mica_expr e;
    mica_why why;
    if (tree_read(s, &e, &why) != MICA_OK || !tree_is_call(&e, e.results[0], function))
        return false;
    const mica_expr_node *v = &e.nodes[e.results[0]];
    return tree_operand(&e, v->arg[0], first) && tree_operand(&e, v->arg[1], second);
}

/* Sums of keys, of queries, and of numbers. */
static bool add_places(const mica_expr *e, int node, int rank, int64_t sign, int64_t sums[3])
{
    const mica_expr_node *v = &e->nodes[node];
    if (v->kind == MICA_EXPR_INPUT) {
        const int back = rank - 1 - (v->index - MICA_EXPR_INDEX);
        if (v->index < MICA_EXPR_INDEX || back < 0 || back > 1) return false;
        sums[back] += sign;
        return true;
    }
    if (v->kind == MICA_EXPR_NUMBER) {
        if (!(v->value > -TREE_PLACES && v->value < TREE_PLACES)) return false;
        sums[2] += sign * (int64_t)v->value;
        return (double)(int64_t)v->value == v->value;
    }
    if (v->kind != MICA_EXPR_CALL) return false;
    switch (v->index) {
    case MICA_FN_s64:
    case MICA_FN__wrap_s32:
        return add_places(e, v->arg[0], rank, sign, sums);
    case MICA_FN_neg:
        return add_places(e, v->arg[0], rank, -sign, sums);
    case MICA_FN_add:
    case MICA_FN_sub:
        return add_places(e, v->arg[0], rank, sign, sums) &&
               add_places(e, v->arg[1], rank, v->index == MICA_FN_sub ? -sign : sign, sums);
    default:
        return false;
    }
}

bool tree_is_diagonal(const mica_expr *e, int node, int rank, int64_t *shift)
{
    const mica_expr_node *v = &e->nodes[node];
    int64_t sums[3] = {0}; /* what is not above 0 where the key counts */
    if (v->kind != MICA_EXPR_CALL) return false;
    const bool less = v->index == MICA_FN_le || v->index == MICA_FN_lt;
    const bool strict = v->index == MICA_FN_lt || v->index == MICA_FN_gt;
    if (!less && v->index != MICA_FN_ge && v->index != MICA_FN_gt) return false;
    if (!add_places(e, v->arg[0], rank, less ? 1 : -1, sums) ||
        !add_places(e, v->arg[1], rank, less ? -1 : 1, sums))
        return false;
    *shift = -sums[2] - strict;
    return sums[0] == 1 && sums[1] == -1;
}
