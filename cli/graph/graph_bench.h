/* SPDX-License-Identifier: Apache-2.0
 * Times of a graph. */
#ifndef MICA_CLI_GRAPH_GRAPH_BENCH_H
#define MICA_CLI_GRAPH_GRAPH_BENCH_H

#include "graph/graphs.h"

enum { GRAPH_TIMED = 2 }; /* fused, unfused */

typedef struct graph_timing {
    mica_graph_mode mode;
    double *samples; /* milliseconds */
    size_t count;
    double flops, bytes, roof_ms; /* of the fused graph */
} graph_timing;

/* Fills GRAPH_TIMED results, whose samples the caller frees, also on an error. */
mica_status graph_time(mica_context *context, const cli_graph *graph, const mica_options *nodes,
                       double seconds, size_t least, graph_timing *results);

/* Rows of `mica bench --overhead`. */
struct bench_host;
struct cli_table;
mica_status graph_overhead(const struct bench_host *host, const cli_graph *graph,
                           struct cli_table *table);

#endif
