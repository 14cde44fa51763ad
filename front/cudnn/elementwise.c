/* SPDX-License-Identifier: Apache-2.0
 * Sums, products and copies of tensors, element by element: AddTensor, OpTensor, ScaleTensor,
 * SetTensor, TransformTensor. Where beta is 0 the old content is not read, whatever it is. */
#include "front.h"

#include <stdio.h>

/* ---- result = alpha * from + beta * result ---- */

cudnnStatus_t front_blend(cudnnHandle_t handle, double alpha, const mica_tensor *from,
                          const void *source, double beta, const mica_tensor *to, void *target)
{
    mica_pointwise_desc d = {
        .expr = "where(s1==0,s0*x1,s0*x1+s1*x0)", .x0 = *to, .x1 = *from, .y0 = *to};
    mica_run run = {.scalars = (double[]){alpha, beta, 0, 0}};
    run.args[MICA_POINTWISE_X0] = run.args[MICA_POINTWISE_Y0] = target;
    run.args[MICA_POINTWISE_X0 + 1] = (void *)source;
    return front_run(handle, "pointwise", &d, sizeof d, &run);
}

/* Dimensions of `small` are those of `large`, or 1. */
static cudnnStatus_t check_broadcast(const mica_tensor *small, const mica_tensor *large,
                                     const char *argument)
{
    if (small->rank != large->rank)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "%s has %d dimensions, C %d", argument,
                          small->rank, large->rank);
    for (int i = 0; i < small->rank; i++)
        if (small->dims[i] != large->dims[i] && small->dims[i] != 1)
            return front_fail(CUDNN_STATUS_BAD_PARAM, "%s has %lld at dimension %d, C has %lld",
                              argument, (long long)small->dims[i], i, (long long)large->dims[i]);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnAddTensor(cudnnHandle_t handle, const void *alpha,
                             cudnnTensorDescriptor_t a_desc, const void *a, const void *beta,
                             cudnnTensorDescriptor_t c_desc, void *c)
{
    front_enter(CALL_cudnnAddTensor);
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    mica_tensor from = {0}, to = {0};
    FRONT_TRY(front_tensor(a_desc, "aDesc", &from));
    FRONT_TRY(front_tensor(c_desc, "cDesc", &to));
    FRONT_TRY(check_broadcast(&from, &to, "A"));
    double scale = 1, old = 0;
    FRONT_TRY(front_scalar(alpha, to.dtype, "alpha", &scale));
    FRONT_TRY(front_scalar(beta, to.dtype, "beta", &old));
    return front_blend(handle, scale, &from, a, old, &to, c);
}

cudnnStatus_t cudnnScaleTensor(cudnnHandle_t handle, cudnnTensorDescriptor_t y_desc, void *y,
                               const void *alpha)
{
    front_enter(CALL_cudnnScaleTensor);
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    mica_tensor tensor = {0};
    FRONT_TRY(front_tensor(y_desc, "yDesc", &tensor));
    double scale = 1;
    FRONT_TRY(front_scalar(alpha, tensor.dtype, "alpha", &scale));
    mica_pointwise_desc d = {.expr = "x0*s0", .x0 = tensor, .y0 = tensor};
    mica_run run = {.scalars = (double[]){scale, 0, 0, 0}};
    run.args[MICA_POINTWISE_X0] = run.args[MICA_POINTWISE_Y0] = y;
    return front_run(handle, "pointwise", &d, sizeof d, &run);
}

/* The value is one element of y's type in host memory. */
cudnnStatus_t cudnnSetTensor(cudnnHandle_t handle, cudnnTensorDescriptor_t y_desc, void *y,
                             const void *value)
{
    front_enter(CALL_cudnnSetTensor);
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    mica_tensor tensor = {0};
    FRONT_TRY(front_tensor(y_desc, "yDesc", &tensor));
    FRONT_TRY(front_given(value, "valuePtr"));
    if (mica_dtype_bits(tensor.dtype) % 8 || tensor.dtype >= MICA_C32)
        return front_fail(CUDNN_STATUS_NOT_SUPPORTED, "elements of %s are not set one by one",
                          mica_dtype_name(tensor.dtype));
    mica_tensor one = mica_tensor_packed(tensor.dtype, 1, (int64_t[]){1});
    double number = 0;
    FRONT_TRY(front_status(mica_tensor_load(&one, value, &number)));
    mica_pointwise_desc d = {.expr = "where(1==1,s0,x0)", .x0 = tensor, .y0 = tensor};
    if (tensor.dtype == MICA_S8 || tensor.dtype == MICA_U8 || tensor.dtype == MICA_S32 ||
        tensor.dtype == MICA_U32 || tensor.dtype == MICA_S64)
        snprintf(d.expr, sizeof d.expr, "%s(where(1==1,s0,x0))", mica_dtype_name(tensor.dtype));
    mica_run run = {.scalars = (double[]){number, 0, 0, 0}};
    run.args[MICA_POINTWISE_X0] = run.args[MICA_POINTWISE_Y0] = y;
    return front_run(handle, "pointwise", &d, sizeof d, &run);
}

/* ---- OpTensor: C = op(alpha1 A, alpha2 B) + beta C ---- */

struct cudnnOpTensorStruct {
    front_kind kind;
    bool set;
    cudnnOpTensorOp_t op;
    cudnnDataType_t compute;
    cudnnNanPropagation_t nan;
};

cudnnStatus_t cudnnCreateOpTensorDescriptor(cudnnOpTensorDescriptor_t *descriptor)
{
    front_enter(CALL_cudnnCreateOpTensorDescriptor);
    return front_create(FRONT_OP_TENSOR, sizeof **descriptor, descriptor);
}

cudnnStatus_t cudnnDestroyOpTensorDescriptor(cudnnOpTensorDescriptor_t descriptor)
{
    front_enter(CALL_cudnnDestroyOpTensorDescriptor);
    return front_destroy(descriptor, FRONT_OP_TENSOR);
}

cudnnStatus_t cudnnSetOpTensorDescriptor(cudnnOpTensorDescriptor_t descriptor, cudnnOpTensorOp_t op,
                                         cudnnDataType_t compute, cudnnNanPropagation_t nan)
{
    front_enter(CALL_cudnnSetOpTensorDescriptor);
    FRONT_TRY(front_check(descriptor, FRONT_OP_TENSOR, "opTensorDesc"));
    if ((unsigned)op > CUDNN_OP_TENSOR_NOT)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "operation %d, known are 0 to %d", (int)op,
                          CUDNN_OP_TENSOR_NOT);
    descriptor->op = op;
    descriptor->compute = compute;
    descriptor->nan = nan;
    descriptor->set = true;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetOpTensorDescriptor(cudnnOpTensorDescriptor_t descriptor,
                                         cudnnOpTensorOp_t *op, cudnnDataType_t *compute,
                                         cudnnNanPropagation_t *nan)
{
    front_enter(CALL_cudnnGetOpTensorDescriptor);
    FRONT_TRY(front_check(descriptor, FRONT_OP_TENSOR, "opTensorDesc"));
    if (op) *op = descriptor->op;
    if (compute) *compute = descriptor->compute;
    if (nan) *nan = descriptor->nan;
    return CUDNN_STATUS_SUCCESS;
}

static const struct {
    const char *plain, *numbers; /* with NaN going through, and passed over */
    bool binary;
} op_rows[] = {
    [CUDNN_OP_TENSOR_ADD] = {"s0*x1+s1*x2", NULL, true},
    [CUDNN_OP_TENSOR_MUL] = {"(s0*x1)*(s1*x2)", NULL, true},
    [CUDNN_OP_TENSOR_MIN] = {"min(s0*x1,s1*x2)", "fmin(s0*x1,s1*x2)", true},
    [CUDNN_OP_TENSOR_MAX] = {"max(s0*x1,s1*x2)", "fmax(s0*x1,s1*x2)", true},
    [CUDNN_OP_TENSOR_SQRT] = {"sqrt(s0*x1)", NULL, false},
    [CUDNN_OP_TENSOR_NOT] = {"1-s0*x1", NULL, false},
};

cudnnStatus_t cudnnOpTensor(cudnnHandle_t handle, cudnnOpTensorDescriptor_t op_desc,
                            const void *alpha1, cudnnTensorDescriptor_t a_desc, const void *a,
                            const void *alpha2, cudnnTensorDescriptor_t b_desc, const void *b,
                            const void *beta, cudnnTensorDescriptor_t c_desc, void *c)
{
    front_enter(CALL_cudnnOpTensor);
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    FRONT_TRY(front_check(op_desc, FRONT_OP_TENSOR, "opTensorDesc"));
    if (!op_desc->set) return front_fail(CUDNN_STATUS_BAD_PARAM, "opTensorDesc was never set");
    mica_pointwise_desc d = {0};
    FRONT_TRY(front_tensor(a_desc, "aDesc", &d.x1));
    FRONT_TRY(front_tensor(c_desc, "cDesc", &d.x0));
    FRONT_TRY(check_broadcast(&d.x1, &d.x0, "A"));
    d.y0 = d.x0;
    double scalars[4] = {1, 1, 0, 0};
    const bool f64 = op_desc->compute == CUDNN_DATA_DOUBLE;
    FRONT_TRY(front_scalar(alpha1, f64 ? MICA_F64 : MICA_F32, "alpha1", &scalars[0]));
    FRONT_TRY(front_scalar(beta, f64 ? MICA_F64 : MICA_F32, "beta", &scalars[2]));
    mica_run run = {.scalars = scalars};
    run.args[MICA_POINTWISE_X0] = run.args[MICA_POINTWISE_Y0] = c;
    run.args[MICA_POINTWISE_X0 + 1] = (void *)a;
    if (op_rows[op_desc->op].binary) {
        FRONT_TRY(front_tensor(b_desc, "bDesc", &d.x2));
        FRONT_TRY(check_broadcast(&d.x2, &d.x0, "B"));
        FRONT_TRY(front_scalar(alpha2, f64 ? MICA_F64 : MICA_F32, "alpha2", &scalars[1]));
        run.args[MICA_POINTWISE_X0 + 2] = (void *)b;
    }
    const char *op = op_rows[op_desc->op].plain;
    if (op_desc->nan == CUDNN_NOT_PROPAGATE_NAN && op_rows[op_desc->op].numbers)
        op = op_rows[op_desc->op].numbers;
    snprintf(d.expr, sizeof d.expr, "where(s2==0,%s,%s+s2*x0)", op, op);
    return front_run(handle, "pointwise", &d, sizeof d, &run);
}

/* ---- change of layout and type ---- */

cudnnStatus_t cudnnTransformTensor(cudnnHandle_t handle, const void *alpha,
                                   cudnnTensorDescriptor_t x_desc, const void *x, const void *beta,
                                   cudnnTensorDescriptor_t y_desc, void *y)
{
    front_enter(CALL_cudnnTransformTensor);
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    mica_transform_desc d = {0};
    FRONT_TRY(front_tensor(x_desc, "xDesc", &d.x));
    FRONT_TRY(front_tensor(y_desc, "yDesc", &d.y));
    double scalars[2] = {1, 0};
    FRONT_TRY(front_scalar(alpha, d.y.dtype, "alpha", &scalars[0]));
    FRONT_TRY(front_scalar(beta, d.y.dtype, "beta", &scalars[1]));
    mica_run run = {.scalars = scalars};
    run.args[MICA_TRANSFORM_X] = (void *)x;
    run.args[MICA_TRANSFORM_Y] = y;
    return front_run(handle, "transform", &d, sizeof d, &run);
}
