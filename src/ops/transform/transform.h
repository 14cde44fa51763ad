/* SPDX-License-Identifier: Apache-2.0
 * What the files of the transform family share. */
#ifndef MICA_OPS_TRANSFORM_TRANSFORM_H
#define MICA_OPS_TRANSFORM_TRANSFORM_H

#include "mica/transform.h"
#include "ops/op.h"

extern const mica_op mica_op_transform;
extern const mica_engine mica_transform_cpu, mica_transform_cuda;

/* A tensor like x with its dimensions in the order of y's. */
mica_tensor mica_transform_source(const mica_transform_desc *desc, const mica_tensor *x);
/* The plain loops. */
void mica_transform_reference(const void *desc, const mica_view *args, const double *scalars);

/* Scaled results are formed in f64 and rounded once, on every device. */
void mica_transform_contract(const void *desc, const mica_config *config, mica_contract *contract);

#endif
