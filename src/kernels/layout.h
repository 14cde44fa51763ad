/* SPDX-License-Identifier: Apache-2.0
 * Shapes as kernels receive them; host and device share this file, so no types but C's own. */
#ifndef MICA_KERNELS_LAYOUT_H
#define MICA_KERNELS_LAYOUT_H

#define MICA_LAYOUT_RANK    8
#define MICA_LAYOUT_TENSORS 12

/* Dimensions in logical order and the strides of the tensors that share them. A host function
 * (ops/access/layout.h) merges dimensions that are contiguous in all of them. */
typedef struct mica_layout {
    long long count; /* elements */
    int rank;
    int fits_int; /* count and all offsets are below 2^31: 32-bit division suffices */
    long long dims[MICA_LAYOUT_RANK];
    long long strides[MICA_LAYOUT_TENSORS][MICA_LAYOUT_RANK];
} mica_layout;

#endif
