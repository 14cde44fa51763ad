/* SPDX-License-Identifier: Apache-2.0
 * What the files of the engine "cpu" of index share: rows of a walk, and how one lies there. */
#ifndef MICA_OPS_INDEX_CPU_INDEX_CPU_H
#define MICA_OPS_INDEX_CPU_INDEX_CPU_H

#include "ops/index/index.h"

typedef struct index_cpu_piece {
    mica_index_map map;
    mica_index_form form;
    int row, run;        /* dimensions: rows of runs; -1: there is none */
    int64_t size;        /* bytes of an element that is walked */
    mica_dtype from, to; /* types of here and there */
    bool past;           /* stores go past the caches */
    double bytes;
    /* of combine */
    mica_dtype real;    /* of sums */
    bool in_place;      /* sums are formed in the result itself */
    mica_tensor result; /* the argument there */
    size_t sums;        /* in the workspace, packed */
} index_cpu_piece;

/* Where a thread is: offsets of the first element of a row, and whether the map points anywhere. */
typedef struct index_cpu_walk {
    const index_cpu_piece *p;
    int64_t c[MICA_INDEX_RANK], from[MICA_INDEX_RANK], to[MICA_INDEX_RANK];
    int64_t here, there, index;
    int outer, outside; /* dimensions before the row; those whose coordinate is nowhere */
} index_cpu_walk;

/* Row number `row` of those before dimension `outer`; the next. */
void index_cpu_begin(index_cpu_walk *w, const index_cpu_piece *p, int outer, int64_t row);
void index_cpu_next(index_cpu_walk *w);

/* Neighbours from coordinate c of a dimension on that lie `step` coordinates apart there, from `at`
 * on; at -1: nowhere. */
typedef struct index_cpu_segment {
    int64_t n, at, step;
} index_cpu_segment;
index_cpu_segment index_cpu_segment_of(const mica_index_dim *d, int64_t c, int64_t most);

/* Offsets there of n indices, which lie `step` apart; INT64_MIN: outside. */
void index_cpu_offsets(const index_cpu_piece *p, const void *index, mica_dtype type, int64_t at,
                       int64_t step, int64_t n, int64_t *offsets);

void index_cpu_fold(const index_cpu_piece *p, const void *here, void *there);
void index_cpu_combine(const index_cpu_piece *p, const void *here, void *there, const void *index,
                       mica_dtype index_type, void *workspace);

#endif
