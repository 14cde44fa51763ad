/* SPDX-License-Identifier: Apache-2.0
 * What the depthwise kernels for tensor cores receive; host and device share this file. */
#ifndef MICA_OPS_CONV_DEPTHWISE_DEPTHWISE_MMA_ARGS_H
#define MICA_OPS_CONV_DEPTHWISE_DEPTHWISE_MMA_ARGS_H

#include "kernels/epilogue_args.h"
#include "kernels/fastdiv.h"

/* In elements; channels lie side by side. */
typedef struct conv_depthwise_mma_strides {
    long long n, s[2];
} conv_depthwise_mma_strides;

typedef struct conv_depthwise_mma_args {
    const void *image; /* what is read with a halo */
    const void *other; /* the filter; wgrad: b */
    void *out;
    double alpha, beta;
    mica_epilogue_args epilogue;
    conv_depthwise_mma_strides from, to, residual; /* to: of the result, in wgrad of b */
    long long residual_c;
    long long filter_c, filter_s[2]; /* of the filter: per channel, row and column of taps */
    long long part;                  /* wgrad: from one part of the sums to the next */
    int size_from[2], size_to[2];
    int images, channels;
    int origin[2];  /* the pixel that the first tap of pixel 0, 0 falls on */
    unsigned tiles; /* groups of 16 streams times tiles of columns */
    mica_fastdiv strips, across, channel_blocks;
    unsigned char from_aligned, to_aligned;
} conv_depthwise_mma_args;

#endif
