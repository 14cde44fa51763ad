/* SPDX-License-Identifier: Apache-2.0
 * Pooling in one, two and three dimensions: maximum (with the winner's index), average over the
 * window with padding counted (avg) or not (avg_valid); adaptive and global windows.
 *   fwd   y = pool(x), and for max the index of the winner within its N,C plane (row-major in
 *         D,H,W); of equal values the lowest index wins; a NaN wins.
 *   bwd   dx = the gradient; max reads indices, avg reads nothing but dy. Sums are f32 or f64.  */
#ifndef MICA_POOL_H
#define MICA_POOL_H

#include "mica/epilogue.h"
#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mica_pool_pass { MICA_POOL_FWD, MICA_POOL_BWD } mica_pool_pass;
typedef enum mica_pool_mode { MICA_POOL_MAX, MICA_POOL_AVG, MICA_POOL_AVG_VALID } mica_pool_mode;

/* bwd: X is dx (written), Y is dy (read). */
enum { MICA_POOL_X, MICA_POOL_Y, MICA_POOL_INDICES };
enum { MICA_POOL_ALPHA, MICA_POOL_BETA };

typedef struct mica_pool_desc {
    mica_pool_pass pass;
    mica_pool_mode mode;
    mica_tensor x;        /* N x C x spatial; bwd: needed */
    mica_tensor y;        /* fwd: inferred (adaptive: needed); bwd: inferred */
    mica_tensor indices;  /* s32 or s64, as y: max only. fwd: absent unless given; bwd: s64 */
    int64_t window[3];    /* 0: the whole axis (global) */
    int64_t stride[3];    /* 0 means window */
    int64_t pad[3];       /* less than the window */
    int64_t pad_extra[3]; /* added at the end of an axis */
    int64_t dilation[3];  /* 0 means 1; max only */
    bool ceil;            /* round the output size up */
    bool adaptive;        /* windows [floor(i*X/Y), ceil((i+1)*X/Y)) from the sizes of x and y */
} mica_pool_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_pool_plan(mica_context *context, const mica_pool_desc *desc,
                                         const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "pool", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
