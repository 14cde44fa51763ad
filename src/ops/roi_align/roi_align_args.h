/* SPDX-License-Identifier: Apache-2.0
 * What the kernels of roi_align receive; host and device share this file. Modes are the numbers of
 * mica/roi_align.h. */
#ifndef MICA_OPS_ROI_ALIGN_ARGS_H
#define MICA_OPS_ROI_ALIGN_ARGS_H

enum { ROI_AVG, ROI_MAX, ROI_POOL };

/* Of N or K, C, and both axes. */
typedef struct mica_roi_align_strides {
    long long n, c, h, w;
} mica_roi_align_strides;

typedef struct mica_roi_align_args {
    const void *x, *rois, *batch, *dy;
    void *y, *argmax, *dx;
    mica_roi_align_strides x_step, y_step, argmax_step; /* of x or dx; of y or dy */
    long long roi, roi_column, batch_step;
    long long n, c, k, h, w, bins_h, bins_w;
    double scale;
    long long sampling;
    int aligned;
    int whole; /* accesses of vectors of channels are aligned */
} mica_roi_align_args;

#endif
