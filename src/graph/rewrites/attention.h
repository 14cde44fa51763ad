/* SPDX-License-Identifier: Apache-2.0
 * What stands in front of a softmax, as fields of attention. */
#ifndef MICA_GRAPH_REWRITES_ATTENTION_H
#define MICA_GRAPH_REWRITES_ATTENTION_H

#include "graph/rewrites/logits.h"
#include "graph/rewrites/products.h"
#include "mica/attention.h"

/* A node of dropout whose mask is attention's own. */
typedef struct dropping {
    int node, x, y; /* node, -1: none; tensors: what it drops, what it makes */
    double p;
    mica_tensor rng;
    graph_bound from; /* what rng is bound to */
} dropping;
/* Whether a node is a dropout of that pass. */
bool dropping_find(const graph_rewriting *r, int node, int pass, dropping *d);
/* UNSUPPORTED with the rule where attention cannot draw what it draws. */
mica_status dropping_check(const graph_rewriting *r, const dropping *d, mica_why *why);
/* Into the descriptor, and bound. */
void dropping_take(const dropping *d, mica_attention_desc *desc);
mica_status dropping_bind(const dropping *d, graph_node *fresh);

/* Mask, bias and diagonal: into the descriptor, and bound. */
mica_status attention_take_logits(const logits *l, mica_attention_desc *d, mica_why *why);
mica_status attention_bind_logits(const source *s, const logits *l, graph_node *fresh);
/* The node that compares places for the diagonal, where it may go. */
void attention_offer_diagonal(const graph_rewriting *r, group *g, const source *s, const logits *l);

#endif
