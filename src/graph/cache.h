/* SPDX-License-Identifier: Apache-2.0
 * The context's cache of plans of graphs, as lower.c sees it. */
#ifndef MICA_GRAPH_CACHE_H
#define MICA_GRAPH_CACHE_H

#include "graph/graph.h"

/* A graph and the options of its plan as bytes: equal where plans would be. */
typedef struct graph_key {
    char *data; /* NULL: it holds too much to be kept */
    size_t size, room;
    uint64_t hash;
    char fixed[8192]; /* data, while that is enough */
} graph_key;

/* OUT_OF_MEMORY, or INVALID options. */
mica_status graph_key_make(const mica_context *context, const mica_graph *graph,
                           const mica_graph_options *options, graph_key *key);
void graph_key_free(graph_key *key);
/* A plan with that key, for mica_graph_plan_destroy; NULL: there is none. */
mica_graph_plan *graph_cache_find(mica_context *context, const graph_key *key);
void graph_cache_add(mica_context *context, const graph_key *key, mica_graph_plan *plan);

/* ---- what lower.c knows of plans ---- */

void graph_plan_retain(mica_graph_plan *plan);
/* Bytes that it holds, constants on the device among them. */
size_t graph_plan_held(const mica_graph_plan *plan);

#endif
