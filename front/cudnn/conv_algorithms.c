/* SPDX-License-Identifier: Apache-2.0
 * Algorithms of a convolution and their workspace. There are two: number 1 is mica's choice with
 * all the workspace that it wants, number 0 its choice without any (left out where the first wants
 * none, or where no engine does without). Other numbers are taken as number 1. Find measures, Get
 * asks the model. */
#include "conv.h"

#include <string.h>

_Static_assert(sizeof(cudnnConvolutionFwdAlgoPerf_t) == 48, "as in cuDNN");
_Static_assert(sizeof(cudnnConvolutionBwdDataAlgoPerf_t) == 48, "as in cuDNN");
_Static_assert(sizeof(cudnnConvolutionBwdFilterAlgoPerf_t) == 48, "as in cuDNN");

enum { FIND_MS = 100 }; /* of measurement for one convolution */

cudnnStatus_t front_conv_algorithm(int algorithm, int count)
{
    if (algorithm >= 0 && algorithm < count) return CUDNN_STATUS_SUCCESS;
    return front_fail(CUDNN_STATUS_BAD_PARAM, "algorithm %d, known are 0 to %d", algorithm,
                      count - 1);
}

static cudnnStatus_t workspace_size(cudnnHandle_t handle, const mica_conv_desc *d, int algorithm,
                                    size_t *size)
{
    FRONT_TRY(front_given(size, "sizeInBytes"));
    mica_options none = {.workspace_limit = MICA_NO_WORKSPACE};
    mica_plan *plan = NULL;
    FRONT_TRY(front_plan(handle, "conv", d, sizeof *d, algorithm ? NULL : &none, &plan));
    *size = mica_plan_workspace(plan);
    mica_plan_destroy(plan);
    return CUDNN_STATUS_SUCCESS;
}

/* Fills one result; returns false if no plan keeps to the limit. */
static bool judge(cudnnHandle_t handle, const mica_conv_desc *d, mica_options options,
                  cudnnConvolutionFwdAlgo_t algorithm, cudnnMathType_t math,
                  cudnnConvolutionFwdAlgoPerf_t *result)
{
    mica_plan *plan = NULL;
    mica_status status =
        mica_plan_create(front_context(handle), "conv", d, sizeof *d, &options, &plan);
    if (status != MICA_OK && options.mode == MICA_MODE_MEASURE) {
        options.mode = MICA_MODE_ESTIMATE; /* no memory to measure in */
        status = mica_plan_create(front_context(handle), "conv", d, sizeof *d, &options, &plan);
    }
    if (status != MICA_OK) return false;
    const double measured = mica_plan_measured(plan);
    *result = (cudnnConvolutionFwdAlgoPerf_t){
        .algo = algorithm,
        .status = CUDNN_STATUS_SUCCESS,
        .time = (float)(measured > 0 ? measured : mica_plan_predicted(plan)),
        .memory = mica_plan_workspace(plan),
        .determinism = CUDNN_DETERMINISTIC,
        .mathType = math};
    mica_plan_destroy(plan);
    return true;
}

/* The results of the three passes have one layout. limit: bytes of workspace, or -1. */
static cudnnStatus_t list(cudnnHandle_t handle, const mica_conv_desc *d,
                          cudnnConvolutionDescriptor_t conv, bool find, int requested,
                          int *returned, void *results)
{
    FRONT_TRY(front_given(returned, "returnedAlgoCount"));
    FRONT_TRY(front_given(results, "perfResults"));
    if (requested < 1)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "%d algorithms asked for", requested);
    mica_options best = {.mode = find ? MICA_MODE_MEASURE : MICA_MODE_ESTIMATE,
                         .measure_ms = FIND_MS};
    mica_options none = {.workspace_limit = MICA_NO_WORKSPACE};
    cudnnConvolutionFwdAlgoPerf_t found[2];
    int n = 0;
    if (!judge(handle, d, best, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, conv->math,
               &found[n++])) {
        *returned = 0;
        return front_fail(CUDNN_STATUS_NOT_SUPPORTED, "%s", mica_error());
    }
    if (requested > 1 && found[0].memory &&
        judge(handle, d, none, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, conv->math, &found[n]))
        n++;
    memcpy(results, found, (size_t)n * sizeof *found);
    *returned = n;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t max_count(cudnnHandle_t handle, int known, int *count)
{
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    FRONT_TRY(front_given(count, "count"));
    *count = known;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- forward ---- */

cudnnStatus_t cudnnGetConvolutionForwardAlgorithmMaxCount(cudnnHandle_t handle, int *count)
{
    front_enter(CALL_cudnnGetConvolutionForwardAlgorithmMaxCount);
    return max_count(handle, CUDNN_CONVOLUTION_FWD_ALGO_COUNT, count);
}

static cudnnStatus_t forward(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                             cudnnFilterDescriptor_t w, cudnnConvolutionDescriptor_t conv,
                             cudnnTensorDescriptor_t y, bool find, int requested, int *returned,
                             cudnnConvolutionFwdAlgoPerf_t *results)
{
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    mica_conv_desc d;
    FRONT_TRY(front_conv(MICA_CONV_FWD, x, w, conv, y, &d));
    return list(handle, &d, conv, find, requested, returned, results);
}

cudnnStatus_t
cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                       cudnnFilterDescriptor_t w, cudnnConvolutionDescriptor_t conv,
                                       cudnnTensorDescriptor_t y, int requested, int *returned,
                                       cudnnConvolutionFwdAlgoPerf_t *results)
{
    front_enter(CALL_cudnnGetConvolutionForwardAlgorithm_v7);
    return forward(handle, x, w, conv, y, false, requested, returned, results);
}

cudnnStatus_t cudnnFindConvolutionForwardAlgorithm(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                                   cudnnFilterDescriptor_t w,
                                                   cudnnConvolutionDescriptor_t conv,
                                                   cudnnTensorDescriptor_t y, int requested,
                                                   int *returned,
                                                   cudnnConvolutionFwdAlgoPerf_t *results)
{
    front_enter(CALL_cudnnFindConvolutionForwardAlgorithm);
    return forward(handle, x, w, conv, y, true, requested, returned, results);
}

/* Measured in memory of mica's own: the caller's data stays as it is. */
cudnnStatus_t cudnnFindConvolutionForwardAlgorithmEx(
    cudnnHandle_t handle, cudnnTensorDescriptor_t x_desc, const void *x,
    cudnnFilterDescriptor_t w_desc, const void *w, cudnnConvolutionDescriptor_t conv,
    cudnnTensorDescriptor_t y_desc, void *y, int requested, int *returned,
    cudnnConvolutionFwdAlgoPerf_t *results, void *workspace, size_t bytes)
{
    (void)x, (void)w, (void)y, (void)workspace, (void)bytes;
    front_enter(CALL_cudnnFindConvolutionForwardAlgorithmEx);
    return forward(handle, x_desc, w_desc, conv, y_desc, true, requested, returned, results);
}

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(
    cudnnHandle_t handle, cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w,
    cudnnConvolutionDescriptor_t conv, cudnnTensorDescriptor_t y,
    cudnnConvolutionFwdAlgo_t algorithm, size_t *size)
{
    front_enter(CALL_cudnnGetConvolutionForwardWorkspaceSize);
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    FRONT_TRY(front_conv_algorithm((int)algorithm, CUDNN_CONVOLUTION_FWD_ALGO_COUNT));
    mica_conv_desc d;
    FRONT_TRY(front_conv(MICA_CONV_FWD, x, w, conv, y, &d));
    return workspace_size(handle, &d, (int)algorithm, size);
}

/* ---- backward, of data ---- */

cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithmMaxCount(cudnnHandle_t handle, int *count)
{
    front_enter(CALL_cudnnGetConvolutionBackwardDataAlgorithmMaxCount);
    return max_count(handle, CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT, count);
}

static cudnnStatus_t backward_data(cudnnHandle_t handle, cudnnFilterDescriptor_t w,
                                   cudnnTensorDescriptor_t dy, cudnnConvolutionDescriptor_t conv,
                                   cudnnTensorDescriptor_t dx, bool find, int requested,
                                   int *returned, cudnnConvolutionBwdDataAlgoPerf_t *results)
{
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    mica_conv_desc d;
    FRONT_TRY(front_conv(MICA_CONV_DGRAD, dx, w, conv, dy, &d));
    return list(handle, &d, conv, find, requested, returned, results);
}

cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(
    cudnnHandle_t handle, cudnnFilterDescriptor_t w, cudnnTensorDescriptor_t dy,
    cudnnConvolutionDescriptor_t conv, cudnnTensorDescriptor_t dx, int requested, int *returned,
    cudnnConvolutionBwdDataAlgoPerf_t *results)
{
    front_enter(CALL_cudnnGetConvolutionBackwardDataAlgorithm_v7);
    return backward_data(handle, w, dy, conv, dx, false, requested, returned, results);
}

cudnnStatus_t cudnnFindConvolutionBackwardDataAlgorithm(
    cudnnHandle_t handle, cudnnFilterDescriptor_t w, cudnnTensorDescriptor_t dy,
    cudnnConvolutionDescriptor_t conv, cudnnTensorDescriptor_t dx, int requested, int *returned,
    cudnnConvolutionBwdDataAlgoPerf_t *results)
{
    front_enter(CALL_cudnnFindConvolutionBackwardDataAlgorithm);
    return backward_data(handle, w, dy, conv, dx, true, requested, returned, results);
}

cudnnStatus_t cudnnFindConvolutionBackwardDataAlgorithmEx(
    cudnnHandle_t handle, cudnnFilterDescriptor_t w_desc, const void *w,
    cudnnTensorDescriptor_t dy_desc, const void *dy, cudnnConvolutionDescriptor_t conv,
    cudnnTensorDescriptor_t dx_desc, void *dx, int requested, int *returned,
    cudnnConvolutionBwdDataAlgoPerf_t *results, void *workspace, size_t bytes)
{
    (void)w, (void)dy, (void)dx, (void)workspace, (void)bytes;
    front_enter(CALL_cudnnFindConvolutionBackwardDataAlgorithmEx);
    return backward_data(handle, w_desc, dy_desc, conv, dx_desc, true, requested, returned,
                         results);
}

cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(
    cudnnHandle_t handle, cudnnFilterDescriptor_t w, cudnnTensorDescriptor_t dy,
    cudnnConvolutionDescriptor_t conv, cudnnTensorDescriptor_t dx,
    cudnnConvolutionBwdDataAlgo_t algorithm, size_t *size)
{
    front_enter(CALL_cudnnGetConvolutionBackwardDataWorkspaceSize);
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    FRONT_TRY(front_conv_algorithm((int)algorithm, CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT));
    mica_conv_desc d;
    FRONT_TRY(front_conv(MICA_CONV_DGRAD, dx, w, conv, dy, &d));
    return workspace_size(handle, &d, (int)algorithm, size);
}

/* ---- backward, of filters ---- */

cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithmMaxCount(cudnnHandle_t handle, int *count)
{
    front_enter(CALL_cudnnGetConvolutionBackwardFilterAlgorithmMaxCount);
    return max_count(handle, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT, count);
}

static cudnnStatus_t backward_filter(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                     cudnnTensorDescriptor_t dy, cudnnConvolutionDescriptor_t conv,
                                     cudnnFilterDescriptor_t dw, bool find, int requested,
                                     int *returned, cudnnConvolutionBwdFilterAlgoPerf_t *results)
{
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    mica_conv_desc d;
    FRONT_TRY(front_conv(MICA_CONV_WGRAD, x, dw, conv, dy, &d));
    return list(handle, &d, conv, find, requested, returned, results);
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(
    cudnnHandle_t handle, cudnnTensorDescriptor_t x, cudnnTensorDescriptor_t dy,
    cudnnConvolutionDescriptor_t conv, cudnnFilterDescriptor_t dw, int requested, int *returned,
    cudnnConvolutionBwdFilterAlgoPerf_t *results)
{
    front_enter(CALL_cudnnGetConvolutionBackwardFilterAlgorithm_v7);
    return backward_filter(handle, x, dy, conv, dw, false, requested, returned, results);
}

cudnnStatus_t cudnnFindConvolutionBackwardFilterAlgorithm(
    cudnnHandle_t handle, cudnnTensorDescriptor_t x, cudnnTensorDescriptor_t dy,
    cudnnConvolutionDescriptor_t conv, cudnnFilterDescriptor_t dw, int requested, int *returned,
    cudnnConvolutionBwdFilterAlgoPerf_t *results)
{
    front_enter(CALL_cudnnFindConvolutionBackwardFilterAlgorithm);
    return backward_filter(handle, x, dy, conv, dw, true, requested, returned, results);
}

cudnnStatus_t cudnnFindConvolutionBackwardFilterAlgorithmEx(
    cudnnHandle_t handle, cudnnTensorDescriptor_t x_desc, const void *x,
    cudnnTensorDescriptor_t dy_desc, const void *dy, cudnnConvolutionDescriptor_t conv,
    cudnnFilterDescriptor_t dw_desc, void *dw, int requested, int *returned,
    cudnnConvolutionBwdFilterAlgoPerf_t *results, void *workspace, size_t bytes)
{
    (void)x, (void)dy, (void)dw, (void)workspace, (void)bytes;
    front_enter(CALL_cudnnFindConvolutionBackwardFilterAlgorithmEx);
    return backward_filter(handle, x_desc, dy_desc, conv, dw_desc, true, requested, returned,
                           results);
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(
    cudnnHandle_t handle, cudnnTensorDescriptor_t x, cudnnTensorDescriptor_t dy,
    cudnnConvolutionDescriptor_t conv, cudnnFilterDescriptor_t dw,
    cudnnConvolutionBwdFilterAlgo_t algorithm, size_t *size)
{
    front_enter(CALL_cudnnGetConvolutionBackwardFilterWorkspaceSize);
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    FRONT_TRY(front_conv_algorithm((int)algorithm, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT));
    mica_conv_desc d;
    FRONT_TRY(front_conv(MICA_CONV_WGRAD, x, dw, conv, dy, &d));
    return workspace_size(handle, &d, (int)algorithm, size);
}
