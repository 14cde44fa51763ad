/* SPDX-License-Identifier: Apache-2.0
 * Descriptors of recurrent nets, and where their weights lie: the packing is mica's, which is the
 * one that JAX has built in: of all layers and directions the matrices, then of all the biases. */
#include "rnn.h"

#include <stdlib.h>
#include <string.h>

cudnnStatus_t cudnnCreateRNNDescriptor(cudnnRNNDescriptor_t *descriptor)
{
    front_enter(CALL_cudnnCreateRNNDescriptor);
    return front_create(FRONT_RNN, sizeof **descriptor, descriptor);
}

cudnnStatus_t cudnnDestroyRNNDescriptor(cudnnRNNDescriptor_t descriptor)
{
    front_enter(CALL_cudnnDestroyRNNDescriptor);
    return front_destroy(descriptor, FRONT_RNN);
}

cudnnStatus_t front_rnn_check(cudnnRNNDescriptor_t rnn)
{
    FRONT_TRY(front_check(rnn, FRONT_RNN, "rnnDesc"));
    if (!rnn->set) return front_fail(CUDNN_STATUS_BAD_PARAM, "rnnDesc was never set");
    return CUDNN_STATUS_SUCCESS;
}

/* The algorithm decides nothing. projection: as hidden where there is none. */
cudnnStatus_t cudnnSetRNNDescriptor_v8(cudnnRNNDescriptor_t rnn, cudnnRNNAlgo_t algo,
                                       cudnnRNNMode_t cell, cudnnRNNBiasMode_t bias,
                                       cudnnDirectionMode_t direction, cudnnRNNInputMode_t input,
                                       cudnnDataType_t type, cudnnDataType_t precision,
                                       cudnnMathType_t math, int32_t input_size, int32_t hidden,
                                       int32_t projection, int32_t layers,
                                       cudnnDropoutDescriptor_t dropout, uint32_t flags)
{
    front_enter(CALL_cudnnSetRNNDescriptor_v8);
    FRONT_TRY(front_check(rnn, FRONT_RNN, "rnnDesc"));
    if ((unsigned)algo >= CUDNN_RNN_ALGO_COUNT || (unsigned)cell > CUDNN_GRU ||
        (unsigned)bias > CUDNN_RNN_SINGLE_REC_BIAS || (unsigned)direction > CUDNN_BIDIRECTIONAL ||
        (unsigned)input > CUDNN_SKIP_INPUT)
        return front_fail(CUDNN_STATUS_BAD_PARAM,
                          "algo %d, cell %d, bias %d, direction %d, input %d: one is unknown",
                          (int)algo, (int)cell, (int)bias, (int)direction, (int)input);
    if (input_size < 1 || hidden < 1 || layers < 1 || projection < 0 || projection > hidden)
        return front_fail(CUDNN_STATUS_BAD_PARAM,
                          "input size %d, hidden size %d, projection %d, %d layers", input_size,
                          hidden, projection, layers);
    const mica_dtype dtype = front_dtype(type);
    if (dtype != MICA_F64 && dtype != MICA_F32 && dtype != MICA_F16 && dtype != MICA_BF16)
        return front_fail(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE,
                          "data type %d, served are double, float, half and bfloat16", (int)type);
    if (cell == CUDNN_GRU && bias == CUDNN_RNN_SINGLE_REC_BIAS)
        return front_fail(CUDNN_STATUS_NOT_SUPPORTED,
                          "a GRU with the recurrent bias alone (SINGLE_REC_BIAS)");
    if (dropout) FRONT_TRY(front_check(dropout, FRONT_DROPOUT, "dropoutDesc"));
    rnn->algo = algo;
    rnn->cell = cell;
    rnn->bias = bias;
    rnn->direction = direction;
    rnn->input = input;
    rnn->type = type;
    rnn->precision = precision;
    rnn->math = math;
    rnn->input_size = input_size;
    rnn->hidden = hidden;
    rnn->projection = projection;
    rnn->layers = layers;
    rnn->dropout = dropout;
    rnn->flags = flags;
    rnn->set = true;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetRNNDescriptor_v8(cudnnRNNDescriptor_t rnn, cudnnRNNAlgo_t *algo,
                                       cudnnRNNMode_t *cell, cudnnRNNBiasMode_t *bias,
                                       cudnnDirectionMode_t *direction, cudnnRNNInputMode_t *input,
                                       cudnnDataType_t *type, cudnnDataType_t *precision,
                                       cudnnMathType_t *math, int32_t *input_size, int32_t *hidden,
                                       int32_t *projection, int32_t *layers,
                                       cudnnDropoutDescriptor_t *dropout, uint32_t *flags)
{
    front_enter(CALL_cudnnGetRNNDescriptor_v8);
    FRONT_TRY(front_rnn_check(rnn));
    if (algo) *algo = rnn->algo;
    if (cell) *cell = rnn->cell;
    if (bias) *bias = rnn->bias;
    if (direction) *direction = rnn->direction;
    if (input) *input = rnn->input;
    if (type) *type = rnn->type;
    if (precision) *precision = rnn->precision;
    if (math) *math = rnn->math;
    if (input_size) *input_size = rnn->input_size;
    if (hidden) *hidden = rnn->hidden;
    if (projection) *projection = rnn->projection;
    if (layers) *layers = rnn->layers;
    if (dropout) *dropout = rnn->dropout;
    if (flags) *flags = rnn->flags;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t set_clip(cudnnRNNDescriptor_t rnn, cudnnRNNClipMode_t mode,
                              cudnnNanPropagation_t nan, double low, double high)
{
    FRONT_TRY(front_check(rnn, FRONT_RNN, "rnnDesc"));
    if ((unsigned)mode > CUDNN_RNN_CLIP_MINMAX || (mode == CUDNN_RNN_CLIP_MINMAX && !(low <= high)))
        return front_fail(CUDNN_STATUS_BAD_PARAM, "clip mode %d from %g to %g", (int)mode, low,
                          high);
    rnn->clip = mode;
    rnn->clip_nan = nan;
    rnn->clip_low = low;
    rnn->clip_high = high;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnRNNSetClip_v8(cudnnRNNDescriptor_t rnn, cudnnRNNClipMode_t mode,
                                 cudnnNanPropagation_t nan, double low, double high)
{
    front_enter(CALL_cudnnRNNSetClip_v8);
    return set_clip(rnn, mode, nan, low, high);
}

cudnnStatus_t cudnnRNNSetClip_v9(cudnnRNNDescriptor_t rnn, cudnnRNNClipMode_t mode, double low,
                                 double high)
{
    front_enter(CALL_cudnnRNNSetClip_v9);
    return set_clip(rnn, mode, CUDNN_PROPAGATE_NAN, low, high);
}

cudnnStatus_t cudnnRNNGetClip_v9(cudnnRNNDescriptor_t rnn, cudnnRNNClipMode_t *mode, double *low,
                                 double *high)
{
    front_enter(CALL_cudnnRNNGetClip_v9);
    FRONT_TRY(front_check(rnn, FRONT_RNN, "rnnDesc"));
    if (mode) *mode = rnn->clip;
    if (low) *low = rnn->clip_low;
    if (high) *high = rnn->clip_high;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnRNNGetClip_v8(cudnnRNNDescriptor_t rnn, cudnnRNNClipMode_t *mode,
                                 cudnnNanPropagation_t *nan, double *low, double *high)
{
    front_enter(CALL_cudnnRNNGetClip_v8);
    FRONT_TRY(front_check(rnn, FRONT_RNN, "rnnDesc"));
    if (mode) *mode = rnn->clip;
    if (nan) *nan = rnn->clip_nan;
    if (low) *low = rnn->clip_low;
    if (high) *high = rnn->clip_high;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- mica's problem, and its weights ---- */

void front_rnn_problem(cudnnRNNDescriptor_t rnn, mica_rnn_desc *d)
{
    static const mica_rnn_cell cells[] = {[CUDNN_RNN_RELU] = MICA_RNN_CELL_RELU,
                                          [CUDNN_RNN_TANH] = MICA_RNN_CELL_TANH,
                                          [CUDNN_LSTM] = MICA_RNN_CELL_LSTM,
                                          [CUDNN_GRU] = MICA_RNN_CELL_GRU};
    memset(d, 0, sizeof *d);
    d->cell = cells[rnn->cell];
    d->hidden = rnn->hidden;
    d->layers = rnn->layers;
    d->bidirectional = rnn->direction == CUDNN_BIDIRECTIONAL;
    d->bias = rnn->bias == CUDNN_RNN_DOUBLE_BIAS ? MICA_RNN_BIAS_TWO
              : rnn->bias == CUDNN_RNN_NO_BIAS   ? MICA_RNN_BIAS_NONE
                                                 : MICA_RNN_BIAS_ONE;
    if (rnn->projection && rnn->projection != rnn->hidden) d->projection = rnn->projection;
    d->skip_input = rnn->input == CUDNN_SKIP_INPUT;
    if (rnn->clip == CUDNN_RNN_CLIP_MINMAX && rnn->cell == CUDNN_LSTM) {
        d->clip = MICA_RNN_CLIP_CELLS;
        d->clip_low = rnn->clip_low;
        d->clip_high = rnn->clip_high;
        d->clip_nan = rnn->clip_nan == CUDNN_NOT_PROPAGATE_NAN;
    }
    if (rnn->type == CUDNN_DATA_FLOAT && rnn->math != CUDNN_FMA_MATH)
        d->compute = MICA_COMPUTE_TF32;
    d->x.dims[2] = rnn->input_size;
}

cudnnStatus_t cudnnGetRNNWeightSpaceSize(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn,
                                         size_t *size)
{
    front_enter(CALL_cudnnGetRNNWeightSpaceSize);
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    FRONT_TRY(front_rnn_check(rnn));
    FRONT_TRY(front_given(size, "weightSpaceSize"));
    mica_rnn_desc d;
    front_rnn_problem(rnn, &d);
    *size = (size_t)(mica_rnn_weight_count(&d) * mica_dtype_bits(front_dtype(rnn->type)) / 8);
    return CUDNN_STATUS_SUCCESS;
}

/* A gate's rows of a part as 1 x rows x cols; null where the net has none. */
static cudnnStatus_t give(cudnnRNNDescriptor_t rnn, const void *weights, mica_rnn_matrix part,
                          int64_t first_row, int64_t rows, cudnnTensorDescriptor_t descriptor,
                          void **address)
{
    const mica_dtype dtype = front_dtype(rnn->type);
    const bool there = part.rows && part.cols;
    if (descriptor) {
        FRONT_TRY(front_check(descriptor, FRONT_TENSOR, "mDesc or bDesc"));
        descriptor->type = rnn->type;
        descriptor->tensor =
            mica_tensor_packed(dtype, 3, (int64_t[]){1, there ? rows : 0, there ? part.cols : 0});
        descriptor->set = true;
    }
    if (!address) return CUDNN_STATUS_SUCCESS;
    int64_t bytes = (part.offset + first_row * part.cols) * mica_dtype_bits(dtype) / 8;
    *address = there ? (char *)weights + bytes : NULL;
    return CUDNN_STATUS_SUCCESS;
}

/* linear: the gates of W, then those of R; 8 is an LSTM's projection. Constant time, no lock. */
cudnnStatus_t cudnnGetRNNWeightParams(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn,
                                      int32_t pseudo_layer, size_t bytes, const void *weights,
                                      int32_t linear, cudnnTensorDescriptor_t m_desc, void **matrix,
                                      cudnnTensorDescriptor_t b_desc, void **bias)
{
    (void)bytes;
    front_enter(CALL_cudnnGetRNNWeightParams);
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    FRONT_TRY(front_rnn_check(rnn));
    mica_rnn_desc d;
    front_rnn_problem(rnn, &d);
    const int sides = d.bidirectional ? 2 : 1, gates = (int)mica_rnn_gates(d.cell);
    const bool projection = linear == 8 && d.projection;
    if (pseudo_layer < 0 || pseudo_layer >= sides * rnn->layers || linear < 0 ||
        (linear >= 2 * gates && !projection))
        return front_fail(CUDNN_STATUS_BAD_PARAM,
                          "pseudo-layer %d of %d, linear layer %d of %d (8: a projection)",
                          pseudo_layer, sides * rnn->layers, linear, 2 * gates);
    const int layer = pseudo_layer / sides, direction = pseudo_layer % sides;
    const mica_rnn_matrix none = {0};
    if (projection) {
        mica_rnn_matrix s = mica_rnn_weight(&d, layer, direction, MICA_RNN_PART_S);
        FRONT_TRY(give(rnn, weights, s, 0, s.rows, m_desc, matrix));
        return give(rnn, weights, none, 0, 0, b_desc, bias);
    }
    const bool recurrent = linear >= gates;
    const int64_t first = (int64_t)(linear % gates) * rnn->hidden;
    mica_rnn_matrix m =
        mica_rnn_weight(&d, layer, direction, recurrent ? MICA_RNN_PART_R : MICA_RNN_PART_W);
    /* With one bias it is b, whichever of the two cuDNN calls it. */
    const bool single =
        rnn->bias == CUDNN_RNN_SINGLE_INP_BIAS || rnn->bias == CUDNN_RNN_SINGLE_REC_BIAS;
    mica_rnn_matrix b = mica_rnn_weight(&d, layer, direction,
                                        recurrent && !single ? MICA_RNN_PART_BR : MICA_RNN_PART_B);
    if (single && recurrent != (rnn->bias == CUDNN_RNN_SINGLE_REC_BIAS)) b = none;
    FRONT_TRY(give(rnn, weights, m, first, rnn->hidden, m_desc, matrix));
    return give(rnn, weights, b, first, rnn->hidden, b_desc, bias);
}
