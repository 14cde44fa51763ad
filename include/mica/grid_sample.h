/* SPDX-License-Identifier: Apache-2.0
 * Sampling at the places that a grid names, in two or three dimensions, and its gradients.
 *
 *   fwd   y[n, c, o] = sum over taps t of (n, o) of weight_t x[n, c, t]
 *   bwd   dx[n, c, i] = sum of weight_t dy[n, c, o] over all taps t that are i
 *         dgrid[n, o, .] = sum over c of dy[n, c, o] times the derivative of y[n, c, o]
 *
 * The grid's last dimension holds x, y (and z): -1 to 1 along the last axis of x, the one before it
 * and so on. As in PyTorch a coordinate g becomes u = (g + 1) size / 2 - 1/2, or
 * (g + 1) (size - 1) / 2 with align_corners: -1 and 1 are then centres of the outermost elements,
 * not their outer edges. Modes:
 *
 *   nearest    the element at u, rounded to nearest even
 *   bilinear   the 2 neighbours along each axis (8 in all in 3-D)
 *   bicubic    4 along each axis by the cubic convolution with a = -0.75; 2-D only
 *
 * Beside x are zeros, or the element at its border, or those reflected there: at the centres of the
 * outermost elements with align_corners, else at their outer edges. Bilinear and nearest move the
 * coordinate there, bicubic each of its taps. A coordinate on a border or moved to it has the
 * derivative 0 along that axis, one of nearest always.
 *
 * NaN: with border and reflection it is index 0; with zeros it reads nothing, as PyTorch has it on
 * GPUs; bicubic makes NaN of each coordinate that is not finite. Infinity: beside x, for reflection
 * as NaN. What reads an element of x multiplies it, so infinity times the weight 0 is NaN.
 *
 * A spatial transformer (cuDNN) is affine_grid with align_corners and this with bilinear, zeros and
 * align_corners.
 *
 * Types: f64 f32 f16 bf16; the grid's is f32 or x's. Coordinates, weights and sums are f64 for f64,
 * else f32, coordinates rounded operation by operation; results are rounded once. Gradients are
 * summed in the order of (n, o, t) whatever the grid: bits do not vary. */
#ifndef MICA_GRID_SAMPLE_H
#define MICA_GRID_SAMPLE_H

#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mica_grid_sample_pass {
    MICA_GRID_SAMPLE_FWD,
    MICA_GRID_SAMPLE_BWD
} mica_grid_sample_pass;
typedef enum mica_grid_sample_mode {
    MICA_GRID_SAMPLE_BILINEAR,
    MICA_GRID_SAMPLE_NEAREST,
    MICA_GRID_SAMPLE_BICUBIC
} mica_grid_sample_mode;
typedef enum mica_grid_sample_padding {
    MICA_GRID_SAMPLE_ZEROS,
    MICA_GRID_SAMPLE_BORDER,
    MICA_GRID_SAMPLE_REFLECTION
} mica_grid_sample_padding;

enum {
    MICA_GRID_SAMPLE_X,
    MICA_GRID_SAMPLE_GRID,
    MICA_GRID_SAMPLE_Y,
    MICA_GRID_SAMPLE_DY,
    MICA_GRID_SAMPLE_DX,
    MICA_GRID_SAMPLE_DGRID
};

typedef struct mica_grid_sample_desc {
    mica_grid_sample_pass pass;       /* 0 means fwd */
    mica_grid_sample_mode mode;       /* 0 means bilinear */
    mica_grid_sample_padding padding; /* 0 means zeros */
    mica_tensor x;      /* N x C x 2 or 3 axes; 0 means in bwd without dgrid none, else needed */
    mica_tensor grid;   /* N x output axes x their number; needed */
    mica_tensor y;      /* N x C x output axes; 0 means inferred, order in memory as x */
    mica_tensor dy;     /* bwd: as y; 0 means inferred */
    mica_tensor dx;     /* bwd: as x; 0 means none, then dgrid is needed */
    mica_tensor dgrid;  /* bwd: as grid; 0 means none, then dx is needed */
    bool align_corners; /* 0 means no */
} mica_grid_sample_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_grid_sample_plan(mica_context *context,
                                                const mica_grid_sample_desc *desc,
                                                const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "grid_sample", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
