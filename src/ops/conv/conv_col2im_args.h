/* SPDX-License-Identifier: Apache-2.0
 * What the kernel receives that adds up an image from its matrix; host and device share this file.
 */
#ifndef MICA_OPS_CONV_CONV_COL2IM_ARGS_H
#define MICA_OPS_CONV_CONV_COL2IM_ARGS_H

#include "ops/conv/conv_args.h"

typedef struct conv_col2im_args {
    mica_conv_geometry g;
    const void *matrix; /* groups x pixels of b x pairs, packed */
    void *image;
    double alpha, beta;
    mica_epilogue_args epilogue;
    long long rows, pairs, taps;    /* of one group */
    long long lines, pieces, items; /* rows of all images; vectors of one; both */
    int whole;                      /* the image is aligned for one access of a vector */
} conv_col2im_args;

#endif
