/* SPDX-License-Identifier: Apache-2.0
 * The planner: from a descriptor to a plan through cache, records, model and measurement. */
#include "plan/context.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/system/thread.h"
#include "cpu/cpu.h"
#include "cpu/floating.h"
#include "cpu/scratch.h"

#include <stdio.h>
#include <string.h>

/* ---- options and key ---- */

static mica_status copy_name(const char *what, const char *from, char *to, size_t size)
{
    if (!from) return MICA_OK;
    if (strlen(from) >= size)
        return mica_fail(MICA_INVALID, "%s name of %zu characters, at most %zu", what, strlen(from),
                         size - 1);
    memcpy(to, from, strlen(from));
    return MICA_OK;
}

mica_status mica_options_read(const mica_options *given, mica_options *o)
{
    *o = (mica_options){0};
    if (given) memcpy(o, given, given->size && given->size < sizeof *o ? given->size : sizeof *o);
    if ((unsigned)o->mode > MICA_MODE_MODEL)
        return mica_fail(MICA_INVALID, "options: mode %d is unknown", (int)o->mode);
    if (o->workspace_limit < MICA_NO_WORKSPACE)
        return mica_fail(MICA_INVALID, "options: workspace_limit is %lld bytes",
                         (long long)o->workspace_limit);
    if (o->measure_ms < 0)
        return mica_fail(MICA_INVALID, "options: measure_ms is %d", o->measure_ms);
    if (o->prompt && !o->nondeterministic)
        return mica_fail(MICA_INVALID, "options: prompt changes engines between runs and so their "
                                       "bits, which needs nondeterministic");
    if (o->prompt && o->packed)
        return mica_fail(MICA_INVALID, "options: prompt changes engines between runs, packed has "
                                       "the layout of one");
    if (o->prompt && o->mode == MICA_MODE_MEASURE)
        return mica_fail(MICA_INVALID, "options: prompt does not wait for the compiler, mode "
                                       "measure does");
    return MICA_OK;
}

static mica_status make_key(const mica_op *op, const mica_options *o, mica_plan_key *key)
{
    /* Only the descriptor's bytes that the operation has are ever looked at. */
    memset(key, 0, offsetof(mica_plan_key, desc) + op->desc_size);
    key->op = op;
    key->workspace_limit = o->workspace_limit;
    key->mode = (int32_t)o->mode;
    key->nondeterministic = o->nondeterministic;
    key->packed = o->packed;
    MICA_TRY(copy_name("engine", o->engine, key->engine, sizeof key->engine));
    return copy_name("config", o->config, key->config, sizeof key->config);
}

static size_t key_bytes(const mica_plan_key *key)
{
    return offsetof(mica_plan_key, desc) + key->op->desc_size;
}

static void retain(void *plan)
{
    atomic_fetch_add(&mica_plan_full(plan)->references, 1);
}

static void release(void *plan)
{
    mica_plan_destroy(plan);
}

size_t mica_plan_held(const mica_plan *plan)
{
    size_t bytes = mica_plan_full(plan)->bytes;
    for (int i = 0; i < plan->child_count; i++) bytes += mica_plan_held(plan->children[i]);
    return bytes;
}

static size_t held(const void *plan)
{
    return mica_plan_held(plan);
}

static const mica_cached cached_plan = {retain, release, held};

/* ---- records ---- */

/* The problem column: the line, and what of the options the choice depends on. */
static void write_problem(const mica_op *op, const void *desc, const mica_options *o,
                          mica_text *text)
{
    mica_op_text(op, desc, text);
    if (o->workspace_limit)
        mica_text_add(text, " ; workspace=%lld",
                      o->workspace_limit == MICA_NO_WORKSPACE ? 0 : (long long)o->workspace_limit);
    if (!o->packed) return;
    mica_text_add(text, " ; packed=");
    mica_packed_names(op, o->packed, text);
}

/* The same, whole however long it is, for mica_release; NULL: no memory. */
static char *record_problem(const mica_op *op, const void *desc, const mica_options *o)
{
    for (size_t size = 512;;) { /* of most problems */
        char *line = mica_alloc(size);
        if (!line) return NULL;
        mica_text text = {line, size, 0};
        write_problem(op, desc, o, &text);
        if (text.length < size) return line;
        mica_release(line);
        size = text.length + 1;
    }
}

/* ---- choice ---- */

static bool is_prompt(mica_effort effort)
{
    return effort == MICA_EFFORT_PROMPT || effort == MICA_EFFORT_DRY;
}

static mica_status build_first(mica_context *c, const mica_op *op, const void *desc,
                               const mica_candidate *list, int count, const mica_options *o,
                               mica_effort effort, mica_text *refusals, mica_plan **plan)
{
    if (is_prompt(effort)) {
        mica_status status =
            mica_prompt_plan(c, op, desc, list, count, o, effort, 0, refusals, plan);
        if (status != MICA_UNSUPPORTED) return status;
        count = 0;
    }
    for (int i = 0; i < count; i++) {
        mica_status status = mica_plan_build_with(c, op, desc, &list[i], o, effort, plan);
        if (status != MICA_UNSUPPORTED) return status;
        mica_text_add(refusals, "\n  %s: %s", list[i].engine->name, mica_error());
    }
    for (int i = 0; o->engine && op->engines[i]; i++) {
        mica_why why = {""};
        if (strcmp(op->engines[i]->name, o->engine) != 0 ||
            mica_engine_accepts(op->engines[i], desc, &c->device, &why) != MICA_FORKED_PROCESS)
            continue;
        return mica_fail(MICA_FORKED_PROCESS, "%s: %s", o->engine, why.text);
    }
    return mica_fail(MICA_UNSUPPORTED, "%s: no engine takes this on %s:%s", op->name,
                     c->device.name, refusals->data);
}

/* list[0] is what a record chose. Prompt, others may stand in for it. */
static mica_status build_recorded(mica_context *c, const mica_op *op, const void *desc,
                                  mica_candidate *list, const mica_options *o, mica_effort effort,
                                  double ms, mica_text *refusals, mica_plan **plan)
{
    if (is_prompt(effort)) {
        const mica_candidate chosen = list[0];
        const int count = mica_candidates(c, op, desc, o, list, refusals);
        const int kept = count < MICA_MAX_CANDIDATES ? count : MICA_MAX_CANDIDATES - 1;
        memmove(list + 1, list, (size_t)kept * sizeof *list);
        list[0] = chosen;
        return mica_prompt_plan(c, op, desc, list, kept + 1, o, effort, ms, refusals, plan);
    }
    MICA_TRY(mica_plan_build_with(c, op, desc, list, o, effort, plan));
    mica_plan_full(*plan)->measured_ms = ms;
    return MICA_OK;
}

static mica_status choose(mica_context *c, const mica_op *op, const void *desc, const char *problem,
                          const mica_options *options, mica_effort effort, mica_plan **plan)
{
    char refusal_text[3072] = "";
    mica_choice r;
    mica_text refusals = {refusal_text, sizeof refusal_text, 0};
    mica_options o = *options;
    mica_candidate list[MICA_MAX_CANDIDATES];
    /* Who asks for a measurement gets one, or what they had from one before. */
    bool shipped = o.mode != MICA_MODE_MEASURE;
    bool looks = !o.engine && o.mode != MICA_MODE_MODEL;
    if (looks && mica_records_find(&c->records, problem, c->device.model, shipped, &r)) {
        mica_options named = o;
        named.engine = r.engine;
        named.config = *r.config ? r.config : NULL;
        int count = mica_candidates(c, op, desc, &named, list, &refusals);
        mica_status status = MICA_UNSUPPORTED;
        if (count) status = build_recorded(c, op, desc, list, &o, effort, r.ms, &refusals, plan);
        if (status == MICA_OK) return MICA_OK;
        if (status == MICA_NOT_FOUND && effort == MICA_EFFORT_AT_HAND) return status;
        mica_log(MICA_LOG_WARN, "record,%s,%s does not hold here any more,%s", r.engine, r.config,
                 problem);
    }
    if (o.mode == MICA_MODE_RECORDED)
        return mica_fail(MICA_NOT_FOUND, "no usable record for %s on %s", problem, c->device.model);
    int count = mica_candidates(c, op, desc, &o, list, &refusals);
    double best_ms = 0;
    char disturbed[128] = "";
    mica_status measured = MICA_OK;
    if (o.mode == MICA_MODE_MEASURE && count > 0)
        measured = mica_measure(c, op, desc, &o, list, count, &best_ms);
    if (measured == MICA_DISTURBED) {
        snprintf(disturbed, sizeof disturbed, "%s", mica_error());
        mica_log(MICA_LOG_WARN, "measure,%s,disturbed: %s,%s", c->device.name, disturbed, problem);
    } else if (measured != MICA_OK) {
        return measured;
    }
    MICA_TRY(build_first(c, op, desc, list, count, &o, effort, &refusals, plan));
    memcpy(mica_plan_full(*plan)->disturbed, disturbed, sizeof disturbed);
    if (best_ms <= 0) return MICA_OK;
    mica_plan_full(*plan)->measured_ms = best_ms;
    if (mica_engine_needs_name((*plan)->engine)) return MICA_OK;
    mica_status status =
        mica_records_add(&c->records, problem, c->device.model, (*plan)->engine->name,
                         mica_plan_config(*plan), best_ms, true);
    if (status == MICA_OK) return MICA_OK;
    mica_plan_destroy(*plan);
    *plan = NULL;
    return status;
}

typedef struct miss {
    mica_context *context;
    mica_plan_key *key;
    uint64_t hash;
    const mica_options *options;
    mica_effort effort;
    mica_plan **plan;
} miss;

static mica_status build_missing(void *user)
{
    const miss *m = user;
    mica_context *c = m->context;
    mica_plan_key *key = m->key;
    mica_plan **plan = m->plan;
    double start = mica_seconds();
    _Alignas(16) char desc[MICA_MAX_DESC];
    mica_why why = {""};
    memset(desc, 0, key->op->desc_size);
    if (mica_op_resolve(key->op, key->desc, key->op->desc_size, desc, &why) != MICA_OK)
        return mica_fail(MICA_INVALID, "%s: %s", key->op->name, why.text);
    MICA_TRY(mica_packed_check(key->op, desc, m->options->packed));
    /* An engine that is named and not timed asks no record. */
    const mica_options *o = m->options;
    const bool said = !o->engine || o->mode != MICA_MODE_ESTIMATE || mica_log_wants(MICA_LOG_INFO);
    char *problem = said ? record_problem(key->op, desc, o) : NULL;
    if (said && !problem) return mica_fail_memory(sizeof key->desc);
    mica_status status = choose(c, key->op, desc, problem, o, m->effort, plan);
    if (status == MICA_OK) {
        /* A measurement that failed is made again when somebody asks again. */
        const bool whole = !mica_plan_lacks(*plan);
        if (!*mica_plan_full(*plan)->disturbed && whole)
            mica_plan_cache_add(&c->cache, key, key_bytes(key), m->hash, &cached_plan, *plan);
        if (problem && whole)
            mica_log(MICA_LOG_INFO, "plan,%s,%s,miss,%.3f,%s", c->device.name,
                     mica_plan_engine(*plan), 1e3 * (mica_seconds() - start), problem);
    }
    mica_release(problem);
    return status;
}

/* Building is deep: children, texts, other people's libraries. */
mica_status mica_plan_find_or_build(mica_context *c, mica_plan_key *key,
                                    const mica_options *options, mica_effort effort,
                                    mica_plan **plan)
{
    miss m = {c, key, mica_plan_key_hash(key, key_bytes(key)), options, effort, plan};
    if (c->cuda) MICA_TRY(mica_fork_check());
    *plan = mica_plan_cache_find(&c->cache, key, key_bytes(key), m.hash);
    if (*plan) return MICA_OK;
    if (!c->cuda) MICA_TRY(mica_scratch_prepare(mica_cpu_threads()));
    return mica_deep_call(build_missing, &m);
}

/* ---- entry points ---- */

mica_status mica_plan_make(mica_context *c, const mica_op *op, const void *desc, size_t desc_size,
                           const mica_options *o, mica_effort effort, mica_plan **plan)
{
    mica_plan_key key;
    mica_why why = {""};
    MICA_TRY(make_key(op, o, &key));
    key.prompt = is_prompt(effort);
    if (mica_fields_copy(op->fields, op->field_count, desc, desc_size, key.desc, &why) != MICA_OK)
        return mica_fail(MICA_INVALID, "%s: %s", op->name, why.text);
    return mica_plan_find_or_build(c, &key, o, effort, plan);
}

mica_status mica_plan_create(mica_context *c, const char *name, const void *desc, size_t desc_size,
                             const mica_options *options, mica_plan **plan)
{
    if (!plan) return mica_fail(MICA_INVALID, "plan is NULL");
    mica_floating state MICA_FLOATING_SCOPE = mica_floating_begin(false);
    *plan = NULL;
    if (!c || !name || !desc) return mica_fail(MICA_INVALID, "context, op or desc is NULL");
    const mica_op *op = mica_op_find(name);
    if (!op) return mica_fail(MICA_INVALID, "\"%.60s\" is no operation", name);
    mica_options o;
    MICA_TRY(mica_options_read(options, &o));
    const bool prompt = o.prompt && c->cuda;
    return mica_plan_make(c, op, desc, desc_size, &o,
                          prompt ? MICA_EFFORT_PROMPT : MICA_EFFORT_FULL, plan);
}

mica_status mica_plan_from_text(mica_context *c, const char *line, const mica_options *options,
                                mica_plan **plan)
{
    if (!plan) return mica_fail(MICA_INVALID, "plan is NULL");
    mica_floating state MICA_FLOATING_SCOPE = mica_floating_begin(false);
    *plan = NULL;
    if (!c || !line) return mica_fail(MICA_INVALID, "context or line is NULL");
    const mica_op *op;
    _Alignas(16) char desc[MICA_MAX_DESC];
    double scalars[MICA_MAX_SCALARS];
    mica_why why = {""};
    if (mica_op_parse(line, &op, desc, sizeof desc, scalars, &why) != MICA_OK)
        return mica_fail(MICA_INVALID, "%s", why.text);
    return mica_plan_create(c, op->name, desc, op->desc_size, options, plan);
}

mica_status mica_plan_problem(mica_context *c, const mica_problem *problem,
                              const mica_options *options, mica_plan **plan)
{
    if (!problem) return mica_fail(MICA_INVALID, "problem is NULL");
    return mica_plan_create(c, problem->op->name, problem->desc, problem->op->desc_size, options,
                            plan);
}
