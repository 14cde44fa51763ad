/* SPDX-License-Identifier: Apache-2.0
 * Pooling: maximum, and averages with and without the padding counted. */
#include "compare.h"

cudnnStatus_t cudnnCreatePoolingDescriptor(cudnnPoolingDescriptor_t *descriptor)
{
    front_enter(CALL_cudnnCreatePoolingDescriptor);
    return front_create(FRONT_POOLING, sizeof **descriptor, descriptor);
}

cudnnStatus_t cudnnDestroyPoolingDescriptor(cudnnPoolingDescriptor_t descriptor)
{
    front_enter(CALL_cudnnDestroyPoolingDescriptor);
    return front_destroy(descriptor, FRONT_POOLING);
}

static cudnnStatus_t set(cudnnPoolingDescriptor_t descriptor, cudnnPoolingMode_t mode,
                         cudnnNanPropagation_t nan, int axes, const int *window, const int *pad,
                         const int *stride)
{
    FRONT_TRY(front_check(descriptor, FRONT_POOLING, "poolingDesc"));
    if ((unsigned)mode > CUDNN_POOLING_MAX_DETERMINISTIC)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "mode %d, known are 0 to %d", (int)mode,
                          CUDNN_POOLING_MAX_DETERMINISTIC);
    if (axes < 1 || axes > 3)
        return front_fail(axes < 1 ? CUDNN_STATUS_BAD_PARAM : CUDNN_STATUS_NOT_SUPPORTED,
                          "%d axes, served are 1 to 3", axes);
    if (!window || !pad || !stride)
        return front_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "an array is null");
    for (int i = 0; i < axes; i++)
        if (window[i] < 1 || pad[i] < 0 || stride[i] < 1)
            return front_fail(CUDNN_STATUS_BAD_PARAM,
                              "axis %d has window %d, padding %d, stride %d", i, window[i], pad[i],
                              stride[i]);
    for (int i = 0; i < axes; i++) {
        descriptor->window[i] = window[i];
        descriptor->pad[i] = pad[i];
        descriptor->stride[i] = stride[i];
    }
    descriptor->axes = axes;
    descriptor->mode = mode;
    descriptor->nan = nan;
    descriptor->set = true;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetPooling2dDescriptor(cudnnPoolingDescriptor_t descriptor,
                                          cudnnPoolingMode_t mode, cudnnNanPropagation_t nan,
                                          int window_h, int window_w, int pad_h, int pad_w,
                                          int stride_h, int stride_w)
{
    front_enter(CALL_cudnnSetPooling2dDescriptor);
    return set(descriptor, mode, nan, 2, (int[]){window_h, window_w}, (int[]){pad_h, pad_w},
               (int[]){stride_h, stride_w});
}

cudnnStatus_t cudnnSetPoolingNdDescriptor(cudnnPoolingDescriptor_t descriptor,
                                          cudnnPoolingMode_t mode, cudnnNanPropagation_t nan,
                                          int axes, const int *window, const int *pad,
                                          const int *stride)
{
    front_enter(CALL_cudnnSetPoolingNdDescriptor);
    return set(descriptor, mode, nan, axes, window, pad, stride);
}

static cudnnStatus_t check_set(cudnnPoolingDescriptor_t descriptor)
{
    FRONT_TRY(front_check(descriptor, FRONT_POOLING, "poolingDesc"));
    if (!descriptor->set) return front_fail(CUDNN_STATUS_BAD_PARAM, "poolingDesc was never set");
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetPooling2dDescriptor(cudnnPoolingDescriptor_t descriptor,
                                          cudnnPoolingMode_t *mode, cudnnNanPropagation_t *nan,
                                          int *window_h, int *window_w, int *pad_h, int *pad_w,
                                          int *stride_h, int *stride_w)
{
    front_enter(CALL_cudnnGetPooling2dDescriptor);
    FRONT_TRY(check_set(descriptor));
    if (descriptor->axes != 2)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "the pooling has %d axes, not 2",
                          descriptor->axes);
    int *const places[] = {window_h, window_w, pad_h, pad_w, stride_h, stride_w};
    for (int i = 0; i < 2; i++) {
        if (places[i]) *places[i] = descriptor->window[i];
        if (places[2 + i]) *places[2 + i] = descriptor->pad[i];
        if (places[4 + i]) *places[4 + i] = descriptor->stride[i];
    }
    if (mode) *mode = descriptor->mode;
    if (nan) *nan = descriptor->nan;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetPoolingNdDescriptor(cudnnPoolingDescriptor_t descriptor, int requested,
                                          cudnnPoolingMode_t *mode, cudnnNanPropagation_t *nan,
                                          int *axes, int *window, int *pad, int *stride)
{
    front_enter(CALL_cudnnGetPoolingNdDescriptor);
    FRONT_TRY(check_set(descriptor));
    for (int i = 0; i < requested && i < descriptor->axes; i++) {
        if (window) window[i] = descriptor->window[i];
        if (pad) pad[i] = descriptor->pad[i];
        if (stride) stride[i] = descriptor->stride[i];
    }
    if (axes) *axes = descriptor->axes;
    if (mode) *mode = descriptor->mode;
    if (nan) *nan = descriptor->nan;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t output_dims(cudnnPoolingDescriptor_t pooling, cudnnTensorDescriptor_t x_desc,
                                 int64_t *dims)
{
    mica_tensor x = {0};
    FRONT_TRY(check_set(pooling));
    FRONT_TRY(front_tensor(x_desc, "inputTensorDesc", &x));
    if (x.rank != pooling->axes + 2)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "x has %d dimensions, of a pooling along %d axes",
                          x.rank, pooling->axes);
    dims[0] = x.dims[0];
    dims[1] = x.dims[1];
    for (int i = 0; i < pooling->axes; i++) {
        int64_t room = x.dims[2 + i] + 2 * pooling->pad[i] - pooling->window[i];
        if (room < 0)
            return front_fail(CUDNN_STATUS_BAD_PARAM,
                              "the window has %d at axis %d, x with its padding %lld",
                              pooling->window[i], i, (long long)(room + pooling->window[i]));
        dims[2 + i] = room / pooling->stride[i] + 1;
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetPooling2dForwardOutputDim(cudnnPoolingDescriptor_t pooling,
                                                cudnnTensorDescriptor_t x, int *n, int *c,
                                                int *height, int *width)
{
    front_enter(CALL_cudnnGetPooling2dForwardOutputDim);
    int64_t dims[MICA_MAX_RANK] = {0};
    FRONT_TRY(output_dims(pooling, x, dims));
    if (pooling->axes != 2)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "the pooling has %d axes, not 2", pooling->axes);
    int *const places[] = {n, c, height, width};
    for (int i = 0; i < 4; i++)
        if (places[i]) *places[i] = (int)dims[i];
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetPoolingNdForwardOutputDim(cudnnPoolingDescriptor_t pooling,
                                                cudnnTensorDescriptor_t x, int rank, int *out)
{
    front_enter(CALL_cudnnGetPoolingNdForwardOutputDim);
    int64_t dims[MICA_MAX_RANK] = {0};
    FRONT_TRY(output_dims(pooling, x, dims));
    FRONT_TRY(front_given(out, "outputTensorDimA"));
    if (rank != pooling->axes + 2)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "%d dimensions asked for, y has %d", rank,
                          pooling->axes + 2);
    for (int i = 0; i < rank; i++) out[i] = (int)dims[i];
    return CUDNN_STATUS_SUCCESS;
}

/* ---- runs ---- */

static bool is_max(cudnnPoolingDescriptor_t pooling)
{
    return pooling->mode == CUDNN_POOLING_MAX || pooling->mode == CUDNN_POOLING_MAX_DETERMINISTIC;
}

static cudnnStatus_t problem(cudnnPoolingDescriptor_t pooling, cudnnTensorDescriptor_t x,
                             const char *x_name, cudnnTensorDescriptor_t y, const char *y_name,
                             mica_pool_desc *d)
{
    static const mica_pool_mode modes[] = {
        [CUDNN_POOLING_MAX] = MICA_POOL_MAX,
        [CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING] = MICA_POOL_AVG,
        [CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING] = MICA_POOL_AVG_VALID,
        [CUDNN_POOLING_MAX_DETERMINISTIC] = MICA_POOL_MAX};
    FRONT_TRY(check_set(pooling));
    FRONT_TRY(front_tensor(x, x_name, &d->x));
    FRONT_TRY(front_tensor(y, y_name, &d->y));
    if (d->x.rank != pooling->axes + 2)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "x has %d dimensions, of a pooling along %d axes",
                          d->x.rank, pooling->axes);
    d->mode = modes[pooling->mode];
    for (int i = 0; i < pooling->axes; i++) {
        d->window[i] = pooling->window[i];
        d->pad[i] = pooling->pad[i];
        d->stride[i] = pooling->stride[i];
        /* A y that is larger than whole windows give: the last ones end past the padding. */
        int64_t room = d->x.dims[2 + i] + 2 * pooling->pad[i] - pooling->window[i];
        if (room >= 0 && d->y.dims[2 + i] > room / pooling->stride[i] + 1) d->ceil = true;
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t plain_cudnnPoolingForward(cudnnHandle_t handle, cudnnPoolingDescriptor_t pooling,
                                        const void *alpha, cudnnTensorDescriptor_t x_desc,
                                        const void *x, const void *beta,
                                        cudnnTensorDescriptor_t y_desc, void *y)
{
    front_enter(CALL_cudnnPoolingForward);
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    mica_pool_desc d = {0};
    FRONT_TRY(problem(pooling, x_desc, "xDesc", y_desc, "yDesc", &d));
    double scalars[2] = {1, 0};
    FRONT_TRY(front_scalar(alpha, d.x.dtype, "alpha", &scalars[MICA_POOL_ALPHA]));
    FRONT_TRY(front_scalar(beta, d.x.dtype, "beta", &scalars[MICA_POOL_BETA]));
    mica_run run = {.scalars = scalars};
    run.args[MICA_POOL_X] = (void *)x;
    run.args[MICA_POOL_Y] = y;
    return front_run(handle, "pool", &d, sizeof d, &run);
}

/* The winners of x, found again: cuDNN hands none from forward to backward. */
static cudnnStatus_t find_winners(cudnnHandle_t handle, const mica_pool_desc *backward,
                                  const mica_tensor *x_tensor, const void *x, mica_tensor *indices,
                                  void **winners)
{
    mica_pool_desc d = *backward;
    void *y = NULL;
    d.pass = MICA_POOL_FWD;
    d.x = *x_tensor;
    d.y = mica_tensor_packed(x_tensor->dtype, backward->y.rank, backward->y.dims);
    d.indices = *indices = mica_tensor_packed(MICA_S32, backward->y.rank, backward->y.dims);
    FRONT_TRY(front_temporary(handle, 1, (size_t)mica_tensor_span(&d.y, NULL), &y));
    FRONT_TRY(front_temporary(handle, 2, (size_t)mica_tensor_span(indices, NULL), winners));
    mica_run run = {0};
    run.args[MICA_POOL_X] = (void *)x;
    run.args[MICA_POOL_Y] = y;
    run.args[MICA_POOL_INDICES] = *winners;
    return front_run(handle, "pool", &d, sizeof d, &run);
}

cudnnStatus_t plain_cudnnPoolingBackward(cudnnHandle_t handle, cudnnPoolingDescriptor_t pooling,
                                         const void *alpha, cudnnTensorDescriptor_t y_desc,
                                         const void *y, cudnnTensorDescriptor_t dy_desc,
                                         const void *dy, cudnnTensorDescriptor_t x_desc,
                                         const void *x, const void *beta,
                                         cudnnTensorDescriptor_t dx_desc, void *dx)
{
    (void)y_desc, (void)y; /* what it was made of is enough */
    front_enter(CALL_cudnnPoolingBackward);
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    mica_pool_desc d = {.pass = MICA_POOL_BWD};
    FRONT_TRY(problem(pooling, dx_desc, "dxDesc", dy_desc, "dyDesc", &d));
    double scalars[2] = {1, 0};
    FRONT_TRY(front_scalar(alpha, d.x.dtype, "alpha", &scalars[MICA_POOL_ALPHA]));
    FRONT_TRY(front_scalar(beta, d.x.dtype, "beta", &scalars[MICA_POOL_BETA]));
    void *winners = NULL;
    if (is_max(pooling)) {
        mica_tensor x_tensor = {0};
        FRONT_TRY(front_tensor(x_desc, "xDesc", &x_tensor));
        FRONT_TRY(front_given(x, "x"));
        FRONT_TRY(find_winners(handle, &d, &x_tensor, x, &d.indices, &winners));
    }
    mica_run run = {.scalars = scalars};
    run.args[MICA_POOL_X] = dx;
    run.args[MICA_POOL_Y] = (void *)dy;
    run.args[MICA_POOL_INDICES] = winners;
    return front_run(handle, "pool", &d, sizeof d, &run);
}
