/* SPDX-License-Identifier: Apache-2.0
 * A tensor map as the hardware reads it; host and device share this file. It lies in the kernel's
 * parameter struct, which is __grid_constant__. */
#ifndef MICA_KERNELS_TENSOR_MAP_H
#define MICA_KERNELS_TENSOR_MAP_H

typedef struct mica_tensor_map {
    unsigned char bytes[128];
} __attribute__((aligned(64))) mica_tensor_map;

#endif
