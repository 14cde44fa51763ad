/* SPDX-License-Identifier: Apache-2.0
 * What all parts of the drop-in libcudnn.so.9 share: objects with a kind, errors with a text, one
 * mica context per device, plans and runs, counters.
 *
 * A function of the interface reads
 *
 *     cudnnStatus_t cudnnScaleTensor(cudnnHandle_t handle, ...)
 *     {
 *         front_enter(CALL_cudnnScaleTensor);
 *         FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
 *         ...
 *         return front_run(handle, "transform", &d, sizeof d, &run);
 *     }
 *
 * It never succeeds without having done what was asked: what is not served ends in front_fail with
 * CUDNN_STATUS_NOT_SUPPORTED and the rule. */
#ifndef FRONT_CUDNN_FRONT_H
#define FRONT_CUDNN_FRONT_H

#include "cudnn_abi.h"
#include "mica/mica.h"

#include <stdbool.h>

/* Functions by number, in the order of functions.def. */
typedef enum front_call {
#define SERVED(part, result, name, arguments) CALL_##name,
#define REFUSED(part, name, words)            CALL_##name,
#include "functions.def"
#undef SERVED
#undef REFUSED
    FRONT_CALLS
} front_call;

/* ---- errors and counters --------------------------------------------------------------------- */

/* Counts the call; what fails on this thread until the next one is a failure of it. */
void front_enter(front_call call);
/* Returns the status and keeps the text for cudnnGetLastErrorString of this thread. */
cudnnStatus_t front_fail(cudnnStatus_t status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* The same for what mica refused, with mica_error() as the text; MICA_OK is success. */
cudnnStatus_t front_status(mica_status status);
/* Counts that mica ran something for the call at hand; front_run does so itself. */
void front_served(void);
/* The name "CUDNN_STATUS_BAD_PARAM"; never NULL. */
const char *front_status_name(cudnnStatus_t status);
const char *front_call_name(front_call call);
/* A line to the log, or to stderr where there is none. */
void front_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

#define FRONT_TRY(expression)                                                                      \
    do {                                                                                           \
        cudnnStatus_t front_try_ = (expression);                                                   \
        if (front_try_ != CUDNN_STATUS_SUCCESS) return front_try_;                                 \
    } while (0)

/* ---- objects ----------------------------------------------------------------------------------
 * Every object begins with its kind, so that a pointer of another kind is told. X(NAME, words) */
#define FRONT_KINDS(X)                                                                             \
    X(HANDLE, "handle")                                                                            \
    X(TENSOR, "tensor descriptor")                                                                 \
    X(FILTER, "filter descriptor")                                                                 \
    X(CONVOLUTION, "convolution descriptor")                                                       \
    X(POOLING, "pooling descriptor")                                                               \
    X(ACTIVATION, "activation descriptor")                                                         \
    X(LRN, "LRN descriptor")                                                                       \
    X(OP_TENSOR, "op-tensor descriptor")                                                           \
    X(REDUCE, "reduce descriptor")                                                                 \
    X(TRANSFORM, "transform descriptor")                                                           \
    X(SPATIAL, "spatial transformer descriptor")                                                   \
    X(DROPOUT, "dropout descriptor")                                                               \
    X(RNN, "RNN descriptor")                                                                       \
    X(RNN_DATA, "RNN data descriptor")                                                             \
    X(CTC, "CTC loss descriptor")                                                                  \
    X(BACKEND, "backend descriptor")

typedef enum front_kind {
    FRONT_GONE = 0x6d1ca000, /* what was destroyed, and the base of the tags */
#define FRONT_X(name, words) FRONT_##name,
    FRONT_KINDS(FRONT_X)
#undef FRONT_X
        FRONT_KIND_END
} front_kind;

/* Success if the object is of that kind; else CUDNN_STATUS_BAD_PARAM naming the argument. */
cudnnStatus_t front_check(const void *object, front_kind kind, const char *argument);
/* CUDNN_STATUS_BAD_PARAM_NULL_POINTER naming the argument if it is null. */
cudnnStatus_t front_given(const void *pointer, const char *argument);
/* Makes an object of `size` bytes, zero but for its kind, and stores its address at `created`. */
cudnnStatus_t front_create(front_kind kind, size_t size, void *created);
/* Frees it; a null object is a success, as with cuDNN. */
cudnnStatus_t front_destroy(void *object, front_kind kind);

typedef struct front_scratch front_scratch;
struct cudnnContext {
    front_kind kind;
    int device;            /* CUDA ordinal; -1: the host (MICA_CUDNN_DEVICE=cpu) */
    mica_context *context; /* shared by all handles of the device, never destroyed */
    void *stream;
    cudnnHandle_t original; /* of the library compared with, or NULL */
    front_scratch *scratch; /* workspace of functions that are given none, one per stream */
};
struct cudnnTensorStruct {
    front_kind kind;
    bool set;
    cudnnDataType_t type; /* as it was set, vectorised types too */
    mica_tensor tensor;
};
/* K x C x spatial; tensor has the strides of the format. */
struct cudnnFilterStruct {
    front_kind kind;
    bool set;
    cudnnDataType_t type;
    cudnnTensorFormat_t format;
    mica_tensor tensor;
};
struct cudnnActivationStruct {
    front_kind kind;
    bool set;
    cudnnActivationMode_t mode;
    cudnnNanPropagation_t nan;
    double coef, swish_beta;
};
struct cudnnPoolingStruct {
    front_kind kind;
    bool set;
    int axes;
    int window[MICA_MAX_RANK - 2], pad[MICA_MAX_RANK - 2], stride[MICA_MAX_RANK - 2];
    cudnnPoolingMode_t mode;
    cudnnNanPropagation_t nan;
};
struct cudnnDropoutStruct {
    front_kind kind;
    bool set;
    float dropout;
    void *states; /* device memory of the caller, or NULL */
    size_t bytes;
    unsigned long long seed;
};

/* Checks a tensor or filter descriptor that has to be set, and gives its tensor. */
cudnnStatus_t front_tensor(cudnnTensorDescriptor_t descriptor, const char *argument,
                           mica_tensor *tensor);
cudnnStatus_t front_filter(cudnnFilterDescriptor_t descriptor, const char *argument,
                           mica_tensor *tensor);

/* ---- types and scalars ----------------------------------------------------------------------- */

/* MICA_NONE for types that mica does not have. */
mica_dtype front_dtype(cudnnDataType_t type);
/* false: cuDNN has no such type. */
bool front_data_type(mica_dtype dtype, cudnnDataType_t *type);
/* A scaling factor in host memory: double for f64 tensors, else float. */
cudnnStatus_t front_scalar(const void *scalar, mica_dtype of, const char *argument, double *value);
/* mica's activation for a descriptor; parameters in a and b, MICA_ZERO where 0 is meant. */
cudnnStatus_t front_activation(cudnnActivationDescriptor_t descriptor, mica_act *act, double *a,
                               double *b);

/* ---- handles, plans, runs ---------------------------------------------------------------------
 */

/* The handle's mica context. */
mica_context *front_context(cudnnHandle_t handle);
/* That of a CUDA ordinal; with MICA_CUDNN_DEVICE=cpu the host's. */
cudnnStatus_t front_device_context(int device, mica_context **context);
/* Workspace of the handle and its stream, at least `bytes`, aligned to 256; it stays until the
 * handle is destroyed and may be overwritten by the next call. */
cudnnStatus_t front_workspace(cudnnHandle_t handle, size_t bytes, void **workspace);
/* The same beside it, for results in between: slots 1 to 7 do not overlap. */
cudnnStatus_t front_temporary(cudnnHandle_t handle, int slot, size_t bytes, void **memory);
/* to = alpha * from + beta * to, element by element; `to` is not read where beta is 0. from may
 * broadcast: its dimensions are to's, or 1. */
cudnnStatus_t front_blend(cudnnHandle_t handle, double alpha, const mica_tensor *from,
                          const void *source, double beta, const mica_tensor *to, void *target);
/* A packed f32 tensor of these dimensions (f64 of f64) in the memory of a slot. */
cudnnStatus_t front_temporary_like(cudnnHandle_t handle, int slot, const mica_tensor *like,
                                   mica_tensor *tensor, void **memory);

/* A plan of the problem for the handle's device, from the bounded cache of its context (about a
 * microsecond if it is there). Give it back with mica_plan_destroy. options may be NULL. */
cudnnStatus_t front_plan(cudnnHandle_t handle, const char *op, const void *desc, size_t desc_size,
                         const mica_options *options, mica_plan **plan);
/* Plans and runs on the handle's stream, with workspace of the handle. run->stream and
 * run->workspace are set here. */
cudnnStatus_t front_run(cudnnHandle_t handle, const char *op, const void *desc, size_t desc_size,
                        mica_run *run);
/* The same in workspace of the caller: if it is too small for the best plan, one that fits is
 * taken; if there is none, the handle's own workspace. */
cudnnStatus_t front_run_in(cudnnHandle_t handle, const char *op, const void *desc, size_t desc_size,
                           mica_run *run, void *workspace, size_t bytes);

/* Counts up the offset in a dropout's states, in stream order: the next draw is another one. */
cudnnStatus_t front_next_draw(cudnnHandle_t handle, void *states);

/* ---- exported beside cuDNN's functions --------------------------------------------------------
 * Proof that this library was called: calls of one function ("cudnnConvolutionForward"), or of all
 * if it is NULL; -1 for an unknown name. served: those for which mica ran something. */
#pragma GCC visibility push(default)
int64_t mica_cudnn_calls(const char *function);
int64_t mica_cudnn_served(const char *function);
/* Version of mica behind it, "0.1.0". */
const char *mica_cudnn_version(void);
#pragma GCC visibility pop

#endif
