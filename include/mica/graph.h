/* SPDX-License-Identifier: Apache-2.0
 * Graphs: a network as one object. Nodes are problems of any operation, their arguments bound to
 * tensors by name; a graph becomes one plan with one workspace, and always runs.
 *
 *     mica_graph *g;
 *     mica_graph_from_text("input  x = f32:8x3x32x32\n"
 *                          "input  w = f32:16x3x3x3\n"
 *                          "output y\n"
 *                          "conv x=@x w=@w y=@t pad=1x1\n"
 *                          "activation act=relu x=@t y=@y\n", &g);
 *     mica_graph_plan *plan;
 *     if (mica_graph_plan_create(ctx, g, NULL, &plan) != MICA_OK)
 *         fprintf(stderr, "%s\n", mica_error());
 *     void *tensors[3];
 *     tensors[mica_graph_plan_index(plan, "x")] = x;                        and so on
 *     mica_graph_plan_run(plan, &(mica_graph_run){.tensors = tensors, .workspace = space});
 *
 * The same graph in C: mica_graph_tensor() and mica_graph_node().
 *
 * Text. One statement a line; a '#' where a word could begin starts a comment. A name is of
 * letters, digits, '_' and '.', and begins with a letter or '_'; tensors and scalars share names.
 *
 *     input    NAME = TENSOR             read, given to each run
 *     output   NAME [= TENSOR]           written by one node
 *     inout    NAME = TENSOR             read and changed: weights, caches, running statistics
 *     tensor   NAME = TENSOR             of the graph's own: needed only where a type or strides
 *                                        are not those that the writer's operation infers
 *     constant NAME = TENSOR VALUE ...   values in logical order, or one for all
 *     scalar   NAME = NUMBER             a run-time scalar and its default
 *     extent   NAME = LOW..HIGH          a dimension that runs choose: see dynamic shapes below
 *     OPERATION field=value ...          a node: a problem line (plan.h)
 *
 * In a node "arg=@NAME" binds an argument to a tensor, which need not be declared if a node writes
 * it, and "alpha=@NAME" a run-time scalar. In front of '@' may stand a tensor: of an input, a view
 * of that memory with those dimensions and strides ("b=f32:64x8:t@k"), behind the name the element
 * where it begins ("x=f32:8x64:192x1@qkv+64"); of an output its type ("y=bf16@t") or all of it; of
 * an inout tensor a part, whether it is read or written. Arguments without a tensor in the line
 * bind by name like others. Results that are not bound are made and forgotten.
 *
 * Order. Statements may stand in any order: a node runs when what it reads is written. Only where a
 * tensor is changed in place (by an argument of direction inout, or by a beta that is not 0) the
 * order of the lines counts: nodes before the one that changes it see the old content, nodes behind
 * it the new one.
 *
 * Numbers. Fused nodes keep what they pass on in the arithmetic of the operation: a tensor that is
 * thereby left out is not rounded to its type, so that results are at least as exact as those of
 * the nodes one by one. An integer is rounded as its type says.
 *
 * Dynamic shapes. In tensors and in the fields of nodes a number may be a sum or product of extents
 * in braces, that lines above declare: "input x = bf16:{N}x64", "a=f32:{B*N}x8@t", "@qkv+{N*64}".
 * mica_graph_dynamic plans such a graph; other functions see it with its highest extents.
 *
 * Threads: a graph belongs to one thread at a time; plans are immutable and shared as others are.
 */
#ifndef MICA_GRAPH_H
#define MICA_GRAPH_H

#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mica_graph mica_graph;
typedef struct mica_graph_plan mica_graph_plan;

/* ---- building ------------------------------------------------------------------------------ */

typedef enum mica_graph_kind {
    MICA_GRAPH_VIRTUAL, /* the graph's own: in the workspace, or nowhere */
    MICA_GRAPH_INPUT,
    MICA_GRAPH_OUTPUT,
    MICA_GRAPH_INOUT,
    MICA_GRAPH_CONSTANT /* its values are part of the graph */
} mica_graph_kind;

/* An empty graph. */
MICA_API mica_status mica_graph_create(mica_graph **graph);
/* A graph from its text form. Errors: MICA_INVALID with line, column and rule. */
MICA_API mica_status mica_graph_from_text(const char *text, mica_graph **graph);
/* NULL is allowed. Plans made of the graph live on. */
MICA_API void mica_graph_destroy(mica_graph *graph);
/* Adds statements of the text form, one or many; all of them or, on an error, none. */
MICA_API mica_status mica_graph_read(mica_graph *graph, const char *text);
/* Declares a tensor. tensor: may be NULL, or have a type only, of a VIRTUAL or an OUTPUT. */
MICA_API mica_status mica_graph_tensor(mica_graph *graph, const char *name, mica_graph_kind kind,
                                       const mica_tensor *tensor);
/* A constant; data: host memory, element 0, copied here. */
MICA_API mica_status mica_graph_constant(mica_graph *graph, const char *name,
                                         const mica_tensor *tensor, const void *data);
/* A run-time scalar. */
MICA_API mica_status mica_graph_scalar(mica_graph *graph, const char *name, double value);

enum { MICA_GRAPH_EXTENTS = 16 }; /* of one graph, at most */
/* Declares an extent: LOW is 1 or above. Buckets, see below, end at those `count` values and at
 * HIGH; 0 means at powers of 2. In text "extent N = 1..512 buckets=16,64,512". */
MICA_API mica_status mica_graph_extent(mica_graph *graph, const char *name, int64_t low,
                                       int64_t high, const int64_t *buckets, int count);

/* What an argument, or a scalar, of a node is bound to. */
typedef struct mica_graph_bind {
    const char *arg;  /* its name in the operation: "x", "alpha" */
    const char *name; /* of a tensor, or of a run-time scalar; 0 means the value, of a scalar */
    int64_t at;       /* the element of the tensor that is its element 0; 0 means 0 */
    double value;     /* of a scalar; 0 means 0 */
} mica_graph_bind;
/* Adds a node. Tensors of the descriptor that are bound may be left zero, or say what text says in
 * front of '@'. */
MICA_API mica_status mica_graph_node(mica_graph *graph, const char *op, const void *desc,
                                     size_t desc_size, const mica_graph_bind *binds, int count);

/* Infers all tensors and checks the whole: MICA_INVALID names the node, the value and the rule.
 * Planning does the same. */
MICA_API mica_status mica_graph_infer(mica_graph *graph);
/* The text form. Returns its length as snprintf does. */
MICA_API int mica_graph_text(const mica_graph *graph, char *buffer, size_t size);

typedef struct mica_graph_tensor_info {
    const char *name;
    mica_graph_kind kind;
    mica_tensor tensor; /* as inferred, behind mica_graph_infer; else as declared */
} mica_graph_tensor_info;
/* Tensor `index` in order of appearance; MICA_INVALID past the last. */
MICA_API mica_status mica_graph_tensor_at(const mica_graph *graph, int index,
                                          mica_graph_tensor_info *info);
/* The problem of node `index`, in order of appearance, with its tensors as inferred (call
 * mica_graph_infer before); MICA_INVALID past the last. */
MICA_API mica_status mica_graph_problem(const mica_graph *graph, int index, mica_problem **problem);
/* What its argument `arg` is bound to: the index of a tensor, -1 for nothing; *at, if not NULL,
 * receives the element where it begins. */
MICA_API int mica_graph_bound(const mica_graph *graph, int node, int arg, int64_t *at);
/* The values of a constant, element 0; NULL for other tensors. */
MICA_API const void *mica_graph_data(const mica_graph *graph, int tensor);

typedef struct mica_graph_extent_info {
    const char *name;
    int64_t low, high;
    const int64_t *buckets; /* where they end, if that was said */
    int count;
} mica_graph_extent_info;
/* Extent `index` in order of declaration, which is that of every array of their values;
 * MICA_INVALID past the last. */
MICA_API mica_status mica_graph_extent_at(const mica_graph *graph, int index,
                                          mica_graph_extent_info *info);
/* The extents of real tensors that are given, in the order of mica_graph_run.tensors; of outputs
 * nothing is read. An extent is what a dimension of an input is that is it alone. MICA_INVALID
 * where two say two values, where one says none, where a value is out of its range, and where
 * another dimension is not what the graph has with these extents. */
MICA_API mica_status mica_graph_extents(const mica_graph *graph, const mica_tensor *tensors,
                                        int64_t *extents);
/* The graph with those extents, a copy that has none. */
MICA_API mica_status mica_graph_fix(const mica_graph *graph, const int64_t *extents,
                                    mica_graph **fixed);

/* ---- plans --------------------------------------------------------------------------------- */

typedef enum mica_graph_mode {
    MICA_GRAPH_FUSED,   /* with all rewrites */
    MICA_GRAPH_UNFUSED, /* one launch a node, tensors share the workspace by lifetime */
    MICA_GRAPH_SEPARATE /* node by node, nothing shares memory: to look for mistakes */
} mica_graph_mode;

typedef struct mica_graph_options {
    size_t size;               /* sizeof(mica_graph_options); 0 means the fields of version 0.1 */
    mica_graph_mode mode;      /* 0 means MICA_GRAPH_FUSED */
    const char *without;       /* rewrites that are not tried, "a,b"; 0 means all are */
    const mica_options *nodes; /* how each node is planned; 0 means the default */
    bool replay;               /* runs launch one CUDA graph, see mica_graph_plan_run; 0 means no */
} mica_graph_options;

/* Makes a plan, or finds it in the context's cache of plans of graphs: of the same graph, names and
 * values of constants included, with the same options. Errors: those of mica_graph_infer; of
 * planning a node, which is named. */
MICA_API mica_status mica_graph_plan_create(mica_context *context, const mica_graph *graph,
                                            const mica_graph_options *options,
                                            mica_graph_plan **plan);
/* The plan as text: what rewrites left of the graph, with constants, and the engine and config of
 * each launch. Returns its length as snprintf does. */
MICA_API int mica_graph_plan_text(const mica_graph_plan *plan, char *buffer, size_t size);
/* A plan from that text, in this or another process: nothing is rewritten, measured or chosen.
 * Errors: MICA_UNSUPPORTED with both values if version or device differ, or if an engine does not
 * take its node; MICA_INVALID, with the line, if it is no such text. */
MICA_API mica_status mica_graph_plan_from_text(mica_context *context, const char *text,
                                               mica_graph_plan **plan);
/* Gives the plan back; it must not be running. NULL is allowed. */
MICA_API void mica_graph_plan_destroy(mica_graph_plan *plan);

/* The cache of plans of graphs, counted since the context was created. */
typedef struct mica_graph_stats {
    int64_t hits, misses;
    int64_t plans, bytes; /* kept now; bytes on the device, of constants, among them */
    int64_t limit;        /* of bytes: what was used least recently leaves first */
} mica_graph_stats;
MICA_API mica_status mica_graph_cache_stats(const mica_context *context, mica_graph_stats *stats);
/* Its bound in bytes (default 64 MiB); 0 empties and disables it. mica_context_cache_limit(context,
 * 0) empties it, too. */
MICA_API mica_status mica_graph_cache_limit(mica_context *context, int64_t bytes);

/* Bytes of workspace that a run needs, exactly; 256-byte alignment. */
MICA_API size_t mica_graph_plan_workspace(const mica_graph_plan *plan);
/* Real tensor `index` (inputs, outputs and those changed), in order of declaration: the order of
 * mica_graph_run.tensors. MICA_INVALID past the last. */
MICA_API mica_status mica_graph_plan_tensor(const mica_graph_plan *plan, int index,
                                            mica_graph_tensor_info *info);
/* The place of a real tensor, or of a run-time scalar; -1: there is none of that name. */
MICA_API int mica_graph_plan_index(const mica_graph_plan *plan, const char *name);
/* Run-time scalar `index` in order of declaration, and its default. */
MICA_API mica_status mica_graph_plan_scalar(const mica_graph_plan *plan, int index,
                                            const char **name, double *value);

typedef struct mica_graph_run {
    size_t size;           /* sizeof(mica_graph_run); 0 means the fields of version 0.1 */
    void *const *tensors;  /* pointers to element 0 of the real tensors */
    const double *scalars; /* of run-time scalars; 0 means all as their defaults */
    void *workspace;       /* mica_graph_plan_workspace() bytes; 0 means none */
    void *stream;          /* CUstream; 0 means the default stream */
} mica_graph_run;
/* Enqueues all of it, as mica_plan_run does; a CUDA graph can capture it. Real tensors must not
 * overlap where one is written. Errors: as mica_plan_run.
 *
 * With mica_graph_options.replay, on a GPU, the first run records its launches as a CUDA graph,
 * which takes time and memory; it and later runs launch that. Where pointers or scalars are others
 * than those of the run before, the nodes that have them are changed in place, and what is enqueued
 * already is not concerned. Any thread may run such a plan: one that finds another in it, and a run
 * on a stream that is being captured, launch one by one, and so do all runs where the driver is
 * older than CUDA 12.3, with MICA_SYNC=1, and where steps are other libraries'. Where launches
 * become other ones than a node can take, the graph is recorded again; the plan that has been so
 * eight times launches one by one for good. The GPU does not
 * run a CUDA graph beside itself: runs on two streams wait for each other. Results are the same.
 * Such a plan is the caller's own: it is not in the cache, and mica_graph_plan_text does not say
 * it. */
MICA_API mica_status mica_graph_plan_run(const mica_graph_plan *plan, const mica_graph_run *run);

/* Counters of a plan with mica_graph_options.replay. */
typedef struct mica_graph_replays {
    int64_t recorded; /* graphs that were made: 1, or more where launches became other ones */
    int64_t launched; /* runs that launched one; others went one by one */
    int64_t updated;  /* steps whose nodes were changed in place */
} mica_graph_replays;
MICA_API mica_status mica_graph_plan_replays(const mica_graph_plan *plan,
                                             mica_graph_replays *replays);

/* ---- dynamic shapes -------------------------------------------------------------------------- */

/* Plans of a graph with extents: for any values within their ranges.
 *
 *     mica_graph_read(g, "extent N = 1..4096\n"
 *                        "input  x = f32:{N}x64\n" ...);
 *     mica_graph_dynamic *d;
 *     mica_graph_dynamic_create(ctx, g, NULL, &d);
 *     mica_graph_plan *plan;
 *     mica_graph_dynamic_plan(d, (int64_t[]){37}, &plan);
 *     mica_graph_plan_run(plan, &run);                                      as any other plan
 *     mica_graph_plan_destroy(plan);
 *
 * A bucket is what lies between two ends of every extent, powers of 2 unless the graph says others.
 * The first time that one is met it is planned for its largest extents: rewrites, engines, configs,
 * kernels and the places of tensors are chosen there, which takes what planning takes. Within it
 * the plan of other extents is made of the same choices, without a search: so nothing is padded,
 * nothing computed for rows that are not there, and every plan is of its exact extents. Each choice
 * is checked once more for them; what does not hold there (a rewrite, an engine) is chosen anew.
 *
 * Plans are kept within a bound in bytes, and what was used least recently leaves. Constants are
 * there once for all of them. Any thread may ask. With mica_graph_options.replay the plan of each
 * extents records a CUDA graph of its own when it first runs. */
typedef struct mica_graph_dynamic mica_graph_dynamic;

typedef struct mica_graph_dynamic_options {
    size_t size;                     /* sizeof(mica_graph_dynamic_options); 0 means version 0.1 */
    const mica_graph_options *plans; /* how each is made; 0 means the default */
    bool ahead;         /* all buckets are planned at once, at most 256; 0 means when first met */
    int64_t plan_bytes; /* bound of the plans that are kept beside buckets; 0 means 64 MiB */
} mica_graph_dynamic_options;

/* Errors: MICA_INVALID if the graph is not right for its highest, its lowest or some extents
 * between; those of planning, if that is ahead. */
MICA_API mica_status mica_graph_dynamic_create(mica_context *context, const mica_graph *graph,
                                               const mica_graph_dynamic_options *options,
                                               mica_graph_dynamic **dynamic);
/* NULL is allowed. Plans that were given out live on. */
MICA_API void mica_graph_dynamic_destroy(mica_graph_dynamic *dynamic);
/* The plan for these extents, made or found; for mica_graph_plan_destroy. MICA_INVALID with the
 * value and the rule: an extent is out of its range, or tensors do not meet. */
MICA_API mica_status mica_graph_dynamic_plan(mica_graph_dynamic *dynamic, const int64_t *extents,
                                             mica_graph_plan **plan);
/* That plan, run once. Not for captures: what a CUDA graph has captured needs its plan for as long
 * as it lives, and this one may leave. */
MICA_API mica_status mica_graph_dynamic_run(mica_graph_dynamic *dynamic, const int64_t *extents,
                                            const mica_graph_run *run);
/* Bytes of workspace of that plan: what its bucket needs, for all extents in it the same; only
 * where a choice did not hold another number, which may be larger. */
MICA_API mica_status mica_graph_dynamic_workspace(mica_graph_dynamic *dynamic,
                                                  const int64_t *extents, size_t *bytes);

typedef struct mica_graph_dynamic_stats {
    int64_t hits, misses; /* plans that were there, and that were made */
    int64_t anew;         /* of those made: with a rewrite or an engine chosen anew */
    int64_t buckets;      /* planned */
    int64_t plans, bytes; /* kept now, beside buckets */
    int64_t limit;        /* of bytes */
} mica_graph_dynamic_stats;
MICA_API mica_status mica_graph_dynamic_count(mica_graph_dynamic *dynamic,
                                              mica_graph_dynamic_stats *stats);

/* The graph, with its extents and constants, and the choices of each bucket that was planned, as
 * text. Returns its length as snprintf does. */
MICA_API int mica_graph_dynamic_text(mica_graph_dynamic *dynamic, char *buffer, size_t size);
/* From that text, in this or another process: what it has buckets of is not chosen again. Errors:
 * as of mica_graph_plan_from_text. options: for what is chosen anew; the mode is the text's. */
MICA_API mica_status mica_graph_dynamic_from_text(mica_context *context, const char *text,
                                                  const mica_graph_dynamic_options *options,
                                                  mica_graph_dynamic **dynamic);

/* ---- what a plan is made of: for tools ------------------------------------------------------- */

typedef struct mica_graph_step {
    const mica_plan *plan; /* its engine, config, workspace, kernels, predicted time */
    const char *nodes;     /* the nodes that it computes, "0 1 2", in order of appearance */
    int binds;             /* how many of its arguments are bound */
} mica_graph_step;
/* Launch `index`, in order of the run; MICA_INVALID past the last. */
MICA_API mica_status mica_graph_plan_step(const mica_graph_plan *plan, int index,
                                          mica_graph_step *step);
/* Binding `index` of a step: the argument's place in the operation, the tensor's name, and where it
 * is: offset in bytes from element 0 of a real tensor, or from the beginning of the workspace. */
MICA_API mica_status mica_graph_plan_bound(const mica_graph_plan *plan, int step, int index,
                                           int *arg, mica_graph_tensor_info *info, int64_t *offset);

typedef struct mica_graph_attempt {
    const char *rewrite; /* its name */
    int node;            /* where it was tried */
    bool taken;
    const char *reason; /* why not: the value and the rule; "" if it was */
} mica_graph_attempt;
/* Rewrite `index` of those that were taken, or whose pattern was there and whose condition was not;
 * MICA_INVALID past the last. */
MICA_API mica_status mica_graph_plan_attempt(const mica_graph_plan *plan, int index,
                                             mica_graph_attempt *attempt);

typedef struct mica_graph_memory {
    size_t workspace; /* bytes */
    size_t least;     /* what the fullest step needs: no workspace can be smaller */
    size_t tensors;   /* what the graph's own tensors would take side by side */
    size_t constants; /* bytes that the plan holds on the device */
} mica_graph_memory;
MICA_API mica_status mica_graph_plan_memory(const mica_graph_plan *plan, mica_graph_memory *memory);
/* Predicted time in milliseconds: the sum over the steps. */
MICA_API double mica_graph_plan_predicted(const mica_graph_plan *plan);

/* Rewrite `index` of the library: its name and what it does; NULL past the last. */
MICA_API const char *mica_graph_rewrite(int index, const char **doc);

#ifdef __cplusplus
}
#endif
#endif
