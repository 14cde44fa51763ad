/* SPDX-License-Identifier: Apache-2.0
 * Times mica's choice and oneDNN called directly on the same problem lines, in turns, as
 * `mica bench` does: warm-up, data that is not in the cache, median and percentiles. Result lines
 * have the engines
 *
 *     (mica's engine)        the plan of mica_plan_problem
 *     peer/onednn            oneDNN, tensors as the line says, packed where it says so; the
 * quickest of three ways: each other tensor as it is, weights reordered in each run, all tensors
 * reordered in each run peer/onednn-blocked    only where something is packed: oneDNN, all tensors,
 * results too, in the layouts it likes best, as if other layers had left them so
 *
 * Times during which the threads waited for a core do not count; a line that has too few others is
 * left out. Lines that the peer cannot express are said on stderr and left out. */
#define _GNU_SOURCE
#include "json.h"
#include "lines.h"
#include "bench/stats.h"
#include "bench/waiting.h"

#include "onednn_direct.h"

#include <dnnl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* oneDNN's entries by direct_formats, then mica's. */
enum { MICA = DIRECT_FORMATS, ENTRIES, MAX_SETS = 64, MAX_SAMPLES = 20000 };

typedef struct entry {
    char engine[64];
    mica_plan *plan;
    void *workspace;
    direct *peer;
    double samples[MAX_SAMPLES], total_ms;
    size_t count, disturbed;
} entry;

typedef struct peer {
    cli_options options;
    const char *set, *packing; /* --packed */
    double seconds;
    size_t least;

    mica_context *context;
    mica_device_info device;
    cli_lines lines;
    FILE *json;
    int code;

    mica_problem *problem;
    uint64_t packed; /* as in mica_options */
    mica_arg_info info[MICA_MAX_ARGS];
    void *memory[MAX_SETS][MICA_MAX_ARGS]; /* what was allocated */
    void *data[MAX_SETS][MICA_MAX_ARGS];   /* element 0 */
    void *packs[MAX_SETS][MICA_MAX_ARGS];  /* what mica packed */
    int args, sets, next;
    void *scratch; /* overwritten to empty the cache where there are too few sets for it */
    size_t scratch_bytes;
    entry entries[ENTRIES];
} peer;

/* ---- data ---- */

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void choose_sets(peer *p)
{
    int64_t bytes = 0, first, cache = 2 * p->device.cache_bytes;
    for (p->args = 0; p->args < MICA_MAX_ARGS; p->args++) {
        mica_arg_info *info = &p->info[p->args];
        if (mica_problem_arg(p->problem, p->args, info) != MICA_OK) break;
        if (info->dir != MICA_UNUSED) bytes += mica_tensor_span(&info->tensor, &first);
    }
    int64_t sets = bytes > 0 ? cache / bytes + 2 : 1;
    p->scratch_bytes = sets > MAX_SETS ? (size_t)cache : 0;
    p->sets = sets > MAX_SETS ? MAX_SETS : (int)sets;
    p->next = 0;
}

static void fill_sets(peer *p)
{
    choose_sets(p);
    p->scratch = p->scratch_bytes ? cli_alloc(p->scratch_bytes) : NULL;
    for (int a = 0; a < p->args; a++) {
        const mica_tensor *t = &p->info[a].tensor;
        if (p->info[a].dir == MICA_UNUSED) continue;
        int64_t first, span = mica_tensor_span(t, &first);
        double *values = cli_alloc((size_t)(mica_tensor_count(t) + 1) * sizeof *values);
        mica_problem_fill(p->problem, a, MICA_FILL_RANDOM, 1, values);
        for (int s = 0; s < p->sets; s++) {
            p->memory[s][a] = aligned_alloc(256, ((size_t)span + 511) / 256 * 256);
            if (!p->memory[s][a]) exit(CLI_UNSUPPORTED);
            p->data[s][a] = (char *)p->memory[s][a] - first;
            mica_tensor_store(t, values, p->data[s][a]);
        }
        free(values);
    }
}

static void free_sets(peer *p)
{
    for (int s = 0; s < MAX_SETS; s++)
        for (int a = 0; a < MICA_MAX_ARGS; a++) {
            free(p->memory[s][a]);
            mica_free(p->context, p->packs[s][a]);
            p->memory[s][a] = p->data[s][a] = p->packs[s][a] = NULL;
        }
    free(p->scratch);
    p->scratch = NULL;
}

/* ---- entries ---- */

static mica_status pack(peer *p, const mica_plan *plan, int arg)
{
    int64_t bytes = (int64_t)mica_plan_packed_bytes(plan, arg);
    mica_status status = MICA_OK;
    for (int s = 0; s < p->sets && bytes && status == MICA_OK; s++) {
        status = mica_malloc(p->context, bytes, &p->packs[s][arg]);
        if (status == MICA_OK)
            status = mica_plan_pack(plan, arg, p->data[s][arg], p->packs[s][arg], NULL);
    }
    return status;
}

static bool make_mica(peer *p, entry *e)
{
    mica_options o = {.packed = p->packed};
    mica_status status = mica_plan_problem(p->context, p->problem, &o, &e->plan);
    for (int a = 0; a < p->args && status == MICA_OK; a++) status = pack(p, e->plan, a);
    if (status != MICA_OK) {
        cli_say("%s", mica_error());
        return false;
    }
    snprintf(e->engine, sizeof e->engine, "%s", mica_plan_engine(e->plan));
    size_t bytes = mica_plan_workspace(e->plan);
    e->workspace = bytes ? aligned_alloc(256, (bytes + 255) / 256 * 256) : NULL;
    return true;
}

static bool make_peer(peer *p, direct_formats formats)
{
    char why[128] = "", line[1024];
    entry *e = &p->entries[formats];
    bool blocked = formats == DIRECT_BLOCKED;
    if (blocked && !p->packed) return false;
    snprintf(e->engine, sizeof e->engine, "peer/onednn%s", blocked ? "-blocked" : "");
    e->peer = direct_make(p->problem, formats, p->packed, why, sizeof why);
    for (int s = 0; e->peer && s < p->sets; s++)
        if (direct_bind(e->peer, p->data[s]) < 0) {
            snprintf(why, sizeof why, "oneDNN does not take the buffers");
            direct_free(e->peer);
            e->peer = NULL;
        }
    if (e->peer) return true;
    mica_problem_text(p->problem, line, sizeof line);
    if (formats == DIRECT_ALL) cli_say("%s is left out: %s: %s", e->engine, why, line);
    return false;
}

static bool run_entry(peer *p, entry *e, int set)
{
    if (e->peer) return direct_run(e->peer, set);
    mica_run r = {.scalars = mica_problem_scalars(p->problem), .workspace = e->workspace};
    for (int a = 0; a < p->args; a++)
        if (p->info[a].dir != MICA_UNUSED)
            r.args[a] = p->packs[set][a] ? p->packs[set][a] : p->data[set][a];
    return mica_plan_run(e->plan, &r) == MICA_OK;
}

static bool is_there(const entry *e)
{
    return e->plan || e->peer;
}

/* ---- time ---- */

static void time_once(peer *p, entry *e, bool keep)
{
    int set = p->next++ % p->sets;
    if (p->scratch) mica_memset(p->context, p->scratch, p->next, (int64_t)p->scratch_bytes, NULL);
    double waited = cli_waited_ms(), start = seconds_now();
    if (!run_entry(p, e, set)) {
        cli_say("%s: a run failed", e->engine);
        exit(CLI_MISMATCH);
    }
    double ms = 1e3 * (seconds_now() - start);
    if (!keep) return;
    if (cli_disturbed(ms, cli_waited_ms() - waited)) {
        e->disturbed++;
        return;
    }
    e->samples[e->count++] = ms;
    e->total_ms += ms;
}

/* Rounds of one run each: whatever slows the machine meets all. Tiny problems end by the clock, for
 * emptying the cache takes longer than they do. */
static void time_all(peer *p)
{
    double started = seconds_now();
    for (int w = 0; w < 2; w++)
        for (int i = 0; i < ENTRIES; i++)
            if (is_there(&p->entries[i])) time_once(p, &p->entries[i], false);
    for (bool more = true; more && !cli_stopped();) {
        more = false;
        for (int i = 0; i < ENTRIES; i++) {
            entry *e = &p->entries[i];
            bool late = seconds_now() - started > 10 * p->seconds;
            bool enough = e->count >= p->least && (late || e->total_ms >= 1e3 * p->seconds);
            bool hopeless = e->disturbed > 4 * p->least + 4 * e->count;
            if (!is_there(e) || enough || hopeless || e->count == MAX_SAMPLES) continue;
            time_once(p, e, true);
            more = true;
        }
    }
}

/* ---- results ---- */

static double median(entry *e)
{
    cli_sort(e->samples, e->count);
    return cli_quantile(e->samples, e->count, 0.5);
}

static void report(peer *p, entry *e, const char *set, const char *line, const char *run)
{
    const dnnl_version_t *v = dnnl_version();
    char driver[64];
    double flops = 0, bytes = 0;
    double ms = median(e);
    double p10 = cli_quantile(e->samples, e->count, 0.1);
    double p90 = cli_quantile(e->samples, e->count, 0.9);
    mica_problem_cost(p->problem, &flops, &bytes);
    double roofline = mica_problem_roofline(p->context, p->problem) / ms;
    snprintf(driver, sizeof driver, "oneDNN %d.%d.%d", v->major, v->minor, v->patch);
    if (!p->options.quiet)
        fprintf(stderr, "%11.5f %11.5f %11.5f %6zu %9.3f  %-18s %s\n", ms, p10, p90, e->count,
                flops / (ms * 1e9), e->engine, line);
    cli_json_line(p->json,
                  json_pack("{ss ss ss so so so sI so so so ss ss ss ss}", "set", set, "line", line,
                            "engine", e->engine, "ms", cli_json_number(ms), "p10",
                            cli_json_number(p10), "p90", cli_json_number(p90), "n",
                            (json_int_t)e->count, "tflops", cli_json_number(flops / (ms * 1e9)),
                            "gbps", cli_json_number(bytes / (ms * 1e6)), "roofline",
                            cli_json_number(roofline), "commit",
                            p->options.commit ? p->options.commit : "", "device", p->device.model,
                            "driver", driver, "run", run));
}

static char *set_name(const peer *p, const cli_line *line)
{
    if (p->set) return cli_format("%s", p->set);
    const char *slash = strrchr(line->where, '/'), *name = slash ? slash + 1 : line->where;
    return cli_format("%.*s", (int)strcspn(name, ".:"), *name ? name : "line");
}

static entry *best_peer(peer *p)
{
    entry *best = NULL;
    for (direct_formats f = DIRECT_USER; f <= DIRECT_ALL; f++) {
        entry *e = &p->entries[f];
        if (is_there(e) && (!best || median(e) < median(best))) best = e;
    }
    return best;
}

static bool is_measured(peer *p, const char *line)
{
    size_t disturbed = 0, all = 0;
    bool ok = is_there(&p->entries[MICA]);
    for (int i = 0; i < ENTRIES; i++) {
        const entry *e = &p->entries[i];
        disturbed += e->disturbed;
        all += e->disturbed + e->count;
        ok &= !is_there(e) || e->count >= p->least;
    }
    if (disturbed && !p->options.quiet)
        cli_say("%zu of %zu runs were disturbed by other programs", disturbed, all);
    if (!ok && all) {
        cli_say("left out, too often disturbed: %s", line);
        p->code = CLI_MISMATCH;
    }
    return ok;
}

static void do_line(peer *p, const cli_line *line, size_t index)
{
    memset(p->entries, 0, sizeof p->entries);
    p->problem = cli_line_problem(&p->lines, line);
    if (!p->problem) return;
    fill_sets(p);
    p->packed = cli_line_packed(line, p->problem, p->packing);
    bool any = false;
    for (direct_formats f = DIRECT_USER; f < DIRECT_FORMATS; f++) any |= make_peer(p, f);
    if (any && make_mica(p, &p->entries[MICA])) time_all(p);
    char *run = cli_format("%lld-%d-%zu", (long long)time(NULL), (int)getpid(), index);
    char *text = cli_line_text(p->problem, p->packed), *set = set_name(p, line);
    if (is_measured(p, text)) {
        entry *best = best_peer(p);
        report(p, &p->entries[MICA], set, text, run);
        if (best) report(p, best, set, text, run);
        if (is_there(&p->entries[DIRECT_BLOCKED]))
            report(p, &p->entries[DIRECT_BLOCKED], set, text, run);
    }
    for (int i = 0; i < ENTRIES; i++) {
        entry *e = &p->entries[i];
        mica_plan_destroy(e->plan);
        free(e->workspace);
        direct_free(e->peer);
    }
    free(run);
    free(text);
    free(set);
    free_sets(p);
    mica_problem_destroy(p->problem);
}

/* ---- the command ---- */

enum { KEY_SECONDS = 0x100, KEY_RUNS, KEY_SET, KEY_PACKED };

static const struct argp_option options[] = {
    {"seconds", KEY_SECONDS, "S", 0, "measured time per engine; default 0.5", 0},
    {"runs", KEY_RUNS, "N", 0, "least number of runs; default 20", 0},
    {"packed", KEY_PACKED, "LIST", 0, "runs get these inputs packed; all: every input", 0},
    {"set", KEY_SET, "NAME", 0, "name of the set in result lines; default: the case file's", 0},
    {0}};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    peer *p = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &p->options;
        return 0;
    case KEY_SECONDS:
        p->seconds = cli_number(state, "--seconds", arg, 0);
        return 0;
    case KEY_RUNS:
        p->least = (size_t)cli_number(state, "--runs", arg, 1);
        return 0;
    case KEY_PACKED:
        p->packing = arg;
        return 0;
    case KEY_SET:
        p->set = arg;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int main(int argc, char **argv)
{
    static peer p = {.seconds = 0.5, .least = 20, .options = {.device = "cpu", .json = "-"}};
    cli_parse(argc, argv, "onednn_peer", options, parse, "[FILE...] [PROBLEM LINE]",
              "Times oneDNN and mica on conv and gemm lines of f32; JSON lines on standard output.",
              &p);
    cli_catch_interrupts();
    p.code = cli_context(&p.options, &p.context, &p.device);
    if (p.code != CLI_OK) return p.code;
    char *input[] = {"-"};
    bool given = p.options.arg_count > 0;
    cli_lines_read(&p.lines, given ? p.options.args : input, given ? p.options.arg_count : 1);
    p.json = cli_json_open(p.options.json);
    if (!p.json) return CLI_USAGE;
    for (size_t i = 0; i < p.lines.count && !cli_stopped(); i++) do_line(&p, &p.lines.items[i], i);
    if (p.lines.errors || p.lines.count == 0) p.code = CLI_USAGE;
    cli_json_close(p.json);
    cli_lines_free(&p.lines);
    mica_context_destroy(p.context);
    cli_options_free(&p.options);
    return p.code;
}
