/* SPDX-License-Identifier: Apache-2.0
 * What the loops of resize get: a run's geometry and weights, in f32 or f64. */
#ifndef MICA_OPS_RESIZE_CPU_RESIZE_CPU_H
#define MICA_OPS_RESIZE_CPU_RESIZE_CPU_H

#include "ops/resize/resize.h"

typedef struct mica_resize_weights {
    const int32_t *first; /* of the row of each element; -1: nothing */
    const void *weight;   /* `most` of each, f32 or f64 */
    int64_t rows, most;
} mica_resize_weights;

/* Source columns [from, to). */
typedef struct mica_resize_span {
    int32_t from, to;
} mica_resize_span;

typedef struct mica_resize_walk {
    mica_dtype type;
    mica_resize_weights axis[3];
    bool channels;                /* which lie side by side; else columns do */
    long long from[5], to[5];     /* strides of N C D H W */
    int64_t n, c, d, h, w;        /* of the result */
    int64_t block, blocks;        /* columns of the result that are made at once */
    int64_t part, parts;          /* channels that are */
    const mica_resize_span *span; /* of each block */
    int64_t items;                /* pieces of work: blocks of rows */
    double extrapolation, bytes;
    bool past_cache;
} mica_resize_walk;

/* Numbers of a line that is kept while a block is made of it. */
enum { MICA_RESIZE_LINE = 16384, MICA_RESIZE_TILE = 8192 };

void mica_resize_loops_f32(const mica_resize_walk *w, const void *in, void *out);
void mica_resize_loops_f64(const mica_resize_walk *w, const void *in, void *out);

#endif
