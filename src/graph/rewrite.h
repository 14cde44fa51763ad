/* SPDX-License-Identifier: Apache-2.0
 * Rewrites: what is made of several nodes. A rewrite is a row: a pattern, the condition under which
 * it holds, and the replacement; rewrites.def lists them, in the order in which they are tried at
 * each node, and rewrites/ has a file for each group. Only those files know operations.
 *
 * A rewrite looks back from a node at who made what it reads: the node that comes later stays, so
 * that whatever either of them read is there. Nodes are visited in the order of the run; where a
 * rewrite was taken the node is looked at again. */
#ifndef MICA_GRAPH_REWRITE_H
#define MICA_GRAPH_REWRITE_H

#include "graph/graph.h"

typedef struct graph_attempt {
    const char *rewrite;
    int node;
    char *reason; /* NULL: it was taken */
} graph_attempt;

typedef struct graph_rewriting {
    mica_graph *g;
    mica_device_info device;
    const char *without;
    bool again;    /* what was worth it before is: the model is not asked */
    int at;        /* the node that is looked at: what a rewrite takes will run there */
    int *position; /* of each node in the order of the run; made where rewriting begins */
    graph_attempt *attempts;
    int attempt_count, attempt_room;
} graph_rewriting;

typedef struct graph_rewrite {
    const char *name; /* persists in options and logs: never reused */
    const char *doc;  /* what becomes what */
    /* OK: done, by graph_merge. NOT_FOUND: the pattern is not there. UNSUPPORTED: it is, but why
     * says with value and rule what stands against it. Any other status ends the planning. */
    mica_status (*apply)(graph_rewriting *r, int node, mica_why *why);
} graph_rewrite;

extern const graph_rewrite *const graph_rewrites[];
extern const int graph_rewrite_count;

/* Tries all rewrites on an inferred graph; what it notes stays in `attempts`, also on an error. */
mica_status graph_rewrite_all(graph_rewriting *r);
/* Takes those that were taken in `attempts`, of a graph that has other extents. NOT_FOUND: one is
 * not there, or its condition does not hold. */
mica_status graph_rewrite_again(graph_rewriting *r, const graph_attempt *attempts, int count);

/* ---- for rewrites ---- */

/* The node that wrote what argument `arg` of a node reads; -1: an input, or nothing is bound. */
int graph_writer(const graph_rewriting *r, int node, int arg);
/* The same of a binding. */
int graph_writer_of_bind(const graph_rewriting *r, int node, int bind);
/* Whether `from` may become part of `node`, which reads its result at binding `bind`: whole, alone,
 * the graph's own; and `from` may as well run later. Else UNSUPPORTED with the rule. */
mica_status graph_may_absorb(const graph_rewriting *r, int from, int node, int bind, mica_why *why);
/* Whether `from`, whose result is `tensor`, may as well run later: it has no other result that
 * anybody reads, and nobody changes what it reads up to the node that is looked at. Else
 * UNSUPPORTED with the rule. */
mica_status graph_may_move(const graph_rewriting *r, int from, int tensor, mica_why *why);
/* The descriptor of a node with all of its tensors, into MICA_MAX_DESC bytes. */
void graph_desc(const graph_rewriting *r, int node, void *desc);
/* Puts `fresh`, with that descriptor, in the place of `node`, of which the `count` nodes of `from`
 * become part. It is refused where the operation refuses it, no engine takes it, or the model
 * expects it to be slower than all one by one. What `fresh` holds is taken over in any case. */
mica_status graph_merge(graph_rewriting *r, const int *from, int count, int node, graph_node *fresh,
                        void *desc, mica_why *why);
/* A node of that operation with the bindings and scalars of another; only its own if op is. */
mica_status graph_node_like(const graph_node *node, graph_node *fresh);

#endif
