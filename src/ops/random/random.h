/* SPDX-License-Identifier: Apache-2.0
 * Operations that draw numbers: what their tables tell the reference and the engines "cpu" and
 * "cuda", which all have. */
#ifndef MICA_OPS_RANDOM_H
#define MICA_OPS_RANDOM_H

#include "mica/random.h"
#include "ops/op.h"
#include "ops/random/random_args.h"
#include "ops/access/layout.h"

typedef struct mica_random_set {
    mica_random_draw draw;
    mica_tensor at[MICA_RANDOM_PLACES]; /* equal dimensions; no dtype: absent, but for INDEX */
    int arg[MICA_RANDOM_PLACES];
    int rng;            /* argument, -1: nothing is drawn */
    int64_t rng_stride; /* from seed to offset */
    bool dropout;       /* IN becomes OUT; else OUT is drawn */
    bool saves;         /* MASK and BITS are results */
    bool rows;          /* counters are of column, row and matrix: random_row_words */
    mica_dtype real;    /* what is computed in: f32, f64 or s64 */
    int bytes;          /* of an element of OUT */
    int digits;         /* of uniform numbers */
    int per_block;      /* elements of a counter */
    mica_random_numbers numbers;
} mica_random_set;

/* By the operation's `random`. views: NULL, or those whose strides hold in place of the
 * descriptor's. */
void mica_random_set_make(const mica_op *op, const void *desc, const mica_view *views,
                          mica_random_set *set);

/* What the tables share. `tensor`: whose elements are counted. */
void mica_random_infer_rng(mica_tensor *rng);
mica_status mica_random_check_rng(const mica_tensor *rng, mica_why *why);
mica_status mica_random_check_index(const mica_tensor *tensor, int64_t first, const int64_t *steps,
                                    mica_why *why);
mica_status mica_random_check_share(double p, mica_why *why);
mica_tensor mica_random_index(const mica_tensor *tensor, const int64_t *steps);
bool mica_random_fill_rng(mica_tensor rng, uint64_t seed, double *values);
void mica_random_reference(const mica_op *op, const void *desc, const mica_view *views);

/* Key and offset of a run. */
typedef struct mica_random_stream {
    uint32_t key[2], offset;
    bool rows; /* as the set's */
} mica_random_stream;
mica_random_stream mica_random_stream_of(const void *rng, int64_t stride);

/* Words of n elements `step` apart from index i on, 4 to a counter. to: n + 8; returns where the
 * first element's is. */
const uint32_t *mica_random_words(const mica_random_stream *stream, int64_t i, int64_t step,
                                  int64_t n, uint32_t *to);

/* The layout of all places, logical order but for steps, at least one dimension. */
void mica_random_layout(const mica_random_set *set, mica_layout *layout);

extern const mica_engine mica_random_cpu, mica_random_cuda;
extern const mica_engine *const mica_random_engines[];

#endif
