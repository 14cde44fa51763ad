/* SPDX-License-Identifier: Apache-2.0
 * What the first-layer kernels receive; host and device share this file. */
#ifndef MICA_OPS_CONV_STEM_STEM_ARGS_H
#define MICA_OPS_CONV_STEM_STEM_ARGS_H

#include "kernels/epilogue_args.h"
#include "kernels/fastdiv.h"

typedef struct conv_stem_strides {
    long long n, c, s[2];
} conv_stem_strides;

typedef struct conv_stem_args {
    const void *image; /* a; dgrad: b */
    const void *other; /* the filter; wgrad: b */
    void *out;
    float alpha, beta;
    mica_epilogue_args epilogue;
    conv_stem_strides from, to, residual; /* of a; of b; as the result */
    long long filter_n, filter_c, filter_s[2];
    long long part; /* wgrad: from one part of the sums to the next */
    int size_from[2], size_to[2], pad[2];
    int filters; /* channels of b */
    int tiles;   /* of all images */
    mica_fastdiv across, down, chunks;
    /* 8 filters of b, 8 elements of a row of a lie at multiples of their size */
    unsigned char to_aligned, from_aligned;
    double *sums; /* by channel: blocks of the same filters x (sum, square) x filters */
} conv_stem_args;

#endif
