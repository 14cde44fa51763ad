/* SPDX-License-Identifier: Apache-2.0
 * Activations and their descriptor. NaN goes through, whether or not its propagation is asked for:
 * cuDNN leaves open what becomes of it otherwise. */
#include "compare.h"

#include <stdio.h>

cudnnStatus_t cudnnCreateActivationDescriptor(cudnnActivationDescriptor_t *descriptor)
{
    front_enter(CALL_cudnnCreateActivationDescriptor);
    FRONT_TRY(front_create(FRONT_ACTIVATION, sizeof **descriptor, descriptor));
    (*descriptor)->swish_beta = 1;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroyActivationDescriptor(cudnnActivationDescriptor_t descriptor)
{
    front_enter(CALL_cudnnDestroyActivationDescriptor);
    return front_destroy(descriptor, FRONT_ACTIVATION);
}

cudnnStatus_t cudnnSetActivationDescriptor(cudnnActivationDescriptor_t descriptor,
                                           cudnnActivationMode_t mode, cudnnNanPropagation_t nan,
                                           double coef)
{
    front_enter(CALL_cudnnSetActivationDescriptor);
    FRONT_TRY(front_check(descriptor, FRONT_ACTIVATION, "activationDesc"));
    if ((unsigned)mode > CUDNN_ACTIVATION_SWISH)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "mode %d, known are 0 to %d", (int)mode,
                          CUDNN_ACTIVATION_SWISH);
    descriptor->mode = mode;
    descriptor->nan = nan;
    descriptor->coef = coef;
    descriptor->set = true;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetActivationDescriptor(cudnnActivationDescriptor_t descriptor,
                                           cudnnActivationMode_t *mode, cudnnNanPropagation_t *nan,
                                           double *coef)
{
    front_enter(CALL_cudnnGetActivationDescriptor);
    FRONT_TRY(front_check(descriptor, FRONT_ACTIVATION, "activationDesc"));
    if (mode) *mode = descriptor->mode;
    if (nan) *nan = descriptor->nan;
    if (coef) *coef = descriptor->coef;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetActivationDescriptorSwishBeta(cudnnActivationDescriptor_t descriptor,
                                                    double beta)
{
    front_enter(CALL_cudnnSetActivationDescriptorSwishBeta);
    FRONT_TRY(front_check(descriptor, FRONT_ACTIVATION, "activationDesc"));
    descriptor->swish_beta = beta;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetActivationDescriptorSwishBeta(cudnnActivationDescriptor_t descriptor,
                                                    double *beta)
{
    front_enter(CALL_cudnnGetActivationDescriptorSwishBeta);
    FRONT_TRY(front_check(descriptor, FRONT_ACTIVATION, "activationDesc"));
    FRONT_TRY(front_given(beta, "swish_beta"));
    *beta = descriptor->swish_beta;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t front_activation(cudnnActivationDescriptor_t descriptor, mica_act *act, double *a,
                               double *b)
{
    static const mica_act acts[] = {[CUDNN_ACTIVATION_SIGMOID] = MICA_ACT_SIGMOID,
                                    [CUDNN_ACTIVATION_RELU] = MICA_ACT_RELU,
                                    [CUDNN_ACTIVATION_TANH] = MICA_ACT_TANH,
                                    [CUDNN_ACTIVATION_CLIPPED_RELU] = MICA_ACT_CLIP,
                                    [CUDNN_ACTIVATION_ELU] = MICA_ACT_ELU,
                                    [CUDNN_ACTIVATION_IDENTITY] = MICA_ACT_IDENTITY,
                                    [CUDNN_ACTIVATION_SWISH] = MICA_ACT_SILU};
    FRONT_TRY(front_check(descriptor, FRONT_ACTIVATION, "activationDesc"));
    if (!descriptor->set) return front_fail(CUDNN_STATUS_BAD_PARAM, "activationDesc was never set");
    *act = acts[descriptor->mode];
    *a = *b = 0;
    const double coef = descriptor->coef == 0 ? MICA_ZERO : descriptor->coef;
    if (descriptor->mode == CUDNN_ACTIVATION_CLIPPED_RELU) *a = MICA_ZERO, *b = coef;
    if (descriptor->mode == CUDNN_ACTIVATION_ELU) *a = coef;
    if (descriptor->mode == CUDNN_ACTIVATION_SWISH && descriptor->swish_beta != 1)
        return front_fail(CUDNN_STATUS_NOT_SUPPORTED, "swish with beta %g, served is 1",
                          descriptor->swish_beta);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t plain_cudnnActivationForward(cudnnHandle_t handle,
                                           cudnnActivationDescriptor_t activation,
                                           const void *alpha, cudnnTensorDescriptor_t x_desc,
                                           const void *x, const void *beta,
                                           cudnnTensorDescriptor_t y_desc, void *y)
{
    front_enter(CALL_cudnnActivationForward);
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    mica_activation_desc d = {0};
    FRONT_TRY(front_activation(activation, &d.act, &d.act_a, &d.act_b));
    FRONT_TRY(front_tensor(x_desc, "xDesc", &d.x));
    FRONT_TRY(front_tensor(y_desc, "yDesc", &d.y));
    double scalars[2] = {1, 0};
    FRONT_TRY(front_scalar(alpha, d.x.dtype, "alpha", &scalars[0]));
    FRONT_TRY(front_scalar(beta, d.x.dtype, "beta", &scalars[1]));
    mica_run run = {.scalars = scalars};
    run.args[MICA_ACTIVATION_X] = (void *)x;
    run.args[MICA_ACTIVATION_Y] = y;
    return front_run(handle, "activation", &d, sizeof d, &run);
}

/* The slope as a function of the result x1 = y, for those who computed y in the place of x. */
static const char *const slopes[] = {
    [CUDNN_ACTIVATION_SIGMOID] = "x1*(1-x1)",
    [CUDNN_ACTIVATION_RELU] = "where(x1>0,1,0)",
    [CUDNN_ACTIVATION_TANH] = "(1-x1)*(1+x1)",
    [CUDNN_ACTIVATION_CLIPPED_RELU] = "where(x1>0&&x1<s2,1,0)",
    [CUDNN_ACTIVATION_ELU] = "where(x1>0,1,x1+s2)",
    [CUDNN_ACTIVATION_IDENTITY] = NULL, /* never asked for */
    [CUDNN_ACTIVATION_SWISH] = NULL,
};

static cudnnStatus_t backward_from_y(cudnnHandle_t handle, cudnnActivationDescriptor_t activation,
                                     const mica_activation_desc *of, const mica_tensor *y_tensor,
                                     const void *y, const void *dy, void *dx, const double *scalars)
{
    const char *slope = slopes[activation->mode];
    if (!slope)
        return front_fail(CUDNN_STATUS_NOT_SUPPORTED,
                          "the slope of swish is no function of y: x has to be there beside y");
    mica_pointwise_desc d = {.x0 = of->dx, .x1 = *y_tensor, .x2 = of->dy, .y0 = of->dx};
    snprintf(d.expr, sizeof d.expr, "where(s1==0,s0*x2*(%s),s0*x2*(%s)+s1*x0)", slope, slope);
    /* y holds the bound as its type rounds it. */
    double coef = activation->coef, stored;
    mica_tensor one = mica_tensor_packed(y_tensor->dtype, 1, (int64_t[]){1});
    if (activation->mode == CUDNN_ACTIVATION_CLIPPED_RELU) {
        FRONT_TRY(front_status(mica_tensor_store(&one, &coef, &stored)));
        FRONT_TRY(front_status(mica_tensor_load(&one, &stored, &coef)));
    }
    mica_run run = {.scalars = (double[]){scalars[0], scalars[1], coef, 0}};
    run.args[MICA_POINTWISE_X0] = run.args[MICA_POINTWISE_Y0] = dx;
    run.args[MICA_POINTWISE_X0 + 1] = (void *)y;
    run.args[MICA_POINTWISE_X0 + 2] = (void *)dy;
    /* In place, dy is dx: mica reads it as x0 then. */
    if (dx == dy) {
        d.x2 = (mica_tensor){0};
        snprintf(d.expr, sizeof d.expr, "s0*x0*(%s)+s1*x0", slope);
        run.args[MICA_POINTWISE_X0 + 2] = NULL;
    }
    return front_run(handle, "pointwise", &d, sizeof d, &run);
}

cudnnStatus_t plain_cudnnActivationBackward(cudnnHandle_t handle,
                                            cudnnActivationDescriptor_t activation,
                                            const void *alpha, cudnnTensorDescriptor_t y_desc,
                                            const void *y, cudnnTensorDescriptor_t dy_desc,
                                            const void *dy, cudnnTensorDescriptor_t x_desc,
                                            const void *x, const void *beta,
                                            cudnnTensorDescriptor_t dx_desc, void *dx)
{
    front_enter(CALL_cudnnActivationBackward);
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    mica_activation_desc d = {.pass = MICA_ACTIVATION_BWD};
    mica_tensor y_tensor = {0};
    FRONT_TRY(front_activation(activation, &d.act, &d.act_a, &d.act_b));
    FRONT_TRY(front_tensor(y_desc, "yDesc", &y_tensor));
    FRONT_TRY(front_tensor(x_desc, "xDesc", &d.x));
    FRONT_TRY(front_tensor(dy_desc, "dyDesc", &d.dy));
    FRONT_TRY(front_tensor(dx_desc, "dxDesc", &d.dx));
    double scalars[2] = {1, 0};
    FRONT_TRY(front_scalar(alpha, d.x.dtype, "alpha", &scalars[0]));
    FRONT_TRY(front_scalar(beta, d.x.dtype, "beta", &scalars[1]));
    if ((!x || x == y) && activation->mode != CUDNN_ACTIVATION_IDENTITY)
        return backward_from_y(handle, activation, &d, &y_tensor, y, dy, dx, scalars);
    mica_run run = {.scalars = scalars};
    run.args[MICA_ACTIVATION_X] = (void *)x;
    run.args[MICA_ACTIVATION_DY] = (void *)dy;
    run.args[MICA_ACTIVATION_DX] = dx;
    return front_run(handle, "activation", &d, sizeof d, &run);
}
