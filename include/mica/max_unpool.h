/* SPDX-License-Identifier: Apache-2.0
 * Max unpooling: the inverse of a maximum over windows, to a given size.
 *
 *   fwd   y is 0 but where indices say: y[n, c, indices[n, c, ..]] = x[n, c, ..], an index counting
 *         the elements of y's N,C plane (row-major in D,H,W), as pool's are. Of equal indices the
 *         last one's value stays, in the logical order of x, on every device and in each run.
 *   bwd   dx[n, c, ..] = dy[n, c, indices[n, c, ..]]: of equal indices each gets the gradient, as
 *         torch.nn.functional.max_unpool has it.
 *
 * An index outside of the plane, below 0 too, is left out by fwd and gives the gradient 0: nothing
 * outside of a tensor is read or written (PyTorch refuses it on the CPU). Values move as they are:
 * f64 f32 f16 bf16 s8 u8 s32 s64, any strides. y's size is given, as several sizes may have been
 * pooled to one; PyTorch's default is (x - 1) * stride - 2 * pad + window. */
#ifndef MICA_MAX_UNPOOL_H
#define MICA_MAX_UNPOOL_H

#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    MICA_MAX_UNPOOL_X,
    MICA_MAX_UNPOOL_INDICES,
    MICA_MAX_UNPOOL_Y,
    MICA_MAX_UNPOOL_DY,
    MICA_MAX_UNPOOL_DX
};

typedef enum mica_max_unpool_pass { MICA_MAX_UNPOOL_FWD, MICA_MAX_UNPOOL_BWD } mica_max_unpool_pass;

typedef struct mica_max_unpool_desc {
    mica_max_unpool_pass pass; /* 0 means fwd */
    mica_tensor x;             /* N x C x 1 to 3 axes; fwd: needed */
    mica_tensor indices;       /* s32 or s64, as x; needed */
    mica_tensor y;             /* N x C and as many axes; fwd: needed */
    mica_tensor dy;            /* gradient of y; bwd: needed */
    mica_tensor dx;            /* gradient of x; 0 means inferred: bwd: as indices, of dy's type */
} mica_max_unpool_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_max_unpool_plan(mica_context *context,
                                               const mica_max_unpool_desc *desc,
                                               const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "max_unpool", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
