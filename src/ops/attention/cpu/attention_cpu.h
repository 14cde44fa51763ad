/* SPDX-License-Identifier: Apache-2.0
 * What the files of attention's engine "cpu" share.
 *
 * Rows of queries lie side by side in the lanes of vectors, scores and results are transposed: a
 * panel is LANES rows, S is [key][lane], the sum [column][lane]. So keys and values enter both
 * products as they lie in memory, one number at a time, and maxima and sums of rows need no
 * exchange between lanes. */
#ifndef MICA_OPS_ATTENTION_CPU_ATTENTION_CPU_H
#define MICA_OPS_ATTENTION_CPU_ATTENTION_CPU_H

#include "ops/attention/attention.h"
#include "cpu/matrix.h"

enum {
    LANES = 32,                  /* rows of a panel */
    MOST_PANELS = 8,             /* of a block */
    BLOCK = LANES * MOST_PANELS, /* most rows of a block */
    TILE = 128                   /* most keys of a tile */
};

/* c[row][lane] = sum over k of a[row * a_row + k * a_step] b[k][lane], or added to c. wide: 32
 * lanes in two vectors of 16, for machines with 32 registers of that size. */
typedef struct attention_product {
    const float *a, *b;
    const uint16_t *a16; /* few lanes, wide: bf16, instead of a */
    float *c;
    int64_t a_row, a_step, rows, depth;
    int lanes; /* 16 or 32 of them are computed */
    bool add, wide;
} attention_product;
void attention_multiply(const attention_product *p);
/* The same for few lanes, with vectors along the rows of a instead: b is [lane][k] and c[row][lane]
 * for the scores (a_step is 1); b is [k][lane] and c[lane][row], added to, for the sum (a_row is
 * 1). */
enum { FEW = 4 };
void attention_multiply_few(const attention_product *p);

/* ---- one panel ---- */

typedef struct attention_lanes {
    float max[LANES], sum[LANES], factor[LANES];
    bool changed; /* factors are not all 1 */
} attention_lanes;

/* Of n rows of scores times scale, which is positive: raises the maxima by them if they exceed
 * these by more than slack, replaces the scores by exponentials about them, adds these to the sums.
 * factor: what older sums have been multiplied by. */
void attention_softmax(float *s, int64_t n, float scale, float slack, attention_lanes *lanes);
/* The same of the first `count` lanes alone, with keys in the vectors; neither scale nor slack. */
void attention_softmax_few(float *s, int64_t n, int count, attention_lanes *lanes);
/* acc[column][lane] *= factor[lane]; or, of few, acc[lane][column] */
void attention_rescale(float *acc, int64_t columns, const float *factor);
void attention_rescale_few(float *acc, int64_t columns, const float *factor, int lanes);
/* s *= factor */
void attention_scale(float *s, int64_t n, float factor);
/* s = cap tanh(s / cap); slope, if not NULL, receives the derivative. */
void attention_cap(float *s, int64_t n, float cap, float *slope);
/* -inf outside [from, to) of each lane */
void attention_limit(float *s, int64_t n, const int32_t *from, const int32_t *to);
/* s -= slope |key - diagonal| */
void attention_alibi(float *s, int64_t n, float key, const float *slope, const float *diagonal);

/* What the backward pass makes of n rows of scores s and of gradients dp: the weights as they enter
 * dv, and ds. keep (of dropout) and slope (of the cap) may be NULL. */
typedef struct attention_gradients {
    float *s, *dp; /* become weights and ds */
    const float *keep, *slope;
    const float *shift, *delta; /* by lane or by row: lse (+inf: none), sum of dout out */
    float scale;                /* of ds */
    int64_t n;
} attention_gradients;
void attention_gradients_by_lane(const attention_gradients *g);
void attention_gradients_by_row(const attention_gradients *g);

/* ---- plans and runs ---- */

typedef struct attention_cpu {
    attention_shape s;
    bool wide, few; /* few: sequences have FEW rows or less */
    bool bf16;      /* products are of bf16, on `unit` */
    mica_matrix_unit unit;
    int64_t block, tile; /* rows, keys */
    int threads;
    int64_t blocks;                /* of a key head, at most */
    int64_t parts;                 /* of a sequence of keys; more than one only if blocks is 1 */
    int64_t part;                  /* keys of a part, a multiple of tiles */
    size_t scratch, scratch_bytes; /* of each thread */
    size_t partial, partial_bytes; /* of each part */
    size_t starts;                 /* sequences + 1 numbers: blocks before each */
    /* bwd */
    size_t delta; /* by row of q: sum of dout out */
    /* One pass forms all gradients, dq as sums of `chunks` parts of the keys; 0: two passes. */
    int64_t chunks, chunk_blocks;
    size_t sums; /* of each chunk of a key head; where chunks is 1, they lie in the scratch */
} attention_cpu;

typedef struct attention_job {
    const attention_cpu *p;
    const mica_attention_desc *d;
    void *const *args;
    attention_dropout drop;
    int threads;
    int64_t *starts;
    char *scratch, *partial;
    float *delta, *sums;
} attention_job;

/* Bytes that the rows of one block need. */
size_t attention_forward_scratch(const attention_cpu *p);
size_t attention_partial_floats(const attention_shape *s);
void attention_forward_run(const attention_job *job);
size_t attention_backward_scratch(const attention_cpu *p);
/* Floats of dq that a part of the keys of one key head adds up. */
int64_t attention_sum_floats(const attention_shape *s);
/* Floats of dbias that a thread sums, at the end of its scratch. */
size_t attention_bias_floats(const mica_attention_desc *d, const attention_shape *s);
void attention_backward_run(const attention_job *job);
/* Counts the blocks of each sequence into job->starts: of its rows, or of its keys. */
void attention_count_blocks(const attention_job *job, bool keys);
/* Index of the last start that is not past i. */
int64_t attention_find(const int64_t *starts, int64_t count, int64_t i);

/* ---- tiles of keys ---- */

typedef struct attention_tile {
    const float *rows;
    int64_t ld;
    /* Instead, of bf16: the same rows, and, by columns TILE apart, where a product sums over them.
     */
    const uint16_t *rows16, *turned;
} attention_tile;

/* Keys j to j + n of head h in k or v: in place where they are floats (or tiles of bf16), else in
 * buffer. Absent ones are zero. */
attention_tile attention_load_tile(const attention_job *job, const mica_tensor *t, int arg,
                                   int64_t n_seq, const attention_span *keys, int64_t h, int64_t j,
                                   int64_t n, void *buffer);

/* ---- bf16 ----
 * Numbers enter products as they lie in memory, weights and gradients of scores are rounded. Rows
 * of matrices are filled up with zeros to whole tiles of the unit. */

/* Numbers of a panel of so many columns, of a tile, and of a tile by columns. */
static inline int64_t attention_panel_numbers(int64_t columns)
{
    return mica_matrix_depth(columns) * LANES;
}
static inline int64_t attention_tile_numbers(int64_t columns)
{
    return mica_matrix_depth(columns) * TILE;
}
static inline int64_t attention_turned_numbers(int64_t columns)
{
    return mica_matrix_lines(columns) * TILE;
}
/* Whether rows of t, a fixed step apart, are whole tiles where they lie, if there are n of them. */
bool attention_lies_in_tiles(const mica_tensor *t, int64_t n);
/* The row at an offset, or zeros if that is -1; and n rows in a buffer. */
void attention_copy_row16(const mica_tensor *t, const void *data, int64_t at, uint16_t *to);
attention_tile attention_finish_tile16(const mica_tensor *t, int64_t n, uint16_t *buffer);
/* Sets tile->turned, the transposed copy, which buffer becomes. */
void attention_transpose_tile(const attention_job *job, attention_tile *tile, int64_t n,
                              int64_t columns, uint16_t *buffer);
/* The tile as a panel, up to LANES rows. */
void attention_pack_panel16(const attention_job *job, const attention_tile *tile, int64_t n,
                            int64_t columns, uint16_t *to);
/* c[row][lane] = rows of the tile times a panel, for n of them; zeros follow. */
void attention_multiply_rows16(const attention_job *job, const attention_tile *tile, int64_t n,
                               int64_t columns, const uint16_t *panel, int lanes, float *c);
/* Rounds n rows of lanes, as the next one takes them: TILE * LANES numbers. */
void attention_round16(const attention_job *job, const float *weights, int64_t n, int lanes,
                       uint16_t *to);
/* c[column][lane] += sum over n rows of the tile, by columns, times weights[row][lane]. */
void attention_add_columns16(const attention_job *job, const attention_tile *tile, int64_t n,
                             int64_t columns, const uint16_t *weights, int lanes, float *c);

/* ---- rows of queries: those of all heads of a group, one head after the other ---- */

typedef struct attention_rows {
    const attention_job *job;
    int64_t n, kv_head, first, count; /* rows first to first + count of the group's */
    attention_span queries, keys;
    int64_t shift;
    int64_t from, to; /* keys that any of them may see */
    float scale;      /* of scores, with those of 8-bit types */
} attention_rows;

/* Rows from `first` on, at most `limit`. */
void attention_rows_make(const attention_job *job, int64_t n, int64_t kv_head, int64_t first,
                         int64_t limit, attention_rows *r);
/* Offset of a row in a tensor of rows. */
int64_t attention_row_offset(const attention_rows *r, const mica_tensor *t, int64_t row);
static inline int64_t attention_row_head(const attention_rows *r, int64_t row)
{
    return r->kv_head * r->job->p->s.group + (r->first + row) / r->queries.count;
}
static inline int64_t attention_row_query(const attention_rows *r, int64_t row)
{
    return (r->first + row) % r->queries.count;
}

/* A panel: its rows, and what they add to scores. */
typedef struct attention_panel {
    int count, lanes; /* rows; lanes that are computed */
    int64_t row;      /* of the block, the first one */
    int64_t from[LANES], to[LANES];
    int64_t any_from, any_to, all_from, all_to; /* keys that any row sees, and that all see */
    float slope[LANES], diagonal[LANES];
} attention_panel;

void attention_panel_make(const attention_rows *r, int64_t row, attention_panel *p);
/* Whether any row of the panel sees one of the keys from j to before end. */
bool attention_panel_sees(const attention_panel *p, int64_t j, int64_t end);
/* Scores of keys j to j + n, complete and masked, from the products in s. */
void attention_finish_scores(const attention_rows *r, const attention_panel *p, int64_t j,
                             int64_t n, float *s, float *slope);
/* The same where rows are rows, and lanes are `n` keys from j on. */
void attention_finish_rows(const attention_rows *r, int64_t j, int n, float *s, float *slope);
void attention_drop_rows(const attention_rows *r, int64_t j, int n, float *w);
/* w[key][lane] = 0 where dropped. */
void attention_drop(const attention_rows *r, const attention_panel *p, int64_t j, int64_t n,
                    float *w);
/* The rows of t as a panel of bf16, by way of buffer: a tile of them. */
void attention_load_panel16(const attention_rows *r, const attention_panel *p, const mica_tensor *t,
                            int arg, uint16_t *buffer, uint16_t *to);
/* The rows of t as a panel: to[column][lane] = factor * t[row][column], lanes without a row are 0;
 * or, without lanes, row by row. */
void attention_load_panel(const attention_rows *r, const attention_panel *p, const mica_tensor *t,
                          int arg, float factor, float *to, bool lanes);

#endif
