/* SPDX-License-Identifier: Apache-2.0
 * Operations that reduce slices of their operands to states: sums, maxima, softmax, losses. The
 * dimensions are split in kept ones, whose elements are the slices, and reduced ones, the elements
 * of a slice; any set of axes, any strides. An operation says how a state begins, how elements are
 * added to it, how two of them merge and what is done with a whole one; and, if it has results of
 * the operands' shape, how those are written in a second walk over the elements.
 *
 * On the CPU tiles of slices pass in chunks that stay in the first-level cache (cpu/tile.h).
 * Long slices that are too few for the threads are cut into parts, by shape alone, so that the
 * threads' number does not show in the bits; the parts' states merge in their order. On a GPU
 * groups of threads share a slice, or a thread has neighbouring ones for itself, and slices that
 * are too few for the multiprocessors are cut into parts likewise (reduce.cuh). */
#ifndef MICA_OPS_REDUCE_REDUCE_H
#define MICA_OPS_REDUCE_REDUCE_H

#include "ops/op.h"
#include "ops/reduce/reduce_args.h"
#include "ops/reduce/cpu/tile.h"

/* ---- the split ---- */

typedef struct mica_reduce_operand {
    /* All have the same dimensions; one that is of slices has strides of 0 where it does not vary.
     */
    mica_tensor tensor;
    int arg; /* the run argument that it lies in; -1: none, only its strides are wanted */
} mica_reduce_operand;

enum {
    MICA_REDUCE_OPERANDS = MICA_TILE_OPERANDS,
    MICA_REDUCE_PARTS = 32,
    MICA_REDUCE_STATE = 6144
};

typedef struct mica_reduce_set {
    mica_reduce_operand at[MICA_REDUCE_OPERANDS]; /* the first decides about the order of loops */
    int count;
    unsigned axes;         /* bit d: dimension d is reduced */
    unsigned first, again; /* bit k: operand k is read in the first and in the second walk */
    int out;               /* written in the second walk; -1: there is none */
    bool light;            /* as of mica_tiling */
} mica_reduce_set;

/* The reduced dimension with the smallest strides is a row; further ones are rows of a slice. */
typedef struct mica_reduce_split {
    mica_layout kept, rows;
    int64_t n, along[MICA_REDUCE_OPERANDS]; /* elements of a row, and strides in it */
    int64_t length;                         /* elements of a slice */
} mica_reduce_split;
void mica_reduce_split_make(mica_reduce_split *split, const mica_reduce_set *set);
/* A tensor of slices over the dimensions of `x`: `kept` has them in order, reduced ones left out or
 * of size 1. */
mica_tensor mica_reduce_of_slices(const mica_tensor *kept, const mica_tensor *x, unsigned axes);

/* ---- what an operation does on the CPU ---- */

typedef struct mica_reduce_walk mica_reduce_walk;

/* A tile of a run. */
typedef struct mica_reduce_tile {
    const mica_reduce_walk *walk;
    const void *desc;
    const void *run; /* what the operation wants to know of this run */
    mica_tile tile;  /* of a row */
} mica_reduce_tile;

typedef struct mica_reduce_chunk {
    const float *in[MICA_REDUCE_OPERANDS]; /* rows of the tile's width, ld apart; or, wide: */
    const void *wide;                      /* doubles or 64-bit integers of the first operand */
    int64_t ld[MICA_REDUCE_OPERANDS];
    int64_t from, n; /* positions in a row of the slice */
    int64_t seen;    /* of the slice, positions before these */
} mica_reduce_chunk;

typedef struct mica_reduce {
    void (*operands)(const void *desc, mica_reduce_set *set);
    /* f64 or s64 where f32 does not do: slices go one by one. */
    mica_dtype (*real)(const void *desc);
    /* States are of MICA_REDUCE_STATE bytes or fewer, for MICA_TILE_WIDTH slices. */
    size_t state_bytes;
    void (*init)(const mica_reduce_tile *t, void *state);
    void (*add)(const mica_reduce_tile *t, const mica_reduce_chunk *c, void *state);
    void (*merge)(const mica_reduce_tile *t, void *to, const void *from);
    /* Of a whole state: writes results of slices, or makes ready for the second walk. */
    void (*finish)(const mica_reduce_tile *t, void *state);
    void (*write)(const mica_reduce_tile *t, const mica_reduce_chunk *c, const void *state,
                  float *out, int64_t ld);
    /* A tile in some other way: false if not. NULL: never. */
    bool (*whole)(const mica_reduce_tile *t);
    /* NULL, or: adds as `add` does and leaves in e what needs only a factor to become the result,
     * and in `about`, a number for each slice, what that depends on. */
    void (*keep)(const mica_reduce_tile *t, const mica_reduce_chunk *c, void *state, float *e,
                 int64_t ld, float *about);
    void (*rescale)(const mica_reduce_tile *t, const mica_reduce_chunk *c, const void *state,
                    const float *about, float *e, int64_t ld);
    /* Chunks that are asked for before they are added: else `add` does it. */
    bool asks;
    /* NULL, or: n values, rows of the tile's width, that are added in place of the first operand's;
     * false: those are. */
    bool (*map)(const mica_reduce_tile *t, int64_t from, int64_t n, void *values);
} mica_reduce;

struct mica_reduce_walk {
    const mica_reduce *op;
    mica_reduce_set set;
    mica_tiling tiling;
    mica_layout rows;
    int64_t length, parts;
    double bytes;
    mica_dtype real;
    bool kept;
    const void *program; /* of map; NULL: there is none */
};

/* ---- what engines are made of ---- */

void mica_reduce_walk_make(mica_reduce_walk *p, const mica_reduce *op, const void *desc,
                           double bytes, const mica_device_info *device);
/* The memory of a run's operands. */
void mica_reduce_bind(const mica_reduce_walk *p, const mica_run *run, void **data);
void mica_reduce_do_tile(const mica_reduce_tile *t);
/* All tiles, shared out to threads. */
void mica_reduce_run(const mica_reduce_walk *p, const void *desc, const void *of_run,
                     void *const *data);

#endif
