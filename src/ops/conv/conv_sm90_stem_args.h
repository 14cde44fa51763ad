/* SPDX-License-Identifier: Apache-2.0
 * What Hopper's first-layer kernels receive; host and device share this file. */
#ifndef MICA_OPS_CONV_SM90_STEM_ARGS_H
#define MICA_OPS_CONV_SM90_STEM_ARGS_H

#include "cuda/device/tensor_map.h"
#include "ops/conv/conv_stem_args.h"

typedef struct conv_sm90_stem_args {
    mica_tensor_map image; /* 8 bytes of a row, rows, images */
    mica_tensor_map
        other;           /* wgrad: filters, [first and second pixel of two,] pixels, rows, images */
    conv_stem_args stem; /* its `image` is not used; wgrad: nor `other` */
} conv_sm90_stem_args;

#endif
