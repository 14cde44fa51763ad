/* SPDX-License-Identifier: Apache-2.0
 * What the files of the attention family share: sizes, who attends to whom, dropout. */
#ifndef MICA_OPS_ATTENTION_ATTENTION_H
#define MICA_OPS_ATTENTION_ATTENTION_H

#include "mica/attention.h"
#include "ops/op.h"

extern const mica_op mica_op_attention;
extern const mica_engine mica_attention_bf16, mica_attention_cpu, mica_attention_decode,
    mica_attention_latent, mica_attention_sm90, mica_attention_sm90_f8, mica_attention_sm90_bwd,
    mica_attention_sm80, mica_attention_cuda, mica_attention_compose, mica_attention_compose_cuda;

/* What every engine but "compose" refuses, and those beside whose diagonal lies in a corner. */
mica_status attention_check_results(const mica_attention_desc *d, mica_why *why);
mica_status attention_check_corner(const mica_attention_desc *d, mica_why *why);

#define ATTENTION_MAX_DIM 1024

static inline int64_t ceiling(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}
static inline int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}
static inline int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
/* Greatest common divisor. */
static inline int64_t gcd(int64_t a, int64_t b)
{
    return b ? gcd(b, a % b) : a;
}

typedef struct attention_shape {
    int64_t sequences, heads, kv_heads, group; /* group: query heads of a key head */
    int64_t rows, keys;                        /* at most, of a sequence */
    int64_t d, dv;
    int64_t page; /* keys of a page; 0: no pages */
} attention_shape;

void attention_shape_make(const mica_attention_desc *d, attention_shape *s);

/* Rows of one sequence: in batch item `batch` of the tensor, from `first` on. */
typedef struct attention_span {
    int64_t batch, first, count;
} attention_span;

/* args: pointers by argument, of a run or a fill. */
attention_span attention_queries(const mica_attention_desc *d, void *const *args, int64_t n);
attention_span attention_keys(const mica_attention_desc *d, void *const *args, int64_t n);
/* Offset of key j's row of head h in k or v, -1 if its page is absent. */
int64_t attention_key_offset(const mica_attention_desc *d, const mica_tensor *t, void *const *args,
                             int64_t n, const attention_span *keys, int64_t h, int64_t j);

/* Keys [from, to) that causality and windows leave to query i. */
typedef struct attention_range {
    int64_t from, to;
} attention_range;
/* The key of the diagonal in row 0 of a sequence. */
int64_t attention_shift(const mica_attention_desc *d, int64_t queries, int64_t keys);
attention_range attention_range_of(const mica_attention_desc *d, int64_t shift, int64_t keys,
                                   int64_t i);

/* Offset of element (n, h, i, j) of a tensor that is broadcast to them. */
static inline int64_t attention_at(const mica_tensor *t, int64_t n, int64_t h, int64_t i, int64_t j)
{
    const int64_t at[4] = {n, h, i, j};
    int64_t offset = 0;
    for (int d = 0; d < 4; d++) offset += t->dims[d] == 1 ? 0 : at[d] * t->strides[d];
    return offset;
}

/* ---- dropout ---- */

typedef struct attention_dropout {
    uint32_t key[2], offset, threshold; /* words below the threshold are dropped */
    double scale;                       /* of what is kept */
} attention_dropout;

/* rng is not looked at if there is no dropout. */
attention_dropout attention_dropout_make(const mica_attention_desc *d, const void *rng);
/* Words of keys j to j + 3; j is a multiple of 4. row: n H + h */
void attention_philox(const attention_dropout *drop, int64_t row, int64_t i, int64_t j,
                      uint32_t word[4]);

/* ---- numbers ---- */

/* Units that rounding a sum of n terms may add up to: the contract's phi, in units. */
double attention_growth(int64_t n);
/* The n of the contract. */
int64_t attention_terms(const void *desc);
/* The unit of an engine whose tensor core sums 8-bit products as Hopper's does: the contract's. */
double attention_float8_unit(const mica_attention_desc *d);

bool attention_fill(const void *desc, const double *scalars, int arg, mica_fill fill, uint64_t seed,
                    double *values);
bool attention_exact(const void *desc);
void attention_reference(const void *desc, const mica_view *args, const double *scalars);

#endif
