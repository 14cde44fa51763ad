/* SPDX-License-Identifier: Apache-2.0
 * What the kernel of softmax's variants receives; host and device share this file. */
#ifndef MICA_OPS_SOFTMAX_VARIANTS_ARGS_H
#define MICA_OPS_SOFTMAX_VARIANTS_ARGS_H

#include "kernels/layout.h"

/* Tensors of equal dimensions. INDEX has no memory: its offsets are the elements' indices. */
enum {
    MICA_SOFTMAX_PLACE_OUT,  /* y, or dx */
    MICA_SOFTMAX_PLACE_IN,   /* x, or y */
    MICA_SOFTMAX_PLACE_GRAD, /* nothing, or dy */
    MICA_SOFTMAX_PLACE_MASK,
    MICA_SOFTMAX_PLACE_INDEX,
    MICA_SOFTMAX_PLACES
};

typedef struct mica_softmax_variants_args {
    void *at[MICA_SOFTMAX_PLACES];
    const void *rng; /* seed, offset */
    long long rng_stride;
    mica_layout outer; /* slices */
    long long n;       /* elements of a slice */
    long long along[MICA_SOFTMAX_PLACES];
    double scale, by; /* of x, and of the sum: 1 / tau; backward the product of both in by */
} mica_softmax_variants_args;

#endif
