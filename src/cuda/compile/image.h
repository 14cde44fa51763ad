/* SPDX-License-Identifier: Apache-2.0
 * Compiled kernels before they are loaded into a device: shared by the whole process, so that no
 * two threads compile the same thing. */
#ifndef MICA_CUDA_COMPILE_IMAGE_H
#define MICA_CUDA_COMPILE_IMAGE_H

#include "cuda/compile/cache.h"
#include "cuda/cuda.h"

typedef enum mica_image_state {
    MICA_IMAGE_BUILDING,
    MICA_IMAGE_READY,
    MICA_IMAGE_FAILED
} mica_image_state;

typedef enum mica_image_origin { MICA_IMAGE_COMPILED, MICA_IMAGE_FROM_DISK } mica_image_origin;

typedef struct mica_image {
    struct mica_image *next;
    int refs;
    mica_image_state state;
    mica_status status; /* of a failed build, and its text */
    char *error;
    unsigned char digest[MICA_DIGEST_BYTES]; /* of the request */
    char *file, *entry, *prologue;
    void *code;
    size_t bytes;
    int registers, spill_bytes, local_bytes;
    int64_t shared_bytes; /* static */
    bool waits;           /* for the kernel before it: device/overlap.cuh */
    mica_image_origin origin;
    double compile_ms; /* what compiling took, whenever that was */
} mica_image;

/* A kernel that is wanted, and what tells it from others within this process. */
enum { MICA_COMPILER_BYTES = 256 };
typedef struct mica_image_request {
    const mica_kernel_spec *spec;
    const char *target;
    char compiler[MICA_COMPILER_BYTES]; /* its identity: part of the digest and of the disk's key */
    unsigned char digest[MICA_DIGEST_BYTES];
} mica_image_request;
/* Loads NVRTC. Where there is none, the kernels of the compiler that last filled the disk cache are
 * still found. */
mica_status mica_image_prepare(const mica_kernel_spec *spec, const char *target,
                               mica_image_request *request);

/* From this process, from disk, or compiled. *built: false if this process had it already. */
mica_status mica_image_get(const mica_image_request *request, mica_image **image, bool *built);
/* From this process or from disk; NOT_FOUND: it would have to be compiled, or is being. */
mica_status mica_image_find(const mica_image_request *request, mica_image **image, bool *built);
void mica_image_put(mica_image *image);
/* Fails as another thread did, whose text was copied to `error` (NULL: there was no memory). */
mica_status mica_image_repeat(mica_status status, const char *error, const char *entry);

#endif
