/* SPDX-License-Identifier: Apache-2.0
 * What the kernel of quantized_gemm's engine gemv receives; host and device share this file. */
#ifndef MICA_OPS_QUANTIZED_GEMM_GEMV_ARGS_H
#define MICA_OPS_QUANTIZED_GEMM_GEMV_ARGS_H

#include "ops/quantized_gemm/quantized_gemm_args.h"

typedef struct mica_qgemm_gemv_args {
    mica_qgemm_args g;
    int x_whole; /* pieces of x lie side by side, aligned for vectors */
    int words;   /* pieces of codes begin at whole words */
} mica_qgemm_gemv_args;

#endif
