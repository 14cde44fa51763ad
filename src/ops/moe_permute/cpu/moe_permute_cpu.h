/* SPDX-License-Identifier: Apache-2.0
 * What the engine of moe_unpermute on the CPU gives its loops. */
#ifndef MICA_OPS_MOE_PERMUTE_CPU_H
#define MICA_OPS_MOE_PERMUTE_CPU_H

#include "ops/moe_permute/moe_permute.h"

/* A token's sum; a row's gradient; the gradient of a choice's weight: by the type of sums. */
void moe_sum_f32(const mica_moe_unpermute_desc *d, const mica_run *run, int64_t token);
void moe_sum_f64(const mica_moe_unpermute_desc *d, const mica_run *run, int64_t token);
void moe_row_f32(const mica_moe_unpermute_desc *d, const mica_run *run, int64_t row);
void moe_row_f64(const mica_moe_unpermute_desc *d, const mica_run *run, int64_t row);
void moe_dot_f32(const mica_moe_unpermute_desc *d, const mica_run *run, int64_t choice);
void moe_dot_f64(const mica_moe_unpermute_desc *d, const mica_run *run, int64_t choice);

#endif
