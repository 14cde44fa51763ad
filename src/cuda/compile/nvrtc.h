/* SPDX-License-Identifier: Apache-2.0
 * NVIDIA's run-time compiler, opened at run time. */
#ifndef MICA_CUDA_COMPILE_NVRTC_H
#define MICA_CUDA_COMPILE_NVRTC_H

#include "base/text.h"
#include "base/why.h"

/* Opens it once; after a failure the next call tries again. NO_COMPILER with every place that was
 * looked in. */
mica_status mica_nvrtc_load(void);
/* After mica_nvrtc_load: what decides, besides source and target, which cubin comes out. */
void mica_nvrtc_identity(mica_text *text);
/* "" and 0 before it is loaded. Version 13000 is 13.0. */
const char *mica_nvrtc_path(void);
int mica_nvrtc_version(void);
const char *mica_nvrtc_build_id(void);

typedef struct mica_cubin {
    void *code; /* mica_release both */
    size_t bytes;
    char *log; /* the compiler's and ptxas's, never NULL after success */
} mica_cubin;
/* name: of the file, for messages. target: "sm_90a". Any number of threads at once. */
mica_status mica_nvrtc_compile(const char *name, const char *program, const char *target,
                               mica_cubin *cubin);

#endif
