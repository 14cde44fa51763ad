/* SPDX-License-Identifier: Apache-2.0
 * Runs of a plan as one CUDA graph: recorded once; then only steps whose pointers or scalars are
 * other ones go through their engines again, which changes their nodes in place. */
#include "graph/replay.h"
#include "base/log.h"
#include "base/memory.h"

#include <stdatomic.h>
#include <string.h>

struct graph_replay {
    mica_replay *launches;
    atomic_flag busy; /* a thread is inside */
    bool recorded;
    atomic_bool hopeless; /* it cannot be recorded: runs go one by one */
    int tensor_count, scalar_count, step_count;
    void **tensors; /* of the run that the nodes are of */
    double *scalars;
    void *workspace;
    int *ends; /* the node behind each step's */
    graph_changes changes;
    _Atomic int64_t recordings, launched, updated;
};

void graph_replay_destroy(graph_replay *r)
{
    if (!r) return;
    mica_replay_destroy(r->launches);
    mica_release(r->tensors);
    mica_release(r->scalars);
    mica_release(r->ends);
    mica_release(r->changes.tensors);
    mica_release(r->changes.scalars);
    mica_release(r);
}

mica_status graph_replay_create(mica_cuda *cuda, int tensors, int scalars, int steps,
                                graph_replay **replay)
{
    mica_replay *launches;
    *replay = NULL;
    mica_status status = mica_replay_create(cuda, &launches);
    if (status == MICA_UNSUPPORTED) {
        mica_log(MICA_LOG_INFO, "replay,no,%s", mica_error());
        return MICA_OK;
    }
    MICA_TRY(status);
    graph_replay *r = mica_alloc(sizeof *r);
    if (!r) {
        mica_replay_destroy(launches);
        return mica_fail_memory(sizeof *r);
    }
    r->launches = launches;
    atomic_flag_clear(&r->busy);
    r->tensor_count = tensors;
    r->scalar_count = scalars;
    r->step_count = steps;
    r->tensors = mica_alloc(((size_t)tensors + 1) * sizeof *r->tensors);
    r->scalars = mica_alloc(((size_t)scalars + 1) * sizeof *r->scalars);
    r->ends = mica_alloc(((size_t)steps + 1) * sizeof *r->ends);
    r->changes.tensors = mica_alloc((size_t)tensors + 1);
    r->changes.scalars = mica_alloc((size_t)scalars + 1);
    if (!r->tensors || !r->scalars || !r->ends || !r->changes.tensors || !r->changes.scalars) {
        graph_replay_destroy(r);
        return mica_fail_memory((size_t)steps * sizeof *r->ends);
    }
    *replay = r;
    return MICA_OK;
}

/* Notes what the nodes are of now; whether that is anything else than before. */
static bool changed(graph_replay *r, const mica_graph_run *run, const double *scalars)
{
    const size_t tensors = (size_t)r->tensor_count * sizeof *r->tensors;
    const size_t numbers = (size_t)r->scalar_count * sizeof *r->scalars;
    if (run->workspace == r->workspace &&
        (!tensors || !memcmp(r->tensors, run->tensors, tensors)) &&
        (!numbers || !memcmp(r->scalars, scalars, numbers)))
        return false;
    for (int i = 0; i < r->tensor_count; i++)
        r->changes.tensors[i] = r->tensors[i] != run->tensors[i];
    for (int i = 0; i < r->scalar_count; i++)
        r->changes.scalars[i] = memcmp(&r->scalars[i], &scalars[i], sizeof *scalars) != 0;
    r->changes.workspace = run->workspace != r->workspace;
    if (tensors) memcpy(r->tensors, run->tensors, tensors);
    if (numbers) memcpy(r->scalars, scalars, numbers);
    r->workspace = run->workspace;
    return true;
}

static mica_status record(graph_replay *r, const mica_graph_plan *p, const mica_graph_run *given)
{
    mica_graph_run run = *given;
    r->recorded = false;
    MICA_TRY(mica_replay_record(r->launches));
    run.stream = mica_replay_stream(r->launches);
    mica_status status = MICA_OK;
    for (int i = 0; status == MICA_OK && i < r->step_count; i++) {
        status = graph_plan_run_step(p, &run, i);
        r->ends[i] = mica_replay_count(r->launches);
    }
    MICA_TRY(mica_replay_recorded(r->launches, status));
    r->recorded = true;
    atomic_fetch_add_explicit(&r->recordings, 1, memory_order_relaxed);
    return MICA_OK;
}

/* Changes the nodes of steps that have what changed. NOT_FOUND: their launches are other ones. */
static mica_status update(graph_replay *r, const mica_graph_plan *p, const mica_graph_run *given)
{
    mica_graph_run run = *given;
    mica_status status = MICA_OK;
    bool same = true;
    run.stream = mica_replay_stream(r->launches);
    MICA_TRY(mica_replay_update(r->launches));
    for (int i = 0; status == MICA_OK && same && i < r->step_count; i++) {
        if (!graph_plan_step_changes(p, i, &r->changes)) continue;
        mica_replay_seek(r->launches, i ? r->ends[i - 1] : 0);
        status = graph_plan_run_step(p, &run, i);
        same = mica_replay_at(r->launches) == r->ends[i];
        atomic_fetch_add_explicit(&r->updated, 1, memory_order_relaxed);
    }
    same = mica_replay_updated(r->launches) && same;
    return status == MICA_OK && !same ? MICA_NOT_FOUND : status;
}

static mica_status prepare(graph_replay *r, const mica_graph_plan *p, const mica_graph_run *run,
                           const double *scalars)
{
    const bool other = changed(r, run, scalars);
    mica_status status = MICA_NOT_FOUND;
    if (r->recorded && !other) return MICA_OK;
    if (r->recorded) status = update(r, p, run);
    if (status == MICA_NOT_FOUND) status = record(r, p, run);
    if (status == MICA_OK) return MICA_OK;
    r->recorded = false; /* some nodes may be of the one run, some of another */
    if (status == MICA_INVALID || status == MICA_OUT_OF_MEMORY || status == MICA_DEVICE_LOST)
        return status;
    /* other libraries' launches, calls that a capture does not allow */
    mica_log(MICA_LOG_INFO, "replay,no,%s", mica_error());
    atomic_store_explicit(&r->hopeless, true, memory_order_relaxed);
    return MICA_NOT_FOUND;
}

mica_status graph_replay_run(graph_replay *r, const mica_graph_plan *p, const mica_graph_run *run,
                             const double *scalars)
{
    if (atomic_load_explicit(&r->hopeless, memory_order_relaxed) ||
        !mica_replay_may(r->launches, run->stream) ||
        atomic_flag_test_and_set_explicit(&r->busy, memory_order_acquire))
        return MICA_NOT_FOUND;
    mica_status status = prepare(r, p, run, scalars);
    if (status == MICA_OK) status = mica_replay_launch(r->launches, run->stream);
    if (status == MICA_OK) atomic_fetch_add_explicit(&r->launched, 1, memory_order_relaxed);
    atomic_flag_clear_explicit(&r->busy, memory_order_release);
    return status;
}

void graph_replay_count(const graph_replay *r, mica_graph_replays *replays)
{
    *replays =
        (mica_graph_replays){.recorded = atomic_load_explicit(&r->recordings, memory_order_relaxed),
                             .launched = atomic_load_explicit(&r->launched, memory_order_relaxed),
                             .updated = atomic_load_explicit(&r->updated, memory_order_relaxed)};
}
