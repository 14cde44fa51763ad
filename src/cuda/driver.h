/* SPDX-License-Identifier: Apache-2.0
 * The CUDA driver, opened at run time: one table of its functions, one way to call them. The
 * prototypes are our own, so that no CUDA header is needed to build. */
#ifndef MICA_CUDA_DRIVER_H
#define MICA_CUDA_DRIVER_H

#include "base/memory.h"
#include "base/text.h"
#include "base/why.h"

#include <stdatomic.h>

struct mica_cuda;

typedef unsigned long long mica_cu_address; /* CUdeviceptr */

/* CUlaunchAttribute and CUlaunchConfig of cuda.h, reduced to what is used. */
typedef struct mica_cu_attribute {
    int id;
    int pad;
    union {
        unsigned dim[3];
        char bytes[64];
    } value;
} mica_cu_attribute;
typedef struct mica_cu_launch {
    unsigned grid[3], block[3], shared;
    void *stream;
    mica_cu_attribute *attributes;
    unsigned count;
} mica_cu_launch;

/* CUDA_KERNEL_NODE_PARAMS, CUDA_MEMSET_NODE_PARAMS: replay.c. */
typedef struct mica_cu_kernel_node mica_cu_kernel_node;
typedef struct mica_cu_memset_node mica_cu_memset_node;

/* X(name in errors, symbol, prototype) */
#define MICA_DRIVER_CALLS(X)                                                                       \
    X(cuInit, "cuInit", (unsigned))                                                                \
    X(cuDriverGetVersion, "cuDriverGetVersion", (int *))                                           \
    X(cuGetErrorName, "cuGetErrorName", (int, const char **))                                      \
    X(cuDeviceGetCount, "cuDeviceGetCount", (int *))                                               \
    X(cuDeviceGet, "cuDeviceGet", (int *, int))                                                    \
    X(cuDeviceGetName, "cuDeviceGetName", (char *, int, int))                                      \
    X(cuDeviceTotalMem, "cuDeviceTotalMem_v2", (size_t *, int))                                    \
    X(cuDeviceGetAttribute, "cuDeviceGetAttribute", (int *, int, int))                             \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (void **, int))                        \
    X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (int))                            \
    X(cuCtxGetCurrent, "cuCtxGetCurrent", (void **))                                               \
    X(cuCtxPushCurrent, "cuCtxPushCurrent_v2", (void *))                                           \
    X(cuCtxPopCurrent, "cuCtxPopCurrent_v2", (void **))                                            \
    X(cuModuleLoadData, "cuModuleLoadData", (void **, const void *))                               \
    X(cuModuleUnload, "cuModuleUnload", (void *))                                                  \
    X(cuModuleGetFunction, "cuModuleGetFunction", (void **, void *, const char *))                 \
    X(cuFuncSetAttribute, "cuFuncSetAttribute", (void *, int, int))                                \
    X(cuLaunchKernel, "cuLaunchKernel",                                                            \
      (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,       \
       void **, void **))                                                                          \
    X(cuMemAlloc, "cuMemAlloc_v2", (mica_cu_address *, size_t))                                    \
    X(cuMemGetInfo, "cuMemGetInfo_v2", (size_t *, size_t *))                                       \
    X(cuMemFree, "cuMemFree_v2", (mica_cu_address))                                                \
    X(cuMemsetD8Async, "cuMemsetD8Async", (mica_cu_address, unsigned char, size_t, void *))        \
    X(cuMemcpyAsync, "cuMemcpyAsync", (mica_cu_address, mica_cu_address, size_t, void *))          \
    X(cuStreamCreate, "cuStreamCreate", (void **, unsigned))                                       \
    X(cuStreamDestroy, "cuStreamDestroy_v2", (void *))                                             \
    X(cuStreamSynchronize, "cuStreamSynchronize", (void *))                                        \
    X(cuEventCreate, "cuEventCreate", (void **, unsigned))                                         \
    X(cuEventDestroy, "cuEventDestroy_v2", (void *))                                               \
    X(cuEventRecord, "cuEventRecord", (void *, void *))                                            \
    X(cuEventSynchronize, "cuEventSynchronize", (void *))                                          \
    X(cuEventElapsedTime, "cuEventElapsedTime", (float *, void *, void *))

/* Drivers before CUDA 12, or 12.3, lack these; NULL then. */
#define MICA_DRIVER_LATE_CALLS(X)                                                                  \
    X(cuLaunchKernelEx, "cuLaunchKernelEx", (const mica_cu_launch *, void *, void **, void **))    \
    X(cuTensorMapEncodeTiled, "cuTensorMapEncodeTiled",                                            \
      (void *, int, unsigned, void *, const uint64_t *, const uint64_t *, const uint32_t *,        \
       const uint32_t *, int, int, int, int))                                                      \
    X(cuTensorMapEncodeIm2col, "cuTensorMapEncodeIm2col",                                          \
      (void *, int, unsigned, void *, const uint64_t *, const uint64_t *, const int *,             \
       const int *, uint32_t, uint32_t, const uint32_t *, int, int, int, int))                     \
    X(cuStreamBeginCapture, "cuStreamBeginCapture_v2", (void *, int))                              \
    X(cuStreamEndCapture, "cuStreamEndCapture", (void *, void **))                                 \
    X(cuStreamIsCapturing, "cuStreamIsCapturing", (void *, int *))                                 \
    X(cuStreamGetCaptureInfo, "cuStreamGetCaptureInfo_v3",                                         \
      (void *, int *, uint64_t *, void **, void ***, const void **, size_t *))                     \
    X(cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", (int *))             \
    X(cuGraphGetNodes, "cuGraphGetNodes", (void *, void **, size_t *))                             \
    X(cuGraphInstantiate, "cuGraphInstantiateWithFlags", (void **, void *, unsigned long long))    \
    X(cuGraphDestroy, "cuGraphDestroy", (void *))                                                  \
    X(cuGraphExecDestroy, "cuGraphExecDestroy", (void *))                                          \
    X(cuGraphLaunch, "cuGraphLaunch", (void *, void *))                                            \
    X(cuGraphExecKernelNodeSetParams, "cuGraphExecKernelNodeSetParams_v2",                         \
      (void *, void *, const mica_cu_kernel_node *))                                               \
    X(cuGraphExecMemsetNodeSetParams, "cuGraphExecMemsetNodeSetParams",                            \
      (void *, void *, const mica_cu_memset_node *, void *))

typedef struct mica_driver_table {
#define MICA_X(name, symbol, prototype) int(*name) prototype;
    MICA_DRIVER_CALLS(MICA_X)
    MICA_DRIVER_LATE_CALLS(MICA_X)
#undef MICA_X
} mica_driver_table;

/* Filled by mica_driver_load; read only after it succeeded. */
extern mica_driver_table mica_driver;

/* Opens the library and calls cuInit, once; after a failure the next call tries again. NO_DEVICE
 * with every place that was looked in; FORKED_PROCESS. */
mica_status mica_driver_load(void);
/* Path of the loaded library and the CUDA version it supports (13000); "" and 0 before. */
const char *mica_driver_path(void);
int mica_driver_version(void);

/* FORKED_PROCESS in a child forked after the backend was used: its locks and the driver's state
 * were copied in the middle of things and must not be touched. */
mica_status mica_fork_check(void);
bool mica_forked(void);
/* Arms the check: called once before the backend takes its first lock. */
void mica_fork_watch(void);

/* A result that injected faults give: CUDA_ERROR_OPERATING_SYSTEM, which is not sticky. */
enum { MICA_CU_INJECTED = 304 };

/* Calls through the table. cuda: the device it concerns, or NULL. A sticky code marks it lost. */
#define MICA_CU(cuda, call, ...)                                                                   \
    mica_driver_check(cuda, #call,                                                                 \
                      mica_fault_due(MICA_FAULT_DRIVER) ? (int)MICA_CU_INJECTED                    \
                                                        : mica_driver.call(__VA_ARGS__))
/* Calls that give something back. Nobody could handle a failure, so it is only logged, and none is
 * injected; a driver that is gone at exit counts as success. */
#define MICA_CU_RELEASE(cuda, call, ...)                                                           \
    mica_driver_released(cuda, #call, mica_driver.call(__VA_ARGS__))

mica_status mica_driver_failed(const struct mica_cuda *cuda, const char *call, int code);
void mica_driver_released(const struct mica_cuda *cuda, const char *call, int code);
static inline mica_status mica_driver_check(const struct mica_cuda *cuda, const char *call,
                                            int code)
{
    return code == 0 ? MICA_OK : mica_driver_failed(cuda, call, code);
}

/* Devices whose number is too large for this are not opened. */
#define MICA_MAX_DEVICES 64
/* MICA_OK, or DEVICE_LOST with the event that lost it. */
mica_status mica_device_lost_check(int ordinal);
bool mica_device_lost(int ordinal);
/* A copy of a kernel's name that outlives its plans and modules: the text that names a fault may
 * need it later. */
const char *mica_launch_name(const char *entry);
/* Notes the kernel that was launched last: faults are seen by some later call. A store, no more. */
void mica_device_launched(int ordinal, const char *launch_name);

#endif
