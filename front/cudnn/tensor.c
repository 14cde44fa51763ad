/* SPDX-License-Identifier: Apache-2.0
 * Tensor and filter descriptors: dimensions in the order N C spatial, strides in elements. */
#include "front.h"

cudnnStatus_t front_tensor(cudnnTensorDescriptor_t descriptor, const char *argument,
                           mica_tensor *tensor)
{
    FRONT_TRY(front_check(descriptor, FRONT_TENSOR, argument));
    if (!descriptor->set) return front_fail(CUDNN_STATUS_BAD_PARAM, "%s was never set", argument);
    *tensor = descriptor->tensor;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t front_filter(cudnnFilterDescriptor_t descriptor, const char *argument,
                           mica_tensor *tensor)
{
    FRONT_TRY(front_check(descriptor, FRONT_FILTER, argument));
    if (!descriptor->set) return front_fail(CUDNN_STATUS_BAD_PARAM, "%s was never set", argument);
    *tensor = descriptor->tensor;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- what is common: a tensor from ints ---- */

static cudnnStatus_t check_dims(cudnnDataType_t type, int rank, const int *dims, mica_dtype *dtype)
{
    *dtype = front_dtype(type);
    if (*dtype == MICA_NONE)
        return front_fail(CUDNN_STATUS_NOT_SUPPORTED, "data type %d: mica has no such type",
                          (int)type);
    FRONT_TRY(front_given(dims, "dimA"));
    if (rank < 1 || rank > MICA_MAX_RANK)
        return front_fail(rank < 1 ? CUDNN_STATUS_BAD_PARAM : CUDNN_STATUS_NOT_SUPPORTED,
                          "%d dimensions, 1 to %d are possible", rank, MICA_MAX_RANK);
    for (int i = 0; i < rank; i++)
        if (dims[i] < 0)
            return front_fail(CUDNN_STATUS_BAD_PARAM, "dimension %d is %d", i, dims[i]);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t by_format(cudnnTensorFormat_t format, cudnnDataType_t type, int rank,
                               const int *dims, mica_tensor *tensor)
{
    mica_dtype dtype = MICA_NONE;
    FRONT_TRY(check_dims(type, rank, dims, &dtype));
    int64_t wide[MICA_MAX_RANK];
    for (int i = 0; i < rank; i++) wide[i] = dims[i];
    if (format == CUDNN_TENSOR_NCHW)
        *tensor = mica_tensor_packed(dtype, rank, wide);
    else if (format == CUDNN_TENSOR_NHWC && rank >= 3)
        *tensor = mica_tensor_channels_last(dtype, rank, wide);
    else if (format == CUDNN_TENSOR_NHWC)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "NHWC has 3 dimensions or more, not %d", rank);
    else
        return front_fail(format == CUDNN_TENSOR_NCHW_VECT_C ? CUDNN_STATUS_NOT_SUPPORTED
                                                             : CUDNN_STATUS_BAD_PARAM,
                          "format %d: served are NCHW (0) and NHWC (1)", (int)format);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t by_strides(cudnnDataType_t type, int rank, const int *dims, const int *strides,
                                mica_tensor *tensor)
{
    mica_dtype dtype = MICA_NONE;
    FRONT_TRY(check_dims(type, rank, dims, &dtype));
    FRONT_TRY(front_given(strides, "strideA"));
    mica_tensor t = {.dtype = dtype, .rank = rank, .strided = 1};
    for (int i = 0; i < rank; i++) {
        t.dims[i] = dims[i];
        t.strides[i] = strides[i];
        if (strides[i]) t.strided = 0; /* not all zero: they speak for themselves */
    }
    *tensor = t;
    return CUDNN_STATUS_SUCCESS;
}

static void put(int *place, int64_t value)
{
    if (place) *place = (int)value;
}

static cudnnStatus_t span(const mica_tensor *tensor, size_t *size)
{
    FRONT_TRY(front_given(size, "size"));
    int64_t bytes = mica_tensor_span(tensor, NULL);
    if (bytes < 0) return front_fail(CUDNN_STATUS_BAD_PARAM, "the size overflows 64 bits");
    *size = (size_t)bytes;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- tensors ---- */

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *descriptor)
{
    front_enter(CALL_cudnnCreateTensorDescriptor);
    return front_create(FRONT_TENSOR, sizeof **descriptor, descriptor);
}

cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t descriptor)
{
    front_enter(CALL_cudnnDestroyTensorDescriptor);
    return front_destroy(descriptor, FRONT_TENSOR);
}

static cudnnStatus_t set_tensor(cudnnTensorDescriptor_t descriptor, cudnnDataType_t type,
                                const mica_tensor *tensor)
{
    descriptor->type = type;
    descriptor->tensor = *tensor;
    descriptor->set = true;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t descriptor,
                                         cudnnTensorFormat_t format, cudnnDataType_t type, int n,
                                         int c, int h, int w)
{
    front_enter(CALL_cudnnSetTensor4dDescriptor);
    FRONT_TRY(front_check(descriptor, FRONT_TENSOR, "tensorDesc"));
    mica_tensor tensor = {0};
    FRONT_TRY(by_format(format, type, 4, (int[]){n, c, h, w}, &tensor));
    return set_tensor(descriptor, type, &tensor);
}

cudnnStatus_t cudnnSetTensor4dDescriptorEx(cudnnTensorDescriptor_t descriptor, cudnnDataType_t type,
                                           int n, int c, int h, int w, int n_stride, int c_stride,
                                           int h_stride, int w_stride)
{
    front_enter(CALL_cudnnSetTensor4dDescriptorEx);
    FRONT_TRY(front_check(descriptor, FRONT_TENSOR, "tensorDesc"));
    mica_tensor tensor = {0};
    FRONT_TRY(by_strides(type, 4, (int[]){n, c, h, w},
                         (int[]){n_stride, c_stride, h_stride, w_stride}, &tensor));
    return set_tensor(descriptor, type, &tensor);
}

cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t descriptor, cudnnDataType_t type,
                                         int rank, const int *dims, const int *strides)
{
    front_enter(CALL_cudnnSetTensorNdDescriptor);
    FRONT_TRY(front_check(descriptor, FRONT_TENSOR, "tensorDesc"));
    mica_tensor tensor = {0};
    FRONT_TRY(by_strides(type, rank, dims, strides, &tensor));
    return set_tensor(descriptor, type, &tensor);
}

cudnnStatus_t cudnnSetTensorNdDescriptorEx(cudnnTensorDescriptor_t descriptor,
                                           cudnnTensorFormat_t format, cudnnDataType_t type,
                                           int rank, const int *dims)
{
    front_enter(CALL_cudnnSetTensorNdDescriptorEx);
    FRONT_TRY(front_check(descriptor, FRONT_TENSOR, "tensorDesc"));
    mica_tensor tensor = {0};
    FRONT_TRY(by_format(format, type, rank, dims, &tensor));
    return set_tensor(descriptor, type, &tensor);
}

cudnnStatus_t cudnnGetTensor4dDescriptor(cudnnTensorDescriptor_t descriptor, cudnnDataType_t *type,
                                         int *n, int *c, int *h, int *w, int *n_stride,
                                         int *c_stride, int *h_stride, int *w_stride)
{
    front_enter(CALL_cudnnGetTensor4dDescriptor);
    mica_tensor tensor = {0};
    FRONT_TRY(front_tensor(descriptor, "tensorDesc", &tensor));
    if (tensor.rank != 4)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "the tensor has %d dimensions, not 4",
                          tensor.rank);
    int *const places[] = {n, c, h, w, n_stride, c_stride, h_stride, w_stride};
    for (int i = 0; i < 4; i++) {
        put(places[i], tensor.dims[i]);
        put(places[4 + i], tensor.strides[i]);
    }
    if (type) *type = descriptor->type;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetTensorNdDescriptor(cudnnTensorDescriptor_t descriptor, int requested,
                                         cudnnDataType_t *type, int *rank, int *dims, int *strides)
{
    front_enter(CALL_cudnnGetTensorNdDescriptor);
    mica_tensor tensor = {0};
    FRONT_TRY(front_tensor(descriptor, "tensorDesc", &tensor));
    if (requested < 0 || requested > MICA_MAX_RANK)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "%d dimensions asked for, 0 to %d are possible",
                          requested, MICA_MAX_RANK);
    for (int i = 0; i < requested && i < tensor.rank; i++) {
        if (dims) dims[i] = (int)tensor.dims[i];
        if (strides) strides[i] = (int)tensor.strides[i];
    }
    if (type) *type = descriptor->type;
    put(rank, tensor.rank);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetTensorSizeInBytes(cudnnTensorDescriptor_t descriptor, size_t *size)
{
    front_enter(CALL_cudnnGetTensorSizeInBytes);
    mica_tensor tensor = {0};
    FRONT_TRY(front_tensor(descriptor, "tensorDesc", &tensor));
    return span(&tensor, size);
}

/* ---- filters ---- */

cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t *descriptor)
{
    front_enter(CALL_cudnnCreateFilterDescriptor);
    return front_create(FRONT_FILTER, sizeof **descriptor, descriptor);
}

cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t descriptor)
{
    front_enter(CALL_cudnnDestroyFilterDescriptor);
    return front_destroy(descriptor, FRONT_FILTER);
}

static cudnnStatus_t set_filter(cudnnFilterDescriptor_t descriptor, cudnnDataType_t type,
                                cudnnTensorFormat_t format, int rank, const int *dims)
{
    FRONT_TRY(front_check(descriptor, FRONT_FILTER, "filterDesc"));
    mica_tensor tensor = {0};
    FRONT_TRY(by_format(format, type, rank, dims, &tensor));
    descriptor->type = type;
    descriptor->format = format;
    descriptor->tensor = tensor;
    descriptor->set = true;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t descriptor, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int k, int c, int h, int w)
{
    front_enter(CALL_cudnnSetFilter4dDescriptor);
    return set_filter(descriptor, type, format, 4, (int[]){k, c, h, w});
}

cudnnStatus_t cudnnSetFilterNdDescriptor(cudnnFilterDescriptor_t descriptor, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int rank, const int *dims)
{
    front_enter(CALL_cudnnSetFilterNdDescriptor);
    return set_filter(descriptor, type, format, rank, dims);
}

cudnnStatus_t cudnnGetFilter4dDescriptor(cudnnFilterDescriptor_t descriptor, cudnnDataType_t *type,
                                         cudnnTensorFormat_t *format, int *k, int *c, int *h,
                                         int *w)
{
    front_enter(CALL_cudnnGetFilter4dDescriptor);
    mica_tensor tensor = {0};
    FRONT_TRY(front_filter(descriptor, "filterDesc", &tensor));
    if (tensor.rank != 4)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "the filter has %d dimensions, not 4",
                          tensor.rank);
    int *const places[] = {k, c, h, w};
    for (int i = 0; i < 4; i++) put(places[i], tensor.dims[i]);
    if (type) *type = descriptor->type;
    if (format) *format = descriptor->format;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetFilterNdDescriptor(cudnnFilterDescriptor_t descriptor, int requested,
                                         cudnnDataType_t *type, cudnnTensorFormat_t *format,
                                         int *rank, int *dims)
{
    front_enter(CALL_cudnnGetFilterNdDescriptor);
    mica_tensor tensor = {0};
    FRONT_TRY(front_filter(descriptor, "filterDesc", &tensor));
    for (int i = 0; i < requested && i < tensor.rank; i++)
        if (dims) dims[i] = (int)tensor.dims[i];
    if (type) *type = descriptor->type;
    if (format) *format = descriptor->format;
    put(rank, tensor.rank);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetFilterSizeInBytes(cudnnFilterDescriptor_t descriptor, size_t *size)
{
    front_enter(CALL_cudnnGetFilterSizeInBytes);
    mica_tensor tensor = {0};
    FRONT_TRY(front_filter(descriptor, "filterDesc", &tensor));
    return span(&tensor, size);
}
