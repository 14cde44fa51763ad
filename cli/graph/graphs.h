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
