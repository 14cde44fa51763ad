/* SPDX-License-Identifier: Apache-2.0
 * The words of cuDNN 9's binary interface that this library speaks: statuses, enumerations, opaque
 * objects. Values are facts of that interface; tests/front/abi_check compares each of them with an
 * installed cudnn.h. Those of the graph interface are in backend_abi.h. */
#ifndef FRONT_CUDNN_TYPES_H
#define FRONT_CUDNN_TYPES_H

#include <stddef.h>
#include <stdint.h>

/* X(name, value, words). The thousands are the kind of failure, the rest says more. */
#define CUDNN_STATUSES(X)                                                                          \
    X(SUCCESS, 0, "success")                                                                       \
    X(NOT_INITIALIZED, 1001, "no usable device, driver or compiler")                               \
    X(SUBLIBRARY_VERSION_MISMATCH, 1002, "parts of the library do not fit each other")             \
    X(SERIALIZATION_VERSION_MISMATCH, 1003, "a plan in text is of another version")                \
    X(DEPRECATED, 1004, "the function is no longer there")                                         \
    X(LICENSE_ERROR, 1005, "licence")                                                              \
    X(RUNTIME_IN_PROGRESS, 1006, "work is still running")                                          \
    X(RUNTIME_FP_OVERFLOW, 1007, "a number overflowed")                                            \
    X(SUBLIBRARY_LOADING_FAILED, 1008, "a part of the library did not load")                       \
    X(BAD_PARAM, 2000, "a wrong argument")                                                         \
    X(INVALID_VALUE, 2001, "a wrong value")                                                        \
    X(BAD_PARAM_NULL_POINTER, 2002, "a null pointer")                                              \
    X(BAD_PARAM_MISALIGNED_POINTER, 2003, "a misaligned pointer")                                  \
    X(BAD_PARAM_NOT_FINALIZED, 2004, "a descriptor that is not finalized")                         \
    X(BAD_PARAM_OUT_OF_BOUND, 2005, "an argument out of bounds")                                   \
    X(BAD_PARAM_SIZE_INSUFFICIENT, 2006, "a buffer that is too small")                             \
    X(BAD_PARAM_STREAM_MISMATCH, 2007, "streams of different devices")                             \
    X(BAD_PARAM_SHAPE_MISMATCH, 2008, "shapes that do not fit each other")                         \
    X(BAD_PARAM_DUPLICATED_ENTRIES, 2009, "an entry that is there twice")                          \
    X(BAD_PARAM_ATTRIBUTE_TYPE, 2010, "an attribute of another type")                              \
    X(BAD_PARAM_CUDA_GRAPH_MISMATCH, 2011, "a CUDA graph of another plan")                         \
    X(BAD_PARAM_DESCRIPTOR_TYPE, 2012, "a descriptor of another kind")                             \
    X(NOT_SUPPORTED, 3000, "not supported")                                                        \
    X(NOT_SUPPORTED_GRAPH_PATTERN, 3001, "a graph that no engine takes")                           \
    X(NOT_SUPPORTED_SHAPE, 3002, "a shape that no engine takes")                                   \
    X(NOT_SUPPORTED_DATA_TYPE, 3003, "a data type that no engine takes")                           \
    X(NOT_SUPPORTED_LAYOUT, 3004, "a layout that no engine takes")                                 \
    X(NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER, 3005, "the driver is too old")                       \
    X(NOT_SUPPORTED_INCOMPATIBLE_CUDART, 3006, "the CUDA runtime does not fit")                    \
    X(NOT_SUPPORTED_ARCH_MISMATCH, 3007, "not on this device")                                     \
    X(NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING, 3008, "something it needs was not found")        \
    X(NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE, 3009, "a part of the library is not there")            \
    X(NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT, 3010, "too little shared memory")                  \
    X(NOT_SUPPORTED_PADDING, 3011, "a padding that no engine takes")                               \
    X(NOT_SUPPORTED_BAD_LAUNCH_PARAM, 3012, "a launch that is out of bounds")                      \
    X(NOT_SUPPORTED_CUDA_GRAPH_NATIVE_API, 3013, "not as a CUDA graph")                            \
    X(NOT_SUPPORTED_INVALID_DYNAMIC_SHAPE, 3014, "not with dynamic shapes")                        \
    X(INTERNAL_ERROR, 4000, "a mistake inside the library")                                        \
    X(INTERNAL_ERROR_COMPILATION_FAILED, 4001, "a kernel did not compile")                         \
    X(INTERNAL_ERROR_UNEXPECTED_VALUE, 4002, "an unexpected value inside the library")             \
    X(INTERNAL_ERROR_HOST_ALLOCATION_FAILED, 4003, "out of host memory")                           \
    X(INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, 4004, "out of device memory")                       \
    X(INTERNAL_ERROR_BAD_LAUNCH_PARAM, 4005, "a wrong launch inside the library")                  \
    X(INTERNAL_ERROR_TEXTURE_CREATION_FAILED, 4006, "a texture could not be made")                 \
    X(EXECUTION_FAILED, 5000, "the device failed")                                                 \
    X(EXECUTION_FAILED_CUDA_DRIVER, 5001, "the driver failed")                                     \
    X(EXECUTION_FAILED_CUBLAS, 5002, "cuBLAS failed")                                              \
    X(EXECUTION_FAILED_CUDART, 5003, "the CUDA runtime failed")                                    \
    X(EXECUTION_FAILED_CURAND, 5004, "cuRAND failed")

typedef enum cudnnStatus_t {
#define CUDNN_X(name, value, words) CUDNN_STATUS_##name = value,
    CUDNN_STATUSES(CUDNN_X)
#undef CUDNN_X
} cudnnStatus_t;

/* X(name, value, mica's dtype). MICA_NONE: no type of mica's. */
#define CUDNN_DATA_TYPES(X)                                                                        \
    X(FLOAT, 0, MICA_F32)                                                                          \
    X(DOUBLE, 1, MICA_F64)                                                                         \
    X(HALF, 2, MICA_F16)                                                                           \
    X(INT8, 3, MICA_S8)                                                                            \
    X(INT32, 4, MICA_S32)                                                                          \
    X(INT8x4, 5, MICA_NONE)                                                                        \
    X(UINT8, 6, MICA_U8)                                                                           \
    X(UINT8x4, 7, MICA_NONE)                                                                       \
    X(INT8x32, 8, MICA_NONE)                                                                       \
    X(BFLOAT16, 9, MICA_BF16)                                                                      \
    X(INT64, 10, MICA_S64)                                                                         \
    X(BOOLEAN, 11, MICA_BOOL)                                                                      \
    X(FP8_E4M3, 12, MICA_E4M3)                                                                     \
    X(FP8_E5M2, 13, MICA_E5M2)                                                                     \
    X(FAST_FLOAT_FOR_FP8, 14, MICA_F32)                                                            \
    X(FP8_E8M0, 15, MICA_E8M0)                                                                     \
    X(FP4_E2M1, 16, MICA_E2M1)                                                                     \
    X(INT4, 17, MICA_S4)                                                                           \
    X(UINT4, 18, MICA_U4)                                                                          \
    X(UINT32, 19, MICA_U32)                                                                        \
    X(COMPLEX_FP32, 20, MICA_C32)                                                                  \
    X(COMPLEX_FP64, 21, MICA_C64)

typedef enum cudnnDataType_t {
#define CUDNN_X(name, value, dtype) CUDNN_DATA_##name = value,
    CUDNN_DATA_TYPES(CUDNN_X)
#undef CUDNN_X
} cudnnDataType_t;

/* How f32 products are formed: of the first two TF32 is allowed, of FMA it is not. */
typedef enum {
    CUDNN_DEFAULT_MATH = 0,
    CUDNN_TENSOR_OP_MATH = 1,
    CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION = 2,
    CUDNN_FMA_MATH = 3
} cudnnMathType_t;
typedef enum { CUDNN_NOT_PROPAGATE_NAN = 0, CUDNN_PROPAGATE_NAN = 1 } cudnnNanPropagation_t;
typedef enum { CUDNN_NON_DETERMINISTIC = 0, CUDNN_DETERMINISTIC = 1 } cudnnDeterminism_t;
typedef enum {
    CUDNN_TENSOR_NCHW = 0,
    CUDNN_TENSOR_NHWC = 1,
    CUDNN_TENSOR_NCHW_VECT_C = 2
} cudnnTensorFormat_t;
typedef enum { CUDNN_CONVOLUTION = 0, CUDNN_CROSS_CORRELATION = 1 } cudnnConvolutionMode_t;
typedef enum { CUDNN_DEFAULT_REORDER = 0, CUDNN_NO_REORDER = 1 } cudnnReorderType_t;
typedef enum {
    CUDNN_ACTIVATION_SIGMOID = 0,
    CUDNN_ACTIVATION_RELU = 1,
    CUDNN_ACTIVATION_TANH = 2,
    CUDNN_ACTIVATION_CLIPPED_RELU = 3,
    CUDNN_ACTIVATION_ELU = 4,
    CUDNN_ACTIVATION_IDENTITY = 5,
    CUDNN_ACTIVATION_SWISH = 6
} cudnnActivationMode_t;
typedef enum {
    CUDNN_POOLING_MAX = 0,
    CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING = 1,
    CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING = 2,
    CUDNN_POOLING_MAX_DETERMINISTIC = 3
} cudnnPoolingMode_t;
typedef enum {
    CUDNN_SOFTMAX_FAST = 0,
    CUDNN_SOFTMAX_ACCURATE = 1,
    CUDNN_SOFTMAX_LOG = 2
} cudnnSoftmaxAlgorithm_t;
typedef enum { CUDNN_SOFTMAX_MODE_INSTANCE = 0, CUDNN_SOFTMAX_MODE_CHANNEL = 1 } cudnnSoftmaxMode_t;
typedef enum {
    CUDNN_BATCHNORM_PER_ACTIVATION = 0,
    CUDNN_BATCHNORM_SPATIAL = 1,
    CUDNN_BATCHNORM_SPATIAL_PERSISTENT = 2
} cudnnBatchNormMode_t;
typedef enum {
    CUDNN_BATCHNORM_OPS_BN = 0,
    CUDNN_BATCHNORM_OPS_BN_ACTIVATION = 1,
    CUDNN_BATCHNORM_OPS_BN_ADD_ACTIVATION = 2
} cudnnBatchNormOps_t;
typedef enum { CUDNN_NORM_PER_ACTIVATION = 0, CUDNN_NORM_PER_CHANNEL = 1 } cudnnNormMode_t;
typedef enum { CUDNN_NORM_ALGO_STANDARD = 0, CUDNN_NORM_ALGO_PERSIST = 1 } cudnnNormAlgo_t;
typedef enum {
    CUDNN_NORM_OPS_NORM = 0,
    CUDNN_NORM_OPS_NORM_ACTIVATION = 1,
    CUDNN_NORM_OPS_NORM_ADD_ACTIVATION = 2
} cudnnNormOps_t;
typedef enum { CUDNN_LRN_CROSS_CHANNEL_DIM1 = 0 } cudnnLRNMode_t;
typedef enum { CUDNN_DIVNORM_PRECOMPUTED_MEANS = 0 } cudnnDivNormMode_t;
typedef enum {
    CUDNN_OP_TENSOR_ADD = 0,
    CUDNN_OP_TENSOR_MUL = 1,
    CUDNN_OP_TENSOR_MIN = 2,
    CUDNN_OP_TENSOR_MAX = 3,
    CUDNN_OP_TENSOR_SQRT = 4,
    CUDNN_OP_TENSOR_NOT = 5
} cudnnOpTensorOp_t;
typedef enum {
    CUDNN_REDUCE_TENSOR_ADD = 0,
    CUDNN_REDUCE_TENSOR_MUL = 1,
    CUDNN_REDUCE_TENSOR_MIN = 2,
    CUDNN_REDUCE_TENSOR_MAX = 3,
    CUDNN_REDUCE_TENSOR_AMAX = 4,
    CUDNN_REDUCE_TENSOR_AVG = 5,
    CUDNN_REDUCE_TENSOR_NORM1 = 6,
    CUDNN_REDUCE_TENSOR_NORM2 = 7,
    CUDNN_REDUCE_TENSOR_MUL_NO_ZEROS = 8
} cudnnReduceTensorOp_t;
typedef enum {
    CUDNN_REDUCE_TENSOR_NO_INDICES = 0,
    CUDNN_REDUCE_TENSOR_FLATTENED_INDICES = 1
} cudnnReduceTensorIndices_t;
typedef enum {
    CUDNN_32BIT_INDICES = 0,
    CUDNN_64BIT_INDICES = 1,
    CUDNN_16BIT_INDICES = 2,
    CUDNN_8BIT_INDICES = 3
} cudnnIndicesType_t;
typedef enum { CUDNN_TRANSFORM_FOLD = 0, CUDNN_TRANSFORM_UNFOLD = 1 } cudnnFoldingDirection_t;
typedef enum { CUDNN_SAMPLER_BILINEAR = 0 } cudnnSamplerType_t;
typedef enum {
    CUDNN_ERRQUERY_RAWCODE = 0,
    CUDNN_ERRQUERY_NONBLOCKING = 1,
    CUDNN_ERRQUERY_BLOCKING = 2
} cudnnErrQueryMode_t;

/* Algorithms of a convolution: here a wish that has no influence, see docs/cudnn.md. */
typedef enum {
    CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM = 0,
    CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM = 1,
    CUDNN_CONVOLUTION_FWD_ALGO_COUNT = 8
} cudnnConvolutionFwdAlgo_t;
typedef enum {
    CUDNN_CONVOLUTION_BWD_DATA_ALGO_0 = 0,
    CUDNN_CONVOLUTION_BWD_DATA_ALGO_1 = 1,
    CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT = 6
} cudnnConvolutionBwdDataAlgo_t;
typedef enum {
    CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0 = 0,
    CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1 = 1,
    CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT = 7
} cudnnConvolutionBwdFilterAlgo_t;

/* Recurrent nets and CTC. */
typedef enum {
    CUDNN_RNN_ALGO_STANDARD = 0,
    CUDNN_RNN_ALGO_PERSIST_STATIC = 1,
    CUDNN_RNN_ALGO_PERSIST_DYNAMIC = 2,
    CUDNN_RNN_ALGO_PERSIST_STATIC_SMALL_H = 3,
    CUDNN_RNN_ALGO_COUNT = 4
} cudnnRNNAlgo_t;
typedef enum { CUDNN_FWD_MODE_INFERENCE = 0, CUDNN_FWD_MODE_TRAINING = 1 } cudnnForwardMode_t;
typedef enum {
    CUDNN_RNN_RELU = 0,
    CUDNN_RNN_TANH = 1,
    CUDNN_LSTM = 2,
    CUDNN_GRU = 3
} cudnnRNNMode_t;
typedef enum {
    CUDNN_RNN_NO_BIAS = 0,
    CUDNN_RNN_SINGLE_INP_BIAS = 1,
    CUDNN_RNN_DOUBLE_BIAS = 2,
    CUDNN_RNN_SINGLE_REC_BIAS = 3
} cudnnRNNBiasMode_t;
typedef enum { CUDNN_UNIDIRECTIONAL = 0, CUDNN_BIDIRECTIONAL = 1 } cudnnDirectionMode_t;
typedef enum { CUDNN_LINEAR_INPUT = 0, CUDNN_SKIP_INPUT = 1 } cudnnRNNInputMode_t;
typedef enum { CUDNN_RNN_CLIP_NONE = 0, CUDNN_RNN_CLIP_MINMAX = 1 } cudnnRNNClipMode_t;
typedef enum {
    CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED = 0,
    CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED = 1,
    CUDNN_RNN_DATA_LAYOUT_BATCH_MAJOR_UNPACKED = 2
} cudnnRNNDataLayout_t;
typedef enum { CUDNN_WGRAD_MODE_ADD = 0, CUDNN_WGRAD_MODE_SET = 1 } cudnnWgradMode_t;
typedef enum {
    CUDNN_LOSS_NORMALIZATION_NONE = 0,
    CUDNN_LOSS_NORMALIZATION_SOFTMAX = 1
} cudnnLossNormalizationMode_t;
typedef enum {
    CUDNN_CTC_ZERO_OOB_GRADIENTS = 0,
    CUDNN_CTC_SKIP_OOB_GRADIENTS = 1
} cudnnCTCGradMode_t;
typedef enum {
    CUDNN_CTC_LOSS_ALGO_DETERMINISTIC = 0,
    CUDNN_CTC_LOSS_ALGO_NON_DETERMINISTIC = 1
} cudnnCTCLossAlgo_t;

/* Opaque objects. */
typedef struct cudnnContext *cudnnHandle_t;
typedef struct cudnnTensorStruct *cudnnTensorDescriptor_t;
typedef struct cudnnFilterStruct *cudnnFilterDescriptor_t;
typedef struct cudnnConvolutionStruct *cudnnConvolutionDescriptor_t;
typedef struct cudnnPoolingStruct *cudnnPoolingDescriptor_t;
typedef struct cudnnActivationStruct *cudnnActivationDescriptor_t;
typedef struct cudnnLRNStruct *cudnnLRNDescriptor_t;
typedef struct cudnnOpTensorStruct *cudnnOpTensorDescriptor_t;
typedef struct cudnnReduceTensorStruct *cudnnReduceTensorDescriptor_t;
typedef struct cudnnTensorTransformStruct *cudnnTensorTransformDescriptor_t;
typedef struct cudnnSpatialTransformerStruct *cudnnSpatialTransformerDescriptor_t;
typedef struct cudnnDropoutStruct *cudnnDropoutDescriptor_t;
typedef struct cudnnRNNStruct *cudnnRNNDescriptor_t;
typedef struct cudnnRNNDataStruct *cudnnRNNDataDescriptor_t;
typedef struct cudnnCTCLossStruct *cudnnCTCLossDescriptor_t;
typedef void *cudnnBackendDescriptor_t;
typedef struct cudnnRuntimeTag_t cudnnRuntimeTag_t;

/* Of CUDA: a stream, a graph, and which number of a version is meant. */
typedef struct CUstream_st *cudaStream_t;
typedef struct CUgraph_st *cudaGraph_t;
typedef enum { MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL } libraryPropertyType;

/* What a message callback is told with its text. */
typedef enum {
    CUDNN_SEV_FATAL = 0,
    CUDNN_SEV_ERROR = 1,
    CUDNN_SEV_WARNING = 2,
    CUDNN_SEV_INFO = 3
} cudnnSeverity_t;
typedef struct cudnnDebugStruct {
    unsigned cudnn_version;
    cudnnStatus_t cudnnStatus;
    unsigned time_sec, time_usec, time_delta;
    cudnnHandle_t handle;
    cudaStream_t stream;
    unsigned long long pid, tid;
    int cudaDeviceId;
    int reserved[15];
} cudnnDebug_t;
typedef void (*cudnnCallback_t)(cudnnSeverity_t severity, void *user, const cudnnDebug_t *debug,
                                const char *message);

/* An algorithm and what it costs. */
typedef struct {
    cudnnConvolutionFwdAlgo_t algo;
    cudnnStatus_t status;
    float time; /* milliseconds; -1: not known */
    size_t memory;
    cudnnDeterminism_t determinism;
    cudnnMathType_t mathType;
    int reserved[3];
} cudnnConvolutionFwdAlgoPerf_t;
typedef struct {
    cudnnConvolutionBwdDataAlgo_t algo;
    cudnnStatus_t status;
    float time;
    size_t memory;
    cudnnDeterminism_t determinism;
    cudnnMathType_t mathType;
    int reserved[3];
} cudnnConvolutionBwdDataAlgoPerf_t;
typedef struct {
    cudnnConvolutionBwdFilterAlgo_t algo;
    cudnnStatus_t status;
    float time;
    size_t memory;
    cudnnDeterminism_t determinism;
    cudnnMathType_t mathType;
    int reserved[3];
} cudnnConvolutionBwdFilterAlgoPerf_t;

#endif
