/* SPDX-License-Identifier: Apache-2.0
 * What the kernel receives that adds up an image from its matrix; host and device share this file.
 */
#ifndef MICA_OPS_CONV_LOWERED_COL2IM_ARGS_H
#define MICA_OPS_CONV_LOWERED_COL2IM_ARGS_H

#include "ops/conv/conv_args.h"

enum { MICA_CONV_COL2IM_PART = 256 }; /* vectors */

typedef struct conv_col2im_args {
    mica_conv_geometry g;
    const void *matrix; /* groups x pixels of b x pairs, packed */
    void *image;
    double alpha, beta;
    mica_epilogue_args epilogue;
    long long rows, pairs, taps; /* of one group */
    long long pieces, parts;     /* of a row of the image: vectors, what a warp takes at a time */
    long long items;             /* parts of all rows of all images */
    int whole;                   /* the image is aligned for one access of a vector */
} conv_col2im_args;

#endif
