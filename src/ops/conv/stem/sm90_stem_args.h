/* SPDX-License-Identifier: Apache-2.0
 * What Hopper's first-layer kernels receive; host and device share this file. */
#ifndef MICA_OPS_CONV_STEM_SM90_STEM_ARGS_H
#define MICA_OPS_CONV_STEM_SM90_STEM_ARGS_H

#include "kernels/tensor_map.h"
#include "ops/conv/stem/stem_args.h"

typedef struct conv_sm90_stem_args {
    mica_tensor_map image; /* 8 bytes of a row, rows, planes, images */
    mica_tensor_map other; /* wgrad: filters, [one of two pixels,] pixels, rows, planes of images */
    conv_stem_args stem; /* whose images are planes of b; `image` is not used, wgrad: nor `other` */
    long long to_n, to_z, residual_n, residual_z, filter_z;
    mica_fastdiv planes; /* of an image of b */
    int stride_z, pad_z;
} conv_sm90_stem_args;

#endif
