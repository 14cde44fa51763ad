/* SPDX-License-Identifier: Apache-2.0
 * What the softmax kernel receives; host and device share this file. */
#ifndef MICA_OPS_SOFTMAX_SOFTMAX_ARGS_H
#define MICA_OPS_SOFTMAX_SOFTMAX_ARGS_H

#include "kernels/layout.h"

typedef struct mica_softmax_args {
    const void *a, *b;  /* fwd: x, nothing; bwd: y, dy */
    void *out;          /* y or dx */
    mica_layout outer;  /* slices: of a, out (fwd) or a, b, out (bwd) */
    long long n;        /* elements of a slice */
    long long along[3]; /* strides on the axis, in the order of outer */
    int whole;          /* the pointers are aligned for vectors */
} mica_softmax_args;

#endif
