/* SPDX-License-Identifier: Apache-2.0
 * `mica explain` of graphs: tensors, launches, rewrites, memory. */
#include "graph/graphs.h"
#include "bench/table.h"
#include "json.h"

#include <stdlib.h>
#include <string.h>

static const char *const kinds[] = {"graph's own", "input", "output", "inout", "constant"};

static void heading(const char *text)
{
    printf("\n%s%s%s\n", cli_style(stdout, "bold"), text, cli_style(stdout, "off"));
}

static char *plan_line(const mica_plan *plan)
{
    int length = mica_plan_describe(plan, NULL, 0);
    char *text = cli_alloc((size_t)length + 1);
    mica_plan_describe(plan, text, (size_t)length + 1);
    return text;
}

/* ---- as text ---- */

static void show_tensors(const mica_graph_plan *plan)
{
    cli_table t;
    mica_graph_tensor_info info;
    heading("tensors");
    cli_table_begin(&t, "  name|kind|tensor|>bytes");
    for (int i = 0; mica_graph_plan_tensor(plan, i, &info) == MICA_OK; i++) {
        char tensor[256];
        mica_tensor_text(&info.tensor, tensor, sizeof tensor);
        cli_cell(&t, "  %s", info.name);
        cli_cell(&t, "%s", kinds[info.kind]);
        cli_cell(&t, "%s", tensor);
        cli_cell(&t, "%lld", (long long)mica_tensor_span(&info.tensor, NULL));
    }
    cli_table_print(&t, stdout);
    cli_table_end(&t);
}

static void show_launches(const mica_graph_plan *plan)
{
    cli_table t;
    mica_graph_step s;
    heading("launches");
    cli_table_begin(&t, "  nodes|engine|>predicted ms|>workspace|problem");
    for (int i = 0; mica_graph_plan_step(plan, i, &s) == MICA_OK; i++) {
        char *line = plan_line(s.plan);
        const char *config = mica_plan_config(s.plan);
        cli_cell(&t, "  %s", s.nodes);
        cli_cell(&t, "%s%s%s", mica_plan_engine(s.plan), *config ? " " : "", config);
        cli_cell(&t, "%.5g", mica_plan_predicted(s.plan));
        cli_cell(&t, "%zu", mica_plan_workspace(s.plan));
        cli_cell(&t, "%s", line);
        free(line);
    }
    cli_table_print(&t, stdout);
    cli_table_end(&t);
}

static void show_rewrites(const mica_graph_plan *plan)
{
    cli_table t;
    mica_graph_attempt a;
    if (mica_graph_plan_attempt(plan, 0, &a) != MICA_OK) return;
    heading("rewrites");
    cli_table_begin(&t, "  node|rewrite|taken, or why not");
    for (int i = 0; mica_graph_plan_attempt(plan, i, &a) == MICA_OK; i++) {
        cli_cell(&t, "  %d", a.node);
        cli_cell(&t, "%s", a.rewrite);
        cli_cell(&t, "%s", a.taken ? "taken" : a.reason);
    }
    cli_table_print(&t, stdout);
    cli_table_end(&t);
}

static void show_extents(const cli_graph *g)
{
    cli_table t;
    mica_graph_extent_info e;
    if (!g->open) return;
    heading("extents");
    cli_table_begin(&t, "  name|>here|range|buckets end at");
    for (int i = 0; mica_graph_extent_at(g->open, i, &e) == MICA_OK; i++) {
        char *ends = cli_format("%s", e.count ? "" : "powers of 2");
        for (int k = 0; k < e.count; k++) {
            char *more = cli_format("%s%s%lld", ends, k ? " " : "", (long long)e.buckets[k]);
            free(ends);
            ends = more;
        }
        cli_cell(&t, "  %s", e.name);
        cli_cell(&t, "%lld", (long long)g->extents[i]);
        cli_cell(&t, "%lld to %lld", (long long)e.low, (long long)e.high);
        cli_cell(&t, "%s", ends);
        free(ends);
    }
    cli_table_print(&t, stdout);
    cli_table_end(&t);
}

static void show(const cli_graph *g, const mica_graph_plan *plan)
{
    mica_graph_memory m;
    printf("%s\n", g->line);
    show_extents(g);
    show_tensors(plan);
    show_launches(plan);
    show_rewrites(plan);
    mica_graph_plan_memory(plan, &m);
    heading("memory");
    printf("  workspace %zu bytes, at least %zu (%.4g of it); tensors side by side %zu; constants "
           "%zu\n",
           m.workspace, m.least, m.least ? (double)m.workspace / (double)m.least : 1, m.tensors,
           m.constants);
    heading("time");
    printf("  predicted %.5g ms\n", mica_graph_plan_predicted(plan));
}

/* ---- as JSON ---- */

static json_t *launches(const mica_graph_plan *plan)
{
    json_t *list = json_array();
    mica_graph_step s;
    for (int i = 0; mica_graph_plan_step(plan, i, &s) == MICA_OK; i++) {
        char *line = plan_line(s.plan);
        json_array_append_new(
            list, json_pack("{ss ss ss ss so sI}", "nodes", s.nodes, "line", line, "engine",
                            mica_plan_engine(s.plan), "config", mica_plan_config(s.plan),
                            "predicted_ms", cli_json_number(mica_plan_predicted(s.plan)),
                            "workspace", (json_int_t)mica_plan_workspace(s.plan)));
        free(line);
    }
    return list;
}

static json_t *tensors(const mica_graph_plan *plan)
{
    json_t *list = json_array();
    mica_graph_tensor_info info;
    for (int i = 0; mica_graph_plan_tensor(plan, i, &info) == MICA_OK; i++) {
        char tensor[256];
        mica_tensor_text(&info.tensor, tensor, sizeof tensor);
        json_array_append_new(list, json_pack("{ss ss ss}", "name", info.name, "kind",
                                              kinds[info.kind], "tensor", tensor));
    }
    return list;
}

static json_t *rewrites(const mica_graph_plan *plan)
{
    json_t *list = json_array();
    mica_graph_attempt a;
    for (int i = 0; mica_graph_plan_attempt(plan, i, &a) == MICA_OK; i++)
        json_array_append_new(list, json_pack("{ss si sb ss}", "rewrite", a.rewrite, "node", a.node,
                                              "taken", a.taken, "reason", a.reason));
    return list;
}

static json_t *object(const cli_graph *g, const mica_graph_plan *plan)
{
    mica_graph_memory m;
    mica_graph_plan_memory(plan, &m);
    return json_pack("{ss so so so sI sI sI sI so}", "line", g->line, "tensors", tensors(plan),
                     "launches", launches(plan), "rewrites", rewrites(plan), "workspace",
                     (json_int_t)m.workspace, "least_workspace", (json_int_t)m.least,
                     "tensor_bytes", (json_int_t)m.tensors, "constant_bytes",
                     (json_int_t)m.constants, "predicted_ms",
                     cli_json_number(mica_graph_plan_predicted(plan)));
}

int cli_graphs_explain(const cli_graphs *graphs, mica_context *context, const mica_options *nodes,
                       FILE *json, const char *plot)
{
    int code = CLI_OK;
    if (plot && graphs->count != 1) {
        cli_say("--plot %s: %d graphs are given, one is drawn", plot, graphs->count);
        return CLI_USAGE;
    }
    for (int i = 0; i < graphs->count && !cli_stopped(); i++) {
        const cli_graph *g = &graphs->items[i];
        const mica_graph_options o = cli_graph_options(g, g->mode, nodes);
        mica_graph_plan *plan;
        mica_status status = cli_graph_plan(context, g, &o, &plan);
        if (status != MICA_OK) {
            cli_say("%s: %s", g->line, mica_error());
            code = cli_worse(code, cli_exit_code(status));
            continue;
        }
        if (i && !json) printf("\n");
        if (json)
            cli_json_line(json, object(g, plan));
        else
            show(g, plan);
        if (plot) code = cli_worse(code, cli_graph_plot(plot, g->line, plan));
        mica_graph_plan_destroy(plan);
    }
    return code;
}
