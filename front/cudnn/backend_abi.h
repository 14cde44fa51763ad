/* SPDX-License-Identifier: Apache-2.0
 * Numbers of the graph interface: descriptor types, types of attributes, modes. Values are facts of
 * cuDNN 9's binary interface; names are this library's own. Attributes are in
 * backend_attributes.def. */
#ifndef FRONT_CUDNN_BACKEND_ABI_H
#define FRONT_CUDNN_BACKEND_ABI_H

/* X(name, number, words). All can be created; those without rows in backend_attributes.def take no
 * attribute and do not finalize. */
#define BACKEND_TYPES(X)                                                                           \
    X(POINTWISE, 0, "pointwise descriptor")                                                        \
    X(CONVOLUTION, 1, "convolution descriptor")                                                    \
    X(ENGINE, 2, "engine")                                                                         \
    X(CONFIG, 3, "engine configuration")                                                           \
    X(HEURISTICS, 4, "engine heuristics")                                                          \
    X(PLAN, 5, "execution plan")                                                                   \
    X(INTERMEDIATE_INFO, 6, "intermediate info")                                                   \
    X(KNOB_CHOICE, 7, "knob choice")                                                               \
    X(KNOB_INFO, 8, "knob info")                                                                   \
    X(LAYOUT_INFO, 9, "layout info")                                                               \
    X(CONV_FWD, 10, "convolution forward operation")                                               \
    X(CONV_WGRAD, 11, "convolution backward filter operation")                                     \
    X(CONV_DGRAD, 12, "convolution backward data operation")                                       \
    X(OP_POINTWISE, 13, "pointwise operation")                                                     \
    X(OP_GENSTATS, 14, "statistics operation")                                                     \
    X(GRAPH, 15, "operation graph")                                                                \
    X(PACK, 16, "variant pack")                                                                    \
    X(TENSOR, 17, "tensor")                                                                        \
    X(MATMUL, 18, "matmul descriptor")                                                             \
    X(OP_MATMUL, 19, "matmul operation")                                                           \
    X(OP_BN_FINALIZE, 20, "batch norm finalize operation")                                         \
    X(REDUCTION, 21, "reduction descriptor")                                                       \
    X(OP_REDUCTION, 22, "reduction operation")                                                     \
    X(OP_BN_BWD_WEIGHTS, 23, "batch norm backward weights operation")                              \
    X(RESAMPLE, 24, "resample descriptor")                                                         \
    X(OP_RESAMPLE_FWD, 25, "resample forward operation")                                           \
    X(OP_RESAMPLE_BWD, 26, "resample backward operation")                                          \
    X(OP_CONCAT, 27, "concatenate operation")                                                      \
    X(OP_SIGNAL, 28, "signal operation")                                                           \
    X(OP_NORM_FWD, 29, "norm forward operation")                                                   \
    X(OP_NORM_BWD, 30, "norm backward operation")                                                  \
    X(OP_RESHAPE, 31, "reshape operation")                                                         \
    X(RNG, 32, "random descriptor")                                                                \
    X(OP_RNG, 33, "random operation")                                                              \
    X(KERNEL_CACHE, 34, "kernel cache")                                                            \
    X(OP_PAGED_LOAD, 35, "paged cache load operation")                                             \
    X(OP_BLOCK_QUANTIZE, 36, "block scale quantize operation")                                     \
    X(OP_BLOCK_DEQUANTIZE, 37, "block scale dequantize operation")                                 \
    X(DEVICE, 38, "device properties")                                                             \
    X(OP_EXPAND_BAND, 39, "expand band matrix operation")                                          \
    X(OP_CONTRACT_BAND, 40, "contract band matrix operation")                                      \
    X(OP_SDPA_FWD, 41, "attention forward operation")                                              \
    X(OP_MOE_MATMUL, 42, "grouped matmul operation")                                               \
    X(OP_SDPA_BWD, 43, "attention backward operation")                                             \
    X(OP_BAND_MASK, 44, "diagonal band mask operation")                                            \
    X(OP_SOFTMAX, 45, "softmax operation")                                                         \
    X(OP_TRANSPOSE, 46, "transpose operation")                                                     \
    X(OP_SLICE, 47, "slice operation")                                                             \
    X(OP_MOE_MATMUL_BWD, 48, "grouped matmul backward operation")                                  \
    X(OP_ROPE_FWD, 49, "rotary embedding forward operation")                                       \
    X(OP_ROPE_BWD, 50, "rotary embedding backward operation")

typedef enum backend_type {
#define BACKEND_X(name, number, words) BT_##name = number,
    BACKEND_TYPES(BACKEND_X)
#undef BACKEND_X
        BT_COUNT,
    BT_ANY = -1, /* of a child: any operation */
    BT_NONE = -2 /* no descriptor */
} backend_type;

/* Types of attributes: X(name, number, bytes of one element). */
#define BACKEND_WIRES(X)                                                                           \
    X(HANDLE, 0, 8)                                                                                \
    X(DATA_TYPE, 1, 4)                                                                             \
    X(BOOLEAN, 2, 1)                                                                               \
    X(INT64, 3, 8)                                                                                 \
    X(FLOAT, 4, 4)                                                                                 \
    X(DOUBLE, 5, 8)                                                                                \
    X(POINTER, 6, 8)                                                                               \
    X(CONVOLUTION_MODE, 7, 4)                                                                      \
    X(HEURISTIC_MODE, 8, 4)                                                                        \
    X(KNOB_TYPE, 9, 4)                                                                             \
    X(NAN_PROPAGATION, 10, 4)                                                                      \
    X(NUMERICAL_NOTE, 11, 4)                                                                       \
    X(LAYOUT_TYPE, 12, 4)                                                                          \
    X(ATTRIBUTE, 13, 4)                                                                            \
    X(POINTWISE_MODE, 14, 4)                                                                       \
    X(DESCRIPTOR, 15, 8)                                                                           \
    X(GENSTATS_MODE, 16, 4)                                                                        \
    X(BN_FINALIZE_MODE, 17, 4)                                                                     \
    X(REDUCTION_OPERATOR, 18, 4)                                                                   \
    X(BEHAVIOR_NOTE, 19, 4)                                                                        \
    X(REORDERING, 20, 4)                                                                           \
    X(RESAMPLE_MODE, 21, 4)                                                                        \
    X(PADDING_MODE, 22, 4)                                                                         \
    X(INT32, 23, 4)                                                                                \
    X(CHAR, 24, 1)                                                                                 \
    X(SIGNAL_MODE, 25, 4)                                                                          \
    X(FRACTION, 26, 16)                                                                            \
    X(NORM_MODE, 27, 4)                                                                            \
    X(NORM_PHASE, 28, 4)                                                                           \
    X(RNG_DISTRIBUTION, 29, 4)                                                                     \
    X(MOE_MODE, 30, 4)                                                                             \
    X(RESHAPE_MODE, 31, 4)                                                                         \
    X(GRAPH_MODE, 32, 4)                                                                           \
    X(RETENTION, 33, 4)

typedef enum backend_wire {
#define BACKEND_X(name, number, bytes) BW_##name = number,
    BACKEND_WIRES(BACKEND_X)
#undef BACKEND_X
        BW_COUNT,
    BW_REAL, /* FLOAT or DOUBLE, as the caller has it */
    BW_SEED  /* INT64 or DESCRIPTOR */
} backend_wire;

enum { HEURISTIC_INSTANT, HEURISTIC_B, HEURISTIC_FALLBACK, HEURISTIC_A, HEURISTIC_MODES };
enum { NOTE_TENSOR_CORE = 0, NOTE_NONDETERMINISTIC = 4 };
enum { BEHAVIOR_COMPILES = 0 };
enum { NORM_LAYER, NORM_INSTANCE, NORM_BATCH, NORM_GROUP, NORM_RMS, NORM_ADA_LAYER };
enum { NORM_INFERENCE, NORM_TRAINING };
enum { RESAMPLE_NEAREST, RESAMPLE_BILINEAR, RESAMPLE_AVG, RESAMPLE_MAX, RESAMPLE_AVG_INSIDE };
enum { PADDING_ZERO, PADDING_NEG_INF, PADDING_EDGE };
enum { RNG_BERNOULLI, RNG_UNIFORM, RNG_NORMAL };
enum { RESHAPE_VIEW, RESHAPE_LOGICAL };
enum { REDUCTION_KINDS = 9 };

/* Pointwise modes that the matcher of attention knows by name; all are in backend_pointwise.c. */
enum {
    PW_ADD = 0,
    PW_MUL = 1,
    PW_DIV = 6,
    PW_SUB = 9,
    PW_EXP = 13,
    PW_LOG = 15,
    PW_IDENTITY = 21,
    PW_RELU_FWD = 100,
    PW_CMP_GE = 303,
    PW_CMP_LT = 304,
    PW_AND = 400,
    PW_GEN_INDEX = 501,
    PW_SELECT = 601
};
#endif
