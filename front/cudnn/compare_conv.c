/* SPDX-License-Identifier: Apache-2.0
 * Convolutions, compared where that is asked for: the other library takes the algorithm that it
 * names first, in memory of its own. */
#include "compare.h"

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void *alpha,
                                      cudnnTensorDescriptor_t x_desc, const void *x,
                                      cudnnFilterDescriptor_t w_desc, const void *w,
                                      cudnnConvolutionDescriptor_t conv,
                                      cudnnConvolutionFwdAlgo_t algorithm, void *workspace,
                                      size_t bytes, const void *beta,
                                      cudnnTensorDescriptor_t y_desc, void *y)
{
    compare_call c;
    const bool compared = compare_begin(&c, handle, CALL_cudnnConvolutionForward);
    if (compared) {
        __typeof__(&cudnnConvolutionForward) there;
        __typeof__(&cudnnGetConvolutionForwardAlgorithm_v7) choose;
        cudnnConvolutionFwdAlgoPerf_t best;
        int count = 0;
        *(void **)&there = compare_function(&c, "cudnnConvolutionForward");
        *(void **)&choose = compare_function(&c, "cudnnGetConvolutionForwardAlgorithm_v7");
        void *xd = compare_object(&c, x_desc), *wd = compare_object(&c, w_desc);
        void *cd = compare_object(&c, conv), *yd = compare_object(&c, y_desc);
        void *to = compare_result_of(&c, "y", y_desc, y);
        if (!c.lost) c.lost = choose(c.original, xd, wd, cd, yd, 1, &count, &best) || !count;
        void *memory = c.lost ? NULL : compare_memory(&c, best.memory);
        if (!c.lost)
            c.status = there(c.original, alpha, xd, x, wd, w, cd, best.algo, memory, best.memory,
                             beta, yd, to);
    }
    const cudnnStatus_t status = plain_cudnnConvolutionForward(
        handle, alpha, x_desc, x, w_desc, w, conv, algorithm, workspace, bytes, beta, y_desc, y);
    return compared ? compare_end(&c, status) : status;
}

cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void *alpha,
                                           cudnnFilterDescriptor_t w_desc, const void *w,
                                           cudnnTensorDescriptor_t dy_desc, const void *dy,
                                           cudnnConvolutionDescriptor_t conv,
                                           cudnnConvolutionBwdDataAlgo_t algorithm, void *workspace,
                                           size_t bytes, const void *beta,
                                           cudnnTensorDescriptor_t dx_desc, void *dx)
{
    compare_call c;
    const bool compared = compare_begin(&c, handle, CALL_cudnnConvolutionBackwardData);
    if (compared) {
        __typeof__(&cudnnConvolutionBackwardData) there;
        __typeof__(&cudnnGetConvolutionBackwardDataAlgorithm_v7) choose;
        cudnnConvolutionBwdDataAlgoPerf_t best;
        int count = 0;
        *(void **)&there = compare_function(&c, "cudnnConvolutionBackwardData");
        *(void **)&choose = compare_function(&c, "cudnnGetConvolutionBackwardDataAlgorithm_v7");
        void *wd = compare_object(&c, w_desc), *dyd = compare_object(&c, dy_desc);
        void *cd = compare_object(&c, conv), *dxd = compare_object(&c, dx_desc);
        void *to = compare_result_of(&c, "dx", dx_desc, dx);
        if (!c.lost) c.lost = choose(c.original, wd, dyd, cd, dxd, 1, &count, &best) || !count;
        void *memory = c.lost ? NULL : compare_memory(&c, best.memory);
        if (!c.lost)
            c.status = there(c.original, alpha, wd, w, dyd, dy, cd, best.algo, memory, best.memory,
                             beta, dxd, to);
    }
    const cudnnStatus_t status =
        plain_cudnnConvolutionBackwardData(handle, alpha, w_desc, w, dy_desc, dy, conv, algorithm,
                                           workspace, bytes, beta, dx_desc, dx);
    return compared ? compare_end(&c, status) : status;
}

cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void *alpha,
                                             cudnnTensorDescriptor_t x_desc, const void *x,
                                             cudnnTensorDescriptor_t dy_desc, const void *dy,
                                             cudnnConvolutionDescriptor_t conv,
                                             cudnnConvolutionBwdFilterAlgo_t algorithm,
                                             void *workspace, size_t bytes, const void *beta,
                                             cudnnFilterDescriptor_t dw_desc, void *dw)
{
    compare_call c;
    const bool compared = compare_begin(&c, handle, CALL_cudnnConvolutionBackwardFilter);
    if (compared) {
        __typeof__(&cudnnConvolutionBackwardFilter) there;
        __typeof__(&cudnnGetConvolutionBackwardFilterAlgorithm_v7) choose;
        cudnnConvolutionBwdFilterAlgoPerf_t best;
        int count = 0;
        *(void **)&there = compare_function(&c, "cudnnConvolutionBackwardFilter");
        *(void **)&choose = compare_function(&c, "cudnnGetConvolutionBackwardFilterAlgorithm_v7");
        void *xd = compare_object(&c, x_desc), *dyd = compare_object(&c, dy_desc);
        void *cd = compare_object(&c, conv), *dwd = compare_object(&c, dw_desc);
        void *to = compare_result_of(&c, "dw", dw_desc, dw);
        if (!c.lost) c.lost = choose(c.original, xd, dyd, cd, dwd, 1, &count, &best) || !count;
        void *memory = c.lost ? NULL : compare_memory(&c, best.memory);
        if (!c.lost)
            c.status = there(c.original, alpha, xd, x, dyd, dy, cd, best.algo, memory, best.memory,
                             beta, dwd, to);
    }
    const cudnnStatus_t status =
        plain_cudnnConvolutionBackwardFilter(handle, alpha, x_desc, x, dy_desc, dy, conv, algorithm,
                                             workspace, bytes, beta, dw_desc, dw);
    return compared ? compare_end(&c, status) : status;
}

/* 1 is the algorithm that the other library documents for all activations. */
cudnnStatus_t cudnnConvolutionBiasActivationForward(
    cudnnHandle_t handle, const void *alpha1, cudnnTensorDescriptor_t x_desc, const void *x,
    cudnnFilterDescriptor_t w_desc, const void *w, cudnnConvolutionDescriptor_t conv,
    cudnnConvolutionFwdAlgo_t algorithm, void *workspace, size_t bytes, const void *alpha2,
    cudnnTensorDescriptor_t z_desc, const void *z, cudnnTensorDescriptor_t bias_desc,
    const void *bias, cudnnActivationDescriptor_t activation, cudnnTensorDescriptor_t y_desc,
    void *y)
{
    compare_call c;
    const bool compared = compare_begin(&c, handle, CALL_cudnnConvolutionBiasActivationForward);
    if (compared) {
        __typeof__(&cudnnConvolutionBiasActivationForward) there;
        __typeof__(&cudnnGetConvolutionForwardWorkspaceSize) size_of;
        size_t size = 0;
        *(void **)&there = compare_function(&c, "cudnnConvolutionBiasActivationForward");
        *(void **)&size_of = compare_function(&c, "cudnnGetConvolutionForwardWorkspaceSize");
        void *xd = compare_object(&c, x_desc), *wd = compare_object(&c, w_desc);
        void *cd = compare_object(&c, conv), *zd = compare_object(&c, z_desc);
        void *bd = compare_object(&c, bias_desc), *a = compare_object(&c, activation);
        void *yd = compare_object(&c, y_desc), *to = compare_result_of(&c, "y", y_desc, y);
        if (!c.lost) c.lost = size_of(c.original, xd, wd, cd, yd, 1, &size) != 0;
        void *memory = compare_memory(&c, size);
        if (!c.lost)
            c.status = there(c.original, alpha1, xd, x, wd, w, cd, 1, memory, size, alpha2, zd, z,
                             bd, bias, a, yd, to);
    }
    const cudnnStatus_t status = plain_cudnnConvolutionBiasActivationForward(
        handle, alpha1, x_desc, x, w_desc, w, conv, algorithm, workspace, bytes, alpha2, z_desc, z,
        bias_desc, bias, activation, y_desc, y);
    return compared ? compare_end(&c, status) : status;
}

cudnnStatus_t cudnnConvolutionBackwardBias(cudnnHandle_t handle, const void *alpha,
                                           cudnnTensorDescriptor_t dy_desc, const void *dy,
                                           const void *beta, cudnnTensorDescriptor_t db_desc,
                                           void *db)
{
    compare_call c;
    const bool compared = compare_begin(&c, handle, CALL_cudnnConvolutionBackwardBias);
    if (compared) {
        __typeof__(&cudnnConvolutionBackwardBias) there;
        *(void **)&there = compare_function(&c, "cudnnConvolutionBackwardBias");
        void *dyd = compare_object(&c, dy_desc), *dbd = compare_object(&c, db_desc);
        void *to = compare_result_of(&c, "db", db_desc, db);
        if (!c.lost) c.status = there(c.original, alpha, dyd, dy, beta, dbd, to);
    }
    const cudnnStatus_t status =
        plain_cudnnConvolutionBackwardBias(handle, alpha, dy_desc, dy, beta, db_desc, db);
    return compared ? compare_end(&c, status) : status;
}
