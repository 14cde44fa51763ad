/* SPDX-License-Identifier: Apache-2.0
 * What the kernels of roi_align share: regions. Constants MODE, BATCH (pictures are an array of batch_t; else
 * the first column), BLOCK; types rois_t, batch_t, argmax_t, real. */
#pragma once
#include "kernels/overlap.cuh"
#include "kernels/types.cuh"
#include "kernels/vector.cuh"

#define INLINE __device__ __forceinline__
#define ROI INLINE

INLINE float add_of(float a, float b) { return __fadd_rn(a, b); }
INLINE double add_of(double a, double b) { return __dadd_rn(a, b); }
INLINE float mul_of(float a, float b) { return __fmul_rn(a, b); }
INLINE double mul_of(double a, double b) { return __dmul_rn(a, b); }
INLINE float div_of(float a, float b) { return __fdiv_rn(a, b); }
INLINE double div_of(double a, double b) { return a / b; }
INLINE float floor_of(float a) { return floorf(a); }
INLINE double floor_of(double a) { return floor(a); }
INLINE float ceil_of(float a) { return ceilf(a); }
INLINE double ceil_of(double a) { return ceil(a); }
INLINE float round_of(float a) { return roundf(a); }
INLINE double round_of(double a) { return round(a); }
INLINE float abs_of(float a) { return fabsf(a); }
INLINE double abs_of(double a) { return fabs(a); }

#include "ops/roi_align/roi_align_body.h"

constexpr bool POOL = MODE == ROI_POOL;

struct region_t {
    s64 n; /* -1: nothing is read */
    roi_axis axis[2]; /* along h, along w */
    real count;       /* samples of a bin */
};

/* Its picture, -1: none; x1, y1, x2, y2. */
INLINE s64 picture_of(const mica_roi_align_args &a, s64 k, real *corner)
{
    const rois_t *roi = (const rois_t *)a.rois + k * a.roi;
    s64 n;
    if (BATCH) {
        n = (s64)((const batch_t *)a.batch)[k * a.batch_step];
        n = n >= 0 && n < a.n ? n : -1;
    } else {
        n = roi_picture(widen<real>(*roi), a.n);
        roi += a.roi_column;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) corner[i] = widen<real>(roi[i * a.roi_column]);
    return n;
}

INLINE region_t region_of(const mica_roi_align_args &a, s64 k)
{
    region_t r;
    real corner[4];
    r.n = picture_of(a, k, corner);
    r.axis[1] =
        roi_along(MODE, corner[0], corner[2], (real)a.scale, a.aligned, a.sampling, a.bins_w, a.w);
    r.axis[0] =
        roi_along(MODE, corner[1], corner[3], (real)a.scale, a.aligned, a.sampling, a.bins_h, a.h);
    if (r.axis[1].samples == 0 || r.axis[0].samples == 0) r.n = -1;
    r.count = roi_count(&r.axis[0], &r.axis[1]);
    return r;
}
