/* SPDX-License-Identifier: Apache-2.0
 * Prompt plans: an engine stands in for the one that was chosen while that one's kernels are
 * compiled on a thread in the background. The plan that a caller has is a shell with the workspace
 * of the larger of both, and runs go to the one or the other. */
#include "base/log.h"
#include "base/memory.h"
#include "base/system/background.h"
#include "plan/context.h"

#include <stdalign.h>
#include <stdio.h>
#include <string.h>

typedef struct prompt {
    mica_job
        job; /* first: the background frees it where the plan is gone before the work is done */
    mica_context *context; /* held */
    const mica_op *op;
    mica_options options;
    mica_candidate chosen;
    double measured_ms, start;
    size_t workspace; /* as it was stated */
    mica_contract contract;
    mica_plan *stand_in;
    const char *stand_in_name; /* for the thread, which may outlive the plan */
    mica_plan *made;           /* by the thread, or NULL and why */
    mica_status status;
    char *error;
    _Atomic(const mica_plan *) now, later; /* what runs take; what they are to take, once made */
    _Atomic(const char *) pending;
    char name[256], text[1024], failure[1024]; /* of `pending`: while it is compiled, and after */
    alignas(max_align_t) char desc[];
} prompt;

/* ---- runs ---- */

static const mica_plan *swap(prompt *p, const mica_plan *later, const mica_run *run)
{
    if (mica_cuda_capturing(p->context->cuda, run->stream)) return p->stand_in;
    atomic_store_explicit(&p->now, later, memory_order_release);
    return later;
}

static mica_status run_now(const mica_plan *plan, const mica_run *run)
{
    prompt *p = plan->state;
    const mica_plan *now = atomic_load_explicit(&p->now, memory_order_acquire);
    if (now == p->stand_in) {
        const mica_plan *later = atomic_load_explicit(&p->later, memory_order_acquire);
        if (later) now = swap(p, later, run);
    }
    return now->engine->run(now, run);
}

/* ---- the shell ---- */

static mica_status build_shell(mica_plan *plan)
{
    (void)plan; /* the state is not the plan's: it may outlive it */
    return MICA_OK;
}

static void free_parts(prompt *p)
{
    mica_plan_destroy(p->made);
    mica_release(p->error);
    mica_context_release(p->context);
}

static void destroy_shell(mica_plan *plan)
{
    prompt *p = plan->state;
    plan->state = NULL;
    if (!p) return;
    mica_plan *stand_in = p->stand_in;
    if (mica_job_leave(&p->job, p->context)) {
        free_parts(p);
        mica_release(p);
    }
    mica_plan_destroy(stand_in);
}

static const mica_engine shell_engine = {
    .name = "prompt", .cuda = true, .build = build_shell, .run = run_now, .destroy = destroy_shell};

static prompt *of(const mica_plan *plan)
{
    return plan && plan->engine == &shell_engine ? plan->state : NULL;
}

/* ---- the work in the background ---- */

static void make(mica_job *job)
{
    prompt *p = (prompt *)job;
    mica_cuda_relax_captures();
    p->status = mica_plan_build_with(p->context, p->op, p->desc, &p->chosen, &p->options,
                                     MICA_EFFORT_FULL, &p->made);
    if (p->status == MICA_OK && p->made->workspace > p->workspace) {
        p->status = mica_fail(MICA_INTERNAL, "%s: a workspace of %zu bytes, not of %zu", p->name,
                              p->made->workspace, p->workspace);
        mica_plan_destroy(p->made);
        p->made = NULL;
    }
    if (p->status == MICA_OK) {
        mica_plan_full(p->made)->measured_ms = p->measured_ms;
        mica_log(MICA_LOG_INFO, "prompt,%s,%s takes over from %s after %.0f ms",
                 p->context->device.name, p->name, p->stand_in_name,
                 1e3 * (mica_seconds() - p->start));
        return;
    }
    p->error = mica_copy_text(mica_error());
    snprintf(p->failure, sizeof p->failure, "%.200s cannot be had, %s stays: %.700s", p->name,
             p->stand_in_name, mica_error());
    mica_log(MICA_LOG_WARN, "prompt,%s,%s", p->context->device.name, p->failure);
}

static void hand_over(mica_job *job)
{
    prompt *p = (prompt *)job;
    atomic_store_explicit(&p->later, p->made, memory_order_release);
    atomic_store_explicit(&p->pending, p->made ? "" : p->failure, memory_order_release);
}

static void discard(mica_job *job)
{
    free_parts((prompt *)job);
}

/* ---- making one ---- */

static void widen(mica_contract *a, const mica_contract *b)
{
    if (b->unit > a->unit) a->unit = b->unit;
    if (b->k_inst > a->k_inst) a->k_inst = b->k_inst;
    if (b->n_seq > a->n_seq) a->n_seq = b->n_seq;
    if (b->n_outer > a->n_outer) a->n_outer = b->n_outer;
    if (b->ulps > a->ulps) a->ulps = b->ulps;
    if (b->amplify > a->amplify) a->amplify = b->amplify;
    a->truncates |= b->truncates;
    a->flushes |= b->flushes;
    a->fractions |= b->fractions;
    a->spreads |= b->spreads;
    a->hides_nan |= b->hides_nan;
}

static prompt *new_prompt(mica_context *c, const mica_op *op, const void *desc,
                          const mica_candidate *chosen, const mica_options *o)
{
    prompt *p = mica_alloc(sizeof *p + op->desc_size);
    if (!p) return NULL;
    p->job.work = make;
    p->job.done = hand_over;
    p->job.discard = discard;
    p->context = c;
    atomic_fetch_add(&c->references, 1);
    p->op = op;
    memcpy(p->desc, desc, op->desc_size);
    p->chosen = *chosen;
    p->options = (mica_options){.workspace_limit = o->workspace_limit,
                                .nondeterministic = o->nondeterministic};
    p->start = mica_seconds();
    char config[128];
    mica_config_text(chosen->engine, &chosen->config, config, sizeof config);
    snprintf(p->name, sizeof p->name, "%s%s%s", chosen->engine->name, *config ? " " : "", config);
    return p;
}

/* sized: what was chosen, without kernels. Takes over stand_in, also where it fails. */
static mica_status make_shell(mica_context *c, const mica_op *op, const void *desc,
                              const mica_candidate *chosen, const mica_plan *sized,
                              mica_plan *stand_in, const mica_options *o, double measured_ms,
                              mica_plan **plan)
{
    const mica_candidate shell = {.engine = &shell_engine};
    mica_plan *whole = NULL;
    prompt *p = NULL;
    size_t at, most = stand_in->workspace;
    if (sized->workspace > most) most = sized->workspace;
    mica_status status = mica_plan_build(c, op, desc, &shell, &(mica_options){0}, &whole);
    if (status == MICA_OK) {
        p = new_prompt(c, op, desc, chosen, o);
        if (!p) status = mica_fail_memory(sizeof *p + op->desc_size);
    }
    if (!p) {
        mica_plan_destroy(stand_in);
        mica_plan_destroy(whole);
        return status;
    }
    mica_contract contract;
    whole->state = p;
    p->stand_in = stand_in;
    p->stand_in_name = stand_in->engine->name;
    p->workspace = most;
    p->measured_ms = measured_ms;
    atomic_init(&p->now, stand_in);
    snprintf(p->text, sizeof p->text, "%s is being compiled, %s stands in", p->name,
             stand_in->engine->name);
    atomic_init(&p->pending, p->text);
    mica_plan_holds(whole, sizeof *p + op->desc_size + mica_plan_held(stand_in));
    if (most) status = mica_book(whole, "of the larger of two engines", most, &at);
    if (status == MICA_OK) status = mica_plan_contract(stand_in, &p->contract, NULL);
    if (status == MICA_OK) status = mica_plan_contract(sized, &contract, NULL);
    if (status != MICA_OK) {
        mica_plan_destroy(whole);
        return status;
    }
    widen(&p->contract, &contract);
    mica_log(MICA_LOG_INFO, "prompt,%s,%s", c->device.name, p->text);
    *plan = whole;
    if (mica_job_start(&p->job)) return MICA_OK;
    p->status = mica_fail(MICA_OUT_OF_MEMORY, "no thread could be started");
    snprintf(p->text, sizeof p->text, "%.200s cannot be had, %s stays: %s", p->name,
             stand_in->engine->name, mica_error());
    return MICA_OK;
}

/* ---- the choice ---- */

/* What compiling the kernels would take that a plan was made without, all at the same time. */
static double compile_ms(const mica_plan *plan)
{
    const double usual = 400; /* of a kernel: docs/experiments/compiling.md */
    double most = 0;
    if (mica_plan_full(plan)->wanted_count)
        most = plan->engine->compile_ms > 0 ? plan->engine->compile_ms : usual;
    for (int i = 0; i < plan->child_count; i++) {
        const double ms = compile_ms(plan->children[i]);
        if (ms > most) most = ms;
    }
    return most;
}

typedef struct choice {
    mica_context *context;
    const mica_op *op;
    const void *desc;
    const mica_candidate *list;
    int count;
    const mica_options *options;
    mica_effort effort;
} choice;

static mica_status build(const choice *c, int i, mica_effort effort, mica_plan **plan)
{
    return mica_plan_build_with(c->context, c->op, c->desc, &c->list[i], c->options, effort, plan);
}

static double to_compile_ms(const choice *c, int i)
{
    mica_plan *plan;
    if (build(c, i, MICA_EFFORT_SIZE, &plan) != MICA_OK) return 1e30;
    const double ms = compile_ms(plan);
    mica_plan_destroy(plan);
    return ms;
}

/* The best behind `chosen` that need not be compiled, or the best that compiles in half the time.
 * NOT_FOUND: none. most_ms: of a run. */
static mica_status find_stand_in(const choice *c, int chosen, double most_ms, mica_plan **plan)
{
    int quick = -1;
    for (int i = chosen + 1; i < c->count; i++) {
        if (c->list[i].predicted_ms > most_ms) continue;
        mica_status status = build(c, i, MICA_EFFORT_AT_HAND, plan);
        if (status != MICA_NOT_FOUND && status != MICA_UNSUPPORTED) return status;
        if (status == MICA_NOT_FOUND && quick < 0 && to_compile_ms(c, i) < most_ms) quick = i;
    }
    /* where kernels are fetched for several plans, it stands in when it is there */
    if (quick >= 0)
        return build(c, quick, c->effort == MICA_EFFORT_DRY ? MICA_EFFORT_DRY : MICA_EFFORT_FULL,
                     plan);
    return mica_fail(MICA_NOT_FOUND, "no engine stands in");
}

static mica_status let_stand_in(const choice *c, int chosen, double measured_ms, mica_plan **plan)
{
    mica_plan *sized, *stand_in;
    MICA_TRY(build(c, chosen, MICA_EFFORT_SIZE, &sized));
    mica_status status = find_stand_in(c, chosen, compile_ms(sized) / 2, &stand_in);
    if (status == MICA_OK && mica_plan_lacks(stand_in))
        *plan = stand_in;
    else if (status == MICA_OK)
        status = make_shell(c->context, c->op, c->desc, &c->list[chosen], sized, stand_in,
                            c->options, measured_ms, plan);
    mica_plan_destroy(sized);
    return status;
}

mica_status mica_prompt_plan(mica_context *context, const mica_op *op, const void *desc,
                             const mica_candidate *list, int count, const mica_options *options,
                             mica_effort effort, double measured_ms, mica_text *refusals,
                             mica_plan **plan)
{
    const choice c = {context, op, desc, list, count, options, effort};
    for (int i = 0; i < count; i++) {
        const double ms = i == 0 ? measured_ms : 0;
        mica_status status = build(&c, i, MICA_EFFORT_AT_HAND, plan);
        if (status == MICA_NOT_FOUND) {
            status = let_stand_in(&c, i, ms, plan);
            if (status == MICA_OK) return MICA_OK;
            /* None does: its own kernels are waited for, its children's perhaps not. */
            status = build(&c, i, effort, plan);
        }
        if (status == MICA_OK) mica_plan_full(*plan)->measured_ms = ms;
        if (status != MICA_UNSUPPORTED) return status;
        mica_text_add(refusals, "\n  %s: %s", list[i].engine->name, mica_error());
    }
    return MICA_UNSUPPORTED;
}

/* ---- questions ---- */

const mica_plan *mica_prompt_now(const mica_plan *plan)
{
    const prompt *p = of(plan);
    if (!p) return plan;
    const mica_plan *later = atomic_load_explicit(&p->later, memory_order_acquire);
    return later ? later : p->stand_in;
}

bool mica_prompt_contract(const mica_plan *plan, mica_contract *contract)
{
    const prompt *p = of(plan);
    if (p) *contract = p->contract;
    return p != NULL;
}

const char *mica_plan_pending(const mica_plan *plan)
{
    const prompt *p = of(plan);
    if (p) return atomic_load_explicit(&p->pending, memory_order_acquire);
    for (int i = 0; plan && i < plan->child_count; i++) {
        const char *pending = mica_plan_pending(plan->children[i]);
        if (*pending) return pending;
    }
    return "";
}

mica_status mica_plan_await(const mica_plan *plan)
{
    if (!plan) return mica_fail(MICA_INVALID, "plan is NULL");
    mica_status status = MICA_OK;
    for (int i = 0; i < plan->child_count; i++) {
        mica_status child = mica_plan_await(plan->children[i]);
        if (status == MICA_OK) status = child;
    }
    prompt *p = of(plan);
    if (!p) return status;
    if (!mica_job_wait(&p->job) && p->status == MICA_OK) {
        MICA_TRY(mica_cuda_health(p->context->cuda));
        return mica_fail(MICA_NOT_FOUND, "%s: the process ends before it is compiled", p->name);
    }
    if (p->status == MICA_OK) return MICA_OK;
    return mica_fail(p->status, "%s: %s", p->name, p->error ? p->error : "no thread, or no memory");
}
