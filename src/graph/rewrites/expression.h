/* SPDX-License-Identifier: Apache-2.0
 * Expressions of nodes: one put into another, for rewrites that join elementwise work. */
#ifndef MICA_GRAPH_REWRITES_EXPRESSION_H
#define MICA_GRAPH_REWRITES_EXPRESSION_H

#include "graph/rewrite.h"
#include "mica/pointwise.h"

enum { EXPRESSION_X = 8, EXPRESSION_S = 4, EXPRESSION_TEXT = MICA_POINTWISE_EXPR };

/* A node with an expression of x0 .. x7. */
typedef struct source {
    const graph_rewriting *r;
    const graph_node *node;
    const void *desc;
    const char *text;
    int arg[EXPRESSION_X]; /* of the operation, for each x */
} source;

/* What is made: operands without repetition, and the text. */
typedef struct expression {
    graph_bound x[EXPRESSION_X]; /* arg: not used */
    mica_tensor dims[EXPRESSION_X];
    int x_count;
    int scalar_of[EXPRESSION_S], s_count; /* run-time scalars */
    bool places;                          /* it has i0 .. */
    char text[EXPRESSION_TEXT];
} expression;

/* A node of the operation pointwise, pass fwd; false: it is something else. desc: MICA_MAX_DESC
 * bytes. */
bool source_of_pointwise(const graph_rewriting *r, int node, void *desc, source *s);
/* Its only result: UNSUPPORTED if there are several, or if what it is stored as is not what the
 * expression has by itself. *cast: what has to be written around it, or "". */
mica_status source_result(const source *s, const mica_tensor **y, const char **cast, mica_why *why);
/* Number of operand k of a source among those of the expression. */
mica_status expression_operand(expression *e, const source *s, int k, int *index, mica_why *why);
/* Appends the text of `outer`, `inner` standing for its operand `hole`. */
mica_status expression_join(expression *e, const source *outer, int hole, const source *inner,
                            const char *cast, mica_why *why);
/* The operands of the expression as those of `fresh`, a node of outer's operation: bound, and in
 * its descriptor, in which those that are too many become none. */
mica_status expression_bind(const expression *e, const source *outer, graph_node *fresh,
                            void *desc);

/* Puts `inner`, which is node `from`, in the place of operand `hole`: a rewrite's own. */
typedef mica_status (*expression_joining)(graph_rewriting *r, int from, int node, int hole,
                                          const source *outer, const source *inner, mica_why *why);
/* Tries it on each operand that a pointwise node makes: what a rewrite's apply answers. */
mica_status expression_try(graph_rewriting *r, int node, const source *outer,
                           expression_joining join, mica_why *why);

#endif
