/* SPDX-License-Identifier: Apache-2.0
 * What the files of the optimiser family share. */
#ifndef MICA_OPS_OPTIM_OPTIM_H
#define MICA_OPS_OPTIM_OPTIM_H

#include "mica/optim.h"
#include "ops/op.h"
#include "ops/optim/optim_args.h"

enum { MICA_OPTIM_ARGS = MICA_OPTIM_MASTER + 1 };

const mica_tensor *mica_optim_tensor(const mica_optim_desc *d, int arg);
/* f64 if any tensor is. */
mica_dtype mica_optim_accumulator(const mica_optim_desc *d);
/* The tensors there are as a loop nest; at[arg] is the index of an argument in it, or -1. Returns
 * how many. */
int mica_optim_layout(const mica_optim_desc *d, mica_layout *layout, int *at);
/* INVALID if the step is not one. */
mica_status mica_optim_begin(const mica_plan *plan, const mica_run *run,
                             mica_optim_numbers *numbers);

void mica_optim_reference(const void *desc, const mica_view *args, const double *scalars);
extern const mica_op mica_op_optim;
extern const mica_engine mica_optim_cpu, mica_optim_cuda;

#endif
