/* SPDX-License-Identifier: Apache-2.0
 * A step of recurrent cells, as the kernel and the CPU's loops get it; host and device share this
 * file. */
#ifndef MICA_OPS_RNN_RNN_ARGS_H
#define MICA_OPS_RNN_RNN_ARGS_H

/* What a step does between products: the whole cell; or, of a gru that resets before its product,
 * what comes before that, and after it. */
enum { RNN_WHOLE, RNN_GATES, RNN_NEW };

/* And backward: a step, or the last sum of what reaches the initial h. */
enum { RNN_SLOPES, RNN_INITIAL };

/* Directions of a layer, sequences and units: of directions `sides` are computed at once, each at
 * its own time. Arrays without strides are packed, directions x sequences x units (G gates: G of
 * them one behind the other). acc: the type of sums. */
typedef struct mica_rnn_args {
    long long sides, batch, units, steps;
    long long step; /* counted as each direction goes */
    const void *z;  /* acc, W x + b: steps x batch rows of G x units */
    long long z_side, z_time, z_batch;
    void *rec; /* acc, R h; gru with reset_before: of r and z, and z itself from GATES on */
    const void *rec_new; /* acc, NEW: R (r h) */
    const void *bias;    /* r of direction 0; NULL: none */
    long long bias_side;
    const void *lengths; /* NULL: none */
    long long length_stride;
    int long_lengths; /* s64, else s32 */
    void *low;        /* the type of x: h, which the next product takes */
    void *low_made;   /* GATES: r h, likewise */
    void *state;      /* acc: c, of a gru h */
    void *y;
    long long y_side, y_time, y_batch, y_unit;
    /* What gradients need of the layer; NULL: not asked for. */
    void *gates, *cells, *states;
} mica_rnn_args;

/* A step of the gradients. Fields of the same names mean the same; y holds the gradient of it. */
typedef struct mica_rnn_slope_args {
    long long sides, batch, units, steps;
    long long step;  /* from the last one down */
    long long first; /* not 0: nothing came of a product yet */
    const void *gates, *cells, *states, *lengths;
    long long length_stride;
    int long_lengths; /* s64, else s32 */
    const void *y;
    long long y_side, y_time, y_batch, y_unit;
    const void *rec; /* acc: what came through the product with R */
    void *direct;    /* acc: what of the gradient of h passes by it */
    void *dc;        /* acc */
    void *low;       /* the type of x, G x units a row: what the next product takes */
    void *dz;
} mica_rnn_slope_args;

#endif
