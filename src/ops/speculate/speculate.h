/* SPDX-License-Identifier: Apache-2.0
 * Speculative decoding: what its engines share. */
#ifndef MICA_OPS_SPECULATE_H
#define MICA_OPS_SPECULATE_H

#include "mica/speculate.h"
#include "ops/op.h"
#include "ops/speculate/speculate_args.h"

/* Sizes and strides; the scalars' values and the pointers of a run. */
void mica_speculate_args_make(const mica_speculate_desc *d, mica_speculate_args *a);
void mica_speculate_args_point(const mica_speculate_desc *d, void *const *args,
                               const double *scalars, mica_speculate_args *a);
void mica_speculate_reference(const void *desc, const mica_view *views, const double *scalars);

extern const mica_op mica_op_speculate;
extern const mica_engine mica_speculate_cpu, mica_speculate_cuda;

#endif
