/* SPDX-License-Identifier: Apache-2.0
 * The truth of a graph: its nodes one by one by their references.
 *
 * What results may be off by is not said by one contract, for each node's error goes through those
 * behind it. So the references run again, several times, with every result that is passed on moved
 * up or down by what its own node may be off by; how far the ends move then is how far any way of
 * computing the graph may be off. A tensor that fusing leaves out is not rounded, which is one of
 * those errors. */
#ifndef MICA_CLI_GRAPH_TRUTH_H
#define MICA_CLI_GRAPH_TRUTH_H

#include "graph/graphs.h"

typedef struct graph_truth {
    const mica_graph *graph; /* inferred */
    int tensors, nodes;
    mica_graph_tensor_info *info;
    mica_problem **problems;
    int *order;    /* of the run */
    double *phi;   /* of each node */
    double *floor; /* of each node: what underflow may cost, times its largest input */
    void **memory; /* of each tensor, from its lowest element */
    int64_t *spans, *firsts;
    double **begin;                  /* what inputs, and what is changed, begin with */
    double **want, **error, **moved; /* of results: values, own error, movement; or NULL */
} graph_truth;

/* phi is that of the context's plans, node by node. */
mica_status graph_truth_init(graph_truth *t, mica_context *context, const cli_graph *graph,
                             const mica_options *nodes);
void graph_truth_free(graph_truth *t);
/* Makes data alone, of inputs and what is changed. */
mica_status graph_truth_data(graph_truth *t, mica_fill fill, uint64_t seed);
/* Makes data and computes what follows from it. */
mica_status graph_truth_fill(graph_truth *t, mica_fill fill, uint64_t seed);
/* What element i of a result may differ by. */
double graph_truth_tolerance(const graph_truth *t, int tensor, int64_t i);

/* The tensor of that name. */
int graph_truth_tensor(const graph_truth *t, const char *name);

/* ---- a plan's tensors on the device ---- */

enum { GRAPH_TENSORS = 1024 };
typedef struct graph_device {
    void *memory[GRAPH_TENSORS], *tensors[GRAPH_TENSORS], *workspace;
    int count;
} graph_device;

/* Inputs are as made, what is written is poisoned. `device` is zeroed before. */
mica_status graph_truth_place(mica_context *context, const graph_truth *t,
                              const mica_graph_plan *plan, graph_device *device);
void graph_truth_release(mica_context *context, graph_device *device);

#endif
