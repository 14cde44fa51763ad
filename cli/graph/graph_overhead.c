/* SPDX-License-Identifier: Apache-2.0
 * `mica bench --overhead` of graphs: what the host pays for a run beside that of its launches, for
 * a plan that is found and for one that is made. */
#include "bench/bench.h"
#include "bench/table.h"
#include "graph/graph_bench.h"

#include <stdlib.h>

enum { CACHE = 64 << 20 }; /* bytes: the default of contexts */

typedef struct subject {
    mica_context *context;
    const cli_graph *graph;
    mica_graph_options options;
    mica_graph_plan *plan;
    void **memory, **tensors; /* of the real tensors */
    int tensor_count, step_count;
    void *workspace;
    const mica_plan **plans; /* of the steps, */
    mica_run *runs;          /* and how each is run by itself */
} subject;

static mica_status time_runs(void *user, int count)
{
    const subject *s = user;
    const mica_graph_run run = {.tensors = s->tensors, .workspace = s->workspace};
    mica_status status = MICA_OK;
    for (int i = 0; status == MICA_OK && i < count; i++)
        status = mica_graph_plan_run(s->plan, &run);
    return status;
}

static mica_status time_launches(void *user, int count)
{
    const subject *s = user;
    mica_status status = MICA_OK;
    for (int i = 0; i < count; i++)
        for (int k = 0; status == MICA_OK && k < s->step_count; k++)
            status = mica_plan_run(s->plans[k], &s->runs[k]);
    return status;
}

static mica_status time_plans(void *user, int count)
{
    const subject *s = user;
    for (int i = 0; i < count; i++) {
        mica_graph_plan *plan;
        const mica_status status =
            mica_graph_plan_create(s->context, s->graph->graph, &s->options, &plan);
        if (status != MICA_OK) return status;
        mica_graph_plan_destroy(plan);
    }
    return MICA_OK;
}

/* ---- extents ---- */

typedef struct extents {
    mica_graph_dynamic *dynamic;
    const int64_t *values;
} extents;

static mica_status time_extents(void *user, int count)
{
    const extents *e = user;
    for (int i = 0; i < count; i++) {
        mica_graph_plan *plan;
        const mica_status status = mica_graph_dynamic_plan(e->dynamic, e->values, &plan);
        if (status != MICA_OK) return status;
        mica_graph_plan_destroy(plan);
    }
    return MICA_OK;
}

/* Plans of these extents, whose bucket is there: kept, and not. */
static mica_status measure_extents(const bench_host *host, const subject *s, const char *mode,
                                   cli_table *t)
{
    static const char *const rows[] = {"plan of extents found",
                                       "plan of extents made, kernels warm"};
    mica_status status = MICA_OK;
    for (int made = 0; made < 2 && status == MICA_OK; made++) {
        const mica_graph_dynamic_options o = {.plans = &s->options, .plan_bytes = made};
        extents e = {.values = s->graph->extents};
        status = mica_graph_dynamic_create(s->context, s->graph->open, &o, &e.dynamic);
        if (status == MICA_OK) status = time_extents(&e, 1);
        if (made) mica_context_cache_limit(s->context, 0);
        if (status == MICA_OK)
            status = bench_host_row(t, host, s->graph->line, mode, rows[made], time_extents, &e);
        mica_context_cache_limit(s->context, CACHE);
        mica_graph_dynamic_destroy(e.dynamic);
    }
    return status;
}

/* ---- memory ---- */

static mica_status zeroed(mica_context *context, int64_t bytes, void **memory)
{
    mica_status status = mica_malloc(context, bytes, memory);
    return status == MICA_OK ? mica_memset(context, *memory, 0, bytes, NULL) : status;
}

static mica_status place_tensors(subject *s)
{
    mica_graph_tensor_info info;
    while (mica_graph_plan_tensor(s->plan, s->tensor_count, &info) == MICA_OK) s->tensor_count++;
    s->memory = cli_alloc(((size_t)s->tensor_count + 1) * sizeof *s->memory);
    s->tensors = cli_alloc(((size_t)s->tensor_count + 1) * sizeof *s->tensors);
    for (int i = 0; i < s->tensor_count; i++) s->memory[i] = NULL;
    for (int i = 0; i < s->tensor_count; i++) {
        int64_t first, span;
        mica_graph_plan_tensor(s->plan, i, &info);
        span = mica_tensor_span(&info.tensor, &first);
        const mica_status status = zeroed(s->context, span, &s->memory[i]);
        if (status != MICA_OK) return status;
        s->tensors[i] = (char *)s->memory[i] - first;
    }
    const size_t bytes = mica_graph_plan_workspace(s->plan);
    return bytes ? zeroed(s->context, (int64_t)bytes, &s->workspace) : MICA_OK;
}

/* Pointers that a step's run has inside the graph's. Workspaces of steps are in the graph's; here
 * each begins where that does, for the time is the same. */
static void bind_steps(subject *s)
{
    mica_graph_step step;
    while (mica_graph_plan_step(s->plan, s->step_count, &step) == MICA_OK) s->step_count++;
    s->plans = cli_alloc(((size_t)s->step_count + 1) * sizeof *s->plans);
    s->runs = cli_alloc(((size_t)s->step_count + 1) * sizeof *s->runs);
    for (int k = 0; k < s->step_count; k++) {
        mica_graph_plan_step(s->plan, k, &step);
        s->plans[k] = step.plan;
        s->runs[k] = (mica_run){.workspace = s->workspace};
        for (int b = 0; b < step.binds; b++) {
            mica_graph_tensor_info info;
            int64_t offset;
            int arg;
            mica_graph_plan_bound(s->plan, k, b, &arg, &info, &offset);
            const bool own = info.kind == MICA_GRAPH_VIRTUAL;
            const int at = own ? 0 : mica_graph_plan_index(s->plan, info.name);
            char *base = own ? s->workspace : s->tensors[at];
            s->runs[k].args[arg] = base + offset;
        }
    }
}

static void forget(subject *s)
{
    for (int i = 0; s->memory && i < s->tensor_count; i++) mica_free(s->context, s->memory[i]);
    mica_free(s->context, s->workspace);
    free(s->memory);
    free(s->tensors);
    free(s->plans);
    free(s->runs);
    mica_graph_plan_destroy(s->plan);
}

/* ---- rows ---- */

/* Their launches by themselves: constants lie where only the plan knows. */
static bool has_constants(const subject *s)
{
    mica_graph_memory memory;
    return mica_graph_plan_memory(s->plan, &memory) == MICA_OK && memory.constants;
}

static mica_status measure_runs(const bench_host *host, subject *s, const char *mode, cli_table *t)
{
    const char *line = s->graph->line;
    mica_status status = place_tensors(s);
    if (status == MICA_OK)
        status = bench_host_row(t, host, line, mode, "run of a graph", time_runs, s);
    if (status != MICA_OK || has_constants(s)) return status;
    bind_steps(s);
    return bench_host_row(t, host, line, mode, "its launches by themselves", time_launches, s);
}

static mica_status measure_plans(const bench_host *host, subject *s, const char *mode, cli_table *t)
{
    const char *line = s->graph->line;
    mica_status status = bench_host_row(t, host, line, mode, "graph plan found", time_plans, s);
    mica_graph_cache_limit(s->context, 0);
    if (status == MICA_OK)
        status =
            bench_host_row(t, host, line, mode, "graph planned, its plans found", time_plans, s);
    mica_context_cache_limit(s->context, 0);
    if (status == MICA_OK) /* kernels stay: the plan that is held has them */
        status = bench_host_row(t, host, line, mode, "graph planned, kernels warm", time_plans, s);
    mica_context_cache_limit(s->context, CACHE);
    mica_graph_cache_limit(s->context, CACHE);
    return status;
}

mica_status graph_overhead(const bench_host *host, const cli_graph *g, struct cli_table *t)
{
    const mica_options nodes = {.engine = host->engine, .nondeterministic = host->engine != NULL};
    subject s = {
        .context = host->context, .graph = g, .options = cli_graph_options(g, g->mode, &nodes)};
    mica_status status = mica_graph_plan_create(s.context, g->graph, &s.options, &s.plan);
    if (status == MICA_OK) status = measure_runs(host, &s, cli_graph_modes[g->mode], t);
    if (status == MICA_OK) status = measure_plans(host, &s, cli_graph_modes[g->mode], t);
    if (status == MICA_OK && g->open)
        status = measure_extents(host, &s, cli_graph_modes[g->mode], t);
    forget(&s);
    return status;
}
