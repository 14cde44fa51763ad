/* SPDX-License-Identifier: Apache-2.0
 * Products, what they read, and nodes that vanish together: for rewrites of many nodes. */
#ifndef MICA_GRAPH_REWRITES_PRODUCTS_H
#define MICA_GRAPH_REWRITES_PRODUCTS_H

#include "graph/rewrite.h"
#include "mica/gemm.h"

/* ---- what an argument reads ---- */

/* Memory, behind copies that only change type or order: those are undone. */
enum { OPERAND_COPIES = 3 };
typedef struct operand {
    int tensor; /* -1: the argument is not bound */
    int64_t at;
    mica_tensor view;           /* of that memory, in the argument's order of dimensions */
    int copies[OPERAND_COPIES]; /* the nodes left out, nearest first */
    int copy_count;
} operand;
operand operand_of(const graph_rewriting *r, int node, int arg);
/* Of keys or values: where a copy, or a stride of 0, repeats them for the query heads of a group,
 * that dimension, the third from the end, is 1. all: other copies are undone as well. */
operand operand_of_keys(const graph_rewriting *r, int node, int arg, bool all);
bool operand_same(const operand *a, const operand *b);
/* The last two dimensions swapped. */
void operand_swap(operand *o);
void tensor_swap(mica_tensor *t);
/* The node that writes all of what is read; -1: none. */
int operand_writer(const graph_rewriting *r, const operand *o);
mica_status operand_bind(graph_node *fresh, int arg, const operand *o);

/* ---- products ---- */

bool is_node(const graph_rewriting *r, int node, const char *op);
/* Nothing but a, b and c, and an alpha that is a number. */
mica_status product_is_plain(const graph_rewriting *r, int node, mica_why *why);
/* Of what a product with result c reads or writes, ranks 2 to 5, as batch x heads x rows x columns:
 * of 5, which are batch x key heads x group x rows x columns, the heads become one dimension. What
 * is there once for a group, or is repeated by a stride of 0, has the heads of keys. */
mica_status product_heads(const mica_tensor *t, const mica_tensor *c, mica_tensor *wide,
                          mica_why *why);

/* ---- nodes that vanish together ---- */

enum { GROUP_NODES = 40 };
typedef struct group {
    int nodes[GROUP_NODES];
    int count;
} group;
bool group_has(const group *g, int node);
/* Adds `from`, whose result is `tensor`, where nobody outside the group reads it. Else UNSUPPORTED
 * with the rule. */
mica_status group_take(const graph_rewriting *r, group *g, int from, int tensor, mica_why *why);
/* The same where it may as well stay. */
void group_offer(const graph_rewriting *r, group *g, int from, int tensor);
/* The copies that an operand left out, where they may go. */
void group_offer_copies(const graph_rewriting *r, group *g, const operand *o);
/* Whether result `tensor` of node `from` may as well be written by `node`: nobody reads it between
 * the two. */
mica_status group_may_wait(const graph_rewriting *r, const group *g, int from, int node, int tensor,
                           mica_why *why);
/* Place in the order of the run. */
int group_position(const graph_rewriting *r, int node);

#endif
