/* SPDX-License-Identifier: Apache-2.0
 * A gemm as its engines see it. */
#ifndef MICA_OPS_GEMM_GEMM_SHAPE_H
#define MICA_OPS_GEMM_GEMM_SHAPE_H

#include "mica/gemm.h"
#include "ops/gemm/cuda/gemm_full_args.h"
#include "ops/epilogue/epilogue.h"

static inline long long ceiling(long long a, long long b)
{
    return (a + b - 1) / b;
}

mica_epilogue gemm_epilogue(const mica_gemm_desc *desc);
/* Stride of t at batch dimension i counted from the last one; 0 where t is broadcast. */
int64_t gemm_batch_stride(const mica_tensor *t, int i);
void gemm_shape_make(const mica_gemm_desc *desc, gemm_shape *shape);
/* The same, and what goes with it for gates and aux. */
void gemm_shape_make_full_epilogue(const mica_gemm_desc *desc, gemm_shape *shape,
                                   gemm_full_epilogue *extra);
/* Offsets of a, b, c and the residual in batch item `item`; x, of aux, is set by the other one. */
typedef struct gemm_offsets {
    int64_t a, b, c, r, x;
} gemm_offsets;
gemm_offsets gemm_shape_offsets(const gemm_shape *shape, int64_t item);
gemm_offsets gemm_full_offsets(const gemm_shape *shape, const gemm_full_epilogue *extra,
                               int64_t item);
/* Bytes to the next of `dim` elements of a tensor map. Where there is one its stride means nothing,
 * but must be legal: that of `inner` elements. */
int64_t gemm_map_stride(long long dim, long long stride, long long inner, int bytes);
/* The batch dimensions of a map behind its matrix; those with stride 0 have one item. */
void gemm_map_batch(const gemm_shape *shape, const long long *stride, int bytes,
                    mica_tensor_map_spec *map);
/* Whether gemm_full_args are needed: a gate, aux, amax, or an 8-bit c of floating sums or with a
 * scale. */
bool gemm_has_full_epilogue(const mica_gemm_desc *desc);
/* The epilogue takes so few instructions that a kernel may have them for each of its sums. */
bool gemm_is_short(const mica_gemm_desc *desc);
/* The refusal of engines that know none of it. */
mica_status gemm_refuse_full_epilogue(const mica_gemm_desc *desc, mica_why *why);
/* Elements between the scales of neighbouring rows or columns; 0 for a single element. */
int64_t gemm_scale_stride(const mica_tensor *scale);
/* Scales are of blocks of 128, and stand inside the sum. */
bool gemm_has_blocks(const mica_gemm_desc *desc);
/* The strides of scales and of the epilogue's vectors, and the activation's numbers. */
void gemm_args_fill(const mica_gemm_desc *desc, gemm_args *args);
/* The pointers and scalars of a run. */
void gemm_args_bind(const mica_plan *plan, const mica_run *run, gemm_args *args);
/* The same for gemm_full_args, gemm.shape and extra included. */
void gemm_full_fill(const mica_gemm_desc *desc, gemm_full_args *args);
void gemm_full_bind(const mica_plan *plan, const mica_run *run, gemm_full_args *args);
/* Sets amax to 0 for the blocks that follow. */
mica_status gemm_full_begin(const mica_plan *plan, const mica_run *run);
/* What the epilogue is computed in: f64 where integers become integers, which are rounded as
 * the reference rounds them, else f32. */
mica_dtype gemm_epilogue_type(const mica_gemm_desc *desc);
/* The constants of gemm_full_epilogue.cuh. */
void gemm_full_prologue(const mica_gemm_desc *desc, mica_text *prologue);
double gemm_flops(const gemm_shape *shape);

void gemm_reference(const void *desc, const mica_view *args, const double *scalars);
extern const mica_engine gemm_bf16, gemm_cpu, gemm_onednn, gemm_gemv, gemm_skinny, gemm_sm90,
    gemm_sm90_blocks, gemm_sm90_skinny, gemm_sm90_turned, gemm_sm80, gemm_sm80_f32, gemm_sm80_f64,
    gemm_split_k, gemm_cuda, gemm_cublaslt;
extern const mica_op mica_op_gemm;

#endif
