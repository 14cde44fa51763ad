/* SPDX-License-Identifier: Apache-2.0
 * Slices of tensors worked in f32 on the CPU. A tile is one slice along a contiguous axis, or up to
 * MICA_TILE_WIDTH neighbouring slices side by side, so that vectors run along memory either way;
 * positions of the axis pass in chunks that stay in the first-level cache. And the statistics of
 * softmax and cross-entropy: the maximum and the sum of exp(x - max) of each slice. */
#ifndef MICA_OPS_REDUCE_CPU_TILE_H
#define MICA_OPS_REDUCE_CPU_TILE_H

#include "ops/access/layout.h"

#define MICA_TILE_CHUNK    4096 /* elements of a chunk: 16 KiB */
#define MICA_TILE_WIDTH    128
#define MICA_TILE_OPERANDS 10
#define MICA_TILE_KEPT                                                                             \
    65536 /* elements of a tile that is kept in the second-level cache: 256 KiB */

typedef struct mica_tiling {
    mica_layout outer; /* slices */
    int operands;
    mica_dtype type[MICA_TILE_OPERANDS];
    int64_t along[MICA_TILE_OPERANDS]; /* strides on the axis */
    int64_t n;                         /* positions on it */
    int64_t width;                     /* slices of a tile; 1: vectors run along the axis */
    int64_t blocks;                    /* tiles that cover the last outer dimension */
    int64_t tiles;                     /* 0 if there are no slices */
    int64_t chunk;                     /* positions of a chunk */
    int64_t chunks;                    /* that cover n */
    /* Results do not fit the caches: of several slices they are stored past them. Of one only where
     * the work on an element is light: else computing goes on while the caches write back, and
     * would wait for stores past them. */
    bool past_cache, light;
} mica_tiling;

/* Completes a tiling whose outer, operands, type, along, n, past_cache and light are set.
 * contiguous: the axis has stride 1 in all operands that have it. single: tiles of one slice
 * whatever the strides.
 */
void mica_tiling_make(mica_tiling *s, bool contiguous, bool single);
/* Whether the elements that vectors run along are neighbouring floats. */
bool mica_tiling_is_float_run(const mica_tiling *s, int k);
/* Whether a whole tile in f32 stays in the second-level cache, in a buffer of MICA_TILE_KEPT or
 * where the results of operand k will be. Then a value per column and chunk fits MICA_TILE_SHIFTS.
 */
bool mica_tiling_is_kept(const mica_tiling *s, int k);
#define MICA_TILE_SHIFTS (18 * MICA_TILE_WIDTH)

typedef struct mica_tile {
    const mica_tiling *s;
    void *data[MICA_TILE_OPERANDS];
    /* of its first element; from slice to slice */
    int64_t offset[MICA_TILE_OPERANDS], across[MICA_TILE_OPERANDS];
    int64_t width; /* slices in this one */
} mica_tile;
mica_tile mica_tile_at(const mica_tiling *s, void *const *data, int64_t index);

/* The memory of positions from `from` on, if it can be worked in as it is: rows of `width` floats,
 * *ld apart. Else NULL, and rows in a buffer will lie `width` apart. */
float *mica_tile_direct(const mica_tile *t, int k, int64_t from, int64_t *ld);
/* n positions of operand k, converted into buffer (MICA_TILE_CHUNK floats) where needed. */
const float *mica_tile_fetch(const mica_tile *t, int k, int64_t from, int64_t n, float *buffer,
                             int64_t *ld);
/* Where results go: into the output itself, or the buffer for mica_tile_put(). */
float *mica_tile_place(const mica_tile *t, int k, int64_t from, float *buffer, int64_t *ld);
void mica_tile_put(const mica_tile *t, int k, int64_t from, int64_t n, const float *buffer);
/* Where the position a chunk after `from` lies: of the slice, or of a tile to come. */
const void *mica_tile_later(const mica_tile *t, int k, int64_t from);
/* Asks for what will be read a chunk after these n positions: of the slice, or of a tile to come.
 */
void mica_tile_ask(const mica_tile *t, int k, int64_t from, int64_t n);
/* Asks for memory that n results will be stored to, unless that is done past the caches. */
void mica_tile_ask_place(const mica_tile *t, int k, int64_t from, int64_t n);

/* ---- statistics, by slice of a tile ---- */

typedef struct mica_stats_of_slices {
    float max[MICA_TILE_WIDTH];
    double sum[MICA_TILE_WIDTH];
} mica_stats_of_slices;

void mica_slices_clear(mica_stats_of_slices *st, int64_t width);
void mica_slices_merge(mica_stats_of_slices *to, const mica_stats_of_slices *from, int64_t width);
/* Raises the maxima by n positions, rescaling the sums. */
void mica_slices_max(const mica_tile *t, const float *x, int64_t ld, int64_t n,
                     mica_stats_of_slices *st);
/* Adds the exponentials of n positions from `from` on, about the maxima so far, to the sums; e
 * receives them, eld apart. Slices of -inf alone keep the sum 0. Meanwhile the next chunk of
 * operand 0 is asked for. */
void mica_slices_exp(const mica_tile *t, const float *x, int64_t ld, int64_t from, int64_t n,
                     mica_stats_of_slices *st, float *e, int64_t eld);

#endif
