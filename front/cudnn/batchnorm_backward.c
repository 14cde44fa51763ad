/* SPDX-License-Identifier: Apache-2.0
 * Gradients of batch normalisation. */
#include "batchnorm.h"
#include "compare.h"

/* Slots of temporaries. */
enum { MASKED = 1, DX, DSCALE, DBIAS, SAVED, Y_AGAIN };

/* The statistics, where the caller has not kept them: forward once more. */
static cudnnStatus_t statistics(cudnnHandle_t handle, const mica_norm_desc *backward, const void *x,
                                const void *scale, double eps, void **mean, void **rstd)
{
    mica_norm_desc d = {.kind = MICA_NORM_BATCH,
                        .x = backward->x,
                        .scale = backward->scale,
                        .mean = backward->mean,
                        .rstd = backward->rstd,
                        .eps = eps};
    size_t bytes = (size_t)mica_tensor_span(&d.mean, NULL);
    size_t step = (bytes + 255) / 256 * 256;
    void *saved = NULL, *y = NULL;
    d.y = mica_tensor_packed(d.x.dtype, d.x.rank, d.x.dims);
    FRONT_TRY(front_temporary(handle, SAVED, 2 * step, &saved));
    FRONT_TRY(front_temporary(handle, Y_AGAIN, (size_t)mica_tensor_span(&d.y, NULL), &y));
    mica_run r = {0};
    r.args[MICA_NORM_X] = (void *)x;
    r.args[MICA_NORM_SCALE] = (void *)scale;
    r.args[MICA_NORM_Y] = y;
    r.args[MICA_NORM_MEAN] = *mean = saved;
    r.args[MICA_NORM_RSTD] = *rstd = (char *)saved + step;
    return front_run(handle, "norm", &d, sizeof d, &r);
}

/* dy where relu let it pass, which y tells. */
static cudnnStatus_t mask(cudnnHandle_t handle, const mica_tensor *dy_tensor, const void *dy,
                          const mica_tensor *y_tensor, const void *y, const mica_tensor *to,
                          void *masked)
{
    mica_pointwise_desc d = {
        .expr = "where(x1>0,x0,0)", .x0 = *dy_tensor, .x1 = *y_tensor, .y0 = *to};
    mica_run r = {0};
    r.args[MICA_POINTWISE_X0] = (void *)dy;
    r.args[MICA_POINTWISE_X0 + 1] = (void *)y;
    r.args[MICA_POINTWISE_Y0] = masked;
    return front_run(handle, "pointwise", &d, sizeof d, &r);
}

/* The gradient in front of the activation: dy, or what relu let pass of it, which is that of z. */
static cudnnStatus_t before_activation(cudnnHandle_t handle, const front_gradients *g,
                                       const front_bn *bn, mica_norm_desc *d, const void **dy)
{
    const bool relu =
        g->ops != CUDNN_BATCHNORM_OPS_BN && g->activation->mode == CUDNN_ACTIVATION_RELU;
    const bool wanted = g->ops == CUDNN_BATCHNORM_OPS_BN_ADD_ACTIVATION && g->dz;
    if (!relu && !wanted) return CUDNN_STATUS_SUCCESS;
    mica_tensor y = {0}, to = {0};
    void *masked = g->dz;
    if (wanted) {
        FRONT_TRY(front_bn_view(bn, g->dz_desc, "dzDesc", &to));
    } else {
        to = mica_tensor_packed(d->dy.dtype, d->dy.rank, d->dy.dims);
        FRONT_TRY(front_temporary(handle, MASKED, (size_t)mica_tensor_span(&to, NULL), &masked));
    }
    if (!relu) return front_blend(handle, 1, &d->dy, g->dy, 0, &to, masked);
    FRONT_TRY(front_bn_view(bn, g->y_desc, "yDesc", &y));
    FRONT_TRY(front_given(g->y, "yData"));
    FRONT_TRY(mask(handle, &d->dy, g->dy, &y, g->y, &to, masked));
    d->dy = to;
    *dy = masked;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t front_bn_backward_size(cudnnHandle_t handle, cudnnBatchNormMode_t mode,
                                     cudnnBatchNormOps_t ops, cudnnTensorDescriptor_t x,
                                     cudnnTensorDescriptor_t dy, cudnnTensorDescriptor_t dx,
                                     cudnnTensorDescriptor_t parameters,
                                     cudnnActivationDescriptor_t activation, size_t *size)
{
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    FRONT_TRY(front_bn_modes(mode, ops, activation));
    front_bn bn = {.mode = mode};
    mica_norm_desc d = {.pass = MICA_NORM_BWD, .kind = MICA_NORM_BATCH};
    FRONT_TRY(front_bn_view(&bn, x, "xDesc", &d.x));
    FRONT_TRY(front_bn_view(&bn, dy, "dyDesc", &d.dy));
    FRONT_TRY(front_bn_view(&bn, dx, "dxDesc", &d.dx));
    FRONT_TRY(front_bn_parameters(mode, parameters, &d.x, &bn));
    d.scale = d.mean = d.rstd = d.dscale = d.dbias = bn.parameters;
    return front_bn_workspace(handle, &d, size);
}

cudnnStatus_t cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t ops,
    cudnnTensorDescriptor_t x, cudnnTensorDescriptor_t y, cudnnTensorDescriptor_t dy,
    cudnnTensorDescriptor_t dz, cudnnTensorDescriptor_t dx, cudnnTensorDescriptor_t parameters,
    cudnnActivationDescriptor_t activation, size_t *size)
{
    (void)y, (void)dz;
    front_enter(CALL_cudnnGetBatchNormalizationBackwardExWorkspaceSize);
    return front_bn_backward_size(handle, mode, ops, x, dy, dx, parameters, activation, size);
}

cudnnStatus_t front_bn_backward(cudnnHandle_t handle, const front_gradients *g)
{
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    FRONT_TRY(front_bn_modes(g->mode, g->ops, g->activation));
    front_bn bn = {.mode = g->mode};
    mica_norm_desc d = {.pass = MICA_NORM_BWD, .kind = MICA_NORM_BATCH};
    mica_tensor dx = {0};
    FRONT_TRY(front_bn_view(&bn, g->x_desc, "xDesc", &d.x));
    FRONT_TRY(front_bn_view(&bn, g->dy_desc, "dyDesc", &d.dy));
    FRONT_TRY(front_bn_view(&bn, g->dx_desc, "dxDesc", &dx));
    FRONT_TRY(front_bn_parameters(g->mode, g->parameters, &d.x, &bn));
    double scalars[2] = {1, 0}, factors[2] = {1, 0};
    FRONT_TRY(front_scalar(g->alpha_data, d.x.dtype, "alphaDataDiff", &scalars[0]));
    FRONT_TRY(front_scalar(g->beta_data, d.x.dtype, "betaDataDiff", &scalars[1]));
    FRONT_TRY(front_scalar(g->alpha_parameter, d.x.dtype, "alphaParamDiff", &factors[0]));
    FRONT_TRY(front_scalar(g->beta_parameter, d.x.dtype, "betaParamDiff", &factors[1]));
    d.scale = d.mean = d.rstd = d.dscale = d.dbias = bn.parameters;
    d.dx = dx;
    const void *dy = g->dy;
    FRONT_TRY(before_activation(handle, g, &bn, &d, &dy));
    void *mean = (void *)g->mean, *rstd = (void *)g->inverse;
    if (!mean || !rstd)
        FRONT_TRY(
            statistics(handle, &d, g->x, g->scale, front_bn_epsilon(g->epsilon), &mean, &rstd));
    /* dx takes beta along; the rest is brought together behind the run. */
    const bool plain_dx = scalars[0] == 1, plain = factors[0] == 1 && factors[1] == 0;
    void *dx_at = g->dx, *dscale_at = g->dscale, *dbias_at = g->dbias;
    if (!plain_dx) FRONT_TRY(front_temporary_like(handle, DX, &dx, &d.dx, &dx_at));
    if (!plain) {
        FRONT_TRY(front_temporary_like(handle, DSCALE, &bn.parameters, &d.dscale, &dscale_at));
        FRONT_TRY(front_temporary_like(handle, DBIAS, &bn.parameters, &d.dbias, &dbias_at));
    }
    mica_run r = {.scalars = (double[]){plain_dx ? scalars[1] : 0}};
    r.args[MICA_NORM_X] = (void *)g->x;
    r.args[MICA_NORM_DY] = (void *)dy;
    r.args[MICA_NORM_SCALE] = (void *)g->scale;
    r.args[MICA_NORM_MEAN] = mean;
    r.args[MICA_NORM_RSTD] = rstd;
    r.args[MICA_NORM_DX] = dx_at;
    r.args[MICA_NORM_DSCALE] = dscale_at;
    r.args[MICA_NORM_DBIAS] = dbias_at;
    FRONT_TRY(front_run_in(handle, "norm", &d, sizeof d, &r, g->workspace, g->bytes));
    if (!plain_dx) FRONT_TRY(front_blend(handle, scalars[0], &d.dx, dx_at, scalars[1], &dx, g->dx));
    if (!plain) {
        FRONT_TRY(front_blend(handle, factors[0], &d.dscale, dscale_at, factors[1], &bn.parameters,
                              g->dscale));
        FRONT_TRY(front_blend(handle, factors[0], &d.dbias, dbias_at, factors[1], &bn.parameters,
                              g->dbias));
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t plain_cudnnBatchNormalizationBackward(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, const void *alpha_data, const void *beta_data,
    const void *alpha_parameter, const void *beta_parameter, cudnnTensorDescriptor_t x_desc,
    const void *x, cudnnTensorDescriptor_t dy_desc, const void *dy, cudnnTensorDescriptor_t dx_desc,
    void *dx, cudnnTensorDescriptor_t parameters, const void *scale, void *dscale, void *dbias,
    double epsilon, const void *saved_mean, const void *saved_inverse)
{
    front_enter(CALL_cudnnBatchNormalizationBackward);
    front_gradients g = {.mode = mode,
                         .ops = CUDNN_BATCHNORM_OPS_BN,
                         .alpha_data = alpha_data,
                         .beta_data = beta_data,
                         .alpha_parameter = alpha_parameter,
                         .beta_parameter = beta_parameter,
                         .x_desc = x_desc,
                         .dy_desc = dy_desc,
                         .dx_desc = dx_desc,
                         .parameters = parameters,
                         .x = x,
                         .dy = dy,
                         .scale = scale,
                         .mean = saved_mean,
                         .inverse = saved_inverse,
                         .dx = dx,
                         .dscale = dscale,
                         .dbias = dbias,
                         .epsilon = epsilon};
    return front_bn_backward(handle, &g);
}

cudnnStatus_t plain_cudnnBatchNormalizationBackwardEx(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t ops,
    const void *alpha_data, const void *beta_data, const void *alpha_parameter,
    const void *beta_parameter, cudnnTensorDescriptor_t x_desc, const void *x,
    cudnnTensorDescriptor_t y_desc, const void *y, cudnnTensorDescriptor_t dy_desc, const void *dy,
    cudnnTensorDescriptor_t dz_desc, void *dz, cudnnTensorDescriptor_t dx_desc, void *dx,
    cudnnTensorDescriptor_t parameters, const void *scale, const void *bias, void *dscale,
    void *dbias, double epsilon, const void *saved_mean, const void *saved_inverse,
    cudnnActivationDescriptor_t activation, void *workspace, size_t workspace_bytes, void *reserve,
    size_t reserve_bytes)
{
    (void)bias, (void)reserve, (void)reserve_bytes;
    front_enter(CALL_cudnnBatchNormalizationBackwardEx);
    front_gradients g = {.mode = mode,
                         .ops = ops,
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
