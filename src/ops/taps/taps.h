/* SPDX-License-Identifier: Apache-2.0
 * Sums over taps on a GPU: to[cell] = the sum of weight times from[output] over all taps that are
 * that cell, wherever they point: gradients of sampling. A kernel of the family emits an entry for
 * each tap (taps_emit of taps.cuh); lists of each cell are made of them in the order of the
 * entries, so that the bits of sums never vary, and each cell adds up its own.
 *
 * Six launches with the family's. Memory: from and to once, and about 50 bytes for each entry,
 * written and read; lists of one cell that take most of the entries cost their length squared. */
#ifndef MICA_OPS_TAPS_TAPS_H
#define MICA_OPS_TAPS_TAPS_H

#include "ops/op.h"
#include "ops/taps/taps_args.h"

enum {
    MICA_TAPS_CELLS,
    MICA_TAPS_SLOTS,
    MICA_TAPS_WEIGHTS,
    MICA_TAPS_COUNTS,
    MICA_TAPS_STARTS,
    MICA_TAPS_PLACED,
    MICA_TAPS_OUTPUTS,
    MICA_TAPS_FACTORS,
    MICA_TAPS_BOOKED
};

typedef struct mica_taps {
    mica_taps_args args;
    mica_kernel *open, *place, *order, *sum;
    mica_grid open_grid, entry_grid, sum_grid;
    int64_t count_bytes;
    size_t at[MICA_TAPS_BOOKED];
    int vector_bytes; /* 0: channels are not side by side */
} mica_taps;

/* Strides and sizes of N x C x `axes` axes; of a dimension of size 1 the stride is 0. */
mica_taps_strides mica_taps_strides_of(const mica_tensor *t);
mica_taps_shape mica_taps_shape_of(const mica_tensor *in, const mica_tensor *out);

/* "mark" and "real" in a prologue of kernels that emit entries of this plan. */
void mica_taps_prologue(const mica_taps *taps, mica_dtype real, mica_text *text);
/* Of `each` taps for each output of `from`, N x C x axes as `to`; real: what sums are formed in. */
mica_status mica_taps_build(mica_plan *plan, mica_taps *taps, const mica_tensor *from,
                            const mica_tensor *to, int each, mica_dtype real);
/* No list has an entry; where the family's kernel finds them. */
mica_status mica_taps_begin(const mica_plan *plan, const mica_taps *taps, const mica_run *run,
                            mica_taps_lists *lists);
/* What was emitted, summed. */
mica_status mica_taps_end(const mica_taps *taps, const mica_run *run, const mica_taps_lists *lists,
                          const void *from, void *to);

#endif
