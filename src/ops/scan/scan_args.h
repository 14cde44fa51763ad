/* SPDX-License-Identifier: Apache-2.0
 * What the kernels of scans receive; host and device share this file. */
#ifndef MICA_OPS_SCAN_SCAN_ARGS_H
#define MICA_OPS_SCAN_SCAN_ARGS_H

#include "kernels/layout.h"

/* How elements are put together. */
enum {
    SCAN_SUM,
    SCAN_PRODUCT,
    SCAN_MAX,       /* NaN wins, and the latest of equals */
    SCAN_EXP,       /* the sum of exponentials, and the maximum that they are about */
    SCAN_RUNS,      /* sums of runs of equal indices, each shown where the index points to */
    SCAN_MAPS,      /* w -> a + b w, one behind the other */
    SCAN_EXP_SLOPES /* sums of a exp(-c), times exp(b) */
};

/* What a scan reads and writes: elements, further ones, and results. */
enum { SCAN_A, SCAN_B, SCAN_C, SCAN_FLAGS, SCAN_OUT, SCAN_INDEX, SCAN_OPERANDS };

/* Blocks of a row that stand together before another row's or group's. */
#define SCAN_GROUP 256

typedef struct mica_scan_args {
    const void *in[SCAN_FLAGS + 1];
    void *out, *index;
    mica_layout outer; /* the slices; strides of the operands */
    long long along[SCAN_OPERANDS];
    long long n;     /* elements of a slice */
    long long parts; /* of a slice; blocks of a row */
    long long per_part;
    void *states;   /* of parts, by part, then by slice; of blocks, by row, then in order */
    void *prefixes; /* of groups of blocks, by row, then in order */
    int *numbers;   /* the next block; then of blocks and of groups, as above: 1 if it is there;
                       or words of 8 bytes, the state in the lower half */
    long long number_count;
    int whole; /* bit k: operand k is aligned for vectors */
} mica_scan_args;

#endif
