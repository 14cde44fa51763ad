/* SPDX-License-Identifier: Apache-2.0
 * What the kernels after a convolution receive; host and device share this file. */
#ifndef MICA_OPS_CONV_LOWERED_PASSES_ARGS_H
#define MICA_OPS_CONV_LOWERED_PASSES_ARGS_H

#include "kernels/epilogue_args.h"
#include "kernels/layout.h"

/* The tensors of the layout. The last has the channel for its offset. */
enum { CONV_PASS_SUMS, CONV_PASS_Y, CONV_PASS_RESIDUAL, CONV_PASS_AUX, CONV_PASS_CHANNEL };

typedef struct conv_epilogue_pass_args {
    mica_layout layout;
    const void *sums;
    void *y, *aux, *amax;
    const float *scale_y;
    double alpha, beta;
    mica_epilogue_args epilogue;
} conv_epilogue_pass_args;

typedef struct conv_stats_args {
    mica_layout layout; /* of one channel of y */
    const void *y;
    long long channels, channel_stride;
    double *partial;       /* parts x (sum, square) x channels */
    long long parts, each; /* pixels of a part */
    void *sum, *square;
    long long sum_stride, square_stride;
} conv_stats_args;

#endif
