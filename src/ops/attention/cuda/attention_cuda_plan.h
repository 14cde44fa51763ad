/* SPDX-License-Identifier: Apache-2.0
 * What the engines cuda and sm80 of attention share on the host. */
#ifndef MICA_OPS_ATTENTION_CUDA_ATTENTION_CUDA_PLAN_H
#define MICA_OPS_ATTENTION_CUDA_ATTENTION_CUDA_PLAN_H

#include "ops/attention/attention.h"
#include "ops/attention/cuda/attention_cuda_args.h"

enum {
    ATTENTION_FEW = 4,      /* rows of a block for few queries: 4 warps of one row */
    ATTENTION_LAUNCHES = 8, /* at most, of one pass */
};

typedef struct attention_launch {
    mica_kernel *kernel;
    mica_grid grid;
    int64_t tiles; /* of a sequence's lines */
    int clears;    /* argument, -1: none */
    attention_clear_args clear;
} attention_launch;

/* The state of a plan: kernels that run one after the other. */
typedef struct attention_launches {
    attention_cuda_args args; /* all but pointers and tiles */
    size_t partial, partial_stats, delta;
    bool keeps_delta; /* the sums of dout out are in the workspace */
    attention_launch launches[ATTENTION_LAUNCHES];
    int count;
} attention_launches;

bool attention_is_f64(const mica_attention_desc *d);
/* Tiles of `rows` lines: of all sequences in a key head, as many as there can be. */
int64_t attention_tiles(const mica_tensor *cu, int64_t lines, int64_t sequences, int64_t rows);
/* The same of queries, in all key heads. */
int64_t attention_query_tiles(const mica_attention_desc *d, const attention_shape *s, int64_t rows);

void attention_fill_args(const mica_attention_desc *d, const attention_shape *s, int64_t splits,
                         attention_cuda_args *a);

typedef struct attention_kernel {
    const char *file, *entry, *prologue;
    int64_t lines, own; /* of a sequence, that are tiled; of a tile */
    int64_t blocks, shared;
    int threads;
} attention_kernel;

mica_status attention_add_kernel(mica_plan *plan, const attention_kernel *k);

/* ---- kernels of attention_cuda.cuh ---- */

/* How the threads of a block lie over a tile, and what its sums have. */
typedef struct attention_layout {
    int tx, ty, rows, other;
    int64_t columns; /* of sums */
    bool plain;      /* no scores */
} attention_layout;

attention_layout attention_layout_of(const mica_attention_desc *d, int32_t rows, int64_t columns);
/* Bytes of tiles: own lines of each of the given widths, a stage of others, weights. */
int64_t attention_shared_bytes(const mica_attention_desc *d, const attention_layout *l,
                               int64_t width0, int64_t width1);

typedef struct attention_plain {
    const char *file, *entry;
    attention_layout layout;
    mica_dtype k_type, v_type; /* types of the lines that travel; MICA_NONE: none do */
    const char *k_name, *v_name;
    int64_t lines; /* of a sequence, that are tiled */
    int64_t blocks, shared;
} attention_plain;

mica_status attention_add_plain(mica_plan *plan, const attention_plain *k);

/* Results of rows that belong to no sequence. */
mica_status attention_clear_forward(mica_plan *plan);
mica_status attention_clear_backward(mica_plan *plan);
/* Books what splits leave and adds it up. */
mica_status attention_add_merge(mica_plan *plan, const attention_shape *shape, int64_t splits);
mica_status attention_add_delta(mica_plan *plan);
/* rows: of a tile */
mica_status attention_add_dbias(mica_plan *plan, const attention_shape *shape, int32_t rows);
mica_status attention_add_dsinks(mica_plan *plan, const attention_shape *shape);

mica_status attention_run_kernels(const mica_plan *plan, const mica_run *r);

#endif
