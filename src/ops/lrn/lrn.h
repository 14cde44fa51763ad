/* SPDX-License-Identifier: Apache-2.0
 * What the files of the local response normalisation family share. */
#ifndef MICA_OPS_LRN_LRN_H
#define MICA_OPS_LRN_LRN_H

#include "mica/lrn.h"
#include "ops/op.h"
#include "ops/lrn/lrn_args.h"

extern const mica_op mica_op_lrn;
extern const mica_engine mica_lrn_cpu, mica_lrn_cuda;

/* Sizes, steps, windows and numbers; axes behind the channels of across are one where all tensors
 * let them. */
void mica_lrn_prepare(const mica_lrn_desc *desc, mica_lrn_args *args);
/* LRN_POW or the roots that the power is made of. */
int mica_lrn_power(const mica_lrn_desc *desc);
/* The axis along which elements of x are nearest to each other. */
int mica_lrn_row(const mica_lrn_args *args);

void mica_lrn_reference(const void *desc, const mica_view *args, const double *scalars);

#endif
