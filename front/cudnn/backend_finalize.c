/* SPDX-License-Identifier: Apache-2.0
 * What a descriptor has to be when it is finalized. Statuses are those that cuDNN documents: a
 * wrong value is of the BAD_PARAM family, a sound one that mica has not is NOT_SUPPORTED. */
#include "backend.h"
#include "backend_node.h"

#include <string.h>

static cudnnStatus_t check_length(const backend *b, backend_attribute attribute, const char *name,
                                  int wanted)
{
    int64_t values[8];
    const int count = backend_integers(b, attribute, values);
    if (count == wanted) return CUDNN_STATUS_SUCCESS;
    return front_fail(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT,
                      "%s of the %s has %d elements, there are %d dimensions", name,
                      backend_type_words(b->type), count, wanted);
}

static cudnnStatus_t check_least(const backend *b, backend_attribute attribute, const char *name,
                                 int64_t least)
{
    int64_t values[8];
    const int count = backend_integers(b, attribute, values);
    for (int i = 0; i < count; i++)
        if (values[i] < least)
            return front_fail(CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND,
                              "%s of the %s: element %d is %lld, it is at least %lld", name,
                              backend_type_words(b->type), i, (long long)values[i],
                              (long long)least);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_tensor(const backend *b)
{
    int64_t dims[8];
    const int rank = backend_integers(b, AT_TENSOR_DIMENSIONS, dims);
    const int type = (int)backend_integer(b, AT_TENSOR_DATA_TYPE, -1);
    const mica_dtype dtype = front_dtype((cudnnDataType_t)type);
    const int64_t align = backend_integer(b, AT_TENSOR_BYTE_ALIGNMENT, 0);
    if (dtype == MICA_NONE)
        return front_fail(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "a tensor of data type %d", type);
    FRONT_TRY(check_length(b, AT_TENSOR_STRIDES, "STRIDES", rank));
    FRONT_TRY(check_least(b, AT_TENSOR_DIMENSIONS, "DIMENSIONS", 1));
    FRONT_TRY(check_least(b, AT_TENSOR_STRIDES, "STRIDES", 0));
    for (int i = 0; i < rank; i++) {
        int64_t strides[8];
        backend_integers(b, AT_TENSOR_STRIDES, strides);
        if (dims[i] > INT32_MAX || strides[i] > INT64_C(1) << 40)
            return front_fail(CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND,
                              "dimension %d is %lld with stride %lld", i, (long long)dims[i],
                              (long long)strides[i]);
    }
    const int bytes = (mica_dtype_bits(dtype) + 7) / 8;
    if (align < 1 || align % bytes)
        return front_fail(CUDNN_STATUS_BAD_PARAM,
                          "BYTE_ALIGNMENT is %lld, it is a multiple of the %d bytes of an element",
                          (long long)align, bytes);
    if (backend_integer(b, AT_TENSOR_VECTOR_COUNT, 1) != 1)
        return front_fail(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT,
                          "VECTOR_COUNT is %lld, only 1 is served",
                          (long long)backend_integer(b, AT_TENSOR_VECTOR_COUNT, 1));
    if (backend_integer(b, AT_TENSOR_REORDERING_MODE, 0) != 0)
        return front_fail(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, "REORDERING_MODE is not served");
    if (backend_integer(b, AT_TENSOR_IS_VIRTUAL, 0) && backend_integer(b, AT_TENSOR_IS_BY_VALUE, 0))
        return front_fail(CUDNN_STATUS_BAD_PARAM, "a tensor is both virtual and by value");
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_convolution(const backend *b)
{
    const int dims = (int)backend_integer(b, AT_CONVOLUTION_SPATIAL_DIMS, 0);
    const int mode = (int)backend_integer(b, AT_CONVOLUTION_CONV_MODE, -1);
    if (dims < 1 || dims > 6)
        return front_fail(CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND, "SPATIAL_DIMS is %d", dims);
    if (mode != CUDNN_CONVOLUTION && mode != CUDNN_CROSS_CORRELATION)
        return front_fail(CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND, "CONV_MODE is %d, 0 or 1", mode);
    FRONT_TRY(check_length(b, AT_CONVOLUTION_DILATIONS, "DILATIONS", dims));
    FRONT_TRY(check_length(b, AT_CONVOLUTION_FILTER_STRIDES, "FILTER_STRIDES", dims));
    FRONT_TRY(check_length(b, AT_CONVOLUTION_PRE_PADDINGS, "PRE_PADDINGS", dims));
    FRONT_TRY(check_length(b, AT_CONVOLUTION_POST_PADDINGS, "POST_PADDINGS", dims));
    FRONT_TRY(check_least(b, AT_CONVOLUTION_DILATIONS, "DILATIONS", 1));
    FRONT_TRY(check_least(b, AT_CONVOLUTION_FILTER_STRIDES, "FILTER_STRIDES", 1));
    FRONT_TRY(check_least(b, AT_CONVOLUTION_PRE_PADDINGS, "PRE_PADDINGS", 0));
    return check_least(b, AT_CONVOLUTION_POST_PADDINGS, "POST_PADDINGS", 0);
}

static cudnnStatus_t check_resample(const backend *b)
{
    const int dims = (int)backend_integer(b, AT_RESAMPLE_SPATIAL_DIMS, 0);
    const backend_value *window = backend_get(b, AT_RESAMPLE_WINDOW_DIMS);
    if (dims < 1 || dims > 6)
        return front_fail(CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND, "SPATIAL_DIMS is %d", dims);
    if (!window || window->count != dims)
        return front_fail(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT, "WINDOW_DIMS of another rank");
    FRONT_TRY(check_length(b, AT_RESAMPLE_STRIDES, "STRIDES", dims));
    FRONT_TRY(check_length(b, AT_RESAMPLE_PRE_PADDINGS, "PRE_PADDINGS", dims));
    return check_length(b, AT_RESAMPLE_POST_PADDINGS, "POST_PADDINGS", dims);
}

static cudnnStatus_t check_one_of(const backend *b, backend_attribute attribute, const char *name,
                                  int64_t count)
{
    const int64_t value = backend_integer(b, attribute, 0);
    if (value >= 0 && value < count) return CUDNN_STATUS_SUCCESS;
    return front_fail(CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND, "%s of the %s is %lld, 0 to %lld", name,
                      backend_type_words(b->type), (long long)value, (long long)count - 1);
}

static cudnnStatus_t check_pack(const backend *b)
{
    const backend_value *uids = backend_get(b, AT_PACK_UNIQUE_IDS);
    const backend_value *pointers = backend_get(b, AT_PACK_DATA_POINTERS);
    const int64_t named = uids ? uids->count : 0, given = pointers ? pointers->count : 0;
    if (named != given)
        return front_fail(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT,
                          "%lld unique ids, %lld pointers: as many", (long long)named,
                          (long long)given);
    for (int64_t i = 0; i < named; i++)
        for (int64_t k = 0; k < i && named <= 256; k++)
            if (((int64_t *)uids->data)[i] == ((int64_t *)uids->data)[k])
                return front_fail(CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES,
                                  "unique id %lld is there twice",
                                  (long long)((int64_t *)uids->data)[i]);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_engine(const backend *b)
{
    backend *graph = backend_child(b, AT_ENGINE_OPERATION_GRAPH);
    const backend_lowered *l = graph->lowered;
    const backend *device = backend_child(b, AT_ENGINE_DEVICE);
    if (device) FRONT_TRY(backend_place(graph, device));
    const int64_t index = backend_integer(b, AT_ENGINE_GLOBAL_INDEX, -1);
    if (!l->engines) return front_fail(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s", l->refusal);
    if (index < 0 || index >= l->engines)
        return front_fail(CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND,
                          "GLOBAL_INDEX is %lld, the graph has %d engines", (long long)index,
                          l->engines);
    return CUDNN_STATUS_SUCCESS;
}

/* No configurations of a graph that is refused: the text says why. */
static cudnnStatus_t check_heuristics(const backend *b)
{
    backend *graph = backend_child(b, AT_HEURISTICS_OPERATION_GRAPH);
    const backend_lowered *l = graph->lowered;
    FRONT_TRY(backend_place(graph, backend_child(b, AT_HEURISTICS_DEVICE)));
    FRONT_TRY(check_one_of(b, AT_HEURISTICS_MODE, "MODE", HEURISTIC_MODES));
    if (!l->engines) front_fail(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s", l->refusal);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t backend_check(backend *b)
{
    switch (b->type) {
    case BT_TENSOR:
        return check_tensor(b);
    case BT_CONVOLUTION:
        return check_convolution(b);
    case BT_RESAMPLE:
        return check_resample(b);
    case BT_REDUCTION:
        return check_one_of(b, AT_REDUCTION_OPERATOR, "OPERATOR", REDUCTION_KINDS);
    case BT_RNG:
        return check_one_of(b, AT_RNG_DISTRIBUTION, "DISTRIBUTION", 3);
    case BT_POINTWISE:
        return backend_pointwise_check(b);
    case BT_DEVICE:
        return backend_device_check(b);
    case BT_MATMUL:
    case BT_KNOB_CHOICE:
    case BT_KERNEL_CACHE: /* kernels are shared by all plans of the process in any case */
        return CUDNN_STATUS_SUCCESS;
    case BT_PACK:
        return check_pack(b);
    case BT_HEURISTICS:
        return check_heuristics(b);
    case BT_ENGINE:
        return check_engine(b);
    case BT_CONFIG:
        return backend_choices_check(b);
    case BT_PLAN:
        return backend_build(b);
    case BT_GRAPH:
        return backend_lower(b, &b->lowered);
    default:
        break;
    }
    if (backend_is_operation(b->type)) return backend_operation_check(b);
    return front_fail(CUDNN_STATUS_BAD_PARAM, "the %s is only read, never finalized",
                      backend_type_words(b->type));
}
