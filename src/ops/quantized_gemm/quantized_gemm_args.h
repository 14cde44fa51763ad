/* SPDX-License-Identifier: Apache-2.0
 * What the kernels of quantized_gemm receive; host and device share this file. */
#ifndef MICA_OPS_QUANTIZED_GEMM_ARGS_H
#define MICA_OPS_QUANTIZED_GEMM_ARGS_H

/* Strides are in elements; of w in bytes where it holds blocks. Scales, zero points and bias that
 * are absent, or one element for all, have strides of 0. */
typedef struct mica_qgemm_args {
    const void *x, *w, *scales, *zeros, *bias;
    void *y;
    float alpha;
    long long m, n, k;
    long long group; /* elements of a row with one scale */
    long long x_m, x_k, w_n, w_k, y_m, y_n;
    long long scale_n, scale_g, zero_n, zero_g, bias_n;
} mica_qgemm_args;

#endif
