/* SPDX-License-Identifier: Apache-2.0
 * Runs of a plan as one CUDA graph. */
#ifndef MICA_GRAPH_REPLAY_H
#define MICA_GRAPH_REPLAY_H

#include "graph/graph.h"
#include "cuda/cuda.h"

typedef struct graph_replay graph_replay;

/* Without one (*replay NULL) where the device cannot. */
mica_status graph_replay_create(mica_cuda *cuda, int tensors, int scalars, int steps,
                                graph_replay **replay);
void graph_replay_destroy(graph_replay *replay);
/* A checked run. NOT_FOUND: nothing was launched, it goes one by one. */
mica_status graph_replay_run(graph_replay *replay, const mica_graph_plan *plan,
                             const mica_graph_run *run, const double *scalars);
void graph_replay_count(const graph_replay *replay, mica_graph_replays *replays);

/* ---- what lower.c knows of plans ---- */

/* What is another one than in the run that was recorded. */
typedef struct graph_changes {
    bool *tensors, *scalars; /* by real tensor, by run-time scalar */
    bool workspace;
} graph_changes;

mica_status graph_plan_run_step(const mica_graph_plan *plan, const mica_graph_run *run, int step);
bool graph_plan_step_changes(const mica_graph_plan *plan, int step, const graph_changes *changes);

#endif
