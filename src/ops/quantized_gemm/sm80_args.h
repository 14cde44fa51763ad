/* SPDX-License-Identifier: Apache-2.0
 * What the kernel of quantized_gemm's engine sm80 receives; host and device share this file. */
#ifndef MICA_OPS_QUANTIZED_GEMM_SM80_ARGS_H
#define MICA_OPS_QUANTIZED_GEMM_SM80_ARGS_H

#include "ops/quantized_gemm/quantized_gemm_args.h"

typedef struct mica_qgemm_sm80_args {
    mica_qgemm_args g;
    int x_aligned, w_aligned; /* for accesses of 16 bytes, of a lane's codes at once */
} mica_qgemm_sm80_args;

#endif
