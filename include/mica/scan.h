/* SPDX-License-Identifier: Apache-2.0
 * Scans: each element of y is formed of the elements of x up to it, along one axis.
 *
 *   sum prod      of the elements
 *   max min       NaN wins from where it is on; index, if it is given, has the position along the
 *                 axis, of equals and of NaN that of the latest
 *   logsumexp     log(sum(exp(x)))
 *
 * exclusive: of the elements before it, of none a sum is 0, a product 1, a maximum -inf (of
 * integers the least there is), a logsumexp -inf, and the index -1. reverse: from the axis' end
 * towards its start; "before" and "latest" are in that order, positions stay x's. flags: an element
 * whose flag is not 0 begins a segment that reaches to the next such element, in the order of the
 * axis also of reverse scans; segments are scanned each for itself.
 *
 *   fwd   y and index of x
 *   bwd   dx of dy: of sum nothing else is read; prod reads x (no division: zeros are no special
 *         case), logsumexp x and y, max and min index, which forward made, and not flags. Where y
 *         of logsumexp is -inf the gradient is 0.
 *
 * Types: x f64 f32 f16 bf16, with y of those; or s8 u8 s32 u32 s64 bool, with y of integers, but
 * for logsumexp. Sums and products of integers are in 64 bits and wrap around in y's type; maxima
 * are stored saturated. Floats are put together on CPUs in f64, on GPUs in f32, or f64 if a tensor
 * is f64. Which of them are put together first depends on the shape alone, so results do not depend
 * on the number of threads or blocks. GPUs: accesses of up to 16 elements one by one, the 32 of a
 * warp in 5 steps, then up to 32 of those, 8 warps and the blocks of a row one after the other;
 * blocks of few long rows in groups of 256, in 8 steps each. Across neighbouring slices at most
 * 1,024 parts of a slice one after the other, and the elements of each. */
#ifndef MICA_SCAN_H
#define MICA_SCAN_H

#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mica_scan_pass { MICA_SCAN_FWD, MICA_SCAN_BWD } mica_scan_pass;

typedef enum mica_scan_kind {
    MICA_SCAN_KIND_SUM,
    MICA_SCAN_KIND_PROD,
    MICA_SCAN_KIND_MAX,
    MICA_SCAN_KIND_MIN,
    MICA_SCAN_KIND_LOGSUMEXP
} mica_scan_kind;

enum { MICA_SCAN_X, MICA_SCAN_FLAGS, MICA_SCAN_Y, MICA_SCAN_INDEX, MICA_SCAN_DY, MICA_SCAN_DX };

typedef struct mica_scan_desc {
    mica_scan_pass pass; /* 0 means fwd */
    mica_scan_kind kind; /* 0 means sum */
    mica_tensor x;       /* needed in fwd and in bwd of prod and logsumexp */
    mica_tensor flags;   /* as x, integers; 0 means none */
    mica_tensor y;       /* as x, s64 for sums and products of integers; 0 means inferred; in bwd
                            needed for logsumexp */
    mica_tensor index;   /* as x, s32 or s64, of max and min; 0 means none in fwd, needed in bwd */
    mica_tensor dy;      /* needed in bwd */
    mica_tensor dx;      /* 0 means inferred: as dy */
    int64_t axis;        /* negative counts from the end; 0 means axis 0 */
    bool exclusive;      /* without the element itself; 0 means no */
    bool reverse;        /* from the end; 0 means no */
} mica_scan_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_scan_plan(mica_context *context, const mica_scan_desc *desc,
                                         const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "scan", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
