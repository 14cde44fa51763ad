/* SPDX-License-Identifier: Apache-2.0
 * y is x with updates u where an index tensor says.
 *
 *     elements    y[i.., index[i..] along axis, ..] (reduced with) u[i..]: ONNX's ScatterElements,
 *                 torch.scatter. index has as many dimensions as x, those beside axis no larger
 *     nd          index's last dimension holds coordinates of x, u has a slice for each: ONNX's
 *                 ScatterND
 *
 * Updates of one element come one after the other in the logical order of u, in each run: without a
 * reduction the last one stays, sums have equal bits. Sums and products are formed in f32 (f64 for
 * f64 and integers of 32 bits and more) and rounded once; NaN stays in max and min. Updates whose
 * index lies outside are left out. y may lie on x, then only what is updated is touched. The
 * gradient of u is a gather of y's. */
#ifndef MICA_SCATTER_H
#define MICA_SCATTER_H

#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { MICA_SCATTER_X, MICA_SCATTER_INDEX, MICA_SCATTER_U, MICA_SCATTER_Y };

typedef enum mica_scatter_mode { MICA_SCATTER_ELEMENTS, MICA_SCATTER_ND } mica_scatter_mode;
typedef enum mica_scatter_reduction {
    MICA_SCATTER_NONE,
    MICA_SCATTER_ADD,
    MICA_SCATTER_MUL,
    MICA_SCATTER_MAX,
    MICA_SCATTER_MIN
} mica_scatter_reduction;

typedef struct mica_scatter_desc {
    mica_scatter_mode mode;           /* 0 means elements */
    mica_scatter_reduction reduction; /* 0 means none */
    mica_tensor x;                    /* needed */
    mica_tensor index;                /* s32, s64 or u32; needed */
    mica_tensor u;                    /* 0 means inferred: packed, of x's type */
    mica_tensor y;                    /* 0 means inferred: as x */
    int64_t axis;                     /* of elements; below 0 counts from the end; 0 means axis 0 */
    bool negative; /* indices below 0 count from the end; 0 means no: they are outside */
} mica_scatter_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_scatter_plan(mica_context *context, const mica_scatter_desc *desc,
                                            const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "scatter", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
