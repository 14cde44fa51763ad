/* SPDX-License-Identifier: Apache-2.0
 * What the depthwise kernels receive; host and device share this file. */
#ifndef MICA_OPS_CONV_DEPTHWISE_DEPTHWISE_ARGS_H
#define MICA_OPS_CONV_DEPTHWISE_DEPTHWISE_ARGS_H

#include "kernels/epilogue_args.h"
#include "kernels/fastdiv.h"

/* Strides in elements: c from group to group, j between the channels of one group. */
typedef struct conv_depthwise_strides {
    long long n, c, j, s[3];
} conv_depthwise_strides;

typedef struct conv_depthwise_args {
    const void *image;  /* what tiles and their halos are read of; wgrad: the large image a */
    const void *filter; /* wgrad: the other image, b */
    void *out;
    double alpha, beta;
    mica_epilogue_args epilogue;
    /* to: of the result, in wgrad of b; taps: in wgrad of the result */
    conv_depthwise_strides from, to, residual, taps;
    long long part; /* wgrad: from one part of the sums to the next */
    int size_from[3], size_to[3];
    int channels, multiplier; /* groups, and channels in each on the side of b */
    int origin[2];            /* where the halo of tile 0 starts */
    int shift[2];             /* what tile 0 starts before 0 */
    int depth_taps, depth_stride, depth_dilation, depth_pad;
    mica_fastdiv channel_blocks, multipliers, across, down, depth;
    mica_fastdiv taps_deep,
        row_blocks; /* wgrad: blocks of one tap in depth and some rows of taps */
    int filter_rows, parts;
    unsigned tiles; /* wgrad: of all images */
    unsigned char from_aligned, to_aligned;
} conv_depthwise_args;

#endif
