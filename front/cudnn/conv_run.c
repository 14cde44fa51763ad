/* SPDX-License-Identifier: Apache-2.0
 * Convolutions, forward, of data and of filters; with bias and activation; the gradient of a bias.
 * The algorithm that is asked for decides nothing: mica chooses for the workspace that is given. */
#include "compare.h"
#include "conv.h"

static cudnnStatus_t run(cudnnHandle_t handle, const mica_conv_desc *d, const void *alpha,
                         const void *beta, const void *x, const void *w, const void *y,
                         void *workspace, size_t bytes)
{
    double scalars[2] = {1, 0};
    FRONT_TRY(front_scalar(alpha, d->x.dtype, "alpha", &scalars[MICA_CONV_ALPHA]));
    FRONT_TRY(front_scalar(beta, d->x.dtype, "beta", &scalars[MICA_CONV_BETA]));
    mica_run r = {.scalars = scalars};
    r.args[MICA_CONV_X] = (void *)x;
    r.args[MICA_CONV_W] = (void *)w;
    r.args[MICA_CONV_Y] = (void *)y;
    return front_run_in(handle, "conv", d, sizeof *d, &r, workspace, bytes);
}

cudnnStatus_t plain_cudnnConvolutionForward(cudnnHandle_t handle, const void *alpha,
                                            cudnnTensorDescriptor_t x_desc, const void *x,
                                            cudnnFilterDescriptor_t w_desc, const void *w,
                                            cudnnConvolutionDescriptor_t conv,
                                            cudnnConvolutionFwdAlgo_t algorithm, void *workspace,
                                            size_t bytes, const void *beta,
                                            cudnnTensorDescriptor_t y_desc, void *y)
{
    front_enter(CALL_cudnnConvolutionForward);
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    FRONT_TRY(front_conv_algorithm((int)algorithm, CUDNN_CONVOLUTION_FWD_ALGO_COUNT));
    mica_conv_desc d;
    FRONT_TRY(front_conv(MICA_CONV_FWD, x_desc, w_desc, conv, y_desc, &d));
    return run(handle, &d, alpha, beta, x, w, y, workspace, bytes);
}

cudnnStatus_t plain_cudnnConvolutionBackwardData(cudnnHandle_t handle, const void *alpha,
                                                 cudnnFilterDescriptor_t w_desc, const void *w,
                                                 cudnnTensorDescriptor_t dy_desc, const void *dy,
                                                 cudnnConvolutionDescriptor_t conv,
                                                 cudnnConvolutionBwdDataAlgo_t algorithm,
                                                 void *workspace, size_t bytes, const void *beta,
                                                 cudnnTensorDescriptor_t dx_desc, void *dx)
{
    front_enter(CALL_cudnnConvolutionBackwardData);
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    FRONT_TRY(front_conv_algorithm((int)algorithm, CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT));
    mica_conv_desc d;
    FRONT_TRY(front_conv(MICA_CONV_DGRAD, dx_desc, w_desc, conv, dy_desc, &d));
    return run(handle, &d, alpha, beta, dx, w, dy, workspace, bytes);
}

cudnnStatus_t plain_cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void *alpha,
                                                   cudnnTensorDescriptor_t x_desc, const void *x,
                                                   cudnnTensorDescriptor_t dy_desc, const void *dy,
                                                   cudnnConvolutionDescriptor_t conv,
                                                   cudnnConvolutionBwdFilterAlgo_t algorithm,
                                                   void *workspace, size_t bytes, const void *beta,
                                                   cudnnFilterDescriptor_t dw_desc, void *dw)
{
    front_enter(CALL_cudnnConvolutionBackwardFilter);
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    FRONT_TRY(front_conv_algorithm((int)algorithm, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT));
    mica_conv_desc d;
    FRONT_TRY(front_conv(MICA_CONV_WGRAD, x_desc, dw_desc, conv, dy_desc, &d));
    return run(handle, &d, alpha, beta, x, dw, dy, workspace, bytes);
}

/* A descriptor of 1 x C x 1 x 1 as C elements. */
static cudnnStatus_t channel_vector(cudnnTensorDescriptor_t descriptor, const char *argument,
                                    int64_t channels, mica_tensor *vector)
{
    mica_tensor t = {0};
    FRONT_TRY(front_tensor(descriptor, argument, &t));
    bool fits = t.rank >= 2 && t.dims[1] == channels;
    for (int i = 0; i < t.rank; i++)
        if (i != 1 && t.dims[i] != 1) fits = false;
    if (!fits)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "%s is not 1 x %lld x 1 x 1", argument,
                          (long long)channels);
    *vector =
        (mica_tensor){.dtype = t.dtype, .rank = 1, .dims = {t.dims[1]}, .strides = {t.strides[1]}};
    return CUDNN_STATUS_SUCCESS;
}

/* y = act(alpha1 conv(x) + alpha2 z + bias). z is not read where alpha2 is 0; it is brought into y,
 * unless it lies there, and conv adds alpha2 times y, or it is added as it is. */
cudnnStatus_t plain_cudnnConvolutionBiasActivationForward(
    cudnnHandle_t handle, const void *alpha1, cudnnTensorDescriptor_t x_desc, const void *x,
    cudnnFilterDescriptor_t w_desc, const void *w, cudnnConvolutionDescriptor_t conv,
    cudnnConvolutionFwdAlgo_t algorithm, void *workspace, size_t bytes, const void *alpha2,
    cudnnTensorDescriptor_t z_desc, const void *z, cudnnTensorDescriptor_t bias_desc,
    const void *bias, cudnnActivationDescriptor_t activation, cudnnTensorDescriptor_t y_desc,
    void *y)
{
    front_enter(CALL_cudnnConvolutionBiasActivationForward);
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    FRONT_TRY(front_conv_algorithm((int)algorithm, CUDNN_CONVOLUTION_FWD_ALGO_COUNT));
    mica_conv_desc d;
    FRONT_TRY(front_conv(MICA_CONV_FWD, x_desc, w_desc, conv, y_desc, &d));
    double scalars[2] = {1, 0}, addend = 0;
    FRONT_TRY(front_scalar(alpha1, d.x.dtype, "alpha1", &scalars[MICA_CONV_ALPHA]));
    FRONT_TRY(front_scalar(alpha2, d.x.dtype, "alpha2", &addend));
    mica_act act = MICA_ACT_IDENTITY;
    FRONT_TRY(front_activation(activation, &act, &d.act_a, &d.act_b));
    FRONT_TRY(channel_vector(bias_desc, "biasDesc", d.y.dims[1], &d.bias));
    mica_run r = {.scalars = scalars};
    int steps = 0;
    d.epilogue[steps++] = MICA_STEP_BIAS;
    if (addend != 0) {
        mica_tensor z_tensor = {0};
        FRONT_TRY(front_tensor(z_desc, "zDesc", &z_tensor));
        if (z != y && addend == 1) {
            d.residual = z_tensor;
            d.epilogue[steps++] = MICA_STEP_RESIDUAL;
            r.args[MICA_CONV_RESIDUAL] = (void *)z;
        } else {
            if (z != y) FRONT_TRY(front_blend(handle, 1, &z_tensor, z, 0, &d.y, y));
            scalars[MICA_CONV_BETA] = addend;
        }
    }
    if (act != MICA_ACT_IDENTITY) d.epilogue[steps++] = MICA_STEP_ACT + (int)act;
    r.args[MICA_CONV_X] = (void *)x;
    r.args[MICA_CONV_W] = (void *)w;
    r.args[MICA_CONV_Y] = y;
    r.args[MICA_CONV_BIAS] = (void *)bias;
    return front_run_in(handle, "conv", &d, sizeof d, &r, workspace, bytes);
}

/* db = alpha * (sum over samples and pixels of dy) + beta * db */
cudnnStatus_t plain_cudnnConvolutionBackwardBias(cudnnHandle_t handle, const void *alpha,
                                                 cudnnTensorDescriptor_t dy_desc, const void *dy,
                                                 const void *beta, cudnnTensorDescriptor_t db_desc,
                                                 void *db)
{
    front_enter(CALL_cudnnConvolutionBackwardBias);
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    mica_reduce_desc d = {.kind = MICA_REDUCE_KIND_SUM};
    mica_tensor result = {0};
    FRONT_TRY(front_tensor(dy_desc, "dyDesc", &d.x));
    if (d.x.rank < 2)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "dy has %d dimension, no channels", d.x.rank);
    FRONT_TRY(channel_vector(db_desc, "dbDesc", d.x.dims[1], &result));
    double scale = 1, old = 0;
    FRONT_TRY(front_scalar(alpha, d.x.dtype, "alpha", &scale));
    FRONT_TRY(front_scalar(beta, d.x.dtype, "beta", &old));
    for (int i = 0, n = 0; i < d.x.rank; i++)
        if (i != 1) d.axes[n++] = MICA_REDUCE_AXIS(i);
    const bool plain = scale == 1 && old == 0;
    void *sums = db;
    d.y = result;
    if (!plain) FRONT_TRY(front_temporary_like(handle, 1, &result, &d.y, &sums));
    mica_run r = {0};
    r.args[MICA_REDUCE_X] = (void *)dy;
    r.args[MICA_REDUCE_Y] = sums;
    FRONT_TRY(front_run(handle, "reduce", &d, sizeof d, &r));
    return plain ? CUDNN_STATUS_SUCCESS : front_blend(handle, scale, &d.y, sums, old, &result, db);
}
