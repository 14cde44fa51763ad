/* SPDX-License-Identifier: Apache-2.0
 * What the kernel that merges attention receives; host and device share this file. */
#ifndef MICA_OPS_ATTENTION_MERGE_ATTENTION_MERGE_ARGS_H
#define MICA_OPS_ATTENTION_MERGE_ATTENTION_MERGE_ARGS_H

#include "kernels/layout.h"

typedef struct attention_merge_args {
    const void *outs, *lses;
    void *out, *lse; /* lse: NULL if not wanted */
    mica_layout rows;
    long long parts, outs_part, lses_part; /* from one part to the next */
    long long columns, outs_column, out_column;
    long long units; /* runs of columns in a row */
    int aligned;     /* outs and out are, to a run */
} attention_merge_args;

#endif
