/* SPDX-License-Identifier: Apache-2.0
 * What the files of the CPU engine share. */
#ifndef MICA_OPS_OPTIM_CPU_OPTIM_CPU_H
#define MICA_OPS_OPTIM_CPU_OPTIM_CPU_H

#include "ops/optim/optim.h"

typedef struct optim_cpu_state {
    mica_layout layout;
    int at[MICA_OPTIM_ARGS]; /* place of an argument in the layout; -1: absent */
    mica_dtype types[MICA_OPTIM_ARGS];
    bool adam, f64;
    int tiled; /* this dimension, with the last, makes tiles; -1: pieces are of one row */
    int64_t counts[MICA_LAYOUT_RANK], pieces; /* along each dimension and in all */
    double bytes;
} optim_cpu_state;

/* Part of a row, or of OPTIM_ROWS rows: offset and strides of each argument in elements. */
typedef struct optim_piece {
    int64_t at[MICA_OPTIM_ARGS], stride[MICA_OPTIM_ARGS], n;
    int64_t row_step[MICA_OPTIM_ARGS], rows;
} optim_piece;

enum { OPTIM_PIECE = 1024, OPTIM_ROWS = 16, OPTIM_COLS = 256 };

void optim_cpu_step_f32(const optim_cpu_state *s, const optim_piece *piece, void *const *args,
                        const mica_optim_numbers *numbers);
void optim_cpu_step_f64(const optim_cpu_state *s, const optim_piece *piece, void *const *args,
                        const mica_optim_numbers *numbers);

#endif
