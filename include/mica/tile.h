/* SPDX-License-Identifier: Apache-2.0
 * x again and again, rolled: y[i] = x[(i - shift) mod n] in each dimension of n elements, y having
 * repeats times as many: numpy.tile of as many dimensions, torch.repeat, and torch.roll where
 * nothing is repeated. pass=bwd: dx is the sum of dy over the repetitions. All types; sums are
 * formed in f32 (f64 for f64 and integers of 32 bits and more) and rounded once. */
#ifndef MICA_TILE_H
#define MICA_TILE_H

#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { MICA_TILE_X, MICA_TILE_Y, MICA_TILE_DY, MICA_TILE_DX };

typedef enum mica_tile_pass { MICA_TILE_FWD, MICA_TILE_BWD } mica_tile_pass;

typedef struct mica_tile_desc {
    mica_tile_pass pass;            /* 0 means fwd */
    mica_tensor x;                  /* fwd: needed */
    mica_tensor y;                  /* 0 means inferred: fwd: packed */
    mica_tensor dy;                 /* 0 means inferred: bwd: as y would be */
    mica_tensor dx;                 /* bwd: needed */
    int64_t repeats[MICA_MAX_RANK]; /* 0 means 1 */
    int64_t shift[MICA_MAX_RANK];   /* to higher indices; 0 means none */
} mica_tile_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_tile_plan(mica_context *context, const mica_tile_desc *desc,
                                         const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "tile", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
