/* SPDX-License-Identifier: Apache-2.0
 * Non-maximum suppression: of boxes that overlap, the one with the highest score is selected
 * (torchvision.ops.nms and batched_nms, ONNX's NonMaxSuppression).
 *
 * There is a list for each of B x C classes of each image of the batch, or, of boxes without a
 * batch, one. A list's boxes are taken by falling score, of equal scores by rising index; one is
 * selected unless the IoU of it and a box selected before is above iou_threshold. A list ends after
 * `limit` boxes. With `classes`, which a box has whatever its list, boxes of different classes do
 * not suppress each other (batched_nms; classes are compared, coordinates are not shifted).
 *
 *     selected   without a batch: rows, indices of boxes by falling score
 *                with one: rows x 3, image, class, index of the box: list by list, in their order
 *                rows behind the last are -1
 *     count      how many boxes are selected in all; above the number of rows, the last are left
 * out
 *
 * Only the device knows how many there will be. There are rows for the most there can be, unless
 * `selected` says otherwise: B C min(N, limit).
 *
 * A box is two opposite corners in any order (x1, y1, x2, y2, or y before x: the same), or with
 * format=center its middle, width and height. Extents are differences of coordinates plus `offset`:
 * 1 where corners name the first and the last pixel. IoU is the area common to two boxes divided by
 * (area + other area) - common area, in f64 for f64, else in f32, each operation rounded, and
 * compared with the threshold as it was given: bits and results do not depend on the device. Boxes
 * without an area above 0, such as those with a coordinate that is NaN, and boxes that share none,
 * suppress nothing and are not suppressed; nor do boxes whose IoU is NaN, of infinite areas.
 *
 * A box whose score is NaN, or not above score_threshold, is left out. The threshold -inf leaves
 * out none but NaN. 0 and -0 are equal scores.
 *
 * Run-time scalars: iou_threshold, 0; score_threshold, -inf.
 *
 * Errors, MICA_INVALID: shapes that do not agree; more than 4,194,304 boxes of
 * a list or 16,777,216 lists. */
#ifndef MICA_NMS_H
#define MICA_NMS_H

#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { MICA_NMS_BOXES, MICA_NMS_SCORES, MICA_NMS_CLASSES, MICA_NMS_SELECTED, MICA_NMS_COUNT };

/* Run-time scalars. */
enum { MICA_NMS_IOU_THRESHOLD, MICA_NMS_SCORE_THRESHOLD };

typedef enum mica_nms_format { MICA_NMS_CORNERS, MICA_NMS_CENTER } mica_nms_format;

typedef struct mica_nms_desc {
    mica_nms_format format; /* 0 means corners */
    mica_tensor boxes;      /* N x 4 or B x N x 4, f64 f32 f16 bf16; needed */
    mica_tensor scores;     /* N or B x C x N, as boxes; 0 means inferred, of one class */
    mica_tensor classes;    /* N or B x N, s32 or s64; 0 means none */
    mica_tensor selected;   /* rows, or rows x 3, s32 or s64; 0 means inferred */
    mica_tensor count;      /* 1, s32 or s64; 0 means inferred */
    int64_t limit;          /* most boxes of a list; 0 means no limit */
    int64_t offset;         /* added to widths and heights, 0 or 1; 0 means 0 */
} mica_nms_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_nms_plan(mica_context *context, const mica_nms_desc *desc,
                                        const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "nms", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
