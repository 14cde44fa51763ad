/* SPDX-License-Identifier: Apache-2.0
 * Optimisers inside the library: what their engines share. */
#ifndef MICA_OPS_OPTIM_H
#define MICA_OPS_OPTIM_H

#include "mica/optim.h"
#include "ops/op.h"
#include "ops/optim/optim_args.h"

#define MICA_OPTIM_TENSORS 5 /* p, grad, m, v, master: as the arguments are numbered */

/* Argument i's tensor; of one that is absent p's, which is then not touched. */
const mica_tensor *mica_optim_tensor(const mica_optim_desc *d, int i);
bool mica_optim_has(const mica_optim_desc *d, int i);
/* An f64 tensor means f64 arithmetic. */
bool mica_optim_is_wide(const mica_optim_desc *d);
void mica_optim_factors_of(const mica_optim_desc *d, const double *scalars, mica_optim_factors *f);
/* The same of a run. INVALID if its scalars make no step. */
mica_status mica_optim_run_factors(const mica_plan *plan, const mica_run *run,
                                   mica_optim_factors *f);

void mica_optim_reference(const void *desc, const mica_view *args, const double *scalars);
extern const mica_op mica_op_optim;
extern const mica_engine mica_optim_cpu, mica_optim_cuda;

#endif
