/* SPDX-License-Identifier: Apache-2.0
 * What the files of the optimiser family share. */
#ifndef MICA_OPS_OPTIM_OPTIM_H
#define MICA_OPS_OPTIM_OPTIM_H

#include "mica/optim.h"
#include "ops/optim/optim_args.h"
#include "ops/pointwise/pointwise.h"

void mica_optim_operands(const void *desc, mica_pointwise_set *set);
/* INVALID if the step is not one. */
mica_status mica_optim_numbers(const void *desc, const double *scalars, double *numbers);
void mica_optim_reference(const void *desc, const mica_view *args, const double *scalars);
extern const mica_op mica_op_optim;
extern const mica_pointwise mica_optim_pointwise;

#endif
