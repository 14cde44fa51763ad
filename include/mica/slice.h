/* SPDX-License-Identifier: Apache-2.0
 * Parts of x: y[i] = x[start + step i] in each dimension. A step below 0 goes backwards: start=-1,
 * step=-1 flips. pass=bwd: dx is dy in its places and 0 elsewhere; pass=write: y's elements replace
 * those of x, all else of x stays. All types, bit by bit. */
#ifndef MICA_SLICE_H
#define MICA_SLICE_H

#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { MICA_SLICE_X, MICA_SLICE_Y, MICA_SLICE_DY, MICA_SLICE_DX };

typedef enum mica_slice_pass { MICA_SLICE_FWD, MICA_SLICE_BWD, MICA_SLICE_WRITE } mica_slice_pass;

typedef struct mica_slice_desc {
    mica_slice_pass pass;         /* 0 means fwd */
    mica_tensor x;                /* fwd, write: needed */
    mica_tensor y;                /* 0 means inferred: fwd, write: packed, all from start on */
    mica_tensor dy;               /* 0 means inferred: bwd: as y would be */
    mica_tensor dx;               /* bwd: needed */
    int64_t start[MICA_MAX_RANK]; /* below 0 counts from the end; 0 means the first */
    int64_t step[MICA_MAX_RANK];  /* 0 means 1 */
} mica_slice_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_slice_plan(mica_context *context, const mica_slice_desc *desc,
                                          const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "slice", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
