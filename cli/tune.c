/* SPDX-License-Identifier: Apache-2.0
 * `mica tune`: measures engines and configs and appends the choices to a record file. */
#include "bench/bench.h"
#include "json.h"
#include "lines.h"
#include "bench/stats.h"
#include "bench/table.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct tune {
    cli_options options;
    const char *output;
    int budget_ms;
    bool fit, keep_disturbed;
    mica_context *context;
    mica_device_info device;
    cli_lines lines;
    cli_progress progress;
    cli_table table;
    FILE *json;
    long compared, near; /* lines; those where the model's choice is as good as the measured one */
    int code;
} tune;

enum { KEY_BUDGET = 0x100, KEY_DISTURBED };
enum { ATTEMPTS = 3 }; /* where something else runs meanwhile */
static const struct argp_option options[] = {
    {"output", 'o', "FILE", 0, "record file to append to; default: that of MICA_RECORDS", 0},
    {"fit", 'f', NULL, 0, "measure the constants of the cost model first and record them", 0},
    {"budget", KEY_BUDGET, "MS", 0, "time to measure one problem; default 2000", 0},
    {"keep-disturbed", KEY_DISTURBED, NULL, 0,
     "keep what was measured while something else ran; default: measure again, then nothing", 0},
    {0}};
static const char doc[] =
    "Times the engines and configs that the cost model puts first and appends the choice of each "
    "problem to a record file. What that file holds already, or the one named by MICA_RECORDS, is "
    "not measured again. A measurement that something else disturbs is made again, up to three "
    "times; "
    "if it stays so, nothing is kept of it and the exit code is 1."
    "\vExamples:\n"
    "  mica tune --output mine.records conv x=bf16:256x64x56x56:nhwc w=bf16:64x64x3x3:nhwc "
    "pad=1x1\n"
    "  mica tune --fit --output mine.records\n"
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
    case 'f':
        t->fit = true;
        return 0;
    case KEY_BUDGET:
        t->budget_ms = (int)cli_number(state, "--budget", arg, 1);
        return 0;
    case KEY_DISTURBED:
        t->keep_disturbed = true;
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

static json_t *choice(const mica_plan *plan, double ms)
{
    return json_pack("{ss ss so}", "engine", mica_plan_engine(plan), "config",
                     mica_plan_config(plan), "ms", cli_json_number(ms));
}

static void write_row(tune *t, const cli_line *line, const mica_plan *before, double before_ms,
                      const mica_plan *after, double after_ms)
{
    if (!t->json) return;
    char *set = cli_line_set(line);
    cli_json_line(t->json, json_pack("{ss ss so so ss ss}", "set", set, "line", line->text, "model",
                                     choice(before, before_ms), "measured", choice(after, after_ms),
                                     "commit", t->options.commit ? t->options.commit : "", "device",
                                     t->device.model));
    free(set);
}

/* Both plans in turns, so that the times can be compared. False: it was interrupted, or failed, or
 * something else disturbed it. */
static bool time_both(tune *t, const mica_problem *problem, mica_plan *before, mica_plan *after,
                      double ms[2])
{
    bench_entry entries[2] = {{.plan = before}, {.plan = after}};
    const bench_limits limits = {.seconds = 0.1, .least = 10};
    bool timed = bench_time(t->context, &t->device, problem, entries, 2, &limits) == MICA_OK;
    for (int i = 0; i < 2; i++) {
        timed = timed && entries[i].count > 0 && (t->keep_disturbed || !*entries[i].disturbed);
        if (timed) ms[i] = cli_median(entries[i].samples, entries[i].count);
        free(entries[i].samples);
    }
    return timed;
}

static void add_row(tune *t, const mica_problem *problem, const cli_line *line, mica_plan *before,
                    mica_plan *after)
{
    double ms[2] = {mica_plan_measured(after), mica_plan_measured(after)};
    bool same = !strcmp(mica_plan_engine(before), mica_plan_engine(after)) &&
                !strcmp(mica_plan_config(before), mica_plan_config(after));
    if (!same && !time_both(t, problem, before, after, ms)) return;
    t->compared++;
    t->near += ms[0] <= 1.05 * ms[1];
    write_row(t, line, before, ms[0], after, ms[1]);
    cli_cell(&t->table, "%.5f", ms[0]);
    cli_cell(&t->table, "%s %s", mica_plan_engine(before), mica_plan_config(before));
    cli_cell(&t->table, "%.5f", ms[1]);
    cli_cell(&t->table, "%s %s", same ? "kept" : mica_plan_engine(after),
             same ? "" : mica_plan_config(after));
    cli_cell(&t->table, "%s", line->text);
}

/* Measured, if need be again; the last plan is the model's choice if that never came to rest. */
static mica_status measure(tune *t, const mica_problem *problem, uint64_t packed, mica_plan **plan)
{
    const mica_options o = {
        .mode = MICA_MODE_MEASURE, .measure_ms = t->budget_ms, .packed = packed};
    mica_status status = mica_plan_problem(t->context, problem, &o, plan);
    for (int i = 1; i < ATTEMPTS && status == MICA_OK && *mica_plan_disturbed(*plan); i++) {
        if (cli_stopped()) break;
        mica_plan_destroy(*plan);
        status = mica_plan_problem(t->context, problem, &o, plan);
    }
    return status;
}

static void report_disturbed(tune *t, const cli_line *line, const mica_plan *plan)
{
    cli_progress_clear(&t->progress);
    cli_say("%s: disturbed %d times, nothing is kept: %s", line->text, ATTEMPTS,
            mica_plan_disturbed(plan));
    t->code = cli_worse(t->code, CLI_MISMATCH);
}

static void tune_line(tune *t, const cli_line *line)
{
    mica_problem *problem = cli_line_problem(&t->lines, line);
    if (!problem) return;
    mica_plan *before = NULL, *after = NULL;
    mica_options model = {.mode = MICA_MODE_MODEL, .packed = line->packed};
    mica_status status = mica_plan_problem(t->context, problem, &model, &before);
    if (status == MICA_OK) status = measure(t, problem, line->packed, &after);
    bool disturbed = status == MICA_OK && *mica_plan_disturbed(after);
    /* After each problem, so that an interruption loses nothing. */
    if (status == MICA_OK && !disturbed) status = mica_context_save_records(t->context, t->output);
    if (disturbed) {
        report_disturbed(t, line, after);
    } else if (status == MICA_OK) {
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

/* What the file holds. A tuning that was interrupted goes on where it was. */
static int load_output(tune *t)
{
    if (access(t->output, F_OK) != 0) return CLI_OK;
    mica_status status = mica_context_load_records(t->context, t->output);
    if (status != MICA_OK) cli_say("%s", mica_error());
    return status == MICA_OK || status == MICA_INVALID ? CLI_OK : cli_exit_code(status);
}

static int fit(tune *t)
{
    const mica_device_info before = t->device;
    mica_status status = mica_context_fit(t->context);
    for (int i = 1; i < ATTEMPTS && status == MICA_DISTURBED && !cli_stopped(); i++)
        status = mica_context_fit(t->context);
    if (status == MICA_OK) status = mica_context_save_records(t->context, t->output);
    if (status != MICA_OK) {
        cli_say("%s%s", status == MICA_DISTURBED ? "constants: disturbed, nothing is kept: " : "",
                mica_error());
        return cli_exit_code(status);
    }
    mica_context_info(t->context, &t->device);
    if (t->options.quiet) return CLI_OK;
    cli_table table;
    cli_table_begin(&table, "constant|>before|>measured");
    const struct {
        const char *name;
        double before, after;
    } rows[] = {{"copy GB/s", before.copy_gbps, t->device.copy_gbps},
                {"f32 TFLOP/s", before.f32_tflops, t->device.f32_tflops},
                {"16-bit TFLOP/s", before.bf16_tflops, t->device.bf16_tflops}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cli_cell(&table, "%s", rows[i].name);
        cli_cell(&table, "%.4g", rows[i].before);
        cli_cell(&table, "%.4g", rows[i].after);
    }
    cli_table_print(&table, stdout);
    cli_table_end(&table);
    return CLI_OK;
}

static int tune_lines(tune *t)
{
    cli_table_begin(&t->table, ">before ms|by the model|>after ms|measured|line");
    cli_progress_begin(&t->progress, t->lines.count, t->options.quiet);
    for (size_t i = 0; i < t->lines.count && !cli_stopped() && t->code != CLI_DEVICE_LOST; i++) {
        cli_progress_step(&t->progress, i, t->lines.items[i].text);
        tune_line(t, &t->lines.items[i]);
    }
    cli_progress_clear(&t->progress);
    if (!t->options.quiet) {
        cli_table_print(&t->table, stdout);
        printf("the model's choice was within 5 %% of the measured one on %ld of %ld lines\n",
               t->near, t->compared);
    }

    cli_table_end(&t->table);
    if (t->lines.errors) t->code = cli_worse(t->code, CLI_USAGE);
    return t->code;
}

static int run_all(tune *t)
{
    if (!t->output) t->output = records_variable();
    if (!t->output) cli_say("--output FILE is needed");
    if (t->device.offline)
        cli_say("%s is an offline device: nothing can be timed there", t->device.name);
    if (!t->lines.count && !t->lines.errors && !t->fit) cli_say("no problem line was given");
    if (!t->output || t->device.offline || (!t->lines.count && !t->fit)) return CLI_USAGE;
    if (!cli_can_write(t->output)) return CLI_USAGE;
    if (t->options.json && !(t->json = cli_json_open(t->options.json))) return CLI_USAGE;
    mica_context_keep_disturbed(t->context, t->keep_disturbed);
    t->code = load_output(t);
    if (t->code == CLI_OK && t->fit) t->code = fit(t);
    if (t->code == CLI_OK && t->lines.count) t->code = tune_lines(t);
    cli_json_close(t->json);
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
