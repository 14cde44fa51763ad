/* SPDX-License-Identifier: Apache-2.0
 * Convolution descriptors and what their three passes share. */
#ifndef FRONT_CUDNN_CONV_H
#define FRONT_CUDNN_CONV_H

#include "front.h"

struct cudnnConvolutionStruct {
    front_kind kind;
    bool set;
    int axes; /* 2 or 3, as pad has entries */
    int pad[MICA_MAX_RANK - 2], stride[MICA_MAX_RANK - 2], dilation[MICA_MAX_RANK - 2];
    int groups;
    cudnnConvolutionMode_t mode;
    cudnnDataType_t compute;
    cudnnMathType_t math;
    cudnnReorderType_t reorder;
};

/* mica's problem for x, w and y, in whichever of them the result lies. */
cudnnStatus_t front_conv(mica_conv_pass pass, cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w,
                         cudnnConvolutionDescriptor_t conv, cudnnTensorDescriptor_t y,
                         mica_conv_desc *desc);
/* Success for 0 to count - 1. */
cudnnStatus_t front_conv_algorithm(int algorithm, int count);

#endif
