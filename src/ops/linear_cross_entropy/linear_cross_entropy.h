/* SPDX-License-Identifier: Apache-2.0
 * Cross-entropy of a linear layer, inside. */
#ifndef MICA_OPS_LINEAR_CROSS_ENTROPY_H
#define MICA_OPS_LINEAR_CROSS_ENTROPY_H

#include "mica/linear_cross_entropy.h"
#include "ops/op.h"

extern const mica_op mica_op_linear_cross_entropy;
extern const mica_engine mica_linear_cross_entropy_compose, mica_linear_cross_entropy_compose_cuda;
void mica_linear_cross_entropy_reference(const void *desc, const mica_view *args,
                                         const double *scalars);

#endif
