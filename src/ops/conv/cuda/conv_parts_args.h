/* SPDX-License-Identifier: Apache-2.0
 * What the kernel that adds up a filter gradient receives; host and device share this file. */
#ifndef MICA_OPS_CONV_CUDA_CONV_PARTS_ARGS_H
#define MICA_OPS_CONV_CUDA_CONV_PARTS_ARGS_H

typedef struct conv_parts_args {
    const void *parts; /* one after the other, laid out as out */
    void *out;         /* its lowest element; the filter has no gaps */
    double alpha, beta;
    long long count; /* elements */
    int splits;
} conv_parts_args;

#endif
