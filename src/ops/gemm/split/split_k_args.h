/* SPDX-License-Identifier: Apache-2.0
 * What the kernel of gemm's engine split_k receives; host and device share this file. */
#ifndef MICA_OPS_GEMM_SPLIT_SPLIT_K_ARGS_H
#define MICA_OPS_GEMM_SPLIT_SPLIT_K_ARGS_H

#include "ops/gemm/gemm_args.h"

/* Partial sums lie as c does: `lines` rows (columns where SWAPPED) of `across`, `pitch` apart. */
typedef struct gemm_split_args {
    gemm_args gemm;
    const void *partial;
    long long lines, across;
    long long pitch, part; /* elements to the next line, and to the next part of K */
    long long tail;        /* first of K that is in no part */
    int parts;
    int whole; /* c may be accessed by vectors */
} gemm_split_args;

#endif
