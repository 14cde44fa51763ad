/* SPDX-License-Identifier: Apache-2.0
 * The nodes of the gradient of attention, found. */
#ifndef MICA_GRAPH_REWRITES_ATTENTION_GRAD_H
#define MICA_GRAPH_REWRITES_ATTENTION_GRAD_H

#include "graph/rewrites/attention.h"

typedef enum role { DQ, DK, DV, ROLES, DBIAS = ROLES, RESULTS } role;
typedef struct grad_parts {
    int p, ds;       /* nodes, and their results: */
    int of_p, of_ds; /* tensors */
    int dlogits;     /* node of (dP - D) P, of which dS is a multiple: ds, or one of its own */
    int of_dlogits;
    double dlogits_scale;
    dropping drop_p, drop_dp;
    int scores, dp;    /* products: nodes */
    int result[ROLES]; /* products */
    int end[RESULTS]; /* nodes that write the results: the products, or sums over the query heads of
                         a group behind them; dbias: -1 for none */
    operand q, k, v, dout, out;
    operand a[ROLES];   /* what the products of results read */
    operand lse, delta; /* as the two expressions read them */
    int sum, factor;    /* nodes of delta; factor -1: none */
    operand summed[2];
    double ds_scale;
    _Alignas(16) char p_desc[MICA_MAX_DESC], ds_desc[MICA_MAX_DESC];
    source p_source, ds_source;
    logits logits;
} grad_parts;

/* The pattern, from the product that runs last. */
bool grad_find(const graph_rewriting *r, int node, grad_parts *p);
/* What its products and the sum D read. UNSUPPORTED with the rule where they do not agree. */
mica_status grad_read_operands(const graph_rewriting *r, grad_parts *p, mica_why *why);
mica_status grad_read_delta(const graph_rewriting *r, grad_parts *p, mica_why *why);
/* Which dimensions a plain sum without a map reduces; false: it is none. */
bool grad_sum(const graph_rewriting *r, int node, bool reduced[MICA_MAX_RANK]);
/* The tensor that a result is, whole; -1: it is not bound, or a part of one. */
int grad_result(const graph_node *n, int arg);

#endif
