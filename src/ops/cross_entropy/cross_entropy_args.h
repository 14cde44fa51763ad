/* SPDX-License-Identifier: Apache-2.0
 * What the cross-entropy kernels receive; host and device share this file. */
#ifndef MICA_OPS_CROSS_ENTROPY_CROSS_ENTROPY_ARGS_H
#define MICA_OPS_CROSS_ENTROPY_CROSS_ENTROPY_ARGS_H

#include "kernels/layout.h"

/* A block's share of a mean or sum, or only its counted rows: how many, or their weight. */
typedef struct mica_cross_entropy_partial {
    double sum;
    union {
        long long rows;
        double weight;
    } counted;
} mica_cross_entropy_partial;

typedef struct mica_cross_entropy_args {
    const void *x, *labels;
    const void *dloss; /* bwd */
    void *loss, *lse;  /* fwd; lse may be NULL */
    void *dx;          /* bwd */
    mica_layout rows;  /* of x, labels, loss or dloss, lse or dx, target, dtarget */
    long long classes;
    long long x_along, dx_along; /* strides on the class axis */
    long long ignore_index;
    double smoothing;
    mica_cross_entropy_partial *partial;
    int partials;
    int whole; /* the pointers are aligned for vectors */
    const void *target, *weight;
    void *dtarget;
    long long target_along, dtarget_along, weight_along; /* strides on the class axis */
} mica_cross_entropy_args;

#endif
