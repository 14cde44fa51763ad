/* SPDX-License-Identifier: Apache-2.0
 * Changes of layout by a transform descriptor: another format, zeros around. Folding is refused. */
#include "front.h"

struct cudnnTensorTransformStruct {
    front_kind kind;
    bool set;
    int rank;
    cudnnTensorFormat_t format;
    int32_t before[MICA_MAX_RANK], after[MICA_MAX_RANK];
    uint32_t fold[MICA_MAX_RANK];
    cudnnFoldingDirection_t direction;
};

cudnnStatus_t cudnnCreateTensorTransformDescriptor(cudnnTensorTransformDescriptor_t *descriptor)
{
    front_enter(CALL_cudnnCreateTensorTransformDescriptor);
    return front_create(FRONT_TRANSFORM, sizeof **descriptor, descriptor);
}

cudnnStatus_t cudnnDestroyTensorTransformDescriptor(cudnnTensorTransformDescriptor_t descriptor)
{
    front_enter(CALL_cudnnDestroyTensorTransformDescriptor);
    return front_destroy(descriptor, FRONT_TRANSFORM);
}

/* Arrays that are null: no padding, no folding. Folds are of the axes behind the channels. */
cudnnStatus_t cudnnSetTensorTransformDescriptor(cudnnTensorTransformDescriptor_t descriptor,
                                                uint32_t rank, cudnnTensorFormat_t format,
                                                const int32_t *before, const int32_t *after,
                                                const uint32_t *fold,
                                                cudnnFoldingDirection_t direction)
{
    front_enter(CALL_cudnnSetTensorTransformDescriptor);
    FRONT_TRY(front_check(descriptor, FRONT_TRANSFORM, "transformDesc"));
    if (rank < 3 || rank > MICA_MAX_RANK)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "%u dimensions, 3 to %d are possible", rank,
                          MICA_MAX_RANK);
    if (format != CUDNN_TENSOR_NCHW && format != CUDNN_TENSOR_NHWC)
        return front_fail(CUDNN_STATUS_NOT_SUPPORTED, "format %d: served are NCHW (0) and NHWC (1)",
                          (int)format);
    for (uint32_t i = 0; i < rank; i++)
        if ((before && before[i] < 0) || (after && after[i] < 0))
            return front_fail(CUDNN_STATUS_BAD_PARAM, "padding of dimension %u is negative", i);
    for (uint32_t i = 0; fold && i + 2 < rank; i++)
        if (fold[i] > 1)
            return front_fail(CUDNN_STATUS_NOT_SUPPORTED,
                              "axis %u is folded by %u; folding is an inner step of cuDNN's own "
                              "engines",
                              i, fold[i]);
    for (uint32_t i = 0; i < rank; i++) {
        descriptor->before[i] = before ? before[i] : 0;
        descriptor->after[i] = after ? after[i] : 0;
        descriptor->fold[i] = 1;
    }
    descriptor->rank = (int)rank;
    descriptor->format = format;
    descriptor->direction = direction;
    descriptor->set = true;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_set(cudnnTensorTransformDescriptor_t descriptor)
{
    FRONT_TRY(front_check(descriptor, FRONT_TRANSFORM, "transformDesc"));
    if (!descriptor->set) return front_fail(CUDNN_STATUS_BAD_PARAM, "transformDesc was never set");
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetTensorTransformDescriptor(cudnnTensorTransformDescriptor_t descriptor,
                                                uint32_t requested, cudnnTensorFormat_t *format,
                                                int32_t *before, int32_t *after, uint32_t *fold,
                                                cudnnFoldingDirection_t *direction)
{
    front_enter(CALL_cudnnGetTensorTransformDescriptor);
    FRONT_TRY(check_set(descriptor));
    for (uint32_t i = 0; i < requested && i < (uint32_t)descriptor->rank; i++) {
        if (before) before[i] = descriptor->before[i];
        if (after) after[i] = descriptor->after[i];
        if (fold && i + 2 < (uint32_t)descriptor->rank) fold[i] = descriptor->fold[i];
    }
    if (format) *format = descriptor->format;
    if (direction) *direction = descriptor->direction;
    return CUDNN_STATUS_SUCCESS;
}

/* The tensor that x becomes: larger by the padding, in the format's memory order. */
static cudnnStatus_t result_of(cudnnTensorTransformDescriptor_t transform, const mica_tensor *x,
                               mica_tensor *y)
{
    if (x->rank != transform->rank)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "the source has %d dimensions, transformDesc %d",
                          x->rank, transform->rank);
    int64_t dims[MICA_MAX_RANK];
    for (int i = 0; i < x->rank; i++)
        dims[i] = x->dims[i] + transform->before[i] + transform->after[i];
    *y = transform->format == CUDNN_TENSOR_NHWC ? mica_tensor_channels_last(x->dtype, x->rank, dims)
                                                : mica_tensor_packed(x->dtype, x->rank, dims);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnInitTransformDest(cudnnTensorTransformDescriptor_t transform,
                                     cudnnTensorDescriptor_t source, cudnnTensorDescriptor_t target,
                                     size_t *size)
{
    front_enter(CALL_cudnnInitTransformDest);
    FRONT_TRY(check_set(transform));
    FRONT_TRY(front_check(target, FRONT_TENSOR, "destDesc"));
    FRONT_TRY(front_given(size, "destSizeInBytes"));
    mica_tensor x = {0}, y = {0};
    FRONT_TRY(front_tensor(source, "srcDesc", &x));
    FRONT_TRY(result_of(transform, &x, &y));
    target->type = source->type;
    target->tensor = y;
    target->set = true;
    *size = (size_t)mica_tensor_span(&y, NULL);
    return CUDNN_STATUS_SUCCESS;
}

/* target = alpha * source + beta * target inside, beta * target in the padding. */
static cudnnStatus_t run(cudnnHandle_t handle, cudnnTensorTransformDescriptor_t transform,
                         const void *alpha, const mica_tensor *x, const void *source,
                         const void *beta, const mica_tensor *y, void *target)
{
    FRONT_TRY(check_set(transform));
    mica_tensor wanted = {0}, inside = *y;
    double scalars[2] = {1, 0};
    FRONT_TRY(result_of(transform, x, &wanted));
    FRONT_TRY(front_scalar(alpha, y->dtype, "alpha", &scalars[MICA_TRANSFORM_ALPHA]));
    FRONT_TRY(front_scalar(beta, y->dtype, "beta", &scalars[MICA_TRANSFORM_BETA]));
    int64_t first = 0;
    bool padded = false;
    for (int i = 0; i < wanted.rank; i++) {
        if (y->rank != wanted.rank || y->dims[i] != wanted.dims[i])
            return front_fail(CUDNN_STATUS_BAD_PARAM,
                              "the destination is not the source with its padding");
        inside.dims[i] = x->dims[i];
        first += transform->before[i] * y->strides[i];
        padded = padded || transform->before[i] || transform->after[i];
    }
    if (padded) {
        const double old = scalars[MICA_TRANSFORM_BETA];
        mica_pointwise_desc d = {.expr = "where(s0==0,0,s0*x0)", .x0 = *y, .y0 = *y};
        mica_run r = {.scalars = (double[]){old, 0, 0, 0}};
        r.args[MICA_POINTWISE_X0] = r.args[MICA_POINTWISE_Y0] = target;
        FRONT_TRY(front_run(handle, "pointwise", &d, sizeof d, &r));
        scalars[MICA_TRANSFORM_BETA] = 1;
    }
    mica_transform_desc d = {.x = *x, .y = inside};
    mica_run r = {.scalars = scalars};
    r.args[MICA_TRANSFORM_X] = (void *)source;
    r.args[MICA_TRANSFORM_Y] = (char *)target + first * mica_dtype_bits(y->dtype) / 8;
    return front_run(handle, "transform", &d, sizeof d, &r);
}

cudnnStatus_t cudnnTransformTensorEx(cudnnHandle_t handle,
                                     cudnnTensorTransformDescriptor_t transform, const void *alpha,
                                     cudnnTensorDescriptor_t source_desc, const void *source,
                                     const void *beta, cudnnTensorDescriptor_t target_desc,
                                     void *target)
{
    front_enter(CALL_cudnnTransformTensorEx);
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    mica_tensor x = {0}, y = {0};
    FRONT_TRY(front_tensor(source_desc, "srcDesc", &x));
    FRONT_TRY(front_tensor(target_desc, "destDesc", &y));
    return run(handle, transform, alpha, &x, source, beta, &y, target);
}

cudnnStatus_t cudnnTransformFilter(cudnnHandle_t handle, cudnnTensorTransformDescriptor_t transform,
                                   const void *alpha, cudnnFilterDescriptor_t source_desc,
                                   const void *source, const void *beta,
                                   cudnnFilterDescriptor_t target_desc, void *target)
{
    front_enter(CALL_cudnnTransformFilter);
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    mica_tensor x = {0}, y = {0};
    FRONT_TRY(front_filter(source_desc, "srcDesc", &x));
    FRONT_TRY(front_filter(target_desc, "destDesc", &y));
    return run(handle, transform, alpha, &x, source, beta, &y, target);
}
