/* SPDX-License-Identifier: Apache-2.0
 * What the kernels of rope and kv_append receive; host and device share this file. */
#ifndef MICA_OPS_ROPE_ROPE_ARGS_H
#define MICA_OPS_ROPE_ROPE_ARGS_H

/* Frequencies of one launch: more pairs are rotated by several. */
#define ROPE_FREQUENCIES 192

/* Where rows lie in their sequences and what their angles are. */
typedef struct rope_source {
    const void *positions, *start; /* NULL: none */
    const int *cu;
    const void *cos, *sin;
    const float *inv_freq;
    long long positions_b, positions_s, start_n, cu_n;
    long long cos_p, cos_i, sin_p, sin_i, inv_i;
    long long table_rows, sequences;
    double factor, sine_factor;
    int wide_positions, wide_start; /* s64 */
    int tables_aligned;             /* to the table vectors of a thread */
} rope_source;

/* q or k (kv_append: k or v), strides of batch (cache: batch or page), head, row and column. */
typedef struct rope_side {
    const void *from;
    void *to;
    long long from_b, from_h, from_s, from_d;
    long long to_b, to_h, to_s, to_d;
    long long columns;
    int from_aligned, to_aligned; /* to the vectors of a thread */
} rope_side;

/* Which columns of a row a launch has. A unit of a thread is two runs of VEC columns. */
typedef struct rope_range {
    long long pairs, first, count; /* all pairs of a row; those of this launch */
    long long turned, copied;      /* units that rotate; that copy (kv_append: of k) */
} rope_range;

typedef struct rope_args {
    rope_source at;
    rope_side q, k;
    rope_range range;
    long long rows, items;             /* S; B x S x units */
    long long q_heads, k_heads, heads; /* of q, of k, of a thread */
    unsigned q_groups, groups;         /* groups of heads: of q, of both */
    int by_row; /* groups of the same rows, not rows of a group, follow each other */
    double frequencies[ROPE_FREQUENCIES];
    double frequencies_below[ROPE_FREQUENCIES]; /* what they are more than that */
} rope_args;

/* What values are divided by; data NULL: by 1. */
typedef struct kv_append_scale {
    const float *data;
    long long step; /* from head to head */
} kv_append_scale;

typedef struct kv_append_args {
    rope_source at; /* start is seq_k */
    rope_side k, v;
    rope_range range;
    long long v_units, k_items, v_items; /* items: B x S x units */
    unsigned k_blocks, v_blocks, groups; /* blocks of a group of heads, groups */
    int by_row;                          /* as above */
    const int *seq_q, *pages;
    kv_append_scale k_scale, v_scale;
    long long seq_q_n, pages_n, pages_p;
    long long rows, heads, group; /* S; heads of all; of a thread */
    long long most, page, pool;   /* keys of a sequence, rows of a page (0: none), pages */
    double frequencies[ROPE_FREQUENCIES];
    double frequencies_below[ROPE_FREQUENCIES]; /* what they are more than that */
} kv_append_args;

#endif
