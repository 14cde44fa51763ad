/* SPDX-License-Identifier: Apache-2.0
 * What attention's engines for few queries share: `decode` and `latent`. */
#ifndef MICA_OPS_ATTENTION_DECODE_DECODE_H
#define MICA_OPS_ATTENTION_DECODE_DECODE_H

#include "ops/attention/attention.h"
#include "ops/attention/decode/decode_args.h"

/* cluster: splits meet in a cluster, else in the workspace */
enum { ATTENTION_DECODE_KNOB_ROWS, ATTENTION_DECODE_KNOB_SPLITS, ATTENTION_DECODE_KNOB_CLUSTER };

/* Bytes of an element of k and v, which are of q's type or of 8 bits. */
int attention_decode_size(const mica_attention_desc *d);
/* Pass, types, no dropout, bias or mask. */
mica_status attention_decode_check_features(const mica_attention_desc *d, mica_why *why);
/* At most so many columns, and none of the other dimensions 0. */
mica_status attention_decode_check_columns(const mica_tensor *t, const char *name, int most,
                                           mica_why *why);
/* The same, and rows of k or v that are copied 16 bytes at a time. */
mica_status attention_decode_check_addressing(const mica_tensor *t, const char *name, int size,
                                              int most, mica_why *why);
/* At most so many queries to a sequence, and counts that fit. */
mica_status attention_decode_check_lengths(const mica_attention_desc *d, const attention_shape *s,
                                           int64_t queries, mica_why *why);
/* Of a sequence, as far as known. */
int64_t attention_decode_queries(const mica_attention_desc *d, const attention_shape *s);
int64_t attention_decode_keys(const mica_attention_desc *d, const attention_shape *s);
/* Tiles of rows that there are, in all key heads. */
int64_t attention_decode_tiles(const mica_attention_desc *d, const attention_shape *s, int rows);
/* Appends a config unless it is there. */
void attention_decode_add_config(mica_config *out, int *count, int rows, int64_t splits,
                                 bool cluster);

/* A plan's state. */
typedef struct attention_decode_state {
    attention_decode_args args; /* all but pointers */
    mica_kernel *kernel, *merge;
    mica_grid grid, merge_grid;
    size_t partial, stats;
    int q_bytes, out_bytes; /* of alignment that vectors need; 0: there are none */
    bool equal_rows;        /* of k and v: as far apart, so that one may lie in the other */
} attention_decode_state;

/* Arguments and the grid but for its block; keys: a tile's, which pages may hold whole. */
void attention_decode_fill(const mica_plan *plan, const attention_shape *s, int keys);
/* Adds up the splits, if there are any and they form no cluster. */
mica_status attention_decode_add_merge(mica_plan *plan, const attention_shape *s);
mica_status attention_decode_run(const mica_plan *plan, const mica_run *r);

#endif
