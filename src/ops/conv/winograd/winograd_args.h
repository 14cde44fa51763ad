/* SPDX-License-Identifier: Apache-2.0
 * What the Winograd kernels receive; host and device share this file. */
#ifndef MICA_OPS_CONV_WINOGRAD_WINOGRAD_ARGS_H
#define MICA_OPS_CONV_WINOGRAD_WINOGRAD_ARGS_H

#include "kernels/epilogue_args.h"
#include "kernels/fastdiv.h"

/* Tiles of TILE x TILE pixels of the result (wgrad: of b) and the images' pixels that belong to
 * them. */
typedef struct conv_winograd_image {
    long long n, c, s[2]; /* strides in elements */
    int size[2];
    int start[2]; /* where tile 0 begins */
} conv_winograd_image;

typedef struct conv_winograd_args {
    const void *from; /* an image or filter, or points */
    void *to;
    double alpha, beta;
    mica_epilogue_args epilogue;
    conv_winograd_image image; /* that is read; of a result: that is written */
    long long residual_n, residual_c, residual_s[2];
    /* the filter: from row to row and column to column of a plane of its points, and by tap */
    long long filter_row, filter_col, filter_s[2];
    mica_fastdiv across, down;
    mica_fastdiv columns;  /* of a plane of points */
    unsigned first, tiles; /* of all images: the first of this launch, and how many there are */
    unsigned count;        /* points in a plane */
} conv_winograd_args;

#endif
