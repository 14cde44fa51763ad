/* SPDX-License-Identifier: Apache-2.0
 * What the kernels for small groups receive; host and device share this file. */
#ifndef MICA_OPS_CONV_GROUPED_GROUPED_ARGS_H
#define MICA_OPS_CONV_GROUPED_GROUPED_ARGS_H

#include "kernels/epilogue_args.h"
#include "kernels/fastdiv.h"

typedef struct conv_grouped_strides {
    long long n, c, s[2];
} conv_grouped_strides;

typedef struct conv_grouped_args {
    const void *image; /* what is read with a halo */
    const void *other; /* the filter; wgrad: b */
    void *out;
    double alpha, beta;
    mica_epilogue_args epilogue;
    conv_grouped_strides from, to, residual; /* to: of the result, in wgrad of b */
    /* of the filter: per group, per result channel and per read channel (wgrad: of b and of a) in
     * it */
    long long filter_g, filter_to, filter_from, filter_s[2];
    long long part; /* wgrad: from one part of the sums to the next */
    int size_from[2], size_to[2];
    int channels;            /* of all groups */
    int origin[2], shift[2]; /* where the halo of tile 0 starts, and what tile 0 starts before 0 */
    int tiles;               /* of all images */
    mica_fastdiv across, down, channel_blocks;
    unsigned char from_aligned, to_aligned;
} conv_grouped_args;

#endif
