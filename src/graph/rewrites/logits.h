/* SPDX-License-Identifier: Apache-2.0
 * What stands in front of a softmax: a factor and a mask. */
#ifndef MICA_GRAPH_REWRITES_LOGITS_H
#define MICA_GRAPH_REWRITES_LOGITS_H

#include "graph/rewrites/expression.h"

/* z = x scale + mask, or x scale where the mask is, else -inf. */
typedef struct logits {
    int x, mask; /* operands of the expression; mask -1: none */
    double scale;
    bool picks;
    mica_tensor as_mask; /* with the dimensions of x; what is repeated has stride 0 */
} logits;

/* UNSUPPORTED with the rule where the node is something else. */
mica_status logits_read(const source *s, logits *l, mica_why *why);

#endif
