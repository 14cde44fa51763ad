/* SPDX-License-Identifier: Apache-2.0
 * What the engines of nms share. */
#ifndef MICA_OPS_NMS_NMS_H
#define MICA_OPS_NMS_NMS_H

#include "mica/nms.h"
#include "ops/nms/nms_args.h"
#include "ops/op.h"

/* Boxes of a list, at most 2^22, and lists, at most 2^24. */
static inline int64_t mica_nms_boxes(const mica_nms_desc *d)
{
    return d->boxes.dims[d->boxes.rank - 2];
}
static inline int64_t mica_nms_lists(const mica_nms_desc *d)
{
    return d->boxes.rank == 3 ? d->scores.dims[0] * d->scores.dims[1] : 1;
}
/* Most boxes that a list may have selected. */
static inline int64_t mica_nms_limit(const mica_nms_desc *d)
{
    const int64_t n = mica_nms_boxes(d);
    return d->limit && d->limit < n ? d->limit : n;
}
/* What IoUs are formed in: f32 or f64. */
static inline mica_dtype mica_nms_real(const mica_nms_desc *d)
{
    return mica_dtype_accumulator(d->boxes.dtype);
}

/* Sizes and strides; and the pointers and thresholds of a run. */
void mica_nms_args_make(const mica_nms_desc *d, mica_nms_args *a);
void mica_nms_args_point(const mica_plan *plan, const mica_run *run, mica_nms_args *a);
void mica_nms_reference(const void *desc, const mica_view *args, const double *scalars);

extern const mica_op mica_op_nms;
extern const mica_engine mica_nms_cpu, mica_nms_cuda;

#endif
