/* SPDX-License-Identifier: Apache-2.0
 * What the kernels of quantized_gemm receive; host and device share this file. */
#ifndef MICA_OPS_QUANTIZED_GEMM_ARGS_H
#define MICA_OPS_QUANTIZED_GEMM_ARGS_H

/* Strides are in elements; of w in bytes where it holds blocks. Scales, zero points and bias that
 * are absent, or one element for all, have strides of 0. */
typedef struct mica_qgemm_ends { /* as kernels/groups.cuh walks over them */
    const void *groups;
    long long groups_stride;
    long long count, limit; /* groups; rows */
} mica_qgemm_ends;

typedef struct mica_qgemm_args {
    const void *x, *w, *scales, *zeros, *bias;
    void *y;
    float alpha;
    long long m, n, k;
    long long group; /* elements of a row with one scale */
    long long x_m, x_k, w_n, w_k, y_m, y_n;
    long long scale_n, scale_g, zero_n, zero_g, bias_n;
    /* Groups of rows: elements from a group's matrix to the next one's, and from the first to that
     * of the group at hand, whose rows end before m. */
    long long w_each, scale_each, zero_each, bias_each;
    long long w_at, scale_at, zero_at, bias_at;
    mica_qgemm_ends ends;
} mica_qgemm_args;

#endif
