/* SPDX-License-Identifier: Apache-2.0
 * A problem with its data and its truth. */
#include "case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const cli_fill_names[] = {
    [MICA_FILL_EXACT] = "exact",         [MICA_FILL_RANDOM] = "random",
    [MICA_FILL_SAME_SIGN] = "same_sign", [MICA_FILL_RANGE] = "range",
    [MICA_FILL_EXTREME] = "extreme",     NULL};

bool cli_is_output(const mica_arg_info *info)
{
    return info->dir == MICA_OUT || info->dir == MICA_INOUT;
}

static size_t value_bytes(const mica_tensor *t)
{
    return (size_t)mica_tensor_count(t) * sizeof(double) + 1;
}

/* ---- life ---- */

mica_status cli_case_init(cli_case *c, mica_context *context, const mica_problem *problem)
{
    *c = (cli_case){.context = context, .problem = problem};
    mica_status status = MICA_OK;
    for (; c->args < MICA_MAX_ARGS && status == MICA_OK; c->args++) {
        int i = c->args;
        if (mica_problem_arg(problem, i, &c->info[i]) != MICA_OK) break;
        if (c->info[i].dir == MICA_UNUSED) continue;
        const mica_tensor *t = &c->info[i].tensor;
        status = cli_buffer_init(&c->buffers[i], context, t, 0, c->info[i].dir);
        if (!cli_is_output(&c->info[i])) continue;
        c->results[i] = malloc(value_bytes(t));
        c->magnitudes[i] = malloc(value_bytes(t));
        c->kept[i] = malloc((size_t)c->buffers[i].span + 1);
        if (!c->results[i] || !c->magnitudes[i] || !c->kept[i]) status = MICA_OUT_OF_MEMORY;
    }
    return status;
}

void cli_case_free(cli_case *c)
{
    cli_buffer_free(&c->workspace, c->context);
    for (int i = 0; i < c->args; i++) {
        cli_buffer_free(&c->buffers[i], c->context);
        free(c->results[i]);
        free(c->magnitudes[i]);
        free(c->kept[i]);
    }
}

/* ---- data and truth ---- */

static bool old_content_enters(const mica_problem *problem)
{
    const char *name;
    double def;
    for (int i = 0; mica_op_scalar(mica_problem_op(problem), i, &name, &def) == MICA_OK; i++)
        if (!strcmp(name, "beta")) return mica_problem_scalars(problem)[i] != 0;
    return false;
}

mica_status cli_case_fill(cli_case *c, mica_fill fill, uint64_t seed)
{
    c->fill = fill;
    c->exact = fill == MICA_FILL_EXACT && mica_problem_exact(c->problem);
    bool old = old_content_enters(c->problem);
    mica_status status = MICA_OK;
    for (int i = 0; i < c->args && status == MICA_OK; i++) {
        mica_dir dir = c->info[i].dir;
        if (dir == MICA_UNUSED) continue;
        if (dir == MICA_OUT && !old) {
            cli_buffer_content(&c->buffers[i], NULL);
            continue;
        }
        double *values = malloc(value_bytes(&c->info[i].tensor));
        if (!values) return MICA_OUT_OF_MEMORY;
        status = mica_problem_fill(c->problem, i, fill, seed, values);
        if (status == MICA_OK) status = cli_buffer_content(&c->buffers[i], values);
        free(values);
    }
    return status;
}

mica_status cli_case_truth(cli_case *c)
{
    void *args[MICA_MAX_ARGS] = {0};
    for (int i = 0; i < c->args; i++)
        if (c->buffers[i].content) args[i] = c->buffers[i].content - c->buffers[i].first;
    return mica_problem_reference(c->problem, args, c->results, c->magnitudes);
}

double cli_plan_phi(const mica_plan *plan)
{
    mica_contract contract;
    double phi = 0;
    if (mica_plan_contract(plan, &contract, &phi) != MICA_OK) return 0;
    /* A unit in the last place is two unit roundoffs. */
    return phi + 2 * contract.ulps * contract.unit;
}

/* ---- running ---- */

static mica_status prepare(cli_case *c, const mica_plan *plan, int poison, int shift, mica_run *run)
{
    mica_status status = MICA_OK;
    for (int i = 0; i < c->args && status == MICA_OK; i++) {
        if (c->info[i].dir == MICA_UNUSED) continue;
        int bytes = mica_dtype_bits(c->info[i].tensor.dtype) / 8;
        status = cli_buffer_prepare(&c->buffers[i], c->context, poison,
                                    (int64_t)shift * (bytes ? bytes : 1));
        run->args[i] = cli_buffer_pointer(&c->buffers[i]);
    }
    int64_t need = (int64_t)mica_plan_workspace(plan);
    if (status != MICA_OK || need == 0) return status;
    status = cli_buffer_init(&c->workspace, c->context, NULL, need, MICA_OUT);
    if (status == MICA_OK) status = cli_buffer_prepare(&c->workspace, c->context, poison, 0);
    run->workspace = cli_buffer_pointer(&c->workspace);
    return status;
}

mica_status cli_case_run(cli_case *c, const mica_plan *plan, int poison, int shift)
{
    mica_run run = {.scalars = mica_problem_scalars(c->problem)};
    cli_buffer_free(&c->workspace, c->context);
    mica_status status = prepare(c, plan, poison, shift, &run);
    if (status == MICA_OK) status = mica_plan_run(plan, &run);
    if (status == MICA_OK) status = mica_synchronize(c->context, NULL);
    for (int i = 0; i < c->args && status == MICA_OK; i++)
        if (c->info[i].dir != MICA_UNUSED) status = cli_buffer_fetch(&c->buffers[i], c->context);
    if (status == MICA_OK && c->workspace.memory)
        status = cli_buffer_fetch(&c->workspace, c->context);
    return status;
}

/* ---- judging ---- */

static void fail(cli_judgement *j, int arg)
{
    j->ok = false;
    j->arg = arg;
}

static void judge_elements(const cli_case *c, int arg, double phi, cli_judgement *j)
{
    const mica_arg_info *info = &c->info[arg];
    const cli_buffer *b = &c->buffers[arg];
    int64_t count = mica_tensor_count(&info->tensor);
    double *got = cli_alloc(value_bytes(&info->tensor));
    cli_comparison r;
    mica_tensor_load(&info->tensor, cli_buffer_after(b), got);
    cli_compare(info->tensor.dtype, (cli_tolerance){phi, c->exact}, count, got, c->results[arg],
                c->magnitudes[arg], &r);
    if (r.margin > j->margin) j->margin = r.margin;
    if (r.wrong && j->ok) {
        fail(j, arg);
        j->wrong = r;
    }
    /* A NaN where NaN is right must be a computed one. */
    for (int64_t i = 0; i < count && j->ok; i++) {
        if (!isnan(got[i]) || !cli_buffer_poisoned(b, i)) continue;
        snprintf(j->text, sizeof j->text, "%s: element %lld was never written", info->name,
                 (long long)i);
        fail(j, -1);
    }
    free(got);
}

void cli_case_judge(const cli_case *c, double phi, cli_judgement *j)
{
    *j = (cli_judgement){.ok = true, .arg = -1};
    for (int i = 0; i < c->args; i++) {
        if (c->info[i].dir == MICA_UNUSED) continue;
        if (j->ok && !cli_buffer_intact(&c->buffers[i], c->info[i].name, j->text, sizeof j->text))
            fail(j, -1);
        if (cli_is_output(&c->info[i])) judge_elements(c, i, phi, j);
    }
    if (j->ok && c->workspace.memory &&
        !cli_buffer_intact(&c->workspace, "workspace", j->text, sizeof j->text))
        fail(j, -1);
}

void cli_case_trust(cli_case *c, double phi)
{
    c->weak[0] = 0;
    for (int i = 0; i < c->args && !c->weak[0]; i++) {
        if (!cli_is_output(&c->info[i])) continue;
        char why[160];
        const mica_tensor *t = &c->info[i].tensor;
        cli_trust(t->dtype, (cli_tolerance){phi, c->exact}, mica_tensor_count(t), c->results[i],
                  c->magnitudes[i], why, sizeof why);
        if (*why) snprintf(c->weak, sizeof c->weak, "%s: %s", c->info[i].name, why);
    }
}

/* ---- repetition ---- */

void cli_case_keep(cli_case *c)
{
    for (int i = 0; i < c->args; i++) {
        const cli_buffer *b = &c->buffers[i];
        if (c->kept[i]) memcpy(c->kept[i], b->after + b->low, (size_t)b->span);
    }
}

bool cli_case_repeats(const cli_case *c, char *text, size_t size)
{
    bool ok = true;
    for (int i = 0; i < c->args && ok; i++) {
        const cli_buffer *b = &c->buffers[i];
        if (!c->kept[i] || b->span == 0) continue;
        unsigned char *again = cli_alloc((size_t)b->span);
        memcpy(again, c->kept[i], (size_t)b->span);
        cli_copy_elements(&b->tensor, b->first, again, b->after + b->low);
        ok = !memcmp(again, c->kept[i], (size_t)b->span);
        free(again);
        if (!ok)
            snprintf(text, size, "%s: a second run on the same data gave other bits",
                     c->info[i].name);
    }
    return ok;
}
