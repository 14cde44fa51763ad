/* SPDX-License-Identifier: Apache-2.0
 * Outputs that the CPU takes at once, and what is done to them. */
#ifndef MICA_OPS_GRID_SAMPLE_CPU_H
#define MICA_OPS_GRID_SAMPLE_CPU_H

#include "ops/grid_sample/grid_sample.h"

/* Outputs of a block, channels of a piece, most taps. */
enum { SAMPLE_BLOCK = 64, SAMPLE_PIECE = 256, SAMPLE_MOST = 16 };

/* A problem: what kernels get, and types. */
typedef struct mica_grid_sample_job {
    mica_grid_sample_args args;
    mica_taps_strides sum_step;
    int axes, taps, mode, padding, align;
    mica_dtype type, grid_type, dgrid_type;
    bool channels_last; /* of x and y; or of the sums and dy */
    int64_t row;        /* neighbouring outputs that are equally far apart */
} mica_grid_sample_job;

/* Outputs first to end, of (n, output); all of channels c to c_end. The sums of dx, of reals, are
 * added to. */
typedef struct mica_grid_sample_loops {
    void (*forward)(const mica_grid_sample_job *j, int64_t first, int64_t end, int64_t c,
                    int64_t c_end);
    void (*scatter)(const mica_grid_sample_job *j, int64_t first, int64_t end, int64_t c,
                    int64_t c_end, void *sums);
    void (*slopes)(const mica_grid_sample_job *j, int64_t first, int64_t end);
} mica_grid_sample_loops;
extern const mica_grid_sample_loops mica_grid_sample_loops_f32, mica_grid_sample_loops_f64;

#endif
