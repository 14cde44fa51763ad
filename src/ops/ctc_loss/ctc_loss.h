/* SPDX-License-Identifier: Apache-2.0
 * The family `ctc_loss`: what its files share. */
#ifndef MICA_OPS_CTC_LOSS_CTC_LOSS_H
#define MICA_OPS_CTC_LOSS_CTC_LOSS_H

#include "mica/ctc_loss.h"
#include "ops/op.h"

/* Sizes. States of a sequence come in pairs of a blank and the label behind it; there is one more
 * blank than labels. */
typedef struct mica_ctc_loss_sizes {
    int64_t steps, batch, classes;
    int64_t labels; /* elements of the tensor */
    int64_t most;   /* labels that a sequence may have */
    int64_t pairs;  /* of all sequences */
    bool padded;    /* labels are B x L */
} mica_ctc_loss_sizes;
mica_ctc_loss_sizes mica_ctc_loss_sizes_of(const mica_ctc_loss_desc *d);
/* An f64 tensor means f64 arithmetic. */
bool mica_ctc_loss_is_wide(const mica_ctc_loss_desc *d);

/* Other operations that engines run before their own work, and behind it: the logarithm of each
 * step's sum of exponentials; where the labels of each sequence begin if they are in a row (sums of
 * counts, which are lengths that none can be beyond); and the sum of the sequences' losses, in f64.
 * Absent where plan is NULL. */
typedef struct mica_ctc_loss_child {
    mica_plan *plan;
    size_t workspace, result; /* of the plan; its result, which the last child reads instead */
    double scalars[4];
} mica_ctc_loss_child;
typedef struct mica_ctc_loss_children {
    mica_ctc_loss_child lse, counts, starts, sum;
} mica_ctc_loss_children;
mica_status mica_ctc_loss_children_build(mica_plan *plan, mica_ctc_loss_children *c);
/* What comes before, and behind. */
mica_status mica_ctc_loss_before(const mica_ctc_loss_children *c, const mica_run *run);
mica_status mica_ctc_loss_behind(const mica_ctc_loss_children *c, const mica_run *run);

void mica_ctc_loss_reference(const void *desc, const mica_view *args, const double *scalars);
extern const mica_op mica_op_ctc_loss;
extern const mica_engine mica_ctc_loss_cpu, mica_ctc_loss_cuda;

#endif
