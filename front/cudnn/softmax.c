/* SPDX-License-Identifier: Apache-2.0
 * Softmax and its logarithm over the channels, or over all but the first dimension. FAST is
 * computed as ACCURATE: the maximum is subtracted. */
#include "compare.h"

/* What lies behind the first dimension, as one: the tensors have to agree in the order in memory.
 * Softmax does not care which order that is. */
static cudnnStatus_t merge(mica_tensor *const *tensors, int count)
{
    const mica_tensor first = *tensors[0];
    int order[MICA_MAX_RANK], n = 0;
    for (int i = 1; i < first.rank; i++) {
        if (first.dims[i] == 1) continue;
        int at = n++;
        for (; at > 0 && first.strides[order[at - 1]] < first.strides[i]; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    for (int k = 0; k < count; k++) {
        mica_tensor *t = tensors[k],
                    merged = {.dtype = t->dtype, .rank = 2, .dims = {t->dims[0], 1}};
        if (t->rank != first.rank)
            return front_fail(CUDNN_STATUS_BAD_PARAM, "tensors of %d and %d dimensions", t->rank,
                              first.rank);
        for (int i = 0; i < n; i++) {
            merged.dims[1] *= t->dims[order[i]];
            if (i + 1 < n &&
                t->strides[order[i]] != t->dims[order[i + 1]] * t->strides[order[i + 1]])
                return front_fail(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT,
                                  "softmax over C, H and W at once: they have to lie in one piece, "
                                  "in the same order in all tensors");
        }
        merged.strides[0] = t->strides[0];
        merged.strides[1] = n ? t->strides[order[n - 1]] : 1;
        *t = merged;
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_modes(cudnnSoftmaxAlgorithm_t algorithm, cudnnSoftmaxMode_t mode)
{
    if ((unsigned)algorithm > CUDNN_SOFTMAX_LOG || (unsigned)mode > CUDNN_SOFTMAX_MODE_CHANNEL)
        return front_fail(CUDNN_STATUS_BAD_PARAM,
                          "algorithm %d, known are 0 to 2; mode %d, 0 and 1", (int)algorithm,
                          (int)mode);
    return CUDNN_STATUS_SUCCESS;
}

/* Runs into the result, or where alpha or beta ask for more, into memory in between. */
static cudnnStatus_t run(cudnnHandle_t handle, mica_softmax_desc *d, mica_run *r, int argument,
                         mica_tensor *place, void *result, const double *scalars)
{
    const mica_tensor to = *place;
    const bool plain = scalars[0] == 1 && scalars[1] == 0;
    void *memory = result;
    if (!plain) FRONT_TRY(front_temporary_like(handle, 1, &to, place, &memory));
    const mica_tensor from = *place;
    r->args[argument] = memory;
    FRONT_TRY(front_run(handle, "softmax", d, sizeof *d, r));
    return plain ? CUDNN_STATUS_SUCCESS
                 : front_blend(handle, scalars[0], &from, memory, scalars[1], &to, result);
}

cudnnStatus_t plain_cudnnSoftmaxForward(cudnnHandle_t handle, cudnnSoftmaxAlgorithm_t algorithm,
                                        cudnnSoftmaxMode_t mode, const void *alpha,
                                        cudnnTensorDescriptor_t x_desc, const void *x,
                                        const void *beta, cudnnTensorDescriptor_t y_desc, void *y)
{
    front_enter(CALL_cudnnSoftmaxForward);
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    FRONT_TRY(check_modes(algorithm, mode));
    mica_softmax_desc d = {.axis = 1, .log = algorithm == CUDNN_SOFTMAX_LOG};
    FRONT_TRY(front_tensor(x_desc, "xDesc", &d.x));
    FRONT_TRY(front_tensor(y_desc, "yDesc", &d.y));
    double scalars[2] = {1, 0};
    FRONT_TRY(front_scalar(alpha, d.x.dtype, "alpha", &scalars[0]));
    FRONT_TRY(front_scalar(beta, d.x.dtype, "beta", &scalars[1]));
    if (mode == CUDNN_SOFTMAX_MODE_INSTANCE) FRONT_TRY(merge((mica_tensor *[]){&d.x, &d.y}, 2));
    mica_run r = {0};
    r.args[MICA_SOFTMAX_X] = (void *)x;
    return run(handle, &d, &r, MICA_SOFTMAX_Y, &d.y, y, scalars);
}

cudnnStatus_t plain_cudnnSoftmaxBackward(cudnnHandle_t handle, cudnnSoftmaxAlgorithm_t algorithm,
                                         cudnnSoftmaxMode_t mode, const void *alpha,
                                         cudnnTensorDescriptor_t y_desc, const void *y,
                                         cudnnTensorDescriptor_t dy_desc, const void *dy,
                                         const void *beta, cudnnTensorDescriptor_t dx_desc,
                                         void *dx)
{
    front_enter(CALL_cudnnSoftmaxBackward);
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    FRONT_TRY(check_modes(algorithm, mode));
    mica_softmax_desc d = {
        .pass = MICA_SOFTMAX_BWD, .axis = 1, .log = algorithm == CUDNN_SOFTMAX_LOG};
    FRONT_TRY(front_tensor(y_desc, "yDesc", &d.y));
    FRONT_TRY(front_tensor(dy_desc, "dyDesc", &d.dy));
    FRONT_TRY(front_tensor(dx_desc, "dxDesc", &d.dx));
    double scalars[2] = {1, 0};
    FRONT_TRY(front_scalar(alpha, d.y.dtype, "alpha", &scalars[0]));
    FRONT_TRY(front_scalar(beta, d.y.dtype, "beta", &scalars[1]));
    if (mode == CUDNN_SOFTMAX_MODE_INSTANCE)
        FRONT_TRY(merge((mica_tensor *[]){&d.y, &d.dy, &d.dx}, 3));
    mica_run r = {0};
    r.args[MICA_SOFTMAX_Y] = (void *)y;
    r.args[MICA_SOFTMAX_DY] = (void *)dy;
    return run(handle, &d, &r, MICA_SOFTMAX_DX, &d.dx, dx, scalars);
}
