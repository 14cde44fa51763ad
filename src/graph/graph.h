/* SPDX-License-Identifier: Apache-2.0
 * Graphs, as the files of this folder see them: tensors, nodes, names.
 *
 *   graph.c    building            text.c     statements, read;  write.c  written
 *   infer.c    order and tensors   rewrite.h  what is made of several nodes
 *   memory.c   who lies where      lower.c    plans and runs
 *   saved.c    plans as text       cache.c    plans that are there already
 *   replay.c   runs as one CUDA graph
 *   extent.c   extents with names  dynamic.c  plans for any extents
 *
 * Nothing here names an operation but the files of rewrites/. */
#ifndef MICA_GRAPH_GRAPH_H
#define MICA_GRAPH_GRAPH_H

#include "mica/graph.h"
#include "ops/op.h"

/* A descriptor without its zeros, most of which are tensors that are not there: a bit for each word
 * of 8 bytes, then the words that are not 0. */
typedef struct graph_packed graph_packed;
graph_packed *graph_pack(const void *desc, size_t size);
void graph_unpack(const graph_packed *packed, void *desc, size_t size);
size_t graph_packed_bytes(const graph_packed *packed);
graph_packed *graph_packed_copy(const graph_packed *packed);

typedef struct graph_bound {
    int arg, tensor;
    int64_t at; /* elements */
} graph_bound;

typedef struct graph_node {
    const mica_op *op;
    graph_packed *given;    /* as the caller described it */
    graph_packed *resolved; /* of inference */
    graph_bound *binds;
    int bind_count;
    double *scalars; /* op->scalar_count values */
    int *scalar_of;  /* run-time scalar instead, or -1 */
    int line;        /* of the text; 0: it has none */
    bool gone;       /* a rewrite has made it part of another node */
    char *parts;     /* the nodes that it stands for, where they are several */
    char *open;      /* its line, where that has names of extents; or NULL */
} graph_node;

typedef struct graph_tensor {
    char *name;
    mica_graph_kind kind;
    bool declared;
    mica_tensor given; /* as declared */
    char *open;        /* the same as text, where that has names of extents; or NULL */
    void *data;        /* of a constant, from its lowest element: graph_values_new */
    /* of inference */
    mica_tensor t;
    int writer;   /* node; -1: none */
    int reads;    /* bindings that read it, */
    int readers;  /* and the exclusive or of their nodes: of one reader, that */
    bool changed; /* in place, by some node */
} graph_tensor;

typedef struct graph_scalar {
    char *name;
    double value;
} graph_scalar;

/* An extent with a name. Tensors and nodes that say it are there with its highest value. */
typedef struct graph_extent {
    char *name;
    int64_t low, high;
    int64_t *buckets; /* where buckets end, ascending, the last one at high; NULL: powers of 2 */
    int bucket_count;
} graph_extent;

struct mica_graph {
    graph_tensor *tensors;
    graph_node *nodes;
    graph_scalar *scalars;
    graph_extent *extents;
    int tensor_count, node_count, scalar_count, extent_count;
    int tensor_room, node_room, scalar_room, extent_room;
    int *table; /* of names: 0 is empty, i + 1 tensor i, -i - 1 scalar i */
    int table_size, table_used;
    int *order; /* of inference: nodes as they run */
};

/* ---- names ---- */

enum { GRAPH_NAME = 200 }; /* characters of a name, its end included */
mica_status graph_check_name(const char *name);
/* 0, i + 1 or -i - 1, as in the table. */
int graph_find(const mica_graph *g, const char *name);
/* The tensor of that name, made if there is none. INVALID if the name is no name or a scalar's. */
mica_status graph_tensor_named(mica_graph *g, const char *name, int *index);
/* A tensor without a name of its own, for argument `arg` of a node. */
mica_status graph_tensor_anonymous(mica_graph *g, int node, int arg, int *index);

/* ---- nodes ---- */

/* A node with default scalars; then what it is bound to, and into the graph, which takes over what
 * it holds, also on an error. */
mica_status graph_node_begin(const mica_op *op, graph_node *node);
mica_status graph_node_finish(mica_graph *g, graph_node *node, const void *desc,
                              const mica_graph_bind *binds, int count);
/* Takes over what `node` holds, also where it fails. */
mica_status graph_node_add(mica_graph *g, graph_node *node);
void graph_node_free(graph_node *node);
mica_status graph_node_bind(graph_node *node, int arg, int tensor, int64_t at);
/* -1 where the argument is not bound. */
int graph_bind_of(const graph_node *node, int arg);
/* Room for one more element behind `count`, in a list that doubles. */
mica_status graph_room(void *list, int count, int *room, size_t element);
/* "node 3 (conv, line 7)" */
const char *graph_node_name(const mica_graph *g, int node, char *buffer, size_t size);
/* mica_fail with the node in front. */
mica_status graph_fail(const mica_graph *g, int node, mica_status status, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Copies share the values of constants. */
mica_graph *graph_clone(const mica_graph *g);
/* The graph with those values of its extents, without names. */
mica_status graph_at_extents(const mica_graph *g, const int64_t *values, mica_graph **fixed);
/* Memory of the values of a constant, counted. */
void *graph_values_new(size_t bytes);
void graph_values_release(void *values);
/* Takes the graph back to fewer parts: what a statement that failed has added. */
void graph_truncate(mica_graph *g, int tensors, int nodes, int scalars);

/* ---- extents (extent.c) ---- */

enum { GRAPH_BUCKETS = 64 }; /* ends of buckets of an extent, at most */

/* Replaces what stands in braces by its value, of the given values or, NULL, the highest ones. For
 * mica_release; columns: of each character that of the line, or NULL. On INVALID *at is where. */
mica_status graph_fill_line(const mica_graph *g, const int64_t *values, const char *line,
                            char **filled, int **columns, size_t *at);
/* INVALID, with the rule, unless each value is within its range. */
mica_status graph_check_extents(const mica_graph *g, const int64_t *values);
/* "N=37, M=4" */
void graph_extents_text(const mica_graph *g, const int64_t *values, mica_text *text);
void graph_extents_truncate(mica_graph *g, int count);

/* How a node uses a bound tensor: IN, OUT, or INOUT where old content enters. */
mica_dir graph_access(const graph_node *node, const void *desc, int bind);

/* ---- text (text.c, write.c) ---- */

extern const char *const graph_words[]; /* by mica_graph_kind, then NULL */
/* Adds the statement of one line, which has no names of extents. */
mica_status graph_read_filled(mica_graph *g, const char *line, int number);
/* mica_graph_text. */
void graph_text_whole(const mica_graph *g, mica_text *text);
/* The text form of what rewrites left, nodes in the order of the run. */
void graph_text_lowered(const mica_graph *g, mica_text *text);

/* ---- inference (infer.c) ---- */

/* Sets order, resolved descriptors, tensors and who uses them. */
mica_status graph_infer(mica_graph *g);

#endif
