/* SPDX-License-Identifier: Apache-2.0
 * What the CPU does to regions, for each type of sums. */
#ifndef MICA_OPS_ROI_ALIGN_CPU_H
#define MICA_OPS_ROI_ALIGN_CPU_H

#include "ops/roi_align/roi_align.h"

typedef struct mica_roi_align_job {
    mica_roi_align_args args;
    mica_roi_align_mode mode;
    mica_dtype type, rois_type, batch_type, argmax_type;
    mica_roi_align_strides sum_step; /* bwd */
} mica_roi_align_job;

/* Channels c to c_end: of region k; or of picture n, into sums of reals, which are added to. */
typedef struct mica_roi_align_loops {
    void (*forward)(const mica_roi_align_job *j, int64_t k, int64_t c, int64_t c_end);
    void (*backward)(const mica_roi_align_job *j, int64_t n, int64_t c, int64_t c_end, void *sums);
} mica_roi_align_loops;
extern const mica_roi_align_loops mica_roi_align_loops_f32, mica_roi_align_loops_f64;

/* Most channels of a call. */
enum { ROI_CHANNELS = 64 };

#endif
