/* SPDX-License-Identifier: Apache-2.0
 * All steps of a layer in one launch, as the kernels get it; host and device share this file. */
#ifndef MICA_OPS_RNN_RNN_PERSISTENT_ARGS_H
#define MICA_OPS_RNN_RNN_PERSISTENT_ARGS_H

#include "ops/rnn/rnn_args.h"

enum { RNN_WARPS = 8, RNN_K_BLOCK = 32, RNN_ROWS = 16 };

/* What one step hands to the next, `width` elements of the type of x a sequence, goes through two
 * buffers, of which step t reads t % 2 and writes the other one. They hold, of each direction,
 * tiles of 16 sequences x 32 elements in the order in which a warp takes them (rnn_persistent.cuh).
 * Groups of sequences have nothing to do with each other: blocks of a direction and a group wait
 * for one another. */
typedef struct mica_rnn_exchange {
    const void *weights; /* R of the first of the directions */
    long long weights_side;
    void *exchange;
    long long width, side, apart; /* elements: of a sequence, of a direction, of a buffer */
    int *arrived;                 /* of each direction and group: 0 before the launch */
    int blocks, groups;           /* of a direction and group; of a direction */
    int rows;                     /* sequences of a group, a multiple of 16 */
    int first;                    /* direction of the launch */
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
