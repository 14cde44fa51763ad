/* SPDX-License-Identifier: Apache-2.0
 * Graphs on the command line: "graph file=net.graph", or a file that ends in .graph. */
#ifndef MICA_CLI_GRAPH_GRAPHS_H
#define MICA_CLI_GRAPH_GRAPHS_H

#include "cli.h"

#include <jansson.h>

typedef struct cli_graph {
    char *line; /* "graph file=net.graph" */
    mica_graph *graph;
    mica_graph_mode mode; /* of "mode=unfused" */
    char *without;        /* of "without=epilogue,..."; or NULL */
    /* Of a graph that has extents: that graph, of which the other one is at these values. */
    mica_graph *open;
    char *path;
    int64_t extents[MICA_GRAPH_EXTENTS];
    bool chosen; /* by "extent=N=37,M=4" */
} cli_graph;

typedef struct cli_graphs {
    cli_graph *items;
    int count;
    int errors; /* said on stderr already */
} cli_graphs;

extern const char *const cli_graph_modes[]; /* by mica_graph_mode */

/* Reads the graphs among the arguments and takes them out of there. */
void cli_graphs_take(cli_graphs *graphs, cli_options *options);
void cli_graphs_free(cli_graphs *graphs);
/* Graphs whose extents nobody has chosen are there at their lowest, at their highest, and at some
 * between, which `seed` chooses. */
void cli_graphs_spread(cli_graphs *graphs, uint64_t seed);
/* The plan of a graph, with extents as mica_graph_dynamic makes it: that of their bucket first. */
mica_status cli_graph_plan(mica_context *context, const cli_graph *graph,
                           const mica_graph_options *options, mica_graph_plan **plan);
/* The graph's own options, in a mode. */
mica_graph_options cli_graph_options(const cli_graph *graph, mica_graph_mode mode,
                                     const mica_options *nodes);

/* ---- what the commands do with them: exit codes ---- */

/* Nodes, launches, rewrites, memory; json NULL: as text. plot: a file for a drawing of the one
 * graph that is there, NULL: none. */
int cli_graphs_explain(const cli_graphs *graphs, mica_context *context, const mica_options *nodes,
                       FILE *json, const char *plot);
/* Draws a plan as SVG. */
int cli_graph_plot(const char *path, const char *title, const mica_graph_plan *plan);

#endif
