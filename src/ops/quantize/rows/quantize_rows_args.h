/* SPDX-License-Identifier: Apache-2.0
 * What the kernel of quantize_rows receives; host and device share this file. */
#ifndef MICA_OPS_QUANTIZE_ROWS_ARGS_H
#define MICA_OPS_QUANTIZE_ROWS_ARGS_H

#include "kernels/layout.h"

/* Tensors of a row; y has the first place, by which rows are ordered. */
enum { ROWS_Y, ROWS_X, ROWS_RESIDUAL, ROWS_SUM, ROWS_SCALE, ROWS_PLACES };
enum { ROWS_NORM_NONE, ROWS_NORM_RMS, ROWS_NORM_LAYER };

typedef struct mica_quantize_rows_args {
    const void *weight, *bias;
    void *at[ROWS_PLACES];
    mica_layout rows;     /* strides of those places */
    long long columns;    /* of v */
    long long length;     /* columns of a segment: of a row, or of a part of one */
    long long segments;   /* of a row */
    long long gate;       /* from an element of x to its gate */
    long long group;      /* columns that share a scale */
    long long scale_step; /* from group to group */
    double eps, act_a, act_b;
    int whole; /* rows and pointers are aligned for vectors */
} mica_quantize_rows_args;

#endif
