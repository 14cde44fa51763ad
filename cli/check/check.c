/* SPDX-License-Identifier: Apache-2.0
 * `mica check`: runs problems on every engine and compares with the reference. */
#include "check/check.h"
#include "json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- command line ---- */

enum {
    KEY_FILL = 0x100,
    KEY_CONFIG,
    KEY_PICK,
    KEY_SEED,
    KEY_REFUSALS,
    KEY_MISTRUSTED,
    KEY_EXPECT,
    KEY_SELF,
    KEY_COMPILE,
    KEY_TABLE,
    KEY_UPDATE,
    KEY_SHARE,
    KEY_SECONDS,
    KEY_PART,
    KEY_PACKED,
    KEY_AGAINST,
    KEY_DIGEST
};

static const struct argp_option options[] = {
    {"engine", 'e', "NAME", 0,
     "only this engine; then its refusal is a failure; all: those too that are only taken by name",
     0},
    {"config", KEY_CONFIG, "TEXT", 0, "only this config; default: all configs of each engine", 0},
    {"pick", KEY_PICK, NULL, 0, "only the planner's config of each engine", 0},
    {"fill", KEY_FILL, "LIST", 0,
     "exact, random, same_sign, range, extreme, edges; default: all but edges", 0},
    {"against", KEY_AGAINST, "NAME", 0,
     "this engine's results on exact data are the truth, for problems too large for the reference",
     0},
    {"seed", KEY_SEED, "N", 0, "seed of the data; default 1", 0},
    {"allow-refusals", KEY_REFUSALS, NULL, 0, "a refusal is no failure", 0},
    {"allow-mistrusted", KEY_MISTRUSTED, NULL, 0,
     "a comparison that could hardly fail is no failure", 0},
    {"expect", KEY_EXPECT, "N", 0, "fail unless exactly N checks ran", 0},
    {"self-test", KEY_SELF, NULL, 0, "break results on purpose; fail unless each is noticed", 0},
    {"packed", KEY_PACKED, "LIST", 0, "runs get these inputs packed; all: every input", 0},
    {"digest", KEY_DIGEST, "FILE", OPTION_ARG_OPTIONAL,
     "write a line for each check: a digest of its results' bits, engine, config, fill, problem; "
     "to standard output, or with `=' to FILE",
     0},
    {"verbose", 'v', NULL, 0, "a line for each check", 0},
    {"compile-only", KEY_COMPILE, NULL, 0,
     "plan and compile on every accepting engine, run nothing", 0},
    {"table", KEY_TABLE, "FILE", 0, "with --compile-only: compare kernels with this table", 0},
    {"update", KEY_UPDATE, NULL, 0, "with --table: write it", 0},
    {"share", KEY_SHARE, "I/N", 0,
     "with --compile-only: only every N-th problem, from number I (of 0 to N-1) on", 0},
    {"seconds", KEY_SECONDS, "S", 0,
     "begin no problem after S seconds of processor time; problems come in an order that --part "
     "shuffles",
     0},
    {"part", KEY_PART, "K", 0, "with --seconds: which order; default 0", 0},
    {0}};

static const char doc[] =
    "Runs problems on every engine of the device that accepts them, with each of its configs, on "
    "exact, random and adversarial data with poisoned memory, and compares each element with the "
    "reference."
    "\vFILE holds a problem line per line; - is standard input. Commas in a value make one problem "
    "each (epilogue: use |). A line whose comment reads `# mistrusted: why' may "
    "compare what could hardly fail. A file that ends in .graph is a graph, and so is `graph "
    "file=PATH without=NAME,...': it runs fused, unfused and node by node, and is compared with "
    "the "
    "references of its nodes; one with extents at the lowest, the highest and some between, or at "
    "`extent=N=37,...'.\n\nExamples:\n"
    "  mica check net.graph\n"
    "  mica check gemm a=f32,bf16:64x32 b=f32:32x48\n"
    "  mica check --device cuda:0 --json check-conv.jsonl tests/cases/conv.txt\n"
    "  mica check --engine ref --fill exact --seed 7 \"softmax x=f32:4x1000 axis=1\"\n"
    "  mica check --digest=before.txt tests/cases/softmax.txt\n"
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
            argp_error(state,
                       "--fill=%s: known are exact, random, same_sign, range, extreme, edges",
                       list);
        c->fills[i] = true;
        s += length + (s[length] == ',');
    }
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    check *c = state->input;
    int length = 0;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &c->options;
        return 0;
    case 'e':
        if (strchr(arg, ',')) argp_error(state, "--engine takes one name, not %s", arg);
        c->all = !strcmp(arg, "all");
        c->engine = c->all ? NULL : arg;
        return 0;
    case KEY_CONFIG:
        c->config = arg;
        return 0;
    case KEY_PICK:
        c->pick = true;
        return 0;
    case KEY_AGAINST:
        c->against = arg;
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
    case KEY_DIGEST:
        c->digest_path = arg ? arg : "-";
        c->options.quiet |= !arg;
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
    case KEY_PACKED:
        c->packed = arg;
        return 0;
    case KEY_UPDATE:
        c->update = true;
        return 0;
    case KEY_SHARE:
        if (sscanf(arg, "%ld/%ld%n", &c->share, &c->shares, &length) != 2 || arg[length] ||
            c->share < 0 || c->shares <= c->share)
            argp_error(state, "--share takes I/N with 0 <= I < N, not %s", arg);
        return 0;
    case KEY_SECONDS:
        c->seconds = cli_number(state, "--seconds", arg, 0);
        return 0;
    case KEY_PART:
        c->part = (uint64_t)cli_number(state, "--part", arg, 0);
        return 0;
    case ARGP_KEY_SUCCESS:
        for (int i = 0; c->against && cli_fill_names[i]; i++)
            if (c->fills[i] && i != MICA_FILL_EXACT)
                argp_error(state, "--against compares exact results: --fill=exact, not %s",
                           cli_fill_names[i]);
        if (c->against && c->engine && !strcmp(c->against, c->engine))
            argp_error(state, "--against %s and --engine %s: it would be compared with itself",
                       c->against, c->engine);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* ---- one engine on one case ---- */

/* The second run has other poison: what is left of it shows as a difference, even where 0xFF is a
 * legal value, or NaN the right one (a GPU's NaN with its sign turned is 0xFF throughout). The
 * third has each pointer one element off its alignment. */
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

static void self_test(check *c, cli_case *k, const mica_plan *plan, const check_outcome *o)
{
    if (cli_case_run(k, plan, &placements[0]) != MICA_OK) return;
    if (check_self_test(k, cli_case_tolerance(k, plan)) == 0) return;
    printf("  in the self-test of %s %s\n  %s\n", o->engine, o->fill, o->line);
    c->failed = true;
}

/* The reference as an engine is compared with itself: one run, with the poison that no result
 * resembles, tells whether its strides, scalars and outputs are those that the plan promises, and
 * more runs tell no more. Asked for by name it is tested as any other. */
static bool is_own_truth(const check *c, const mica_verdict *v)
{
    return v->reference && !c->against && !(c->engine && !strcmp(c->engine, v->engine));
}

static bool runs_on(const check *c, const mica_verdict *v, mica_fill fill)
{
    return !is_own_truth(c, v) || fill == c->first_fill;
}

static void run_plan(check *c, cli_case *k, const mica_plan *plan, const mica_verdict *v,
                     const char *line)
{
    if (!runs_on(c, v, k->fill)) return;
    int first = is_own_truth(c, v) ? AGAIN : 0, end = is_own_truth(c, v) ? AGAIN + 1 : PLACEMENTS;
    char text[400] = "";
    cli_tolerance tolerance = cli_case_tolerance(k, plan);
    /* Where results share infinities and NaN of the inputs there is nothing to compare; and another
     * engine's results say nothing of the terms that an inexact one may err by. */
    if (!isfinite(tolerance.least) || (c->against && !tolerance.exact)) {
        check_total_of(c, v->engine)->skipped++;
        return;
    }
    check_outcome o = {.line = line,
                       .engine = v->engine,
                       .config = mica_plan_config(plan),
                       .fill = cli_fill_names[k->fill],
                       .text = text};
    cli_judgement j = {.ok = true, .arg = -1};
    cli_digest digest = {.count = 0};
    for (int i = first; i < end && o.status == CHECK_PASSED; i++) {
        if (i == IN_PLACE && !cli_case_has_in_place(k)) continue;
        mica_status status = cli_case_run(k, plan, &placements[i]);
        /* Another library may take fewer scalars than its plan says, and pointers that are aligned.
         */
        if (v->peer && status == MICA_UNSUPPORTED && i > first) continue;
        if (v->peer && status == MICA_UNSUPPORTED) o.status = CHECK_REFUSED;
        if (o.status == CHECK_REFUSED) {
            snprintf(text, sizeof text, "%s", mica_error());
            break;
        }
        if (c->zeroed && status == MICA_INVALID) { /* a 0 that is refused when it runs */
            check_total_of(c, v->engine)->skipped++;
            return;
        }
        if (check_call_failed(c, status, &o, text, sizeof text)) break;
        cli_case_judge(k, tolerance, &j);
        if (c->digests) cli_digest_add(&digest, k);
        o.margin = fmax(o.margin, j.margin);
        if (!j.ok) {
            o.status = CHECK_MISMATCH;
            describe_wrong(k, &j, placements[i].what, text, sizeof text);
        }
        if (i == first) cli_case_keep(k);
        if (i == AGAIN && v->deterministic && o.status == CHECK_PASSED &&
            !cli_case_repeats(k, text, sizeof text))
            o.status = CHECK_MISMATCH;
    }
    bool adversarial = k->fill >= MICA_FILL_RANGE;
    if (o.status == CHECK_PASSED && !adversarial) {
        cli_case_trust(k, tolerance);
        if (*k->weak) {
            o.status = CHECK_MISTRUSTED;
            snprintf(text, sizeof text, "%s", k->weak);
        }
    }
    check_record(c, &o);
    if (v->deterministic) check_write_digest(c, &o, &digest);
    if (j.arg >= 0) check_print_wrong(k->info[j.arg].name, &k->info[j.arg].tensor, &j.wrong);
    if (c->self_test && o.status == CHECK_PASSED) self_test(c, k, plan, &o);
}

/* ---- one problem ---- */

const char *check_only(const check *c, const mica_problem *problem, const char *named)
{
    mica_verdict v;
    if (c->engine || c->all || !named) return c->engine;
    for (int i = 0; mica_problem_verdict(c->context, problem, i, &v) == MICA_OK; i++)
        if (!strcmp(v.engine, named)) return named;
    return NULL;
}

static bool wanted(const check *c, const char *only, const mica_verdict *v)
{
    if (only) return !strcmp(only, v->engine);
    return (c->all || !mica_verdict_needs_name(v)) &&
           !(c->against && !strcmp(c->against, v->engine));
}

static void refuse(check *c, const char *line, const char *engine, const char *reason)
{
    check_record(
        c,
        &(check_outcome){
            .line = line, .engine = engine, .fill = "", .status = CHECK_REFUSED, .text = reason});
}

/* Plans with every config of an engine that takes the problem; returns how many were looked at. A
 * peer finds out only now what it has: reason, empty before, is then why the first was refused. */
static int plan_configs(check *c, const mica_problem *problem, const char *line,
                        const mica_verdict *v, check_plan *plans, int *count, char *reason,
                        size_t size)
{
    int seen = 0;
    char config[sizeof v->config];
    for (int i = 0; *count < CHECK_MAX_PLANS && (i == 0 || !c->pick); i++) {
        if (mica_problem_config(c->context, problem, v->engine, i, config, sizeof config, NULL) !=
            MICA_OK)
            break;
        if (c->config && strcmp(c->config, config) != 0) continue;
        seen++;
        mica_options o = {.engine = v->engine,
                          .config = config,
                          .nondeterministic = true,
                          .packed = c->line_packed};
        mica_status status = mica_plan_problem(c->context, problem, &o, &plans[*count].plan);
        if (status == MICA_OK) {
            plans[(*count)++].verdict = *v;
            continue;
        }
        if (v->peer && status == MICA_UNSUPPORTED) {
            if (!*reason) snprintf(reason, size, "%s", mica_error());
            continue;
        }
        /* It said that it takes the problem: whatever stops it now is a failure. */
        char text[400];
        check_outcome bad = {
            .line = line, .engine = v->engine, .config = config, .fill = "", .text = text};
        check_call_failed(c, status, &bad, text, sizeof text);
        check_record(c, &bad);
    }
    return seen;
}

/* Plans on every engine that takes it; returns how many. */
int check_plan_engines(check *c, const mica_problem *problem, const char *line, check_plan *plans)
{
    int count = 0;
    bool asked = false;
    const char *only = check_only(c, problem, c->line_engine);
    mica_verdict v;
    for (int i = 0; count < CHECK_MAX_PLANS; i++) {
        if (mica_problem_verdict(c->context, problem, i, &v) != MICA_OK) break;
        if (!wanted(c, only, &v)) continue;
        asked = true;
        const char *reason = v.status == MICA_OK ? NULL : v.reason;
        char built[400] = "";
        int before = count;
        if (!reason && plan_configs(c, problem, line, &v, plans, &count, built, sizeof built) == 0)
            reason = "it has no config of that name";
        if (!reason && count == before && *built) reason = built;
        if (reason && only) refuse(c, line, v.engine, reason);
        if (reason && !only) check_total_of(c, v.engine)->skipped++;
    }
    char *missing = only && !asked ? cli_engine_refusal(c->context, problem, only) : NULL;
    if (missing) refuse(c, line, only, missing);
    free(missing);
    if (!only && !count) refuse(c, line, "any", "no engine takes it");
    return count;
}

/* --against: the plan whose results are the truth. A refusal where there is none. */
static mica_plan *plan_truth(check *c, const mica_problem *problem, const char *line)
{
    mica_plan *plan = NULL;
    mica_options o = {.engine = c->against, .packed = c->line_packed};
    if (mica_plan_problem(c->context, problem, &o, &plan) != MICA_OK)
        refuse(c, line, c->against, mica_error());
    return plan;
}

static bool any_to_run(const check *c, const check_plan *plans, int count, mica_fill fill)
{
    for (int i = 0; i < count; i++)
        if (runs_on(c, &plans[i].verdict, fill)) return true;
    return false;
}

/* fills: which; bare: optional arguments are NULL. */
static void check_data(check *c, const mica_problem *problem, const bool *fills, bool bare,
                       check_plan *plans, int count)
{
    char *line = cli_line_text(problem, c->line_packed);
    cli_case k;
    mica_plan *truth = c->against && fills[MICA_FILL_EXACT] ? plan_truth(c, problem, line) : NULL;
    mica_status status = cli_case_init(&k, c->context, problem, bare);
    k.packed = c->line_packed;
    for (int fill = 0; cli_fill_names[fill] && status == MICA_OK && !c->lost; fill++) {
        if (!fills[fill] || cli_stopped() || (c->against && !truth)) continue;
        if (!any_to_run(c, plans, count, (mica_fill)fill)) continue;
        status = cli_case_fill(&k, (mica_fill)fill, c->seed);
        if (status == MICA_OK && truth && !cli_case_tolerance(&k, truth).exact) {
            refuse(c, line, c->against, "its results are not exact and so no truth");
            continue;
        }
        if (status == MICA_OK) status = truth ? cli_case_truth_of(&k, truth) : cli_case_truth(&k);
        for (int i = 0; i < count && status == MICA_OK && !cli_stopped() && !c->lost; i++)
            run_plan(c, &k, plans[i].plan, &plans[i].verdict, line);
    }
    if (status != MICA_OK) {
        char text[400];
        check_outcome bad = {
            .line = line, .engine = plans[0].verdict.engine, .fill = "", .text = text};
        check_call_failed(c, status, &bad, text, sizeof text);
        check_record(c, &bad);
    }
    mica_plan_destroy(truth);
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
                         check_plan *plans, int count)
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

static void check_bare(check *c, const mica_problem *problem, check_plan *plans, int count)
{
    bool fills[CLI_FILLS] = {false}, any = false;
    fills[MICA_FILL_RANDOM] = c->fills[MICA_FILL_RANDOM];
    mica_arg_info info;
    for (int i = 0; mica_problem_arg(problem, i, &info) == MICA_OK; i++)
        any |= info.optional && info.dir != MICA_UNUSED;
    if (any) check_data(c, problem, fills, true, plans, count);
}

void check_problem(check *c, const mica_problem *problem, const char *line, mica_fill fill)
{
    bool fills[CLI_FILLS] = {false};
    fills[fill] = true;
    check_plan *plans = cli_alloc(CHECK_MAX_PLANS * sizeof *plans);
    const int count = check_plan_engines(c, problem, line, plans);
    if (count) check_data(c, problem, fills, false, plans, count);
    for (int i = 0; i < count; i++) mica_plan_destroy(plans[i].plan);
    free(plans);
}

static void check_line(check *c, const cli_line *line)
{
    c->line_engine = line->engine;
    if (line->one) {
        check_repeats(c, line);
        return;
    }
    c->weak = line->weak;
    mica_problem *problem = cli_line_problem(&c->lines, line);
    if (!problem) return;
    c->line_packed = cli_line_packed(line, problem, c->packed);
    check_plan *plans = cli_alloc(CHECK_MAX_PLANS * sizeof *plans);
    char *text = cli_line_text(problem, c->line_packed);
    int count = check_plan_engines(c, problem, text, plans);
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
    free(plans);
    free(text);
    if (c->fills[MICA_FILL_EDGES]) check_zeroed(c, line, problem);
    mica_problem_destroy(problem);
}

/* ---- summary ---- */

static void print_summary(const check *c)
{
    if (c->engines == 0 && c->lines.count == 0) return;
    cli_table t;
    long passed = 0, failed = 0, skipped = 0;
    if (cli_stopped()) printf("interrupted; so far:\n");
    cli_table_begin(
        &t, "engine|>passed|>mismatch|>refused|>mistrusted|>no memory|>skipped|>worst margin");
    for (int i = 0; i < c->engines; i++) {
        const check_total *e = &c->totals[i];
        cli_cell(&t, "%s", e->name);
        for (int s = 0; s < CHECK_STATUSES; s++) cli_cell(&t, "%ld", e->count[s]);
        cli_cell(&t, "%ld", e->skipped);
        cli_cell(&t, "%.3g", e->margin);
        passed += e->count[CHECK_PASSED];
        failed += e->count[CHECK_MISMATCH] + e->count[CHECK_REFUSED] + e->count[CHECK_MISTRUSTED] +
                  e->count[CHECK_NO_MEMORY] - e->excused;
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
    if (c->lines.count == 0 && c->lines.errors == 0 && c->graphs.count + c->graphs.errors == 0) {
        cli_say("no problem line was given");
        code = cli_worse(code, CLI_USAGE);
    }
    if (c->graphs.errors) code = cli_worse(code, CLI_USAGE);
    if (c->lines.errors) {
        cli_say("%s in error", cli_count((long long)c->lines.errors, "line"));
        code = cli_worse(code, CLI_USAGE);
    }
    if (c->refused) code = cli_worse(code, CLI_UNSUPPORTED);
    if (c->failed || cli_stopped()) code = cli_worse(code, CLI_MISMATCH);
    return code;
}

static int run_all(check *c)
{
    if (c->device.offline) {
        cli_say("%s is an offline device: nothing runs there; --compile-only compiles for it",
                c->device.name);
        return CLI_USAGE;
    }
    if (c->options.json && !(c->json = cli_json_open(c->options.json))) return CLI_USAGE;
    if (c->digest_path && !(c->digests = cli_json_open(c->digest_path))) return CLI_USAGE;
    cli_progress_begin(&c->progress, c->lines.count, c->options.quiet);
    size_t i = 0;
    check_graphs(c);
    for (; i < c->lines.count && !cli_stopped() && !c->lost && !check_time_is_up(c, i); i++) {
        cli_progress_step(&c->progress, i, c->lines.items[i].text);
        check_line(c, &c->lines.items[i]);
    }
    check_say_part(c, i);
    int code = finish(c);
    cli_json_close(c->json);
    cli_json_close(c->digests);
    return code;
}

/* Graphs compile like plans; the table of kernels is one of problem lines. */
static int compile_graphs(check *c)
{
    check_graphs(c);
    return finish(c);
}

int cmd_check(int argc, char **argv)
{
    check *c = cli_alloc(sizeof *c);
    *c = (check){.seed = 1, .expect = -1};
    cli_parse(argc, argv, "check", options, parse, "[FILE...] [PROBLEM LINE]", doc, c);
    bool any = false;
    for (int i = 0; cli_fill_names[i]; i++) any |= c->fills[i];
    for (int i = 0; cli_fill_names[i] && !any; i++)
        c->fills[i] = c->against ? i == MICA_FILL_EXACT : i != MICA_FILL_EDGES;
    while (!c->fills[c->first_fill]) c->first_fill++;
    int code = cli_context(&c->options, &c->context, &c->device);
    if (code == CLI_OK) {
        cli_graphs_take(&c->graphs, &c->options);
        cli_lines_read(&c->lines, c->options.args, c->options.arg_count);
        bool known = cli_engines_known("--engine", c->engine, &c->lines) &&
                     cli_engines_known("--against", c->against, &c->lines);
        if (c->seconds > 0) cli_lines_shuffle(&c->lines, c->part);
        const bool graphs_alone = c->graphs.count && !c->options.arg_count;
        if (!known)
            code = CLI_USAGE;
        else if (c->compile_only && graphs_alone)
            code = compile_graphs(c);
        else
            code = c->compile_only ? check_compile(c) : run_all(c);
        cli_graphs_free(&c->graphs);
        cli_lines_free(&c->lines);
        mica_context_destroy(c->context);
    }
    cli_options_free(&c->options);
    free(c);
    return code;
}
