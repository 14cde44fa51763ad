/* SPDX-License-Identifier: Apache-2.0
 * What the pooling kernels receive; host and device share this file. */
#ifndef MICA_OPS_POOL_POOL_ARGS_H
#define MICA_OPS_POOL_POOL_ARGS_H

#include "kernels/fastdiv.h"

typedef struct mica_pool_axis {
    long long x, y;                          /* elements, windows */
    long long window, stride, pad, dilation; /* not used by adaptive windows but dilation, 1 */
    long long end;                           /* where padding ends, counted from x's element 0 */
    long long divisor;                       /* this axis' factor of every average's; 0: counted */
    int adaptive;
} mica_pool_axis;

typedef struct mica_pool_args {
    const void *in; /* x; backward: dy */
    void *out;      /* y; backward: dx */
    void *indices;  /* or NULL */
    double alpha, beta;
    int scaled;                 /* alpha is not 1 or beta not 0 */
    int aligned;                /* pointers allow vectors of channels */
    long long n, c;             /* images; channels, or vectors of channels */
    long long count;            /* work items */
    long long x[5], y[5], i[5]; /* strides of N C D H W, the channels' counting vectors */
    mica_pool_axis axes[3];
    long long sizes[4]; /* D, H, W, C of what the work items stand for */
    mica_fastdiv by_size[4];
    /* where each window is all of x's plane, else 0: its elements, x's, what averages divide by */
    long long plane, elements;
    mica_fastdiv by_plane; /* if all of x's numbers are below 2^31 */
    double divisor;
} mica_pool_args;

/* Of norms: backward x and y of forward, their strides as those above. */
typedef struct mica_pool_lp_args {
    mica_pool_args pool;
    const void *input, *output;
    long long input_strides[5], output_strides[5];
    double p;
} mica_pool_lp_args;

#endif
