/* SPDX-License-Identifier: Apache-2.0
 * Weights of K x N in words of 32 bits, as checkpoints and servers hold them: the layouts of GPTQ,
 * AWQ and Marlin.
 *
 *   dequantize_weights   y[k,n] = (code[k,n] - zero[g,n]) * scale[g,n], g = k/group or g_idx[k]
 *   repack_weights       w[n,j] = code[k,n], k = j or order[j]: codes, zero points and scales as
 *                        quantized_gemm takes them, row by output channel
 *
 *   format   bits     qweight          qzeros          scales
 *   gptq     2 3 4 8  K*bits/32 x N    G x N*bits/32   G x N
 *   gptq_v2  2 3 4 8  the same
 *   awq      4        K x N/8          G x N/8         G x N
 *   marlin   4 8      K/16 x N*bits/2  G x N*bits/32   G x N, permuted
 *
 * gptq: codes follow each other from the lowest bit on, down a column of qweight and along a row of
 * qzeros, whose last word may have room left; of 3 bits some lie in two words. The zero point is
 * one more than is stored, and 0 where that is 2^bits; of gptq_v2 it is what is stored. awq: along
 * rows, in the order of columns 0 2 4 6 1 3 5 7 from the lowest bits on. marlin: tiles of 16 x 64
 * in the order in which threads of a tensor-core kernel read them, K of whole 16 and N of whole 64;
 * scales are permuted within 64 columns, those of a single group within 32.
 *
 * compressed-tensors' pack-quantized (weight_packed N x K*bits/32, weight_scale N x G,
 * weight_zero_point N*bits/32 x G) of 2, 4 and 8 bits is gptq_v2 with each tensor transposed, which
 * strides say.
 *
 * Without qzeros the zero point is 2^(bits-1). Products are rounded to f32, then to y's type: bit
 * for bit what the packages' own functions give in the scales' type (auto-gptq 0.7.1, gptqmodel
 * 7.7.0, autoawq 0.2.9, compressed-tensors 0.12.2; Marlin's permutations are those of auto-gptq and
 * vLLM).
 *
 * Of a zero point stored as 2^bits - 1 libraries differ: 0, as here, is what auto-gptq's kernels
 * for groups and exllama's read, 2^bits what others do. No code is 2^bits, so that quantisers make
 * 0 and never that.
 *
 * g_idx is the group of each row of K, of checkpoints with desc_act (act-order). quantized_gemm has
 * groups of neighbours: `order` sorts K by groups (a stable argsort of g_idx), and x is to be
 * gathered by the same order: x'[m,j] = x[m,order[j]]. That is exact where each group has as many
 * rows as the others, the last perhaps fewer. A g_idx or order outside gives weights or codes of 0.
 *
 * Nothing is lost: quantized_gemm with w, w_scales and w_zeros multiplies with the numbers that
 * dequantize_weights gives in f32. */
#ifndef MICA_PACKED_WEIGHTS_H
#define MICA_PACKED_WEIGHTS_H

#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mica_packed_format {
    MICA_PACKED_GPTQ,
    MICA_PACKED_GPTQ_V2,
    MICA_PACKED_AWQ,
    MICA_PACKED_MARLIN
} mica_packed_format;

enum {
    MICA_DEQUANTIZE_WEIGHTS_QWEIGHT,
    MICA_DEQUANTIZE_WEIGHTS_SCALES,
    MICA_DEQUANTIZE_WEIGHTS_QZEROS,
    MICA_DEQUANTIZE_WEIGHTS_G_IDX,
    MICA_DEQUANTIZE_WEIGHTS_Y
};

typedef struct mica_dequantize_weights_desc {
    mica_packed_format format; /* 0 means gptq */
    int64_t bits;              /* of a code; 0 means 4 */
    int64_t group;             /* rows of K with one scale; 0 means inferred: from scales */
    mica_tensor qweight;       /* s32, any strides; needed */
    mica_tensor scales;        /* f32, f16, bf16, any strides; needed */
    mica_tensor qzeros;        /* s32, any strides; 0 means none */
    mica_tensor g_idx;         /* s32, s64, K; of gptq and gptq_v2; 0 means none */
    mica_tensor y;             /* K x N of f32, f16, bf16; 0 means inferred: of scales' type */
} mica_dequantize_weights_desc;

enum {
    MICA_REPACK_WEIGHTS_QWEIGHT,
    MICA_REPACK_WEIGHTS_SCALES,
    MICA_REPACK_WEIGHTS_QZEROS,
    MICA_REPACK_WEIGHTS_ORDER,
    MICA_REPACK_WEIGHTS_W,
    MICA_REPACK_WEIGHTS_W_SCALES,
    MICA_REPACK_WEIGHTS_W_ZEROS
};

/* w is N x K of u4, or u8 of 8 bits; without qzeros of s4 or s8, codes less 2^(bits-1), so that
 * quantized_gemm needs no zero points. w_scales and w_zeros are N x G. */
typedef struct mica_repack_weights_desc {
    mica_packed_format format; /* 0 means gptq */
    int64_t bits;              /* of a code; 0 means 4 */
    mica_tensor qweight;       /* s32, any strides; needed */
    mica_tensor scales;        /* f32, f16, bf16, any strides; 0 means none */
    mica_tensor qzeros;        /* s32, any strides; 0 means none */
    mica_tensor order;         /* s32, s64, K; 0 means none */
    mica_tensor w;             /* 0 means inferred: packed */
    mica_tensor w_scales;      /* of scales' type; 0 means inferred if scales are given */
    mica_tensor w_zeros;       /* of w's type, f32, f16, bf16; 0 means inferred if qzeros are given;
                                  a type alone is kept */
} mica_repack_weights_desc;

/* Make plans; see mica_plan_create. */
static inline mica_status mica_dequantize_weights_plan(mica_context *context,
                                                       const mica_dequantize_weights_desc *desc,
                                                       const mica_options *options,
                                                       mica_plan **plan)
{
    return mica_plan_create(context, "dequantize_weights", desc, sizeof *desc, options, plan);
}

static inline mica_status mica_repack_weights_plan(mica_context *context,
                                                   const mica_repack_weights_desc *desc,
                                                   const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "repack_weights", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
