/* SPDX-License-Identifier: Apache-2.0
 * Problems: what tools look at, the truth of a problem and its test data. */
#include "plan/context.h"
#include "base/memory.h"

#include <stdio.h>
#include <string.h>

static mica_status new_problem(const mica_op *op, const void *desc, size_t desc_size,
                               const double *scalars, mica_problem **problem)
{
    mica_problem *p = mica_alloc(sizeof *p + 16 + op->desc_size);
    if (!p) return mica_fail_memory(sizeof *p + op->desc_size);
    p->op = op;
    p->desc = (char *)p + (sizeof *p + 15) / 16 * 16;
    memcpy(p->scalars, scalars, sizeof p->scalars);
    mica_why why = {""};
    if (mica_op_resolve(op, desc, desc_size, p->desc, &why) != MICA_OK) {
        mica_release(p);
        return mica_fail(MICA_INVALID, "%s: %s", op->name, why.text);
    }
    *problem = p;
    return MICA_OK;
}

mica_status mica_problem_from_text(const char *line, mica_problem **problem)
{
    if (!problem) return mica_fail(MICA_INVALID, "problem is NULL");
    *problem = NULL;
    if (!line) return mica_fail(MICA_INVALID, "line is NULL");
    const mica_op *op;
    _Alignas(16) char desc[MICA_MAX_DESC];
    double scalars[MICA_MAX_SCALARS] = {0};
    mica_why why = {""};
    if (mica_op_parse(line, &op, desc, sizeof desc, scalars, &why) != MICA_OK)
        return mica_fail(MICA_INVALID, "%s", why.text);
    return new_problem(op, desc, op->desc_size, scalars, problem);
}

mica_status mica_problem_create(const char *name, const void *desc, size_t desc_size,
                                mica_problem **problem)
{
    if (!problem) return mica_fail(MICA_INVALID, "problem is NULL");
    *problem = NULL;
    const mica_op *op = name ? mica_op_find(name) : NULL;
    if (!op || !desc) return mica_fail(MICA_INVALID, "no such operation, or desc is NULL");
    double scalars[MICA_MAX_SCALARS] = {0};
    mica_op_default_scalars(op, scalars);
    return new_problem(op, desc, desc_size, scalars, problem);
}

void mica_problem_destroy(mica_problem *problem)
{
    mica_release(problem);
}

int mica_problem_text(const mica_problem *p, char *buffer, size_t size)
{
    mica_text text = {buffer, size, 0};
    mica_op_text(p->op, p->desc, &text);
    for (int i = 0; i < p->op->scalar_count; i++)
        if (p->scalars[i] != p->op->scalars[i].def)
            mica_text_add(&text, " %s=%.17g", p->op->scalars[i].name, p->scalars[i]);
    return (int)text.length;
}

const char *mica_problem_op(const mica_problem *p)
{
    return p->op->name;
}
const void *mica_problem_desc(const mica_problem *p)
{
    return p->desc;
}
const double *mica_problem_scalars(const mica_problem *p)
{
    return p->scalars;
}

mica_status mica_problem_arg(const mica_problem *p, int index, mica_arg_info *info)
{
    if (!p || !info) return mica_fail(MICA_INVALID, "problem or info is NULL");
    if (index < 0 || index >= p->op->arg_count)
        return mica_fail(MICA_INVALID, "argument %d: %s has %d", index, p->op->name,
                         p->op->arg_count);
    mica_arg_describe(p->op, index, mica_op_pass(p->op, p->desc), info);
    info->dir = mica_op_dir(p->op, p->desc, index);
    info->tensor = *mica_op_tensor(p->op, p->desc, index);
    return MICA_OK;
}

void mica_problem_cost(const mica_problem *p, double *flops, double *bytes)
{
    double traffic = 0;
    *flops = 0;
    if (p->op->cost) p->op->cost(p->desc, flops, &traffic);
    *bytes = mica_op_bytes(p->op, p->desc);
}

double mica_problem_roofline(const mica_context *c, const mica_problem *p)
{
    return mica_roofline_ms(p->op, p->desc, &c->device);
}

/* ---- verdicts ---- */

static const mica_engine *nth_engine(const mica_op *op, bool cuda, int index)
{
    for (int i = 0; index >= 0 && op->engines[i]; i++)
        if (op->engines[i]->cuda == cuda && index-- == 0) return op->engines[i];
    return NULL;
}

/* What the engine itself says. */
static mica_status judge(mica_context *c, const mica_problem *p, int index, mica_verdict *v)
{
    if (!c || !p || !v) return mica_fail(MICA_INVALID, "context, problem or verdict is NULL");
    const mica_engine *e = nth_engine(p->op, c->cuda != NULL, index);
    if (!e) return mica_fail(MICA_INVALID, "%s has no engine %d here", p->op->name, index);
    *v = (mica_verdict){.engine = e->name,
                        .deterministic = !e->nondeterministic,
                        .reference = e->reference,
                        .peer = e->peer,
                        .by_name = e->by_name};
    mica_why why = {""};
    v->status = mica_engine_accepts(e, p->desc, &c->device, &why);
    snprintf(v->reason, sizeof v->reason, "%s", why.text);
    return MICA_OK;
}

/* The first of an engine's configs that keeps to the options' workspace, best first. */
static void choose_config(mica_context *c, const mica_problem *p, const mica_engine *e,
                          mica_options o, mica_verdict *v)
{
    mica_candidate list[MICA_MAX_CANDIDATES];
    o.engine = e->name;
    o.nondeterministic = true;
    int count = mica_candidates(c, p->op, p->desc, &o, list, NULL), chosen = -1;
    v->status = MICA_UNSUPPORTED;
    snprintf(v->reason, sizeof v->reason,
             o.config ? "it has no config \"%s\"" : "none of its configs fits", o.config);
    for (int i = 0; i < count && chosen < 0; i++) {
        mica_status status =
            o.workspace_limit ? mica_plan_fits(c, p->op, p->desc, &list[i], &o) : MICA_OK;
        if (status == MICA_OK)
            chosen = i;
        else if (i == 0)
            snprintf(v->reason, sizeof v->reason, "%s", mica_error());
    }
    if (chosen < 0) return;
    v->status = MICA_OK;
    *v->reason = 0;
    mica_config_text(e, &list[chosen].config, v->config, sizeof v->config);
    v->predicted_ms = list[chosen].predicted_ms;
}

mica_status mica_problem_verdict_with(mica_context *c, const mica_problem *p,
                                      const mica_options *options, int index, mica_verdict *v)
{
    mica_options o;
    MICA_TRY(mica_options_read(options, &o));
    if (p) MICA_TRY(mica_packed_check(p->op, p->desc, o.packed));
    MICA_TRY(judge(c, p, index, v));
    if (v->status != MICA_OK) return MICA_OK;
    const mica_engine *e = nth_engine(p->op, c->cuda != NULL, index);
    const char *excluded = mica_engine_excluded(e, c, &o, true);
    if (excluded) {
        v->status = MICA_UNSUPPORTED;
        snprintf(v->reason, sizeof v->reason, "%s", excluded);
    } else {
        choose_config(c, p, e, o, v);
    }
    return MICA_OK;
}

mica_status mica_problem_verdict(mica_context *c, const mica_problem *p, int index, mica_verdict *v)
{
    return mica_problem_verdict_with(c, p, &(mica_options){.nondeterministic = true}, index, v);
}

mica_status mica_problem_config(mica_context *c, const mica_problem *p, const char *engine,
                                int index, char *config, size_t size, double *predicted_ms)
{
    if (!c || !p || !engine) return mica_fail(MICA_INVALID, "context, problem or engine is NULL");
    mica_candidate list[MICA_MAX_CANDIDATES];
    mica_options only = {.engine = engine, .nondeterministic = true};
    int count = mica_candidates(c, p->op, p->desc, &only, list, NULL);
    if (index < 0 || index >= count)
        return mica_fail(MICA_INVALID, "config %d: %s has %d here", index, engine, count);
    mica_config_text(list[index].engine, &list[index].config, config, size);
    if (predicted_ms) *predicted_ms = list[index].predicted_ms;
    return MICA_OK;
}

/* ---- truth ---- */

typedef struct truth {
    mica_view views[MICA_MAX_ARGS];
    double *owned[MICA_MAX_ARGS];
} truth;

static void free_truth(truth *t)
{
    for (int i = 0; i < MICA_MAX_ARGS; i++) mica_release(t->owned[i]);
}

/* Old content enters where the argument is read too, or beta is not zero. */
static bool reads_old(const mica_problem *p, mica_dir dir)
{
    if (dir == MICA_INOUT) return true;
    int beta = mica_op_scalar_index(p->op, "beta");
    return beta >= 0 && p->scalars[beta] != 0;
}

static mica_status output_view(const mica_problem *p, int i, mica_dir dir, void *old,
                               double *result, double *magnitude, truth *t)
{
    const mica_tensor *given = mica_op_tensor(p->op, p->desc, i);
    int64_t count = mica_tensor_count(given);
    if (!result) {
        result = t->owned[i] = mica_alloc((size_t)count * sizeof *result);
        if (!result) return mica_fail_memory((size_t)count * sizeof *result);
    }
    if (reads_old(p, dir) && count && old) MICA_TRY(mica_tensor_load(given, old, result));
    /* what the reference leaves as it was had no roundings */
    if (dir == MICA_INOUT && magnitude) memset(magnitude, 0, (size_t)count * sizeof *magnitude);
    mica_tensor packed = mica_tensor_packed(MICA_F64, given->rank, given->dims);
    t->views[i] = (mica_view){packed, result, magnitude, mica_dtype_load(MICA_F64),
                              mica_dtype_store(MICA_F64)};
    return MICA_OK;
}

static mica_status make_views(const mica_problem *p, void *const *args, double *const *results,
                              double *const *magnitudes, truth *t)
{
    for (int i = 0; i < p->op->arg_count; i++) {
        mica_dir dir = mica_op_dir(p->op, p->desc, i);
        const mica_tensor *tensor = mica_op_tensor(p->op, p->desc, i);
        if (dir == MICA_UNUSED) continue;
        bool needed = dir != MICA_OUT && mica_tensor_count(tensor) > 0;
        if (needed && !args[i] && !p->op->args[i].optional)
            return mica_fail(MICA_INVALID, "%s: the pointer of %s is NULL", p->op->name,
                             p->op->args[i].name);
        if (dir == MICA_IN) {
            t->views[i] = (mica_view){*tensor, args[i], NULL, mica_dtype_load(tensor->dtype),
                                      mica_dtype_store(tensor->dtype)};
            continue;
        }
        MICA_TRY(output_view(p, i, dir, args[i], results ? results[i] : NULL,
                             magnitudes ? magnitudes[i] : NULL, t));
    }
    return MICA_OK;
}

mica_status mica_problem_reference(const mica_problem *p, void *const *args, double *const *results,
                                   double *const *magnitudes)
{
    if (!p || !args) return mica_fail(MICA_INVALID, "problem or args is NULL");
    truth t = {0};
    mica_status status = make_views(p, args, results, magnitudes, &t);
    if (status == MICA_OK) mica_op_reference(p->op, p->desc, t.views, p->scalars);
    free_truth(&t);
    return status;
}

/* ---- data ---- */

mica_status mica_problem_fill(const mica_problem *p, int arg, mica_fill fill, uint64_t seed,
                              double *values)
{
    if (!p || !values) return mica_fail(MICA_INVALID, "problem or values is NULL");
    if (arg < 0 || arg >= p->op->arg_count ||
        !mica_tensor_given(mica_op_tensor(p->op, p->desc, arg)))
        return mica_fail(MICA_INVALID, "%s has no argument %d here", p->op->name, arg);
    if (p->op->fill && p->op->fill(p->desc, p->scalars, arg, fill, seed, values)) return MICA_OK;
    mica_fill_general(p->op, p->desc, arg, fill, seed, values);
    return MICA_OK;
}

bool mica_problem_exact(const mica_problem *p)
{
    return p->op->exact && p->op->exact(p->desc);
}
