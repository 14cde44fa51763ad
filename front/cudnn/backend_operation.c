/* SPDX-License-Identifier: Apache-2.0
 * Shapes of single operations, as they are checked when one is finalized. */
#include "backend_node.h"

#include <stdio.h>

static const char *dims_text(const mica_tensor *t, char *text, size_t size)
{
    size_t length = 0;
    for (int i = 0; i < t->rank && length < size; i++)
        length += (size_t)snprintf(text + length, size - length, "%s%lld", i ? "x" : "",
                                   (long long)t->dims[i]);
    return text;
}

static cudnnStatus_t mismatch(const backend *b, const mica_tensor *x, const mica_tensor *y,
                              const char *rule)
{
    char first[200], second[200];
    return front_fail(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "%s: %s and %s, %s",
                      backend_type_words(b->type), dims_text(x, first, sizeof first),
                      dims_text(y, second, sizeof second), rule);
}

static bool tensor_at(const backend *b, backend_attribute attribute, mica_tensor *t)
{
    const backend *desc = backend_child(b, attribute);
    if (!desc) return false;
    backend_tensor(desc, t);
    return true;
}

static cudnnStatus_t check_conv(const backend *b, backend_attribute desc, backend_attribute ax,
                                backend_attribute aw, backend_attribute ay)
{
    const backend *d = backend_child(b, desc);
    const int dims = (int)backend_integer(d, AT_CONVOLUTION_SPATIAL_DIMS, 0);
    int64_t pre[8], post[8], stride[8], dilation[8];
    mica_tensor x, w, y;
    tensor_at(b, ax, &x);
    tensor_at(b, aw, &w);
    tensor_at(b, ay, &y);
    if (x.rank != dims + 2 || w.rank != x.rank || y.rank != x.rank)
        return mismatch(b, &x, &w, "not of two dimensions more than SPATIAL_DIMS");
    backend_integers(d, AT_CONVOLUTION_PRE_PADDINGS, pre);
    backend_integers(d, AT_CONVOLUTION_POST_PADDINGS, post);
    backend_integers(d, AT_CONVOLUTION_FILTER_STRIDES, stride);
    backend_integers(d, AT_CONVOLUTION_DILATIONS, dilation);
    if (x.dims[0] != y.dims[0] || w.dims[0] != y.dims[1])
        return mismatch(b, &x, &y, "whose batches or filters differ");
    if (x.dims[1] % w.dims[1] || w.dims[0] % (x.dims[1] / w.dims[1]))
        return mismatch(b, &x, &w, "whose channels make no groups");
    for (int i = 0; i < dims; i++) {
        const int64_t span = (w.dims[i + 2] - 1) * dilation[i] + 1;
        const int64_t room = x.dims[i + 2] + pre[i] + post[i] - span;
        if (room < 0 || room / stride[i] + 1 != y.dims[i + 2])
            return mismatch(b, &x, &y, "which the filter does not lead from one to the other");
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_pointwise(const backend *b)
{
    static const backend_attribute in[] = {AT_OP_POINTWISE_X, AT_OP_POINTWISE_B, AT_OP_POINTWISE_T};
    const backend *d = backend_child(b, AT_OP_POINTWISE_DESC);
    const int mode = (int)backend_integer(d, AT_POINTWISE_MODE, -1);
    const int operands = backend_pointwise_operands(mode);
    mica_tensor y, x;
    if (!operands &&
        (!tensor_at(b, AT_OP_POINTWISE_DX, &y) || !tensor_at(b, AT_OP_POINTWISE_DY, &x) ||
         !tensor_at(b, AT_OP_POINTWISE_X, &x)))
        return front_fail(CUDNN_STATUS_BAD_PARAM, "pointwise mode %d needs X, DY and DX", mode);
    if (operands && !tensor_at(b, AT_OP_POINTWISE_Y, &y))
        return front_fail(CUDNN_STATUS_BAD_PARAM, "pointwise mode %d needs Y", mode);
    for (int i = 0; i < operands; i++) {
        if (!tensor_at(b, in[i], &x))
            return front_fail(CUDNN_STATUS_BAD_PARAM, "pointwise mode %d needs %c", mode, "XBT"[i]);
        if (x.rank != y.rank) return mismatch(b, &x, &y, "of different rank");
        for (int k = 0; k < y.rank; k++)
            if (x.dims[k] != y.dims[k] && x.dims[k] != 1)
                return mismatch(b, &x, &y, "an operand is repeated along dimensions of 1");
    }
    const int64_t axis = backend_integer(d, AT_POINTWISE_AXIS, -1);
    if (mode == PW_GEN_INDEX && (axis < 0 || axis >= y.rank))
        return front_fail(CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND, "AXIS is %lld of %d dimensions",
                          (long long)axis, y.rank);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_matmul(const backend *b)
{
    mica_tensor x, y, z;
    tensor_at(b, AT_OP_MATMUL_A, &x);
    tensor_at(b, AT_OP_MATMUL_B, &y);
    tensor_at(b, AT_OP_MATMUL_C, &z);
    const int rank = z.rank;
    if (rank < 2) return front_fail(CUDNN_STATUS_NOT_SUPPORTED, "a matmul of rank %d", rank);
    if (x.rank != rank || y.rank != rank) return mismatch(b, &x, &y, "of different rank");
    if (x.dims[rank - 1] != y.dims[rank - 2])
        return mismatch(b, &x, &y, "whose inner sizes differ");
    if (x.dims[rank - 2] != z.dims[rank - 2]) return mismatch(b, &x, &z, "whose rows differ");
    if (y.dims[rank - 1] != z.dims[rank - 1]) return mismatch(b, &y, &z, "whose columns differ");
    for (int i = 0; i < rank - 2; i++)
        if (z.dims[i] % x.dims[i] || z.dims[i] % y.dims[i])
            return mismatch(b, &x, &y, "whose batches are no parts of the result's");
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_reduction(const backend *b)
{
    mica_tensor x, y;
    tensor_at(b, AT_OP_REDUCTION_X, &x);
    tensor_at(b, AT_OP_REDUCTION_Y, &y);
    if (x.rank != y.rank) return mismatch(b, &x, &y, "of different rank");
    for (int i = 0; i < x.rank; i++)
        if (x.dims[i] % y.dims[i]) return mismatch(b, &x, &y, "which is no part of it");
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_count(const backend *b, backend_attribute from, backend_attribute to)
{
    mica_tensor x, y;
    tensor_at(b, from, &x);
    tensor_at(b, to, &y);
    if (mica_tensor_count(&x) == mica_tensor_count(&y)) return CUDNN_STATUS_SUCCESS;
    return mismatch(b, &x, &y, "of other numbers of elements");
}

static bool is_like(const mica_tensor *a, const mica_tensor *b)
{
    for (int i = 0; i < 4; i++)
        if (a->rank != 4 || a->dims[i] != b->dims[i]) return false;
    return true;
}

static cudnnStatus_t check_sdpa_gradients(const backend *b)
{
    static const backend_attribute pairs[][2] = {{AT_OP_SDPA_BWD_Q, AT_OP_SDPA_BWD_DQ},
                                                 {AT_OP_SDPA_BWD_K, AT_OP_SDPA_BWD_DK},
                                                 {AT_OP_SDPA_BWD_V, AT_OP_SDPA_BWD_DV},
                                                 {AT_OP_SDPA_BWD_O, AT_OP_SDPA_BWD_DO}};
    mica_tensor x, dx;
    for (int i = 0; i < 4; i++) {
        tensor_at(b, pairs[i][0], &x);
        tensor_at(b, pairs[i][1], &dx);
        if (!is_like(&dx, &x)) return mismatch(b, &x, &dx, "which are no gradients of one another");
    }
    tensor_at(b, AT_OP_SDPA_BWD_STATS, &dx);
    x.dims[3] = 1;
    if (!is_like(&dx, &x)) return mismatch(b, &x, &dx, "which are not rows' statistics");
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_sdpa(const backend *b)
{
    const bool bwd = b->type == BT_OP_SDPA_BWD;
    mica_tensor q, k, v, o, stats;
    tensor_at(b, bwd ? AT_OP_SDPA_BWD_Q : AT_OP_SDPA_FWD_Q, &q);
    tensor_at(b, bwd ? AT_OP_SDPA_BWD_K : AT_OP_SDPA_FWD_K, &k);
    tensor_at(b, bwd ? AT_OP_SDPA_BWD_V : AT_OP_SDPA_FWD_V, &v);
    tensor_at(b, bwd ? AT_OP_SDPA_BWD_O : AT_OP_SDPA_FWD_O, &o);
    if (q.rank != 4 || k.rank != 4 || v.rank != 4 || o.rank != 4)
        return mismatch(b, &q, &k, "not of 4 dimensions");
    if (q.dims[0] != k.dims[0] || q.dims[3] != k.dims[3] || q.dims[1] % k.dims[1])
        return mismatch(b, &q, &k, "which are no queries and keys of one another");
    if (k.dims[0] != v.dims[0] || k.dims[1] != v.dims[1] || k.dims[2] != v.dims[2])
        return mismatch(b, &k, &v, "which are no keys and values of one another");
    if (o.dims[0] != q.dims[0] || o.dims[1] != q.dims[1] || o.dims[2] != q.dims[2] ||
        o.dims[3] != v.dims[3])
        return mismatch(b, &q, &o, "which are no queries and results of one another");
    if (!bwd && tensor_at(b, AT_OP_SDPA_FWD_STATS, &stats) && stats.rank != 4)
        return mismatch(b, &q, &stats, "which are not rows' statistics");
    return bwd ? check_sdpa_gradients(b) : CUDNN_STATUS_SUCCESS;
}

/* x, or its gradient, and y, or its: sizes that the windows lead from one to the other. */
static cudnnStatus_t check_resample(const backend *b, backend_attribute desc, backend_attribute ax,
                                    backend_attribute ay)
{
    const backend *d = backend_child(b, desc);
    const int dims = (int)backend_integer(d, AT_RESAMPLE_SPATIAL_DIMS, 0);
    int64_t pre[8], post[8], stride[8], window[8];
    mica_tensor x, y;
    tensor_at(b, ax, &x);
    tensor_at(b, ay, &y);
    if (x.rank != dims + 2 || y.rank != x.rank)
        return mismatch(b, &x, &y, "not of two dimensions more than SPATIAL_DIMS");
    if (x.dims[0] != y.dims[0] || x.dims[1] != y.dims[1])
        return mismatch(b, &x, &y, "whose batches or channels differ");
    backend_integers(d, AT_RESAMPLE_PRE_PADDINGS, pre);
    backend_integers(d, AT_RESAMPLE_POST_PADDINGS, post);
    backend_integers(d, AT_RESAMPLE_STRIDES, stride);
    backend_integers(d, AT_RESAMPLE_WINDOW_DIMS, window);
    for (int i = 0; i < dims; i++) {
        const int64_t room = x.dims[i + 2] + pre[i] + post[i] - window[i];
        if (stride[i] < 1 || room < 0 || room / stride[i] + 1 != y.dims[i + 2])
            return mismatch(b, &x, &y, "which the windows do not lead from one to the other");
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t backend_operation_check(const backend *b)
{
    switch (b->type) {
    case BT_CONV_FWD:
        return check_conv(b, AT_CONV_FWD_DESC, AT_CONV_FWD_X, AT_CONV_FWD_W, AT_CONV_FWD_Y);
    case BT_CONV_DGRAD:
        return check_conv(b, AT_CONV_DGRAD_DESC, AT_CONV_DGRAD_DX, AT_CONV_DGRAD_W,
                          AT_CONV_DGRAD_DY);
    case BT_CONV_WGRAD:
        return check_conv(b, AT_CONV_WGRAD_DESC, AT_CONV_WGRAD_X, AT_CONV_WGRAD_DW,
                          AT_CONV_WGRAD_DY);
    case BT_OP_POINTWISE:
        return check_pointwise(b);
    case BT_OP_MATMUL:
        return check_matmul(b);
    case BT_OP_REDUCTION:
        return check_reduction(b);
    case BT_OP_RESHAPE:
        return check_count(b, AT_OP_RESHAPE_X, AT_OP_RESHAPE_Y);
    case BT_OP_TRANSPOSE:
        return check_count(b, AT_OP_TRANSPOSE_X, AT_OP_TRANSPOSE_Y);
    case BT_OP_RESAMPLE_BWD:
        return check_resample(b, AT_OP_RESAMPLE_BWD_DESC, AT_OP_RESAMPLE_BWD_DX,
                              AT_OP_RESAMPLE_BWD_DY);
    case BT_OP_SDPA_FWD:
    case BT_OP_SDPA_BWD:
        return check_sdpa(b);
    default:
        return CUDNN_STATUS_SUCCESS; /* mica's own inference checks the rest */
    }
}
