/* SPDX-License-Identifier: Apache-2.0
 * What the loops of affine_grid get. */
#ifndef MICA_OPS_AFFINE_GRID_CPU_AFFINE_GRID_CPU_H
#define MICA_OPS_AFFINE_GRID_CPU_AFFINE_GRID_CPU_H

#include "ops/affine_grid/affine_grid.h"

enum { MICA_AFFINE_AXES = 3, MICA_AFFINE_PIECE = 512 };

typedef struct mica_affine_walk {
    const mica_affine_grid_desc *d;
    const mica_tensor *grid, *theta;
    int axes;
    int64_t samples, rows, columns; /* rows of a sample: all axes but the last */
    int64_t part, parts;            /* rows that are summed at once, and how many such */
    double bytes;
} mica_affine_walk;

void mica_affine_grid_forward_f32(const mica_affine_walk *w, const void *theta, void *grid);
void mica_affine_grid_forward_f64(const mica_affine_walk *w, const void *theta, void *grid);
/* sums: of each part, axes x (axes + 1). */
void mica_affine_grid_backward_f32(const mica_affine_walk *w, const void *dgrid, void *dtheta,
                                   double *sums);
void mica_affine_grid_backward_f64(const mica_affine_walk *w, const void *dgrid, void *dtheta,
                                   double *sums);

#endif
