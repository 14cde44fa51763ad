/* SPDX-License-Identifier: Apache-2.0
 * Convolution descriptors. */
#include "conv.h"

#include <string.h>

cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t *descriptor)
{
    front_enter(CALL_cudnnCreateConvolutionDescriptor);
    FRONT_TRY(front_create(FRONT_CONVOLUTION, sizeof **descriptor, descriptor));
    (*descriptor)->groups = 1;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t descriptor)
{
    front_enter(CALL_cudnnDestroyConvolutionDescriptor);
    return front_destroy(descriptor, FRONT_CONVOLUTION);
}

cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t descriptor,
                                          cudnnMathType_t math)
{
    front_enter(CALL_cudnnSetConvolutionMathType);
    FRONT_TRY(front_check(descriptor, FRONT_CONVOLUTION, "convDesc"));
    if ((unsigned)math > CUDNN_FMA_MATH)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "math type %d, known are 0 to %d", (int)math,
                          CUDNN_FMA_MATH);
    descriptor->math = math;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionMathType(cudnnConvolutionDescriptor_t descriptor,
                                          cudnnMathType_t *math)
{
    front_enter(CALL_cudnnGetConvolutionMathType);
    FRONT_TRY(front_check(descriptor, FRONT_CONVOLUTION, "convDesc"));
    FRONT_TRY(front_given(math, "mathType"));
    *math = descriptor->math;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t descriptor, int groups)
{
    front_enter(CALL_cudnnSetConvolutionGroupCount);
    FRONT_TRY(front_check(descriptor, FRONT_CONVOLUTION, "convDesc"));
    if (groups < 1) return front_fail(CUDNN_STATUS_BAD_PARAM, "%d groups", groups);
    descriptor->groups = groups;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionGroupCount(cudnnConvolutionDescriptor_t descriptor, int *groups)
{
    front_enter(CALL_cudnnGetConvolutionGroupCount);
    FRONT_TRY(front_check(descriptor, FRONT_CONVOLUTION, "convDesc"));
    FRONT_TRY(front_given(groups, "groupCount"));
    *groups = descriptor->groups;
    return CUDNN_STATUS_SUCCESS;
}

/* Only INT8x32 filters are reordered, which are refused: the value is kept for its getter. */
cudnnStatus_t cudnnSetConvolutionReorderType(cudnnConvolutionDescriptor_t descriptor,
                                             cudnnReorderType_t reorder)
{
    front_enter(CALL_cudnnSetConvolutionReorderType);
    FRONT_TRY(front_check(descriptor, FRONT_CONVOLUTION, "convDesc"));
    descriptor->reorder = reorder;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionReorderType(cudnnConvolutionDescriptor_t descriptor,
                                             cudnnReorderType_t *reorder)
{
    front_enter(CALL_cudnnGetConvolutionReorderType);
    FRONT_TRY(front_check(descriptor, FRONT_CONVOLUTION, "convDesc"));
    FRONT_TRY(front_given(reorder, "reorderType"));
    *reorder = descriptor->reorder;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t set(cudnnConvolutionDescriptor_t descriptor, int axes, const int *pad,
                         const int *stride, const int *dilation, cudnnConvolutionMode_t mode,
                         cudnnDataType_t compute)
{
    FRONT_TRY(front_check(descriptor, FRONT_CONVOLUTION, "convDesc"));
    if (axes < 1 || axes > 3)
        return front_fail(axes < 1 ? CUDNN_STATUS_BAD_PARAM : CUDNN_STATUS_NOT_SUPPORTED,
                          "%d axes, served are 1 to 3", axes);
    if (!pad || !stride || !dilation)
        return front_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "an array is null");
    if ((unsigned)mode > CUDNN_CROSS_CORRELATION)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "mode %d, known are 0 and 1", (int)mode);
    for (int i = 0; i < axes; i++)
        if (pad[i] < 0 || stride[i] < 1 || dilation[i] < 1)
            return front_fail(CUDNN_STATUS_BAD_PARAM,
                              "axis %d has padding %d, stride %d, dilation %d", i, pad[i],
                              stride[i], dilation[i]);
    for (int i = 0; i < axes; i++) {
        descriptor->pad[i] = pad[i];
        descriptor->stride[i] = stride[i];
        descriptor->dilation[i] = dilation[i];
    }
    descriptor->axes = axes;
    descriptor->mode = mode;
    descriptor->compute = compute;
    descriptor->set = true;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t descriptor, int pad_h,
                                              int pad_w, int stride_h, int stride_w, int dilation_h,
                                              int dilation_w, cudnnConvolutionMode_t mode,
                                              cudnnDataType_t compute)
{
    front_enter(CALL_cudnnSetConvolution2dDescriptor);
    return set(descriptor, 2, (int[]){pad_h, pad_w}, (int[]){stride_h, stride_w},
               (int[]){dilation_h, dilation_w}, mode, compute);
}

cudnnStatus_t cudnnSetConvolutionNdDescriptor(cudnnConvolutionDescriptor_t descriptor, int axes,
                                              const int *pad, const int *stride,
                                              const int *dilation, cudnnConvolutionMode_t mode,
                                              cudnnDataType_t compute)
{
    front_enter(CALL_cudnnSetConvolutionNdDescriptor);
    return set(descriptor, axes, pad, stride, dilation, mode, compute);
}

static cudnnStatus_t check_set(cudnnConvolutionDescriptor_t descriptor)
{
    FRONT_TRY(front_check(descriptor, FRONT_CONVOLUTION, "convDesc"));
    if (!descriptor->set) return front_fail(CUDNN_STATUS_BAD_PARAM, "convDesc was never set");
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolution2dDescriptor(cudnnConvolutionDescriptor_t descriptor, int *pad_h,
                                              int *pad_w, int *stride_h, int *stride_w,
                                              int *dilation_h, int *dilation_w,
                                              cudnnConvolutionMode_t *mode,
                                              cudnnDataType_t *compute)
{
    front_enter(CALL_cudnnGetConvolution2dDescriptor);
    FRONT_TRY(check_set(descriptor));
    if (descriptor->axes != 2)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "the convolution has %d axes, not 2",
                          descriptor->axes);
    int *const places[] = {pad_h, pad_w, stride_h, stride_w, dilation_h, dilation_w};
    for (int i = 0; i < 2; i++) {
        if (places[i]) *places[i] = descriptor->pad[i];
        if (places[2 + i]) *places[2 + i] = descriptor->stride[i];
        if (places[4 + i]) *places[4 + i] = descriptor->dilation[i];
    }
    if (mode) *mode = descriptor->mode;
    if (compute) *compute = descriptor->compute;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionNdDescriptor(cudnnConvolutionDescriptor_t descriptor,
                                              int requested, int *axes, int *pad, int *stride,
                                              int *dilation, cudnnConvolutionMode_t *mode,
                                              cudnnDataType_t *compute)
{
    front_enter(CALL_cudnnGetConvolutionNdDescriptor);
    FRONT_TRY(check_set(descriptor));
    for (int i = 0; i < requested && i < descriptor->axes; i++) {
        if (pad) pad[i] = descriptor->pad[i];
        if (stride) stride[i] = descriptor->stride[i];
        if (dilation) dilation[i] = descriptor->dilation[i];
    }
    if (axes) *axes = descriptor->axes;
    if (mode) *mode = descriptor->mode;
    if (compute) *compute = descriptor->compute;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- the dimensions of y ---- */

static cudnnStatus_t output_dims(cudnnConvolutionDescriptor_t conv, cudnnTensorDescriptor_t x_desc,
                                 cudnnFilterDescriptor_t w_desc, int64_t *dims)
{
    mica_tensor x = {0}, w = {0};
    FRONT_TRY(check_set(conv));
    FRONT_TRY(front_tensor(x_desc, "inputTensorDesc", &x));
    FRONT_TRY(front_filter(w_desc, "filterDesc", &w));
    if (x.rank != conv->axes + 2 || w.rank != x.rank)
        return front_fail(CUDNN_STATUS_BAD_PARAM,
                          "x has %d dimensions and w %d, of a convolution along %d axes", x.rank,
                          w.rank, conv->axes);
    if (x.dims[1] != w.dims[1] * conv->groups)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "x has %lld channels, w %lld in %d groups",
                          (long long)x.dims[1], (long long)w.dims[1], conv->groups);
    dims[0] = x.dims[0];
    dims[1] = w.dims[0];
    for (int i = 0; i < conv->axes; i++) {
        int64_t taps = (w.dims[2 + i] - 1) * conv->dilation[i] + 1;
        int64_t room = x.dims[2 + i] + 2 * conv->pad[i] - taps;
        if (room < 0)
            return front_fail(CUDNN_STATUS_BAD_PARAM,
                              "the filter spans %lld at axis %d, x with its padding %lld",
                              (long long)taps, i, (long long)(room + taps));
        dims[2 + i] = room / conv->stride[i] + 1;
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolution2dForwardOutputDim(cudnnConvolutionDescriptor_t conv,
                                                    cudnnTensorDescriptor_t x,
                                                    cudnnFilterDescriptor_t w, int *n, int *c,
                                                    int *height, int *width)
{
    front_enter(CALL_cudnnGetConvolution2dForwardOutputDim);
    int64_t dims[MICA_MAX_RANK] = {0};
    FRONT_TRY(output_dims(conv, x, w, dims));
    if (conv->axes != 2)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "the convolution has %d axes, not 2", conv->axes);
    int *const places[] = {n, c, height, width};
    for (int i = 0; i < 4; i++)
        if (places[i]) *places[i] = (int)dims[i];
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionNdForwardOutputDim(cudnnConvolutionDescriptor_t conv,
                                                    cudnnTensorDescriptor_t x,
                                                    cudnnFilterDescriptor_t w, int rank, int *out)
{
    front_enter(CALL_cudnnGetConvolutionNdForwardOutputDim);
    int64_t dims[MICA_MAX_RANK] = {0};
    FRONT_TRY(output_dims(conv, x, w, dims));
    FRONT_TRY(front_given(out, "tensorOuputDimA"));
    if (rank != conv->axes + 2)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "%d dimensions asked for, y has %d", rank,
                          conv->axes + 2);
    for (int i = 0; i < rank; i++) out[i] = (int)dims[i];
    return CUDNN_STATUS_SUCCESS;
}

/* ---- mica's problem ---- */

cudnnStatus_t front_conv(mica_conv_pass pass, cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w,
                         cudnnConvolutionDescriptor_t conv, cudnnTensorDescriptor_t y,
                         mica_conv_desc *desc)
{
    memset(desc, 0, sizeof *desc);
    FRONT_TRY(front_tensor(x, pass == MICA_CONV_DGRAD ? "dxDesc" : "xDesc", &desc->x));
    FRONT_TRY(front_filter(w, pass == MICA_CONV_WGRAD ? "dwDesc" : "wDesc", &desc->w));
    FRONT_TRY(front_tensor(y, pass == MICA_CONV_FWD ? "yDesc" : "dyDesc", &desc->y));
    FRONT_TRY(check_set(conv));
    if (desc->x.rank != conv->axes + 2)
        return front_fail(CUDNN_STATUS_BAD_PARAM,
                          "x has %d dimensions, of a convolution along %d axes", desc->x.rank,
                          conv->axes);
    desc->pass = pass;
    for (int i = 0; i < conv->axes; i++) {
        desc->pad[i] = conv->pad[i];
        desc->stride[i] = conv->stride[i];
        desc->dilation[i] = conv->dilation[i];
    }
    desc->groups = conv->groups;
    desc->flip = conv->mode == CUDNN_CONVOLUTION;
    if (desc->x.dtype == MICA_F32 && conv->math != CUDNN_FMA_MATH)
        desc->compute = MICA_COMPUTE_TF32;
    return CUDNN_STATUS_SUCCESS;
}
