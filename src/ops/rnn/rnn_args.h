/* SPDX-License-Identifier: Apache-2.0
 * A step of recurrent cells, as the kernel and the CPU's loops get it; host and device share this
 * file. */
#ifndef MICA_OPS_RNN_RNN_ARGS_H
#define MICA_OPS_RNN_RNN_ARGS_H

/* What a step does between products: the whole cell; or, where it has a second product (of a gru
 * that resets before it, of an lstm with projection), what comes before that, and after it. */
enum { RNN_WHOLE, RNN_FIRST, RNN_SECOND };

/* And backward: a step, or the last sum of what reaches the initial h; what comes before a step
 * with projection, and behind the product of dz of n of a gru that resets before it. */
enum { RNN_SLOPES, RNN_INITIAL, RNN_BEFORE, RNN_BEHIND };

/* Bounds of clipped values, and whether NaN becomes the lower one. */
typedef struct mica_rnn_bounds {
    double low, high;
    int nan;
} mica_rnn_bounds;

/* Directions of a layer, sequences and units (those of what the phase makes: behind a projection P,
 * else H): of directions `sides` are computed at once, each at its own time. Arrays without strides
 * are packed, directions x sequences x units (G gates: G of them one behind the other). acc: the
 * type of sums. */
typedef struct mica_rnn_args {
    long long sides, batch, units, steps;
    long long step; /* counted as each direction goes */
    const void *z;  /* acc, W x + b: steps x batch rows of G x units */
    long long z_side, z_time, z_batch;
    void *rec; /* acc, R h; gru with reset_before: of r and z, and z itself from FIRST on */
    const void *rec_new; /* acc, SECOND: R (r h), or the projection */
    const void *bias;    /* r of direction 0; NULL: none */
    long long bias_side;
    const void *lengths; /* NULL: none */
    long long length_stride;
    int long_lengths; /* s64, else s32 */
    void *low;        /* the type of x: h, which the next product takes */
    void *low_made;   /* FIRST: likewise what the second product takes */
    void *state;      /* acc: c, of a gru h */
    void *y;
    long long y_side, y_time, y_batch, y_unit;
    /* What gradients need of the layer; NULL: not asked for. */
    void *gates, *cells, *states, *inner;
    mica_rnn_bounds bounds;
    const void *peepholes; /* the type of x, directions x 3 (i o f) x units; NULL: none */
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
    const void *rec;     /* acc: what came through the product with R */
    void *direct;        /* acc: what of the gradient of h passes by it */
    void *dc;            /* acc */
    void *low;           /* the type of x, G x units a row: what the next product takes */
    const void *rec_new; /* acc, of the second product */
    void *low_new;       /* what that takes: dz of n; BEFORE: the gradient of h */
    void *dz;            /* from the first column of the phase on */
    long long dz_row;
    mica_rnn_bounds bounds;
    const void *peepholes; /* NULL: none */
} mica_rnn_slope_args;

#endif
