/* SPDX-License-Identifier: Apache-2.0
 * What stands in front of a softmax: a factor, masks and a diagonal. */
#ifndef MICA_GRAPH_REWRITES_LOGITS_H
#define MICA_GRAPH_REWRITES_LOGITS_H

#include "graph/rewrites/tree.h"

/* z = x scale + bias - less where the mask is and the key lies at or before the diagonal, else
 * -inf. A number of -1e30 or less stands for -inf where a diagonal leaves no row without a key. */
typedef struct logits {
    int x, bias, mask, less; /* operands of the expression; -1: none */
    double scale;
    bool causal;
    int64_t diagonal;             /* keys right of the corner */
    int diagonal_in;              /* operand that is the comparison; -1: it is in the expression */
    mica_tensor as_bias, as_mask; /* with the dimensions of x; what is repeated has stride 0 */
} logits;

/* Reads node `at` of the expression, of dimensions `z`. x: the operand that is x; -1: whichever is
 * scaled, or comes first. UNSUPPORTED with the rule where it is something else. */
mica_status logits_read_at(const source *s, const mica_expr *e, int at, const mica_tensor *z, int x,
                           logits *l, mica_why *why);
/* All of a node, nothing being subtracted. */
mica_status logits_read(const source *s, logits *l, mica_why *why);

#endif
