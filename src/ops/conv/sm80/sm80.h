/* SPDX-License-Identifier: Apache-2.0
 * A convolution prepared for the matrix kernels of engine sm80: what the files of that engine
 * share. */
#ifndef MICA_OPS_CONV_SM80_SM80_H
#define MICA_OPS_CONV_SM80_SM80_H

#include "ops/conv/conv.h"
#include "ops/conv/sm80/sm80_args.h"
#include "ops/mma/mma_tile.h"

enum { CONV_SM80_MOST_CLASSES = 256 };

/* dgrad: the pixels p, p + stride, ... of an axis and the taps that reach them. */
typedef struct conv_sm80_phase {
    int64_t pixels, taps;
    int64_t first_tap, tap_step; /* between taps that count */
    int64_t base;                /* position of pixel 0 and the first tap */
} conv_sm80_phase;

typedef struct conv_sm80_shape {
    mica_conv_geometry g; /* axes that need no taps merged into one */
    int kind;
    bool tap_fast; /* order of (tap, channel) pairs */
    int axes;
    int64_t channels, cols;         /* of the image that is read, of the result, in a group */
    int64_t phases[3], class_count; /* dgrad: min(stride, pixels) along each axis */
    mica_mma_tile tile;             /* but for tile_m and tile_n */
} conv_sm80_shape;

void conv_sm80_shape_make(const mica_conv_desc *d, conv_sm80_shape *s);
conv_sm80_phase conv_sm80_phase_of(const conv_sm80_shape *s, int axis, int64_t phase);
/* Lines and terms of the matrix product: of the largest class, or all pairs and pixels in wgrad. */
int64_t conv_sm80_rows(const conv_sm80_shape *s);
int64_t conv_sm80_terms(const conv_sm80_shape *s);
/* All but pointers, scalars, splits and tiles; classes from number `first` on. */
void conv_sm80_args_make(const conv_sm80_shape *s, int64_t first, conv_sm80_args *a);

#endif
