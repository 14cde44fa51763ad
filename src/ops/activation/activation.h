/* SPDX-License-Identifier: Apache-2.0
 * What the files of the activation family share. */
#ifndef MICA_OPS_ACTIVATION_ACTIVATION_H
#define MICA_OPS_ACTIVATION_ACTIVATION_H

#include "mica/activation.h"
#include "ops/activation/activation_args.h"
#include "ops/pointwise/pointwise.h"
#include "ops/epilogue/activation.h"

void mica_activation_operands(const void *desc, mica_pointwise_set *set);
mica_status mica_activation_numbers(const void *desc, const double *scalars, double *numbers);
void mica_activation_prologue(const void *desc, mica_text *prologue);
void mica_activation_truth(const void *desc, const double *numbers, double *v, double *mag);
extern const mica_op mica_op_activation;
extern const mica_pointwise mica_activation_pointwise;

#endif
