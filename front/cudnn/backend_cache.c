/* SPDX-License-Identifier: Apache-2.0
 * Lowered graphs read from their text, and plans of them. A plan belongs to its context and the
 * text of its mica graph, numbers included, so that a graph that is described again, by another
 * thread or with the same configuration again, finds it. The cache is bounded; a plan in use stays.
 */
#include "backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CACHE_ENTRIES 1024

struct backend_entry {
    atomic_int references;
    uint64_t hash;
    mica_context *context;
    char *text;
    mica_graph_plan *plan;
    backend_entry *next; /* the one used before */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static backend_entry *recent; /* used last */
static int entry_count;

/* ---- lowered graphs ---- */

void backend_lowered_free(backend_lowered *l)
{
    if (!l) return;
    free(l->text);
    free(l->ports);
    free(l->numbers);
    free(l);
}

static bool read_port(backend_lowered *l, const char *line)
{
    backend_port p = {0};
    long long uid;
    if (sscanf(line, "#port %lld %27s", &uid, p.name) != 2) return false;
    backend_port *grown = realloc(l->ports, ((size_t)l->port_count + 1) * sizeof *grown);
    if (!grown) return false;
    p.uid = uid;
    l->ports = grown;
    l->ports[l->port_count++] = p;
    return true;
}

mica_dtype backend_dtype_named(const char *name)
{
    for (int i = 1; i < MICA_DTYPE_COUNT; i++)
        if (!strcmp(mica_dtype_name((mica_dtype)i), name)) return (mica_dtype)i;
    return MICA_NONE;
}

static bool read_number(backend_lowered *l, const char *line)
{
    backend_number n = {0};
    char type[12];
    long long uid;
    int use;
    if (sscanf(line, "#value %lld %11s %27s %lf %d", &uid, type, n.name, &n.value, &use) != 5)
        return false;
    backend_number *grown = realloc(l->numbers, ((size_t)l->number_count + 1) * sizeof *grown);
    if (!grown) return false;
    n.uid = uid;
    n.type = backend_dtype_named(type);
    n.use = (backend_use)use;
    l->numbers = grown;
    if (n.type == MICA_NONE || use < USE_SCALAR || use > USE_LOWEST) return false;
    l->numbers[l->number_count++] = n;
    return true;
}

static bool read_copy(backend_lowered *l, const char *line)
{
    char type[12];
    long long from, to, count;
    if (sscanf(line, "#copy %lld %lld %11s %lld", &from, &to, type, &count) != 4) return false;
    const mica_dtype dtype = backend_dtype_named(type);
    if (l->copy_count == 4 || dtype == MICA_NONE || count < 1) return false;
    l->copies[l->copy_count++] = (backend_copy){
        .from = from, .to = to, .tensor = mica_tensor_packed(dtype, 1, (const int64_t[]){count})};
    return true;
}

/* The text of engine `engine` with these numbers; NULL: no memory, or a name that is none. */
static char *render(const backend_lowered *l, int engine, const double *numbers)
{
    const size_t room = strlen(l->text) * 2 + 64;
    char *to = malloc(room + 64), *end = to;
    for (const char *s = l->text; to && *s;) {
        const char *close = *s == '$' ? strchr(s + 1, '$') : NULL;
        if (!close) {
            *end++ = *s++;
        } else {
            const size_t length = (size_t)(close - s - 1);
            if (length == 4 && !memcmp(s + 1, "TF32", 4)) {
                if (l->engines == 2 && engine == 0) end = stpcpy(end, "compute=tf32");
                s = close + 1;
                continue;
            }
            int i = 0;
            while (i < l->number_count && (strlen(l->numbers[i].name) != length ||
                                           memcmp(l->numbers[i].name, s + 1, length) != 0))
                i++;
            if (i == l->number_count) {
                free(to);
                return NULL;
            }
            end += snprintf(end, 40, "%.17g", numbers ? numbers[i] : l->numbers[i].value);
            s = close + 1;
        }
        if ((size_t)(end - to) > room) {
            free(to);
            return NULL;
        }
    }
    if (to) *end = 0;
    return to;
}

/* Whether mica has a graph of it. */
static void judge(backend_lowered *l)
{
    mica_graph *graph = NULL;
    l->engines = strstr(l->text, "$TF32$") ? 2 : 1;
    char *text = render(l, 0, NULL);
    mica_status status = text ? mica_graph_from_text(text, &graph) : MICA_OUT_OF_MEMORY;
    if (status == MICA_OK) status = mica_graph_infer(graph);
    if (status != MICA_OK) {
        snprintf(l->refusal, sizeof l->refusal, "%s", text ? mica_error() : "the text has no end");
        l->engines = 0;
    }
    mica_graph_destroy(graph);
    free(text);
}

cudnnStatus_t backend_lowered_read(const char *text, mica_context *context,
                                   backend_lowered **lowered)
{
    backend_lowered *l = calloc(1, sizeof *l);
    bool sound = l != NULL;
    if (l) l->text = strdup(text);
    sound &= l && l->text;
    for (const char *s = text; sound && s && *s; s = strchr(s, '\n'), s += s != NULL) {
        if (!strncmp(s, "#port ", 6)) sound = read_port(l, s);
        if (!strncmp(s, "#value ", 7)) sound = read_number(l, s);
        if (!strncmp(s, "#copy ", 6)) sound = read_copy(l, s);
        if (!strncmp(s, "#ragged ", 8)) sound = backend_ragged_read(l, s);
        if (!strncmp(s, "#narrow", 7)) l->narrow = true;
    }
    if (!sound) {
        backend_lowered_free(l);
        return front_fail(CUDNN_STATUS_BAD_PARAM, "the text of a lowered graph is not sound");
    }
    l->context = context;
    judge(l);
    *lowered = l;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- plans ---- */

void backend_entry_retain(backend_entry *e)
{
    atomic_fetch_add(&e->references, 1);
}

void backend_entry_put(backend_entry *e)
{
    if (!e || atomic_fetch_sub(&e->references, 1) != 1) return;
    mica_graph_plan_destroy(e->plan);
    free(e->text);
    free(e);
}

mica_graph_plan *backend_entry_plan(const backend_entry *e)
{
    return e->plan;
}

int64_t backend_entry_workspace(const backend_entry *e)
{
    const size_t bytes = mica_graph_plan_workspace(e->plan);
    return bytes ? (int64_t)bytes + 255 : 0;
}

static uint64_t hash_of(const char *text)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (; *text; text++) hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    return hash;
}

/* Finds it and puts it in front; the caller has the lock. */
static backend_entry *find(const mica_context *context, uint64_t hash, const char *text)
{
    for (backend_entry **at = &recent; *at; at = &(*at)->next) {
        backend_entry *e = *at;
        if (e->hash != hash || e->context != context || strcmp(e->text, text) != 0) continue;
        *at = e->next;
        e->next = recent;
        recent = e;
        backend_entry_retain(e);
        return e;
    }
    return NULL;
}

/* Keeps it and forgets the oldest ones; gives what is to be put back. */
static backend_entry *keep(backend_entry *e)
{
    backend_entry *old = NULL, **at = &recent;
    backend_entry_retain(e);
    e->next = recent;
    recent = e;
    if (++entry_count <= CACHE_ENTRIES) return NULL;
    while ((*at)->next) at = &(*at)->next;
    old = *at;
    *at = NULL;
    entry_count--;
    return old;
}

static mica_status make(mica_context *context, const char *text, mica_graph_plan **plan)
{
    mica_graph *graph;
    mica_status status = mica_graph_from_text(text, &graph);
    if (status != MICA_OK) return status;
    status = mica_graph_plan_create(context, graph, NULL, plan);
    mica_graph_destroy(graph);
    return status;
}

static cudnnStatus_t build(mica_context *context, uint64_t hash, char *text, backend_entry **entry)
{
    backend_entry *e = calloc(1, sizeof *e), *old = NULL, *other;
    if (!e) return front_fail(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "a plan");
    const mica_status status = make(context, text, &e->plan);
    if (status != MICA_OK) {
        free(e);
        if (status != MICA_INVALID && status != MICA_UNSUPPORTED) return front_status(status);
        return front_fail(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s", mica_error());
    }
    atomic_init(&e->references, 1);
    e->hash = hash;
    e->context = context;
    e->text = strdup(text);
    if (!e->text) {
        backend_entry_put(e);
        return front_fail(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "a plan");
    }
    pthread_mutex_lock(&lock);
    other = find(context, hash, text);
    if (!other) old = keep(e);
    pthread_mutex_unlock(&lock);
    backend_entry_put(other ? e : old);
    *entry = other ? other : e;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t backend_entry_get(const backend_lowered *l, int engine, const double *numbers,
                                backend_entry **entry)
{
    if (!l->context)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "the operation graph has neither a HANDLE nor "
                                                  "the DEVICEPROP of a heuristics or an engine");
    char *text = render(l, engine, numbers);
    if (!text) return front_fail(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "a plan");
    const uint64_t hash = hash_of(text);
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    pthread_mutex_lock(&lock);
    *entry = find(l->context, hash, text);
    pthread_mutex_unlock(&lock);
    if (!*entry) status = build(l->context, hash, text, entry);
    free(text);
    return status;
}
