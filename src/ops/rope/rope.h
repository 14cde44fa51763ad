/* SPDX-License-Identifier: Apache-2.0
 * What the files of rope and kv_append share. */
#ifndef MICA_OPS_ROPE_ROPE_H
#define MICA_OPS_ROPE_ROPE_H

#include "mica/rope.h"
#include "ops/op.h"

/* Where the angles of either operation come from; its tensors point into the descriptor, which must
 * stay. A tensor that is not given has no type. */
typedef struct rope_angles {
    bool rotates, interleaved, backward;
    int64_t pairs;         /* rotary_dim / 2; 0 if nothing is rotated */
    int64_t columns;       /* D */
    int64_t batches, rows; /* B, S */
    int64_t sequences;     /* N */
    double theta, factor;
    const mica_tensor *positions, *start, *cu, *inv_freq, *cos, *sin;
} rope_angles;

/* The memory of those tensors. */
typedef struct rope_data {
    const void *positions, *start, *cu, *inv_freq, *cos, *sin;
} rope_data;

/* A row of the new tensors: its sequence (-1: none) and its index there. */
typedef struct rope_row {
    int64_t sequence, index;
} rope_row;

/* ---- rope_shape.c ---- */
void rope_infer_tensor(mica_tensor *t, mica_dtype type, int rank, const int64_t *dims,
                       const mica_tensor *order);
mica_status rope_check_type(const mica_tensor *t, const char *name, bool legal, const char *rule,
                            mica_why *why);
/* t, if given, has exactly these dimensions. */
mica_status rope_check_dims(const mica_tensor *t, const char *name, int rank, const int64_t *dims,
                            mica_why *why);
/* What both descriptors say about angles. cu_name, rows_name: for the reason. */
mica_status rope_check_angles(const rope_angles *a, int64_t rotary_dim, mica_dtype type,
                              mica_why *why);
mica_status rope_check_offsets(const mica_tensor *cu, const char *cu_name, const mica_tensor *rows,
                               const char *rows_name, mica_why *why);
/* Whether frequencies follow from theta. */
bool rope_by_theta(const rope_angles *a);
/* Frequency of pair i by theta; *below: what it is more than that double. */
double rope_frequency(const rope_angles *a, int64_t i, double *below);
/* How many of them a plan keeps: all, or of very long rows none. */
int64_t rope_kept(const rope_angles *a);
rope_row rope_row_of(const rope_angles *a, const rope_data *data, int64_t b, int64_t s);
/* Position of row s of batch item b, of which row_of is known. */
double rope_position(const rope_angles *a, const rope_data *data, const rope_row *row, int64_t b,
                     int64_t s);
/* Row of the tables at a position. */
int64_t rope_table_row(const rope_angles *a, double position);
/* f64 if q (k) or what becomes of it is. */
mica_dtype rope_accumulator(mica_dtype from, mica_dtype to);
bool rope_exact(const rope_angles *a);
void rope_contract(const rope_angles *a, mica_dtype accumulator, mica_contract *contract);

/* ---- rope.c ---- */
void rope_angles_of(const mica_rope_desc *d, rope_angles *a);
rope_data rope_data_of(void *const *args);

/* ---- kv_append.c ---- */
enum { KV_SIDES = 2 };
typedef struct kv_shape {
    rope_angles angles;
    int64_t heads;
    int64_t page, pages, pool; /* rows of a page, pages of a sequence, of the pool; page 0: none */
    int64_t most;              /* keys that a sequence may have */
    bool has_v;
    const mica_tensor *from[KV_SIDES], *to[KV_SIDES], *scale[KV_SIDES]; /* of k, of v */
} kv_shape;
typedef struct kv_place {
    int64_t outer, row; /* batch item or page of the cache, and the row there; outer -1: dropped */
} kv_place;
void kv_shape_of(const mica_kv_append_desc *d, kv_shape *s);
rope_data kv_data_of(void *const *args);
kv_place kv_place_of(const mica_kv_append_desc *d, const kv_shape *s, void *const *args,
                     const rope_row *row);
/* By how much a head's values are divided. */
float kv_scale_of(const kv_shape *s, void *const *args, int side, int64_t head);

/* ---- rope_fill.c, rope_ref.c ---- */
bool rope_fill(const void *desc, const double *scalars, int arg, mica_fill fill, uint64_t seed,
               double *values);
bool kv_append_fill(const void *desc, const double *scalars, int arg, mica_fill fill, uint64_t seed,
                    double *values);
void rope_reference(const void *desc, const mica_view *args, const double *scalars);
void kv_append_reference(const void *desc, const mica_view *args, const double *scalars);

extern const mica_op mica_op_rope, mica_op_kv_append;
extern const mica_engine mica_rope_cpu, mica_rope_cuda, mica_kv_append_cpu, mica_kv_append_cuda;

#endif
