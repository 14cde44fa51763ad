/* SPDX-License-Identifier: Apache-2.0
 * Running a plan with the pointers of a variant pack, on the handle's stream. Numbers that tensors
 * by value hold in host memory are read here; where one is part of the plan and another than the
 * plan was made for, a plan with it is made and kept. */
#include "backend.h"
#include "compare.h"

#include <math.h>
#include <string.h>

#define MOST 512 /* tensors of a plan; numbers of one */

void *backend_pointer(const backend *pack, int64_t uid)
{
    const backend_value *uids = backend_get(pack, AT_PACK_UNIQUE_IDS);
    const backend_value *pointers = backend_get(pack, AT_PACK_DATA_POINTERS);
    for (int64_t i = 0; uids && i < uids->count; i++)
        if (((const int64_t *)uids->data)[i] == uid) return ((void **)pointers->data)[i];
    return NULL;
}

static cudnnStatus_t missing(int64_t uid, const char *what)
{
    return front_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER,
                      "the variant pack has no pointer for %s %lld", what, (long long)uid);
}

static cudnnStatus_t read_numbers(const backend_lowered *l, const backend *pack, double *numbers,
                                  bool *as_planned)
{
    *as_planned = true;
    for (int i = 0; i < l->number_count; i++) {
        const backend_number *n = &l->numbers[i];
        const mica_tensor one = {.dtype = n->type, .rank = 1, .dims = {1}, .strides = {1}};
        const void *at = backend_pointer(pack, n->uid);
        if (!at) return missing(n->uid, "the value of tensor");
        FRONT_TRY(front_status(mica_tensor_load(&one, at, &numbers[i])));
        const double off = fabs(numbers[i] - n->value);
        if (n->use == USE_BAKED && numbers[i] != n->value) *as_planned = false;
        if (n->use == USE_EQUAL && !(off <= 1e-5 * fabs(n->value)))
            return front_fail(CUDNN_STATUS_NOT_SUPPORTED,
                              "tensor %lld is %g, the graph is served where it is %g",
                              (long long)n->uid, numbers[i], n->value);
        if (n->use == USE_LOWEST && !(numbers[i] <= -1e4))
            return front_fail(CUDNN_STATUS_NOT_SUPPORTED,
                              "tensor %lld is %g, scores are hidden by at most -1e4",
                              (long long)n->uid, numbers[i]);
    }
    return CUDNN_STATUS_SUCCESS;
}

/* The entry for these numbers, to be put back. */
static cudnnStatus_t entry_for(backend_built *built, const double *numbers, bool as_planned,
                               backend_entry **entry)
{
    const size_t bytes = (size_t)built->lowered->number_count * sizeof *numbers;
    backend_entry *old = NULL;
    double baked[MOST];
    *entry = NULL;
    if (as_planned) {
        backend_entry_retain(built->entry);
        *entry = built->entry;
        return CUDNN_STATUS_SUCCESS;
    }
    for (int i = 0; i < built->lowered->number_count; i++)
        baked[i] = built->lowered->numbers[i].use == USE_BAKED ? numbers[i]
                                                               : built->lowered->numbers[i].value;
    pthread_mutex_lock(&built->lock);
    if (built->recent && !memcmp(built->recent_numbers, baked, bytes)) {
        backend_entry_retain(built->recent);
        *entry = built->recent;
    }
    pthread_mutex_unlock(&built->lock);
    if (*entry) return CUDNN_STATUS_SUCCESS;
    FRONT_TRY(backend_entry_get(built->lowered, built->engine, baked, entry));
    backend_entry_retain(*entry);
    pthread_mutex_lock(&built->lock);
    old = built->recent;
    built->recent = *entry;
    memcpy(built->recent_numbers, baked, bytes);
    pthread_mutex_unlock(&built->lock);
    backend_entry_put(old);
    return CUDNN_STATUS_SUCCESS;
}

/* The client's workspace, aligned; if the plan for other numbers needs more, the handle's. */
static cudnnStatus_t find_workspace(cudnnHandle_t handle, const backend *pack,
                                    const backend_built *built, const backend_entry *entry,
                                    void **workspace)
{
    const int64_t needed = backend_entry_workspace(entry);
    const backend_value *v = backend_get(pack, AT_PACK_WORKSPACE);
    void *given = NULL;
    *workspace = NULL;
    if (!needed) return CUDNN_STATUS_SUCCESS;
    if (needed > backend_entry_workspace(built->entry))
        return front_workspace(handle, (size_t)needed, workspace);
    if (v && v->count) memcpy(&given, v->data, sizeof given);
    if (!given)
        return front_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER,
                          "WORKSPACE is null, the plan needs %lld bytes", (long long)needed);
    *workspace = (char *)given + ((256 - ((uintptr_t)given & 255)) & 255);
    return CUDNN_STATUS_SUCCESS;
}

/* Running statistics of before, to where the run changes them. */
static cudnnStatus_t copy_first(cudnnHandle_t handle, const backend_lowered *l, const backend *pack)
{
    for (int i = 0; i < l->copy_count; i++) {
        const backend_copy *c = &l->copies[i];
        const void *from = backend_pointer(pack, c->from);
        void *to = backend_pointer(pack, c->to);
        if (!from || !to) return missing(from ? c->to : c->from, "tensor");
        if (from != to) FRONT_TRY(front_blend(handle, 1, &c->tensor, from, 0, &c->tensor, to));
    }
    return CUDNN_STATUS_SUCCESS;
}

typedef struct apart {
    mica_tensor tensor;
    void *to, *memory; /* the client's, and the handle's with element 0 as far in */
} apart;

enum { APART = 6 }; /* slots of the handle; backend_ragged.c has the seventh */

/* Results that share memory with what is read, or with each other, go to memory of the handle
 * first: cuDNN allows results in the place of an input. */
static cudnnStatus_t set_apart(cudnnHandle_t handle, const backend_built *built,
                               const backend_entry *entry, void **tensors, apart *results,
                               int *count)
{
    const backend_extent *e = built->extents;
    mica_graph_tensor_info info;
    const char *given[MOST];
    for (int i = 0; i < built->port_count; i++) given[i] = (const char *)tensors[i] + e[i].first;
    for (int i = 0; i < built->port_count; i++) {
        bool shared = false;
        for (int k = 0; e[i].result && k < built->port_count && !shared; k++)
            shared = k != i && given[i] < given[k] + e[k].bytes && given[k] < given[i] + e[i].bytes;
        if (!shared) continue;
        if (*count == APART)
            return front_fail(CUDNN_STATUS_NOT_SUPPORTED,
                              "more than %d results share memory with other tensors", APART);
        FRONT_TRY(front_status(mica_graph_plan_tensor(backend_entry_plan(entry), i, &info)));
        apart *r = &results[(*count)++];
        r->tensor = info.tensor;
        r->to = tensors[i];
        FRONT_TRY(front_temporary(handle, *count, (size_t)e[i].bytes, &r->memory));
        r->memory = (char *)r->memory - e[i].first;
        tensors[i] = r->memory;
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t run(cudnnHandle_t handle, backend_built *built, const backend *pack)
{
    const backend_lowered *l = built->lowered;
    void *tensors[MOST];
    double numbers[MOST], scalars[MOST];
    bool as_planned;
    backend_entry *entry;
    if (built->port_count > MOST || l->number_count > MOST)
        return front_fail(CUDNN_STATUS_NOT_SUPPORTED, "a plan of %d tensors and %d numbers",
                          built->port_count, l->number_count);
    FRONT_TRY(read_numbers(l, pack, numbers, &as_planned));
    for (int i = 0; i < built->port_count; i++) {
        tensors[i] = backend_pointer(pack, l->ports[built->port_of[i]].uid);
        if (!tensors[i]) return missing(l->ports[built->port_of[i]].uid, "tensor");
    }
    for (int i = 0; i < built->scalar_count; i++) scalars[i] = numbers[built->number_of[i]];
    FRONT_TRY(entry_for(built, numbers, as_planned, &entry));
    mica_graph_run r = {.tensors = tensors, .stream = handle->stream};
    r.scalars = built->scalar_count ? scalars : NULL;
    apart results[APART];
    backend_moves moves;
    int count = 0;
    cudnnStatus_t status = find_workspace(handle, pack, built, entry, &r.workspace);
    if (status == CUDNN_STATUS_SUCCESS && l->ragged_count)
        status = backend_ragged_begin(handle, built, pack, tensors, &moves);
    if (status == CUDNN_STATUS_SUCCESS)
        status = set_apart(handle, built, entry, tensors, results, &count);
    if (status == CUDNN_STATUS_SUCCESS) status = copy_first(handle, l, pack);
    if (status == CUDNN_STATUS_SUCCESS)
        status = front_status(mica_graph_plan_run(backend_entry_plan(entry), &r));
    for (int i = 0; i < count && status == CUDNN_STATUS_SUCCESS; i++)
        status = front_blend(handle, 1, &results[i].tensor, results[i].memory, 0,
                             &results[i].tensor, results[i].to);
    if (status == CUDNN_STATUS_SUCCESS && l->ragged_count)
        status = backend_ragged_end(handle, built, &moves);
    backend_entry_put(entry);
    if (status == CUDNN_STATUS_SUCCESS) front_served();
    return status;
}

static cudnnStatus_t check(const void *descriptor, backend_type type, const char *argument)
{
    FRONT_TRY(front_given(descriptor, argument));
    FRONT_TRY(front_check(descriptor, FRONT_BACKEND, argument));
    const backend *b = descriptor;
    if (b->type != type || b->destroyed)
        return front_fail(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "%s is a %s%s, not a %s",
                          argument, b->destroyed ? "destroyed " : "", backend_type_words(b->type),
                          backend_type_words(type));
    if (!b->finalized)
        return front_fail(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "the %s is not finalized",
                          backend_type_words(type));
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetExecutionPlanWorkspaceSize(cudnnHandle_t handle,
                                                 cudnnBackendDescriptor_t plan,
                                                 cudnnBackendDescriptor_t pack, size_t *bytes)
{
    front_enter(CALL_cudnnGetExecutionPlanWorkspaceSize);
    FRONT_TRY(front_given(handle, "handle"));
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    FRONT_TRY(check(plan, BT_PLAN, "executionPlan"));
    FRONT_TRY(check(pack, BT_PACK, "variantPack"));
    FRONT_TRY(front_given(bytes, "workspaceSizeInBytes"));
    *bytes = (size_t)backend_entry_workspace(((backend *)plan)->built->entry);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t plain_cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                        cudnnBackendDescriptor_t pack)
{
    front_enter(CALL_cudnnBackendExecute);
    FRONT_TRY(front_given(handle, "handle"));
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    FRONT_TRY(check(plan, BT_PLAN, "executionPlan"));
    FRONT_TRY(check(pack, BT_PACK, "variantPack"));
    backend_built *built = ((backend *)plan)->built;
    if (front_context(handle) != built->lowered->context)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "the plan is of another device than the handle");
    return run(handle, built, pack);
}
