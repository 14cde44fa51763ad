/* SPDX-License-Identifier: Apache-2.0
 * Device memory, copies, streams and events. */
#include "cuda/device.h"
#include "cuda/replay.h"

#include <stdint.h>

static mica_cu_address address_of(const void *memory)
{
    return (mica_cu_address)(uintptr_t)memory;
}

static mica_status check_bytes(int64_t bytes)
{
    if (bytes >= 0) return MICA_OK;
    return mica_fail(MICA_INVALID, "%lld bytes: a size must not be negative", (long long)bytes);
}

/* Adds what there is to a refusal of the allocator. */
static mica_status explain_shortage(mica_cuda *cuda, int64_t bytes)
{
    size_t available = 0, total = 0;
    if (mica_driver.cuMemGetInfo(&available, &total) != 0)
        return mica_fail(MICA_OUT_OF_DEVICE_MEMORY, "%s: %lld bytes were asked for",
                         cuda->info.name, (long long)bytes);
    return mica_fail(MICA_OUT_OF_DEVICE_MEMORY,
                     "%s: %lld bytes were asked for, %zu of %zu are free", cuda->info.name,
                     (long long)bytes, available, total);
}

mica_status mica_cuda_malloc(mica_cuda *cuda, int64_t bytes, void **memory)
{
    bool pushed;
    mica_cu_address address = 0;
    *memory = NULL;
    MICA_TRY(check_bytes(bytes));
    MICA_TRY(mica_cuda_enter(cuda, &pushed));
    /* An empty tensor has an address, too. */
    mica_status status = MICA_CU(cuda, cuMemAlloc, &address, bytes ? (size_t)bytes : 1);
    if (status == MICA_OUT_OF_DEVICE_MEMORY) status = explain_shortage(cuda, bytes);
    mica_cuda_leave(cuda, pushed);
    if (status == MICA_OK) *memory = (void *)(uintptr_t)address;
    return status;
}

void mica_cuda_free(mica_cuda *cuda, void *memory)
{
    bool pushed;
    if (!memory || !mica_cuda_enter_quietly(cuda, &pushed)) return;
    const int mode = mica_capture_aside();
    MICA_CU_RELEASE(cuda, cuMemFree, address_of(memory));
    mica_capture_back(mode);
    mica_cuda_leave(cuda, pushed);
}

mica_status mica_cuda_memset(mica_cuda *cuda, void *memory, int byte, int64_t bytes, void *stream)
{
    bool pushed;
    mica_replay *replay = mica_replay_active;
    MICA_TRY(check_bytes(bytes));
    if (replay && bytes && mica_replay_updating(replay)) {
        mica_replay_reset(replay, memory, byte, bytes);
        return MICA_OK;
    }
    MICA_TRY(mica_cuda_enter(cuda, &pushed));
    mica_status status = bytes ? MICA_CU(cuda, cuMemsetD8Async, address_of(memory),
                                         (unsigned char)byte, (size_t)bytes, stream)
                               : MICA_OK;
    if (status == MICA_OK && bytes && replay) status = mica_replay_set(replay, stream);
    mica_cuda_leave(cuda, pushed);
    return status;
}

/* The driver tells host from device memory by the address. Waits, because pinned host memory would
 * still be read when the call returns. */
static mica_status copy(mica_cuda *cuda, void *to, const void *from, int64_t bytes, void *stream)
{
    bool pushed;
    MICA_TRY(check_bytes(bytes));
    MICA_TRY(mica_cuda_enter(cuda, &pushed));
    mica_status status = MICA_OK;
    if (bytes)
        status =
            MICA_CU(cuda, cuMemcpyAsync, address_of(to), address_of(from), (size_t)bytes, stream);
    if (bytes && status == MICA_OK) status = MICA_CU(cuda, cuStreamSynchronize, stream);
    mica_cuda_leave(cuda, pushed);
    return status;
}

mica_status mica_cuda_upload(mica_cuda *cuda, void *to, const void *from, int64_t bytes,
                             void *stream)
{
    return copy(cuda, to, from, bytes, stream);
}

mica_status mica_cuda_download(mica_cuda *cuda, void *to, const void *from, int64_t bytes,
                               void *stream)
{
    return copy(cuda, to, from, bytes, stream);
}

mica_status mica_cuda_stream_create(mica_cuda *cuda, void **stream)
{
    enum { NON_BLOCKING = 1 }; /* no implicit waits for the legacy stream */
    bool pushed;
    *stream = NULL;
    MICA_TRY(mica_cuda_enter(cuda, &pushed));
    mica_status status = MICA_CU(cuda, cuStreamCreate, stream, NON_BLOCKING);
    mica_cuda_leave(cuda, pushed);
    return status;
}

void mica_cuda_stream_destroy(mica_cuda *cuda, void *stream)
{
    bool pushed;
    if (!stream || !mica_cuda_enter_quietly(cuda, &pushed)) return;
    MICA_CU_RELEASE(cuda, cuStreamDestroy, stream);
    mica_cuda_leave(cuda, pushed);
}

mica_status mica_cuda_synchronize(mica_cuda *cuda, void *stream)
{
    bool pushed;
    MICA_TRY(mica_cuda_enter(cuda, &pushed));
    mica_status status = MICA_CU(cuda, cuStreamSynchronize, stream);
    mica_cuda_leave(cuda, pushed);
    return status;
}

mica_status mica_cuda_event_create(mica_cuda *cuda, void **event)
{
    bool pushed;
    *event = NULL;
    MICA_TRY(mica_cuda_enter(cuda, &pushed));
    mica_status status = MICA_CU(cuda, cuEventCreate, event, 0);
    mica_cuda_leave(cuda, pushed);
    return status;
}

void mica_cuda_event_destroy(mica_cuda *cuda, void *event)
{
    bool pushed;
    if (!event || !mica_cuda_enter_quietly(cuda, &pushed)) return;
    MICA_CU_RELEASE(cuda, cuEventDestroy, event);
    mica_cuda_leave(cuda, pushed);
}

mica_status mica_cuda_event_record(mica_cuda *cuda, void *event, void *stream)
{
    bool pushed;
    MICA_TRY(mica_cuda_enter(cuda, &pushed));
    mica_status status = MICA_CU(cuda, cuEventRecord, event, stream);
    mica_cuda_leave(cuda, pushed);
    return status;
}

mica_status mica_cuda_event_elapsed(mica_cuda *cuda, void *from, void *to, double *ms)
{
    bool pushed;
    float elapsed = 0;
    MICA_TRY(mica_cuda_enter(cuda, &pushed));
    mica_status status = MICA_CU(cuda, cuEventSynchronize, to);
    if (status == MICA_OK) status = MICA_CU(cuda, cuEventElapsedTime, &elapsed, from, to);
    mica_cuda_leave(cuda, pushed);
    *ms = (double)elapsed;
    return status;
}
