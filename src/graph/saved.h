/* SPDX-License-Identifier: Apache-2.0
 * Plans as text, as lower.c sees them: what is known of each node, and what is asked of a plan. */
#ifndef MICA_GRAPH_SAVED_H
#define MICA_GRAPH_SAVED_H

#include "graph/graph.h"

/* Of a node: what its plan was, and the nodes that it stands for. */
typedef struct graph_choice {
    const char *engine, *config, *nodes;
    char *memory; /* of the texts, where they are its own */
} graph_choice;

/* What was chosen for a graph, to be chosen again with other extents. */
typedef struct graph_decisions {
    const struct graph_attempt *attempts; /* rewrites: those without a reason are taken */
    const graph_choice *choices;          /* of each step */
    int attempt_count, choice_count;
    const mica_graph_plan *plan; /* the places of its tensors hold for what is smaller; or NULL */
} graph_decisions;

/* mica_graph_plan_create; choices: one for each node, without rewrites; NULL: none. */
mica_status graph_plan_make(mica_context *context, const mica_graph *graph,
                            const mica_graph_options *options, const graph_choice *choices,
                            mica_graph_plan **plan);
/* A plan of a graph without names, which is taken over also on an error. decisions: NULL: it is a
 * bucket's own, which remembers where its tensors are. beside: a plan with the same constants, or
 * NULL. NOT_FOUND: the decisions do not hold. *anew: an engine was chosen in place of one. */
mica_status graph_plan_decided(mica_context *context, mica_graph *graph,
                               const mica_graph_options *options, const graph_decisions *decisions,
                               const mica_graph_plan *beside, bool *anew, mica_graph_plan **plan);
/* The rewrites that were tried. */
const struct graph_attempt *graph_plan_attempts(const mica_graph_plan *plan, int *count);
/* INVALID options, or those that are not left out. */
mica_status graph_options_read(const mica_graph_options *given, mica_graph_options *options);
/* The first lines of a saved text, up to what was chosen. */
void graph_device_text(const mica_device_info *device, mica_text *text);
/* The graph as it was lowered, and how. */
const mica_graph *graph_plan_lowered(const mica_graph_plan *plan, mica_graph_mode *mode,
                                     mica_device_info *device);

#endif
