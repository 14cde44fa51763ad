/* SPDX-License-Identifier: Apache-2.0
 * `mica bench`: times problems on every engine. */
#define _GNU_SOURCE
#include "bench/bench.h"
#include "bench/clocks.h"
#include "graph/graph_bench.h"
#include "json.h"
#include "lines.h"
#include "bench/stats.h"
#include "bench/table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct bench {
    cli_options options;
    const char *engines, *plot, *set, *packed;
    bool pick, configs, csv, overhead, first, compare, keep_samples;
    bench_limits limits;

    mica_context *context;
    mica_device_info device;
    cli_lines lines;
    cli_graphs graphs;
    FILE *json;
    cli_progress progress;
    bench_results results;
    bench_roof *roof;
    cli_clocks *clocks;
    int mhz[2];       /* before and after the line at hand */
    double copy_gbps; /* measured beside the line */
    char driver[64];
    double context_ms; /* that making the context took */
    long disturbed;    /* results that were */
    int code;
} bench;

enum { MAX_ENTRIES = 256 };
enum {
    KEY_SECONDS = 0x100,
    KEY_HOT,
    KEY_PLOT,
    KEY_COMPARE,
    KEY_OVERHEAD,
    KEY_FIRST,
    KEY_CSV,
    KEY_SET,
    KEY_SAMPLES,
    KEY_RUNS,
    KEY_PICK,
    KEY_PACKED,
    KEY_CONFIGS
};

static const struct argp_option options[] = {
    {"engine", 'e', "LIST", 0, "only these engines, separated by commas; all: with peers", 0},
    {"pick", KEY_PICK, NULL, 0, "only the planner's choice; with --engine beside those peers", 0},
    {"configs", KEY_CONFIGS, NULL, 0,
     "every config of each engine that the planner may take; with --engine beside those peers", 0},
    {"packed", KEY_PACKED, "LIST", 0, "runs get these inputs packed; all: every input", 0},
    {"seconds", KEY_SECONDS, "S", 0, "measured time per engine; default 0.5", 0},
    {"runs", KEY_RUNS, "N", 0, "least number of runs; default 20", 0},
    {"hot", KEY_HOT, NULL, 0, "let data stay in the cache; default: rotate past twice its size", 0},
    {"csv", KEY_CSV, NULL, 0, "print comma-separated values", 0},
    {"plot", KEY_PLOT, "FILE", 0, "write a roofline and bars as SVG", 0},
    {"set", KEY_SET, "NAME", 0, "name of the set in result lines; default: the case file's", 0},
    {"samples", KEY_SAMPLES, NULL, 0, "keep every time in the JSON, for --compare", 0},
    {"compare", KEY_COMPARE, NULL, 0, "compare two result files: OLD NEW", 0},
    {"overhead", KEY_OVERHEAD, NULL, 0, "host time of planning and launching instead", 0},
    {"first", KEY_FIRST, NULL, 0, "time of this process's first plan and run instead", 0},
    {0}};

static const char doc[] =
    "Times problems on every engine of the device that accepts them: warm-up, engines in turns, "
    "events, cold data, short runs as chains back to back; median, 10th and 90th percentile. A "
    "CPU's roof is a large copy's bandwidth, measured beside each line; a GPU's multiprocessor "
    "clock is read before and after each line "
    "where NVML is there. A file that ends in .graph is a graph, and so is `graph file=PATH "
    "without=NAME,...': it is timed fused and unfused in turns, on data that stays where it is."
    "\vExamples:\n"
    "  mica bench softmax \"x=bf16:{1024,4096}x8192\" axis=1\n"
    "  mica bench --json now.jsonl --plot now.svg bench/cases/conv.txt\n"
    "  mica bench --compare before.jsonl now.jsonl\n"
    "  mica bench --overhead\n"
    "  mica bench --first --engine peer/cudnn conv x=bf16:64x64x56x56:nhwc w=bf16:64x64x3x3:nhwc\n";

static error_t parse(int key, char *arg, struct argp_state *state)
{
    bench *b = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &b->options;
        return 0;
    case 'e':
        b->engines = arg;
        return 0;
    case KEY_PICK:
        b->pick = true;
        return 0;
    case KEY_CONFIGS:
        b->configs = true;
        return 0;
    case KEY_SECONDS:
        b->limits.seconds = cli_number(state, "--seconds", arg, 0);
        return 0;
    case KEY_RUNS:
        b->limits.least = (size_t)cli_number(state, "--runs", arg, 1);
        return 0;
    case KEY_HOT:
        b->limits.hot = true;
        return 0;
    case KEY_CSV:
        b->csv = true;
        return 0;
    case KEY_PLOT:
        b->plot = arg;
        return 0;
    case KEY_SET:
        b->set = arg;
        return 0;
    case KEY_SAMPLES:
        b->keep_samples = true;
        return 0;
    case KEY_COMPARE:
        b->compare = true;
        return 0;
    case KEY_PACKED:
        b->packed = arg;
        return 0;
    case KEY_OVERHEAD:
        b->overhead = true;
        return 0;
    case KEY_FIRST:
        b->first = true;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* ---- entries ---- */

static bool listed(const char *list, const char *name)
{
    size_t length = strlen(name);
    for (const char *s = list; *s;) {
        size_t n = strcspn(s, ",");
        if (n == length && !strncmp(s, name, n)) return true;
        s += n + (s[n] == ',');
    }
    return false;
}

static bool is_wanted(const bench *b, const mica_verdict *v)
{
    if (b->engines && strcmp(b->engines, "all") != 0) return listed(b->engines, v->engine);
    if (mica_verdict_needs_name(v) && !b->engines) return false;
    if (!v->reference || v->predicted_ms <= 4e3 * b->limits.seconds) return true;
    cli_say("%s is left out: about %s a run; --engine %s times it", v->engine,
            cli_duration(v->predicted_ms / 1e3), v->engine);
    return false;
}

static void plan_entry(bench *b, const mica_problem *problem, mica_options o, bench_entry *entry)
{
    o.nondeterministic = o.engine != NULL;
    *entry = (bench_entry){0};
    entry->status = mica_plan_problem(b->context, problem, &o, &entry->plan);
    snprintf(entry->engine, sizeof entry->engine, "%s",
             entry->plan ? mica_plan_engine(entry->plan)
             : o.engine  ? o.engine
                         : "(pick)");
    if (entry->status != MICA_OK)
        snprintf(entry->error, sizeof entry->error, "%s: %s", mica_status_name(entry->status),
                 mica_error());
}

/* Adds each config of an engine, but those that are predicted to take too long beside others. */
static int plan_configs(bench *b, const mica_problem *problem, const mica_verdict *v,
                        uint64_t packed, bench_entry *entries, int count)
{
    char config[sizeof v->config];
    double ms;
    for (int i = 0; count < MAX_ENTRIES; i++) {
        if (mica_problem_config(b->context, problem, v->engine, i, config, sizeof config, &ms) !=
            MICA_OK)
            break;
        if (count > 0 && ms > 4e3 * b->limits.seconds) continue;
        const mica_options o = {
            .engine = v->engine, .config = *config ? config : NULL, .packed = packed};
        plan_entry(b, problem, o, &entries[count]);
        entries[count].is_config = true;
        entries[count++].predicted_ms = ms;
    }
    return count;
}

/* Marks the one that the planner takes by itself. */
static void mark_picked(bench *b, const mica_problem *problem, uint64_t packed,
                        bench_entry *entries, int count)
{
    bench_entry pick;
    plan_entry(b, problem, (mica_options){.packed = packed}, &pick);
    for (int i = 0; i < count && pick.plan; i++)
        if (entries[i].plan && !strcmp(entries[i].engine, pick.engine))
            entries[i].picked =
                !strcmp(mica_plan_config(entries[i].plan), mica_plan_config(pick.plan));
    mica_plan_destroy(pick.plan);
}

static int plan_entries(bench *b, const mica_problem *problem, uint64_t packed,
                        bench_entry *entries)
{
    int count = 0;
    mica_verdict v;
    if (b->pick) plan_entry(b, problem, (mica_options){.packed = packed}, &entries[count++]);
    if (b->pick && !b->engines) return count;
    /* A peer shows the best of its candidates. */
    int budget_ms = (int)fmin(fmax(4e3 * b->limits.seconds, 200), 2000);
    for (int i = 0; count < MAX_ENTRIES; i++) {
        if (mica_problem_verdict(b->context, problem, i, &v) != MICA_OK) break;
        if (b->configs && !v.peer) {
            if (v.status == MICA_OK && !v.by_name && !v.reference)
                count = plan_configs(b, problem, &v, packed, entries, count);
        } else if (v.status == MICA_OK && is_wanted(b, &v) && (v.peer || !b->pick))
            plan_entry(b, problem,
                       (mica_options){.engine = v.engine,
                                      .packed = packed,
                                      .mode = v.peer ? MICA_MODE_MEASURE : MICA_MODE_ESTIMATE,
                                      .measure_ms = budget_ms},
                       &entries[count++]);
    }
    if (count == MAX_ENTRIES) cli_say("only the first %d plans are measured", count);
    if (b->configs) mark_picked(b, problem, packed, entries, count);
    return count;
}

/* ---- output ---- */

static void print_header(const bench *b)
{
    if (b->options.quiet) return;
    if (b->csv)
        printf("set,engine,ms,p10,p90,n,tflops,gbps,roofline,sm_mhz_before,sm_mhz_after,"
               "disturbed,line\n");
    else
        printf("%s%11s %10s %10s %6s %9s %9s %6s  %s%-18s %s%s\n", cli_style(stdout, "bold"),
               "median ms", "p10", "p90", "n", "TFLOP/s", "GB/s", "roof",
               b->clocks ? "   SM MHz  " : "", "engine", "line", cli_style(stdout, "off"));
}

static void print_result(const bench *b, const bench_result *r)
{
    if (b->options.quiet) return;
    if (b->csv)
        printf("%s,%s,%.6g,%.6g,%.6g,%zu,%.5g,%.5g,%.4g,%d,%d,%d,\"%s\"\n", r->set, r->engine,
               r->ms, r->p10, r->p90, r->n, r->tflops, r->gbps, r->roofline, r->mhz[0], r->mhz[1],
               r->disturbed != NULL, r->line);
    else {
        printf("%11.5f %10.5f %10.5f %6zu %9.3f %9.1f %5.1f%%%s ", r->ms, r->p10, r->p90, r->n,
               r->tflops, r->gbps, 100 * r->roofline, r->disturbed ? "~" : " ");
        if (b->clocks) printf("%4d-%-4d  ", r->mhz[0], r->mhz[1]);
        printf("%-18s ", r->engine);
        if (r->config) printf("%s%-40s ", r->picked ? "*" : " ", r->config);
        printf("%s\n", r->line);
    }
    fflush(stdout);
}

/* What a result stands on: a peer's own version, else the driver's. */
static void version_of(const bench *b, const char *engine, char *version, size_t size)
{
    const char *key, *value, *slash = strchr(engine, '/');
    snprintf(version, size, "%s", b->driver);
    for (int i = 0; slash && mica_info(i, &key, &value) == MICA_OK; i++)
        if (!strcmp(key, slash + 1))
            snprintf(version, size, "%s %.*s", key, (int)strcspn(value, ","), value);
}

static void write_result(const bench *b, const bench_result *r, const char *run)
{
    if (!b->json) return;
    char version[64];
    version_of(b, r->engine, version, sizeof version);
    json_t *o = json_pack("{ss ss ss so so so sI so so so ss ss ss ss}", "set", r->set, "line",
                          r->line, "engine", r->engine, "ms", cli_json_number(r->ms), "p10",
                          cli_json_number(r->p10), "p90", cli_json_number(r->p90), "n",
                          (json_int_t)r->n, "tflops", cli_json_number(r->tflops), "gbps",
                          cli_json_number(r->gbps), "roofline", cli_json_number(r->roofline),
                          "commit", b->options.commit ? b->options.commit : "", "device",
                          b->device.model, "driver", version, "run", run);
    if (b->clocks) json_object_set_new(o, "sm_mhz", json_pack("[ii]", r->mhz[0], r->mhz[1]));
    if (r->disturbed) json_object_set_new(o, "disturbed", json_string(r->disturbed));
    if (r->config) {
        json_object_set_new(o, "config", json_string(r->config));
        json_object_set_new(o, "predicted_ms", cli_json_number(r->predicted_ms));
        json_object_set_new(o, "picked", json_boolean(r->picked));
    }
    if (b->keep_samples) {
        json_t *samples = json_array();
        for (size_t i = 0; i < r->n; i++)
            json_array_append_new(samples, cli_json_number(r->samples[i]));
        json_object_set_new(o, "samples", samples);
    }
    cli_json_line(b->json, o);
}

/* Takes the entry's samples over. */
static bench_result summarise(const bench *b, const mica_problem *problem, const cli_line *line,
                              uint64_t packed, bench_entry *e)
{
    bench_result r = {.set = b->set ? cli_format("%s", b->set) : cli_line_set(line),
                      .line = cli_line_text(problem, packed),
                      .engine = cli_format("%s", e->engine),
                      .device = cli_format("%s", b->device.model),
                      .mhz = {b->mhz[0], b->mhz[1]},
                      .n = e->count,
                      .samples = e->samples,
                      .predicted_ms = e->predicted_ms,
                      .picked = e->picked};
    e->samples = NULL;
    if (e->is_config) r.config = cli_format("%s", mica_plan_config(e->plan));
    if (*e->disturbed) r.disturbed = cli_format("%s", e->disturbed);
    cli_sort(r.samples, r.n);
    r.ms = cli_quantile(r.samples, r.n, 0.5);
    r.p10 = cli_quantile(r.samples, r.n, 0.1);
    r.p90 = cli_quantile(r.samples, r.n, 0.9);
    mica_problem_cost(problem, &r.flops, &r.bytes);
    r.tflops = r.flops / (r.ms * 1e9);
    r.gbps = r.bytes / (r.ms * 1e6);
    r.roofline = bench_roof_ms(b->context, &b->device, problem, b->copy_gbps) / r.ms;
    return r;
}

/* ---- the loop ---- */

/* No engine takes it, or none of those that were asked for: why each of those does not. */
static void report_untaken(bench *b, const cli_line *line, const mica_problem *problem)
{
    bool named = b->engines && strcmp(b->engines, "all") != 0;
    cli_progress_clear(&b->progress);
    for (const char *s = named ? b->engines : ""; *s; s += strcspn(s, ","), s += *s == ',') {
        char *name = cli_format("%.*s", (int)strcspn(s, ","), s);
        char *why = cli_engine_refusal(b->context, problem, name);
        char *text = cli_format("%s: %s", name, why ? why : "it was left out");
        cli_line_say(line, text);
        free(text);
        free(why);
        free(name);
    }
    if (!named) cli_line_say(line, "no engine takes it here");
    b->code = cli_worse(b->code, CLI_UNSUPPORTED);
}

static void bench_line(bench *b, const cli_line *line, size_t index)
{
    bench_entry entries[MAX_ENTRIES];
    mica_problem *problem = cli_line_problem(&b->lines, line);
    if (!problem) return;
    uint64_t packed = cli_line_packed(line, problem, b->packed);
    int count = plan_entries(b, problem, packed, entries);
    if (!count) report_untaken(b, line, problem);
    mica_status status = MICA_OK;
    b->copy_gbps = bench_roof_gbps(b->roof);
    b->mhz[0] = cli_clocks_sm(b->clocks);
    if (count) status = bench_time(b->context, &b->device, problem, entries, count, &b->limits);
    b->mhz[1] = cli_clocks_sm(b->clocks);
    if (status != MICA_OK) {
        cli_say("%s: %s: %s", line->text, mica_status_name(status), mica_error());
        b->code = cli_worse(b->code, cli_exit_code(status));
    }
    char *run = cli_format("%lld-%d-%zu", (long long)time(NULL), (int)getpid(), index);
    cli_progress_clear(&b->progress);
    for (int i = 0; i < count; i++) {
        if (entries[i].status != MICA_OK) {
            cli_say("%s: %s: %s", entries[i].engine, line->text, entries[i].error);
            b->code = cli_worse(b->code, cli_exit_code(entries[i].status));
        } else if (entries[i].count > 0) {
            bench_add(&b->results, summarise(b, problem, line, packed, &entries[i]));
            print_result(b, &b->results.items[b->results.count - 1]);
            write_result(b, &b->results.items[b->results.count - 1], run);
            b->disturbed += *entries[i].disturbed != 0;
        }
        free(entries[i].samples);
        mica_plan_destroy(entries[i].plan);
    }
    free(run);
    mica_problem_destroy(problem);
}

/* ---- graphs ---- */

static bench_result summarise_graph(const bench *b, const cli_graph *g, graph_timing *t)
{
    bench_result r = {.set = cli_format("%s", b->set ? b->set : "graph"),
                      .line = cli_format("%s", g->line),
                      .engine = cli_format("%s", cli_graph_modes[t->mode]),
                      .device = cli_format("%s", b->device.model),
                      .mhz = {b->mhz[0], b->mhz[1]},
                      .n = t->count,
                      .samples = t->samples,
                      .flops = t->flops,
                      .bytes = t->bytes};
    cli_sort(r.samples, r.n);
    r.ms = cli_quantile(r.samples, r.n, 0.5);
    r.p10 = cli_quantile(r.samples, r.n, 0.1);
    r.p90 = cli_quantile(r.samples, r.n, 0.9);
    r.tflops = r.flops / (r.ms * 1e9);
    r.gbps = r.bytes / (r.ms * 1e6);
    r.roofline = t->roof_ms / r.ms;
    return r;
}

static void bench_graph(bench *b, const cli_graph *g, int index)
{
    graph_timing timings[GRAPH_TIMED] = {{0}};
    mica_load before, after;
    char disturbed[128] = "";
    mica_load_read(&before);
    b->mhz[0] = cli_clocks_sm(b->clocks);
    mica_status status =
        graph_time(b->context, g, NULL, b->limits.seconds, b->limits.least, timings);
    b->mhz[1] = cli_clocks_sm(b->clocks);
    mica_load_read(&after);
    if (status != MICA_OK) {
        cli_say("%s: %s: %s", g->line, mica_status_name(status), mica_error());
        b->code = cli_worse(b->code, cli_exit_code(status));
        for (int i = 0; i < GRAPH_TIMED; i++) free(timings[i].samples);
        return;
    }
    char *run = cli_format("%lld-%d-g%d", (long long)time(NULL), (int)getpid(), index);
    for (int i = 0; i < GRAPH_TIMED; i++) {
        const bool odd = mica_load_disturbed(&before, &after, b->device.cuda, timings[i].samples,
                                             timings[i].count, disturbed, sizeof disturbed);
        bench_result r = summarise_graph(b, g, &timings[i]);
        if (odd) r.disturbed = cli_format("%s", disturbed);
        bench_add(&b->results, r);
        print_result(b, &r);
        write_result(b, &r, run);
        b->disturbed += odd;
    }
    free(run);
}

static void find_driver(bench *b)
{
    const char *key, *value;
    for (int i = 0; mica_info(i, &key, &value) == MICA_OK; i++)
        if (!strcmp(key, "cuda driver version") && b->device.cuda)
            snprintf(b->driver, sizeof b->driver, "%s", value);
}

/* What to make of the lines that are marked: the first one's reason stands for all. */
static void summarise_disturbed(const bench *b)
{
    const bench_result *r = b->results.items;
    if (!b->disturbed) return;
    while (!r->disturbed) r++;
    cli_say("disturbed results (marked ~): %ld of %zu, the first by %s of %s: %s", b->disturbed,
            b->results.count, r->engine, r->line, r->disturbed);
}

static int run_all(bench *b)
{
    if (b->device.offline) {
        cli_say("%s is an offline device: nothing can be timed there", b->device.name);
        return CLI_USAGE;
    }
    find_driver(b);
    if (b->plot && !cli_can_write(b->plot)) return CLI_USAGE;
    if (b->options.json && !(b->json = cli_json_open(b->options.json))) return CLI_USAGE;
    b->roof = bench_roof_create(b->context, &b->device);
    b->clocks = cli_clocks_open(&b->device);
    print_header(b);
    for (int i = 0; i < b->graphs.count && !cli_stopped() && b->code != CLI_DEVICE_LOST; i++)
        bench_graph(b, &b->graphs.items[i], i);
    cli_progress_begin(&b->progress, b->lines.count, b->options.quiet);
    for (size_t i = 0; i < b->lines.count && !cli_stopped(); i++) {
        if (b->code == CLI_DEVICE_LOST) break;
        cli_progress_step(&b->progress, i, b->lines.items[i].text);
        bench_line(b, &b->lines.items[i], i);
    }
    cli_progress_clear(&b->progress);
    cli_json_close(b->json);
    bench_roof_free(b->roof);
    cli_clocks_close(b->clocks);
    summarise_disturbed(b);
    const bool graphs = b->graphs.count + b->graphs.errors > 0;
    if (b->lines.count == 0 && !b->lines.errors && !graphs) cli_say("no problem line was given");
    if (b->lines.errors || b->graphs.errors || (b->lines.count == 0 && !graphs))
        b->code = cli_worse(b->code, CLI_USAGE);
    if (b->plot && !bench_plot(b->plot, &b->results, &b->device))
        b->code = cli_worse(b->code, CLI_USAGE);
    return b->code;
}

static int run_host(bench *b)
{
    if (b->engines && (strchr(b->engines, ',') || !strcmp(b->engines, "all"))) {
        cli_say("--engine %s: --%s times one engine", b->engines, b->first ? "first" : "overhead");
        return CLI_USAGE;
    }
    if (b->device.offline) {
        cli_say("%s is an offline device: nothing can be timed there", b->device.name);
        return CLI_USAGE;
    }
    char **lines = cli_alloc((b->lines.count + 1) * sizeof *lines);
    for (size_t i = 0; i < b->lines.count; i++) lines[i] = b->lines.items[i].text;
    const char *usual = b->first ? "line" : "overhead";
    bench_host host = {.context = b->context,
                       .context_ms = b->context_ms,
                       .engine = b->engines,
                       .set = b->set ? b->set : usual,
                       .commit = b->options.commit ? b->options.commit : "",
                       .device = b->device.model};
    int code = CLI_USAGE;
    if (!b->options.json || (host.json = cli_json_open(b->options.json)))
        code = b->first ? bench_first_calls(&host, lines, b->lines.count)
                        : bench_overhead(&host, lines, b->lines.count, &b->graphs);
    cli_json_close(host.json);
    free(lines);
    if (b->graphs.errors) code = cli_worse(code, CLI_USAGE);
    return code;
}

int cmd_bench(int argc, char **argv)
{
    bench b = {.limits = {.seconds = 0.5, .least = 20}};
    cli_parse(argc, argv, "bench", options, parse, "[FILE...] [PROBLEM LINE]", doc, &b);
    int code;
    double start = cli_seconds();
    if (b.compare) {
        code = CLI_USAGE;
        if (b.options.arg_count == 2)
            code = bench_compare(b.options.args[0], b.options.args[1]);
        else
            cli_say("--compare takes two files, %d were given", b.options.arg_count);
    } else if ((code = cli_context(&b.options, &b.context, &b.device)) == CLI_OK) {
        b.context_ms = 1e3 * (cli_seconds() - start);
        cli_graphs_take(&b.graphs, &b.options);
        cli_lines_read(&b.lines, b.options.args, b.options.arg_count);
        code = !cli_engines_known("--engine", b.engines, &b.lines) ? CLI_USAGE
               : b.overhead || b.first                             ? run_host(&b)
                                                                   : run_all(&b);
        cli_graphs_free(&b.graphs);
        cli_lines_free(&b.lines);
        bench_results_free(&b.results);
        mica_context_destroy(b.context);
    }
    cli_options_free(&b.options);
    return code;
}
