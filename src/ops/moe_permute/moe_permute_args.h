/* SPDX-License-Identifier: Apache-2.0
 * What the kernels of moe_permute and moe_unpermute receive; host and device share this file. */
#ifndef MICA_OPS_MOE_PERMUTE_ARGS_H
#define MICA_OPS_MOE_PERMUTE_ARGS_H

typedef struct mica_moe_permute_args {
    const void *indices, *x, *weights, *dy;
    void *offsets, *rows, *places, *y;
    long long *counts; /* by expert, then by chunk: how many; then how many before */
    long long choices, chunk, capacity, all_rows; /* chunk: choices of a block */
    long long count, columns;                     /* rows, tokens or choices of y; elements */
    int chunks, experts, k, align, whole;
    long long index_token, index_slot, offset_expert, row_row, place_token, place_slot,
        weight_token, weight_slot;
    long long x_row, x_column, y_row, y_column, dy_row, dy_column;
} mica_moe_permute_args;

#endif
