/* SPDX-License-Identifier: Apache-2.0
 * What is asked of the library and of a handle: versions, properties, the stream. */
#include "front.h"

/* The version that PyTorch 2.11 and JAX 0.11 were built with and were traced against. Both refuse a
 * library of a smaller minor version than theirs, and cudnn-frontend decides by this number which
 * graphs it builds (from 9.13 on a plain attention is one node, from 9.21 on it has attributes that
 * no trace shows): a larger number would promise what was not seen. */
enum { MAJOR = 9, MINOR = 19, PATCH = 0, VERSION = MAJOR * 10000 + MINOR * 100 + PATCH };

size_t cudnnGetVersion(void)
{
    front_enter(CALL_cudnnGetVersion);
    return VERSION;
}

/* Compute capability times 100, as cuDNN 9.19 has it: no device is too new for a compiler at run
 * time. */
size_t cudnnGetMaxDeviceVersion(void)
{
    front_enter(CALL_cudnnGetMaxDeviceVersion);
    return 1210;
}

/* No CUDA runtime is linked; what clients compare with is that of their own, 13.0. */
size_t cudnnGetCudartVersion(void)
{
    front_enter(CALL_cudnnGetCudartVersion);
    return 13000;
}

cudnnStatus_t cudnnGetProperty(libraryPropertyType type, int *value)
{
    static const int properties[] = {
        [MAJOR_VERSION] = MAJOR, [MINOR_VERSION] = MINOR, [PATCH_LEVEL] = PATCH};
    front_enter(CALL_cudnnGetProperty);
    FRONT_TRY(front_given(value, "value"));
    if ((unsigned)type > PATCH_LEVEL)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "property %d, known are 0 to 2", (int)type);
    *value = properties[type];
    return CUDNN_STATUS_SUCCESS;
}

/* The parts of cuDNN are one library here, so they fit each other. */
cudnnStatus_t cudnnGraphVersionCheck(void)
{
    front_enter(CALL_cudnnGraphVersionCheck);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnOpsVersionCheck(void)
{
    front_enter(CALL_cudnnOpsVersionCheck);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCnnVersionCheck(void)
{
    front_enter(CALL_cudnnCnnVersionCheck);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnAdvVersionCheck(void)
{
    front_enter(CALL_cudnnAdvVersionCheck);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    front_enter(CALL_cudnnSetStream);
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t *stream)
{
    front_enter(CALL_cudnnGetStream);
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    FRONT_TRY(front_given(stream, "stream"));
    *stream = handle->stream;
    return CUDNN_STATUS_SUCCESS;
}

/* No kernel of mica's reports errors of its own after its launch: what there is to know is the
 * device's health. */
cudnnStatus_t cudnnQueryRuntimeError(cudnnHandle_t handle, cudnnStatus_t *status,
                                     cudnnErrQueryMode_t mode, cudnnRuntimeTag_t *tag)
{
    (void)tag;
    front_enter(CALL_cudnnQueryRuntimeError);
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    FRONT_TRY(front_given(status, "rstatus"));
    if ((unsigned)mode > CUDNN_ERRQUERY_BLOCKING)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "query mode %d, known are 0 to 2", (int)mode);
    mica_status health = mica_health(handle->context);
    if (health == MICA_OK && mode == CUDNN_ERRQUERY_BLOCKING)
        health = mica_synchronize(handle->context, handle->stream);
    *status = health == MICA_OK ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
    return CUDNN_STATUS_SUCCESS;
}
