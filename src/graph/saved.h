/* SPDX-License-Identifier: Apache-2.0
 * Plans as text, as lower.c sees them: what is known of each node, and what is asked of a plan. */
#ifndef MICA_GRAPH_SAVED_H
#define MICA_GRAPH_SAVED_H

#include "graph/graph.h"

/* Of a node: what its plan was, and the nodes that it stands for. */
typedef struct graph_choice {
    char *engine, *config, *nodes;
} graph_choice;

/* mica_graph_plan_create; choices: one for each node, without rewrites; NULL: none. */
mica_status graph_plan_make(mica_context *context, const mica_graph *graph,
                            const mica_graph_options *options, const graph_choice *choices,
                            mica_graph_plan **plan);
/* The graph as it was lowered, and how. */
const mica_graph *graph_plan_lowered(const mica_graph_plan *plan, mica_graph_mode *mode,
                                     mica_device_info *device);

#endif
