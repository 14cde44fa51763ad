/* SPDX-License-Identifier: Apache-2.0
 * What gated, quantised and doubly stored results need beside gemm_args; host and device share this
 * file. It stands apart so that kernels without these steps keep their text. */
#ifndef MICA_OPS_GEMM_CUDA_GEMM_FULL_ARGS_H
#define MICA_OPS_GEMM_CUDA_GEMM_FULL_ARGS_H

#include "ops/gemm/gemm_args.h"

/* With a gate gemm_shape is that of the gates: n columns, b_n from one to the next. In a channel
 * (bias, scale_b, columns of aux) column n of them is n * channel_step; its partner lies
 * channel_partner further on, and in b partner elements further. */
typedef struct gemm_full_epilogue {
    long long channel_step, channel_partner, partner;
    long long x_m, x_n, x_batch[GEMM_BATCH_RANK]; /* x: aux */
} gemm_full_epilogue;

typedef struct gemm_full_args {
    gemm_args gemm;
    gemm_full_epilogue extra;
    void *aux, *amax;
    const float *scale_c;
} gemm_full_args;

#endif
