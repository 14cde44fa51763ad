/* SPDX-License-Identifier: Apache-2.0
 * `mica bench --overhead`: what the host pays for planning and launching. */
#include "bench/bench.h"
#include "json.h"
#include "bench/stats.h"
#include "bench/table.h"
#include "graph/graph_bench.h"

#include <stdlib.h>

enum { ROUNDS = 31, RUNS = 200 };

typedef struct subject {
    const bench_host *host;
    mica_context *context;
    mica_options options;
    const mica_problem *problem;
    const char *line;
    mica_plan *plan;
    mica_run run;
} subject;

static mica_status time_runs(void *user, int count)
{
    subject *s = user;
    for (int i = 0; i < count; i++) {
        mica_status status = mica_plan_run(s->plan, &s->run);
        if (status != MICA_OK) return status;
    }
    return MICA_OK;
}

static mica_status time_plans(void *user, int count)
{
    subject *s = user;
    for (int i = 0; i < count; i++) {
        mica_plan *plan;
        mica_status status = mica_plan_problem(s->context, s->problem, &s->options, &plan);
        if (status != MICA_OK) return status;
        mica_plan_destroy(plan);
    }
    return MICA_OK;
}

static mica_status time_texts(void *user, int count)
{
    subject *s = user;
    for (int i = 0; i < count; i++) {
        mica_plan *plan;
        mica_status status = mica_plan_from_text(s->context, s->line, &s->options, &plan);
        if (status != MICA_OK) return status;
        mica_plan_destroy(plan);
    }
    return MICA_OK;
}

static void report(cli_table *t, const bench_host *h, const char *line, const char *engine,
                   const char *what, const double ns[3])
{
    for (int i = 0; i < 3; i++) cli_cell(t, "%.0f", ns[i]);
    cli_cell(t, "%s", what);
    cli_cell(t, "%s", engine);
    cli_cell(t, "%s", line);
    if (!h->json) return;
    cli_json_line(h->json,
                  json_pack("{ss ss ss ss so so so ss ss}", "set", h->set, "line", line, "engine",
                            engine, "what", what, "ns", cli_json_number(ns[0]), "ns_p10",
                            cli_json_number(ns[1]), "ns_p90", cli_json_number(ns[2]), "commit",
                            h->commit, "device", h->device));
}

mica_status bench_host_row(cli_table *t, const bench_host *host, const char *line,
                           const char *engine, const char *what, bench_calls *f, void *user)
{
    double ns[ROUNDS];
    for (int r = 0; r < ROUNDS; r++) {
        double start = cli_seconds();
        mica_status status = f(user, RUNS);
        ns[r] = (cli_seconds() - start) * 1e9 / RUNS;
        /* Outside the clock: the queue must not fill up. */
        if (status == MICA_OK) status = mica_synchronize(host->context, NULL);
        if (status != MICA_OK) return status;
    }
    cli_sort(ns, ROUNDS);
    const double shown[3] = {cli_quantile(ns, ROUNDS, 0.5), cli_quantile(ns, ROUNDS, 0.1),
                             cli_quantile(ns, ROUNDS, 0.9)};
    report(t, host, line, engine, what, shown);
    return MICA_OK;
}

static mica_status measure(cli_table *t, subject *s, const char *what, bench_calls *f)
{
    return bench_host_row(t, s->host, s->line, mica_plan_engine(s->plan), what, f, s);
}

static mica_status bind(subject *s, void **memory)
{
    mica_arg_info info;
    mica_status status = MICA_OK;
    for (int i = 0; status == MICA_OK && mica_problem_arg(s->problem, i, &info) == MICA_OK; i++) {
        if (info.dir == MICA_UNUSED) continue;
        int64_t first, span = mica_tensor_span(&info.tensor, &first);
        status = mica_malloc(s->context, span, &memory[i]);
        if (status == MICA_OK) status = mica_memset(s->context, memory[i], 0, span, NULL);
        s->run.args[i] = (char *)memory[i] - first;
    }
    size_t bytes = mica_plan_workspace(s->plan);
    if (status == MICA_OK && bytes)
        status = mica_malloc(s->context, (int64_t)bytes, &memory[MICA_MAX_ARGS]);
    s->run.workspace = memory[MICA_MAX_ARGS];
    return status;
}

static mica_status measure_line(const bench_host *host, const char *line, cli_table *t)
{
    void *memory[MICA_MAX_ARGS + 1] = {0};
    mica_context *context = host->context;
    mica_problem *problem = NULL;
    subject s = {.host = host,
                 .context = context,
                 .options = {.engine = host->engine, .nondeterministic = host->engine != NULL},
                 .line = line};
    mica_status status = mica_problem_from_text(line, &problem);
    s.problem = problem;
    if (status == MICA_OK) status = mica_plan_problem(context, problem, &s.options, &s.plan);
    if (status == MICA_OK) s.run.scalars = mica_problem_scalars(problem);
    if (status == MICA_OK) status = bind(&s, memory);
    if (status == MICA_OK) status = measure(t, &s, "run", time_runs);
    if (status == MICA_OK) status = measure(t, &s, "plan found, from a struct", time_plans);
    if (status == MICA_OK) status = measure(t, &s, "plan found, from a line", time_texts);
    for (int i = 0; i <= MICA_MAX_ARGS; i++) mica_free(context, memory[i]);
    mica_plan_destroy(s.plan);
    if (problem) mica_problem_destroy(problem);
    return status;
}

int bench_overhead(const bench_host *host, char *const *lines, size_t count,
                   const cli_graphs *graphs)
{
    static char tiny[] = "activation act=relu x=f32:8";
    char *const usual[] = {tiny};
    int code = CLI_OK;
    cli_table t;
    if (!count && !graphs->count) {
        lines = usual;
        count = 1;
    }
    cli_table_begin(&t, ">median ns|>p10|>p90|what|engine|line");
    for (size_t i = 0; i < count && !cli_stopped(); i++) {
        mica_status status = measure_line(host, lines[i], &t);
        if (status == MICA_OK) continue;
        cli_say("%s: %s", lines[i], mica_error());
        code = cli_worse(code, cli_exit_code(status));
    }
    for (int i = 0; i < graphs->count && !cli_stopped(); i++) {
        const mica_status status = graph_overhead(host, &graphs->items[i], &t);
        if (status == MICA_OK) continue;
        cli_say("%s: %s", graphs->items[i].line, mica_error());
        code = cli_worse(code, cli_exit_code(status));
    }
    if (t.cells % (size_t)t.columns == 0) cli_table_print(&t, stdout);
    cli_table_end(&t);
    return code;
}
