/* SPDX-License-Identifier: Apache-2.0
 * What the kernels of attention's engine sm90_bwd receive; host and device share this file. */
#ifndef MICA_OPS_ATTENTION_BACKWARD_SM90_BACKWARD_ARGS_H
#define MICA_OPS_ATTENTION_BACKWARD_SM90_BACKWARD_ARGS_H

#include "ops/attention/sm90/sm90_args.h"

/* Numbers more than a tile has queries, of lse and of sums of dout out: TMA begins at
 * multiples of 16 bytes only (else: an illegal instruction), up to three before the tile. */
#define ATTENTION_SM90_SLACK 4

/* Queries (a: q, b: dout) or keys (a: k, b: v). */
typedef struct attention_sm90_side {
    mica_tensor_map map_a, map_b; /* columns, rows, heads, batch */
    attention_sm90_source a, b;
    attention_sm90_list cu, seq;
    int rows; /* of the tensors */
} attention_sm90_side;

/* The gradient of one tensor. */
typedef struct attention_sm90_result {
    void *data;
    long long stride[4];
    int columns;
    int whole; /* may be written by vectors */
} attention_sm90_result;

/* Own rows stay, others travel past them. Row x sees the others y with
 * x + shift - low < y < x + shift + high, where shift is 0 or the others' count less the own. */
typedef struct attention_sm90_bwd_args {
    attention_sm90_side own, other;
    mica_tensor_map stats_map;    /* rows, 2 lines: where queries are the others */
    attention_sm90_result da, db; /* of the own a and b */
    const float *stats;           /* as attention_sm90_stats_args.to */
    long long pitch;
    const float *slopes;
    long long slopes_stride;
    int sequences, heads, group; /* heads: of the own side; group: query heads of a key head */
    int tiles, section; /* of own rows of a head; heads side by side; not where rows are packed */
    int low, high;
    int direct; /* TMA cannot take the pointers */
    float scale;
    float cap, cap_inverse; /* the inverse is doubled, in units of log 2 */
    /* Where scores are formed once: f32 sums of dq, by tile and part of it; how many blocks
     * have added to each (turns); the work counter (claims); tiles of a head; jobs. */
    float *sums;
    int *turns, *claims;
    long long sum_tiles;
    int jobs;
} attention_sm90_bwd_args;

/* sm90/sm90_stats.cu: of each row of q (batch H + head, row) lse, or infinity instead of
 * -infinity, and `pitch` further on the sum of dout out; 2 pitch from a line to the next. */
typedef struct attention_sm90_stats_args {
    const void *out, *dout;
    const float *lse;
    float *to;
    long long out_stride[4], dout_stride[4], lse_stride[3];
    long long pitch, rows, count; /* count: of all rows of all lines */
    int heads, columns;
    int whole;    /* out and dout may be read by vectors */
    int *cleared; /* set to 0 */
    long long clears;
} attention_sm90_stats_args;

#endif
