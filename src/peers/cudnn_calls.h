/* SPDX-License-Identifier: Apache-2.0
 * What the files on cuDNN share: its functions, its numbers, descriptors. The numbers are those of
 * cudnn_graph.h of version 9, which the library keeps: they are what programs built against it were
 * compiled with. */
#ifndef MICA_PEERS_CUDNN_CALLS_H
#define MICA_PEERS_CUDNN_CALLS_H

#include "peers/cudnn.h"
#include "cuda/device.h"

#include <pthread.h>

/* Kinds of descriptors. */
enum {
    POINTWISE = 0,
    CONVOLUTION = 1,
    ENGINE = 2,
    CONFIG = 3,
    HEURISTICS = 4,
    PLAN = 5,
    CONV_FWD = 10, /* then the gradient of the filter, then that of the image */
    APPLY_POINTWISE = 13,
    GRAPH = 15,
    VARIANT_PACK = 16,
    TENSOR = 17
};
/* Types of attributes. */
enum {
    HANDLE = 0,
    DATA_TYPE = 1,
    BOOLEAN = 2,
    INT64 = 3,
    FLOAT = 4,
    DOUBLE = 5,
    POINTER = 6,
    CONV_MODE = 7,
    HEUR_MODE = 8,
    NUMERICAL_NOTE = 11,
    POINTWISE_MODE = 14,
    DESCRIPTOR = 15
};
/* Attributes. */
enum {
    POINTWISE_HOW = 0,
    POINTWISE_PRECISION = 1,
    CONV_COMPUTE = 100,
    CONV_HOW = 101,
    CONV_DILATIONS = 102,
    CONV_STRIDES = 103,
    CONV_PADS_AFTER = 104,
    CONV_PADS_BEFORE = 105,
    CONV_AXES = 106,
    HEURISTICS_MODE = 200,
    HEURISTICS_GRAPH = 201,
    HEURISTICS_RESULTS = 202,
    CONFIG_ENGINE = 300,
    PLAN_CONFIG = 401,
    PLAN_WORKSPACE = 402,
    APPLY_CONV = 700, /* alpha, beta, the convolution, three tensors; 6 numbers for each pass */
    APPLY_STEP = 750,
    APPLY_FROM = 751,
    APPLY_OTHER = 752,
    APPLY_TO = 753,
    GRAPH_HANDLE = 800,
    GRAPH_OPERATIONS = 801,
    TENSOR_ALIGNMENT = 900,
    TENSOR_TYPE = 901,
    TENSOR_DIMS = 902,
    TENSOR_STRIDES = 903,
    TENSOR_ID = 906,
    TENSOR_VIRTUAL = 907,
    PACK_IDS = 1000,
    PACK_POINTERS = 1001,
    PACK_WORKSPACE = 1003,
    ENGINE_INDEX = 1301,
    ENGINE_NOTES = 1303
};

enum { MOST_DEVICES = 64, MOST_MADE = 48, MOST_TENSORS = 16, MOST_OPERATIONS = 8 };

#define MICA_CUDNN_CALLS(X)                                                                        \
    X(create, "cudnnCreate", (void **))                                                            \
    X(set_stream, "cudnnSetStream", (void *, void *))                                              \
    X(make, "cudnnBackendCreateDescriptor", (int, void **))                                        \
    X(unmake, "cudnnBackendDestroyDescriptor", (void *))                                           \
    X(finish, "cudnnBackendFinalize", (void *))                                                    \
    X(set, "cudnnBackendSetAttribute", (void *, int, int, int64_t, const void *))                  \
    X(get, "cudnnBackendGetAttribute", (void *, int, int, int64_t, int64_t *, void *))             \
    X(execute, "cudnnBackendExecute", (void *, void *, void *))

typedef struct mica_cudnn_table {
#define MICA_X(name, symbol, prototype) int(*name) prototype;
    MICA_CUDNN_CALLS(MICA_X)
#undef MICA_X
    size_t (*version)(void);
    void (*words)(char *, size_t);
} mica_cudnn_table;
extern mica_cudnn_table mica_dnn; /* filled by mica_cudnn_load */

/* Guards the library, and the handles while they are used: they have state. */
extern pthread_mutex_t mica_cudnn_mutex;
/* One for each device, as long as the process: they are costly and few. */
extern void *mica_cudnn_handles[MOST_DEVICES];

struct mica_cudnn {
    mica_cuda *cuda;
    void *made[MOST_MADE]; /* what is to be destroyed; parents after their children */
    int made_count;
    void *tensors[MOST_TENSORS];
    bool given[MOST_TENSORS]; /* by runs: not virtual */
    int tensor_count;
    void *operations[MOST_OPERATIONS];
    int operation_count;
    bool matrix_units, wgrad; /* what candidates may use; what the graph computes */
    void *plan;
    int64_t workspace;
};

/* While a graph is made every refusal is one of the problem; only runs can fail. */
mica_status mica_cudnn_check(const char *call, int code);
#define DNN(call, ...) mica_cudnn_check("cuDNN's " #call, mica_dnn.call(__VA_ARGS__))

typedef struct mica_cudnn_attribute {
    int name, type;
    int64_t count;
    const void *values;
} mica_cudnn_attribute;
/* A finished descriptor that the caller destroys. */
mica_status mica_cudnn_describe(int kind, const mica_cudnn_attribute *list, int count,
                                void **descriptor);
/* The same, destroyed with the graph. */
mica_status mica_cudnn_keep(mica_cudnn *g, int kind, const mica_cudnn_attribute *list, int count,
                            void **descriptor);
#define KEEP(g, kind, list, out)                                                                   \
    mica_cudnn_keep(g, kind, list, (int)(sizeof(list) / sizeof *(list)), out)

#endif
