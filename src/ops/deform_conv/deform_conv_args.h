/* SPDX-License-Identifier: Apache-2.0
 * What the kernels of deform_conv receive; host and device share this file. */
#ifndef MICA_OPS_DEFORM_CONV_ARGS_H
#define MICA_OPS_DEFORM_CONV_ARGS_H

#include "ops/taps/taps_args.h"

typedef struct mica_deform_conv_axis {
    long long in, out, taps, stride, pad, dilation;
} mica_deform_conv_axis;

/* Strides of a tensor of four dimensions. */
typedef struct mica_deform_conv_strides {
    long long at[4];
} mica_deform_conv_strides;

typedef struct mica_deform_conv_args {
    const void *x, *offset, *mask;      /* of the first image; mask NULL: there is none */
    void *columns;                      /* of (channels, taps), each of the spatial of y, packed; */
    long long column_row, column_image; /* how far one is from the next, and of the next image */
    void *doffset, *dmask;              /* of the first image */
    mica_taps_lists lists;              /* of dx */
    mica_deform_conv_strides x_step, offset_step, mask_step, doffset_step, dmask_step;
    mica_deform_conv_axis axis[2];
    long long images, channels, taps, pixels; /* taps, pixels: products of both axes */
    long long offset_groups, of_group;        /* channels of an offset group */
    long long parts, each;                    /* of_group in parts of so many channels */
    long long count;                          /* threads */
} mica_deform_conv_args;

#endif
