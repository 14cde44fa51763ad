/* SPDX-License-Identifier: Apache-2.0
 * Operations that compute each element of their results from the same element of their operands:
 * the engines "cpu" and "cuda" for all of them. An operation says which operands there are, and
 * what is done to an element: a body in a header that the CPU's loops (blocks.h) and the kernel
 * (pointwise.cuh) both include, or, where a function has loops of its own on the CPU, one of each.
 *
 * Operands may have any of the types and strides; a stride of 0 broadcasts. Dimensions that are
 * contiguous in all of them merge. The CPU takes blocks of some hundred elements: what does not lie
 * as the arithmetic wants it passes through buffers in the first-level cache, in tiles where
 * operands disagree about which dimension is the fastest. A GPU takes vectors of up to 16 bytes.
 * Both read all of an element's operands before they write, so that results may lie on operands. */
#ifndef MICA_OPS_POINTWISE_H
#define MICA_OPS_POINTWISE_H

#include "ops/op.h"
#include "ops/pointwise/pointwise_args.h"
#include "ops/access/layout.h"

typedef struct mica_pointwise_operand {
    mica_tensor tensor; /* all have the same dimensions; no dtype: absent */
    int arg;            /* the run argument that it lies in */
    int64_t shift;      /* elements from the argument's first to its own */
    bool read, written;
    /* A result that receives what the operand before it holds once that is stored. */
    bool follows;
    bool whole; /* in memory it is an s64, and travels as one: as the bits of an f64 */
    bool
        index; /* not in memory: an s64 that is the offset of the element by the strides; arg: -1 */
    unsigned summed; /* bit d: a result that is the sum along dimension d, where its stride is 0;
                        for the reference alone: engines refuse it */
} mica_pointwise_operand;

typedef struct mica_pointwise_set {
    mica_pointwise_operand at[MICA_POINTWISE_OPERANDS]; /* as the body counts them */
    int count;
    int variant; /* handed to the body */
    bool f64;    /* the arithmetic has to be, whatever the operands are */
} mica_pointwise_set;

/* what: what `prepare` made, or the descriptor of an operation without it.
 * v: an array for each operand, those of absent ones NULL; numbers: as many as
 * MICA_POINTWISE_NUMBERS, both in the block's type. A result's array may be that of an operand
 * where it is one. */
typedef void (*mica_pointwise_block)(const void *what, int variant, void *const *v,
                                     const void *numbers, int64_t n);

#define MICA_POINTWISE_PREPARED 24576

typedef struct mica_pointwise {
    const char *kernel, *entry; /* file and name */
    /* NULL: the operation's arguments in their order, each read and written as its direction says.
     */
    void (*operands)(const void *desc, mica_pointwise_set *set);
    /* The numbers of a run from its scalars, formed in double; INVALID if those contradict
     * themselves. NULL: the first scalars. */
    mica_status (*numbers)(const void *desc, const double *scalars, double *numbers);
    int number_count;
    /* What blocks, truth and prologue get in place of the descriptor: made of it once for each
     * plan, in prepared_size bytes, zeroed. NULL: the descriptor itself. */
    void (*prepare)(const void *desc, void *prepared);
    size_t prepared_size; /* at most MICA_POINTWISE_PREPARED */
    /* Constants of the kernel beside those of pointwise.cuh; NULL: none. */
    void (*prologue)(const void *what, mica_text *prologue);
    /* Arithmetic in f32 unless a type needs f64. */
    mica_pointwise_block f32, f64;
    /* NULL, or a block that works on the bits where all operands are of one type: then nothing is
     * converted and, unless results are scaled, f32 is not called. NULL for other descriptors. */
    mica_pointwise_block (*raw)(const void *desc);
    /* The truth of one element: replaces the results in v, and says in mag what their rounding
     * scales with. */
    void (*truth)(const void *what, const double *numbers, double *v, double *mag);
} mica_pointwise;

/* { cpu, ref, cuda } */
extern const mica_engine *const mica_pointwise_engines[];
/* An argument as an operand, by its direction; an absent one is an absent operand. */
mica_pointwise_operand mica_pointwise_argument(const mica_op *op, const void *desc, int arg);
/* The operands of a descriptor. */
void mica_pointwise_operands(const mica_op *op, const void *desc, mica_pointwise_set *set);
/* The reference of operations without one of their own: the truth, element by element, scaled by
 * alpha and beta. */
void mica_pointwise_reference(const mica_op *op, const void *desc, const mica_view *args,
                              const double *scalars);

/* ---- what the engines share ---- */

/* Memory for `prepare` follows an engine's state of that many bytes: what callbacks get. */
mica_status mica_pointwise_state(mica_plan *plan, size_t bytes, void *state_out);
const void *mica_pointwise_what(const mica_plan *plan, size_t state_bytes);

/* The layout of the operands: those of equal strides share a place in it. slots: by operand, -1 for
 * absent ones. Returns how many places there are. */
int mica_pointwise_layout(const mica_pointwise_set *set, mica_layout *layout, int *slots);
/* The type to compute in: f64 if any operand needs it. */
mica_dtype mica_pointwise_real(const mica_pointwise_set *set);
/* Numbers of a run, in that type; alpha and beta. */
mica_status mica_pointwise_begin(const mica_plan *plan, const mica_run *run, mica_dtype real,
                                 mica_pointwise_numbers *numbers, double *alpha, double *beta);

extern const mica_engine mica_pointwise_cpu, mica_pointwise_cuda;
/* What those are made of, for an operation that lets them refuse. */
mica_status mica_pointwise_cpu_build(mica_plan *plan);
mica_status mica_pointwise_cpu_run(const mica_plan *plan, const mica_run *run);
mica_status mica_pointwise_cuda_build(mica_plan *plan);
mica_status mica_pointwise_cuda_run(const mica_plan *plan, const mica_run *run);
#define MICA_POINTWISE_CPU                                                                         \
    .name = "cpu", .reached = 0.7, .start_ms = 2e-4, .build = mica_pointwise_cpu_build,            \
    .run = mica_pointwise_cpu_run
/* reached: the median of the lines of activation and optim in bench/results/h200. */
#define MICA_POINTWISE_CUDA                                                                        \
    .name = "cuda", .cuda = true, .reached = 0.95, .start_ms = 3e-3,                               \
    .build = mica_pointwise_cuda_build, .run = mica_pointwise_cuda_run

#endif
