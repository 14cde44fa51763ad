/* SPDX-License-Identifier: Apache-2.0
 * What the walks of forward and of the gradients over layers and steps share: tensors of children,
 * their making and their runs. */
#ifndef MICA_OPS_RNN_RNN_PARTS_H
#define MICA_OPS_RNN_RNN_PARTS_H

#include "mica/gemm.h"
#include "mica/random.h"
#include "mica/transform.h"
#include "ops/rnn/rnn.h"
#include "ops/rnn/rnn_persistent_args.h"

#include <string.h>

static inline size_t bytes_of(mica_dtype type, int64_t count)
{
    return (size_t)count * (size_t)mica_dtype_bits(type) / 8;
}

static inline char *element(void *data, mica_dtype type, int64_t at)
{
    return (char *)data + at * (mica_dtype_bits(type) / 8);
}

static inline mica_tensor matrix(mica_dtype type, int64_t rows, int64_t cols, int64_t row,
                                 int64_t col)
{
    return (mica_tensor){
        .dtype = type, .rank = 2, .dims = {rows, cols}, .strides = {row, col}, .strided = 1};
}

/* The same once for each side, `apart` elements apart. */
static inline mica_tensor beside(mica_tensor t, int64_t sides, int64_t apart)
{
    if (sides == 1) return t;
    return (mica_tensor){.dtype = t.dtype,
                         .rank = 3,
                         .dims = {sides, t.dims[0], t.dims[1]},
                         .strides = {apart, t.strides[0], t.strides[1]},
                         .strided = 1};
}

/* `more`: for argument `which`. at: the child's workspace. */
static inline mica_status run_product(const mica_run *r, size_t at, const mica_plan *child, void *a,
                                      void *b, void *c, int which, void *more)
{
    mica_run run = {.size = sizeof run, .workspace = mica_at(r, at), .stream = r->stream};
    run.args[MICA_GEMM_A] = a, run.args[MICA_GEMM_B] = b, run.args[MICA_GEMM_C] = c;
    run.args[which] = more;
    return mica_plan_child_run(child, &run);
}

static inline mica_status run_copy(const mica_run *r, size_t at, const mica_plan *child, void *from,
                                   void *to)
{
    if (!child) return MICA_OK;
    mica_run run = {.size = sizeof run, .workspace = mica_at(r, at), .stream = r->stream};
    run.args[MICA_TRANSFORM_X] = from, run.args[MICA_TRANSFORM_Y] = to;
    return mica_plan_child_run(child, &run);
}

enum { RNN_BLOCK = 128, RNN_PHASES = 4, RNN_KINDS = 2 };

/* How a persistent kernel divides a layer. */
typedef struct rnn_layout {
    int units;     /* of a block */
    int blocks;    /* of a direction and a group of sequences */
    int groups;    /* of sequences, which do not wait for one another */
    int rows;      /* sequences of a group, a multiple of 16 */
    int sides;     /* directions of a launch */
    int tiles;     /* of 8 columns of weights */
    int kept;      /* of these in registers */
    int k_blocks;  /* of 32 of a warp */
    int row_tiles; /* of 16 sequences that are computed at once */
    int64_t shared_bytes;
    double step_ms;
} rnn_layout;

/* What the state of both begins with. Kinds of layers are two: the first one has other inputs. */
typedef struct rnn_walk {
    rnn_sizes s;
    size_t child_at, child_bytes; /* one child at a time */
    mica_kernel *kernels[RNN_PHASES];
    mica_grid grid;
    bool persistent;
    rnn_layout layout;
    size_t exchange, arrived; /* of it: what steps hand on, and counters of blocks */
} rnn_walk;

mica_status rnn_add_child(mica_plan *plan, const char *op, const void *desc, size_t size,
                          mica_plan **child);
/* Between states of a layer in the caller's tensor, if it is given, and packed ones. */
mica_status rnn_add_copy(mica_plan *plan, const mica_tensor *outside, mica_dtype inside, bool load,
                         mica_plan **child);
/* Of a packed row of each sequence and the first `rows` of a part of the weights, or its transpose
 * (backward): sums, of all directions at once. */
mica_status rnn_add_product(mica_plan *plan, int kind, mica_rnn_part part, int64_t rows,
                            bool backward, mica_plan **child);
mica_status rnn_add_kernel(mica_plan *plan, const char *file, const char *entry, const char *flag,
                           bool set, int phase);

/* ---- all steps in one launch (rnn_persistent.c) ---- */
/* Whether the plan's engine is that; then its layout, bookings and kernel. */
mica_status rnn_add_persistent(mica_plan *plan);
/* All steps of a layer; args: of the forward or backward kernel's step. */
mica_status rnn_run_persistent(const mica_plan *plan, const mica_run *r, int64_t layer,
                               const mica_rnn_args *a);
mica_status rnn_run_persistent_slopes(const mica_plan *plan, const mica_run *r, int64_t layer,
                                      const mica_rnn_slope_args *a);

/* Dropout behind a layer, of rows of `units` from `unit` on within those of all directions; bwd: of
 * their gradient. */
mica_dropout_desc rnn_dropout(const mica_rnn_desc *d, int64_t layer, int64_t unit, int64_t units,
                              bool bwd);
/* Those behind each layer but the last, in place. */
mica_status rnn_add_dropouts(mica_plan *plan, bool bwd, mica_plan **children);
mica_status rnn_run_dropout(const mica_run *r, size_t at, const mica_plan *child, void *data);

static inline int kind_of(int64_t layer)
{
    return layer > 0;
}

static inline mica_status clear(const mica_plan *plan, const mica_run *r, void *data, size_t bytes)
{
    if (plan->cuda) return mica_cuda_memset(plan->cuda, data, 0, (int64_t)bytes, r->stream);
    memset(data, 0, bytes);
    return MICA_OK;
}

static inline char *weights_of(const mica_plan *plan, const mica_run *r, int64_t layer,
                               int64_t side, mica_rnn_part part)
{
    const mica_rnn_desc *d = plan->desc;
    const mica_rnn_matrix m = mica_rnn_weight(d, layer, side, part);
    return m.rows ? element(r->args[MICA_RNN_W], d->w.dtype, m.offset) : NULL;
}

static inline char *states_of(const mica_plan *plan, const mica_run *r, int arg, int64_t layer)
{
    const mica_rnn_desc *d = plan->desc;
    const mica_tensor *t = mica_op_tensor(plan->op, d, arg);
    if (!r->args[arg]) return NULL;
    return element(r->args[arg], t->dtype, layer * (d->bidirectional ? 2 : 1) * t->strides[0]);
}

static inline mica_rnn_bounds bounds_of(const mica_rnn_desc *d)
{
    return (mica_rnn_bounds){.low = d->clip_low, .high = d->clip_high, .nan = d->clip_nan};
}

#endif
