/* SPDX-License-Identifier: Apache-2.0
 * What sm90_full.cu receives; host and device share this file. */
#ifndef MICA_OPS_GEMM_SM90_SM90_EXTRA_ARGS_H
#define MICA_OPS_GEMM_SM90_SM90_EXTRA_ARGS_H

#include "ops/gemm/cuda/gemm_full_args.h"
#include "ops/gemm/sm90/sm90_args.h"

/* product.gemm is not read but for its shape; with a gate lines across are all columns of b. */
typedef struct gemm_sm90_full_args {
    gemm_sm90_args product;
    gemm_full_args x;
} gemm_sm90_full_args;

#endif
