/* SPDX-License-Identifier: Apache-2.0
 * Cross-entropy inside the library: what its engines share. */
#ifndef MICA_OPS_CROSS_ENTROPY_CROSS_ENTROPY_H
#define MICA_OPS_CROSS_ENTROPY_CROSS_ENTROPY_H

#include "mica/cross_entropy.h"
#include "ops/op.h"
#include "ops/access/layout.h"

/* Rows as a merged loop nest over the logits without their class axis, the labels, and up to four
 * tensors of a value per row or of the logits' shape: fwd loss (reduction none) and lse; bwd dloss
 * (reduction none) and dx; target; dtarget. Those that are absent or hold one element have strides
 * 0. */
typedef struct mica_cross_entropy_rows {
    mica_layout layout; /* x, labels, then: fwd loss, lse; bwd dloss, dx; then target, dtarget */
    int64_t classes;
    int64_t x_stride, dx_stride, target_stride, dtarget_stride; /* on the class axis */
} mica_cross_entropy_rows;
void mica_cross_entropy_rows_make(mica_cross_entropy_rows *rows, const mica_cross_entropy_desc *d);

/* t without its class axis. */
mica_tensor mica_cross_entropy_without_classes(const mica_tensor *t);

/* Logits and labels, without weights. */
bool mica_cross_entropy_is_plain(const mica_cross_entropy_desc *d);

/* An f64 tensor, loss or target or what else, means f64 arithmetic. */
bool mica_cross_entropy_is_wide(const mica_cross_entropy_desc *d);

void mica_cross_entropy_reference(const void *desc, const mica_view *args, const double *scalars);
extern const mica_op mica_op_cross_entropy;
extern const mica_engine mica_cross_entropy_cpu, mica_cross_entropy_targets_cpu,
    mica_cross_entropy_cuda;

#endif
