/* SPDX-License-Identifier: Apache-2.0
 * Plans: building, running, describing, giving back. */
#include "plan/context.h"
#include "base/memory.h"
#include "cpu/cpu.h"
#include "cpu/floating.h"
#include "cpu/scratch.h"

#include <stdio.h>
#include <string.h>

/* ---- what engines call while building ---- */

mica_status mica_plan_state(mica_plan *plan, size_t bytes, void *state_out)
{
    void *state = mica_alloc(bytes);
    if (!state) return mica_fail_memory(bytes);
    plan->state = state;
    mica_plan_full(plan)->bytes += bytes;
    memcpy(state_out, &state, sizeof state);
    return MICA_OK;
}

/* Room, zeroed, for one more behind the `count` elements of a list, which doubles when it is full.
 */
static mica_status make_room(void *list, int count, size_t element)
{
    enum { FIRST = 4 };
    if (count % FIRST || count & (count - 1)) return MICA_OK;
    size_t more = count ? (size_t)count : FIRST, old = (size_t)count * element;
    char *memory;
    memcpy(&memory, list, sizeof memory);
    memory = mica_grow(memory, old + more * element);
    if (!memory) return mica_fail_memory(old + more * element);
    memset(memory + old, 0, more * element);
    memcpy(list, &memory, sizeof memory);
    return MICA_OK;
}

void mica_plan_holds(mica_plan *plan, size_t bytes)
{
    mica_plan_full(plan)->bytes += bytes;
}

mica_status mica_book(mica_plan *plan, const char *name, size_t bytes, size_t *offset)
{
    MICA_TRY(make_room(&plan->bookings, plan->booking_count, sizeof *plan->bookings));
    size_t rounded, total;
    if (__builtin_add_overflow(bytes, (size_t)255, &rounded) ||
        __builtin_add_overflow(plan->workspace, rounded / 256 * 256, &total))
        return mica_fail(MICA_UNSUPPORTED, "%s: a workspace of %zu + %zu bytes overflows", name,
                         plan->workspace, bytes);
    *offset = plan->workspace;
    plan->bookings[plan->booking_count++] = (mica_booking){name, plan->workspace, bytes};
    plan->workspace = total;
    return MICA_OK;
}

/* Kernels are only noted while an engine builds, so that all of a plan compile side by side. */
struct mica_wanted {
    char *file, *entry, *prologue;
    int64_t dynamic_shared;
    mica_kernel **place;
};

mica_status mica_plan_add_kernel(mica_plan *plan, const mica_kernel_spec *spec,
                                 mica_kernel **kernel)
{
    static char noted; /* what stands in for a kernel until it is there */
    mica_full_plan *full = mica_plan_full(plan);
    MICA_TRY(make_room(&full->wanted, full->wanted_count, sizeof *full->wanted));
    mica_wanted *w = &full->wanted[full->wanted_count++];
    *w = (mica_wanted){.file = mica_copy_text(spec->file),
                       .entry = mica_copy_text(spec->entry),
                       .prologue = mica_copy_text(spec->prologue ? spec->prologue : ""),
                       .dynamic_shared = spec->dynamic_shared,
                       .place = kernel};
    if (!w->file || !w->entry || !w->prologue) return mica_fail_memory(strlen(spec->file));
    *kernel = (mica_kernel *)(void *)&noted;
    return MICA_OK;
}

static mica_kernel_spec spec_of(const mica_wanted *wanted)
{
    return (mica_kernel_spec){wanted->file, wanted->entry, wanted->prologue,
                              wanted->dynamic_shared};
}

static mica_status get_kernels(mica_plan *plan, bool at_hand)
{
    const mica_wanted *wanted = mica_plan_full(plan)->wanted;
    int count = mica_plan_full(plan)->wanted_count;
    if (count == 0) return MICA_OK;
    size_t bytes = (size_t)count * sizeof(mica_kernel_spec);
    mica_kernel_spec *specs = mica_alloc(bytes);
    plan->kernels = mica_alloc((size_t)count * sizeof *plan->kernels);
    mica_status status = specs && plan->kernels ? MICA_OK : mica_fail_memory(bytes);
    for (int i = 0; status == MICA_OK && i < count; i++) specs[i] = spec_of(&wanted[i]);
    if (status == MICA_OK)
        status = (at_hand ? mica_kernel_find_all : mica_kernel_get_all)(plan->cuda, specs, count,
                                                                        plan->kernels);
    mica_release(specs);
    MICA_TRY(status);
    plan->kernel_count = count;
    for (int i = 0; i < count; i++) *wanted[i].place = plan->kernels[i];
    return MICA_OK;
}

static void forget_wanted(mica_full_plan *full)
{
    for (int i = 0; i < full->wanted_count; i++) {
        mica_release(full->wanted[i].file);
        mica_release(full->wanted[i].entry);
        mica_release(full->wanted[i].prologue);
    }
    mica_release(full->wanted);
    full->wanted = NULL;
    full->wanted_count = 0;
}

/* ---- kernels of children ----
 * A child is made while its parent is built, one after the other; so that their kernels compile
 * side by side, the first time they are made without, and all kernels are fetched. */

static int count_wanted(const mica_plan *plan)
{
    int count = mica_plan_full(plan)->wanted_count;
    for (int i = 0; i < plan->child_count; i++) count += count_wanted(plan->children[i]);
    return count;
}

static void list_wanted(const mica_plan *plan, mica_kernel_spec *specs, int *count)
{
    const mica_full_plan *full = mica_plan_full(plan);
    for (int i = 0; i < full->wanted_count; i++) specs[(*count)++] = spec_of(&full->wanted[i]);
    for (int i = 0; i < plan->child_count; i++) list_wanted(plan->children[i], specs, count);
}

/* To be put, each, and released. */
static mica_status fetch_kernels(const mica_plan *plan, int count, mica_kernel ***out)
{
    const size_t bytes = (size_t)count * sizeof(mica_kernel_spec);
    mica_kernel_spec *specs = mica_alloc(bytes);
    mica_kernel **kernels = mica_alloc((size_t)count * sizeof *kernels);
    mica_status status = specs && kernels ? MICA_OK : mica_fail_memory(bytes);
    int listed = 0;
    if (status == MICA_OK) {
        list_wanted(plan, specs, &listed);
        status = mica_kernel_get_all(plan->cuda, specs, count, kernels);
    }
    mica_release(specs);
    if (status != MICA_OK) {
        mica_release(kernels);
        return status;
    }
    *out = kernels;
    return MICA_OK;
}

mica_status mica_plan_child_create(mica_plan *plan, const char *op, const void *desc,
                                   size_t desc_size, const char *engine, mica_plan **child,
                                   size_t *workspace_offset)
{
    MICA_TRY(make_room(&plan->children, plan->child_count, sizeof(mica_plan *)));
    const mica_options options = {.engine = engine};
    const mica_op *child_op = mica_op_find(op);
    _Alignas(16) char given[MICA_MAX_DESC] = {0};
    *child = NULL;
    memcpy(given, desc, desc_size);
    mica_op_strided(child_op, given);
    MICA_TRY(mica_plan_make(plan->context, child_op, given, desc_size, &options,
                            mica_plan_full(plan)->effort, child));
    plan->children[plan->child_count++] = *child;
    if (!workspace_offset) return MICA_OK;
    return mica_book(plan, op, (*child)->workspace, workspace_offset);
}

/* ---- building ---- */

static void make_rules(mica_full_plan *full)
{
    const mica_op *op = full->plan.op;
    const void *desc = full->plan.desc;
    full->empty = true;
    for (int i = 0; i < op->arg_count; i++) {
        mica_dir dir = mica_op_dir(op, desc, i);
        if (dir == MICA_UNUSED) continue;
        const mica_tensor *t = mica_op_tensor(op, desc, i);
        int bytes = mica_dtype_bits(t->dtype) / 8;
        mica_rule rule = {.arg = i,
                          .output = dir != MICA_IN,
                          .optional = op->args[i].optional,
                          .alias = mica_op_arg_index(op, op->args[i].alias),
                          .align_mask = bytes > 1 ? (uintptr_t)bytes - 1 : 0};
        rule.span = mica_tensor_span(t, &rule.first);
        if (rule.output && rule.span > 0) full->empty = false;
        if (rule.span > 0 && full->plan.packed >> i & 1) mica_packed_rule(&full->plan, &rule);
        full->inside |= rule.element != 0;
        if (rule.span > 0) full->rules[full->rule_count++] = rule;
    }
}

/* Of children. The first time they are made without kernels that would have to be compiled. */
static mica_effort effort_of_children(const mica_plan *plan, mica_effort effort, bool again)
{
    const bool first = plan->cuda && !again;
    if (effort == MICA_EFFORT_FULL) return first ? MICA_EFFORT_SIZE : MICA_EFFORT_CHILD;
    return effort == MICA_EFFORT_PROMPT && first ? MICA_EFFORT_DRY : effort;
}

static mica_status build_engine(mica_plan *plan, int64_t workspace_limit, mica_effort effort,
                                bool again)
{
    mica_full_plan *full = mica_plan_full(plan);
    full->effort = effort_of_children(plan, effort, again);
    mica_status status = plan->engine->build(plan);
    int64_t limit = workspace_limit == MICA_NO_WORKSPACE ? 0 : workspace_limit;
    if (status == MICA_OK && workspace_limit != 0 && plan->workspace > (size_t)limit)
        status = mica_fail(MICA_UNSUPPORTED, "workspace of %zu bytes > limit of %lld",
                           plan->workspace, (long long)limit);
    if (effort == MICA_EFFORT_SIZE || effort == MICA_EFFORT_DRY) return status;
    if (!again && count_wanted(plan) > full->wanted_count) return status; /* built again */
    if (status == MICA_OK) status = get_kernels(plan, effort == MICA_EFFORT_AT_HAND);
    forget_wanted(full);
    return status;
}

static mica_status build_once(mica_context *context, const mica_op *op, const void *desc,
                              const mica_candidate *candidate, const mica_options *options,
                              mica_effort effort, bool again, mica_plan **plan)
{
    /* The descriptor lies behind the plan, aligned as malloc aligns, and the rules behind that. */
    size_t head = (sizeof(mica_full_plan) + 15) / 16 * 16, tail = (op->desc_size + 15) / 16 * 16;
    size_t bytes = head + tail + (size_t)op->arg_count * sizeof(mica_rule);
    mica_full_plan *full = mica_alloc(bytes);
    if (!full) return mica_fail_memory(bytes);
    mica_plan *p = &full->plan;
    atomic_init(&full->references, 1);
    full->bytes = bytes;
    p->op = op;
    p->engine = candidate->engine;
    p->config = candidate->config;
    p->predicted_ms = candidate->predicted_ms;
    p->packed = options->packed;
    p->device = context->device;
    p->cuda = context->cuda;
    p->context = context;
    p->desc = (char *)full + head;
    full->rules = (mica_rule *)(void *)((char *)full + head + tail);
    memcpy(p->desc, desc, op->desc_size);
    mica_config_text(p->engine, &p->config, full->config_text, sizeof full->config_text);
    atomic_fetch_add(&context->references, 1);
    mica_status status = build_engine(p, options->workspace_limit, effort, again);
    if (status != MICA_OK) {
        mica_plan_destroy(p);
        return status;
    }
    make_rules(full);
    full->bytes += (size_t)p->kernel_count * sizeof *p->kernels +
                   (size_t)p->booking_count * sizeof *p->bookings +
                   (size_t)p->child_count * sizeof(mica_plan *);
    *plan = p;
    return MICA_OK;
}

/* The kernels of `first`, which goes, are compiled before the plan is built again. */
static mica_status build_again(mica_context *context, const mica_op *op, const void *desc,
                               const mica_candidate *candidate, const mica_options *options,
                               mica_effort effort, mica_plan *first, mica_plan **plan)
{
    const int count = count_wanted(first);
    mica_kernel **kernels = NULL;
    mica_status status = fetch_kernels(first, count, &kernels);
    mica_plan_destroy(first);
    MICA_TRY(status);
    status = build_once(context, op, desc, candidate, options, effort, true, plan);
    for (int i = 0; i < count; i++) mica_kernel_put(kernels[i]);
    mica_release(kernels);
    return status;
}

mica_status mica_plan_build_with(mica_context *context, const mica_op *op, const void *desc,
                                 const mica_candidate *candidate, const mica_options *options,
                                 mica_effort effort, mica_plan **plan)
{
    mica_plan *first;
    MICA_TRY(build_once(context, op, desc, candidate, options, effort, false, &first));
    if ((effort == MICA_EFFORT_FULL || effort == MICA_EFFORT_PROMPT) && mica_plan_lacks(first))
        return build_again(context, op, desc, candidate, options, effort, first, plan);
    *plan = first;
    return MICA_OK;
}

bool mica_plan_lacks(const mica_plan *plan)
{
    return count_wanted(plan) > 0;
}

mica_status mica_plan_build(mica_context *context, const mica_op *op, const void *desc,
                            const mica_candidate *candidate, const mica_options *options,
                            mica_plan **plan)
{
    return mica_plan_build_with(context, op, desc, candidate, options, MICA_EFFORT_FULL, plan);
}

mica_status mica_plan_fits(mica_context *context, const mica_op *op, const void *desc,
                           const mica_candidate *candidate, const mica_options *options)
{
    mica_plan *plan = NULL;
    mica_status status =
        mica_plan_build_with(context, op, desc, candidate, options, MICA_EFFORT_SIZE, &plan);
    mica_plan_destroy(plan);
    return status;
}

void mica_plan_destroy(mica_plan *plan)
{
    if (!plan || atomic_fetch_sub(&mica_plan_full(plan)->references, 1) != 1) return;
    mica_context *context = plan->context;
    if (plan->engine->destroy) plan->engine->destroy(plan);
    for (int i = 0; i < plan->kernel_count; i++) mica_kernel_put(plan->kernels[i]);
    for (int i = 0; i < plan->child_count; i++) mica_plan_destroy(plan->children[i]);
    mica_release(plan->kernels);
    forget_wanted(mica_plan_full(plan));
    mica_release(plan->bookings);
    mica_release(plan->children);
    mica_release(plan->state);
    mica_release(plan);
    mica_context_release(context);
}

/* ---- running ---- */

static bool overlap(const char *a, const mica_rule *ra, const char *b, const mica_rule *rb)
{
    const char *a0 = a + ra->first, *b0 = b + rb->first;
    return a0 < b0 + rb->span && b0 < a0 + ra->span;
}

static bool may_coincide(const mica_plan *plan, const mica_rule *a, const mica_rule *b)
{
    bool packed = (plan->packed >> a->arg | plan->packed >> b->arg) & 1;
    return !packed && (a->alias == b->arg || b->alias == a->arg) &&
           mica_tensor_equal(mica_op_tensor(plan->op, plan->desc, a->arg),
                             mica_op_tensor(plan->op, plan->desc, b->arg));
}

/* The bytes that a tensor's elements take beside dimensions that step by multiples of a period. */
static void within_period(const mica_tensor *t, int64_t period, int64_t *low, int64_t *length)
{
    int64_t bytes = mica_dtype_bits(t->dtype) / 8, high = bytes;
    *low = 0;
    for (int d = 0; d < t->rank; d++) {
        int64_t reach = (t->dims[d] - 1) * t->strides[d] * bytes;
        if (t->strides[d] * bytes % period == 0) continue;
        if (reach < 0)
            *low += reach;
        else
            high += reach;
    }
    *length = high - *low;
}

/* Whether two tensors lie between each other without touching: q and k in packed QKV, caches of
 * keys and values interleaved. Some stride is a period of both, and they keep to parts of it. */
static bool interleave(const char *p, const mica_tensor *a, const char *q, const mica_tensor *b)
{
    if (mica_dtype_bits(a->dtype) < 8 || mica_dtype_bits(b->dtype) < 8) return false;
    for (int d = 0; d < a->rank; d++) {
        int64_t period = a->strides[d] * (mica_dtype_bits(a->dtype) / 8), a_low, a_length;
        int64_t b_low, b_length;
        if (period < 0) period = -period;
        if (period == 0 || a->dims[d] < 2) continue;
        within_period(a, period, &a_low, &a_length);
        within_period(b, period, &b_low, &b_length);
        int64_t apart = ((q + b_low) - (p + a_low)) % period;
        if (apart < 0) apart += period;
        if (apart >= a_length && b_length <= period - apart) return true;
    }
    return false;
}

static mica_status check_overlaps(const mica_full_plan *full, const mica_run *run)
{
    for (int i = 0; i < full->rule_count; i++) {
        const mica_rule *out = &full->rules[i];
        const char *p = run->args[out->arg];
        if (!out->output || !p) continue;
        for (int j = 0; j < full->rule_count; j++) {
            const mica_rule *other = &full->rules[j];
            const char *q = run->args[other->arg];
            if (j == i || !q || (other->output && j < i)) continue;
            if (!overlap(p, out, q, other)) continue;
            if (p == q && may_coincide(&full->plan, out, other)) continue;
            const mica_op *op = full->plan.op;
            bool packed = (full->plan.packed >> out->arg | full->plan.packed >> other->arg) & 1;
            if (!packed && interleave(p, mica_op_tensor(op, full->plan.desc, out->arg), q,
                                      mica_op_tensor(op, full->plan.desc, other->arg)))
                continue;
            return mica_fail(MICA_INVALID, "%s: %s overlaps %s in memory", op->name,
                             op->args[out->arg].name, op->args[other->arg].name);
        }
    }
    return MICA_OK;
}

static mica_status check_pointers(const mica_full_plan *full, const mica_run *run)
{
    const mica_op *op = full->plan.op;
    for (int i = 0; i < full->rule_count; i++) {
        const mica_rule *r = &full->rules[i];
        uintptr_t p = (uintptr_t)run->args[r->arg];
        if (!p && !r->optional)
            return mica_fail(MICA_INVALID, "%s: the pointer of %s is NULL", op->name,
                             op->args[r->arg].name);
        if (p & r->align_mask)
            return mica_fail(MICA_INVALID, "%s: %s is at %p, its type needs %zu-byte alignment",
                             op->name, op->args[r->arg].name, (void *)p, (size_t)r->align_mask + 1);
    }
    if (full->plan.workspace && !run->workspace)
        return mica_fail(MICA_INVALID, "%s: workspace is NULL, the plan needs %zu bytes", op->name,
                         full->plan.workspace);
    if (full->plan.workspace && ((uintptr_t)run->workspace & 255))
        return mica_fail(MICA_INVALID, "%s: workspace is at %p, it needs 256-byte alignment",
                         op->name, run->workspace);
    return MICA_OK;
}

/* Engines get element 0, also of a packed copy whose strides are negative. */
static mica_status run_inside(const mica_full_plan *full, const mica_run *given)
{
    mica_run run = *given;
    for (int i = 0; i < full->rule_count; i++) {
        const mica_rule *r = &full->rules[i];
        if (run.args[r->arg]) run.args[r->arg] = (char *)run.args[r->arg] + r->element;
    }
    return full->plan.engine->run(&full->plan, &run);
}

static mica_status run_whole(const mica_plan *plan, const mica_run *run)
{
    const mica_full_plan *full = mica_plan_full(plan);
    MICA_TRY(check_pointers(full, run));
    MICA_TRY(check_overlaps(full, run));
    if (full->empty) return MICA_OK;
    return full->inside ? run_inside(full, run) : plan->engine->run(plan, run);
}

/* Engines look at any argument, given or not. */
static mica_status run_shorter(const mica_plan *plan, const mica_run *given, size_t size)
{
    mica_run run = {0};
    if (size < offsetof(mica_run, args))
        return mica_fail(MICA_INVALID, "the run's size is %zu bytes, it has at least %zu", size,
                         offsetof(mica_run, args));
    memcpy(&run, given, size - size % sizeof *run.args);
    return run_whole(plan, &run);
}

mica_status mica_plan_run(const mica_plan *plan, const mica_run *run)
{
    static const size_t of_0_1 = offsetof(mica_run, args) + 64 * sizeof(void *);
    if (!plan || !run) return mica_fail(MICA_INVALID, "plan or run is NULL");
    size_t size = run->size ? run->size : of_0_1;
    bool cpu = !plan->cuda;
    mica_floating state MICA_FLOATING_SCOPE = mica_floating_begin(cpu);
    if (cpu && !mica_scratch_ready()) MICA_TRY(mica_scratch_prepare(mica_cpu_threads()));
    return size < sizeof *run ? run_shorter(plan, run, size) : run_whole(plan, run);
}

/* ---- describing ---- */

size_t mica_plan_workspace(const mica_plan *plan)
{
    return plan ? plan->workspace : 0;
}
const char *mica_plan_engine(const mica_plan *plan)
{
    return plan ? mica_prompt_now(plan)->engine->name : "";
}
const char *mica_plan_config(const mica_plan *plan)
{
    return plan ? mica_plan_full(mica_prompt_now(plan))->config_text : "";
}
double mica_plan_measured(const mica_plan *plan)
{
    return plan ? mica_plan_full(mica_prompt_now(plan))->measured_ms : 0;
}

const char *mica_plan_disturbed(const mica_plan *plan)
{
    return plan ? mica_plan_full(plan)->disturbed : "";
}

double mica_plan_predicted(const mica_plan *plan)
{
    return plan ? mica_prompt_now(plan)->predicted_ms : 0;
}

int mica_plan_describe(const mica_plan *plan, char *buffer, size_t size)
{
    mica_text text = {buffer, size, 0};
    if (plan) mica_op_text(plan->op, plan->desc, &text);
    return (int)text.length;
}

mica_status mica_plan_arg(const mica_plan *plan, int index, mica_arg_info *info)
{
    if (!plan || !info) return mica_fail(MICA_INVALID, "plan or info is NULL");
    mica_problem problem = {.op = plan->op, .desc = plan->desc};
    return mica_problem_arg(&problem, index, info);
}

mica_status mica_plan_contract(const mica_plan *plan, mica_contract *contract, double *phi)
{
    if (!plan || !contract) return mica_fail(MICA_INVALID, "plan or contract is NULL");
    if (mica_prompt_contract(plan, contract)) {
        if (phi) *phi = mica_contract_phi(contract);
        return MICA_OK;
    }
    mica_op_contract(plan->op, plan->desc, contract);
    if (plan->engine->contract) plan->engine->contract(plan->desc, &plan->config, contract);
    for (int i = 0; i < plan->child_count; i++) {
        mica_contract child;
        MICA_TRY(mica_plan_contract(plan->children[i], &child, NULL));
        contract->flushes |= child.flushes; /* whichever engine a child got */
        contract->spreads |= child.spreads;
        contract->hides_nan |= child.hides_nan;
    }
    if (phi) *phi = mica_contract_phi(contract);
    return MICA_OK;
}

/* Kernels of the plan and, behind them, of its children. */
static mica_kernel *nth_kernel(const mica_plan *whole, int *index)
{
    const mica_plan *plan = mica_prompt_now(whole);
    if (*index < plan->kernel_count) return plan->kernels[*index];
    *index -= plan->kernel_count;
    for (int i = 0; i < plan->child_count; i++) {
        mica_kernel *k = nth_kernel(plan->children[i], index);
        if (k) return k;
    }
    return NULL;
}

mica_status mica_plan_kernel(const mica_plan *plan, int index, mica_kernel_info *info)
{
    int left = index;
    mica_kernel *kernel = plan && info && index >= 0 ? nth_kernel(plan, &left) : NULL;
    if (!kernel) return mica_fail(MICA_INVALID, "the plan has no kernel %d", index);
    mica_kernel_describe(kernel, info);
    return MICA_OK;
}

mica_status mica_plan_booking(const mica_plan *plan, int index, const char **name, size_t *offset,
                              size_t *bytes)
{
    if (!plan || index < 0 || index >= plan->booking_count)
        return mica_fail(MICA_INVALID, "the plan has no booking %d", index);
    *name = plan->bookings[index].name;
    *offset = plan->bookings[index].offset;
    *bytes = plan->bookings[index].bytes;
    return MICA_OK;
}
