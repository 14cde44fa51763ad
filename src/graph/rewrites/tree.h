/* SPDX-License-Identifier: Apache-2.0
 * The expression of a node as a tree: what rewrites look for in it. */
#ifndef MICA_GRAPH_REWRITES_TREE_H
#define MICA_GRAPH_REWRITES_TREE_H

#include "graph/rewrites/expression.h"
#include "ops/pointwise/expression.h"

/* The tree of an expression of one result. */
mica_status tree_read(const source *s, mica_expr *e, mica_why *why);
/* The root is e->results[0]. */
bool tree_is_call(const mica_expr *e, int node, int function);
/* The operand that a node is: its k in *operand. */
bool tree_operand(const mica_expr *e, int node, int *operand);
/* The number that a node is: written down, a run-time scalar that is fixed, or a constant of one
 * element. */
bool tree_number(const source *s, const mica_expr *e, int node, double *value);
/* x, x c, c x or x / c. */
bool tree_scaled(const source *s, const mica_expr *e, int node, int *operand, double *factor);

/* Of a whole node: x times a number; a function of two operands. */
bool tree_node_scaled(const source *s, int *operand, double *factor);
bool tree_node_call(const source *s, int function, int *first, int *second);

/* A product of numbers and of other nodes; division by either counts as well. */
enum { TREE_FACTORS = 6 };
typedef struct tree_product {
    double number;
    int factors[TREE_FACTORS]; /* nodes */
    bool below[TREE_FACTORS];  /* in the denominator */
    int count;
} tree_product;
bool tree_factors(const source *s, const mica_expr *e, int node, tree_product *p);

/* Whether a node is "key <= query + *shift", of the places of a result of that rank: the last
 * dimension counts keys, the one before queries. Of so many places at most: sums of them with
 * numbers of that size are what they are in 32 bits too. */
enum { TREE_PLACES = 1 << 28 };
bool tree_is_diagonal(const mica_expr *e, int node, int rank, int64_t *shift);

#endif
