/* SPDX-License-Identifier: Apache-2.0
 * MICA_CUDNN_COMPARE=PATH: each call of the functions below is first made on the library at PATH,
 * with results in memory of its own, then here; what differs is told. It costs copies of all
 * results to the host and a wait for the stream: it is for looking for mistakes, and not for
 * capture.
 *
 *     compare.c        the other library, its objects, results and what is told of them
 *     compare_ops.c, compare_conv.c, compare_graph.c    the exported functions, around those of the
 *                      other files
 *
 * A function of the other files is plain_cudnnX where cudnnX is compared. */
#ifndef FRONT_CUDNN_COMPARE_H
#define FRONT_CUDNN_COMPARE_H

#include "front.h"

extern __typeof__(cudnnBackendExecute) plain_cudnnBackendExecute;
extern __typeof__(cudnnActivationForward) plain_cudnnActivationForward;
extern __typeof__(cudnnActivationBackward) plain_cudnnActivationBackward;
extern __typeof__(cudnnBatchNormalizationForwardInference)
    plain_cudnnBatchNormalizationForwardInference;
extern __typeof__(cudnnBatchNormalizationForwardTraining)
    plain_cudnnBatchNormalizationForwardTraining;
extern __typeof__(cudnnBatchNormalizationForwardTrainingEx)
    plain_cudnnBatchNormalizationForwardTrainingEx;
extern __typeof__(cudnnBatchNormalizationBackward) plain_cudnnBatchNormalizationBackward;
extern __typeof__(cudnnBatchNormalizationBackwardEx) plain_cudnnBatchNormalizationBackwardEx;
extern __typeof__(cudnnConvolutionForward) plain_cudnnConvolutionForward;
extern __typeof__(cudnnConvolutionBackwardData) plain_cudnnConvolutionBackwardData;
extern __typeof__(cudnnConvolutionBackwardFilter) plain_cudnnConvolutionBackwardFilter;
extern __typeof__(cudnnConvolutionBiasActivationForward)
    plain_cudnnConvolutionBiasActivationForward;
extern __typeof__(cudnnConvolutionBackwardBias) plain_cudnnConvolutionBackwardBias;
extern __typeof__(cudnnPoolingForward) plain_cudnnPoolingForward;
extern __typeof__(cudnnPoolingBackward) plain_cudnnPoolingBackward;
extern __typeof__(cudnnSoftmaxForward) plain_cudnnSoftmaxForward;
extern __typeof__(cudnnSoftmaxBackward) plain_cudnnSoftmaxBackward;

enum { COMPARE_OBJECTS = 12, COMPARE_RESULTS = 24 };

typedef struct compare_result {
    const char *name;
    mica_tensor tensor;
    void *ours, *theirs;
} compare_result;

/* One call. */
typedef struct compare_call {
    front_call call;
    cudnnHandle_t handle;
    cudnnHandle_t original; /* of the other library */
    bool lost;              /* something could not be made: the call is not compared */
    cudnnStatus_t status;   /* of the other library */
    void *objects[COMPARE_OBJECTS];
    front_kind kinds[COMPARE_OBJECTS];
    int object_count;
    compare_result results[COMPARE_RESULTS];
    int result_count;
    void *memory[4]; /* workspaces */
    int memory_count;
} compare_call;

/* false: nothing is compared with. */
bool compare_begin(compare_call *c, cudnnHandle_t handle, front_call call);
/* The other library's object like a tensor, filter, convolution, pooling or activation descriptor
 * of ours; NULL for NULL. */
void *compare_object(compare_call *c, const void *object);
/* Memory with a result's content of before, which the other library writes; NULL for NULL. */
void *compare_result_of(compare_call *c, const char *name, const void *descriptor, void *data);
/* The same of a tensor that no descriptor has. The name stays the caller's. */
void *compare_result_at(compare_call *c, const char *name, const mica_tensor *tensor, void *data);
/* Memory of so many bytes for the other library. */
void *compare_memory(compare_call *c, size_t bytes);
/* A function of the other library, or NULL with the call lost. */
void *compare_function(compare_call *c, const char *name);
/* Compares what is there now, where both succeeded; frees. Returns `status`, that of our call. */
cudnnStatus_t compare_end(compare_call *c, cudnnStatus_t status);
/* Destroys what a handle has of the other library. */
void compare_close(cudnnHandle_t handle);
/* Destroys a descriptor of the other library's graph interface; NULL is none. */
void compare_drop(void *descriptor);
/* Of the process, at its end. */
void compare_report(void);

#endif
