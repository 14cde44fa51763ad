/* SPDX-License-Identifier: Apache-2.0
 * What the Hopper kernels of this family receive; host and device share this file, so no types but
 * C's own. Axis 2 is the innermost; axes that the tensors do not have are 1 long. */
#ifndef MICA_OPS_CONV_IM2COL_IM2COL_ARGS_H
#define MICA_OPS_CONV_IM2COL_IM2COL_ARGS_H

#include "kernels/tensor_map.h"
#include "ops/conv/conv_args.h"

/* The pixels of the result that see the same taps: all of them forward; in a gradient with strides
 * those of one remainder, so that each class is a convolution of stride 1. */
typedef struct mica_conv_class {
    int count[3];                  /* pixels along each axis */
    int start[3];                  /* where the first one's first tap reads */
    int taps[3];                   /* 0: nothing reaches this class */
    int filter[3], filter_step[3]; /* the filter's coordinate of tap 0, and the way to the next */
    int pixels, first_tile;
    long long out, residual; /* offsets of pixel 0 */
} mica_conv_class;

#define MICA_CONV_CLASSES 8
typedef struct mica_conv_sm90_args {
    mica_tensor_map image[MICA_CONV_CLASSES], filter;
    mica_conv_class classes[MICA_CONV_CLASSES];
    int class_count, tiles, col_tiles;
    int step[3];                    /* between the pixels that neighbouring results read */
    int tap_step[3];                /* between those that neighbouring taps read */
    int terms, cols;                /* channels read and written */
    mica_conv_strides to, residual; /* from pixel to pixel of a class */
    void *out;
    float alpha, beta;
    int wide; /* the residual is read 16 bytes at once; beta is 0 */
    mica_epilogue_args epilogue;
    double *partial; /* sums by channel: parts x (sum, square) x cols */
} mica_conv_sm90_args;

/* Where wgrad's sums go. */
typedef struct mica_conv_sm90_filter {
    void *out;
    mica_conv_strides f;
    long long f_base;
    int taps[3], channels;
    float alpha, beta;
} mica_conv_sm90_filter;

/* wgrad: rows are channels of b, columns (tap, 64 channels of a), terms pixels of b. */
typedef struct mica_conv_sm90_wgrad_args {
    mica_tensor_map image, grad;
    int count[3], start[3], step[3], tap_step[3];
    int rows;           /* of a group */
    int blocks, splits; /* blocks of 64 pixels, and shares of them; 0: as in mica_conv_stream */
    int row_tiles, col_tiles;     /* rows: of all groups */
    int group_tiles;              /* tiles down the rows of one */
    float *partial;               /* parts x rows of all groups x columns */
    mica_conv_sm90_filter filter; /* out, alpha and beta: of clusters, which finish their tiles */
} mica_conv_sm90_wgrad_args;

/* How multiprocessors share the work evenly where tiles do not fill waves: all tiles' blocks of
 * pixels stand in one line, of which each has a piece. Part i of a tile is that of the i-th piece
 * in it. */
typedef struct mica_conv_stream {
    int pieces; /* at most one for each block; 0: no stream, each tile has `splits` parts */
    int blocks, tile_rows, tile_cols, col_tiles;
    int group_rows, group_tiles; /* rows of a group, and tiles down them */
    long long length;            /* tiles x blocks */
} mica_conv_stream;

typedef struct mica_conv_sm90_reduce_args {
    const float *partial;
    mica_conv_sm90_filter filter;
    long long split_stride;
    int columns, pitch, count, splits; /* columns: of a row of partial sums; pitch: of a tap */
    mica_conv_stream stream;
} mica_conv_sm90_reduce_args;

#endif
