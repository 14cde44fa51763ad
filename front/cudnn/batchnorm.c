/* SPDX-License-Identifier: Apache-2.0
 * Batch normalisation: sizes, derived descriptors, training and inference forward. The
 * workspace is that of mica's plan; no reserve is asked for, whatever is given is left alone.
 * Statistics are those of mica: the saved one is 1 / sqrt(variance + epsilon), the running variance
 * is unbiased. */
#include "batchnorm.h"
#include "compare.h"

#include <float.h>

cudnnStatus_t front_bn_modes(cudnnBatchNormMode_t mode, cudnnBatchNormOps_t ops,
                             cudnnActivationDescriptor_t activation)
{
    if ((unsigned)mode > CUDNN_BATCHNORM_SPATIAL_PERSISTENT)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "mode %d, known are 0 to 2", (int)mode);
    if ((unsigned)ops > CUDNN_BATCHNORM_OPS_BN_ADD_ACTIVATION)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "bnOps %d, known are 0 to 2", (int)ops);
    if (ops == CUDNN_BATCHNORM_OPS_BN) return CUDNN_STATUS_SUCCESS;
    FRONT_TRY(front_check(activation, FRONT_ACTIVATION, "activationDesc"));
    if (activation->mode != CUDNN_ACTIVATION_RELU && activation->mode != CUDNN_ACTIVATION_IDENTITY)
        return front_fail(CUDNN_STATUS_NOT_SUPPORTED,
                          "activation %d behind a batch normalisation, served are relu (1) and "
                          "identity (5)",
                          (int)activation->mode);
    return CUDNN_STATUS_SUCCESS;
}

/* Everything behind the first dimension as one. */
static cudnnStatus_t flatten(const char *argument, mica_tensor *t)
{
    mica_tensor flat = {.dtype = t->dtype, .rank = 2, .dims = {t->dims[0], 1}};
    int64_t step = 1;
    for (int i = t->rank - 1; i > 0; i--) {
        if (t->dims[i] != 1 && t->strides[i] != step)
            return front_fail(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT,
                              "%s: PER_ACTIVATION takes C, H and W packed in that order", argument);
        step *= t->dims[i];
    }
    flat.dims[1] = step;
    flat.strides[0] = t->strides[0];
    flat.strides[1] = 1;
    *t = flat;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t front_bn_view(const front_bn *bn, cudnnTensorDescriptor_t descriptor,
                            const char *argument, mica_tensor *tensor)
{
    FRONT_TRY(front_tensor(descriptor, argument, tensor));
    if (tensor->rank < 2) return front_fail(CUDNN_STATUS_BAD_PARAM, "%s has no channels", argument);
    return bn->mode == CUDNN_BATCHNORM_PER_ACTIVATION ? flatten(argument, tensor)
                                                      : CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t front_bn_parameters(cudnnBatchNormMode_t mode, cudnnTensorDescriptor_t parameters,
                                  const mica_tensor *x, front_bn *bn)
{
    mica_tensor t = {0};
    FRONT_TRY(front_tensor(parameters, "bnScaleBiasMeanVarDesc", &t));
    if (mode == CUDNN_BATCHNORM_PER_ACTIVATION) {
        FRONT_TRY(flatten("bnScaleBiasMeanVarDesc", &t));
    } else {
        for (int i = 2; i < t.rank; i++)
            if (t.dims[i] != 1)
                return front_fail(
                    CUDNN_STATUS_BAD_PARAM,
                    "bnScaleBiasMeanVarDesc has %lld at dimension %d, a spatial mode 1",
                    (long long)t.dims[i], i);
    }
    if (t.rank < 2 || t.dims[0] != 1 || t.dims[1] != x->dims[1])
        return front_fail(CUDNN_STATUS_BAD_PARAM, "bnScaleBiasMeanVarDesc is not 1 x %lld",
                          (long long)x->dims[1]);
    bn->parameters =
        (mica_tensor){.dtype = t.dtype, .rank = 1, .dims = {t.dims[1]}, .strides = {t.strides[1]}};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDeriveBNTensorDescriptor(cudnnTensorDescriptor_t derived,
                                            cudnnTensorDescriptor_t x_desc,
                                            cudnnBatchNormMode_t mode)
{
    front_enter(CALL_cudnnDeriveBNTensorDescriptor);
    FRONT_TRY(front_check(derived, FRONT_TENSOR, "derivedBnDesc"));
    FRONT_TRY(front_bn_modes(mode, CUDNN_BATCHNORM_OPS_BN, NULL));
    mica_tensor x = {0};
    FRONT_TRY(front_tensor(x_desc, "xDesc", &x));
    int64_t dims[MICA_MAX_RANK];
    for (int i = 0; i < x.rank; i++)
        dims[i] = i == 1 || (i && mode == CUDNN_BATCHNORM_PER_ACTIVATION) ? x.dims[i] : 1;
    derived->type = x.dtype == MICA_F64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
    derived->tensor = mica_tensor_packed(front_dtype(derived->type), x.rank, dims);
    derived->set = true;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t ops,
    cudnnActivationDescriptor_t activation, cudnnTensorDescriptor_t x_desc, size_t *size)
{
    front_enter(CALL_cudnnGetBatchNormalizationTrainingExReserveSpaceSize);
    mica_tensor x = {0};
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    FRONT_TRY(front_bn_modes(mode, ops, activation));
    FRONT_TRY(front_tensor(x_desc, "xDesc", &x));
    FRONT_TRY(front_given(size, "sizeInBytes"));
    *size = 0;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t front_bn_workspace(cudnnHandle_t handle, const mica_norm_desc *d, size_t *size)
{
    FRONT_TRY(front_given(size, "sizeInBytes"));
    mica_plan *plan = NULL;
    FRONT_TRY(front_plan(handle, "norm", d, sizeof *d, NULL, &plan));
    *size = mica_plan_workspace(plan);
    mica_plan_destroy(plan);
    return CUDNN_STATUS_SUCCESS;
}

/* ---- forward ---- */

cudnnStatus_t front_bn_run(cudnnHandle_t handle, mica_norm_desc *d, mica_run *r, const void *alpha,
                           const void *beta, void *y, void *workspace, size_t bytes)
{
    double scale = 1, old = 0;
    FRONT_TRY(front_scalar(alpha, d->x.dtype, "alpha", &scale));
    FRONT_TRY(front_scalar(beta, d->x.dtype, "beta", &old));
    const bool plain = scale == 1 && old == 0;
    const mica_tensor to = d->y;
    void *memory = y;
    if (!plain) FRONT_TRY(front_temporary_like(handle, 1, &to, &d->y, &memory));
    r->args[MICA_NORM_Y] = memory;
    FRONT_TRY(front_run_in(handle, "norm", d, sizeof *d, r, workspace, bytes));
    return plain ? CUDNN_STATUS_SUCCESS : front_blend(handle, scale, &d->y, memory, old, &to, y);
}

double front_bn_epsilon(double value)
{
    return value == 0 ? FLT_MIN : value;
}

cudnnStatus_t plain_cudnnBatchNormalizationForwardInference(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, const void *alpha, const void *beta,
    cudnnTensorDescriptor_t x_desc, const void *x, cudnnTensorDescriptor_t y_desc, void *y,
    cudnnTensorDescriptor_t parameters, const void *scale, const void *bias, const void *mean,
    const void *variance, double epsilon)
{
    front_enter(CALL_cudnnBatchNormalizationForwardInference);
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    FRONT_TRY(front_bn_modes(mode, CUDNN_BATCHNORM_OPS_BN, NULL));
    front_bn bn = {.mode = mode};
    mica_norm_desc d = {
        .kind = MICA_NORM_BATCH, .mode = MICA_NORM_INFER, .eps = front_bn_epsilon(epsilon)};
    FRONT_TRY(front_bn_view(&bn, x_desc, "xDesc", &d.x));
    FRONT_TRY(front_bn_view(&bn, y_desc, "yDesc", &d.y));
    FRONT_TRY(front_bn_parameters(mode, parameters, &d.x, &bn));
    d.scale = d.bias = d.running_mean = d.running_var = bn.parameters;
    mica_run r = {0};
    r.args[MICA_NORM_X] = (void *)x;
    r.args[MICA_NORM_SCALE] = (void *)scale;
    r.args[MICA_NORM_BIAS] = (void *)bias;
    r.args[MICA_NORM_RUNNING_MEAN] = (void *)mean;
    r.args[MICA_NORM_RUNNING_VAR] = (void *)variance;
    return front_bn_run(handle, &d, &r, alpha, beta, y, NULL, 0);
}

cudnnStatus_t front_bn_problem(cudnnBatchNormMode_t mode, cudnnBatchNormOps_t ops,
                               cudnnActivationDescriptor_t activation, cudnnTensorDescriptor_t x,
                               cudnnTensorDescriptor_t z, cudnnTensorDescriptor_t y,
                               cudnnTensorDescriptor_t parameters, bool running, bool saved,
                               mica_norm_desc *d)
{
    FRONT_TRY(front_bn_modes(mode, ops, activation));
    front_bn bn = {.mode = mode};
    d->kind = MICA_NORM_BATCH;
    FRONT_TRY(front_bn_view(&bn, x, "xDesc", &d->x));
    FRONT_TRY(front_bn_view(&bn, y, "yDesc", &d->y));
    FRONT_TRY(front_bn_parameters(mode, parameters, &d->x, &bn));
    d->scale = d->bias = bn.parameters;
    if (running) d->running_mean = d->running_var = bn.parameters;
    if (saved) d->mean = d->rstd = bn.parameters;
    if (ops != CUDNN_BATCHNORM_OPS_BN && activation->mode == CUDNN_ACTIVATION_RELU)
        d->act = MICA_ACT_RELU;
    if (ops == CUDNN_BATCHNORM_OPS_BN_ADD_ACTIVATION)
        FRONT_TRY(front_bn_view(&bn, z, "zDesc", &d->residual));
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t ops,
    cudnnTensorDescriptor_t x, cudnnTensorDescriptor_t z, cudnnTensorDescriptor_t y,
    cudnnTensorDescriptor_t parameters, cudnnActivationDescriptor_t activation, size_t *size)
{
    front_enter(CALL_cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize);
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    mica_norm_desc d = {0};
    FRONT_TRY(front_bn_problem(mode, ops, activation, x, z, y, parameters, true, true, &d));
    return front_bn_workspace(handle, &d, size);
}

cudnnStatus_t
front_bn_train(cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t ops,
               const void *alpha, const void *beta, cudnnTensorDescriptor_t x_desc, const void *x,
               cudnnTensorDescriptor_t z_desc, const void *z, cudnnTensorDescriptor_t y_desc,
               void *y, cudnnTensorDescriptor_t parameters, const void *scale, const void *bias,
               double factor, void *running_mean, void *running_variance, double epsilon,
               void *saved_mean, void *saved_inverse, cudnnActivationDescriptor_t activation,
               void *workspace, size_t bytes)
{
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    if (!running_mean != !running_variance || !saved_mean != !saved_inverse)
        return front_fail(CUDNN_STATUS_BAD_PARAM,
                          "mean and variance, running and saved: both are given or neither");
    mica_norm_desc d = {.eps = front_bn_epsilon(epsilon),
                        .momentum = factor == 0 ? MICA_ZERO : factor};
    FRONT_TRY(front_bn_problem(mode, ops, activation, x_desc, z_desc, y_desc, parameters,
                               running_mean, saved_mean, &d));
    mica_run r = {0};
    if (ops == CUDNN_BATCHNORM_OPS_BN_ADD_ACTIVATION) r.args[MICA_NORM_RESIDUAL] = (void *)z;
    r.args[MICA_NORM_X] = (void *)x;
    r.args[MICA_NORM_SCALE] = (void *)scale;
    r.args[MICA_NORM_BIAS] = (void *)bias;
    r.args[MICA_NORM_RUNNING_MEAN] = running_mean;
    r.args[MICA_NORM_RUNNING_VAR] = running_variance;
    r.args[MICA_NORM_MEAN] = saved_mean;
    r.args[MICA_NORM_RSTD] = saved_inverse;
    return front_bn_run(handle, &d, &r, alpha, beta, y, workspace, bytes);
}

cudnnStatus_t plain_cudnnBatchNormalizationForwardTraining(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, const void *alpha, const void *beta,
    cudnnTensorDescriptor_t x_desc, const void *x, cudnnTensorDescriptor_t y_desc, void *y,
    cudnnTensorDescriptor_t parameters, const void *scale, const void *bias, double factor,
    void *running_mean, void *running_variance, double epsilon, void *saved_mean,
    void *saved_inverse)
{
    front_enter(CALL_cudnnBatchNormalizationForwardTraining);
    return front_bn_train(handle, mode, CUDNN_BATCHNORM_OPS_BN, alpha, beta, x_desc, x, NULL, NULL,
                          y_desc, y, parameters, scale, bias, factor, running_mean,
                          running_variance, epsilon, saved_mean, saved_inverse, NULL, NULL, 0);
}

cudnnStatus_t plain_cudnnBatchNormalizationForwardTrainingEx(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t ops, const void *alpha,
    const void *beta, cudnnTensorDescriptor_t x_desc, const void *x, cudnnTensorDescriptor_t z_desc,
    const void *z, cudnnTensorDescriptor_t y_desc, void *y, cudnnTensorDescriptor_t parameters,
    const void *scale, const void *bias, double factor, void *running_mean, void *running_variance,
    double epsilon, void *saved_mean, void *saved_inverse, cudnnActivationDescriptor_t activation,
    void *workspace, size_t workspace_bytes, void *reserve, size_t reserve_bytes)
{
    (void)reserve, (void)reserve_bytes;
    front_enter(CALL_cudnnBatchNormalizationForwardTrainingEx);
    return front_bn_train(handle, mode, ops, alpha, beta, x_desc, x, z_desc, z, y_desc, y,
                          parameters, scale, bias, factor, running_mean, running_variance, epsilon,
                          saved_mean, saved_inverse, activation, workspace, workspace_bytes);
}
