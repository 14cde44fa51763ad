/* SPDX-License-Identifier: Apache-2.0
 * Plans of the graph interface, compared where that is asked for: the other library gets a graph of
 * the same descriptors and runs the first configuration of its heuristics that it has a plan for.
 */
#include "backend.h"
#include "compare.h"

#include <stdlib.h>
#include <string.h>

enum { PARTS = 1024, TRIED = 8 };

typedef struct copier {
    compare_call *call;
    __typeof__(&cudnnBackendCreateDescriptor) create;
    __typeof__(&cudnnBackendSetAttribute) set;
    __typeof__(&cudnnBackendGetAttribute) get;
    __typeof__(&cudnnBackendFinalize) finalize;
    __typeof__(&cudnnBackendExecute) execute;
    const backend *ours[PARTS];
    void *theirs[PARTS];
    int count;
} copier;

static bool find_functions(copier *c, compare_call *call)
{
    c->call = call;
    *(void **)&c->create = compare_function(call, "cudnnBackendCreateDescriptor");
    *(void **)&c->set = compare_function(call, "cudnnBackendSetAttribute");
    *(void **)&c->get = compare_function(call, "cudnnBackendGetAttribute");
    *(void **)&c->finalize = compare_function(call, "cudnnBackendFinalize");
    *(void **)&c->execute = compare_function(call, "cudnnBackendExecute");
    return !call->lost;
}

/* A descriptor of theirs, to be destroyed with the copier; NULL: there is none. */
static void *make(copier *c, const backend *like, int type)
{
    void *made = NULL;
    if (c->count == PARTS || c->create((unsigned)type, &made)) return NULL;
    c->ours[c->count] = like;
    c->theirs[c->count++] = made;
    return made;
}

static void *copy(copier *c, const backend *b);

static bool copy_value(copier *c, void *to, unsigned attribute, const backend_value *v)
{
    void *children[256];
    if (v->type == BW_HANDLE) return !c->set(to, attribute, BW_HANDLE, 1, &c->call->original);
    if (v->type != BW_DESCRIPTOR)
        return !c->set(to, attribute, (unsigned)v->type, v->count, v->data);
    if (v->count > 256) return false;
    for (int64_t i = 0; i < v->count; i++) {
        children[i] = copy(c, ((backend **)v->data)[i]);
        if (!children[i]) return false;
    }
    return !c->set(to, attribute, BW_DESCRIPTOR, v->count, children);
}

static void *copy(copier *c, const backend *b)
{
    for (int i = 0; i < c->count; i++)
        if (c->ours[i] == b) return c->theirs[i];
    void *made = make(c, b, (int)b->type);
    for (int i = 0; made && i < b->row_count; i++) {
        const backend_value *v = &b->values[i];
        if (v->given && !copy_value(c, made, b->rows[i].number, v)) return NULL;
    }
    return made && !c->finalize(made) ? made : NULL;
}

static void *plan_of(copier *c, void *config, int64_t *bytes)
{
    void *plan = NULL;
    int64_t count = 0;
    if (c->create(BT_PLAN, &plan)) return NULL;
    if (!c->set(plan, AT_PLAN_HANDLE, BW_HANDLE, 1, &c->call->original) &&
        !c->set(plan, AT_PLAN_ENGINE_CONFIG, BW_DESCRIPTOR, 1, &config) && !c->finalize(plan) &&
        !c->get(plan, AT_PLAN_WORKSPACE_SIZE, BW_INT64, 1, &count, bytes))
        return plan;
    compare_drop(plan);
    return NULL;
}

/* NULL: the other library has none. */
static void *make_plan(copier *c, const backend *graph, int64_t *bytes)
{
    const int32_t mode = HEURISTIC_A;
    void *configs[TRIED], *theirs = copy(c, graph), *plan = NULL;
    void *heuristics = theirs ? make(c, NULL, BT_HEURISTICS) : NULL;
    int64_t found = 0;
    if (!heuristics ||
        c->set(heuristics, AT_HEURISTICS_OPERATION_GRAPH, BW_DESCRIPTOR, 1, &theirs) ||
        c->set(heuristics, AT_HEURISTICS_MODE, BW_HEURISTIC_MODE, 1, &mode) ||
        c->finalize(heuristics))
        return NULL;
    for (int i = 0; i < TRIED; i++) {
        configs[i] = make(c, NULL, BT_CONFIG);
        if (!configs[i]) return NULL;
    }
    if (c->get(heuristics, AT_HEURISTICS_RESULTS, BW_DESCRIPTOR, TRIED, &found, configs))
        return NULL;
    for (int i = 0; i < found && i < TRIED && !plan; i++) plan = plan_of(c, configs[i], bytes);
    return plan;
}

static void find_plan(copier *c, backend_built *built, const backend *plan)
{
    const backend *config = backend_child(plan, AT_PLAN_ENGINE_CONFIG);
    const backend *graph =
        backend_child(backend_child(config, AT_CONFIG_ENGINE), AT_ENGINE_OPERATION_GRAPH);
    pthread_mutex_lock(&built->lock);
    if (!built->original_tried && backend_get(graph, AT_GRAPH_OPS))
        built->original = make_plan(c, graph, &built->original_bytes);
    built->original_tried = true;
    pthread_mutex_unlock(&built->lock);
    for (int i = 0; i < c->count; i++) compare_drop(c->theirs[i]);
    c->count = 0;
}

/* Results of theirs in the place of ours, in a list of pointers as long as the pack's. */
static bool replace_results(compare_call *call, const backend_built *built, const backend *pack,
                            void **pointers)
{
    const backend_value *uids = backend_get(pack, AT_PACK_UNIQUE_IDS);
    mica_graph_tensor_info info;
    for (int i = 0; i < built->port_count; i++) {
        const int64_t uid = built->lowered->ports[built->port_of[i]].uid;
        if (mica_graph_plan_tensor(backend_entry_plan(built->entry), i, &info) != MICA_OK)
            return false;
        if (info.kind == MICA_GRAPH_INPUT) continue;
        for (int64_t k = 0; k < uids->count; k++)
            if (((const int64_t *)uids->data)[k] == uid)
                pointers[k] = compare_result_at(call, info.name, &info.tensor, pointers[k]);
    }
    return !call->lost;
}

static void run_theirs(copier *c, const backend_built *built, const backend *pack)
{
    const backend_value *uids = backend_get(pack, AT_PACK_UNIQUE_IDS);
    const backend_value *given = backend_get(pack, AT_PACK_DATA_POINTERS);
    compare_call *call = c->call;
    call->lost = !built->original || !uids || !given || built->lowered->ragged_count;
    if (call->lost) return;
    void **pointers = malloc((size_t)given->count * sizeof *pointers + 1), *theirs = NULL;
    void *workspace = compare_memory(call, (size_t)built->original_bytes);
    if (pointers) memcpy(pointers, given->data, (size_t)given->count * sizeof *pointers);
    call->lost |= !pointers || c->create(BT_PACK, &theirs);
    if (!call->lost && replace_results(call, built, pack, pointers) &&
        !c->set(theirs, AT_PACK_UNIQUE_IDS, BW_INT64, uids->count, uids->data) &&
        !c->set(theirs, AT_PACK_DATA_POINTERS, BW_POINTER, given->count, pointers) &&
        !c->set(theirs, AT_PACK_WORKSPACE, BW_POINTER, 1, &workspace) && !c->finalize(theirs))
        call->status = c->execute(call->original, built->original, theirs);
    compare_drop(theirs);
    free(pointers);
}

static bool is_ready(const backend *b, backend_type type)
{
    return b && b->kind == FRONT_BACKEND && b->type == type && b->finalized && !b->destroyed;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack)
{
    compare_call call;
    copier *c = NULL;
    if (!is_ready(plan, BT_PLAN) || !is_ready(pack, BT_PACK) ||
        !compare_begin(&call, handle, CALL_cudnnBackendExecute))
        return plain_cudnnBackendExecute(handle, plan, pack);
    c = calloc(1, sizeof *c);
    if (c && find_functions(c, &call)) {
        backend_built *built = ((backend *)plan)->built;
        find_plan(c, built, plan);
        run_theirs(c, built, pack);
    } else {
        call.lost = true;
    }
    free(c);
    return compare_end(&call, plain_cudnnBackendExecute(handle, plan, pack));
}
