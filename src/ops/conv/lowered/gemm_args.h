/* SPDX-License-Identifier: Apache-2.0
 * What the kernel receives that writes an image as a matrix; host and device share this file. */
#ifndef MICA_OPS_CONV_LOWERED_GEMM_ARGS_H
#define MICA_OPS_CONV_LOWERED_GEMM_ARGS_H

#include "ops/conv/conv_args.h"

enum { MICA_CONV_GEMM_PART = 256 }; /* vectors of a row that a warp takes at a time */

typedef struct conv_gemm_args {
    mica_conv_geometry g;
    const void *image;
    void *matrix;          /* groups x rows x pairs, packed */
    long long rows, pairs; /* of one group */
    long long parts;       /* of a row */
    int whole;             /* pointers are aligned for one access of a vector */
} conv_gemm_args;

#endif
