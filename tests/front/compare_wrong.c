/* SPDX-License-Identifier: Apache-2.0
 * A library to be compared with (MICA_CUDNN_COMPARE) that is wrong in a few places: what it does
 * not have, a second build of the drop-in behind it answers. Handles are on the host. */
#include <dlfcn.h>
#include <stddef.h>

#include "cudnn_abi.h"

#define EXPORTED __attribute__((visibility("default")))

static void *right(const char *name)
{
    void *library = dlopen("libcudnn_second.so", RTLD_NOW | RTLD_NOLOAD);
    return library ? dlsym(library, name) : NULL;
}

/* The first element of y is a half more. */
EXPORTED cudnnStatus_t cudnnActivationForward(cudnnHandle_t handle,
                                              cudnnActivationDescriptor_t activation,
                                              const void *alpha, cudnnTensorDescriptor_t x_desc,
                                              const void *x, const void *beta,
                                              cudnnTensorDescriptor_t y_desc, void *y)
{
    __typeof__(&cudnnActivationForward) f;
    __typeof__(&cudnnGetTensorNdDescriptor) get;
    cudnnDataType_t type = CUDNN_DATA_HALF;
    int rank, dims[8], strides[8];
    *(void **)&f = right("cudnnActivationForward");
    *(void **)&get = right("cudnnGetTensorNdDescriptor");
    const cudnnStatus_t status = f(handle, activation, alpha, x_desc, x, beta, y_desc, y);
    if (status == CUDNN_STATUS_SUCCESS) get(y_desc, 8, &type, &rank, dims, strides);
    if (type == CUDNN_DATA_FLOAT) *(float *)y += 0.5f;
    if (type == CUDNN_DATA_DOUBLE) *(double *)y += 0.5;
    return status;
}

/* No maximum pools. */
EXPORTED cudnnStatus_t cudnnPoolingForward(cudnnHandle_t handle, cudnnPoolingDescriptor_t pooling,
                                           const void *alpha, cudnnTensorDescriptor_t x_desc,
                                           const void *x, const void *beta,
                                           cudnnTensorDescriptor_t y_desc, void *y)
{
    (void)handle, (void)pooling, (void)alpha, (void)x_desc, (void)x, (void)beta, (void)y_desc;
    (void)y;
    return CUDNN_STATUS_NOT_SUPPORTED;
}

/* Graphs write nothing. */
EXPORTED cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                           cudnnBackendDescriptor_t pack)
{
    (void)handle, (void)plan, (void)pack;
    return CUDNN_STATUS_SUCCESS;
}
