/* SPDX-License-Identifier: Apache-2.0
 * `mica explain`: why which engine runs a problem, and what it needs. */
#include "explain.h"
#include "bench/bench.h"
#include "json.h"
#include "bench/stats.h"
#include "bench/table.h"
#include "graph/graphs.h"

#include <stdlib.h>
#include <string.h>

enum {
    KEY_MEASURE = 0x100,
    KEY_SOURCE,
    KEY_CONFIG,
    KEY_NO_WORKSPACE,
    KEY_WORKSPACE,
    KEY_NONDETERMINISTIC,
    KEY_PROMPT,
    KEY_PACKED,
    KEY_PLOT
};

static const struct argp_option options[] = {
    {"engine", 'e', "NAME", 0, "explain this engine instead of the planner's choice", 0},
    {"config", KEY_CONFIG, "TEXT", 0, "and this config of it", 0},
    {"no-workspace", KEY_NO_WORKSPACE, NULL, 0, "plan without workspace", 0},
    {"workspace", KEY_WORKSPACE, "BYTES", 0, "plan with at most so much workspace", 0},
    {"nondeterministic", KEY_NONDETERMINISTIC, NULL, 0,
     "allow engines whose bits vary between runs; default: only with --engine", 0},
    {"prompt", KEY_PROMPT, NULL, 0,
     "plan without waiting for the compiler: what stands in until it is done; implies "
     "--nondeterministic",
     0},
    {"packed", KEY_PACKED, "LIST", 0, "runs get these inputs packed; all: every input", 0},
    {"plot", KEY_PLOT, "FILE", 0, "draw the graph: a box for each launch, as SVG", 0},
    {"measure", KEY_MEASURE, NULL, 0, "time the engines too", 0},
    {"source", KEY_SOURCE, NULL, 0, "show what is put in front of each kernel's source", 0},
    {0}};

static const char doc[] =
    "Shows each engine's verdict on a problem under the options given, the choice, its config, "
    "times, workspace, kernels "
    "and numeric contract. Works for devices that are not there. With --json one object for each "
    "problem instead of the text."
    "\vA file that ends in .graph is a graph, and so is `graph file=PATH mode=unfused\n"
    "without=NAME,...': its launches, rewrites and memory are shown.\n\nExamples:\n"
    "  mica explain net.graph\n"
    "  mica explain --plot net.svg net.graph\n"
    "  mica explain softmax x=f32:128x1000 axis=1\n"
    "  mica explain --device sm_90a --source gemm a=bf16:4096x4096 b=bf16:4096x4096\n"
    "  mica explain --json - model.txt | jq '.choice.engine'\n";

static error_t parse(int key, char *arg, struct argp_state *state)
{
    explain *e = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &e->options;
        return 0;
    case 'e':
        e->engine = arg;
        return 0;
    case KEY_PLOT:
        e->plot = arg;
        return 0;
    case KEY_CONFIG:
        e->config = arg;
        return 0;
    case KEY_NO_WORKSPACE:
        e->workspace = MICA_NO_WORKSPACE;
        return 0;
    case KEY_WORKSPACE:
        e->workspace = (int64_t)cli_number(state, "--workspace", arg, 1);
        return 0;
    case KEY_NONDETERMINISTIC:
        e->nondeterministic = true;
        return 0;
    case KEY_PROMPT:
        e->prompt = e->nondeterministic = true;
        return 0;
    case KEY_MEASURE:
        e->measure = true;
        return 0;
    case KEY_PACKED:
        e->packed = arg;
        return 0;
    case KEY_SOURCE:
        e->source = true;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void heading(const char *text)
{
    printf("\n%s%s%s\n", cli_style(stdout, "bold"), text, cli_style(stdout, "off"));
}

/* ---- the problem ---- */

const char *explain_direction(mica_dir dir)
{
    static const char *const names[] = {"unused", "in", "out", "inout"};
    return names[dir];
}

static void show_arguments(const mica_problem *problem)
{
    cli_table t;
    mica_arg_info a;
    heading("arguments");
    cli_table_begin(&t, "  name|direction|tensor|>bytes|");
    for (int i = 0; mica_problem_arg(problem, i, &a) == MICA_OK; i++) {
        char tensor[256];
        if (a.dir == MICA_UNUSED) continue;
        mica_tensor_text(&a.tensor, tensor, sizeof tensor);
        cli_cell(&t, "  %s", a.name);
        cli_cell(&t, "%s", explain_direction(a.dir));
        cli_cell(&t, "%s", tensor);
        cli_cell(&t, "%lld", (long long)mica_tensor_span(&a.tensor, NULL));
        cli_cell(&t, "%s", a.optional ? "optional" : "");
    }
    cli_table_print(&t, stdout);
    cli_table_end(&t);
}

static void show_cost(const explain *e, const mica_problem *problem)
{
    double flops, bytes, roof = mica_problem_roofline(e->context, problem);
    mica_problem_cost(problem, &flops, &bytes);
    heading("cost");
    printf("  %.6g flop, %.6g bytes at least, %.3g flop per byte\n", flops, bytes,
           bytes > 0 ? flops / bytes : 0);
    printf("  roofline %.5g ms on %s (%s): %.4g GB/s, %.4g TFLOP/s f32, %.4g 16-bit\n", roof,
           e->device.name, e->device.model, e->device.copy_gbps, e->device.f32_tflops,
           e->device.bf16_tflops);
}

/* ---- engines ---- */

bool explain_verdict(const explain *e, const mica_problem *problem, int index, mica_verdict *v)
{
    return mica_problem_verdict_with(e->context, problem, &e->plan, index, v) == MICA_OK;
}

const char *explain_config(const mica_verdict *v, const mica_plan *plan)
{
    return plan && !strcmp(v->engine, mica_plan_engine(plan)) ? mica_plan_config(plan) : v->config;
}

double explain_measured(const explain *e, const mica_problem *problem, const mica_verdict *v,
                        const mica_plan *plan)
{
    bench_entry entry = {0};
    const bench_limits limits = {.seconds = 0.2, .least = 5};
    const char *config = explain_config(v, plan);
    mica_options o = e->plan;
    o.engine = v->engine;
    o.config = *config ? config : NULL;
    double ms = -1;
    if (v->status != MICA_OK || !e->measure || e->device.offline) return ms;
    if (mica_plan_problem(e->context, problem, &o, &entry.plan) != MICA_OK) return ms;
    if (bench_time(e->context, &e->device, problem, &entry, 1, &limits) == MICA_OK && entry.count)
        ms = cli_median(entry.samples, entry.count);
    free(entry.samples);
    mica_plan_destroy(entry.plan);
    return ms;
}

static void engine_row(const explain *e, const mica_problem *problem, const mica_verdict *v,
                       const mica_plan *plan, cli_table *t)
{
    bool takes = v->status == MICA_OK, chosen = plan && !strcmp(v->engine, mica_plan_engine(plan));
    double ms = explain_measured(e, problem, v, plan);
    cli_cell(t, "%s %s", chosen ? "*" : " ", v->engine);
    cli_cell(t, takes ? "%.5g" : "-", chosen ? mica_plan_predicted(plan) : v->predicted_ms);
    cli_cell(t, ms >= 0 ? "%.5g" : "-", ms);
    cli_cell(t, "%s", takes ? explain_config(v, plan) : v->reason);
    cli_cell(t, "%s%s%s", v->reference ? "reference " : "", v->by_name ? "by name " : "",
             v->deterministic ? "" : "bits vary");
}

static void show_engines(const explain *e, const mica_problem *problem, const mica_plan *plan)
{
    cli_table t;
    mica_verdict v;
    heading("engines (* is the choice)");
    cli_table_begin(&t, "  engine|>predicted ms|>measured ms|config, or why not|");
    for (int i = 0; explain_verdict(e, problem, i, &v); i++) engine_row(e, problem, &v, plan, &t);
    cli_table_print(&t, stdout);
    cli_table_end(&t);
}

/* ---- the plan ---- */

static void show_workspace(const mica_plan *plan)
{
    const char *name;
    size_t offset, bytes;
    heading("workspace");
    printf("  %zu bytes\n", mica_plan_workspace(plan));
    for (int i = 0; mica_plan_booking(plan, i, &name, &offset, &bytes) == MICA_OK; i++)
        printf("  %12zu .. %-12zu %s\n", offset, offset + bytes, name);
}

static void show_packed(const mica_problem *problem, const mica_plan *plan)
{
    mica_arg_info a;
    for (int i = 0, n = 0; mica_problem_arg(problem, i, &a) == MICA_OK; i++) {
        size_t bytes = mica_plan_packed_bytes(plan, i);
        if (!bytes) continue;
        if (!n++) heading("packed");
        printf("  %s: %zu bytes\n", a.name, bytes);
    }
}

static void show_kernels(const explain *e, const mica_plan *plan)
{
    mica_kernel_info k;
    for (int i = 0; mica_plan_kernel(plan, i, &k) == MICA_OK; i++) {
        if (i == 0) heading("kernels");
        printf("  %s %s: %d registers, %d bytes of spills, %d of local, %lld of shared memory, "
               "cubin %lld bytes, from %s",
               k.file, k.entry, k.registers, k.spill_bytes, k.local_bytes,
               (long long)k.shared_bytes, (long long)k.cubin_bytes, k.origin);
        printf(k.compile_ms > 0 ? ", compiled in %.0f ms\n" : "\n", k.compile_ms);
        if (e->source) printf("%s\n", k.prologue);
    }
}

static void show_contract(const mica_plan *plan)
{
    mica_contract c;
    double phi;
    if (mica_plan_contract(plan, &c, &phi) != MICA_OK) return;
    heading("numeric contract");
    printf("  accumulator's unit roundoff %.4g, %s; %lld sequential and %s; "
           "%s per instruction; functions within %g ulp%s\n",
           c.unit, c.truncates ? "truncating" : "round to nearest", (long long)c.n_seq,
           cli_count(c.n_outer, "merging addition"), cli_count(c.k_inst, "product"), c.ulps,
           c.flushes ? "; subnormals count as zero" : "");
    if (c.spreads) puts("  an infinity or NaN may reach results that do not depend on it");
    if (c.hides_nan) puts("  relu gives 0 for NaN");
    if (c.amplify > 0)
        printf("  results share their errors, and infinities and NaN: %g times phi times the "
               "largest magnitude sum of such inputs\n",
               c.amplify);
    printf("  phi = %.4g: an element's tolerance is its type's rounding plus phi times its "
           "magnitude sum\n",
           phi);
}

static void show(const explain *e, const mica_problem *problem, const mica_plan *plan)
{
    char *text = cli_line_text(problem, e->plan.packed);
    printf("%s\n", text);
    free(text);
    show_arguments(problem);
    show_cost(e, problem);
    show_engines(e, problem, plan);
    if (!plan) return;
    heading("choice");
    const char *config = mica_plan_config(plan);
    printf("  %s%s%s, predicted %.5g ms", mica_plan_engine(plan), *config ? " " : "", config,
           mica_plan_predicted(plan));
    if (mica_plan_measured(plan) > 0)
        printf("; from a record, which says %.5g ms", mica_plan_measured(plan));
    printf("\n");
    if (*mica_plan_pending(plan)) printf("  %s\n", mica_plan_pending(plan));
    show_workspace(plan);
    show_packed(problem, plan);
    show_kernels(e, plan);
    show_contract(plan);
}

/* Of the engine that was asked for. */
static void report_refusal(const explain *e, const mica_problem *problem)
{
    char *why = e->engine ? cli_engine_refusal(e->context, problem, e->engine) : NULL;
    if (why) cli_say("--engine %s: %s", e->engine, why);
    free(why);
}

static void explain_line(explain *e, const cli_line *line)
{
    mica_problem *problem = cli_line_problem(&e->lines, line);
    if (!problem) return;
    e->plan = (mica_options){.engine = e->engine,
                             .config = e->config,
                             .workspace_limit = e->workspace,
                             .nondeterministic = e->nondeterministic || e->engine != NULL,
                             .packed = cli_line_packed(line, problem, e->packed),
                             .prompt = e->prompt};
    mica_plan *plan;
    mica_status status = mica_plan_problem(e->context, problem, &e->plan, &plan);
    if (status != MICA_OK) {
        cli_say("no plan: %s", mica_error());
        report_refusal(e, problem);
        e->code = cli_worse(e->code, cli_exit_code(status));
    }
    if (e->json)
        cli_json_line(e->json, explain_object(e, problem, plan));
    else
        show(e, problem, plan);
    mica_plan_destroy(plan);
    mica_problem_destroy(problem);
}

static void explain_graphs(explain *e)
{
    cli_graphs graphs;
    const mica_options nodes = {.engine = e->engine,
                                .workspace_limit = e->workspace,
                                .nondeterministic = e->nondeterministic || e->engine != NULL};
    cli_graphs_take(&graphs, &e->options);
    e->graphs = graphs.count + graphs.errors;
    e->code = cli_worse(e->code, cli_graphs_explain(&graphs, e->context, &nodes, e->json, e->plot));
    if (graphs.errors) e->code = cli_worse(e->code, CLI_USAGE);
    cli_graphs_free(&graphs);
}

static void explain_all(explain *e)
{
    explain_graphs(e);
    if (e->graphs && !e->options.arg_count) return;
    cli_lines_read(&e->lines, e->options.args, e->options.arg_count);
    if (!cli_engines_known("--engine", e->engine, &e->lines)) {
        e->code = CLI_USAGE;
        cli_lines_free(&e->lines);
        return;
    }
    for (size_t i = 0; i < e->lines.count && !cli_stopped(); i++) {
        if (i && !e->json) printf("\n");
        explain_line(e, &e->lines.items[i]);
    }
    if (!e->lines.count && !e->lines.errors) cli_say("no problem line was given");
    if (!e->lines.count || e->lines.errors) e->code = cli_worse(e->code, CLI_USAGE);
    if (cli_stopped()) e->code = cli_worse(e->code, CLI_MISMATCH);
    cli_lines_free(&e->lines);
}

int cmd_explain(int argc, char **argv)
{
    explain e = {0};
    cli_parse(argc, argv, "explain", options, parse, "[FILE...] [PROBLEM LINE]", doc, &e);
    e.code = cli_context(&e.options, &e.context, &e.device);
    if (e.code == CLI_OK) {
        if (e.measure && e.device.offline)
            cli_say(
                "--measure and --device %s exclude each other: nothing runs on an offline device",
                e.device.name);
        if ((e.measure && e.device.offline) ||
            (e.options.json && !(e.json = cli_json_open(e.options.json))))
            e.code = CLI_USAGE;
        else
            explain_all(&e);
        cli_json_close(e.json);
        mica_context_destroy(e.context);
    }
    cli_options_free(&e.options);
    return e.code;
}
