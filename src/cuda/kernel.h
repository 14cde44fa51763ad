/* SPDX-License-Identifier: Apache-2.0
 * What a mica_kernel is, for the files of this folder. */
#ifndef MICA_CUDA_KERNEL_H
#define MICA_CUDA_KERNEL_H

#include "cuda/device.h"
#include "cuda/compile/image.h"

struct mica_kernel {
    mica_kernel *next;
    mica_cuda *cuda;
    mica_image *image;
    void *module, *function; /* NULL on an offline device */
    int refs;
    int64_t dynamic_shared; /* as the function attribute has it; 0: never set */
    bool overlaps; /* launched while the one before it in the stream ends: device/overlap.cuh */
    const char *origin;
    const char *name; /* mica_launch_name of the entry */
};

#endif
