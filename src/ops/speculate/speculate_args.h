/* SPDX-License-Identifier: Apache-2.0
 * What the kernel of speculate receives; host and device share this file. */
#ifndef MICA_OPS_SPECULATE_ARGS_H
#define MICA_OPS_SPECULATE_ARGS_H

/* A tensor, or none: at is NULL. */
typedef struct mica_speculate_operand {
    void *at;
    long long batch, position, column; /* strides */
    int wide;                          /* s64, else s32 */
} mica_speculate_operand;

typedef struct mica_speculate_args {
    long long batch, drafts_most, columns;
    mica_speculate_operand p, q, drafts, tokens, accepted, bonus, lengths, seeds, offsets;
    unsigned long long seed, offset;
} mica_speculate_args;

#endif
