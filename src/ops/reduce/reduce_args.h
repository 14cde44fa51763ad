/* SPDX-License-Identifier: Apache-2.0
 * What the kernels of reductions receive, and the words of the family's table; host and device
 * share this file. */
#ifndef MICA_OPS_REDUCE_REDUCE_ARGS_H
#define MICA_OPS_REDUCE_REDUCE_ARGS_H

#include "kernels/fastdiv.h"
#include "kernels/layout.h"

typedef struct mica_reduce_args {
    const void *x;
    void *y;
    void *parts;           /* states, by part, then by slice; NULL if slices are whole */
    mica_layout kept;      /* the slices: strides of x, y */
    mica_layout rows;      /* of a slice: strides of x, index */
    long long n;           /* elements of a row */
    long long along;       /* x's stride in a row */
    long long index_along; /* what the logical index grows by in a row */
    long long vectors;     /* accesses of a slice */
    long long per_part;    /* and of a part of one */
    long long length;      /* elements of a slice */
    double correction;
    mica_fastdiv per_row; /* accesses of a row, unless FAR */
    int part_count;
    int whole; /* the pointer is aligned for vectors */
} mica_reduce_args;

/* Of the values of an expression: `reduce` with a layout for x, for y, and for each further input.
 */
typedef struct mica_reduce_map_args {
    mica_reduce_args reduce;
    const void *inputs[MICA_LAYOUT_TENSORS];
    long long along[MICA_LAYOUT_TENSORS]; /* their strides in a row */
} mica_reduce_map_args;

/* How values are put together. */
enum {
    REDUCE_SUM,
    REDUCE_SQUARES, /* the sum of squares */
    REDUCE_PRODUCT,
    REDUCE_MAX,     /* NaN wins */
    REDUCE_EXP,     /* the sum of exponentials, and the maximum that they are about */
    REDUCE_MOMENTS, /* mean, and sum of squared deviations from it */
    REDUCE_ARG      /* the first position of the maximum; NaN wins */
};
/* What is done to an element in front. */
enum { REDUCE_AS_IT_IS, REDUCE_ABS, REDUCE_OPPOSITE, REDUCE_NONZERO, REDUCE_IS_ZERO };
/* What is done to a result behind. */
enum {
    REDUCE_PLAIN,
    REDUCE_BACK, /* the opposite of an opposite */
    REDUCE_MEAN,
    REDUCE_ROOT,
    REDUCE_LOG,
    REDUCE_NOT,
    REDUCE_VARIANCE,
    REDUCE_DEVIATION
};

#endif
