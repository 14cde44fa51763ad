/* SPDX-License-Identifier: Apache-2.0
 * Elements and slices of x that an index tensor names, and the gradient of x.
 *
 *     take        y[a.., i.., b..] = x[a.., index[i..], b..]: slices along axis; an embedding,
 * ONNX's Gather, torch.index_select. index may have any number of dimensions, 0 too elements y[i..]
 * = x[i.., index[i..] along axis, ..]: ONNX's GatherElements, torch.gather. index has as many
 * dimensions as x, those beside axis no larger nd          index's last dimension holds coordinates
 * of x, behind batch_dims dimensions that both share: ONNX's GatherND
 *
 * Where an index lies outside, y is 0, and the gradient is left out: nothing outside of x is read
 * or written. pass=bwd: dx is the sum of all of dy that x's element went to, formed in f32 (f64 for
 * f64 and integers of 32 bits and more), rounded once, with equal bits in each run. */
#ifndef MICA_GATHER_H
#define MICA_GATHER_H

#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { MICA_GATHER_X, MICA_GATHER_INDEX, MICA_GATHER_Y, MICA_GATHER_DY, MICA_GATHER_DX };

typedef enum mica_gather_pass { MICA_GATHER_FWD, MICA_GATHER_BWD } mica_gather_pass;
typedef enum mica_gather_mode {
    MICA_GATHER_TAKE,
    MICA_GATHER_ELEMENTS,
    MICA_GATHER_ND
} mica_gather_mode;

typedef struct mica_gather_desc {
    mica_gather_pass pass; /* 0 means fwd */
    mica_gather_mode mode; /* 0 means take */
    mica_tensor x;         /* fwd: needed */
    mica_tensor index;     /* s32, s64 or u32; needed */
    mica_tensor y;         /* 0 means inferred: fwd: packed */
    mica_tensor dy;        /* 0 means inferred: bwd: as y would be */
    mica_tensor dx;        /* bwd: needed */
    int64_t axis;          /* of take and elements; below 0 counts from the end; 0 means axis 0 */
    int64_t batch_dims;    /* of nd; 0 means none */
    bool negative;         /* indices below 0 count from the end; 0 means no: they are outside */
    bool padding;          /* bwd: what has the index padding_idx is left out; 0 means no */
    int64_t padding_idx;   /* 0 means row 0 */
} mica_gather_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_gather_plan(mica_context *context, const mica_gather_desc *desc,
                                           const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "gather", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
