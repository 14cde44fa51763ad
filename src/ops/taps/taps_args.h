/* SPDX-License-Identifier: Apache-2.0
 * What the kernels of taps receive; host and device share this file. */
#ifndef MICA_OPS_TAPS_ARGS_H
#define MICA_OPS_TAPS_ARGS_H

#define MICA_TAPS_AXES 3

typedef struct mica_taps_strides {
    long long n, c, at[MICA_TAPS_AXES];
} mica_taps_strides;

/* Sizes of the tensor with taps and of the one with outputs; products of their axes. Axes that are
 * not there have size 1. */
typedef struct mica_taps_shape {
    long long n, c, in[MICA_TAPS_AXES], out[MICA_TAPS_AXES], in_count, out_count;
} mica_taps_shape;

/* Memory of lists, entries in the order (n, output, tap). A mark is u32, or u64 where counts need
 * it; all bits set: none. */
typedef struct mica_taps_lists {
    void *cells_of_entries; /* marks: cell of each entry, counted through n */
    void *slots;            /* marks: who came when to the cell, in no order that is kept */
    void *weights;          /* reals */
    void *counts;           /* marks: entries of each cell; behind them how many lists have taken */
    void *starts;           /* marks: where each cell's list begins */
    void *placed;           /* marks: entries, cell by cell */
    void *outputs;          /* marks: of the entries in order: output within n, */
    void *factors;          /* reals: and weight */
    long long entries, cells;
} mica_taps_lists;

typedef struct mica_taps_args {
    mica_taps_lists lists;
    mica_taps_shape shape;
    mica_taps_strides from_step, to_step;
    const void *from;
    void *to;
    int whole;
} mica_taps_args;

#endif
