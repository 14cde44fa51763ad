/* SPDX-License-Identifier: Apache-2.0
 * A quantized_gemm as its engines see it. */
#ifndef MICA_OPS_QUANTIZED_GEMM_H
#define MICA_OPS_QUANTIZED_GEMM_H

#include "mica/quantized_gemm.h"
#include "ops/op.h"
#include "ops/quantize_blocks/quantize_blocks.h"
#include "ops/quantized_gemm/quantized_gemm_args.h"

/* Sizes and strides; pointers are those of a run. blocks: NULL where w holds codes. */
typedef struct mica_qgemm {
    mica_qgemm_args a;
    const mica_blocks_format *blocks;
    int elements, bytes; /* of a block */
    bool has_scales, has_zeros, has_bias;
    mica_dtype x, w, y, scales, zeros, bias;
} mica_qgemm;
/* views: NULL, or arguments whose strides count. */
void mica_qgemm_make(const mica_quantized_gemm_desc *desc, const mica_view *views, mica_qgemm *g);
void mica_qgemm_bind(const mica_plan *plan, const mica_run *run, mica_qgemm_args *a);
/* Whether rows of w lie side by side, in whole bytes, and begin at multiples of so many bytes. */
bool mica_qgemm_rows_whole(const mica_qgemm *g, int bytes);
/* Constants of quantized_gemm.cuh. piece: elements that a thread reads at once. */
void mica_qgemm_prologue(const mica_qgemm *g, int piece, mica_text *text);

void mica_quantized_gemm_reference(const void *desc, const mica_view *views, const double *scalars);

extern const mica_op mica_op_quantized_gemm;
extern const mica_engine mica_quantized_gemm_cpu, mica_quantized_gemm_cuda,
    mica_quantized_gemm_gemv, mica_quantized_gemm_sm80;

#endif
