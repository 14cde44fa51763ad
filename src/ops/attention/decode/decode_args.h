/* SPDX-License-Identifier: Apache-2.0
 * What the kernels of attention's engine decode receive; host and device share this file. */
#ifndef MICA_OPS_ATTENTION_DECODE_DECODE_ARGS_H
#define MICA_OPS_ATTENTION_DECODE_DECODE_ARGS_H

#include "kernels/fastdiv.h"

/* Where nothing limits a window: rows and keys are fewer than half of it. */
#define ATTENTION_DECODE_FAR (1 << 30)
/* Parts of the keys at most: a lane of the merging warp looks after four. */
#define ATTENTION_DECODE_SPLITS 128
/* Blocks of a cluster, on every device that has clusters. */
#define ATTENTION_DECODE_CLUSTER 8

/* Types of sinks. */
enum { ATTENTION_DECODE_F32, ATTENTION_DECODE_F16, ATTENTION_DECODE_BF16 };

/* Elements, or s32 numbers; data NULL: absent. */
typedef struct attention_decode_tensor {
    const void *data;
    long long stride[4]; /* in elements */
} attention_decode_tensor;

typedef struct attention_decode_args {
    attention_decode_tensor q, k, v;
    void *out;
    long long out_stride[4];
    float *lse;
    long long lse_stride[3];
    attention_decode_tensor cu_q, cu_k, seq_q, seq_k, pages;
    attention_decode_tensor slopes, sinks;    /* of query heads */
    attention_decode_tensor scale_k, scale_v; /* of key heads, or of all: stride 0 */
    int sequences, heads, kv_heads, group;    /* group: query heads of a key head */
    int rows, keys;                           /* of the tensors, or of a sequence at most */
    mica_fastdiv page, groups;                /* keys of a page; group */
    int pool;                                 /* pages that there are */
    int tiles;                                /* of a sequence's rows; not where q is packed */
    int splits, cluster;                      /* of a tile's keys; whether they meet in a cluster */
    int d, dv;                                /* columns */
    int left, right; /* keys [diagonal - left + 1, diagonal + right) of those there are */
    int bottom_right;
    int runs;               /* keys of a tile lie at equal distances */
    int copies;             /* k and v may be copied 16 bytes at a time */
    int q_whole, out_whole; /* q may be read by 16 bytes, out written by four elements */
    int out_wide;           /* out is f32 */
    int sink_type;
    float scale;            /* of products, in units of log 2 */
    float cap, cap_inverse; /* in units of log 2; its inverse is doubled; 0: no cap */
    /* Workspace, by row of q ((batch H + head) rows + row) and split: */
    float *partial;     /* sums, dv of them rounded up to a multiple of 4 */
    float *stats;       /* {maximum, sum} */
    int values_in_keys; /* rows of v are the first columns of those of k */
} attention_decode_args;

#endif
