/* SPDX-License-Identifier: Apache-2.0
 * Plans of a graph for any of its extents. A bucket is a plan for its largest extents; a plan for
 * others in it takes the same rewrites, engines, configs and places, each checked once more by whom
 * it concerns. Where one does not hold the plan is made from the beginning, as any other. */
#include "graph/dynamic.h"
#include "graph/cache.h"
#include "graph/rewrite.h"
#include "base/memory.h"
#include "cpu/floating.h"
#include "plan/context.h"

#include <stdio.h>
#include <string.h>

enum { MOST_BUCKETS = 256 };

typedef struct bucket {
    atomic_int references;
    int64_t ends[MICA_GRAPH_EXTENTS]; /* its largest extents */
    mica_graph_plan *plan;
    graph_choice *choices;
    graph_decisions decisions;
    int64_t used; /* when */
} bucket;

struct mica_graph_dynamic {
    mica_context *context;
    mica_graph *graph;
    mica_graph_options options;
    mica_options nodes;
    char *without, *engine, *config; /* of the options */
    mica_plan_cache plans;           /* by extents */
    pthread_mutex_t mutex;           /* of the buckets */
    bucket *buckets[MOST_BUCKETS];
    int bucket_count;
    int64_t clock;
    _Atomic int64_t hits, misses, anew, planned;
    mica_fork_guarded guarded[2];
};

static size_t bytes_of(const mica_graph_dynamic *d)
{
    return (size_t)d->graph->extent_count * sizeof(int64_t);
}

/* ---- buckets ---- */

static int64_t end_of(const graph_extent *e, int64_t value)
{
    int64_t end = 1;
    for (int i = 0; i < e->bucket_count; i++)
        if (e->buckets[i] >= value) return e->buckets[i];
    while (end < value) end *= 2;
    return end < e->high ? end : e->high;
}

static void ends_of(const mica_graph *g, const int64_t *values, int64_t *ends)
{
    for (int i = 0; i < g->extent_count; i++) ends[i] = end_of(&g->extents[i], values[i]);
}

static void bucket_release(bucket *b)
{
    if (!b || atomic_fetch_sub(&b->references, 1) != 1) return;
    mica_graph_plan_destroy(b->plan);
    mica_release(b->choices);
    mica_release(b);
}

/* What was chosen for a plan; its texts are the plan's. */
static mica_status note_decisions(bucket *b)
{
    mica_graph_step s;
    int count = 0;
    while (mica_graph_plan_step(b->plan, count, &s) == MICA_OK) count++;
    b->choices = mica_alloc(((size_t)count + 1) * sizeof *b->choices);
    if (!b->choices) return mica_fail_memory((size_t)count * sizeof *b->choices);
    for (int i = 0; i < count; i++) {
        mica_graph_plan_step(b->plan, i, &s);
        b->choices[i] =
            (graph_choice){mica_plan_engine(s.plan), mica_plan_config(s.plan), s.nodes, NULL};
    }
    b->decisions = (graph_decisions){.choices = b->choices, .choice_count = count, .plan = b->plan};
    b->decisions.attempts = graph_plan_attempts(b->plan, &b->decisions.attempt_count);
    return MICA_OK;
}

/* What a call has refused, with the extents in front. */
static mica_status refused_at(const mica_graph_dynamic *d, const int64_t *values,
                              mica_status status)
{
    char why[3072], extents[512] = "";
    mica_text text = {extents, sizeof extents, 0};
    snprintf(why, sizeof why, "%s", mica_error());
    graph_extents_text(d->graph, values, &text);
    return *extents ? mica_fail(status, "with %s: %s", extents, why) : status;
}

/* Some bucket, retained: its constants are everybody's. NULL: there is none. */
static bucket *any_bucket(mica_graph_dynamic *d)
{
    pthread_mutex_lock(&d->mutex);
    bucket *b = d->bucket_count ? d->buckets[0] : NULL;
    if (b) atomic_fetch_add(&b->references, 1);
    pthread_mutex_unlock(&d->mutex);
    return b;
}

static bucket *find_bucket(mica_graph_dynamic *d, const int64_t *ends)
{
    bucket *found = NULL;
    pthread_mutex_lock(&d->mutex);
    for (int i = 0; i < d->bucket_count && !found; i++)
        if (!memcmp(d->buckets[i]->ends, ends, bytes_of(d))) found = d->buckets[i];
    if (found) {
        atomic_fetch_add(&found->references, 1);
        found->used = ++d->clock;
    }
    pthread_mutex_unlock(&d->mutex);
    return found;
}

/* Keeps one more; of many the one that was used least recently leaves. Where another thread has
 * made the same one meanwhile, that is returned in its place. */
static bucket *keep_bucket(mica_graph_dynamic *d, bucket *b)
{
    bucket *gone = NULL;
    int at = 0;
    pthread_mutex_lock(&d->mutex);
    b->used = ++d->clock;
    for (int i = 0; i < d->bucket_count; i++) {
        bucket *other = d->buckets[i];
        if (memcmp(other->ends, b->ends, bytes_of(d)) != 0) continue;
        other->used = b->used;
        atomic_fetch_add(&other->references, 1);
        pthread_mutex_unlock(&d->mutex);
        bucket_release(b);
        return other;
    }
    if (d->bucket_count < MOST_BUCKETS) {
        at = d->bucket_count++;
    } else {
        for (int i = 1; i < MOST_BUCKETS; i++)
            if (d->buckets[i]->used < d->buckets[at]->used) at = i;
        gone = d->buckets[at];
    }
    d->buckets[at] = b;
    atomic_fetch_add(&b->references, 1);
    pthread_mutex_unlock(&d->mutex);
    atomic_fetch_add_explicit(&d->planned, 1, memory_order_relaxed);
    bucket_release(gone);
    return b;
}

/* decisions NULL: it is planned. */
static mica_status make_bucket(mica_graph_dynamic *d, const int64_t *ends,
                               const mica_graph_options *options, const graph_decisions *decisions,
                               bool *anew, bucket **made)
{
    mica_graph *g;
    bucket *beside = any_bucket(d), *b = mica_alloc(sizeof *b);
    mica_status status = b ? graph_at_extents(d->graph, ends, &g) : mica_fail_memory(sizeof *b);
    if (b) atomic_init(&b->references, 1);
    if (status == MICA_OK)
        status = graph_plan_decided(d->context, g, options, decisions, beside ? beside->plan : NULL,
                                    anew, &b->plan);
    if (status == MICA_OK) status = note_decisions(b);
    bucket_release(beside);
    if (status != MICA_OK) {
        bucket_release(b);
        return status;
    }
    memcpy(b->ends, ends, bytes_of(d));
    *made = keep_bucket(d, b);
    return MICA_OK;
}

static mica_status bucket_at(mica_graph_dynamic *d, const int64_t *extents, bucket **b)
{
    int64_t ends[MICA_GRAPH_EXTENTS];
    bool anew;
    ends_of(d->graph, extents, ends);
    *b = find_bucket(d, ends);
    if (*b) return MICA_OK;
    const mica_status status = make_bucket(d, ends, &d->options, NULL, &anew, b);
    return status == MICA_OK ? MICA_OK : refused_at(d, ends, status);
}

/* The next one in the order of counting; whether there is one. */
static bool next_bucket(const mica_graph *g, int64_t *ends)
{
    for (int i = g->extent_count - 1; i >= 0; i--) {
        const graph_extent *e = &g->extents[i];
        if (ends[i] < e->high) {
            ends[i] = end_of(e, ends[i] + 1);
            return true;
        }
        ends[i] = end_of(e, e->low);
    }
    return false;
}

static mica_status plan_ahead(mica_graph_dynamic *d)
{
    const mica_graph *g = d->graph;
    int64_t ends[MICA_GRAPH_EXTENTS];
    int count = 0;
    for (int i = 0; i < g->extent_count; i++) ends[i] = end_of(&g->extents[i], g->extents[i].low);
    do count++;
    while (count <= MOST_BUCKETS && next_bucket(g, ends));
    if (count > MOST_BUCKETS)
        return mica_fail(MICA_UNSUPPORTED, "ahead: more than %d buckets, plan them when first met",
                         MOST_BUCKETS);
    for (int i = 0; i < g->extent_count; i++) ends[i] = end_of(&g->extents[i], g->extents[i].low);
    for (int i = 0; i < count; i++) {
        bucket *b;
        MICA_TRY(bucket_at(d, ends, &b));
        bucket_release(b);
        next_bucket(g, ends);
    }
    return MICA_OK;
}

/* ---- making ---- */

static char *copy_or_null(const char *text, mica_status *status)
{
    char *copy = text ? mica_copy_text(text) : NULL;
    if (text && !copy) *status = mica_fail_memory(strlen(text) + 1);
    return copy;
}

static mica_status copy_options(mica_graph_dynamic *d, const mica_graph_options *given)
{
    mica_status status = MICA_OK;
    MICA_TRY(graph_options_read(given, &d->options));
    MICA_TRY(mica_options_read(d->options.nodes, &d->nodes));
    d->without = copy_or_null(d->options.without, &status);
    d->engine = copy_or_null(d->nodes.engine, &status);
    d->config = copy_or_null(d->nodes.config, &status);
    d->options.size = sizeof d->options;
    d->options.without = d->without;
    d->nodes.size = sizeof d->nodes;
    d->nodes.engine = d->engine;
    d->nodes.config = d->config;
    d->options.nodes = &d->nodes;
    return status;
}

static mica_status check_at(const mica_graph_dynamic *d, const int64_t *values)
{
    mica_graph *g;
    mica_status status = graph_at_extents(d->graph, values, &g);
    if (status == MICA_OK) {
        status = graph_infer(g);
        mica_graph_destroy(g);
    }
    return status == MICA_OK ? MICA_OK : refused_at(d, values, status);
}

/* The largest value that none before has, so that extents that must be equal are found. */
static void differing(const mica_graph *g, int64_t *values)
{
    for (int i = 0; i < g->extent_count; i++) {
        int64_t v = g->extents[i].high;
        for (int k = 0; k < i; k++)
            if (values[k] == v && v > g->extents[i].low) v--, k = -1;
        values[i] = v;
    }
}

static mica_status check_graph(const mica_graph_dynamic *d)
{
    const mica_graph *g = d->graph;
    int64_t values[MICA_GRAPH_EXTENTS];
    for (int i = 0; i < g->extent_count; i++) values[i] = g->extents[i].high;
    MICA_TRY(check_at(d, values));
    differing(g, values);
    MICA_TRY(check_at(d, values));
    for (int i = 0; i < g->extent_count; i++) values[i] = g->extents[i].low;
    return check_at(d, values);
}

static mica_status fill_dynamic(mica_graph_dynamic *d, const mica_graph *g,
                                const mica_graph_dynamic_options *o)
{
    d->graph = graph_clone(g);
    if (!d->graph) return MICA_OUT_OF_MEMORY;
    if (o->plan_bytes < 0)
        return mica_fail(MICA_INVALID, "options: plan_bytes is %lld", (long long)o->plan_bytes);
    MICA_TRY(copy_options(d, o->plans));
    d->plans.limit = o->plan_bytes ? o->plan_bytes : MICA_CACHE_LIMIT;
    return check_graph(d);
}

mica_status graph_dynamic_begin(mica_context *c, const mica_graph *g,
                                const mica_graph_dynamic_options *o, mica_graph_dynamic **dynamic)
{
    mica_graph_dynamic *d = mica_alloc(sizeof *d);
    if (!d) return mica_fail_memory(sizeof *d);
    d->context = c;
    atomic_fetch_add(&c->references, 1);
    pthread_mutex_init(&d->mutex, NULL);
    pthread_mutex_init(&d->plans.mutex, NULL);
    mica_fork_guard(&d->guarded[0], &d->mutex);
    mica_fork_guard(&d->guarded[1], &d->plans.mutex);
    const mica_status status = fill_dynamic(d, g, o);
    if (status == MICA_OK)
        *dynamic = d;
    else
        mica_graph_dynamic_destroy(d);
    return status;
}

mica_status mica_graph_dynamic_create(mica_context *c, const mica_graph *g,
                                      const mica_graph_dynamic_options *options,
                                      mica_graph_dynamic **dynamic)
{
    const mica_graph_dynamic_options *given = options;
    mica_graph_dynamic_options o = {0};
    mica_floating state MICA_FLOATING_SCOPE = mica_floating_begin(false);
    if (!dynamic) return mica_fail(MICA_INVALID, "dynamic is NULL");
    *dynamic = NULL;
    if (!c || !g) return mica_fail(MICA_INVALID, "context or graph is NULL");
    if (given) memcpy(&o, given, given->size && given->size < sizeof o ? given->size : sizeof o);
    MICA_TRY(graph_dynamic_begin(c, g, &o, dynamic));
    const mica_status status = o.ahead ? plan_ahead(*dynamic) : MICA_OK;
    if (status == MICA_OK) return MICA_OK;
    mica_graph_dynamic_destroy(*dynamic);
    *dynamic = NULL;
    return status;
}

void mica_graph_dynamic_destroy(mica_graph_dynamic *d)
{
    if (!d) return;
    mica_plan_cache_limit(&d->plans, 0);
    for (int i = 0; i < d->bucket_count; i++) bucket_release(d->buckets[i]);
    for (int i = 0; i < 2; i++) mica_fork_unguard(&d->guarded[i]);
    pthread_mutex_destroy(&d->mutex);
    pthread_mutex_destroy(&d->plans.mutex);
    mica_graph_destroy(d->graph);
    mica_release(d->without);
    mica_release(d->engine);
    mica_release(d->config);
    mica_context_release(d->context);
    mica_release(d);
}

/* ---- plans ---- */

static void retain(void *plan)
{
    graph_plan_retain(plan);
}

static void release(void *plan)
{
    mica_graph_plan_destroy(plan);
}

static size_t held(const void *plan)
{
    return graph_plan_held(plan);
}

static const mica_cached cached_plan = {retain, release, held};

static mica_status make_plan(mica_graph_dynamic *d, const bucket *b, const int64_t *extents,
                             mica_graph_plan **plan)
{
    mica_graph *g;
    bool anew = false;
    MICA_TRY(graph_at_extents(d->graph, extents, &g));
    mica_status status =
        graph_plan_decided(d->context, g, &d->options, &b->decisions, b->plan, &anew, plan);
    if (status == MICA_NOT_FOUND) {
        MICA_TRY(graph_at_extents(d->graph, extents, &g));
        status = graph_plan_decided(d->context, g, &d->options, NULL, b->plan, &anew, plan);
        anew = true;
    }
    if (status == MICA_OK && anew) atomic_fetch_add_explicit(&d->anew, 1, memory_order_relaxed);
    return status;
}

static mica_status make_and_keep(mica_graph_dynamic *d, const int64_t *extents, uint64_t hash,
                                 mica_graph_plan **plan)
{
    bucket *b;
    mica_status status = MICA_OK;
    MICA_TRY(bucket_at(d, extents, &b));
    if (!memcmp(b->ends, extents, bytes_of(d))) {
        *plan = b->plan;
        graph_plan_retain(b->plan);
    } else {
        status = make_plan(d, b, extents, plan);
        if (status == MICA_OK)
            mica_plan_cache_add(&d->plans, extents, bytes_of(d), hash, &cached_plan, *plan);
        else
            status = refused_at(d, extents, status);
    }
    bucket_release(b);
    return status;
}

/* Of extents that are a bucket's own, its plan. */
static mica_graph_plan *plan_of_bucket(mica_graph_dynamic *d, const int64_t *extents)
{
    int64_t ends[MICA_GRAPH_EXTENTS];
    ends_of(d->graph, extents, ends);
    bucket *b = memcmp(ends, extents, bytes_of(d)) ? NULL : find_bucket(d, ends);
    if (!b) return NULL;
    mica_graph_plan *plan = b->plan;
    graph_plan_retain(plan);
    bucket_release(b);
    return plan;
}

static mica_status check_call(const mica_graph_dynamic *d, const int64_t *extents)
{
    if (!d || (d->graph->extent_count && !extents))
        return mica_fail(MICA_INVALID, "dynamic or extents is NULL");
    return graph_check_extents(d->graph, extents);
}

mica_status mica_graph_dynamic_plan(mica_graph_dynamic *d, const int64_t *extents,
                                    mica_graph_plan **plan)
{
    static const int64_t none = 0;
    if (!plan) return mica_fail(MICA_INVALID, "plan is NULL");
    *plan = NULL;
    MICA_TRY(check_call(d, extents));
    if (d->context->cuda) MICA_TRY(mica_fork_check());
    if (!extents) extents = &none;
    const uint64_t hash = mica_plan_key_hash(extents, bytes_of(d));
    *plan = mica_plan_cache_find(&d->plans, extents, bytes_of(d), hash);
    if (!*plan) *plan = plan_of_bucket(d, extents);
    atomic_fetch_add_explicit(*plan ? &d->hits : &d->misses, 1, memory_order_relaxed);
    if (*plan) return MICA_OK;
    mica_floating state MICA_FLOATING_SCOPE = mica_floating_begin(false);
    return make_and_keep(d, extents, hash, plan);
}

mica_status mica_graph_dynamic_run(mica_graph_dynamic *d, const int64_t *extents,
                                   const mica_graph_run *run)
{
    mica_graph_plan *plan;
    MICA_TRY(mica_graph_dynamic_plan(d, extents, &plan));
    const mica_status status = mica_graph_plan_run(plan, run);
    mica_graph_plan_destroy(plan);
    return status;
}

mica_status mica_graph_dynamic_workspace(mica_graph_dynamic *d, const int64_t *extents,
                                         size_t *bytes)
{
    mica_graph_plan *plan;
    if (!bytes) return mica_fail(MICA_INVALID, "bytes is NULL");
    *bytes = 0;
    MICA_TRY(mica_graph_dynamic_plan(d, extents, &plan));
    *bytes = mica_graph_plan_workspace(plan);
    mica_graph_plan_destroy(plan);
    return MICA_OK;
}

mica_status mica_graph_dynamic_count(mica_graph_dynamic *d, mica_graph_dynamic_stats *stats)
{
    if (!d || !stats) return mica_fail(MICA_INVALID, "dynamic or stats is NULL");
    *stats = (mica_graph_dynamic_stats){
        .hits = atomic_load_explicit(&d->hits, memory_order_relaxed),
        .misses = atomic_load_explicit(&d->misses, memory_order_relaxed),
        .anew = atomic_load_explicit(&d->anew, memory_order_relaxed),
        .buckets = atomic_load_explicit(&d->planned, memory_order_relaxed)};
    pthread_mutex_lock(&d->plans.mutex);
    stats->plans = d->plans.count;
    stats->bytes = d->plans.bytes;
    stats->limit = d->plans.limit;
    pthread_mutex_unlock(&d->plans.mutex);
    return MICA_OK;
}

/* ---- what saved.c sees ---- */

mica_status graph_dynamic_restore(mica_graph_dynamic *d, const int64_t *ends,
                                  const graph_decisions *decisions)
{
    mica_graph_options options = d->options;
    mica_options nodes = d->nodes;
    bool anew = false;
    bucket *b;
    /* what was chosen was allowed then */
    nodes.nondeterministic = true;
    nodes.engine = nodes.config = NULL;
    options.nodes = &nodes;
    MICA_TRY(make_bucket(d, ends, &options, decisions, &anew, &b));
    bucket_release(b);
    return anew ? MICA_NOT_FOUND : MICA_OK;
}

const mica_graph *graph_dynamic_graph(const mica_graph_dynamic *d, mica_graph_mode *mode,
                                      mica_device_info *device)
{
    *mode = d->options.mode;
    *device = d->context->device;
    return d->graph;
}

mica_graph_plan *graph_dynamic_bucket(mica_graph_dynamic *d, int index, int64_t *ends)
{
    mica_graph_plan *plan = NULL;
    pthread_mutex_lock(&d->mutex);
    if (index < d->bucket_count) {
        plan = d->buckets[index]->plan;
        memcpy(ends, d->buckets[index]->ends, bytes_of(d));
        graph_plan_retain(plan);
    }
    pthread_mutex_unlock(&d->mutex);
    return plan;
}
