/* SPDX-License-Identifier: Apache-2.0
 * cudnnNormalization*: batch normalisation by its later names, with an activation in inference,
 * too. Scale and bias have a descriptor, mean and variance another one, which has to be alike. Both
 * algorithms are mica's choice; there is one group. */
#include "batchnorm.h"

static cudnnStatus_t check(cudnnNormMode_t mode, cudnnNormOps_t ops, cudnnNormAlgo_t algorithm,
                           int groups)
{
    if ((unsigned)mode > CUDNN_NORM_PER_CHANNEL)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "mode %d, known are 0 and 1", (int)mode);
    if ((unsigned)ops > CUDNN_NORM_OPS_NORM_ADD_ACTIVATION)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "normOps %d, known are 0 to 2", (int)ops);
    if ((unsigned)algorithm > CUDNN_NORM_ALGO_PERSIST)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "algo %d, known are 0 and 1", (int)algorithm);
    if (groups != 1)
        return front_fail(CUDNN_STATUS_NOT_SUPPORTED, "groupCnt is %d, it has to be 1", groups);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnBatchNormMode_t mode_of(cudnnNormMode_t mode)
{
    return mode == CUDNN_NORM_PER_CHANNEL ? CUDNN_BATCHNORM_SPATIAL
                                          : CUDNN_BATCHNORM_PER_ACTIVATION;
}

/* They have the same numbers. */
static cudnnBatchNormOps_t ops_of(cudnnNormOps_t ops)
{
    return (cudnnBatchNormOps_t)ops;
}

static cudnnStatus_t check_alike(cudnnTensorDescriptor_t parameters,
                                 cudnnTensorDescriptor_t statistics)
{
    mica_tensor a = {0}, b = {0};
    FRONT_TRY(front_tensor(parameters, "normScaleBiasDesc", &a));
    FRONT_TRY(front_tensor(statistics, "normMeanVarDesc", &b));
    bool alike = a.dtype == b.dtype && a.rank == b.rank;
    for (int i = 0; alike && i < a.rank; i++)
        alike = a.dims[i] == b.dims[i] && (a.dims[i] == 1 || a.strides[i] == b.strides[i]);
    if (alike) return CUDNN_STATUS_SUCCESS;
    return front_fail(CUDNN_STATUS_NOT_SUPPORTED,
                      "normScaleBiasDesc and normMeanVarDesc are not alike");
}

cudnnStatus_t cudnnDeriveNormTensorDescriptor(cudnnTensorDescriptor_t parameters,
                                              cudnnTensorDescriptor_t statistics,
                                              cudnnTensorDescriptor_t x_desc, cudnnNormMode_t mode,
                                              int groups)
{
    front_enter(CALL_cudnnDeriveNormTensorDescriptor);
    mica_tensor x = {0};
    int64_t dims[MICA_MAX_RANK];
    FRONT_TRY(front_check(parameters, FRONT_TENSOR, "derivedNormScaleBiasDesc"));
    FRONT_TRY(front_check(statistics, FRONT_TENSOR, "derivedNormMeanVarDesc"));
    FRONT_TRY(check(mode, CUDNN_NORM_OPS_NORM, CUDNN_NORM_ALGO_STANDARD, groups));
    FRONT_TRY(front_tensor(x_desc, "xDesc", &x));
    for (int i = 0; i < x.rank; i++)
        dims[i] = i == 1 || (i && mode == CUDNN_NORM_PER_ACTIVATION) ? x.dims[i] : 1;
    cudnnTensorDescriptor_t const derived[] = {parameters, statistics};
    for (int i = 0; i < 2; i++) {
        derived[i]->type = x.dtype == MICA_F64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
        derived[i]->tensor = mica_tensor_packed(front_dtype(derived[i]->type), x.rank, dims);
        derived[i]->set = true;
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnNormalizationForwardInference(
    cudnnHandle_t handle, cudnnNormMode_t mode, cudnnNormOps_t ops, cudnnNormAlgo_t algorithm,
    const void *alpha, const void *beta, cudnnTensorDescriptor_t x_desc, const void *x,
    cudnnTensorDescriptor_t parameters, const void *scale, const void *bias,
    cudnnTensorDescriptor_t statistics, const void *mean, const void *variance,
    cudnnTensorDescriptor_t z_desc, const void *z, cudnnActivationDescriptor_t activation,
    cudnnTensorDescriptor_t y_desc, void *y, double epsilon, int groups)
{
    front_enter(CALL_cudnnNormalizationForwardInference);
    mica_norm_desc d = {.mode = MICA_NORM_INFER, .eps = front_bn_epsilon(epsilon)};
    mica_run r = {0};
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    FRONT_TRY(check(mode, ops, algorithm, groups));
    FRONT_TRY(check_alike(parameters, statistics));
    FRONT_TRY(front_bn_problem(mode_of(mode), ops_of(ops), activation, x_desc, z_desc, y_desc,
                               parameters, true, false, &d));
    if (ops == CUDNN_NORM_OPS_NORM_ADD_ACTIVATION) r.args[MICA_NORM_RESIDUAL] = (void *)z;
    r.args[MICA_NORM_X] = (void *)x;
    r.args[MICA_NORM_SCALE] = (void *)scale;
    r.args[MICA_NORM_BIAS] = (void *)bias;
    r.args[MICA_NORM_RUNNING_MEAN] = (void *)mean;
    r.args[MICA_NORM_RUNNING_VAR] = (void *)variance;
    return front_bn_run(handle, &d, &r, alpha, beta, y, NULL, 0);
}

cudnnStatus_t cudnnGetNormalizationForwardTrainingWorkspaceSize(
    cudnnHandle_t handle, cudnnNormMode_t mode, cudnnNormOps_t ops, cudnnNormAlgo_t algorithm,
    cudnnTensorDescriptor_t x, cudnnTensorDescriptor_t z, cudnnTensorDescriptor_t y,
    cudnnTensorDescriptor_t parameters, cudnnActivationDescriptor_t activation,
    cudnnTensorDescriptor_t statistics, size_t *size, int groups)
{
    front_enter(CALL_cudnnGetNormalizationForwardTrainingWorkspaceSize);
    mica_norm_desc d = {0};
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    FRONT_TRY(check(mode, ops, algorithm, groups));
    FRONT_TRY(check_alike(parameters, statistics));
    FRONT_TRY(front_bn_problem(mode_of(mode), ops_of(ops), activation, x, z, y, parameters, true,
                               true, &d));
    return front_bn_workspace(handle, &d, size);
}

cudnnStatus_t cudnnGetNormalizationBackwardWorkspaceSize(
    cudnnHandle_t handle, cudnnNormMode_t mode, cudnnNormOps_t ops, cudnnNormAlgo_t algorithm,
    cudnnTensorDescriptor_t x, cudnnTensorDescriptor_t y, cudnnTensorDescriptor_t dy,
    cudnnTensorDescriptor_t dz, cudnnTensorDescriptor_t dx, cudnnTensorDescriptor_t parameters,
    cudnnActivationDescriptor_t activation, cudnnTensorDescriptor_t statistics, size_t *size,
    int groups)
{
    (void)y, (void)dz;
    front_enter(CALL_cudnnGetNormalizationBackwardWorkspaceSize);
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    FRONT_TRY(check(mode, ops, algorithm, groups));
    FRONT_TRY(check_alike(parameters, statistics));
    return front_bn_backward_size(handle, mode_of(mode), ops_of(ops), x, dy, dx, parameters,
                                  activation, size);
}

/* None is asked for, as for batch normalisation. */
cudnnStatus_t cudnnGetNormalizationTrainingReserveSpaceSize(
    cudnnHandle_t handle, cudnnNormMode_t mode, cudnnNormOps_t ops, cudnnNormAlgo_t algorithm,
    cudnnActivationDescriptor_t activation, cudnnTensorDescriptor_t x_desc, size_t *size,
    int groups)
{
    front_enter(CALL_cudnnGetNormalizationTrainingReserveSpaceSize);
    mica_tensor x = {0};
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    FRONT_TRY(check(mode, ops, algorithm, groups));
    FRONT_TRY(front_bn_modes(mode_of(mode), ops_of(ops), activation));
    FRONT_TRY(front_tensor(x_desc, "xDesc", &x));
    FRONT_TRY(front_given(size, "sizeInBytes"));
    *size = 0;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnNormalizationForwardTraining(
    cudnnHandle_t handle, cudnnNormMode_t mode, cudnnNormOps_t ops, cudnnNormAlgo_t algorithm,
    const void *alpha, const void *beta, cudnnTensorDescriptor_t x_desc, const void *x,
    cudnnTensorDescriptor_t parameters, const void *scale, const void *bias, double factor,
    cudnnTensorDescriptor_t statistics, void *running_mean, void *running_variance, double epsilon,
    void *saved_mean, void *saved_inverse, cudnnActivationDescriptor_t activation,
    cudnnTensorDescriptor_t z_desc, const void *z, cudnnTensorDescriptor_t y_desc, void *y,
    void *workspace, size_t workspace_bytes, void *reserve, size_t reserve_bytes, int groups)
{
    (void)reserve, (void)reserve_bytes;
    front_enter(CALL_cudnnNormalizationForwardTraining);
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    FRONT_TRY(check(mode, ops, algorithm, groups));
    FRONT_TRY(check_alike(parameters, statistics));
    return front_bn_train(handle, mode_of(mode), ops_of(ops), alpha, beta, x_desc, x, z_desc, z,
                          y_desc, y, parameters, scale, bias, factor, running_mean,
                          running_variance, epsilon, saved_mean, saved_inverse, activation,
                          workspace, workspace_bytes);
}

cudnnStatus_t cudnnNormalizationBackward(
    cudnnHandle_t handle, cudnnNormMode_t mode, cudnnNormOps_t ops, cudnnNormAlgo_t algorithm,
    const void *alpha_data, const void *beta_data, const void *alpha_parameter,
    const void *beta_parameter, cudnnTensorDescriptor_t x_desc, const void *x,
    cudnnTensorDescriptor_t y_desc, const void *y, cudnnTensorDescriptor_t dy_desc, const void *dy,
    cudnnTensorDescriptor_t dz_desc, void *dz, cudnnTensorDescriptor_t dx_desc, void *dx,
    cudnnTensorDescriptor_t parameters, const void *scale, const void *bias, void *dscale,
    void *dbias, double epsilon, cudnnTensorDescriptor_t statistics, const void *saved_mean,
    const void *saved_inverse, cudnnActivationDescriptor_t activation, void *workspace,
    size_t workspace_bytes, void *reserve, size_t reserve_bytes, int groups)
{
    (void)bias, (void)reserve, (void)reserve_bytes;
    front_enter(CALL_cudnnNormalizationBackward);
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    FRONT_TRY(check(mode, ops, algorithm, groups));
    FRONT_TRY(check_alike(parameters, statistics));
    const front_gradients g = {.mode = mode_of(mode),
                               .ops = ops_of(ops),
                               .alpha_data = alpha_data,
                               .beta_data = beta_data,
                               .alpha_parameter = alpha_parameter,
                               .beta_parameter = beta_parameter,
                               .x_desc = x_desc,
                               .y_desc = y_desc,
                               .dy_desc = dy_desc,
                               .dz_desc = dz_desc,
                               .dx_desc = dx_desc,
                               .parameters = parameters,
                               .x = x,
                               .y = y,
                               .dy = dy,
                               .scale = scale,
                               .mean = saved_mean,
                               .inverse = saved_inverse,
                               .dz = dz,
                               .dx = dx,
                               .dscale = dscale,
                               .dbias = dbias,
                               .epsilon = epsilon,
                               .activation = activation,
                               .workspace = workspace,
                               .bytes = workspace_bytes};
    return front_bn_backward(handle, &g);
}
