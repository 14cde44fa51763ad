/* SPDX-License-Identifier: Apache-2.0
 * What the kernels of lrn receive; host and device share this file. Axes are N C D H W; those that
 * x lacks have one element, a step of 0. */
#ifndef MICA_OPS_LRN_LRN_ARGS_H
#define MICA_OPS_LRN_LRN_ARGS_H

#include "kernels/fastdiv.h"

enum { LRN_AXES = 5 };
/* How s^-beta is found: by pow, or by roots. */
enum { LRN_POW, LRN_THREE_QUARTERS, LRN_HALF, LRN_ONE };

typedef struct mica_lrn_steps {
    long long at[LRN_AXES];
} mica_lrn_steps;

typedef struct mica_lrn_args {
    const void *x, *means, *dy; /* means NULL: all 0 */
    void *y, *dx, *dmeans;      /* dmeans NULL: not asked for */
    /* Of the gradient's first stage, packed, of the type of sums: dy x s^(-beta - 1), NaN where a
     * sum is not between low and high, and dy s^-beta. */
    void *slopes, *scaled;
    long long sizes[LRN_AXES];
    long long before[LRN_AXES], after[LRN_AXES]; /* elements of a window beside its own */
    mica_lrn_steps x_step, means_step, y_step, dy_step, dx_step, dmeans_step, packed_step;
    double k, alpha, beta; /* alpha by which the sum is multiplied */
    double low, high;      /* sums whose powers are ordinary numbers */
    void *left;            /* u32: whether results were left to the kernel behind */
    int type;              /* of the tensors, for the host */
    int whole;             /* pointers allow vectors */
    /* Columns of a kernel's threads: sizes of the other axes, that of lanes first and counted in
     * vectors; and how the axis along which they go is cut. */
    long long column_sizes[LRN_AXES - 1], columns, run, runs;
    mica_fastdiv by_size[LRN_AXES - 1];
} mica_lrn_args;

#endif
