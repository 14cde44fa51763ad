/* SPDX-License-Identifier: Apache-2.0
 * Sampling of tokens: what its engines share. */
#ifndef MICA_OPS_SAMPLE_H
#define MICA_OPS_SAMPLE_H

#include "mica/sample.h"
#include "ops/op.h"
#include "ops/sample/sample_args.h"

/* Sizes and strides; the scalars' values; and the pointers of a run. */
void mica_sample_args_make(const mica_sample_desc *d, mica_sample_args *a);
void mica_sample_args_scalars(const double *scalars, mica_sample_args *a);
void mica_sample_args_point(const mica_sample_desc *d, void *const *args, mica_sample_args *a);
void mica_sample_reference(const void *desc, const mica_view *views, const double *scalars);

extern const mica_op mica_op_sample;
extern const mica_engine mica_sample_cpu, mica_sample_cuda;

#endif
