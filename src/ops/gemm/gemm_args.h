/* SPDX-License-Identifier: Apache-2.0
 * What the kernels of gemm receive; host and device share this file, so no types but C's own. */
#ifndef MICA_OPS_GEMM_GEMM_ARGS_H
#define MICA_OPS_GEMM_GEMM_ARGS_H

#include "kernels/epilogue_args.h"

#define GEMM_BATCH_RANK 6
#define GEMM_BLOCK      128 /* elements that share a scale */

/* Sizes and strides in elements. Batch dimensions are merged where all tensors allow it, and folded
 * into the rows where b is shared by them; a broadcast dimension has stride 0. */
typedef struct gemm_shape {
    long long m, n, k;
    long long batches; /* 0: nothing to do */
    int batch_rank;
    long long batch[GEMM_BATCH_RANK]; /* slowest first */
    long long a_batch[GEMM_BATCH_RANK], b_batch[GEMM_BATCH_RANK];
    long long c_batch[GEMM_BATCH_RANK], r_batch[GEMM_BATCH_RANK];
    long long a_m, a_k, b_k, b_n, c_m, c_n, r_m, r_n; /* r: the residual */
} gemm_shape;

typedef struct gemm_args {
    const void *a, *b;
    void *c;
    const float *scale_a, *scale_b;
    long long scale_a_stride, scale_b_stride;  /* of lines; 0 for a single element */
    long long scale_a_k, scale_b_k, scale_b_n; /* of blocks */
    double alpha, beta;
    mica_epilogue_args epilogue;
    gemm_shape shape;
} gemm_args;

#endif
