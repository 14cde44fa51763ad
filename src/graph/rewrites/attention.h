/* SPDX-License-Identifier: Apache-2.0
 * What stands in front of a softmax, as fields of attention. */
#ifndef MICA_GRAPH_REWRITES_ATTENTION_H
#define MICA_GRAPH_REWRITES_ATTENTION_H

#include "graph/rewrites/logits.h"
#include "graph/rewrites/products.h"
#include "mica/attention.h"

/* Mask, bias and diagonal: into the descriptor, and bound. */
mica_status attention_take_logits(const logits *l, mica_attention_desc *d, mica_why *why);
mica_status attention_bind_logits(const source *s, const logits *l, graph_node *fresh);
/* The node that compares places for the diagonal, where it may go. */
void attention_offer_diagonal(const graph_rewriting *r, group *g, const source *s, const logits *l);

#endif
