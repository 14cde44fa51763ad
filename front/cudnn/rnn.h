/* SPDX-License-Identifier: Apache-2.0
 * Recurrent nets: what descriptors, weights and runs share. */
#ifndef FRONT_CUDNN_RNN_H
#define FRONT_CUDNN_RNN_H

#include "front.h"

struct cudnnRNNStruct {
    front_kind kind;
    bool set;
    cudnnRNNAlgo_t algo;
    cudnnRNNMode_t cell;
    cudnnRNNBiasMode_t bias;
    cudnnDirectionMode_t direction;
    cudnnRNNInputMode_t input;
    cudnnDataType_t type, precision;
    cudnnMathType_t math;
    int32_t input_size, hidden, projection, layers;
    cudnnDropoutDescriptor_t dropout;
    uint32_t flags;
    cudnnRNNClipMode_t clip;
    cudnnNanPropagation_t clip_nan;
    double clip_low, clip_high;
};

struct cudnnRNNDataStruct {
    front_kind kind;
    bool set;
    cudnnDataType_t type;
    cudnnRNNDataLayout_t layout;
    int steps, batch, size; /* T, B and elements of a step */
    int *lengths;           /* of each sequence */
    bool full;              /* each has all steps */
    double fill;            /* behind a sequence's end */
    bool filled;
};

cudnnStatus_t front_rnn_check(cudnnRNNDescriptor_t rnn);
cudnnStatus_t front_rnn_data_check(cudnnRNNDataDescriptor_t data, const char *argument);
/* mica's problem without its tensors: cell, sizes, clip. */
void front_rnn_problem(cudnnRNNDescriptor_t rnn, mica_rnn_desc *d);
/* T x B x size in the layout's memory order; of packed data as if it were not. */
mica_tensor front_rnn_tensor(cudnnRNNDataDescriptor_t data);
/* Copies packed data to T x B x size, or back; what is behind a sequence's end becomes 0. */
cudnnStatus_t front_rnn_unpack(cudnnHandle_t handle, cudnnRNNDataDescriptor_t data,
                               const void *packed, void *padded);
cudnnStatus_t front_rnn_pack(cudnnHandle_t handle, cudnnRNNDataDescriptor_t data,
                             const void *padded, void *packed);

#endif
