/* SPDX-License-Identifier: Apache-2.0
 * Sequences of unequal lengths: their descriptor, and packed data. */
#include "rnn.h"

#include <stdlib.h>
#include <string.h>

cudnnStatus_t cudnnCreateRNNDataDescriptor(cudnnRNNDataDescriptor_t *descriptor)
{
    front_enter(CALL_cudnnCreateRNNDataDescriptor);
    return front_create(FRONT_RNN_DATA, sizeof **descriptor, descriptor);
}

cudnnStatus_t cudnnDestroyRNNDataDescriptor(cudnnRNNDataDescriptor_t descriptor)
{
    front_enter(CALL_cudnnDestroyRNNDataDescriptor);
    if (!descriptor) return CUDNN_STATUS_SUCCESS;
    FRONT_TRY(front_check(descriptor, FRONT_RNN_DATA, "rnnDataDesc"));
    free(descriptor->lengths);
    return front_destroy(descriptor, FRONT_RNN_DATA);
}

cudnnStatus_t front_rnn_data_check(cudnnRNNDataDescriptor_t data, const char *argument)
{
    FRONT_TRY(front_check(data, FRONT_RNN_DATA, argument));
    if (!data->set) return front_fail(CUDNN_STATUS_BAD_PARAM, "%s was never set", argument);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetRNNDataDescriptor(cudnnRNNDataDescriptor_t descriptor, cudnnDataType_t type,
                                        cudnnRNNDataLayout_t layout, int steps, int batch, int size,
                                        const int *lengths, void *fill)
{
    front_enter(CALL_cudnnSetRNNDataDescriptor);
    FRONT_TRY(front_check(descriptor, FRONT_RNN_DATA, "rnnDataDesc"));
    FRONT_TRY(front_given(lengths, "seqLengthArray"));
    if ((unsigned)layout > CUDNN_RNN_DATA_LAYOUT_BATCH_MAJOR_UNPACKED)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "layout %d, known are 0 to 2", (int)layout);
    if (steps < 1 || batch < 1 || size < 1)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "%d steps of %d sequences of %d elements", steps,
                          batch, size);
    const mica_dtype dtype = front_dtype(type);
    if (dtype != MICA_F64 && dtype != MICA_F32 && dtype != MICA_F16 && dtype != MICA_BF16)
        return front_fail(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE,
                          "data type %d, served are double, float, half and bfloat16", (int)type);
    bool full = true;
    for (int i = 0; i < batch; i++) {
        if (lengths[i] < 0 || lengths[i] > steps)
            return front_fail(CUDNN_STATUS_BAD_PARAM, "sequence %d has %d of %d steps", i,
                              lengths[i], steps);
        if (layout == CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED && i && lengths[i] > lengths[i - 1])
            return front_fail(CUDNN_STATUS_BAD_PARAM,
                              "packed sequences are sorted: %d has %d steps, the one before it %d",
                              i, lengths[i], lengths[i - 1]);
        full = full && lengths[i] == steps;
    }
    int *copy = malloc((size_t)batch * sizeof *copy);
    if (!copy)
        return front_fail(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "%d lengths", batch);
    memcpy(copy, lengths, (size_t)batch * sizeof *copy);
    free(descriptor->lengths);
    descriptor->lengths = copy;
    descriptor->type = type;
    descriptor->layout = layout;
    descriptor->steps = steps;
    descriptor->batch = batch;
    descriptor->size = size;
    descriptor->full = full;
    descriptor->filled = fill;
    descriptor->fill = 0;
    if (fill) {
        const mica_tensor one = mica_tensor_packed(dtype, 1, (int64_t[]){1});
        FRONT_TRY(front_status(mica_tensor_load(&one, fill, &descriptor->fill)));
    }
    descriptor->set = true;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetRNNDataDescriptor(cudnnRNNDataDescriptor_t descriptor, cudnnDataType_t *type,
                                        cudnnRNNDataLayout_t *layout, int *steps, int *batch,
                                        int *size, int requested, int *lengths, void *fill)
{
    front_enter(CALL_cudnnGetRNNDataDescriptor);
    FRONT_TRY(front_rnn_data_check(descriptor, "rnnDataDesc"));
    if (type) *type = descriptor->type;
    if (layout) *layout = descriptor->layout;
    if (steps) *steps = descriptor->steps;
    if (batch) *batch = descriptor->batch;
    if (size) *size = descriptor->size;
    for (int i = 0; lengths && i < requested && i < descriptor->batch; i++)
        lengths[i] = descriptor->lengths[i];
    if (!fill || !descriptor->filled) return CUDNN_STATUS_SUCCESS;
    const mica_tensor one = mica_tensor_packed(front_dtype(descriptor->type), 1, (int64_t[]){1});
    return front_status(mica_tensor_store(&one, &descriptor->fill, fill));
}

mica_tensor front_rnn_tensor(cudnnRNNDataDescriptor_t data)
{
    mica_tensor t = mica_tensor_packed(front_dtype(data->type), 3,
                                       (int64_t[]){data->steps, data->batch, data->size});
    if (data->layout != CUDNN_RNN_DATA_LAYOUT_BATCH_MAJOR_UNPACKED) return t;
    t.strides[0] = data->size;
    t.strides[1] = (int64_t)data->steps * data->size;
    return t;
}

/* Sequences that a step has: they are sorted, so these are the first. */
static int running(cudnnRNNDataDescriptor_t data, int step)
{
    int n = 0;
    while (n < data->batch && data->lengths[n] > step) n++;
    return n;
}

/* Runs of steps with equally many sequences are one copy each. */
static cudnnStatus_t copy(cudnnHandle_t handle, cudnnRNNDataDescriptor_t data, bool unpack,
                          const void *from, void *to)
{
    const mica_dtype dtype = front_dtype(data->type);
    const int64_t bytes = mica_dtype_bits(dtype) / 8;
    int64_t packed = 0;
    for (int step = 0, end; step < data->steps; step = end) {
        const int n = running(data, step);
        for (end = step + 1; end < data->steps && running(data, end) == n;) end++;
        if (!n) break;
        mica_tensor rows = mica_tensor_packed(dtype, 3, (int64_t[]){end - step, n, data->size});
        mica_tensor padded = rows;
        padded.strides[0] = (int64_t)data->batch * data->size;
        const int64_t packed_at = packed * bytes, padded_at = step * padded.strides[0] * bytes;
        mica_transform_desc d = {.x = unpack ? rows : padded, .y = unpack ? padded : rows};
        mica_run run = {0};
        run.args[MICA_TRANSFORM_X] = (char *)from + (unpack ? packed_at : padded_at);
        run.args[MICA_TRANSFORM_Y] = (char *)to + (unpack ? padded_at : packed_at);
        FRONT_TRY(front_run(handle, "transform", &d, sizeof d, &run));
        packed += mica_tensor_count(&rows);
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t front_rnn_unpack(cudnnHandle_t handle, cudnnRNNDataDescriptor_t data,
                               const void *packed, void *padded)
{
    const mica_tensor whole = front_rnn_tensor(data);
    FRONT_TRY(front_status(
        mica_memset(handle->context, padded, 0, mica_tensor_span(&whole, NULL), handle->stream)));
    return copy(handle, data, true, packed, padded);
}

cudnnStatus_t front_rnn_pack(cudnnHandle_t handle, cudnnRNNDataDescriptor_t data,
                             const void *padded, void *packed)
{
    return copy(handle, data, false, padded, packed);
}
