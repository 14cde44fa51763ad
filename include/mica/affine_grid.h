/* SPDX-License-Identifier: Apache-2.0
 * Grids of affine maps, which grid_sample samples by, and the gradient of the map.
 *   fwd   grid[n, o, i] = sum over j of theta[n, i, j] base[o, j]
 *   bwd   dtheta[n, i, j] = sum over o of dgrid[n, o, i] base[o, j]
 * base[o] is x, y (and z) of output o, of -1 to 1, and 1: along an axis of S outputs those of
 * output k are (2 k - (S - 1)) / S, as PyTorch has them, or with align_corners / (S - 1), and 0 of
 * a single one. Types: f64 f32 f16 bf16, one for all; sums are f64 for f64, else f32, rounded once.
 * A spatial transformer (cuDNN) is this with align_corners and grid_sample with align_corners. */
#ifndef MICA_AFFINE_GRID_H
#define MICA_AFFINE_GRID_H

#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mica_affine_grid_pass {
    MICA_AFFINE_GRID_FWD,
    MICA_AFFINE_GRID_BWD
} mica_affine_grid_pass;

enum {
    MICA_AFFINE_GRID_THETA,
    MICA_AFFINE_GRID_GRID,
    MICA_AFFINE_GRID_DGRID,
    MICA_AFFINE_GRID_DTHETA
};

typedef struct mica_affine_grid_desc {
    mica_affine_grid_pass pass; /* 0 means fwd */
    mica_tensor theta;          /* fwd: N x 2 x 3, or N x 3 x 4; needed */
    mica_tensor grid;           /* fwd: N x 2 or 3 axes x their number; needed */
    mica_tensor dgrid;          /* bwd: as grid; needed */
    mica_tensor dtheta;         /* bwd: as theta; 0 means inferred: packed */
    bool align_corners;         /* 0 means no */
} mica_affine_grid_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_affine_grid_plan(mica_context *context,
                                                const mica_affine_grid_desc *desc,
                                                const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "affine_grid", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
