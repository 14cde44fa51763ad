/* SPDX-License-Identifier: Apache-2.0
 * Activation, pooling, softmax and batch normalisation, compared where that is asked for. */
#include "compare.h"

/* ---- activation, pooling, softmax ---- */

cudnnStatus_t cudnnActivationForward(cudnnHandle_t handle, cudnnActivationDescriptor_t activation,
                                     const void *alpha, cudnnTensorDescriptor_t x_desc,
                                     const void *x, const void *beta,
                                     cudnnTensorDescriptor_t y_desc, void *y)
{
    compare_call c;
    if (compare_begin(&c, handle, CALL_cudnnActivationForward)) {
        __typeof__(&cudnnActivationForward) there;
        *(void **)&there = compare_function(&c, "cudnnActivationForward");
        void *a = compare_object(&c, activation), *xd = compare_object(&c, x_desc);
        void *yd = compare_object(&c, y_desc), *to = compare_result_of(&c, "y", y_desc, y);
        if (!c.lost) c.status = there(c.original, a, alpha, xd, x, beta, yd, to);
        return compare_end(&c, plain_cudnnActivationForward(handle, activation, alpha, x_desc, x,
                                                            beta, y_desc, y));
    }
    return plain_cudnnActivationForward(handle, activation, alpha, x_desc, x, beta, y_desc, y);
}

cudnnStatus_t cudnnActivationBackward(cudnnHandle_t handle, cudnnActivationDescriptor_t activation,
                                      const void *alpha, cudnnTensorDescriptor_t y_desc,
                                      const void *y, cudnnTensorDescriptor_t dy_desc,
                                      const void *dy, cudnnTensorDescriptor_t x_desc, const void *x,
                                      const void *beta, cudnnTensorDescriptor_t dx_desc, void *dx)
{
    compare_call c;
    if (compare_begin(&c, handle, CALL_cudnnActivationBackward)) {
        __typeof__(&cudnnActivationBackward) there;
        *(void **)&there = compare_function(&c, "cudnnActivationBackward");
        void *a = compare_object(&c, activation), *yd = compare_object(&c, y_desc);
        void *dyd = compare_object(&c, dy_desc), *xd = compare_object(&c, x_desc);
        void *dxd = compare_object(&c, dx_desc), *to = compare_result_of(&c, "dx", dx_desc, dx);
        if (!c.lost) c.status = there(c.original, a, alpha, yd, y, dyd, dy, xd, x, beta, dxd, to);
        return compare_end(&c, plain_cudnnActivationBackward(handle, activation, alpha, y_desc, y,
                                                             dy_desc, dy, x_desc, x, beta, dx_desc,
                                                             dx));
    }
    return plain_cudnnActivationBackward(handle, activation, alpha, y_desc, y, dy_desc, dy, x_desc,
                                         x, beta, dx_desc, dx);
}

cudnnStatus_t cudnnPoolingForward(cudnnHandle_t handle, cudnnPoolingDescriptor_t pooling,
                                  const void *alpha, cudnnTensorDescriptor_t x_desc, const void *x,
                                  const void *beta, cudnnTensorDescriptor_t y_desc, void *y)
{
    compare_call c;
    if (compare_begin(&c, handle, CALL_cudnnPoolingForward)) {
        __typeof__(&cudnnPoolingForward) there;
        *(void **)&there = compare_function(&c, "cudnnPoolingForward");
        void *p = compare_object(&c, pooling), *xd = compare_object(&c, x_desc);
        void *yd = compare_object(&c, y_desc), *to = compare_result_of(&c, "y", y_desc, y);
        if (!c.lost) c.status = there(c.original, p, alpha, xd, x, beta, yd, to);
        return compare_end(
            &c, plain_cudnnPoolingForward(handle, pooling, alpha, x_desc, x, beta, y_desc, y));
    }
    return plain_cudnnPoolingForward(handle, pooling, alpha, x_desc, x, beta, y_desc, y);
}

cudnnStatus_t cudnnPoolingBackward(cudnnHandle_t handle, cudnnPoolingDescriptor_t pooling,
                                   const void *alpha, cudnnTensorDescriptor_t y_desc, const void *y,
                                   cudnnTensorDescriptor_t dy_desc, const void *dy,
                                   cudnnTensorDescriptor_t x_desc, const void *x, const void *beta,
                                   cudnnTensorDescriptor_t dx_desc, void *dx)
{
    compare_call c;
    if (compare_begin(&c, handle, CALL_cudnnPoolingBackward)) {
        __typeof__(&cudnnPoolingBackward) there;
        *(void **)&there = compare_function(&c, "cudnnPoolingBackward");
        void *p = compare_object(&c, pooling), *yd = compare_object(&c, y_desc);
        void *dyd = compare_object(&c, dy_desc), *xd = compare_object(&c, x_desc);
        void *dxd = compare_object(&c, dx_desc), *to = compare_result_of(&c, "dx", dx_desc, dx);
        if (!c.lost) c.status = there(c.original, p, alpha, yd, y, dyd, dy, xd, x, beta, dxd, to);
        return compare_end(&c,
                           plain_cudnnPoolingBackward(handle, pooling, alpha, y_desc, y, dy_desc,
                                                      dy, x_desc, x, beta, dx_desc, dx));
    }
    return plain_cudnnPoolingBackward(handle, pooling, alpha, y_desc, y, dy_desc, dy, x_desc, x,
                                      beta, dx_desc, dx);
}

cudnnStatus_t cudnnSoftmaxForward(cudnnHandle_t handle, cudnnSoftmaxAlgorithm_t algorithm,
                                  cudnnSoftmaxMode_t mode, const void *alpha,
                                  cudnnTensorDescriptor_t x_desc, const void *x, const void *beta,
                                  cudnnTensorDescriptor_t y_desc, void *y)
{
    compare_call c;
    if (compare_begin(&c, handle, CALL_cudnnSoftmaxForward)) {
        __typeof__(&cudnnSoftmaxForward) there;
        *(void **)&there = compare_function(&c, "cudnnSoftmaxForward");
        void *xd = compare_object(&c, x_desc), *yd = compare_object(&c, y_desc);
        void *to = compare_result_of(&c, "y", y_desc, y);
        if (!c.lost) c.status = there(c.original, algorithm, mode, alpha, xd, x, beta, yd, to);
        return compare_end(&c, plain_cudnnSoftmaxForward(handle, algorithm, mode, alpha, x_desc, x,
                                                         beta, y_desc, y));
    }
    return plain_cudnnSoftmaxForward(handle, algorithm, mode, alpha, x_desc, x, beta, y_desc, y);
}

cudnnStatus_t cudnnSoftmaxBackward(cudnnHandle_t handle, cudnnSoftmaxAlgorithm_t algorithm,
                                   cudnnSoftmaxMode_t mode, const void *alpha,
                                   cudnnTensorDescriptor_t y_desc, const void *y,
                                   cudnnTensorDescriptor_t dy_desc, const void *dy,
                                   const void *beta, cudnnTensorDescriptor_t dx_desc, void *dx)
{
    compare_call c;
    if (compare_begin(&c, handle, CALL_cudnnSoftmaxBackward)) {
        __typeof__(&cudnnSoftmaxBackward) there;
        *(void **)&there = compare_function(&c, "cudnnSoftmaxBackward");
        void *yd = compare_object(&c, y_desc), *dyd = compare_object(&c, dy_desc);
        void *dxd = compare_object(&c, dx_desc), *to = compare_result_of(&c, "dx", dx_desc, dx);
        if (!c.lost)
            c.status = there(c.original, algorithm, mode, alpha, yd, y, dyd, dy, beta, dxd, to);
        return compare_end(&c, plain_cudnnSoftmaxBackward(handle, algorithm, mode, alpha, y_desc, y,
                                                          dy_desc, dy, beta, dx_desc, dx));
    }
    return plain_cudnnSoftmaxBackward(handle, algorithm, mode, alpha, y_desc, y, dy_desc, dy, beta,
                                      dx_desc, dx);
}

/* ---- batch normalisation ---- */

cudnnStatus_t cudnnBatchNormalizationForwardInference(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, const void *alpha, const void *beta,
    cudnnTensorDescriptor_t x_desc, const void *x, cudnnTensorDescriptor_t y_desc, void *y,
    cudnnTensorDescriptor_t parameters, const void *scale, const void *bias, const void *mean,
    const void *variance, double epsilon)
{
    compare_call c;
    if (compare_begin(&c, handle, CALL_cudnnBatchNormalizationForwardInference)) {
        __typeof__(&cudnnBatchNormalizationForwardInference) there;
        *(void **)&there = compare_function(&c, "cudnnBatchNormalizationForwardInference");
        void *xd = compare_object(&c, x_desc), *yd = compare_object(&c, y_desc);
        void *pd = compare_object(&c, parameters), *to = compare_result_of(&c, "y", y_desc, y);
        if (!c.lost)
            c.status = there(c.original, mode, alpha, beta, xd, x, yd, to, pd, scale, bias, mean,
                             variance, epsilon);
        return compare_end(&c, plain_cudnnBatchNormalizationForwardInference(
                                   handle, mode, alpha, beta, x_desc, x, y_desc, y, parameters,
                                   scale, bias, mean, variance, epsilon));
    }
    return plain_cudnnBatchNormalizationForwardInference(handle, mode, alpha, beta, x_desc, x,
                                                         y_desc, y, parameters, scale, bias, mean,
                                                         variance, epsilon);
}

/* Statistics that training leaves: running and saved ones. */
static void statistics(compare_call *c, cudnnTensorDescriptor_t parameters, void *const *from,
                       void **to)
{
    static const char *const names[] = {"running mean", "running variance", "saved mean",
                                        "saved inverse"};
    for (int i = 0; i < 4; i++) to[i] = compare_result_of(c, names[i], parameters, from[i]);
}

cudnnStatus_t cudnnBatchNormalizationForwardTraining(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, const void *alpha, const void *beta,
    cudnnTensorDescriptor_t x_desc, const void *x, cudnnTensorDescriptor_t y_desc, void *y,
    cudnnTensorDescriptor_t parameters, const void *scale, const void *bias, double factor,
    void *running_mean, void *running_variance, double epsilon, void *saved_mean,
    void *saved_inverse)
{
    compare_call c;
    if (compare_begin(&c, handle, CALL_cudnnBatchNormalizationForwardTraining)) {
        __typeof__(&cudnnBatchNormalizationForwardTraining) there;
        void *const from[] = {running_mean, running_variance, saved_mean, saved_inverse};
        void *s[4];
        *(void **)&there = compare_function(&c, "cudnnBatchNormalizationForwardTraining");
        void *xd = compare_object(&c, x_desc), *yd = compare_object(&c, y_desc);
        void *pd = compare_object(&c, parameters), *to = compare_result_of(&c, "y", y_desc, y);
        statistics(&c, parameters, from, s);
        if (!c.lost)
            c.status = there(c.original, mode, alpha, beta, xd, x, yd, to, pd, scale, bias, factor,
                             s[0], s[1], epsilon, s[2], s[3]);
        return compare_end(&c, plain_cudnnBatchNormalizationForwardTraining(
                                   handle, mode, alpha, beta, x_desc, x, y_desc, y, parameters,
                                   scale, bias, factor, running_mean, running_variance, epsilon,
                                   saved_mean, saved_inverse));
    }
    return plain_cudnnBatchNormalizationForwardTraining(
        handle, mode, alpha, beta, x_desc, x, y_desc, y, parameters, scale, bias, factor,
        running_mean, running_variance, epsilon, saved_mean, saved_inverse);
}

typedef struct space {
    void *workspace, *reserve;
    size_t workspace_bytes, reserve_bytes;
} space;

static space training_space(compare_call *c, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t ops,
                            void *x, void *z, void *y, void *parameters, void *activation)
{
    __typeof__(&cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize) workspace;
    __typeof__(&cudnnGetBatchNormalizationTrainingExReserveSpaceSize) reserve;
    space s = {0};
    *(void **)&workspace =
        compare_function(c, "cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize");
    *(void **)&reserve =
        compare_function(c, "cudnnGetBatchNormalizationTrainingExReserveSpaceSize");
    if (c->lost) return s;
    if (workspace(c->original, mode, ops, x, z, y, parameters, activation, &s.workspace_bytes) ||
        reserve(c->original, mode, ops, activation, x, &s.reserve_bytes))
        c->lost = true;
    s.workspace = compare_memory(c, s.workspace_bytes);
    s.reserve = compare_memory(c, s.reserve_bytes);
    return s;
}

cudnnStatus_t cudnnBatchNormalizationForwardTrainingEx(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t ops, const void *alpha,
    const void *beta, cudnnTensorDescriptor_t x_desc, const void *x, cudnnTensorDescriptor_t z_desc,
    const void *z, cudnnTensorDescriptor_t y_desc, void *y, cudnnTensorDescriptor_t parameters,
    const void *scale, const void *bias, double factor, void *running_mean, void *running_variance,
    double epsilon, void *saved_mean, void *saved_inverse, cudnnActivationDescriptor_t activation,
    void *workspace, size_t workspace_bytes, void *reserve, size_t reserve_bytes)
{
    compare_call c;
    const bool compared = compare_begin(&c, handle, CALL_cudnnBatchNormalizationForwardTrainingEx);
    if (compared) {
        __typeof__(&cudnnBatchNormalizationForwardTrainingEx) there;
        void *const from[] = {running_mean, running_variance, saved_mean, saved_inverse};
        void *s[4];
        *(void **)&there = compare_function(&c, "cudnnBatchNormalizationForwardTrainingEx");
        void *xd = compare_object(&c, x_desc), *yd = compare_object(&c, y_desc);
        void *zd = compare_object(&c, z_desc), *pd = compare_object(&c, parameters);
        void *a = compare_object(&c, activation), *to = compare_result_of(&c, "y", y_desc, y);
        statistics(&c, parameters, from, s);
        const space m = training_space(&c, mode, ops, xd, zd, yd, pd, a);
        if (!c.lost)
            c.status = there(c.original, mode, ops, alpha, beta, xd, x, zd, z, yd, to, pd, scale,
                             bias, factor, s[0], s[1], epsilon, s[2], s[3], a, m.workspace,
                             m.workspace_bytes, m.reserve, m.reserve_bytes);
    }
    const cudnnStatus_t status = plain_cudnnBatchNormalizationForwardTrainingEx(
        handle, mode, ops, alpha, beta, x_desc, x, z_desc, z, y_desc, y, parameters, scale, bias,
        factor, running_mean, running_variance, epsilon, saved_mean, saved_inverse, activation,
        workspace, workspace_bytes, reserve, reserve_bytes);
    return compared ? compare_end(&c, status) : status;
}

cudnnStatus_t cudnnBatchNormalizationBackward(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, const void *alpha_data, const void *beta_data,
    const void *alpha_parameter, const void *beta_parameter, cudnnTensorDescriptor_t x_desc,
    const void *x, cudnnTensorDescriptor_t dy_desc, const void *dy, cudnnTensorDescriptor_t dx_desc,
    void *dx, cudnnTensorDescriptor_t parameters, const void *scale, void *dscale, void *dbias,
    double epsilon, const void *saved_mean, const void *saved_inverse)
{
    compare_call c;
    const bool compared = compare_begin(&c, handle, CALL_cudnnBatchNormalizationBackward);
    if (compared) {
        __typeof__(&cudnnBatchNormalizationBackward) there;
        *(void **)&there = compare_function(&c, "cudnnBatchNormalizationBackward");
        void *xd = compare_object(&c, x_desc), *dyd = compare_object(&c, dy_desc);
        void *dxd = compare_object(&c, dx_desc), *pd = compare_object(&c, parameters);
        void *to = compare_result_of(&c, "dx", dx_desc, dx);
        void *to_scale = compare_result_of(&c, "dscale", parameters, dscale);
        void *to_bias = compare_result_of(&c, "dbias", parameters, dbias);
        if (!c.lost)
            c.status = there(c.original, mode, alpha_data, beta_data, alpha_parameter,
                             beta_parameter, xd, x, dyd, dy, dxd, to, pd, scale, to_scale, to_bias,
                             epsilon, saved_mean, saved_inverse);
    }
    const cudnnStatus_t status = plain_cudnnBatchNormalizationBackward(
        handle, mode, alpha_data, beta_data, alpha_parameter, beta_parameter, x_desc, x, dy_desc,
        dy, dx_desc, dx, parameters, scale, dscale, dbias, epsilon, saved_mean, saved_inverse);
    return compared ? compare_end(&c, status) : status;
}

/* With an activation the other library would need the reserve space of its own forward pass. */
cudnnStatus_t cudnnBatchNormalizationBackwardEx(
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
    compare_call c;
    const bool compared = ops == CUDNN_BATCHNORM_OPS_BN &&
                          compare_begin(&c, handle, CALL_cudnnBatchNormalizationBackwardEx);
    if (compared) {
        __typeof__(&cudnnBatchNormalizationBackward) there; /* the same without an activation */
        *(void **)&there = compare_function(&c, "cudnnBatchNormalizationBackward");
        void *xd = compare_object(&c, x_desc), *dyd = compare_object(&c, dy_desc);
        void *dxd = compare_object(&c, dx_desc), *pd = compare_object(&c, parameters);
        void *to = compare_result_of(&c, "dx", dx_desc, dx);
        void *to_scale = compare_result_of(&c, "dscale", parameters, dscale);
        void *to_bias = compare_result_of(&c, "dbias", parameters, dbias);
        if (!c.lost)
            c.status = there(c.original, mode, alpha_data, beta_data, alpha_parameter,
                             beta_parameter, xd, x, dyd, dy, dxd, to, pd, scale, to_scale, to_bias,
                             epsilon, saved_mean, saved_inverse);
    }
    const cudnnStatus_t status = plain_cudnnBatchNormalizationBackwardEx(
        handle, mode, ops, alpha_data, beta_data, alpha_parameter, beta_parameter, x_desc, x,
        y_desc, y, dy_desc, dy, dz_desc, dz, dx_desc, dx, parameters, scale, bias, dscale, dbias,
        epsilon, saved_mean, saved_inverse, activation, workspace, workspace_bytes, reserve,
        reserve_bytes);
    return compared ? compare_end(&c, status) : status;
}
