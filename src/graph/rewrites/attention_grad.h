/* SPDX-License-Identifier: Apache-2.0
 * The nodes of the gradient of attention, found. */
#ifndef MICA_GRAPH_REWRITES_ATTENTION_GRAD_H
#define MICA_GRAPH_REWRITES_ATTENTION_GRAD_H

#include "graph/rewrites/attention.h"

typedef enum role { DQ, DK, DV, ROLES } role;
typedef struct grad_parts {
    int p, ds;         /* nodes, and their results: */
    int of_p, of_ds;   /* tensors */
    int scores, dp;    /* products: nodes */
    int result[ROLES]; /* products */
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
/* The tensor that a result is, whole; -1: it is not bound, or a part of one. */
int grad_result(const graph_node *n, int arg);

#endif
