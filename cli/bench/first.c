/* SPDX-License-Identifier: Apache-2.0
 * `mica bench --first`: what the first call of a process costs, from the context to the result.
 * Each line is planned and run twice; what one line warms the next one finds warm, so only the
 * first line of a process shows a fresh one. */
#include "bench/bench.h"
#include "json.h"
#include "bench/table.h"

#include <string.h>

typedef struct first_times {
    double context_ms, plan_ms, run_ms, again_plan_ms, again_run_ms;
    const char *kernels; /* where the plan's first kernel came from; "-": it has none of ours */
} first_times;

typedef struct subject {
    const bench_host *first;
    mica_problem *problem;
    mica_plan *plan, *again;
    mica_run run;
    void *memory[MICA_MAX_ARGS + 1]; /* the last one: workspace */
} subject;

static double since(double start)
{
    return 1e3 * (cli_seconds() - start);
}

static mica_status bind(subject *s)
{
    mica_context *c = s->first->context;
    mica_arg_info info;
    mica_status status = MICA_OK;
    s->run.scalars = mica_problem_scalars(s->problem);
    for (int i = 0; status == MICA_OK && mica_problem_arg(s->problem, i, &info) == MICA_OK; i++) {
        if (info.dir == MICA_UNUSED) continue;
        int64_t first, span = mica_tensor_span(&info.tensor, &first);
        status = mica_malloc(c, span, &s->memory[i]);
        if (status == MICA_OK) status = mica_memset(c, s->memory[i], 0, span, NULL);
        s->run.args[i] = (char *)s->memory[i] - first;
    }
    return status == MICA_OK ? mica_synchronize(c, NULL) : status;
}

static mica_status bind_workspace(subject *s)
{
    mica_context *c = s->first->context;
    size_t bytes = mica_plan_workspace(s->plan);
    mica_status status = MICA_OK;
    if (bytes) status = mica_malloc(c, (int64_t)bytes, &s->memory[MICA_MAX_ARGS]);
    s->run.workspace = s->memory[MICA_MAX_ARGS];
    return status == MICA_OK ? mica_synchronize(c, NULL) : status;
}

static mica_status time_plan(const subject *s, mica_plan **plan, double *ms)
{
    const mica_options o = {.engine = s->first->engine,
                            .nondeterministic = s->first->engine != NULL};
    double start = cli_seconds();
    mica_status status = mica_plan_problem(s->first->context, s->problem, &o, plan);
    *ms = since(start);
    return status;
}

static mica_status time_run(const subject *s, double *ms)
{
    double start = cli_seconds();
    mica_status status = mica_plan_run(s->plan, &s->run);
    if (status == MICA_OK) status = mica_synchronize(s->first->context, NULL);
    *ms = since(start);
    return status;
}

static mica_status time_subject(subject *s, first_times *t)
{
    mica_kernel_info kernel;
    mica_status status = bind(s);
    if (status == MICA_OK) status = time_plan(s, &s->plan, &t->plan_ms);
    if (status == MICA_OK) status = bind_workspace(s);
    if (status == MICA_OK) status = time_run(s, &t->run_ms);
    if (status == MICA_OK) status = time_plan(s, &s->again, &t->again_plan_ms);
    if (status == MICA_OK) status = time_run(s, &t->again_run_ms);
    t->kernels = "-";
    if (status == MICA_OK && mica_plan_kernel(s->plan, 0, &kernel) == MICA_OK)
        t->kernels = kernel.origin;
    return status;
}

static void print(const bench_host *f, const char *line, const subject *s, const first_times *t)
{
    const char *engine = mica_plan_engine(s->plan);
    printf("%10.2f %10.2f %10.3f %10.4f %10.3f  %-9s %-16s %s\n", t->context_ms, t->plan_ms,
           t->run_ms, t->again_plan_ms, t->again_run_ms, t->kernels, engine, line);
    fflush(stdout);
    if (!f->json) return;
    cli_json_line(f->json,
                  json_pack("{ss ss ss so so so so so ss ss ss}", "set", f->set, "line", line,
                            "engine", engine, "context_ms", cli_json_number(t->context_ms),
                            "plan_ms", cli_json_number(t->plan_ms), "first_run_ms",
                            cli_json_number(t->run_ms), "again_plan_ms",
                            cli_json_number(t->again_plan_ms), "again_run_ms",
                            cli_json_number(t->again_run_ms), "kernels", t->kernels, "commit",
                            f->commit, "device", f->device));
}

static mica_status one_line(const bench_host *f, const char *line, double context_ms)
{
    subject s = {.first = f};
    first_times t = {.context_ms = context_ms};
    mica_status status = mica_problem_from_text(line, &s.problem);
    if (status == MICA_OK) status = time_subject(&s, &t);
    if (status == MICA_OK) print(f, line, &s, &t);
    for (int i = 0; i <= MICA_MAX_ARGS; i++) mica_free(f->context, s.memory[i]);
    mica_plan_destroy(s.again);
    mica_plan_destroy(s.plan);
    if (s.problem) mica_problem_destroy(s.problem);
    return status;
}

int bench_first_calls(const bench_host *f, char *const *lines, size_t count)
{
    int code = count ? CLI_OK : CLI_USAGE;
    if (!count) cli_say("no problem line was given");
    printf("%10s %10s %10s %10s %10s  %-9s %-16s %s\n", "context ms", "plan ms", "run ms",
           "plan again", "run again", "kernels", "engine", "line");
    for (size_t i = 0; i < count && !cli_stopped(); i++) {
        mica_status status = one_line(f, lines[i], f->context_ms);
        if (status == MICA_OK) continue;
        cli_say("%s: %s: %s", lines[i], mica_status_name(status), mica_error());
        code = cli_worse(code, cli_exit_code(status));
    }
    return code;
}
