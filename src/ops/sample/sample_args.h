/* SPDX-License-Identifier: Apache-2.0
 * What the kernel of sample receives; host and device share this file. */
#ifndef MICA_OPS_SAMPLE_ARGS_H
#define MICA_OPS_SAMPLE_ARGS_H

/* A tensor, or none: then value is that of all rows. */
typedef struct mica_sample_operand {
    const void *at;
    long long row, column; /* strides */
    double value;
} mica_sample_operand;

typedef struct mica_sample_args {
    long long rows, columns;
    mica_sample_operand x, mask, bias, counts, prompt;
    mica_sample_operand temperature, top_k, top_p, min_p, seed, offset;
    mica_sample_operand repetition, presence, frequency, typical_p;
    void *token;
    float *logprob; /* or NULL */
    long long token_row, logprob_row;
    void *top_token;    /* or NULL */
    float *top_logprob; /* or NULL */
    long long top, top_token_row, top_token_column, top_logprob_row, top_logprob_column;
    int whole;      /* vectors of x are aligned */
    int raw;        /* log-probabilities are of x as it came */
    int long_token; /* s64, else s32 */
    int long_top;
} mica_sample_args;

#endif
