/* SPDX-License-Identifier: Apache-2.0
 * What the files of the norm family share: the geometry, derived once for the reference and both
 * backends. */
#ifndef MICA_OPS_NORM_NORM_H
#define MICA_OPS_NORM_NORM_H

#include "mica/norm.h"
#include "ops/op.h"
#include "ops/norm/norm_args.h"
#include "ops/epilogue/activation.h"

/* Kept: the sets, which have statistics of their own; reduced: the elements of one set. */
void mica_norm_split_sets(const mica_norm_desc *d, norm_split *split);
/* Kept: the elements of scale and bias; reduced: all that share one, what dscale sums over. */
void mica_norm_split_channels(const mica_norm_desc *d, norm_split *split);
/* Offset of argument arg at linear index i. */
int64_t mica_norm_offset(const norm_space *space, int arg, int64_t i);

/* Layer and rms: statistics over the last d->axes dimensions, scale of their shape. */
static inline bool mica_norm_is_trailing(const mica_norm_desc *d)
{
    return d->kind == MICA_NORM_LAYER || d->kind == MICA_NORM_RMS;
}
/* Batch, group, instance: a residual is added behind the affine step, not in front of it. */
static inline bool mica_norm_adds_behind(const mica_norm_desc *d)
{
    return mica_tensor_given(&d->residual) && !mica_norm_is_trailing(d);
}
static inline bool mica_norm_adds_in_front(const mica_norm_desc *d)
{
    return mica_tensor_given(&d->residual) && mica_norm_is_trailing(d);
}
/* Batch, bwd: whether dresidual can be written along with the sums and then stand for dy, because
 * slopes of 0 and 1 and dy's own type lose nothing there. */
static inline bool mica_norm_dresidual_is_first(const mica_norm_desc *d)
{
    bool exact = d->act == MICA_ACT_RELU || d->act == MICA_ACT_CLIP ||
                 d->act == MICA_ACT_HARD_TANH || d->act == MICA_ACT_RELU6;
    return d->kind == MICA_NORM_BATCH && d->mode == MICA_NORM_TRAIN && exact &&
           mica_tensor_given(&d->dresidual) && d->dresidual.dtype == d->dy.dtype;
}
/* Elements of one set. */
int64_t mica_norm_set_size(const mica_norm_desc *d);
/* What of a batch's variance goes into running_var: n / (n - 1), or all. */
double mica_norm_unbiased(const mica_norm_desc *d);
/* Sets without elements are nothing to do, unless their statistics or sums are asked for. */
bool mica_norm_has_set_results(const mica_norm_desc *d);
/* mean and rstd: one number for each set. */
static inline bool mica_norm_is_per_set(int arg)
{
    return arg == MICA_NORM_MEAN || arg == MICA_NORM_RSTD;
}

void mica_norm_reference(const void *desc, const mica_view *args, const double *scalars);
extern const mica_op mica_op_norm;
extern const mica_engine mica_norm_cpu_once, mica_norm_cpu, mica_norm_cuda;
static inline const mica_tensor *mica_norm_tensor(const mica_norm_desc *d, int arg)
{
    return mica_op_tensor(&mica_op_norm, d, arg);
}

#endif
