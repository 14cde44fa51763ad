/* SPDX-License-Identifier: Apache-2.0
 * `mica check`: runs problems on every engine and compares with the reference. */
#include "check.h"
#include "json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const status_names[] = {"ok", "mismatch", "refused", "mistrusted"};

/* ---- command line ---- */

enum {
    KEY_FILL = 0x100,
    KEY_SEED,
    KEY_REFUSALS,
    KEY_MISTRUSTED,
    KEY_EXPECT,
    KEY_SELF,
    KEY_COMPILE,
    KEY_TABLE,
    KEY_UPDATE
};

static const struct argp_option options[] = {
    {"engine", 'e', "NAME", 0, "only this engine; then its refusal is a failure", 0},
    {"fill", KEY_FILL, "LIST", 0, "exact, random, same_sign, range, extreme; default: all", 0},
    {"seed", KEY_SEED, "N", 0, "seed of the data; default 1", 0},
    {"allow-refusals", KEY_REFUSALS, NULL, 0, "a refusal is no failure", 0},
    {"allow-mistrusted", KEY_MISTRUSTED, NULL, 0,
     "a comparison that could hardly fail is no failure", 0},
    {"expect", KEY_EXPECT, "N", 0, "fail unless exactly N checks ran", 0},
    {"self-test", KEY_SELF, NULL, 0, "break results on purpose; fail unless each is noticed", 0},
    {"verbose", 'v', NULL, 0, "a line for each check", 0},
    {"compile-only", KEY_COMPILE, NULL, 0,
     "plan and compile on every accepting engine, run nothing", 0},
    {"table", KEY_TABLE, "FILE", 0, "with --compile-only: compare kernels with this table", 0},
    {"update", KEY_UPDATE, NULL, 0, "with --table: write it", 0},
    {0}};

static const char doc[] =
    "Runs problems on every engine of the device that accepts them, on exact, random and "
    "adversarial data with poisoned memory, and compares each element with the reference."
    "\vFILE holds a problem line per line; - is standard input. Commas in a value make one problem "
    "each (epilogue: use |). A line whose comment reads `# mistrusted: why' may "
    "compare what could hardly fail.\n\nExamples:\n"
    "  mica check gemm a=f32,bf16:64x32 b=f32:32x48\n"
    "  mica check --device cuda:0 --json check-conv.jsonl tests/cases/conv.txt\n"
    "  mica check --engine ref --fill exact --seed 7 \"softmax x=f32:4x1000 axis=1\"\n"
    "  mica check --compile-only --device sm_90a --table kernels-sm_90a.txt tests/cases/*.txt\n";

static void parse_fills(check *c, const char *list, struct argp_state *state)
{
    for (const char *s = list; *s;) {
        size_t length = strcspn(s, ",");
        int i = 0;
        while (cli_fill_names[i] &&
               (strlen(cli_fill_names[i]) != length || strncmp(cli_fill_names[i], s, length) != 0))
            i++;
        if (!cli_fill_names[i])
            argp_error(state, "--fill=%s: known are exact, random, same_sign, range, extreme",
                       list);
        c->fills[i] = true;
        s += length + (s[length] == ',');
    }
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    check *c = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &c->options;
        return 0;
    case 'e':
        c->engine = arg;
        return 0;
    case KEY_FILL:
        parse_fills(c, arg, state);
        return 0;
    case KEY_SEED:
        c->seed = (uint64_t)cli_number(state, "--seed", arg, 0);
        return 0;
    case KEY_REFUSALS:
        c->allow_refusals = true;
        return 0;
    case KEY_MISTRUSTED:
        c->allow_mistrusted = true;
        return 0;
    case KEY_EXPECT:
        c->expect = (long)cli_number(state, "--expect", arg, 0);
        return 0;
    case KEY_SELF:
        c->self_test = true;
        return 0;
    case 'v':
        c->verbose = true;
        return 0;
    case KEY_COMPILE:
        c->compile_only = true;
        return 0;
    case KEY_TABLE:
        c->table = arg;
        return 0;
    case KEY_UPDATE:
        c->update = true;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* ---- recording ---- */

check_total *check_total_of(check *c, const char *engine)
{
    for (int i = 0; i < c->engines; i++)
        if (!strcmp(c->totals[i].name, engine)) return &c->totals[i];
    int i = c->engines < CHECK_MAX_ENGINES ? c->engines++ : CHECK_MAX_ENGINES - 1;
    snprintf(c->totals[i].name, sizeof c->totals[i].name, "%s", engine);
    return &c->totals[i];
}

/* One result: what it concerned and how it ended. */
typedef struct outcome {
    const char *line, *engine, *fill;
    check_status status;
    double margin;
    const char *text;
} outcome;

static void record(check *c, const outcome *o)
{
    check_total *total = check_total_of(c, o->engine);
    total->count[o->status]++;
    if (o->margin > total->margin) total->margin = o->margin;
    c->checks += o->status != CHECK_REFUSED;
    bool allowed = (o->status == CHECK_REFUSED && c->allow_refusals) ||
                   (o->status == CHECK_MISTRUSTED && (c->allow_mistrusted || c->weak));
    bool fails = o->status != CHECK_PASSED && !allowed;
    total->excused += allowed;
    c->failed |= fails && o->status != CHECK_REFUSED;
    c->refused |= fails && o->status == CHECK_REFUSED;
    cli_json_line(c->json,
                  c->json ? json_pack("{ss ss ss ss so ss ss}", "line", o->line, "engine",
                                      o->engine, "fill", o->fill, "status", status_names[o->status],
                                      "margin", cli_json_number(o->margin), "commit",
                                      c->options.commit ? c->options.commit : "", "device",
                                      c->device.model)
                          : NULL);
    if (!fails && !c->verbose) return;
    cli_progress_clear(&c->progress);
    printf("%s%s%s %s %s margin %.3g%s%s\n", cli_style(stdout, fails ? "red" : "green"),
           status_names[o->status], cli_style(stdout, "off"), o->engine, o->fill, o->margin,
           *o->text ? ": " : "", o->text);
    if (!fails) {
        printf("  %s\n", o->line);
        return;
    }
    printf("  REPRO: mica check --device %s --engine %s%s%s --seed %llu \"%s\"\n", c->device.name,
           o->engine, *o->fill ? " --fill " : "", o->fill, (unsigned long long)c->seed, o->line);
}

static void print_wrong(const cli_case *k, const cli_judgement *j)
{
    const mica_tensor *t = &k->info[j->arg].tensor;
    for (int n = 0; n < j->wrong.shown; n++) {
        int64_t index[MICA_MAX_RANK], i = j->wrong.first[n].index;
        for (int d = t->rank - 1; d >= 0; d--) {
            index[d] = i % t->dims[d];
            i /= t->dims[d];
        }
        printf("  %s[", k->info[j->arg].name);
        for (int d = 0; d < t->rank; d++) printf("%s%lld", d ? "," : "", (long long)index[d]);
        printf("] got %.9g want %.9g tolerance %.3g\n", j->wrong.first[n].got,
               j->wrong.first[n].want, j->wrong.first[n].tolerance);
    }
}

/* ---- one engine on one case ---- */

/* A failing call is a mismatch, unless it is the device that went. */
static bool call_failed(check *c, mica_status status, outcome *o, char *text, size_t size)
{
    if (status == MICA_OK) return false;
    snprintf(text, size, "%s: %s", mica_status_name(status), mica_error());
    o->status = CHECK_MISMATCH;
    o->margin = INFINITY;
    c->lost |= status == MICA_DEVICE_LOST;
    return true;
}

/* The second run has other poison: what is left of it shows as a difference, even where 0xFF is a
 * legal value. The third has each pointer one element off its alignment. */
static const cli_placement placements[] = {
    {0xff, 0, false, ""},
    {0x5a, 0, false, "other poison: "},
    {0xff, 1, false, "pointers one element on: "},
    {0xff, 0, true, "in place: "},
};
enum { AGAIN = 1, IN_PLACE = 3, PLACEMENTS = sizeof placements / sizeof *placements };

static void describe_wrong(const cli_case *k, const cli_judgement *j, const char *what, char *text,
                           size_t size)
{
    if (j->arg < 0)
        snprintf(text, size, "%s%s", what, j->text);
    else
        snprintf(text, size, "%s%s: %lld of %lld elements are wrong", what, k->info[j->arg].name,
                 (long long)j->wrong.wrong, (long long)j->wrong.count);
}

static void self_test(check *c, cli_case *k, const mica_plan *plan, const outcome *o)
{
    if (cli_case_run(k, plan, &placements[0]) != MICA_OK) return;
    if (check_self_test(k, cli_case_tolerance(k, plan)) == 0) return;
    printf("  in the self-test of %s %s\n  %s\n", o->engine, o->fill, o->line);
    c->failed = true;
}

static void run_engine(check *c, cli_case *k, const mica_plan *plan, const mica_verdict *v,
                       const char *line)
{
    char text[400] = "";
    cli_tolerance tolerance = cli_case_tolerance(k, plan);
    outcome o = {.line = line, .engine = v->engine, .fill = cli_fill_names[k->fill], .text = text};
    cli_judgement j = {.ok = true, .arg = -1};
    for (int i = 0; i < PLACEMENTS && o.status == CHECK_PASSED; i++) {
        if (i == IN_PLACE && !cli_case_has_in_place(k)) continue;
        mica_status status = cli_case_run(k, plan, &placements[i]);
        if (call_failed(c, status, &o, text, sizeof text)) break;
        cli_case_judge(k, tolerance, &j);
        o.margin = fmax(o.margin, j.margin);
        if (!j.ok) {
            o.status = CHECK_MISMATCH;
            describe_wrong(k, &j, placements[i].what, text, sizeof text);
        }
        if (i == 0) cli_case_keep(k);
        if (i == AGAIN && v->deterministic && o.status == CHECK_PASSED &&
            !cli_case_repeats(k, text, sizeof text))
            o.status = CHECK_MISMATCH;
    }
    bool adversarial = k->fill == MICA_FILL_RANGE || k->fill == MICA_FILL_EXTREME;
    if (o.status == CHECK_PASSED && !adversarial) {
        cli_case_trust(k, tolerance);
        if (*k->weak) {
            o.status = CHECK_MISTRUSTED;
            snprintf(text, sizeof text, "%s", k->weak);
        }
    }
    record(c, &o);
    if (j.arg >= 0) print_wrong(k, &j);
    if (c->self_test && o.status == CHECK_PASSED) self_test(c, k, plan, &o);
}

/* ---- one problem ---- */

enum { MAX_PLANS = 64 };

typedef struct planned {
    mica_verdict verdict;
    mica_plan *plan;
} planned;

static bool wanted(const check *c, const char *engine)
{
    return !c->engine || !strcmp(c->engine, engine);
}

static void refuse(check *c, const char *line, const char *engine, const char *reason)
{
    record(
        c,
        &(outcome){
            .line = line, .engine = engine, .fill = "", .status = CHECK_REFUSED, .text = reason});
}

/* Plans on every engine that takes it; returns how many. */
static int plan_engines(check *c, const mica_problem *problem, const char *line, planned *plans)
{
    int count = 0;
    bool asked = false;
    mica_verdict v;
    for (int i = 0; count < MAX_PLANS; i++) {
        if (mica_problem_verdict(c->context, problem, i, &v) != MICA_OK) break;
        if (!wanted(c, v.engine) || (v.peer && !c->engine)) continue;
        asked = true;
        if (v.status != MICA_OK) {
            if (c->engine)
                refuse(c, line, v.engine, v.reason);
            else
                check_total_of(c, v.engine)->skipped++;
            continue;
        }
        mica_options o = {.engine = v.engine, .nondeterministic = true};
        mica_status status = mica_plan_problem(c->context, problem, &o, &plans[count].plan);
        if (status == MICA_OK) {
            plans[count++].verdict = v;
            continue;
        }
        /* It said that it takes the problem: whatever stops it now is a failure. */
        char text[400];
        outcome bad = {.line = line, .engine = v.engine, .fill = "", .text = text};
        call_failed(c, status, &bad, text, sizeof text);
        record(c, &bad);
    }
    if (c->engine && !asked) refuse(c, line, c->engine, "there is no such engine here");
    if (!c->engine && !count) refuse(c, line, "any", "no engine takes it");
    return count;
}

/* fills: which; bare: optional arguments are NULL. */
static void check_data(check *c, const mica_problem *problem, const bool *fills, bool bare,
                       planned *plans, int count)
{
    char *line = cli_problem_text(problem);
    cli_case k;
    mica_status status = cli_case_init(&k, c->context, problem, bare);
    for (int fill = 0; cli_fill_names[fill] && status == MICA_OK && !c->lost; fill++) {
        if (!fills[fill] || cli_stopped()) continue;
        status = cli_case_fill(&k, (mica_fill)fill, c->seed);
        if (status == MICA_OK) status = cli_case_truth(&k);
        for (int i = 0; i < count && status == MICA_OK && !cli_stopped() && !c->lost; i++)
            run_engine(c, &k, plans[i].plan, &plans[i].verdict, line);
    }
    if (status != MICA_OK) {
        char text[400];
        outcome bad = {.line = line, .engine = plans[0].verdict.engine, .fill = "", .text = text};
        call_failed(c, status, &bad, text, sizeof text);
        record(c, &bad);
    }
    cli_case_free(&k);
    free(line);
}

static bool has_scalar(const char *op, const char *name)
{
    const char *scalar;
    double def;
    for (int i = 0; mica_op_scalar(op, i, &scalar, &def) == MICA_OK; i++)
        if (!strcmp(scalar, name)) return true;
    return false;
}

/* The same problem with alpha and beta set, on the plans that are there: scalars belong to runs. */
static void check_scaled(check *c, const cli_line *line, const char *scalars, mica_fill fill,
                         planned *plans, int count)
{
    mica_problem *problem;
    bool fills[CLI_FILLS] = {false};
    fills[fill] = c->fills[fill];
    char *text = cli_format("%s %s", line->text, scalars);
    if (mica_problem_from_text(text, &problem) == MICA_OK) {
        check_data(c, problem, fills, false, plans, count);
        mica_problem_destroy(problem);
    } else {
        cli_line_error(&c->lines, line->where, mica_error());
    }
    free(text);
}

static void check_bare(check *c, const mica_problem *problem, planned *plans, int count)
{
    bool fills[CLI_FILLS] = {false}, any = false;
    fills[MICA_FILL_RANDOM] = c->fills[MICA_FILL_RANDOM];
    mica_arg_info info;
    for (int i = 0; mica_problem_arg(problem, i, &info) == MICA_OK; i++)
        any |= info.optional && info.dir != MICA_UNUSED;
    if (any) check_data(c, problem, fills, true, plans, count);
}

static void check_line(check *c, const cli_line *line)
{
    planned plans[MAX_PLANS] = {0};
    c->weak = line->weak;
    mica_problem *problem = cli_line_problem(&c->lines, line);
    if (!problem) return;
    char *text = cli_problem_text(problem);
    int count = plan_engines(c, problem, text, plans);
    const char *op = mica_problem_op(problem);
    if (count) {
        check_data(c, problem, c->fills, false, plans, count);
        check_bare(c, problem, plans, count);
    }
    bool scaled = has_scalar(op, "alpha") && has_scalar(op, "beta") &&
                  !strstr(line->text, " alpha=") && !strstr(line->text, " beta=");
    if (count && scaled) {
        check_scaled(c, line, "alpha=2 beta=-1", MICA_FILL_EXACT, plans, count);
        check_scaled(c, line, "alpha=0.75 beta=0.5", MICA_FILL_RANDOM, plans, count);
    }
    for (int i = 0; i < count; i++) mica_plan_destroy(plans[i].plan);
    free(text);
    mica_problem_destroy(problem);
}

/* ---- summary ---- */

static void print_summary(const check *c)
{
    cli_table t;
    long passed = 0, failed = 0, skipped = 0;
    if (cli_stopped()) printf("interrupted; so far:\n");
    cli_table_begin(&t, "engine|>passed|>mismatch|>refused|>mistrusted|>skipped|>worst margin");
    for (int i = 0; i < c->engines; i++) {
        const check_total *e = &c->totals[i];
        cli_cell(&t, "%s", e->name);
        for (int s = 0; s < CHECK_STATUSES; s++) cli_cell(&t, "%ld", e->count[s]);
        cli_cell(&t, "%ld", e->skipped);
        cli_cell(&t, "%.3g", e->margin);
        passed += e->count[CHECK_PASSED];
        failed += e->count[CHECK_MISMATCH] + e->count[CHECK_REFUSED] + e->count[CHECK_MISTRUSTED] -
                  e->excused;
        skipped += e->skipped + e->excused;
    }
    if (!c->options.quiet) cli_table_print(&t, stdout);
    cli_table_end(&t);
    printf("%ld passed, %ld failed, %ld skipped (%s, %s)\n", passed, failed, skipped,
           c->device.name, c->device.model);
}

static int finish(check *c)
{
    int code = c->lost ? CLI_DEVICE_LOST : CLI_OK;
    cli_progress_clear(&c->progress);
    if (c->self_test && !check_self_test_summary(stdout)) c->failed = true;
    print_summary(c);
    if (c->expect >= 0 && c->expect != c->checks) {
        printf("%ld checks ran, %ld were expected\n", c->checks, c->expect);
        c->failed = true;
    }
    if (c->lines.count == 0 && c->lines.errors == 0) {
        cli_say("no problem line was given");
        code = cli_worse(code, CLI_USAGE);
    }
    if (c->lines.errors) {
        cli_say("%zu lines were in error", c->lines.errors);
        code = cli_worse(code, CLI_USAGE);
    }
    if (c->refused) code = cli_worse(code, CLI_UNSUPPORTED);
    if (c->failed || cli_stopped()) code = cli_worse(code, CLI_MISMATCH);
    return code;
}

static int run_all(check *c)
{
    if (c->device.offline) {
        cli_say("%s is only imagined: nothing runs there; --compile-only compiles for it",
                c->device.name);
        return CLI_USAGE;
    }
    if (c->options.json && !(c->json = cli_json_open(c->options.json))) return CLI_USAGE;
    cli_progress_begin(&c->progress, c->lines.count, c->options.quiet);
    for (size_t i = 0; i < c->lines.count && !cli_stopped() && !c->lost; i++) {
        cli_progress_step(&c->progress, i, c->lines.items[i].text);
        check_line(c, &c->lines.items[i]);
    }
    int code = finish(c);
    cli_json_close(c->json);
    return code;
}

int cmd_check(int argc, char **argv)
{
    check *c = cli_alloc(sizeof *c);
    *c = (check){.seed = 1, .expect = -1};
    cli_parse(argc, argv, "check", options, parse, "[FILE...] [PROBLEM LINE]", doc, c);
    bool any = false;
    for (int i = 0; cli_fill_names[i]; i++) any |= c->fills[i];
    for (int i = 0; cli_fill_names[i] && !any; i++) c->fills[i] = true;
    int code = cli_context(&c->options, &c->context, &c->device);
    if (code == CLI_OK) {
        cli_lines_read(&c->lines, c->options.args, c->options.arg_count);
        code = c->compile_only ? check_compile(c) : run_all(c);
        cli_lines_free(&c->lines);
        mica_context_destroy(c->context);
    }
    cli_options_free(&c->options);
    free(c);
    return code;
}
