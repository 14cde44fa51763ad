/* SPDX-License-Identifier: Apache-2.0
 * What forward and backward of batch normalisation share. */
#ifndef FRONT_CUDNN_BATCHNORM_H
#define FRONT_CUDNN_BATCHNORM_H

#include "front.h"

/* Parameters of a mode: 1 x C x 1 x 1, or of PER_ACTIVATION 1 x C x H x W, as one dimension; that
 * of x and other tensors of its shape then are N x (C H W), which they have to be in memory, too.
 */
typedef struct front_bn {
    cudnnBatchNormMode_t mode;
    mica_tensor parameters;
} front_bn;

cudnnStatus_t front_bn_parameters(cudnnBatchNormMode_t mode, cudnnTensorDescriptor_t parameters,
                                  const mica_tensor *x, front_bn *bn);
/* Views a tensor of x's shape by the mode. */
cudnnStatus_t front_bn_view(const front_bn *bn, cudnnTensorDescriptor_t descriptor,
                            const char *argument, mica_tensor *tensor);
/* Modes and operations that exist; with an activation it is relu. */
cudnnStatus_t front_bn_modes(cudnnBatchNormMode_t mode, cudnnBatchNormOps_t ops,
                             cudnnActivationDescriptor_t activation);

/* Bytes that a plan of the problem takes. */
cudnnStatus_t front_bn_workspace(cudnnHandle_t handle, const mica_norm_desc *d, size_t *size);
cudnnStatus_t front_bn_backward_size(cudnnHandle_t handle, cudnnBatchNormMode_t mode,
                                     cudnnBatchNormOps_t ops, cudnnTensorDescriptor_t x,
                                     cudnnTensorDescriptor_t dy, cudnnTensorDescriptor_t dx,
                                     cudnnTensorDescriptor_t parameters,
                                     cudnnActivationDescriptor_t activation, size_t *size);

/* mica's problem; z only where it is added. */
cudnnStatus_t front_bn_problem(cudnnBatchNormMode_t mode, cudnnBatchNormOps_t ops,
                               cudnnActivationDescriptor_t activation, cudnnTensorDescriptor_t x,
                               cudnnTensorDescriptor_t z, cudnnTensorDescriptor_t y,
                               cudnnTensorDescriptor_t parameters, bool running, bool saved,
                               mica_norm_desc *d);
/* cuDNN takes 0, mica what is positive: the least of f32 is lost beside any variance but 0, where
 * results are finite then. */
double front_bn_epsilon(double value);
/* Runs into y, or where alpha or beta ask for more, into memory in between. */
cudnnStatus_t front_bn_run(cudnnHandle_t handle, mica_norm_desc *d, mica_run *r, const void *alpha,
                           const void *beta, void *y, void *workspace, size_t bytes);
cudnnStatus_t
front_bn_train(cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t ops,
               const void *alpha, const void *beta, cudnnTensorDescriptor_t x_desc, const void *x,
               cudnnTensorDescriptor_t z_desc, const void *z, cudnnTensorDescriptor_t y_desc,
               void *y, cudnnTensorDescriptor_t parameters, const void *scale, const void *bias,
               double factor, void *running_mean, void *running_variance, double epsilon,
               void *saved_mean, void *saved_inverse, cudnnActivationDescriptor_t activation,
               void *workspace, size_t bytes);

typedef struct front_gradients {
    cudnnBatchNormMode_t mode;
    cudnnBatchNormOps_t ops;
    const void *alpha_data, *beta_data, *alpha_parameter, *beta_parameter;
    cudnnTensorDescriptor_t x_desc, y_desc, dy_desc, dz_desc, dx_desc, parameters;
    const void *x, *y, *dy, *scale, *mean, *inverse;
    void *dz, *dx, *dscale, *dbias;
    double epsilon;
    cudnnActivationDescriptor_t activation;
    void *workspace;
    size_t bytes;
} front_gradients;
cudnnStatus_t front_bn_backward(cudnnHandle_t handle, const front_gradients *g);

#endif
