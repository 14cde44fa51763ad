/* SPDX-License-Identifier: Apache-2.0
 * Regions of a picture, each pooled to one size, and the gradient (RoI align, RoI pool).
 *
 *   fwd   y[k, c, ph, pw] = of bin (ph, pw) of region k in channel c of x
 *   bwd   dx[n, c, h, w] = sum over all bins of regions of n of what y there changes by x times dy
 *
 * A region is x1, y1, x2, y2 in units of a picture that is 1 / scale times as large as x. Its
 * picture n is the column before them (K x 5, as torchvision has it) or batch (K x 4, as ONNX has
 * it); a region of which n is not 0 to N - 1 reads nothing. Modes:
 *
 * avg, max: a region begins at x1 scale and ends at x2 scale, each less 1/2 if `aligned`, else it
 * is at least 1 long. A bin has `sampling` samples along an axis, or, of 0, as many as it is
 * elements long, rounded up, at the middles of equal parts. A sample at u reads the elements
 * floor(u) and floor(u) + 1 with the weights of linear interpolation; from -1 to 0 it is that of 0,
 * from size - 1 to size that of size - 1; elsewhere nothing. avg is the mean over all samples of a
 * bin; max is, as in ONNX, the greatest product of a weight and its element, where a sample beside
 * x counts as 0, and has no gradient.
 *
 * pool: x1 scale and x2 scale are rounded, halves away from zero; both ends are inside and the
 * region at least 1 long. A bin are the elements from floor(p size / bins) to ceil((p + 1) size /
 * bins), the greatest of which is y; argmax is its position in its plane, of equal ones the first,
 * h before w. NaN is greater than all numbers.
 *
 * A bin without an element is 0 (argmax -1). So are all bins of a region with a coordinate that is
 * NaN or so large that it, its length or the number of samples (2^30 in a bin) is no number.
 * Weights of an element are summed along each axis before they are multiplied, and elements that no
 * sample reads are not: infinity beside them changes nothing, infinity times the weight 0 is NaN.
 *
 * Types: f64 f32 f16 bf16; the regions' is f32 or x's. Coordinates, weights and sums are f64 for
 * f64, else f32, coordinates rounded operation by operation; results are rounded once. Gradients
 * are summed in the order of (k, ph, pw): bits do not vary. */
#ifndef MICA_ROI_ALIGN_H
#define MICA_ROI_ALIGN_H

#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mica_roi_align_pass { MICA_ROI_ALIGN_FWD, MICA_ROI_ALIGN_BWD } mica_roi_align_pass;
typedef enum mica_roi_align_mode {
    MICA_ROI_ALIGN_AVG,
    MICA_ROI_ALIGN_MAX,
    MICA_ROI_ALIGN_POOL
} mica_roi_align_mode;

enum {
    MICA_ROI_ALIGN_X,
    MICA_ROI_ALIGN_ROIS,
    MICA_ROI_ALIGN_BATCH,
    MICA_ROI_ALIGN_Y,
    MICA_ROI_ALIGN_ARGMAX,
    MICA_ROI_ALIGN_DY,
    MICA_ROI_ALIGN_DX
};

typedef struct mica_roi_align_desc {
    mica_roi_align_pass pass; /* 0 means fwd */
    mica_roi_align_mode mode; /* 0 means avg */
    mica_tensor x;            /* fwd: N x C x H x W; 0 means in bwd none, else needed */
    mica_tensor rois;         /* K x 5, or K x 4 with batch; needed */
    mica_tensor batch;        /* K, s32 or s64; 0 means the first column of rois */
    mica_tensor y;            /* K x C x size; 0 means inferred, order in memory as x */
    mica_tensor argmax;       /* pool: as y, s32 or s64; 0 means not wanted, in bwd needed */
    mica_tensor dy;           /* bwd: as y; 0 means inferred */
    mica_tensor dx;           /* bwd: N x C x H x W; 0 means in fwd none, else needed */
    int64_t size[2];          /* bins along H and W; 0 means those of y */
    int64_t sampling;         /* samples of a bin along an axis, to 4096; 0 means by its length */
    double scale;             /* elements of x for a unit of coordinates; 0 means 1 */
    bool aligned;             /* coordinates are of corners, not of centres; 0 means no */
} mica_roi_align_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_roi_align_plan(mica_context *context,
                                              const mica_roi_align_desc *desc,
                                              const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "roi_align", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
