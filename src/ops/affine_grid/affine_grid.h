/* SPDX-License-Identifier: Apache-2.0
 * What the files of affine_grid share. */
#ifndef MICA_OPS_AFFINE_GRID_AFFINE_GRID_H
#define MICA_OPS_AFFINE_GRID_AFFINE_GRID_H

#include "mica/affine_grid.h"
#include "ops/op.h"

static inline bool mica_affine_grid_is_forward(const mica_affine_grid_desc *d)
{
    return d->pass == MICA_AFFINE_GRID_FWD;
}
/* The grid, or its gradient; the map, or its. */
static inline const mica_tensor *mica_affine_grid_of(const mica_affine_grid_desc *d)
{
    return mica_affine_grid_is_forward(d) ? &d->grid : &d->dgrid;
}
static inline const mica_tensor *mica_affine_grid_theta(const mica_affine_grid_desc *d)
{
    return mica_affine_grid_is_forward(d) ? &d->theta : &d->dtheta;
}
/* The coordinate of output k of an axis of so many. */
static inline double mica_affine_grid_base(const mica_affine_grid_desc *d, int64_t k, int64_t size)
{
    const int64_t n = d->align_corners ? size - 1 : size;
    return n > 0 ? (double)(2 * k - (size - 1)) / (double)n : 0;
}

extern const mica_engine mica_affine_grid_cpu;

#endif
