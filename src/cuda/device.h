/* SPDX-License-Identifier: Apache-2.0
 * What a mica_cuda is, for the files of this folder. */
#ifndef MICA_CUDA_DEVICE_H
#define MICA_CUDA_DEVICE_H

#include "cuda/cuda.h"
#include "cuda/driver.h"

#include <pthread.h>

struct mica_cuda {
    mica_device_info info;
    char target[16]; /* for NVRTC: "sm_90a" */
    int ordinal;     /* -1: offline */
    int device;
    void *context;         /* the primary one, retained */
    bool sync;             /* MICA_SYNC=1 */
    pthread_mutex_t mutex; /* guards the rest */
    mica_kernel *kernels;  /* of kernel.c */
    int64_t unused_bytes;  /* of kernels that nobody holds */
    int64_t loaded, hits, compiles;
};

/* MICA_OK, or FORKED_PROCESS, NO_DEVICE (offline), DEVICE_LOST. */
mica_status mica_cuda_usable(const mica_cuda *cuda);
/* The same, then makes the device's context current. *pushed: hand it to mica_cuda_leave, which
 * restores what the caller had. Nothing is pushed if the context is current already. */
mica_status mica_cuda_enter(const mica_cuda *cuda, bool *pushed);
/* For giving things back: no fault is injected and nothing reported; false where there is nothing
 * to give back to (offline, lost, forked). */
bool mica_cuda_enter_quietly(const mica_cuda *cuda, bool *pushed);
void mica_cuda_leave(const mica_cuda *cuda, bool pushed);
/* Around calls that give memory or modules back: while anybody captures in the global mode, they
 * would be refused and end that capture, which does not use what nobody holds. */
int mica_capture_aside(void); /* for mica_capture_back */
void mica_capture_back(int mode);

/* Unloads every kernel: part of closing. */
void mica_kernels_unload(mica_cuda *cuda);

#endif
