/* SPDX-License-Identifier: Apache-2.0
 * `mica bench --overhead`: what the host pays for planning and launching. */
#include "bench.h"
#include "stats.h"
#include "table.h"

#include <stdlib.h>

enum { ROUNDS = 31, RUNS = 200 };

typedef struct subject {
    mica_context *context;
    const mica_problem *problem;
    const char *line;
    mica_plan *plan;
    mica_run run;
} subject;

static mica_status time_runs(subject *s)
{
    for (int i = 0; i < RUNS; i++) {
        mica_status status = mica_plan_run(s->plan, &s->run);
        if (status != MICA_OK) return status;
    }
    return MICA_OK;
}

static mica_status time_plans(subject *s)
{
    for (int i = 0; i < RUNS; i++) {
        mica_plan *plan;
        mica_status status = mica_plan_problem(s->context, s->problem, NULL, &plan);
        if (status != MICA_OK) return status;
        mica_plan_destroy(plan);
    }
    return MICA_OK;
}

static mica_status time_texts(subject *s)
{
    for (int i = 0; i < RUNS; i++) {
        mica_plan *plan;
        mica_status status = mica_plan_from_text(s->context, s->line, NULL, &plan);
        if (status != MICA_OK) return status;
        mica_plan_destroy(plan);
    }
    return MICA_OK;
}

static mica_status measure(cli_table *t, subject *s, const char *what, mica_status (*f)(subject *))
{
    double ns[ROUNDS];
    for (int r = 0; r < ROUNDS; r++) {
        double start = cli_seconds();
        mica_status status = f(s);
        ns[r] = (cli_seconds() - start) * 1e9 / RUNS;
        /* Outside the clock: the queue must not fill up. */
        if (status == MICA_OK) status = mica_synchronize(s->context, NULL);
        if (status != MICA_OK) return status;
    }
    cli_sort(ns, ROUNDS);
    cli_cell(t, "%.0f", cli_quantile(ns, ROUNDS, 0.5));
    cli_cell(t, "%.0f", cli_quantile(ns, ROUNDS, 0.1));
    cli_cell(t, "%.0f", cli_quantile(ns, ROUNDS, 0.9));
    cli_cell(t, "%s", what);
    cli_cell(t, "%s", s->plan ? mica_plan_engine(s->plan) : "");
    cli_cell(t, "%s", s->line);
    return MICA_OK;
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

static mica_status measure_line(mica_context *context, const char *line, cli_table *t)
{
    void *memory[MICA_MAX_ARGS + 1] = {0};
    mica_problem *problem = NULL;
    subject s = {.context = context, .line = line};
    mica_status status = mica_problem_from_text(line, &problem);
    s.problem = problem;
    if (status == MICA_OK) status = mica_plan_problem(context, problem, NULL, &s.plan);
    if (status == MICA_OK) s.run.scalars = mica_problem_scalars(problem);
    if (status == MICA_OK) status = bind(&s, memory);
    if (status == MICA_OK) status = measure(t, &s, "run: host time of a launch", time_runs);
    if (status == MICA_OK) status = measure(t, &s, "plan: cache hit, from a struct", time_plans);
    if (status == MICA_OK) status = measure(t, &s, "plan: cache hit, from a line", time_texts);
    for (int i = 0; i <= MICA_MAX_ARGS; i++) mica_free(context, memory[i]);
    mica_plan_destroy(s.plan);
    if (problem) mica_problem_destroy(problem);
    return status;
}

int bench_overhead(mica_context *context, char *const *lines, size_t count)
{
    static char tiny[] = "activation act=relu x=f32:8";
    char *const usual[] = {tiny};
    int code = CLI_OK;
    cli_table t;
    if (!count) {
        lines = usual;
        count = 1;
    }
    cli_table_begin(&t, ">median ns|>p10|>p90|what|engine|line");
    for (size_t i = 0; i < count && !cli_stopped(); i++) {
        mica_status status = measure_line(context, lines[i], &t);
        if (status == MICA_OK) continue;
        cli_say("%s: %s", lines[i], mica_error());
        code = cli_worse(code, cli_exit_code(status));
    }
    if (t.cells % (size_t)t.columns == 0) cli_table_print(&t, stdout);
    cli_table_end(&t);
    return code;
}
