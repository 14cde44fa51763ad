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
    bool grouped;
    mica_dtype x, w, y, scales, zeros, bias, ends;
} mica_qgemm;
/* views: NULL, or arguments whose strides count. */
void mica_qgemm_make(const mica_quantized_gemm_desc *desc, const mica_view *views, mica_qgemm *g);
void mica_qgemm_bind(const mica_plan *plan, const mica_run *run, mica_qgemm_args *a);
/* Sets a to group `index`, whose first row is returned: a->m is where it ends, and *end, which is
 * where the one before it ended, moves on. ends: the values, or NULL where there are no groups:
 * one, of all rows. */
int64_t mica_qgemm_group(const mica_qgemm *g, const void *ends, int64_t index, int64_t *end,
                         mica_qgemm_args *a);
/* How many groups there are: 1 where w is a matrix. */
static inline int64_t mica_qgemm_groups(const mica_qgemm *g)
{
    return g->grouped ? g->a.ends.count : 1;
}
/* Rows of a usual group. */
double mica_qgemm_expected(const mica_qgemm *g);
/* At most so many tiles of that many rows and columns there are. */
double mica_qgemm_tiles(const mica_qgemm *g, int rows, int columns);
/* Whether rows of w lie side by side, in whole bytes, and begin at multiples of so many bytes. */
bool mica_qgemm_rows_whole(const mica_qgemm *g, int bytes);
mica_grid mica_qgemm_grid(const mica_qgemm *g, int rows, int columns,
                          const mica_device_info *device, unsigned threads);
/* Constants of quantized_gemm.cuh. piece: elements that a thread reads at once. */
void mica_qgemm_prologue(const mica_qgemm *g, int piece, mica_text *text);

void mica_quantized_gemm_reference(const void *desc, const mica_view *views, const double *scalars);

extern const mica_op mica_op_quantized_gemm;
extern const mica_engine mica_quantized_gemm_cpu, mica_quantized_gemm_cuda,
    mica_quantized_gemm_gemv, mica_quantized_gemm_sm80;

#endif
