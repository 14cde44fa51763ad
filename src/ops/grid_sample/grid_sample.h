/* SPDX-License-Identifier: Apache-2.0
 * What the engines of grid_sample share. */
#ifndef MICA_OPS_GRID_SAMPLE_GRID_SAMPLE_H
#define MICA_OPS_GRID_SAMPLE_GRID_SAMPLE_H

#include "mica/grid_sample.h"
#include "ops/op.h"
#include "ops/grid_sample/grid_sample_args.h"
#include "ops/taps/taps.h"

static inline bool mica_grid_sample_is_forward(const mica_grid_sample_desc *d)
{
    return d->pass == MICA_GRID_SAMPLE_FWD;
}
/* What has the sizes of x, and of y. */
static inline const mica_tensor *mica_grid_sample_image(const mica_grid_sample_desc *d)
{
    return mica_tensor_given(&d->x) ? &d->x : &d->dx;
}
static inline const mica_tensor *mica_grid_sample_output(const mica_grid_sample_desc *d)
{
    return mica_grid_sample_is_forward(d) ? &d->y : &d->dy;
}
/* What coordinates and sums are formed in: f32 or f64. */
static inline mica_dtype mica_grid_sample_real(const mica_grid_sample_desc *d)
{
    return mica_dtype_accumulator(mica_grid_sample_image(d)->dtype);
}
/* Taps of an output along an axis. */
static inline int mica_grid_sample_taps(const mica_grid_sample_desc *d)
{
    return d->mode == MICA_GRID_SAMPLE_NEAREST ? 1 : d->mode == MICA_GRID_SAMPLE_BILINEAR ? 2 : 4;
}
/* And of all axes. */
int mica_grid_sample_all_taps(const mica_grid_sample_desc *d);
/* Strides of a grid. */
mica_taps_strides mica_grid_sample_grid_strides(const mica_tensor *grid);

void mica_grid_sample_reference(const void *desc, const mica_view *args, const double *scalars);
/* Elements that nearest copies have no error. */
void mica_grid_sample_contract(const void *desc, const mica_config *config,
                               mica_contract *contract);

extern const mica_engine mica_grid_sample_cpu, mica_grid_sample_cuda;

#endif
