/* SPDX-License-Identifier: Apache-2.0
 * A problem with its data and its truth. */
#include "check/case.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const cli_fill_names[] = {[MICA_FILL_EXACT] = "exact",
                                      [MICA_FILL_RANDOM] = "random",
                                      [MICA_FILL_SAME_SIGN] = "same_sign",
                                      [MICA_FILL_RANGE] = "range",
                                      [MICA_FILL_EXTREME] = "extreme",
                                      [MICA_FILL_EDGES] = "edges",
                                      NULL};

bool cli_is_output(const mica_arg_info *info)
{
    return info->dir == MICA_OUT || info->dir == MICA_INOUT;
}

static size_t value_bytes(const mica_tensor *t)
{
    return (size_t)mica_tensor_count(t) * sizeof(double) + 1;
}

/* ---- life ---- */

mica_status cli_case_init(cli_case *c, mica_context *context, const mica_problem *problem,
                          bool bare)
{
    *c = (cli_case){.context = context, .problem = problem};
    mica_status status = MICA_OK;
    for (; c->args < MICA_MAX_ARGS && status == MICA_OK; c->args++) {
        int i = c->args;
        if (mica_problem_arg(problem, i, &c->info[i]) != MICA_OK) break;
        if (bare && c->info[i].optional) c->info[i].dir = MICA_UNUSED;
        if (c->info[i].dir == MICA_UNUSED) continue;
        const mica_tensor *t = &c->info[i].tensor;
        status = cli_buffer_init(&c->buffers[i], context, t, 0, c->info[i].dir);
        if (!cli_is_output(&c->info[i])) continue;
        c->results[i] = malloc(value_bytes(t));
        c->magnitudes[i] = malloc(value_bytes(t));
        c->kept[i] = cli_map(c->buffers[i].span);
        if (!c->results[i] || !c->magnitudes[i] || !c->kept[i]) status = MICA_OUT_OF_MEMORY;
    }
    return status;
}

void cli_case_free(cli_case *c)
{
    cli_buffer_free(&c->workspace, c->context);
    for (int i = 0; i < c->args; i++) {
        cli_buffer_free(&c->packs[i], c->context);
        cli_unmap(c->kept[i], c->buffers[i].span);
        cli_buffer_free(&c->buffers[i], c->context);
        free(c->results[i]);
        free(c->magnitudes[i]);
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
    c->largest = 1;
    c->finite = true;
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
        memset(values, 0, value_bytes(&c->info[i].tensor));
        status = mica_problem_fill(c->problem, i, fill, seed, values);
        int64_t count = mica_tensor_count(&c->info[i].tensor);
        for (int64_t n = 0; n < count; n++)
            if (!isfinite(values[n]))
                c->finite = false;
            else if (fabs(values[n]) > c->largest)
                c->largest = fabs(values[n]);
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

/* The content of an argument with its largest magnitude in all places; NULL: it has none. */
static unsigned char *levelled(const cli_case *c, int i)
{
    const mica_tensor *t = &c->info[i].tensor;
    const cli_buffer *b = &c->buffers[i];
    int64_t count = mica_tensor_count(t);
    if (!b->content || count == 0) return NULL;
    double *values = cli_alloc(value_bytes(t)), most = 0;
    unsigned char *copy = cli_alloc((size_t)b->span);
    mica_tensor_load(t, b->content - b->first, values);
    for (int64_t n = 0; n < count; n++) most = fmax(most, fabs(values[n]));
    for (int64_t n = 0; n < count; n++) values[n] = most;
    mica_tensor_store(t, values, copy - b->first);
    free(values);
    return copy;
}

/* The largest magnitude sum that inputs as large as these could have. */
static double largest_magnitude(const cli_case *c)
{
    unsigned char *copies[MICA_MAX_ARGS] = {0};
    void *args[MICA_MAX_ARGS] = {0};
    double *results[MICA_MAX_ARGS] = {0}, *magnitudes[MICA_MAX_ARGS] = {0}, most = 0;
    for (int i = 0; i < c->args; i++) {
        copies[i] = levelled(c, i);
        if (copies[i]) args[i] = copies[i] - c->buffers[i].first;
        if (!c->results[i]) continue;
        results[i] = cli_alloc(value_bytes(&c->info[i].tensor));
        magnitudes[i] = cli_alloc(value_bytes(&c->info[i].tensor));
    }
    mica_status status = mica_problem_reference(c->problem, args, results, magnitudes);
    for (int i = 0; i < c->args; i++) {
        int64_t count = magnitudes[i] ? mica_tensor_count(&c->info[i].tensor) : 0;
        for (int64_t n = 0; n < count && status == MICA_OK; n++)
            most = fmax(most, magnitudes[i][n]);
        free(results[i]);
        free(magnitudes[i]);
        free(copies[i]);
    }
    return most;
}

cli_tolerance cli_case_tolerance(const cli_case *c, const mica_plan *plan)
{
    mica_contract k;
    double phi = 0;
    if (mica_plan_contract(plan, &k, &phi) != MICA_OK) return (cli_tolerance){0};
    /* A unit in the last place is two unit roundoffs. */
    phi += 2 * k.ulps * k.unit;
    /* Each term may lose a subnormal of the accumulator, which another factor then multiplies. */
    double tiny = k.unit < 0x1p-40 ? cli_tiny(MICA_F64) : cli_tiny(MICA_F32);
    if (k.flushes) tiny = 0x1p-126; /* the smallest normal number of f32 and bf16 */
    /* Without an addition and a function only the result is rounded, and every bit of it is known.
     */
    bool exact = (c->exact && !k.fractions) || (k.n_seq == 0 && k.n_outer == 0 && k.ulps == 0);
    double grown = k.amplify > 0 ? k.amplify : 1;
    return (cli_tolerance){.phi = phi * grown,
                           .floor = tiny * (double)(k.n_seq + k.n_outer) * c->largest * grown,
                           .exact = exact,
                           .hides = k.hides_nan,
                           .most = c->fill != MICA_FILL_EDGES ? 0
                                   : k.unit < 0x1p-40         ? DBL_MAX
                                                              : (double)FLT_MAX,
                           .least = k.spreads && !c->finite ? INFINITY
                                    : k.amplify > 0         ? largest_magnitude(c)
                                                            : 0};
}

/* ---- running ---- */

static bool equal(const mica_tensor *a, const mica_tensor *b)
{
    bool same = a->dtype == b->dtype && a->rank == b->rank;
    for (int i = 0; i < a->rank && same; i++)
        same = a->dims[i] == b->dims[i] && (a->dims[i] == 1 || a->strides[i] == b->strides[i]);
    return same;
}

/* The input on which output i may lie, or -1. */
static int shared_input(const cli_case *c, int i)
{
    int a = c->info[i].alias;
    if (c->info[i].dir != MICA_OUT || a < 0 || c->info[a].dir != MICA_IN) return -1;
    if (c->packed >> a & 1) return -1;
    /* With old content the output would begin as the input, which is another problem. */
    if (c->buffers[i].content) return -1;
    return equal(&c->info[i].tensor, &c->info[a].tensor) ? a : -1;
}

bool cli_case_has_in_place(const cli_case *c)
{
    for (int i = 0; i < c->args; i++)
        if (shared_input(c, i) >= 0) return true;
    return false;
}

static mica_status place(cli_case *c, int i, const cli_placement *p, mica_run *run)
{
    cli_buffer *b = &c->buffers[i];
    int bytes = mica_dtype_bits(c->info[i].tensor.dtype) / 8;
    int input = p->in_place ? shared_input(c, i) : -1;
    if (input >= 0) b->content = c->buffers[input].content; /* lent for the upload */
    mica_status status =
        cli_buffer_prepare(b, c->context, p->poison, (int64_t)p->shift * (bytes ? bytes : 1));
    if (input >= 0) b->content = NULL;
    run->args[i] = cli_buffer_pointer(b);
    return status;
}

/* Packs argument i from where it was placed; from then on it is an input like others. */
static mica_status pack(cli_case *c, const mica_plan *plan, int i, int poison, mica_run *run)
{
    cli_buffer *b = &c->packs[i];
    int64_t bytes = (int64_t)mica_plan_packed_bytes(plan, i);
    mica_status status = cli_buffer_init(b, c->context, NULL, bytes, MICA_IN);
    if (status == MICA_OK) status = cli_buffer_prepare(b, c->context, poison, 0);
    if (status == MICA_OK)
        status = mica_plan_pack(plan, i, run->args[i], cli_buffer_pointer(b), NULL);
    if (status == MICA_OK) status = mica_synchronize(c->context, NULL);
    if (status == MICA_OK) status = cli_buffer_fetch(b, c->context);
    if (status == MICA_OK) cli_buffer_packed(b);
    run->args[i] = cli_buffer_pointer(b);
    return status;
}

static mica_status prepare(cli_case *c, const mica_plan *plan, const cli_placement *p,
                           mica_run *run)
{
    mica_status status = MICA_OK;
    for (int i = 0; i < c->args && status == MICA_OK; i++)
        if (c->info[i].dir != MICA_UNUSED) status = place(c, i, p, run);
    for (int i = 0; i < c->args && p->in_place; i++)
        if (shared_input(c, i) >= 0) run->args[shared_input(c, i)] = run->args[i];
    for (int i = 0; i < c->args && status == MICA_OK; i++)
        if (c->packed >> i & 1 && c->info[i].dir != MICA_UNUSED)
            status = pack(c, plan, i, p->poison, run);
    int64_t need = (int64_t)mica_plan_workspace(plan);
    if (status != MICA_OK || need == 0) return status;
    status = cli_buffer_init(&c->workspace, c->context, NULL, need, MICA_OUT);
    if (status == MICA_OK) status = cli_buffer_prepare(&c->workspace, c->context, p->poison, 0);
    run->workspace = cli_buffer_pointer(&c->workspace);
    return status;
}

mica_status cli_case_run(cli_case *c, const mica_plan *plan, const cli_placement *placement)
{
    mica_run run = {.scalars = mica_problem_scalars(c->problem)};
    cli_buffer_free(&c->workspace, c->context);
    for (int i = 0; i < c->args; i++) cli_buffer_free(&c->packs[i], c->context);
    mica_status status = prepare(c, plan, placement, &run);
    if (status == MICA_OK) status = mica_plan_run(plan, &run);
    if (status == MICA_OK) status = mica_synchronize(c->context, NULL);
    for (int i = 0; i < c->args && status == MICA_OK; i++)
        if (c->info[i].dir != MICA_UNUSED) status = cli_buffer_fetch(&c->buffers[i], c->context);
    for (int i = 0; i < c->args && status == MICA_OK; i++)
        if (c->packs[i].memory) status = cli_buffer_fetch(&c->packs[i], c->context);
    if (status == MICA_OK && c->workspace.memory)
        status = cli_buffer_fetch(&c->workspace, c->context);
    return status;
}

mica_status cli_case_truth_of(cli_case *c, const mica_plan *plan)
{
    static const cli_placement placement = {0xff, 0, false, ""};
    mica_status status = cli_case_run(c, plan, &placement);
    for (int i = 0; i < c->args && status == MICA_OK; i++) {
        if (!cli_is_output(&c->info[i])) continue;
        const mica_tensor *t = &c->info[i].tensor;
        mica_tensor_load(t, cli_buffer_after(&c->buffers[i]), c->results[i]);
        int64_t count = mica_tensor_count(t);
        for (int64_t n = 0; n < count; n++) c->magnitudes[i][n] = fabs(c->results[i][n]);
    }
    return status;
}

/* ---- judging ---- */

static void fail(cli_judgement *j, int arg)
{
    j->ok = false;
    j->arg = arg;
}

static void judge_elements(const cli_case *c, int arg, cli_tolerance tolerance, cli_judgement *j)
{
    const mica_arg_info *info = &c->info[arg];
    const cli_buffer *b = &c->buffers[arg];
    int64_t count = mica_tensor_count(&info->tensor);
    double *got = cli_alloc(value_bytes(&info->tensor));
    cli_comparison r;
    mica_tensor_load(&info->tensor, cli_buffer_after(b), got);
    cli_compare(info->tensor.dtype, tolerance, count, got, c->results[arg], c->magnitudes[arg], &r);
    if (r.margin > j->margin) j->margin = r.margin;
    if (r.wrong && j->ok) {
        fail(j, arg);
        j->wrong = r;
    }
    free(got);
}

void cli_case_judge(const cli_case *c, cli_tolerance tolerance, cli_judgement *j)
{
    *j = (cli_judgement){.ok = true, .arg = -1};
    for (int i = 0; i < c->args; i++) {
        if (c->info[i].dir == MICA_UNUSED) continue;
        if (j->ok && !cli_buffer_intact(&c->buffers[i], c->info[i].name, j->text, sizeof j->text))
            fail(j, -1);
        char name[64];
        snprintf(name, sizeof name, "packed %s", c->info[i].name);
        if (j->ok && c->packs[i].memory &&
            !cli_buffer_intact(&c->packs[i], name, j->text, sizeof j->text))
            fail(j, -1);
        if (cli_is_output(&c->info[i])) judge_elements(c, i, tolerance, j);
    }
    if (j->ok && c->workspace.memory &&
        !cli_buffer_intact(&c->workspace, "workspace", j->text, sizeof j->text))
        fail(j, -1);
}

void cli_case_trust(cli_case *c, cli_tolerance tolerance)
{
    c->weak[0] = 0;
    for (int i = 0; i < c->args && !c->weak[0]; i++) {
        if (!cli_is_output(&c->info[i])) continue;
        char why[160];
        const mica_tensor *t = &c->info[i].tensor;
        cli_trust(t->dtype, tolerance, mica_tensor_count(t), c->results[i], c->magnitudes[i], why,
                  sizeof why);
        if (*why) snprintf(c->weak, sizeof c->weak, "%s: %s", c->info[i].name, why);
    }
}

/* ---- repetition ---- */

void cli_case_keep(cli_case *c)
{
    for (int i = 0; i < c->args; i++) {
        const cli_buffer *b = &c->buffers[i];
        if (c->kept[i]) cli_buffer_copy(b, c->kept[i], b->after + b->low);
    }
}

bool cli_case_repeats(const cli_case *c, char *text, size_t size)
{
    for (int i = 0; i < c->args; i++) {
        if (!c->kept[i] || cli_buffer_repeats(&c->buffers[i], c->kept[i])) continue;
        snprintf(text, size, "%s: a second run on the same data gave other bits", c->info[i].name);
        return false;
    }
    return true;
}
