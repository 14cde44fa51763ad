/* SPDX-License-Identifier: Apache-2.0
 * What the kernels of grid_sample receive; host and device share this file. Axes are those of x
 * behind N and C, two or three. */
#ifndef MICA_OPS_GRID_SAMPLE_ARGS_H
#define MICA_OPS_GRID_SAMPLE_ARGS_H

#include "ops/taps/taps_args.h"

/* Strides: of x, dx, y and dy those of N, C and the axes; of grids C is the last dimension. */
typedef struct mica_grid_sample_args {
    const void *x, *grid, *dy;
    void *y, *dgrid;
    mica_taps_strides x_step, grid_step, y_step, dgrid_step; /* y_step: of y or dy */
    mica_taps_shape shape;
    mica_taps_lists lists; /* that taps of dx go to */
    int padding, align;
    int whole; /* accesses of vectors of channels are aligned */
} mica_grid_sample_args;

#endif
