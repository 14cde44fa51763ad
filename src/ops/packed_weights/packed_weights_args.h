/* SPDX-License-Identifier: Apache-2.0
 * What the kernels of packed weights receive; host and device share this file. */
#ifndef MICA_OPS_PACKED_WEIGHTS_ARGS_H
#define MICA_OPS_PACKED_WEIGHTS_ARGS_H

/* Values of mica_packed_format. */
#define PACKED_GPTQ    0
#define PACKED_GPTQ_V2 1
#define PACKED_AWQ     2
#define PACKED_MARLIN  3

/* Strides are in elements: of rows (r, of K or groups) and columns (c). to: y, or w. Of what is
 * absent they are 0. */
typedef struct mica_packed_args {
    const int *qweight, *qzeros;
    const void *scales, *index;
    void *to, *w_scales, *w_zeros;
    long long k, n, groups, group;
    long long qweight_r, qweight_c, qzeros_r, qzeros_c, scales_r, scales_c, index_r;
    long long to_k, to_n, w_scales_n, w_scales_g, w_zeros_n, w_zeros_g;
    long long count; /* threads that work */
    int whole;       /* a thread's codes are one word, aligned */
} mica_packed_args;

#endif
