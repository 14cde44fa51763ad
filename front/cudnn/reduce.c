/* SPDX-License-Identifier: Apache-2.0
 * Reductions of tensors: C = alpha reduce(A) + beta C along the dimensions in which C has 1. */
#include "front.h"

#include <string.h>

struct cudnnReduceTensorStruct {
    front_kind kind;
    bool set;
    cudnnReduceTensorOp_t op;
    cudnnDataType_t compute;
    cudnnNanPropagation_t nan;
    cudnnReduceTensorIndices_t indices;
    cudnnIndicesType_t index_type;
};

cudnnStatus_t cudnnCreateReduceTensorDescriptor(cudnnReduceTensorDescriptor_t *descriptor)
{
    front_enter(CALL_cudnnCreateReduceTensorDescriptor);
    return front_create(FRONT_REDUCE, sizeof **descriptor, descriptor);
}

cudnnStatus_t cudnnDestroyReduceTensorDescriptor(cudnnReduceTensorDescriptor_t descriptor)
{
    front_enter(CALL_cudnnDestroyReduceTensorDescriptor);
    return front_destroy(descriptor, FRONT_REDUCE);
}

cudnnStatus_t cudnnSetReduceTensorDescriptor(cudnnReduceTensorDescriptor_t descriptor,
                                             cudnnReduceTensorOp_t op, cudnnDataType_t compute,
                                             cudnnNanPropagation_t nan,
                                             cudnnReduceTensorIndices_t indices,
                                             cudnnIndicesType_t index_type)
{
    front_enter(CALL_cudnnSetReduceTensorDescriptor);
    FRONT_TRY(front_check(descriptor, FRONT_REDUCE, "reduceTensorDesc"));
    if ((unsigned)op > CUDNN_REDUCE_TENSOR_MUL_NO_ZEROS)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "operation %d, known are 0 to %d", (int)op,
                          CUDNN_REDUCE_TENSOR_MUL_NO_ZEROS);
    descriptor->op = op;
    descriptor->compute = compute;
    descriptor->nan = nan;
    descriptor->indices = indices;
    descriptor->index_type = index_type;
    descriptor->set = true;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_set(cudnnReduceTensorDescriptor_t descriptor)
{
    FRONT_TRY(front_check(descriptor, FRONT_REDUCE, "reduceTensorDesc"));
    if (!descriptor->set)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "reduceTensorDesc was never set");
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetReduceTensorDescriptor(cudnnReduceTensorDescriptor_t descriptor,
                                             cudnnReduceTensorOp_t *op, cudnnDataType_t *compute,
                                             cudnnNanPropagation_t *nan,
                                             cudnnReduceTensorIndices_t *indices,
                                             cudnnIndicesType_t *index_type)
{
    front_enter(CALL_cudnnGetReduceTensorDescriptor);
    FRONT_TRY(check_set(descriptor));
    if (op) *op = descriptor->op;
    if (compute) *compute = descriptor->compute;
    if (nan) *nan = descriptor->nan;
    if (indices) *indices = descriptor->indices;
    if (index_type) *index_type = descriptor->index_type;
    return CUDNN_STATUS_SUCCESS;
}

/* Positions are written for minima and maxima alone, and left out where none are asked for. */
static bool has_indices(cudnnReduceTensorDescriptor_t reduce)
{
    return reduce->indices == CUDNN_REDUCE_TENSOR_FLATTENED_INDICES &&
           (reduce->op == CUDNN_REDUCE_TENSOR_MIN || reduce->op == CUDNN_REDUCE_TENSOR_MAX ||
            reduce->op == CUDNN_REDUCE_TENSOR_AMAX);
}

cudnnStatus_t cudnnGetReductionIndicesSize(cudnnHandle_t handle,
                                           cudnnReduceTensorDescriptor_t reduce,
                                           cudnnTensorDescriptor_t a,
                                           cudnnTensorDescriptor_t c_desc, size_t *size)
{
    (void)a;
    front_enter(CALL_cudnnGetReductionIndicesSize);
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    FRONT_TRY(check_set(reduce));
    FRONT_TRY(front_given(size, "sizeInBytes"));
    mica_tensor c = {0};
    FRONT_TRY(front_tensor(c_desc, "cDesc", &c));
    *size = has_indices(reduce) ? (size_t)mica_tensor_count(&c) * sizeof(int32_t) : 0;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetReductionWorkspaceSize(cudnnHandle_t handle,
                                             cudnnReduceTensorDescriptor_t reduce,
                                             cudnnTensorDescriptor_t a, cudnnTensorDescriptor_t c,
                                             size_t *size)
{
    (void)a, (void)c;
    front_enter(CALL_cudnnGetReductionWorkspaceSize);
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    FRONT_TRY(check_set(reduce));
    FRONT_TRY(front_given(size, "sizeInBytes"));
    *size = 0; /* what there is to hold lies in the handle's own */
    return CUDNN_STATUS_SUCCESS;
}

static const struct {
    mica_reduce_kind kind;
    const char *map;
} rows[] = {
    [CUDNN_REDUCE_TENSOR_ADD] = {MICA_REDUCE_KIND_SUM, ""},
    [CUDNN_REDUCE_TENSOR_MUL] = {MICA_REDUCE_KIND_PROD, ""},
    [CUDNN_REDUCE_TENSOR_MIN] = {MICA_REDUCE_KIND_MIN, ""},
    [CUDNN_REDUCE_TENSOR_MAX] = {MICA_REDUCE_KIND_MAX, ""},
    [CUDNN_REDUCE_TENSOR_AMAX] = {MICA_REDUCE_KIND_AMAX, ""},
    [CUDNN_REDUCE_TENSOR_AVG] = {MICA_REDUCE_KIND_MEAN, ""},
    [CUDNN_REDUCE_TENSOR_NORM1] = {MICA_REDUCE_KIND_NORM1, ""},
    [CUDNN_REDUCE_TENSOR_NORM2] = {MICA_REDUCE_KIND_NORM2, ""},
    [CUDNN_REDUCE_TENSOR_MUL_NO_ZEROS] = {MICA_REDUCE_KIND_PROD, "where(x0==0,1,x0)"},
};

cudnnStatus_t cudnnReduceTensor(cudnnHandle_t handle, cudnnReduceTensorDescriptor_t reduce,
                                void *indices, size_t indices_bytes, void *workspace, size_t bytes,
                                const void *alpha, cudnnTensorDescriptor_t a_desc, const void *a,
                                const void *beta, cudnnTensorDescriptor_t c_desc, void *c)
{
    (void)indices, (void)indices_bytes, (void)workspace, (void)bytes;
    front_enter(CALL_cudnnReduceTensor);
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    FRONT_TRY(check_set(reduce));
    if (has_indices(reduce))
        return front_fail(CUDNN_STATUS_NOT_SUPPORTED,
                          "positions of minima and maxima are not written (FLATTENED_INDICES)");
    mica_reduce_desc d = {.kind = rows[reduce->op].kind, .keepdims = true};
    mica_tensor result = {0};
    FRONT_TRY(front_tensor(a_desc, "aDesc", &d.x));
    FRONT_TRY(front_tensor(c_desc, "cDesc", &result));
    if (d.x.rank != result.rank)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "A has %d dimensions, C %d", d.x.rank,
                          result.rank);
    int n = 0;
    for (int i = 0; i < d.x.rank; i++) {
        if (d.x.dims[i] == result.dims[i]) continue;
        if (result.dims[i] != 1)
            return front_fail(CUDNN_STATUS_BAD_PARAM, "C has %lld at dimension %d, A has %lld",
                              (long long)result.dims[i], i, (long long)d.x.dims[i]);
        d.axes[n++] = MICA_REDUCE_AXIS(i);
    }
    /* Without an axis mica would reduce all: one of 1 stands for none. */
    for (int i = 0; !n && i < d.x.rank; i++)
        if (d.x.dims[i] == 1) d.axes[n++] = MICA_REDUCE_AXIS(i);
    if (!n)
        return front_fail(CUDNN_STATUS_NOT_SUPPORTED,
                          "C has the dimensions of A: nothing to reduce");
    memcpy(d.map, rows[reduce->op].map, strlen(rows[reduce->op].map) + 1);
    double scale = 1, old = 0;
    FRONT_TRY(front_scalar(alpha, result.dtype, "alpha", &scale));
    FRONT_TRY(front_scalar(beta, result.dtype, "beta", &old));
    const bool plain = scale == 1 && old == 0;
    void *place = c;
    d.y = result;
    if (!plain) FRONT_TRY(front_temporary_like(handle, 1, &result, &d.y, &place));
    mica_run run = {0};
    run.args[MICA_REDUCE_X] = (void *)a;
    run.args[MICA_REDUCE_Y] = place;
    FRONT_TRY(front_run(handle, "reduce", &d, sizeof d, &run));
    return plain ? CUDNN_STATUS_SUCCESS : front_blend(handle, scale, &d.y, place, old, &result, c);
}
