/* SPDX-License-Identifier: Apache-2.0
 * Operations that move elements by a map of indices: the engines "cpu" and "cuda" for all of them.
 * An operation says which maps there are, one after the other; each walks the elements of one
 * tensor ("here") and says where in another ("there") each belongs, dimension by dimension (a
 * start, a step, a border) and by coordinates that an index tensor holds. Three things are done:
 *
 *   copy     here = there, and the value where the map points nowhere: gather, pad, slice, concat
 *   fold     there = the sum of all of here that points to it: gradients of maps without indices
 *   combine  there = there + here (or another reduction) for indexed maps: scatter, gradients of
 *            gather. In the logical order of here, so that bits do not vary.
 *
 * Copies take the bits of types of a byte or more; sums are formed in f32, or f64 where a type
 * needs it, and rounded once. Dimensions that are contiguous merge; runs move as such. */
#ifndef MICA_OPS_INDEX_INDEX_H
#define MICA_OPS_INDEX_INDEX_H

#include "ops/op.h"
#include "ops/index/index_args.h"

typedef enum mica_index_work {
    MICA_INDEX_COPY,
    MICA_INDEX_FOLD,
    MICA_INDEX_COMBINE
} mica_index_work;

typedef struct mica_index_map {
    mica_index_work work;
    int here, there, index;          /* run arguments; there -1: the value, index -1: none */
    int64_t here_shift, there_shift; /* elements from the arguments' first */
    int rank;
    mica_index_dim at[MICA_INDEX_RANK]; /* logical order; size and across as of a copy */
    mica_index_part part[MICA_INDEX_RANK];
    int parts;
    int64_t part_step; /* stride from one coordinate to the next in the index tensor */
    bool flat;         /* the index tensor has one number for all parts, row-major over them */
    bool negative;     /* indices below 0 count from the end; others are outside, as what is too
                          large: copies get the value there, the rest is left out */
    bool skips;        /* what has this index is left out */
    int64_t skip;
    mica_index_reduce reduce;
} mica_index_map;

typedef struct mica_index_set {
    mica_index_map map[MICA_INDEX_PIECES];
    int count;
} mica_index_set;

typedef struct mica_index {
    void (*maps)(const void *desc, mica_index_set *set);
} mica_index;

/* { cpu, ref, cuda } */
extern const mica_engine *const mica_index_engines[];

/* A map without borders or indices between two tensors of equal dimensions. */
mica_index_map mica_index_between(mica_index_work work, int here, const mica_tensor *t, int there,
                                  const mica_tensor *other);
/* here = the value. */
mica_index_map mica_index_filled(int here, const mica_tensor *t);
/* The reference of operations without one of their own; and for `exact`. */
void mica_index_reference(const mica_op *op, const void *desc, const mica_view *args,
                          const double *scalars);
bool mica_index_exact(const void *desc);
/* Indices for a test, the i-th among extents[i % parts]: most legal, some not, some below 0. */
void mica_index_fill(const int64_t *extents, int parts, bool negative, int64_t count,
                     mica_fill fill, uint64_t seed, double *values);

/* ---- maps by an index tensor (index_maps.c) ---- */

typedef enum mica_index_mode {
    MICA_INDEX_TAKE,     /* whole slices along axis: x's dimensions with index's instead of axis */
    MICA_INDEX_ELEMENTS, /* element by element along axis: index's dimensions */
    MICA_INDEX_ND        /* index's last dimension has coordinates of x behind `batch` dimensions */
} mica_index_mode;

/* Between a tensor that is indexed, x, and one that has an element for each index. */
typedef struct mica_index_by {
    mica_index_mode mode;
    int axis, batch; /* axis: not negative */
    const mica_tensor *x, *index;
} mica_index_by;

/* INVALID where they contradict each other, else the dimensions of the other tensor; its type and
 * strides are left alone. */
mica_status mica_index_by_dims(const mica_index_by *by, mica_tensor *other, mica_why *why);
/* x_arg, arg and index_arg: run arguments of x, the other tensor and the index. */
mica_index_map mica_index_by_map(const mica_index_by *by, mica_index_work work, int arg,
                                 const mica_tensor *other, int x_arg, int index_arg);
/* Most elements that one of x can get. */
int64_t mica_index_by_terms(const mica_index_by *by);
void mica_index_by_fill(const mica_index_by *by, bool negative, mica_fill fill, uint64_t seed,
                        double *values);

/* ---- what the engines share ---- */

/* The operation's maps, those that point nowhere or have inverses in their simplest form. */
void mica_index_maps(const mica_op *op, const void *desc, mica_index_set *set);
/* As it is walked. ordered: in logical order. */
void mica_index_form_make(const mica_index_map *map, bool ordered, mica_index_form *form);
/* Number `index` as a coordinate among n, -1 outside. */
static inline int64_t mica_index_legal(int64_t index, int64_t n, bool negative)
{
    if (negative && index < 0) index += n;
    return index >= 0 && index < n ? index : -1;
}
/* The parts' elements, and where the row-major number `cell` of them lies. */
static inline int64_t mica_index_cells(const mica_index_map *map)
{
    int64_t cells = 1;
    for (int i = 0; i < map->parts; i++) cells *= map->part[i].extent;
    return cells;
}
static inline int64_t mica_index_cell_offset(const mica_index_map *map, int64_t cell)
{
    int64_t offset = 0;
    for (int i = map->parts - 1; i >= 0; i--) {
        offset += cell % map->part[i].extent * map->part[i].stride;
        cell /= map->part[i].extent;
    }
    return offset;
}
/* Whether a type is shorter than a byte. */
bool mica_index_has_nibbles(const mica_op *op, const void *desc);
/* The value of a run, in the bits of that type. */
void mica_index_value(const mica_plan *plan, const mica_run *run, mica_dtype type, void *bits);

extern const mica_engine mica_index_cpu, mica_index_cuda;

#endif
