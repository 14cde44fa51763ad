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

#endif
