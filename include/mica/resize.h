/* SPDX-License-Identifier: Apache-2.0
 * Resizing of images and volumes in one, two and three dimensions: nearest, linear, cubic, area;
 * with or without antialias.
 *   fwd   y[o] = sum over i of w(o, i) x[i], the weights being products of one per axis
 *   bwd   x[i] = sum over o of w(o, i) y[o]: the gradient, gathered in a fixed order
 *
 * An element o of an axis of y lies over a coordinate p of x. With s = Y / X, or the scale that is
 * given:
 *   half_pixel             p = (o + 1/2) / s - 1/2
 *   half_pixel_symmetric   the same about the middle: + X/2 (1 - Y / (s X))
 *   asymmetric             p = o / s
 *   align_corners          p = o (X - 1) / (Y - 1), of one element 0; with a scale s X, not Y, as
 *                          ONNX has it (PyTorch and ONNX Runtime have Y: leave the scale out)
 *   pytorch_half_pixel     half_pixel, but 0 where Y is 1
 *   tf_crop_and_resize     p = from (X - 1) + o (to - from) (X - 1) / (Y - 1), of one element the
 *                          middle; elements with p outside of [0, X - 1] are `extrapolation`
 * Without a scale p is a fraction of integers and all that is rounded from it is exact: what lies
 * on an element, or halfway between two, is seen as that.
 *
 * nearest takes one element, by `nearest`. PyTorch's "nearest" is asymmetric with floor, its
 * "nearest-exact" half_pixel with round_prefer_ceil. linear has weights 1 - |i - p|, cubic those of
 * Keys (1981) with the coefficient `cubic`. With antialias both are stretched by X / Y, or 1 /
 * scale, where that is more than 1, and divided by their sum. area is the mean of the elements
 * [floor(o X / Y), ceil((o + 1) X / Y)).
 *
 * border says what becomes of weights outside x: `edge` gives them to the element at the edge,
 * `exclude` drops them and divides the others by their sum (ONNX: exclude_outside). auto is edge,
 * and with antialias exclude, as in PyTorch; ONNX Runtime's antialias is edge.
 *
 * An element of x whose weight is 0 is not read: beside a NaN or an infinity there is none of it.
 *
 * Types: f64 f32 f16 bf16; fwd also s8 u8; y's is x's. Coordinates and weights are computed in f64
 * and rounded to f32 for floats but f64; sums are f64 for f64, else f32. Of integers weights are
 * rounded to multiples of 2^-30, 2^-20 or 2^-14 (for one, two and three axes that change), of which
 * the largest takes what is missing to 1; sums are then exact, and rounded once: to nearest, ties
 * to even, saturated. */
#ifndef MICA_RESIZE_H
#define MICA_RESIZE_H

#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mica_resize_pass { MICA_RESIZE_FWD, MICA_RESIZE_BWD } mica_resize_pass;
typedef enum mica_resize_mode {
    MICA_RESIZE_NEAREST,
    MICA_RESIZE_LINEAR,
    MICA_RESIZE_CUBIC,
    MICA_RESIZE_AREA
} mica_resize_mode;
typedef enum mica_resize_coordinates {
    MICA_RESIZE_HALF_PIXEL,
    MICA_RESIZE_HALF_PIXEL_SYMMETRIC,
    MICA_RESIZE_ASYMMETRIC,
    MICA_RESIZE_ALIGN_CORNERS,
    MICA_RESIZE_PYTORCH_HALF_PIXEL,
    MICA_RESIZE_TF_CROP_AND_RESIZE
} mica_resize_coordinates;
typedef enum mica_resize_nearest {
    MICA_RESIZE_ROUND_PREFER_FLOOR,
    MICA_RESIZE_ROUND_PREFER_CEIL,
    MICA_RESIZE_FLOOR,
    MICA_RESIZE_CEIL
} mica_resize_nearest;
typedef enum mica_resize_border {
    MICA_RESIZE_BORDER_AUTO,
    MICA_RESIZE_BORDER_EDGE,
    MICA_RESIZE_BORDER_EXCLUDE
} mica_resize_border;

/* bwd: X is dx (written), Y is dy (read). */
enum { MICA_RESIZE_X, MICA_RESIZE_Y };

typedef struct mica_resize_desc {
    mica_resize_pass pass;               /* 0 means fwd */
    mica_resize_mode mode;               /* 0 means nearest */
    mica_resize_coordinates coordinates; /* 0 means half_pixel */
    mica_resize_nearest nearest;         /* 0 means round_prefer_floor */
    mica_resize_border border;           /* 0 means auto */
    bool antialias;                      /* linear and cubic; 0 means no */
    mica_tensor x;                       /* N x C x 1 to 3 axes, d h w; needed */
    mica_tensor y; /* 0 means inferred by the scales: floor(X * scale); without them needed */
    /* Of the last three, two or one axes; sizes of y that are given are less than 1 off X * scale.
     */
    double scale_d, scale_h, scale_w; /* 0 means the ratio of the sizes */
    double cubic;                     /* 0 means -0.75, with antialias -0.5 */
    /* tf_crop_and_resize: the part of x, of which 0 and 1 are the first element and the last. */
    double from_d, from_h, from_w; /* 0 means 0 */
    double to_d, to_h, to_w;       /* 0 means 1 */
    double extrapolation;          /* tf_crop_and_resize; 0 means 0 */
} mica_resize_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_resize_plan(mica_context *context, const mica_resize_desc *desc,
                                           const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "resize", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
