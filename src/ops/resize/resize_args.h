/* SPDX-License-Identifier: Apache-2.0
 * What the kernels of resize receive; host and device share this file. */
#ifndef MICA_OPS_RESIZE_RESIZE_ARGS_H
#define MICA_OPS_RESIZE_RESIZE_ARGS_H

#include "kernels/fastdiv.h"

enum { RESIZE_NEAREST, RESIZE_LINEAR, RESIZE_CUBIC, RESIZE_AREA };
enum { RESIZE_PREFER_FLOOR, RESIZE_PREFER_CEIL, RESIZE_FLOOR, RESIZE_CEIL };

/* An axis: element o of y lies over the coordinate (a o + b) / d of x, d > 0. */
typedef struct mica_resize_axis {
    long long x, y; /* elements */
    double a, b, d;
    double stretch; /* of the filter, 1 or more */
    double reach;   /* elements nearer than this to the coordinate may have weights */
    double cubic;
    double unit;       /* integers: weights are multiples of 1 / unit; 0: as they are */
    int mode, nearest; /* as above */
    int normalised, exclude, extrapolates;
} mica_resize_axis;

/* Rows of weights of an axis, in workspace: row i is of element i of the result, `most` weights for
 * the elements from first[i] on, of which those behind the last are 0. */
typedef struct mica_resize_table {
    void *first, *weights;
    long long rows, most;
} mica_resize_table;

typedef struct mica_resize_args {
    const void *in;
    void *out;
    int whole;                /* pointers allow vectors */
    long long count;          /* work items */
    long long from[5], to[5]; /* strides of N C D H W; the channels' counting vectors */
    long long sizes[4];       /* D, H, W, C of the work items */
    mica_fastdiv by_size[4];  /* if they are below 2^31 */
    long long planes;         /* rows: N x C */
    double extrapolation;
    mica_resize_axis axes[3];
    mica_resize_table table[3];
} mica_resize_args;

#endif
