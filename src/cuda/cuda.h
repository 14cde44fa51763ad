/* SPDX-License-Identifier: Apache-2.0
 * The CUDA backend as the rest of mica sees it: devices, kernels, launches, memory. Knows no
 * operation. Everything goes through the driver (libcuda.so.1) and NVRTC, opened at run time. */
#ifndef MICA_CUDA_CUDA_H
#define MICA_CUDA_CUDA_H

#include "mica/plan.h"
#include "base/text.h"
#include "kernels/tensor_map.h"

typedef struct mica_cuda mica_cuda;     /* a device, real or offline ("sm_90a") */
typedef struct mica_kernel mica_kernel; /* a loaded kernel; counted; shared by plans */

/* name: "cuda:0", or an offline "sm_80", "sm_89", "sm_90a". NO_DEVICE with what was looked for. */
mica_status mica_cuda_open(const char *name, mica_cuda **cuda);
void mica_cuda_close(mica_cuda *cuda);
/* Real devices present; 0 without a driver (quietly). */
int mica_cuda_count(void);
void mica_cuda_device_info(const mica_cuda *cuda, mica_device_info *info);
/* FORKED_PROCESS in a child forked after the backend was used: its locks and the driver's state
 * are not to be touched. */
mica_status mica_fork_check(void);
/* MICA_OK, MICA_DEVICE_LOST, MICA_FORKED_PROCESS. */
mica_status mica_cuda_health(const mica_cuda *cuda);
/* Rows for mica info, from 0 on: driver, NVRTC, their paths and versions, or where was looked. */
int mica_cuda_info_rows(void);
void mica_cuda_info_row(int index, const char **key, const char **value);

/* ---- kernels ---- */
typedef struct mica_kernel_spec {
    const char *file;       /* "ops/softmax/softmax_cuda.cu": one extern "C" kernel */
    const char *entry;      /* its name */
    const char *prologue;   /* generated constants and types, put in front of the file */
    int64_t dynamic_shared; /* bytes, for the attribute that allows more than 48 KiB */
} mica_kernel_spec;
/* From memory, else from disk, else compiled; each miss is one log line. */
mica_status mica_kernel_get(mica_cuda *cuda, const mica_kernel_spec *spec, mica_kernel **kernel);
/* Several at once, compiled in parallel. All or none. */
mica_status mica_kernel_get_all(mica_cuda *cuda, const mica_kernel_spec *specs, int count,
                                mica_kernel **kernels);
/* The same of what is in memory or on disk: NOT_FOUND where one would have to be compiled. */
mica_status mica_kernel_find_all(mica_cuda *cuda, const mica_kernel_spec *specs, int count,
                                 mica_kernel **kernels);
void mica_kernel_put(mica_kernel *kernel);
void mica_kernel_describe(const mica_kernel *kernel, mica_kernel_info *info);
void mica_cuda_kernel_stats(const mica_cuda *cuda, mica_stats *stats);

typedef struct mica_grid {
    unsigned grid[3]; /* zero counts as one */
    unsigned block[3];
    unsigned cluster; /* blocks of a cluster along x; 0: none */
    unsigned dynamic_shared;
    /* All blocks are resident at once, or the launch fails: they may wait for one another. */
    bool cooperative;
} mica_grid;
/* MICA_OK, or UNSUPPORTED: the driver has no cooperative launches through cuLaunchKernelEx. */
mica_status mica_cuda_cooperates(const mica_cuda *cuda);
/* Enqueues it. args: the kernel's one parameter, a struct by value. DEVICE_LOST after a fault. From
 * sm_90 on one whose text calls overlap_wait() may start before the one before it has ended. */
mica_status mica_kernel_launch(const mica_kernel *kernel, const mica_grid *grid, void *stream,
                               const void *args);

/* ---- prologues ---- */
/* "constexpr int NAME = value;" */
void mica_prologue_int(mica_text *prologue, const char *name, int64_t value);
/* "constexpr double NAME = value;", exactly */
void mica_prologue_double(mica_text *prologue, const char *name, double value);
/* "typedef bf16 name;" (f64 double, f32 float, f16, bf16, e4m3, e5m2, s8, u8, s32, s64, u32,
 * boolean: the types of device/types.cuh) */
void mica_prologue_type(mica_text *prologue, const char *name, mica_dtype dtype);
/* "typedef types<bf16,float> name;" */
void mica_prologue_types(mica_text *prologue, const char *name, const mica_dtype *dtypes,
                         int count);
/* One wgmma instruction m64nN as a function, for device/wgmma.cuh:
 *     void name(float (&d)[N / 2], u64 a, u64 b, int add)   add 0: the old content of d is not read
 * d is s32 for s8 and u8; a is u32 (&a)[4] in registers. f32 means tf32. Functions come last in a
 * prologue: the table of kernels (mica check --table) shows what stands before them. */
typedef struct mica_wgmma {
    int n; /* a multiple of 8 up to 256; for s8 and u8 24, or a multiple of 16 */
    mica_dtype a, b;
    bool a_mn_major, b_mn_major; /* 16-bit types only */
    bool a_in_registers;
} mica_wgmma;
void mica_prologue_wgmma(mica_text *prologue, const char *name, const mica_wgmma *wgmma);

/* ---- memory, streams, events ---- */
mica_status mica_cuda_malloc(mica_cuda *cuda, int64_t bytes, void **memory);
void mica_cuda_free(mica_cuda *cuda, void *memory);
mica_status mica_cuda_memset(mica_cuda *cuda, void *memory, int byte, int64_t bytes, void *stream);
mica_status mica_cuda_upload(mica_cuda *cuda, void *to, const void *from, int64_t bytes,
                             void *stream);
mica_status mica_cuda_download(mica_cuda *cuda, void *to, const void *from, int64_t bytes,
                               void *stream);
mica_status mica_cuda_stream_create(mica_cuda *cuda, void **stream);
void mica_cuda_stream_destroy(mica_cuda *cuda, void *stream);
mica_status mica_cuda_synchronize(mica_cuda *cuda, void *stream);
mica_status mica_cuda_event_create(mica_cuda *cuda, void **event);
void mica_cuda_event_destroy(mica_cuda *cuda, void *event);
mica_status mica_cuda_event_record(mica_cuda *cuda, void *event, void *stream);
mica_status mica_cuda_event_elapsed(mica_cuda *cuda, void *from, void *to, double *ms);

/* Whether work on the stream is captured; true also where that cannot be told. */
bool mica_cuda_capturing(const mica_cuda *cuda, void *stream);
/* From now on this thread's loading of kernels neither fails by nor ends captures of others. */
void mica_cuda_relax_captures(void);

/* ---- replays: launches recorded as a CUDA graph ----
 * One thread at a time. Between record and recorded, and between update and updated, launches and
 * memsets of this thread are nodes of the replay; others of other threads are not concerned. */
typedef struct mica_replay mica_replay;
/* UNSUPPORTED: the driver is older than CUDA 12.3, or MICA_SYNC=1. */
mica_status mica_replay_create(mica_cuda *cuda, mica_replay **replay);
/* It must not be running. NULL is allowed. */
void mica_replay_destroy(mica_replay *replay);
/* Whether it may be launched there: the caller does not capture that stream. */
bool mica_replay_may(const mica_replay *replay, void *stream);
/* What is launched on its stream becomes nodes; count: how many so far. Then the graph is made, if
 * status (of the launches) is OK; UNSUPPORTED: something else than launches and memsets of ours was
 * captured, or it was recorded too often. */
mica_status mica_replay_record(mica_replay *replay);
void *mica_replay_stream(const mica_replay *replay);
int mica_replay_count(const mica_replay *replay);
mica_status mica_replay_recorded(mica_replay *replay, mica_status status);
/* Launches change the nodes from `at` on; mica_replay_at: the node that comes next, -1: a launch
 * was another one than then. What runs already is not concerned. false: record it again. */
mica_status mica_replay_update(mica_replay *replay);
void mica_replay_seek(mica_replay *replay, int at);
int mica_replay_at(const mica_replay *replay);
bool mica_replay_updated(mica_replay *replay);
mica_status mica_replay_launch(mica_replay *replay, void *stream);

/* ---- tensor maps (TMA), encoded by the driver ---- */
typedef struct mica_tensor_map_spec {
    mica_dtype dtype;
    int rank; /* 1 to 5, fastest dimension first below */
    int64_t dims[5];
    int64_t stride_bytes[5];     /* of dimensions 1.. ; [0] is the element */
    uint32_t box[5];             /* tiled: elements of one transfer */
    uint32_t element_strides[5]; /* 0 means 1 */
    int swizzle_bytes;           /* 0, 32, 64, 128 */
    bool tf32;                   /* f32 is rounded to tf32, to nearest even, while it is copied */
    bool im2col;                 /* then: */
    int lower[3], upper[3];      /* corners of the pixel box, innermost spatial dimension first */
    uint32_t channels_per_pixel, pixels_per_column;
} mica_tensor_map_spec;
mica_status mica_tensor_map_encode(mica_cuda *cuda, const mica_tensor_map_spec *spec, void *address,
                                   mica_tensor_map *map);

/* ---- disk cache ---- */
mica_status mica_cuda_cache_info(mica_disk_cache_info *info);
void mica_cuda_cache_limit(int64_t bytes);
mica_status mica_cuda_cache_prune(int64_t keep_bytes);
mica_status mica_cuda_cache_pack(const char *path, int64_t *entries);
mica_status mica_cuda_cache_unpack(const char *path, int64_t *entries);

#endif
