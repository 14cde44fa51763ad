/* SPDX-License-Identifier: Apache-2.0
 * What the engines of roi_align share. */
#ifndef MICA_OPS_ROI_ALIGN_ROI_ALIGN_H
#define MICA_OPS_ROI_ALIGN_ROI_ALIGN_H

#include "mica/roi_align.h"
#include "ops/op.h"
#include "ops/roi_align/roi_align_args.h"

static inline bool mica_roi_align_is_forward(const mica_roi_align_desc *d)
{
    return d->pass == MICA_ROI_ALIGN_FWD;
}
/* What has the sizes of x, and of y. */
static inline const mica_tensor *mica_roi_align_image(const mica_roi_align_desc *d)
{
    return mica_roi_align_is_forward(d) ? &d->x : &d->dx;
}
static inline const mica_tensor *mica_roi_align_output(const mica_roi_align_desc *d)
{
    return mica_roi_align_is_forward(d) ? &d->y : &d->dy;
}
/* What coordinates and sums are formed in: f32 or f64. */
static inline mica_dtype mica_roi_align_real(const mica_roi_align_desc *d)
{
    return mica_dtype_accumulator(mica_roi_align_image(d)->dtype);
}

/* Sizes and strides; and the pointers of a run. */
void mica_roi_align_args_make(const mica_roi_align_desc *d, mica_roi_align_args *a);
void mica_roi_align_args_point(const mica_roi_align_desc *d, void *const *args,
                               mica_roi_align_args *a);
void mica_roi_align_reference(const void *desc, const mica_view *args, const double *scalars);
/* Elements that are copied have no error. */
void mica_roi_align_contract(const void *desc, const mica_config *config, mica_contract *contract);

extern const mica_engine mica_roi_align_cpu, mica_roi_align_cuda;

#endif
