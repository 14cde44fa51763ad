/* SPDX-License-Identifier: Apache-2.0
 * Problems too large for the reference, whose data repeats along dimension 0. A small problem of
 * one repetition brings the data and the truth; every repetition of the large one must have the
 * bits of the first, or stand the comparison itself. */
#include "check/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct repeat {
    check *c;
    const char *line;
    const mica_problem *problem;
    cli_case one;
    int args;
    mica_arg_info info[MICA_MAX_ARGS];
    cli_buffer buffers[MICA_MAX_ARGS];
    cli_buffer workspace;
} repeat;

/* ---- both problems side by side ---- */

static bool repeats(const repeat *r, int arg)
{
    return r->info[arg].tensor.rank > 0 &&
           r->info[arg].tensor.dims[0] != r->one.info[arg].tensor.dims[0];
}

static int64_t repetitions(const repeat *r, int arg)
{
    return repeats(r, arg) ? r->info[arg].tensor.dims[0] : 1;
}

/* Of the large tensor: the first repetition, or all of it where nothing repeats. */
static mica_tensor first_of(const repeat *r, int arg)
{
    mica_tensor t = r->info[arg].tensor;
    if (repeats(r, arg)) t.dims[0] = 1;
    return t;
}

/* Bytes from one repetition to the next. */
static int64_t step_of(const repeat *r, int arg)
{
    const mica_tensor *t = &r->info[arg].tensor;
    return repeats(r, arg) ? t->strides[0] * mica_dtype_bits(t->dtype) / 8 : 0;
}

/* The rule that is broken, or NULL. */
static const char *why_unfit(const repeat *r)
{
    const mica_problem *one = r->one.problem;
    if (strcmp(mica_problem_op(one), mica_problem_op(r->problem)) != 0 ||
        memcmp(mica_problem_scalars(one), mica_problem_scalars(r->problem),
               MICA_MAX_SCALARS * sizeof(double)) != 0)
        return "both need the same operation and scalars";
    for (int i = 0; i < r->args; i++) {
        const mica_tensor *a = &r->info[i].tensor, *b = &r->one.info[i].tensor;
        if (r->info[i].dir == MICA_UNUSED && r->one.info[i].dir == MICA_UNUSED) continue;
        if (r->info[i].dir != r->one.info[i].dir || a->dtype != b->dtype || a->rank != b->rank)
            return "both need the same arguments, types and ranks";
        if (mica_dtype_bits(a->dtype) < 8) return "elements of less than a byte cannot repeat";
        if (repeats(r, i) && b->dims[0] != 1) return "dimension 0 of what repeats must be 1";
        for (int d = 1; d < a->rank; d++)
            if (a->dims[d] != b->dims[d]) return "all dimensions but the first must agree";
    }
    return NULL;
}

/* ---- data ---- */

static void copy_first(const mica_tensor *first, int64_t low, int64_t span, unsigned char *to,
                       const unsigned char *from)
{
    if (span == mica_tensor_count(first) * mica_dtype_bits(first->dtype) / 8)
        memcpy(to + low, from + low, (size_t)span);
    else
        cli_copy_elements(first, low, to + low, from + low);
}

/* The content of the small problem's argument, in every repetition. */
static mica_status fill_argument(repeat *r, int arg)
{
    cli_buffer *b = &r->buffers[arg];
    const cli_buffer *one = &r->one.buffers[arg];
    mica_tensor first = first_of(r, arg);
    int64_t low, span = mica_tensor_span(&first, &low);
    if (!one->content) return MICA_OK;
    double *values = cli_alloc((size_t)mica_tensor_count(&first) * sizeof *values + 1);
    if (!b->content) b->content = cli_map(b->span);
    mica_status status = b->content ? MICA_OK : MICA_OUT_OF_MEMORY;
    unsigned char *base = b->content - b->first;
    if (status == MICA_OK)
        status = mica_tensor_load(&one->tensor, one->content - one->first, values);
    if (status == MICA_OK) status = mica_tensor_store(&first, values, base);
    for (int64_t i = 1; i < repetitions(r, arg) && step_of(r, arg) && status == MICA_OK; i++)
        copy_first(&first, low, span, base + i * step_of(r, arg), base);
    free(values);
    return status;
}

static mica_status run(repeat *r, const mica_plan *plan)
{
    mica_run go = {.scalars = mica_problem_scalars(r->problem)};
    mica_context *context = r->c->context;
    mica_status status = MICA_OK;
    cli_buffer_free(&r->workspace, context);
    for (int i = 0; i < r->args && status == MICA_OK; i++) {
        if (r->info[i].dir == MICA_UNUSED) continue;
        status = cli_buffer_prepare(&r->buffers[i], context, 0xff, 0);
        go.args[i] = cli_buffer_pointer(&r->buffers[i]);
    }
    int64_t need = (int64_t)mica_plan_workspace(plan);
    if (status == MICA_OK && need) {
        status = cli_buffer_init(&r->workspace, context, NULL, need, MICA_OUT);
        if (status == MICA_OK) status = cli_buffer_prepare(&r->workspace, context, 0xff, 0);
        go.workspace = cli_buffer_pointer(&r->workspace);
    }
    if (status == MICA_OK) status = mica_plan_run(plan, &go);
    if (status == MICA_OK) status = mica_synchronize(context, NULL);
    for (int i = 0; i < r->args && status == MICA_OK; i++)
        if (r->info[i].dir != MICA_UNUSED) status = cli_buffer_fetch(&r->buffers[i], context);
    if (status == MICA_OK && r->workspace.memory) status = cli_buffer_fetch(&r->workspace, context);
    return status;
}

/* ---- judging ---- */

static bool same_bits(const mica_tensor *first, int64_t low, int64_t span, const unsigned char *a,
                      const unsigned char *b, unsigned char *scratch)
{
    if (span == mica_tensor_count(first) * mica_dtype_bits(first->dtype) / 8)
        return !memcmp(a + low, b + low, (size_t)span);
    /* scratch holds zeros and the elements of a: those of b must change nothing. */
    unsigned char *other = scratch + span;
    cli_copy_elements(first, low, other, b + low);
    return !memcmp(scratch, other, (size_t)span);
}

/* Judges repetitions of an output; the first that is wrong, or -1. */
static int64_t judge_output(const repeat *r, int arg, cli_tolerance tolerance, double *margin,
                            cli_comparison *wrong)
{
    mica_tensor first = first_of(r, arg);
    int64_t low, span = mica_tensor_span(&first, &low), count = mica_tensor_count(&first), bad = -1;
    const unsigned char *base = cli_buffer_after(&r->buffers[arg]);
    double *got = cli_alloc((size_t)count * sizeof *got + 1);
    unsigned char *scratch = calloc(2, (size_t)span + 1);
    if (!scratch) return 0;
    cli_copy_elements(&first, low, scratch, base + low);
    for (int64_t i = 0; i < repetitions(r, arg) && bad < 0; i++) {
        const unsigned char *at = base + i * step_of(r, arg);
        if (i > 0 && same_bits(&first, low, span, base, at, scratch)) continue;
        mica_tensor_load(&first, at, got);
        cli_compare(first.dtype, tolerance, count, got, r->one.results[arg], r->one.magnitudes[arg],
                    wrong);
        *margin = fmax(*margin, wrong->margin);
        if (wrong->wrong) bad = i;
    }
    free(scratch);
    free(got);
    return bad;
}

static void judge(repeat *r, cli_tolerance tolerance, check_outcome *o, char *text, size_t size)
{
    for (int i = 0; i < r->args && o->status == CHECK_PASSED; i++) {
        const mica_arg_info *info = &r->info[i];
        cli_comparison wrong;
        if (info->dir == MICA_UNUSED) continue;
        if (!cli_buffer_intact(&r->buffers[i], info->name, text, size)) o->status = CHECK_MISMATCH;
        if (o->status != CHECK_PASSED || !cli_is_output(info)) continue;
        int64_t bad = judge_output(r, i, tolerance, &o->margin, &wrong);
        if (bad < 0) continue;
        o->status = CHECK_MISMATCH;
        snprintf(text, size, "%s: %lld of %lld elements are wrong in repetition %lld", info->name,
                 (long long)wrong.wrong, (long long)wrong.count, (long long)bad);
    }
    if (o->status == CHECK_PASSED && r->workspace.memory &&
        !cli_buffer_intact(&r->workspace, "workspace", text, size))
        o->status = CHECK_MISMATCH;
}

/* ---- the line ---- */

static void run_plan(repeat *r, const check_plan *p)
{
    char text[400] = "";
    cli_tolerance tolerance = cli_case_tolerance(&r->one, p->plan);
    check_outcome o = {.line = r->line,
                       .engine = p->verdict.engine,
                       .config = mica_plan_config(p->plan),
                       .fill = cli_fill_names[r->one.fill],
                       .text = text};
    mica_status status = run(r, p->plan);
    if (!check_call_failed(r->c, status, &o, text, sizeof text))
        judge(r, tolerance, &o, text, sizeof text);
    if (o.status == CHECK_PASSED) {
        cli_case_trust(&r->one, tolerance);
        if (*r->one.weak) {
            o.status = CHECK_MISTRUSTED;
            snprintf(text, sizeof text, "%s", r->one.weak);
        }
    }
    check_record(r->c, &o);
}

/* Before any engine ran. Memory that is lacking is no error of the line. */
static void report(repeat *r, const cli_line *line, mica_status status)
{
    char text[400];
    check_outcome bad = {.line = r->line, .engine = "any", .fill = "", .text = text};
    if (status == MICA_OK) return;
    check_call_failed(r->c, status, &bad, text, sizeof text);
    if (bad.status == CHECK_NO_MEMORY)
        check_record(r->c, &bad);
    else
        cli_line_error(&r->c->lines, line->where, text);
}

static mica_status init(repeat *r, const cli_line *line, const mica_problem *small)
{
    mica_status status = cli_case_init(&r->one, r->c->context, small, false);
    for (; r->args < MICA_MAX_ARGS; r->args++)
        if (mica_problem_arg(r->problem, r->args, &r->info[r->args]) != MICA_OK) break;
    const char *why = why_unfit(r);
    if (status == MICA_OK && why) {
        cli_line_error(&r->c->lines, line->where, why);
        return MICA_INVALID;
    }
    for (int i = 0; i < r->args && status == MICA_OK; i++)
        if (r->info[i].dir != MICA_UNUSED)
            status = cli_buffer_init(&r->buffers[i], r->c->context, &r->info[i].tensor, 0,
                                     r->info[i].dir);
    report(r, line, status);
    return status;
}

/* One fill says what there is to say about places, and each run moves gigabytes. */
static void run_plans(repeat *r, const cli_line *line, check_plan *plans, int count)
{
    mica_fill fill = mica_problem_exact(r->one.problem) ? MICA_FILL_EXACT : MICA_FILL_RANDOM;
    if (!r->c->fills[fill]) return;
    mica_status status = cli_case_fill(&r->one, fill, r->c->seed);
    if (status == MICA_OK) status = cli_case_truth(&r->one);
    for (int i = 0; i < r->args && status == MICA_OK; i++)
        if (r->info[i].dir != MICA_UNUSED) status = fill_argument(r, i);
    report(r, line, status);
    for (int i = 0; i < count && status == MICA_OK && !cli_stopped() && !r->c->lost; i++)
        run_plan(r, &plans[i]);
}

void check_repeats(check *c, const cli_line *line)
{
    repeat r = {.c = c};
    mica_problem *large = cli_line_problem(&c->lines, line), *small = NULL;
    if (!large) return;
    if (mica_problem_from_text(line->one, &small) != MICA_OK) {
        cli_line_error(&c->lines, line->where, mica_error());
        mica_problem_destroy(large);
        return;
    }
    char *text = cli_problem_text(large), *one = cli_problem_text(small);
    char *both = cli_format("%s # repeats: %s", text, one);
    check_plan *plans = cli_alloc(CHECK_MAX_PLANS * sizeof *plans);
    r.line = both;
    r.problem = large;
    c->weak = line->weak;
    mica_status status = init(&r, line, small);
    int count = status == MICA_OK ? check_plan_engines(c, large, both, plans) : 0;
    if (status == MICA_OK) run_plans(&r, line, plans, count);
    for (int i = 0; i < count; i++) mica_plan_destroy(plans[i].plan);
    for (int i = 0; i < r.args; i++) cli_buffer_free(&r.buffers[i], c->context);
    cli_buffer_free(&r.workspace, c->context);
    cli_case_free(&r.one);
    mica_problem_destroy(small);
    mica_problem_destroy(large);
    free(plans);
    free(both);
    free(one);
    free(text);
}
