/* SPDX-License-Identifier: Apache-2.0
 * One mica context per device, handles on it, workspace, plans and runs. */
#define _GNU_SOURCE
#include "compare.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- devices ---- */

enum { DEVICES = 64 };
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static mica_context *contexts[DEVICES + 1]; /* the last is the host's */

static const char *driver_path(void)
{
    const char *name, *value, *words;
    for (int i = 0; mica_env_info(i, &name, &value, &words) == MICA_OK; i++)
        if (!strcmp(name, "MICA_CUDA_DRIVER") && value && *value) return value;
    return "libcuda.so.1";
}

/* The device of the calling thread's CUDA context: what cudaSetDevice chose. 0 where the driver has
 * not been loaded, or the thread has no context yet: the CUDA runtime's default. */
static int current_device(void)
{
    void *driver = dlopen(driver_path(), RTLD_NOW | RTLD_NOLOAD);
    if (!driver) return 0;
    int (*get)(int *), device = 0;
    *(void **)&get = dlsym(driver, "cuCtxGetDevice");
    if (!get || get(&device)) device = 0;
    dlclose(driver);
    return device;
}

/* "cpu" is for tests: handles then take host pointers. */
static int wanted_device(void)
{
    const char *name = getenv("MICA_CUDNN_DEVICE");
    if (!name || !*name) return current_device();
    if (!strcmp(name, "cpu")) return -1;
    return strncmp(name, "cuda:", 5) ? current_device() : atoi(name + 5);
}

static cudnnStatus_t open_device(int device, mica_context **context)
{
    if (device < -1 || device >= DEVICES)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "device %d, known are 0 to %d", device,
                          DEVICES - 1);
    mica_context **place = &contexts[device < 0 ? DEVICES : device];
    char name[24] = "cpu";
    if (device >= 0) snprintf(name, sizeof name, "cuda:%d", device);
    pthread_mutex_lock(&mutex);
    mica_status status = *place ? MICA_OK : mica_context_create(name, place);
    if (status != MICA_OK) *place = NULL;
    *context = *place;
    pthread_mutex_unlock(&mutex);
    return front_status(status);
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    front_enter(CALL_cudnnCreate);
    FRONT_TRY(front_given(handle, "handle"));
    *handle = NULL;
    int device = wanted_device();
    mica_context *context = NULL;
    FRONT_TRY(open_device(device, &context));
    cudnnHandle_t created = NULL;
    FRONT_TRY(front_create(FRONT_HANDLE, sizeof *created, &created));
    created->device = device;
    created->context = context;
    *handle = created;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t front_device_context(int device, mica_context **context)
{
    const bool host = wanted_device() == -1;
    if (device < 0) return front_fail(CUDNN_STATUS_BAD_PARAM, "device %d", device);
    return open_device(host ? -1 : device, context);
}

mica_context *front_context(cudnnHandle_t handle)
{
    return handle->context;
}

/* ---- workspace ---- */

struct front_scratch {
    front_scratch *next;
    void *stream, *memory;
    size_t bytes;
    int slot;
};

/* Smaller blocks of a stream stay: a captured graph may hold their addresses. */
cudnnStatus_t front_temporary(cudnnHandle_t handle, int slot, size_t bytes, void **memory)
{
    *memory = NULL;
    if (!bytes) return CUDNN_STATUS_SUCCESS;
    size_t largest = 0;
    for (front_scratch *s = handle->scratch; s; s = s->next) {
        if (s->stream != handle->stream || s->slot != slot) continue;
        if (s->bytes > largest) largest = s->bytes;
        if (s->bytes < bytes) continue;
        *memory = s->memory;
        return CUDNN_STATUS_SUCCESS;
    }
    if (bytes < 2 * largest) bytes = 2 * largest;
    front_scratch *s = calloc(1, sizeof *s);
    if (!s)
        return front_fail(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "%zu bytes",
                          sizeof *s);
    mica_status status = mica_malloc(handle->context, (int64_t)bytes, &s->memory);
    if (status != MICA_OK) {
        free(s);
        return front_status(status);
    }
    s->stream = handle->stream;
    s->slot = slot;
    s->bytes = bytes;
    s->next = handle->scratch;
    handle->scratch = s;
    *memory = s->memory;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t front_workspace(cudnnHandle_t handle, size_t bytes, void **workspace)
{
    return front_temporary(handle, 0, bytes, workspace);
}

cudnnStatus_t front_temporary_like(cudnnHandle_t handle, int slot, const mica_tensor *like,
                                   mica_tensor *tensor, void **memory)
{
    *tensor =
        mica_tensor_packed(like->dtype == MICA_F64 ? MICA_F64 : MICA_F32, like->rank, like->dims);
    return front_temporary(handle, slot, (size_t)mica_tensor_span(tensor, NULL), memory);
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    front_enter(CALL_cudnnDestroy);
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    compare_close(handle);
    while (handle->scratch) {
        front_scratch *s = handle->scratch;
        handle->scratch = s->next;
        mica_free(handle->context, s->memory);
        free(s);
    }
    return front_destroy(handle, FRONT_HANDLE);
}

/* ---- plans and runs ---- */

cudnnStatus_t front_plan(cudnnHandle_t handle, const char *op, const void *desc, size_t desc_size,
                         const mica_options *options, mica_plan **plan)
{
    return front_status(mica_plan_create(handle->context, op, desc, desc_size, options, plan));
}

/* Runs the plan and gives it back. */
static cudnnStatus_t run_plan(cudnnHandle_t handle, mica_plan *plan, mica_run *run)
{
    run->stream = handle->stream;
    mica_status status = mica_plan_run(plan, run);
    mica_plan_destroy(plan);
    FRONT_TRY(front_status(status));
    front_served();
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t run_in_scratch(cudnnHandle_t handle, mica_plan *plan, mica_run *run)
{
    cudnnStatus_t status = front_workspace(handle, mica_plan_workspace(plan), &run->workspace);
    if (status == CUDNN_STATUS_SUCCESS) return run_plan(handle, plan, run);
    mica_plan_destroy(plan);
    return status;
}

cudnnStatus_t front_run(cudnnHandle_t handle, const char *op, const void *desc, size_t desc_size,
                        mica_run *run)
{
    mica_plan *plan = NULL;
    FRONT_TRY(front_plan(handle, op, desc, desc_size, NULL, &plan));
    return run_in_scratch(handle, plan, run);
}

cudnnStatus_t front_run_in(cudnnHandle_t handle, const char *op, const void *desc, size_t desc_size,
                           mica_run *run, void *workspace, size_t bytes)
{
    mica_plan *plan = NULL;
    FRONT_TRY(front_plan(handle, op, desc, desc_size, NULL, &plan));
    size_t offset = (256 - (uintptr_t)workspace % 256) % 256;
    size_t usable = workspace && bytes > offset ? bytes - offset : 0;
    if (mica_plan_workspace(plan) > usable) {
        mica_options options = {.workspace_limit = usable ? (int64_t)usable : MICA_NO_WORKSPACE};
        mica_plan *smaller;
        if (mica_plan_create(handle->context, op, desc, desc_size, &options, &smaller) != MICA_OK)
            return run_in_scratch(handle, plan, run);
        mica_plan_destroy(plan);
        plan = smaller;
    }
    run->workspace = mica_plan_workspace(plan) ? (char *)workspace + offset : NULL;
    return run_plan(handle, plan, run);
}
