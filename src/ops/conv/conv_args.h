/* SPDX-License-Identifier: Apache-2.0
 * A convolution as loops see it; host and device share this file, so no types but C's own.
 *
 * There is one plain convolution of an image a by a filter f into b,
 *
 *   b[n, k, q] = sum over c, t of a[n, c, q * stride - pad + t * dilation] * f[k, c, t]
 *
 * and three sums over it: FWD gives b, DGRAD gives a, WGRAD gives f. A transposed convolution is
 * the same with x for b and y for a; a mirrored filter has negative strides. */
#ifndef MICA_OPS_CONV_CONV_ARGS_H
#define MICA_OPS_CONV_CONV_ARGS_H

#include "kernels/epilogue_args.h"

enum { MICA_CONV_KIND_FWD, MICA_CONV_KIND_DGRAD, MICA_CONV_KIND_WGRAD };

/* Strides in elements. A filter's n counts its k, its c the channels of a. */
typedef struct mica_conv_strides {
    long long n, g, c, s[3];
} mica_conv_strides;

typedef struct mica_conv_geometry {
    long long n, groups, c, k;       /* c and k: channels of a and b in one group */
    long long in[3], out[3], tap[3]; /* sizes of a, b and f; axis 2 is the innermost */
    long long stride[3], dilation[3], pad[3];
    mica_conv_strides a, b, f, residual;
    long long f_base; /* offset of tap 0: not 0 where the filter is mirrored */
} mica_conv_geometry;

typedef struct mica_conv_args {
    mica_conv_geometry g;
    const void *left, *right; /* the inputs in the order a, b, f */
    void *out;
    double alpha, beta;
    mica_epilogue_args epilogue;
    long long rows, cols, terms; /* of the matrix product behind it */
    long long row_tiles, col_tiles, tiles;
    /* wgrad: part i of the terms goes to out + i * part */
    long long terms_each, part;
} mica_conv_args;

#endif
