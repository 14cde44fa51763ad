/* SPDX-License-Identifier: Apache-2.0
 * What the kernel of deform_conv receives; host and device share this file. */
#ifndef MICA_OPS_DEFORM_CONV_ARGS_H
#define MICA_OPS_DEFORM_CONV_ARGS_H

typedef struct mica_deform_conv_axis {
    long long in, out, taps, stride, pad, dilation;
} mica_deform_conv_axis;

/* Strides of a tensor of four dimensions. */
typedef struct mica_deform_conv_strides {
    long long at[4];
} mica_deform_conv_strides;

typedef struct mica_deform_conv_args {
    const void *x, *offset, *mask; /* of the first image; mask NULL: there is none */
    void *columns;                 /* images x (channels, taps) x (spatial of y), packed */
    mica_deform_conv_strides x_step, offset_step, mask_step;
    mica_deform_conv_axis axis[2];
    long long images, channels, taps, pixels; /* taps, pixels: products of both axes */
    long long offset_groups, of_group;        /* channels of an offset group */
    long long parts, each;                    /* of_group in parts of so many channels */
    long long count;                          /* threads */
} mica_deform_conv_args;

#endif
