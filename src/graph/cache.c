/* SPDX-License-Identifier: Apache-2.0
 * The cache of plans of graphs, by all that makes a plan what it is: the graph as it was built,
 * names, values of constants and all, and the options. */
#include "graph/cache.h"
#include "base/memory.h"
#include "plan/context.h"

#include <string.h>

/* ---- keys ---- */

/* Room for `bytes` at the end; NULL: no memory. */
static inline char *more(graph_key *k, size_t bytes)
{
    if (k->room - k->size < bytes) {
        const size_t room = 2 * k->room + bytes;
        char *data = mica_grow(k->data == k->fixed ? NULL : k->data, room);
        if (!data) return NULL;
        if (k->data == k->fixed) memcpy(data, k->fixed, k->size);
        k->data = data;
        k->room = room;
    }
    k->size += bytes;
    return k->data + k->size - bytes;
}

static inline bool put(graph_key *k, const void *from, size_t bytes)
{
    char *to = more(k, bytes);
    if (to && bytes) memcpy(to, from, bytes);
    return to;
}

/* With its end; NULL and "" differ. */
static bool put_text(graph_key *k, const char *text)
{
    const char there = text != NULL;
    return put(k, &there, 1) && (!text || put(k, text, strlen(text) + 1));
}

static bool put_tensor(graph_key *k, const graph_tensor *t)
{
    const mica_tensor *given = &t->given;
    const size_t rank = given->rank > 0 ? (size_t)given->rank : 0, bytes = rank * sizeof(int64_t);
    const int64_t span = t->data ? mica_tensor_span(given, NULL) : 0;
    const int32_t head[] = {(int32_t)t->kind, t->declared, (int32_t)given->dtype, given->rank,
                            given->strided != 0};
    return put(k, head, sizeof head) && put(k, given->dims, bytes) &&
           put(k, given->strides, bytes) && put_text(k, t->name) &&
           (span <= 0 || put(k, t->data, (size_t)span));
}

static bool put_node(graph_key *k, const graph_node *n)
{
    const size_t scalars = (size_t)n->op->scalar_count;
    const int32_t head[] = {n->bind_count, n->line};
    return put(k, &n->op, sizeof n->op) && put(k, head, sizeof head) &&
           put(k, n->given, graph_packed_bytes(n->given)) &&
           put(k, n->binds, (size_t)n->bind_count * sizeof *n->binds) &&
           put(k, n->scalars, scalars * sizeof *n->scalars) &&
           put(k, n->scalar_of, scalars * sizeof *n->scalar_of);
}

static bool put_graph(graph_key *k, const mica_graph *g)
{
    const int32_t head[] = {g->tensor_count, g->node_count, g->scalar_count};
    bool whole = put(k, head, sizeof head);
    for (int i = 0; whole && i < g->tensor_count; i++) whole = put_tensor(k, &g->tensors[i]);
    for (int i = 0; whole && i < g->node_count; i++) whole = put_node(k, &g->nodes[i]);
    for (int i = 0; whole && i < g->scalar_count; i++)
        whole = put_text(k, g->scalars[i].name) &&
                put(k, &g->scalars[i].value, sizeof g->scalars[i].value);
    return whole;
}

static bool put_options(graph_key *k, const mica_graph_options *o, const mica_options *nodes)
{
    const int32_t head[] = {(int32_t)o->mode, (int32_t)nodes->mode, nodes->nondeterministic,
                            nodes->measure_ms};
    return put(k, head, sizeof head) &&
           put(k, &nodes->workspace_limit, sizeof nodes->workspace_limit) &&
           put_text(k, o->without) && put_text(k, nodes->engine) && put_text(k, nodes->config);
}

/* What is larger than the cache is not copied to be looked up. */
static bool too_large(const mica_context *c, const mica_graph *g)
{
    int64_t bytes = 0;
    for (int i = 0; i < g->tensor_count; i++)
        if (g->tensors[i].data) bytes += mica_tensor_span(&g->tensors[i].given, NULL);
    return bytes >= atomic_load_explicit(&c->graphs.limit, memory_order_relaxed);
}

mica_status graph_key_make(const mica_context *c, const mica_graph *g, const mica_graph_options *o,
                           graph_key *k)
{
    mica_options nodes;
    k->data = NULL;
    MICA_TRY(mica_options_read(o->nodes, &nodes));
    if (too_large(c, g)) return MICA_OK;
    k->data = k->fixed;
    k->room = sizeof k->fixed;
    k->size = 0;
    if (!put_options(k, o, &nodes) || !put_graph(k, g)) {
        graph_key_free(k);
        return mica_fail_memory(2 * k->room);
    }
    k->hash = mica_plan_key_hash(k->data, k->size);
    return MICA_OK;
}

void graph_key_free(graph_key *k)
{
    if (k->data != k->fixed) mica_release(k->data);
    k->data = NULL;
}

/* ---- the cache ---- */

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

static const mica_cached cached_graph = {retain, release, held};

mica_graph_plan *graph_cache_find(mica_context *c, const graph_key *k)
{
    return k->data ? mica_plan_cache_find(&c->graphs, k->data, k->size, k->hash) : NULL;
}

void graph_cache_add(mica_context *c, const graph_key *k, mica_graph_plan *plan)
{
    if (k->data) mica_plan_cache_add(&c->graphs, k->data, k->size, k->hash, &cached_graph, plan);
}

mica_status mica_graph_cache_stats(const mica_context *context, mica_graph_stats *stats)
{
    mica_context *c = (mica_context *)(uintptr_t)context;
    if (!c || !stats) return mica_fail(MICA_INVALID, "context or stats is NULL");
    mica_plan_cache *graphs = &c->graphs;
    pthread_mutex_lock(&graphs->mutex);
    *stats = (mica_graph_stats){.hits = graphs->hits,
                                .misses = graphs->misses,
                                .bytes = graphs->bytes,
                                .limit = graphs->limit,
                                .plans = graphs->count};
    pthread_mutex_unlock(&graphs->mutex);
    return MICA_OK;
}

mica_status mica_graph_cache_limit(mica_context *c, int64_t bytes)
{
    if (!c) return mica_fail(MICA_INVALID, "context is NULL");
    if (bytes < 0) return mica_fail(MICA_INVALID, "cache limit is %lld bytes", (long long)bytes);
    mica_plan_cache_limit(&c->graphs, bytes);
    return MICA_OK;
}
