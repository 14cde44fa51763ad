/* SPDX-License-Identifier: Apache-2.0
 * What the generic attention kernels receive; host and device share this file. */
#ifndef MICA_OPS_ATTENTION_ARGS_H
#define MICA_OPS_ATTENTION_ARGS_H

/* In the order of the enumerators of include/mica/attention.h. */
enum {
    ATTENTION_Q,
    ATTENTION_K,
    ATTENTION_V,
    ATTENTION_OUT,
    ATTENTION_LSE,
    ATTENTION_DOUT,
    ATTENTION_DQ,
    ATTENTION_DK,
    ATTENTION_DV,
    ATTENTION_DBIAS,
    ATTENTION_DSINKS,
    ATTENTION_SCALE_Q,
    ATTENTION_SCALE_K,
    ATTENTION_SCALE_V,
    ATTENTION_SLOPES,
    ATTENTION_BIAS,
    ATTENTION_MASK,
    ATTENTION_SINKS,
    ATTENTION_RNG,
    ATTENTION_CU_Q,
    ATTENTION_CU_K,
    ATTENTION_SEQ_Q,
    ATTENTION_SEQ_K,
    ATTENTION_PAGES,
    ATTENTION_TENSORS
};

typedef struct mica_attention_args {
    void *data[ATTENTION_TENSORS];
    long long stride[ATTENTION_TENSORS][4]; /* 0 where a size of 1 is broadcast */
    unsigned has;                           /* bits of the tensors that are there */
    void *delta;                            /* bwd: by row of q, packed */
    long long sequences, heads, kv_heads, group;
    long long batches, rows;       /* of q */
    long long k_batches, key_rows; /* of k; with pages: pools and keys of a page */
    long long keys;                /* at most, of a sequence */
    long long bias_dims[4];        /* of dbias */
    int d, dv, causal, bottom_right;
    long long window_left, window_right;
    double scale, soft_cap, drop_scale;
    unsigned drop_threshold;
    int drops;
} mica_attention_args;

#endif
