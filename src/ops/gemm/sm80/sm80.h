/* SPDX-License-Identifier: Apache-2.0
 * How operands lie: what the engines of gemm on mma.sync share. */
#ifndef MICA_OPS_GEMM_SM80_SM80_H
#define MICA_OPS_GEMM_SM80_SM80_H

#include "ops/gemm/gemm_shape.h"
#include "ops/mma/mma_tile.h"

/* Whether neighbouring elements lie closer along x than along y. */
bool gemm_sm80_is_faster(long long x_stride, long long x, long long y_stride, long long y);
/* Elements of a line read or stored at once; strides of dimensions of one element do not count. */
int gemm_sm80_vector(mica_dtype dtype, const gemm_shape *shape, long long fast, long long slow,
                     bool slow_counts, const long long *batch);
mica_mma_operand gemm_sm80_operand(mica_dtype dtype, const gemm_shape *shape, long long line_stride,
                                   long long lines, long long k_stride, const long long *batch);
bool gemm_sm80_is_aligned(const void *pointer, mica_dtype dtype, int vector);

#endif
