/* SPDX-License-Identifier: Apache-2.0
 * gemm where one side of c is a few lines, as its two engines (skinny, gemv) see it. */
#ifndef MICA_OPS_GEMM_SKINNY_SKINNY_H
#define MICA_OPS_GEMM_SKINNY_SKINNY_H

#include "ops/gemm/gemm_shape.h"
#include "ops/gemm/skinny/skinny_args.h"

typedef struct skinny_operand {
    const char *name;
    mica_dtype dtype;
    long long lines, line_stride, k_stride;
    const long long *batch;
} skinny_operand;

/* The wide operand and the other one. */
typedef struct skinny_geometry {
    gemm_shape shape;
    skinny_operand wide, few;
    bool swapped, k_major, few_k_major; /* swapped: the wide one is a */
    bool shifted;                       /* vectors begin at any element */
} skinny_geometry;

/* A plan's: one kernel, and its arguments but for pointers and scalars. */
typedef struct skinny_state {
    gemm_skinny_args args;
    int64_t wide_first, wide_span, few_first, few_span; /* bytes of the operands' memory */
    bool swapped;
    mica_kernel *kernel;
    mica_grid grid;
} skinny_state;

/* Refuses types and strides that the kernels do not read, and empty products. Where lines are no
 * multiples of 16 bytes apart it says so in `shifted`. */
mica_status skinny_geometry_make(const mica_gemm_desc *desc, const mica_device_info *device,
                                 skinny_geometry *g, mica_why *why);
/* The refusal of engines whose vectors are aligned. */
mica_status skinny_check_aligned(const skinny_geometry *g, mica_why *why);
/* Elements of a vector. */
int skinny_vector(const skinny_geometry *g);
/* All but pointers and scalars. */
void skinny_args_fill(const mica_gemm_desc *desc, const skinny_geometry *g, gemm_skinny_args *args);
/* The arguments of a plan and the ends of its operands. */
void skinny_state_fill(const mica_gemm_desc *desc, const skinny_geometry *g, skinny_state *state);
/* Launches the kernel of a plan whose state is a skinny_state. */
mica_status skinny_run(const mica_plan *plan, const mica_run *run);
/* The constants that both kernels read. */
void skinny_prologue(const mica_gemm_desc *desc, const skinny_geometry *g, mica_text *prologue);

#endif
