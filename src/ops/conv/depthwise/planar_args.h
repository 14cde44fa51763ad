/* SPDX-License-Identifier: Apache-2.0
 * What the kernels of whole planes receive; host and device share this file. */
#ifndef MICA_OPS_CONV_DEPTHWISE_PLANAR_ARGS_H
#define MICA_OPS_CONV_DEPTHWISE_PLANAR_ARGS_H

#include "kernels/epilogue_args.h"
#include "kernels/fastdiv.h"

/* Strides in elements. */
typedef struct conv_planar_strides {
    long long n, c, row, col;
} conv_planar_strides;

typedef struct conv_planar_args {
    const void *image; /* what is read with a halo */
    const void *other; /* the filter; wgrad: b */
    void *out;
    double alpha, beta;
    mica_epilogue_args epilogue;
    conv_planar_strides to, residual;
    long long filter_c, filter_row, filter_col; /* wgrad: of the result */
    long long part;                             /* wgrad: from one part of the sums to the next */
    long long images, planes; /* planes: channels of all images, as they follow in memory */
    int channels;
    int parts; /* wgrad: of the images */
    mica_fastdiv by_channels;
    unsigned char from_aligned, to_aligned;
} conv_planar_args;

#endif
