/* SPDX-License-Identifier: Apache-2.0
 * Dropout and its states. The states are two 64-bit integers in device memory, {seed, offset}, as
 * mica/random.h has them; each forward call counts the offset up, on the device, so that a captured
 * graph draws anew with each replay. The bits that were kept go to the reserve space. The masks are
 * therefore not cuDNN's. */
#include "front.h"

/* Enough for {seed, offset}; a multiple of what allocators align to. */
enum { STATES_BYTES = 256 };

cudnnStatus_t cudnnCreateDropoutDescriptor(cudnnDropoutDescriptor_t *descriptor)
{
    front_enter(CALL_cudnnCreateDropoutDescriptor);
    return front_create(FRONT_DROPOUT, sizeof **descriptor, descriptor);
}

cudnnStatus_t cudnnDestroyDropoutDescriptor(cudnnDropoutDescriptor_t descriptor)
{
    front_enter(CALL_cudnnDestroyDropoutDescriptor);
    return front_destroy(descriptor, FRONT_DROPOUT);
}

cudnnStatus_t cudnnDropoutGetStatesSize(cudnnHandle_t handle, size_t *size)
{
    front_enter(CALL_cudnnDropoutGetStatesSize);
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    FRONT_TRY(front_given(size, "sizeInBytes"));
    *size = STATES_BYTES;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t set(cudnnDropoutDescriptor_t descriptor, cudnnHandle_t handle, float dropout,
                         void *states, size_t bytes, unsigned long long seed)
{
    FRONT_TRY(front_check(descriptor, FRONT_DROPOUT, "dropoutDesc"));
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    if (!(dropout >= 0 && dropout <= 1))
        return front_fail(CUDNN_STATUS_BAD_PARAM, "dropout is %g, 0 to 1 are possible",
                          (double)dropout);
    if (states && bytes < STATES_BYTES)
        return front_fail(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT, "states of %zu bytes < %d",
                          bytes, STATES_BYTES);
    descriptor->dropout = dropout;
    descriptor->states = states;
    descriptor->bytes = bytes;
    descriptor->seed = seed;
    descriptor->set = true;
    return CUDNN_STATUS_SUCCESS;
}

/* Without states nothing can be drawn, which who drops nothing does not need. */
cudnnStatus_t cudnnSetDropoutDescriptor(cudnnDropoutDescriptor_t descriptor, cudnnHandle_t handle,
                                        float dropout, void *states, size_t bytes,
                                        unsigned long long seed)
{
    front_enter(CALL_cudnnSetDropoutDescriptor);
    FRONT_TRY(set(descriptor, handle, dropout, states, bytes, seed));
    const uint64_t fresh[2] = {seed, 0};
    if (!states) return CUDNN_STATUS_SUCCESS;
    return front_status(mica_upload(handle->context, states, fresh, sizeof fresh, handle->stream));
}

/* The states go on from where they are. */
cudnnStatus_t cudnnRestoreDropoutDescriptor(cudnnDropoutDescriptor_t descriptor,
                                            cudnnHandle_t handle, float dropout, void *states,
                                            size_t bytes, unsigned long long seed)
{
    front_enter(CALL_cudnnRestoreDropoutDescriptor);
    return set(descriptor, handle, dropout, states, bytes, seed);
}

cudnnStatus_t cudnnGetDropoutDescriptor(cudnnDropoutDescriptor_t descriptor, cudnnHandle_t handle,
                                        float *dropout, void **states, unsigned long long *seed)
{
    front_enter(CALL_cudnnGetDropoutDescriptor);
    FRONT_TRY(front_check(descriptor, FRONT_DROPOUT, "dropoutDesc"));
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    if (dropout) *dropout = descriptor->dropout;
    if (states) *states = descriptor->states;
    if (seed) *seed = descriptor->seed;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t front_next_draw(cudnnHandle_t handle, void *states)
{
    const mica_tensor offset = mica_tensor_packed(MICA_S64, 1, (int64_t[]){1});
    mica_pointwise_desc d = {.expr = "x0+1", .x0 = offset, .y0 = offset};
    mica_run run = {0};
    run.args[MICA_POINTWISE_X0] = run.args[MICA_POINTWISE_Y0] = (char *)states + sizeof(int64_t);
    return front_run(handle, "pointwise", &d, sizeof d, &run);
}

/* A bit for each element, by rows of the last dimension. */
static mica_tensor bits_of(const mica_tensor *x)
{
    mica_tensor rows = *x;
    rows.dims[x->rank - 1] = (x->dims[x->rank - 1] + 7) / 8;
    return mica_tensor_packed(MICA_U8, rows.rank, rows.dims);
}

cudnnStatus_t cudnnDropoutGetReserveSpaceSize(cudnnTensorDescriptor_t x_desc, size_t *size)
{
    front_enter(CALL_cudnnDropoutGetReserveSpaceSize);
    mica_tensor x = {0};
    FRONT_TRY(front_tensor(x_desc, "xdesc", &x));
    FRONT_TRY(front_given(size, "sizeInBytes"));
    x = bits_of(&x);
    *size = (size_t)mica_tensor_span(&x, NULL);
    return CUDNN_STATUS_SUCCESS;
}

/* Checks what both directions get, and gives the bits. */
static cudnnStatus_t check(cudnnHandle_t handle, cudnnDropoutDescriptor_t dropout,
                           const mica_tensor *x, const void *reserve, size_t bytes,
                           mica_tensor *bits)
{
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    FRONT_TRY(front_check(dropout, FRONT_DROPOUT, "dropoutDesc"));
    if (!dropout->set) return front_fail(CUDNN_STATUS_BAD_PARAM, "dropoutDesc was never set");
    FRONT_TRY(front_given(reserve, "reserveSpace"));
    *bits = bits_of(x);
    if (bytes < (size_t)mica_tensor_span(bits, NULL))
        return front_fail(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT,
                          "reserve space of %zu bytes < %zu", bytes,
                          (size_t)mica_tensor_span(bits, NULL));
    return CUDNN_STATUS_SUCCESS;
}

static double share(cudnnDropoutDescriptor_t dropout)
{
    return dropout->dropout == 0 ? MICA_ZERO : (double)dropout->dropout;
}

cudnnStatus_t cudnnDropoutForward(cudnnHandle_t handle, cudnnDropoutDescriptor_t dropout,
                                  cudnnTensorDescriptor_t x_desc, const void *x,
                                  cudnnTensorDescriptor_t y_desc, void *y, void *reserve,
                                  size_t bytes)
{
    front_enter(CALL_cudnnDropoutForward);
    mica_dropout_desc d = {0};
    FRONT_TRY(front_tensor(x_desc, "xdesc", &d.x));
    FRONT_TRY(front_tensor(y_desc, "ydesc", &d.y));
    FRONT_TRY(check(handle, dropout, &d.x, reserve, bytes, &d.bits));
    FRONT_TRY(front_given(dropout->states, "states of dropoutDesc"));
    d.p = share(dropout);
    mica_run run = {0};
    run.args[MICA_DROPOUT_X] = (void *)x;
    run.args[MICA_DROPOUT_Y] = y;
    run.args[MICA_DROPOUT_BITS] = reserve;
    run.args[MICA_DROPOUT_RNG] = dropout->states;
    FRONT_TRY(front_run(handle, "dropout", &d, sizeof d, &run));
    return front_next_draw(handle, dropout->states);
}

cudnnStatus_t cudnnDropoutBackward(cudnnHandle_t handle, cudnnDropoutDescriptor_t dropout,
                                   cudnnTensorDescriptor_t dy_desc, const void *dy,
                                   cudnnTensorDescriptor_t dx_desc, void *dx, void *reserve,
                                   size_t bytes)
{
    front_enter(CALL_cudnnDropoutBackward);
    mica_dropout_desc d = {.pass = MICA_DROPOUT_BWD};
    FRONT_TRY(front_tensor(dy_desc, "dydesc", &d.dy));
    FRONT_TRY(front_tensor(dx_desc, "dxdesc", &d.dx));
    FRONT_TRY(check(handle, dropout, &d.dy, reserve, bytes, &d.bits));
    d.p = share(dropout);
    mica_run run = {0};
    run.args[MICA_DROPOUT_DY] = (void *)dy;
    run.args[MICA_DROPOUT_DX] = dx;
    run.args[MICA_DROPOUT_BITS] = reserve;
    return front_run(handle, "dropout", &d, sizeof d, &run);
}
