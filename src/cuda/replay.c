/* SPDX-License-Identifier: Apache-2.0
 * Launches recorded as a CUDA graph, whose nodes change in place when the same launches come again
 * with other arguments. */
#include "cuda/replay.h"

/* CUDA_KERNEL_NODE_PARAMS and CUDA_MEMSET_NODE_PARAMS of cuda.h. */
struct mica_cu_kernel_node {
    void *function;
    unsigned grid[3], block[3], shared;
    void **parameters, **extra;
    void *kernel, *context;
};
struct mica_cu_memset_node {
    mica_cu_address to;
    size_t pitch;
    unsigned value, element_bytes;
    size_t width, height;
};

typedef struct node {
    void *handle;
    const mica_kernel *kernel; /* NULL: memory is set */
    unsigned cluster;
    bool cooperative;
} node;

enum { THREAD_LOCAL_CAPTURE = 1, CAPTURE_NONE = 0, CAPTURE_ACTIVE = 1, NON_BLOCKING = 1, OLD = 8 };

struct mica_replay {
    mica_cuda *cuda;
    void *stream;       /* for captures */
    void *exec, *graph; /* whose nodes are changed as long as they are there */
    void *old[OLD];     /* what was recorded before: it may still run */
    int old_count;
    node *nodes;
    int count, room;
    bool updating, differs;
    bool pushed; /* between begin and end */
    int at;      /* updating: the node that comes next */
    const char *name;
};

_Thread_local mica_replay *mica_replay_active;

static bool driver_can(void)
{
    return mica_driver.cuStreamBeginCapture && mica_driver.cuStreamEndCapture &&
           mica_driver.cuStreamIsCapturing && mica_driver.cuStreamGetCaptureInfo &&
           mica_driver.cuGraphGetNodes && mica_driver.cuGraphInstantiate &&
           mica_driver.cuGraphDestroy && mica_driver.cuGraphExecDestroy &&
           mica_driver.cuGraphLaunch && mica_driver.cuGraphExecKernelNodeSetParams &&
           mica_driver.cuGraphExecMemsetNodeSetParams;
}

mica_status mica_replay_create(mica_cuda *cuda, mica_replay **replay)
{
    bool pushed;
    *replay = NULL;
    MICA_TRY(mica_cuda_enter(cuda, &pushed));
    mica_status status = MICA_OK;
    mica_replay *r = NULL;
    if (!driver_can())
        status = mica_fail(MICA_UNSUPPORTED, "replays need a driver of CUDA 12.3, this is %d",
                           mica_driver_version());
    else if (cuda->sync)
        status = mica_fail(MICA_UNSUPPORTED, "with MICA_SYNC=1 each launch is waited for");
    else if (!(r = mica_alloc(sizeof *r)))
        status = mica_fail_memory(sizeof *r);
    else
        status = MICA_CU(cuda, cuStreamCreate, &r->stream, NON_BLOCKING);
    mica_cuda_leave(cuda, pushed);
    if (status != MICA_OK) {
        mica_release(r);
        return status;
    }
    r->cuda = cuda;
    r->name = mica_launch_name("a graph");
    *replay = r;
    return MICA_OK;
}

void mica_replay_destroy(mica_replay *r)
{
    bool pushed;
    if (!r) return;
    if (mica_cuda_enter_quietly(r->cuda, &pushed)) {
        for (int i = 0; i < r->old_count; i++)
            MICA_CU_RELEASE(r->cuda, cuGraphExecDestroy, r->old[i]);
        if (r->exec) MICA_CU_RELEASE(r->cuda, cuGraphExecDestroy, r->exec);
        if (r->graph) MICA_CU_RELEASE(r->cuda, cuGraphDestroy, r->graph);
        MICA_CU_RELEASE(r->cuda, cuStreamDestroy, r->stream);
        mica_cuda_leave(r->cuda, pushed);
    }
    mica_release(r->nodes);
    mica_release(r);
}

bool mica_cuda_capturing(const mica_cuda *cuda, void *stream)
{
    int capturing = CAPTURE_NONE;
    bool pushed;
    if (!mica_driver.cuStreamIsCapturing || !mica_cuda_enter_quietly(cuda, &pushed)) return true;
    /* the default stream gives an error while others are captured */
    const int code = mica_driver.cuStreamIsCapturing(stream, &capturing);
    mica_cuda_leave(cuda, pushed);
    return code != 0 || capturing != CAPTURE_NONE;
}

void mica_cuda_relax_captures(void)
{
    enum { RELAXED_CAPTURE = 2 };
    int mode = RELAXED_CAPTURE;
    if (mica_driver.cuThreadExchangeStreamCaptureMode)
        (void)mica_driver.cuThreadExchangeStreamCaptureMode(&mode); /* a fault shows elsewhere */
}

bool mica_replay_may(const mica_replay *r, void *stream)
{
    return !mica_cuda_capturing(r->cuda, stream);
}

/* ---- recording ---- */

mica_status mica_replay_record(mica_replay *r)
{
    if (r->old_count == OLD)
        return mica_fail(MICA_UNSUPPORTED, "its launches were other ones %d times", OLD);
    MICA_TRY(mica_cuda_enter(r->cuda, &r->pushed));
    if (r->exec) r->old[r->old_count++] = r->exec;
    if (r->graph) MICA_CU_RELEASE(r->cuda, cuGraphDestroy, r->graph);
    r->exec = r->graph = NULL;
    r->count = 0;
    r->updating = r->differs = false;
    mica_status status = MICA_CU(r->cuda, cuStreamBeginCapture, r->stream, THREAD_LOCAL_CAPTURE);
    if (status == MICA_OK)
        mica_replay_active = r;
    else
        mica_cuda_leave(r->cuda, r->pushed);
    return status;
}

void *mica_replay_stream(const mica_replay *r)
{
    return r->stream;
}

int mica_replay_count(const mica_replay *r)
{
    return r->count;
}

/* The node that was captured last: what the next one will wait for. */
static mica_status note(mica_replay *r, const mica_kernel *kernel, const mica_grid *grid,
                        void *stream)
{
    int state = 0;
    void **before = NULL;
    const void *edges = NULL;
    size_t count = 0;
    if (stream != r->stream) return MICA_OK; /* not in the graph: seen at the end */
    MICA_TRY(MICA_CU(r->cuda, cuStreamGetCaptureInfo, stream, &state, NULL, NULL, &before, &edges,
                     &count));
    if (state != CAPTURE_ACTIVE || count != 1) {
        r->differs = true;
        return MICA_OK;
    }
    if (r->count == r->room) {
        const int room = r->room ? 2 * r->room : 32;
        node *nodes = mica_grow(r->nodes, (size_t)room * sizeof *nodes);
        if (!nodes) return mica_fail_memory((size_t)room * sizeof *nodes);
        r->nodes = nodes;
        r->room = room;
    }
    r->nodes[r->count++] = (node){before[0], kernel, grid->cluster, grid->cooperative};
    return MICA_OK;
}

mica_status mica_replay_launched(mica_replay *r, const mica_kernel *kernel, const mica_grid *grid,
                                 void *stream)
{
    return note(r, kernel, grid, stream);
}

mica_status mica_replay_set(mica_replay *r, void *stream)
{
    return note(r, NULL, &(mica_grid){0}, stream);
}

static mica_status instantiate(mica_replay *r, void *graph)
{
    size_t count = 0;
    MICA_TRY(MICA_CU(r->cuda, cuGraphGetNodes, graph, NULL, &count));
    if (r->differs || count != (size_t)r->count || !count)
        return mica_fail(MICA_UNSUPPORTED, "%zu nodes were captured of %d launches", count,
                         r->count);
    return MICA_CU(r->cuda, cuGraphInstantiate, &r->exec, graph, 0);
}

mica_status mica_replay_recorded(mica_replay *r, mica_status status)
{
    mica_replay_active = NULL;
    const mica_status ended = MICA_CU(r->cuda, cuStreamEndCapture, r->stream, &r->graph);
    if (status == MICA_OK) status = ended;
    if (status == MICA_OK) status = instantiate(r, r->graph);
    mica_cuda_leave(r->cuda, r->pushed);
    return status;
}

/* ---- updating ---- */

mica_status mica_replay_update(mica_replay *r)
{
    MICA_TRY(mica_cuda_enter(r->cuda, &r->pushed));
    r->updating = true;
    r->differs = false;
    mica_replay_active = r;
    return MICA_OK;
}

void mica_replay_seek(mica_replay *r, int at)
{
    r->at = at;
}

bool mica_replay_updating(const mica_replay *r)
{
    return r->updating;
}

/* The node that this launch was, if it was one of that kind. */
static const node *next(mica_replay *r, const mica_kernel *kernel, const mica_grid *grid)
{
    const node *n = r->at < r->count ? &r->nodes[r->at++] : NULL;
    /* what stays with a node: its attributes, and that it is a launch */
    const bool same = n && !n->kernel == !kernel && n->cluster == grid->cluster &&
                      n->cooperative == grid->cooperative &&
                      (!kernel || n->kernel->overlaps == kernel->overlaps);
    if (!same) r->differs = true;
    return same ? n : NULL;
}

void mica_replay_relaunch(mica_replay *r, const mica_kernel *kernel, const mica_grid *grid,
                          const void *args)
{
    void *parameters[1] = {(void *)(uintptr_t)args}; /* only read by the driver */
    const node *n = r->differs ? NULL : next(r, kernel, grid);
    if (!n) return;
    mica_cu_kernel_node p = {
        .function = kernel->function, .shared = grid->dynamic_shared, .parameters = parameters};
    for (int i = 0; i < 3; i++) {
        p.grid[i] = grid->grid[i] ? grid->grid[i] : 1;
        p.block[i] = grid->block[i] ? grid->block[i] : 1;
    }
    /* a driver may not take another function for a node: then it is recorded again */
    if (mica_driver.cuGraphExecKernelNodeSetParams(r->exec, n->handle, &p) != 0) r->differs = true;
}

void mica_replay_reset(mica_replay *r, void *memory, int byte, int64_t bytes)
{
    const node *n = r->differs ? NULL : next(r, NULL, &(mica_grid){0});
    if (!n) return;
    const mica_cu_memset_node p = {.to = (mica_cu_address)(uintptr_t)memory,
                                   .value = (unsigned char)byte,
                                   .element_bytes = 1,
                                   .width = (size_t)bytes,
                                   .height = 1};
    if (mica_driver.cuGraphExecMemsetNodeSetParams(r->exec, n->handle, &p, r->cuda->context) != 0)
        r->differs = true;
}

bool mica_replay_updated(mica_replay *r)
{
    r->updating = false;
    mica_replay_active = NULL;
    mica_cuda_leave(r->cuda, r->pushed);
    return !r->differs;
}

int mica_replay_at(const mica_replay *r)
{
    return r->differs ? -1 : r->at;
}

/* ---- running ---- */

mica_status mica_replay_launch(mica_replay *r, void *stream)
{
    bool pushed;
    MICA_TRY(mica_cuda_enter(r->cuda, &pushed));
    mica_status status = MICA_CU(r->cuda, cuGraphLaunch, r->exec, stream);
    if (status == MICA_OK) mica_device_launched(r->cuda->ordinal, r->name);
    mica_cuda_leave(r->cuda, pushed);
    return status;
}
