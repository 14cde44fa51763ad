/* SPDX-License-Identifier: Apache-2.0
 * `mica tune`: measures engines and configs and appends the choices to a record file. */
#include "bench.h"
#include "lines.h"
#include "stats.h"
#include "table.h"

#include <stdlib.h>
#include <string.h>

typedef struct tune {
    cli_options options;
    const char *output;
    int budget_ms;
    mica_context *context;
    mica_device_info device;
    cli_lines lines;
    cli_progress progress;
    cli_table table;
    int code;
} tune;

enum { KEY_BUDGET = 0x100 };
static const struct argp_option options[] = {
    {"output", 'o', "FILE", 0, "record file to append to; default: that of MICA_RECORDS", 0},
    {"budget", KEY_BUDGET, "MS", 0, "time to measure one problem; default 2000", 0},
    {0}};
static const char doc[] =
    "Times the engines and configs that the cost model puts first and appends the choice of each "
    "problem to a record file. What a file named by MICA_RECORDS holds already is not measured "
    "again."
    "\vExamples:\n"
    "  mica tune --output mine.records conv x=bf16:256x64x56x56:nhwc w=bf16:64x64x3x3:nhwc "
    "pad=1x1\n"
    "  MICA_RECORDS=mine.records ./program\n";

static error_t parse(int key, char *arg, struct argp_state *state)
{
    tune *t = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &t->options;
        return 0;
    case 'o':
        t->output = arg;
        return 0;
    case KEY_BUDGET:
        t->budget_ms = (int)cli_number(state, "--budget", arg, 1);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const char *records_variable(void)
{
    const char *name, *value, *effect;
    for (int i = 0; mica_env_info(i, &name, &value, &effect) == MICA_OK; i++)
        if (!strcmp(name, "MICA_RECORDS")) return value;
    return NULL;
}

/* Both plans in turns, so that the times can be compared. */
static void add_row(tune *t, const mica_problem *problem, const cli_line *line, mica_plan *before,
                    mica_plan *after)
{
    bench_entry entries[2] = {{.plan = before}, {.plan = after}};
    const bench_limits limits = {.seconds = 0.1, .least = 10};
    double ms[2] = {0, 0};
    if (bench_time(t->context, &t->device, problem, entries, 2, &limits) != MICA_OK) return;
    for (int i = 0; i < 2; i++) {
        if (entries[i].count) ms[i] = cli_median(entries[i].samples, entries[i].count);
        free(entries[i].samples);
    }
    bool same = !strcmp(mica_plan_engine(before), mica_plan_engine(after)) &&
                !strcmp(mica_plan_config(before), mica_plan_config(after));
    cli_cell(&t->table, "%.5f", ms[0]);
    cli_cell(&t->table, "%s %s", mica_plan_engine(before), mica_plan_config(before));
    cli_cell(&t->table, "%.5f", same ? ms[0] : ms[1]);
    cli_cell(&t->table, "%s %s", same ? "kept" : mica_plan_engine(after),
             same ? "" : mica_plan_config(after));
    cli_cell(&t->table, "%s", line->text);
}

static void tune_line(tune *t, const cli_line *line)
{
    mica_problem *problem = cli_line_problem(&t->lines, line);
    if (!problem) return;
    mica_plan *before = NULL, *after = NULL;
    mica_options o = {
        .mode = MICA_MODE_MEASURE, .measure_ms = t->budget_ms, .packed = line->packed};
    mica_options plain = {.packed = line->packed};
    mica_status status = mica_plan_problem(t->context, problem, &plain, &before);
    if (status == MICA_OK) status = mica_plan_problem(t->context, problem, &o, &after);
    /* After each problem, so that an interruption loses nothing. */
    if (status == MICA_OK) status = mica_context_save_records(t->context, t->output);
    if (status == MICA_OK) {
        add_row(t, problem, line, before, after);
    } else {
        cli_progress_clear(&t->progress);
        cli_say("%s: %s", line->text, mica_error());
        t->code = cli_worse(t->code, cli_exit_code(status));
    }
    mica_plan_destroy(before);
    mica_plan_destroy(after);
    mica_problem_destroy(problem);
}

static int run_all(tune *t)
{
    if (!t->output) t->output = records_variable();
    if (!t->output) cli_say("--output FILE is needed");
    if (t->device.offline)
        cli_say("%s is only imagined: nothing can be timed there", t->device.name);
    if (!t->output || t->device.offline) return CLI_USAGE;
    cli_table_begin(&t->table, ">before ms|by the model|>after ms|measured|line");
    cli_progress_begin(&t->progress, t->lines.count, t->options.quiet);
    for (size_t i = 0; i < t->lines.count && !cli_stopped() && t->code != CLI_DEVICE_LOST; i++) {
        cli_progress_step(&t->progress, i, t->lines.items[i].text);
        tune_line(t, &t->lines.items[i]);
    }
    cli_progress_clear(&t->progress);
    if (!t->options.quiet) cli_table_print(&t->table, stdout);
    cli_table_end(&t->table);
    if (t->lines.errors || !t->lines.count) t->code = cli_worse(t->code, CLI_USAGE);
    return t->code;
}

int cmd_tune(int argc, char **argv)
{
    tune t = {.budget_ms = 2000};
    cli_parse(argc, argv, "tune", options, parse, "[FILE...] [PROBLEM LINE]", doc, &t);
    int code = cli_context(&t.options, &t.context, &t.device);
    if (code == CLI_OK) {
        cli_lines_read(&t.lines, t.options.args, t.options.arg_count);
        code = run_all(&t);
        cli_lines_free(&t.lines);
        mica_context_destroy(t.context);
    }
    cli_options_free(&t.options);
    return code;
}
