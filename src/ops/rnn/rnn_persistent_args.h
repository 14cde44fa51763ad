/* SPDX-License-Identifier: Apache-2.0
 * All steps of a layer in one launch, as the kernels get it; host and device share this file. */
#ifndef MICA_OPS_RNN_RNN_PERSISTENT_ARGS_H
#define MICA_OPS_RNN_RNN_PERSISTENT_ARGS_H

#include "ops/rnn/rnn_args.h"

enum { RNN_WARPS = 8, RNN_K_BLOCK = 32, RNN_ROWS = 16 };

/* What one step hands to the next goes through `exchange`: two buffers of directions x batch x
 * `width` of the type of x, of which step t reads t % 2 and writes the other one. */
typedef struct mica_rnn_exchange {
    const void *weights; /* R of the first of the directions */
    long long weights_side;
    void *exchange;
    long long width, apart; /* elements of a sequence; of a buffer */
    int *arrived;           /* of each direction: 0 before the launch */
    int blocks;             /* of each direction */
    int first;              /* direction of the launch */
} mica_rnn_exchange;

typedef struct mica_rnn_persistent_args {
    mica_rnn_args step;
    mica_rnn_exchange exchange;
} mica_rnn_persistent_args;

typedef struct mica_rnn_persistent_slope_args {
    mica_rnn_slope_args step;
    mica_rnn_exchange exchange;
} mica_rnn_persistent_slope_args;

#endif
