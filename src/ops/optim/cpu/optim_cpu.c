/* SPDX-License-Identifier: Apache-2.0
 * The step as loops over blocks. */
#include "ops/optim/optim.h"

#define POINTWISE_BODY "ops/optim/optim_body.h"
#include "ops/pointwise/blocks.h"

const mica_pointwise mica_optim_pointwise = {.kernel = "ops/optim/optim.cu",
                                             .entry = "optim",
                                             .operands = mica_optim_operands,
                                             .numbers = mica_optim_numbers,
                                             .number_count = OPTIM_NUMBERS,
                                             .f32 = pointwise_f32,
                                             .f64 = pointwise_f64};
