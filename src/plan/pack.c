/* SPDX-License-Identifier: Apache-2.0
 * Packed arguments: constant inputs in the layout that the plan's engine likes best. */
#include "plan/context.h"
#include "cpu/floating.h"

enum { ALIGNMENT = 256 };

mica_status mica_packed_check(const mica_op *op, const void *desc, uint64_t packed)
{
    for (int i = 0; i < 64; i++) {
        if (!(packed >> i & 1)) continue;
        if (i >= op->arg_count)
            return mica_fail(MICA_INVALID, "options: packed has bit %d, %s has %d arguments", i,
                             op->name, op->arg_count);
        mica_dir dir = mica_op_dir(op, desc, i);
        if (dir != MICA_IN)
            return mica_fail(MICA_INVALID, "options: packed has %s of %s, which is %s",
                             op->args[i].name, op->name,
                             dir == MICA_UNUSED ? "not there" : "no input");
    }
    return MICA_OK;
}

void mica_packed_names(const mica_op *op, uint64_t packed, mica_text *text)
{
    const char *comma = "";
    for (int i = 0; i < op->arg_count; i++) {
        if (!(packed >> i & 1)) continue;
        mica_text_add(text, "%s%s", comma, op->args[i].name);
        comma = ",";
    }
}

void mica_packed_rule(const mica_plan *plan, mica_rule *rule)
{
    const mica_packing *packing = plan->engine->packing;
    size_t bytes = packing ? packing->bytes(plan, rule->arg) : 0;
    rule->own = bytes > 0;
    if (rule->own) rule->span = (int64_t)bytes;
    rule->element = rule->own ? 0 : -rule->first;
    rule->first = 0;
    rule->align_mask = ALIGNMENT - 1;
}

static const mica_rule *rule_of(const mica_plan *plan, int arg)
{
    const mica_full_plan *full = mica_plan_full(plan);
    if (arg < 0 || arg >= plan->op->arg_count || !(plan->packed >> arg & 1)) return NULL;
    for (int i = 0; i < full->rule_count; i++)
        if (full->rules[i].arg == arg) return &full->rules[i];
    return NULL;
}

size_t mica_plan_packed_bytes(const mica_plan *plan, int arg)
{
    const mica_rule *rule = plan ? rule_of(plan, arg) : NULL;
    return rule ? (size_t)rule->span : 0;
}

static mica_status check_memory(const mica_plan *plan, const mica_rule *rule, const void *from,
                                const void *to)
{
    const char *name = plan->op->args[rule->arg].name;
    const mica_tensor *t = mica_op_tensor(plan->op, plan->desc, rule->arg);
    int64_t first, span = mica_tensor_span(t, &first);
    size_t size = (size_t)mica_dtype_bits(t->dtype) / 8;
    if (!from || !to) return mica_fail(MICA_INVALID, "pack %s: from or to is NULL", name);
    if (size && (uintptr_t)from % size)
        return mica_fail(MICA_INVALID, "pack %s: from is at %p, its type needs %zu-byte alignment",
                         name, from, size);
    if ((uintptr_t)to % ALIGNMENT)
        return mica_fail(MICA_INVALID, "pack %s: to is at %p, it needs %d-byte alignment", name, to,
                         ALIGNMENT);
    const char *f = (const char *)from + first, *p = to;
    if (f < p + rule->span && p < f + span)
        return mica_fail(MICA_INVALID, "pack %s: from and to overlap in memory", name);
    return MICA_OK;
}

mica_status mica_plan_pack(const mica_plan *plan, int arg, const void *from, void *to, void *stream)
{
    if (!plan) return mica_fail(MICA_INVALID, "plan is NULL");
    mica_floating state MICA_FLOATING_SCOPE = mica_floating_begin(!plan->cuda);
    if (arg < 0 || arg >= plan->op->arg_count)
        return mica_fail(MICA_INVALID, "pack: argument %d, %s has %d", arg, plan->op->name,
                         plan->op->arg_count);
    if (!(plan->packed >> arg & 1))
        return mica_fail(MICA_INVALID, "pack: the plan's options do not have %s packed",
                         plan->op->args[arg].name);
    const mica_rule *rule = rule_of(plan, arg);
    if (!rule) return MICA_OK; /* no elements */
    MICA_TRY(check_memory(plan, rule, from, to));
    if (rule->own) return plan->engine->packing->pack(plan, arg, from, to, stream);
    return mica_upload(plan->context, to, (const char *)from - rule->element, rule->span, stream);
}
