/* SPDX-License-Identifier: Apache-2.0
 * What the kernels of attention's engine sm90 receive; host and device share this file. */
#ifndef MICA_OPS_ATTENTION_SM90_SM90_ARGS_H
#define MICA_OPS_ATTENTION_SM90_SM90_ARGS_H

#include "kernels/tensor_map.h"

/* Where nothing limits a window: rows and keys are fewer than half of it. */
#define ATTENTION_SM90_FAR (1 << 30)

/* An input as others than TMA see it. */
typedef struct attention_sm90_source {
    const void *data;
    long long stride[3]; /* batch, head, row */
    int rows, columns;
} attention_sm90_source;

/* Broadcast to B x H x Sq x Sk: strides of dimensions of 1 are 0. */
typedef struct attention_sm90_scores {
    const void *data;
    long long stride[4];
} attention_sm90_scores;

/* s32 numbers. */
typedef struct attention_sm90_list {
    const int *data;
    long long stride;
} attention_sm90_list;

/* Numbers of pages: `count` for each sequence, of `size` keys, out of a pool. */
typedef struct attention_sm90_pages {
    const int *data;
    long long stride[2];
    int count, size, pool;
} attention_sm90_pages;

/* Of 8-bit types, a number for each key head or (stride 0) for all; data NULL: 1. */
typedef struct attention_sm90_factors {
    const float *data;
    long long stride;
} attention_sm90_factors;

typedef struct attention_sm90_args {
    mica_tensor_map q, k, v; /* D, rows, heads, batch */
    attention_sm90_source q_source, k_source, v_source;
    void *out;
    long long out_stride[4];
    float *lse;
    long long lse_stride[3];
    int *claims; /* work counter: jobs taken but for the first of each block */
    attention_sm90_list cu_q, cu_k, seq_q, seq_k;
    attention_sm90_pages pages;
    const float *slopes;
    long long slopes_stride;
    const void *sinks;
    long long sinks_stride;
    attention_sm90_scores bias, mask;
    int sequences, heads, group; /* group: query heads of a key head */
    int rows, keys;              /* of the tensors, or of a sequence at most */
    int row_tiles, tiles;        /* of a head, in all; not where q is packed */
    int section;                 /* heads, of all batch items, whose rows are jobs side by side */
    int left, right;        /* keys [diagonal - left + 1, diagonal + right) of those there are */
    int dv;                 /* columns of out */
    int direct;             /* TMA cannot take the pointers */
    int whole;              /* out may be written by vectors */
    float scale;            /* of products, in units of log 2 */
    float cap, cap_inverse; /* in units of log 2; its inverse is doubled */
    attention_sm90_factors scale_q, scale_k, scale_v;
} attention_sm90_args;

typedef struct attention_sm90_claims_args {
    int *claims;
} attention_sm90_claims_args;

#endif
