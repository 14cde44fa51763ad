/* SPDX-License-Identifier: Apache-2.0
 * What quantize and dequantize share: one set of tensors, cut into boxes of whole blocks. */
#ifndef MICA_OPS_QUANTIZE_QUANTIZE_H
#define MICA_OPS_QUANTIZE_QUANTIZE_H

#include "mica/quantize.h"
#include "ops/op.h"
#include "ops/access/layout.h"
#include "ops/quantize/quantize_args.h"

/* Tensors of equal rank, those that are absent of strides 0; block: elements along each dimension.
 */
typedef struct mica_quantize_set {
    bool quantizes;
    mica_tensor at[MICA_QUANTIZE_PLACES];
    int arg[MICA_QUANTIZE_PLACES]; /* of the run; -1: absent */
    int global_arg;
    int rng_arg; /* -1: to nearest */
    int64_t rng_stride, first_index;
    int64_t block[MICA_MAX_RANK], blocks[MICA_MAX_RANK]; /* length, number */
    mica_dtype real;                                     /* F32 or F64 */
    int code;                                            /* CODE_... of quantize_body.h */
    mica_quantize_pass pass;
} mica_quantize_set;
/* views: NULL, or arguments whose strides count. */
void mica_quantize_set_make(const mica_op *op, const void *desc, const mica_view *views,
                            mica_quantize_set *set);

/* A part of the elements in which all blocks are alike. */
typedef struct mica_quantize_box {
    int64_t first[MICA_QUANTIZE_PLACES]; /* offsets of its first element */
    int64_t block_at;                    /* the same among blocks, packed */
    /* Its dimensions: blocks, and those within a block (bits of `inner`). */
    mica_tensor at[MICA_QUANTIZE_PLACES];
    int64_t block_strides[MICA_MAX_RANK]; /* of packed blocks; 0 of inner dimensions */
    unsigned inner;
    /* The same merged. In a row, `group` neighbours have one scale. */
    mica_layout layout;
    int64_t group, scale_step, zero_step;
} mica_quantize_box;
/* Blocks of that many dimensions may be shorter at the end; more boxes there are none. */
enum { MICA_QUANTIZE_RAGGED = 4, MICA_QUANTIZE_BOXES = 1 << MICA_QUANTIZE_RAGGED };
/* How many there are; 0: no elements. INVALID where there are too many, or dimensions. */
mica_status mica_quantize_cut(const mica_quantize_set *set, mica_quantize_box *boxes, int *count,
                              mica_why *why);

/* Largest magnitudes, or least and greatest elements, of all blocks in a packed buffer of `real`:
 * child plans, a box each. */
typedef struct mica_quantize_extremes {
    mica_plan *plans[2][MICA_QUANTIZE_BOXES]; /* amax, or max; min */
    size_t at[2][MICA_QUANTIZE_BOXES];        /* their workspaces */
    size_t buffer[2];
    int kinds, boxes;
    int64_t first_value[MICA_QUANTIZE_BOXES], first_block[MICA_QUANTIZE_BOXES];
    int value_bytes, real_bytes;
} mica_quantize_extremes;
mica_status mica_quantize_extremes_build(mica_plan *plan, const mica_quantize_set *set,
                                         const mica_quantize_box *boxes, int count,
                                         mica_quantize_extremes *extremes);
mica_status mica_quantize_extremes_run(const mica_quantize_extremes *extremes, const mica_run *run);
/* Of blocks: the packed buffer, scale, zero. */
void mica_quantize_block_layout(const mica_quantize_set *set, mica_layout *layout);

/* Launches of a kernel that takes a part of the elements: what is known before a run. */
typedef union mica_quantize_part_args {
    mica_quantize_memory memory; /* all begin with it */
    mica_quantize_args each;
    mica_quantize_once_args once;
} mica_quantize_part_args;
typedef struct mica_quantize_part {
    mica_kernel *kernel;
    mica_quantize_part_args args;
    int vector;
    bool fits; /* rows of both tensors begin at whole vectors */
    mica_grid grid;
} mica_quantize_part;
void mica_quantize_begin(const mica_quantize_set *set, const mica_quantize_box *box,
                         mica_quantize_part *part);
mica_status mica_quantize_launch(const mica_quantize_set *set, const mica_quantize_part *parts,
                                 int count, const mica_run *run);

/* CODE, HAS_ZERO, HAS_GLOBAL, POWER, CHANCE; code_t, value_t, scale_t, real. */
void mica_quantize_prologue(mica_text *prologue, const mica_quantize_set *set);

/* What has an element for each block: inferred; its blocks where they are left out; with the rank
 * of the elements, strides 0 where there is one or none; filled, with numbers of about `size`. */
mica_tensor mica_quantize_of_blocks(const mica_tensor *x, const mica_tensor *own,
                                    const int64_t *block, mica_dtype type);
mica_status mica_quantize_infer_block(const mica_tensor *x, const mica_tensor *scale,
                                      int64_t *block, mica_why *why);
mica_tensor mica_quantize_spread(const mica_tensor *tensor, int rank);
bool mica_quantize_fill_scale(const mica_tensor *t, double size, mica_fill fill, uint64_t seed,
                              double *values);

/* CODE_... of a quantised type. */
int mica_quantize_code(mica_dtype type);
/* "typedef type scale_t;": e8m0 is the family's own type in kernels. */
void mica_quantize_scale_prologue(mica_text *prologue, mica_dtype type);
/* n codes, `step` apart, from the one at `at` on. */
void mica_quantize_codes_f32(mica_dtype type, const void *data, int64_t at, int64_t step, float *v,
                             int64_t n);
double mica_quantize_top(int code);
/* The power of two that an e8m0 scale is of what is made of largest magnitudes; NaN of what is no
 * finite number. */
double mica_quantize_power(double v, int exponent);

void mica_quantize_reference(const void *desc, const mica_view *views, const double *scalars);
void mica_dequantize_reference(const void *desc, const mica_view *views, const double *scalars);

/* Every rounding is part of the definition: results are the reference's own. */
void mica_quantize_contract(const void *desc, const mica_config *config, mica_contract *contract);

extern const mica_op mica_op_quantize, mica_op_dequantize;
extern const mica_engine mica_quantize_cpu, mica_quantize_once, mica_quantize_cuda;
extern const mica_engine mica_dequantize_cpu, mica_dequantize_cuda;

#endif
