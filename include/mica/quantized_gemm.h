/* SPDX-License-Identifier: Apache-2.0
 * Products with quantised weights, which stay as they are stored:
 *
 *     y[m,n] = alpha * sum_k x[m,k] W[n,k] + bias[n]
 *
 * x is M x K, y is M x N, any strides. w holds W, a row for each output channel, in one of two
 * ways:
 *
 *   codes    w is N x K of s4 u4 s8 u8 e4m3 e5m2 e2m1 (4 bits: two to a byte, the first in the low
 *            half), W[n,k] = (w[n,k] - zeros[n,k/group]) * scales[n,k/group]: `group` elements of a
 *            row share a scale, the last ones fewer if there are fewer left. scales is N x
 *            ceil(K/group), so N x 1 is one for each row, or one element for all. zeros, of
 *            integers only, has the dimensions that scales may have, and w's or scales' type.
 *   blocks   w is N x bytes of u8, rows of whole blocks as quantize_blocks.h describes them: of
 *            GGUF, or nf4 and fp4, whose scales are N x K/group.
 *
 * Weights in the layouts of GPTQ, AWQ and Marlin become such codes by repack_weights.
 *
 * Groups of rows (experts): with w of G x N x K, or G x N x bytes, the rows of x are sorted by
 * group and each group has its own W. ends[g], read when the plan runs, is where group g ends: it
 * has the rows from ends[g-1] (0 for the first) to before ends[g]. scales and zeros begin with G,
 * too, or are one element; bias is G x N, or N for all. Any content of ends is safe: an end below
 * the one before it makes an empty group, one past the last row counts as M. Rows of y that belong
 * to no group become 0, and what x has there is not used.
 *
 * The numbers W are those of dequantize and dequantize_blocks in f32; they are multiplied as such
 * and summed in f32. x is not quantised. An engine may sum the codes of a group first and multiply
 * the sum by its scale, which is no less exact.
 *
 * Edges: a scale of 0 makes its weights 0. One that is infinite or NaN makes the results that it
 * enters infinite or NaN, and which of the two is the engine's; so do sums of codes that pass the
 * end of f32 before they are scaled. K = 0: y = bias, or 0. M or N of 0:
 * nothing to do. A K that is no whole number of blocks is refused. */
#ifndef MICA_QUANTIZED_GEMM_H
#define MICA_QUANTIZED_GEMM_H

#include "mica/quantize_blocks.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How w holds the weights. Block formats follow BLOCKS in their own order: of Q4_K it is
 * MICA_WEIGHTS_BLOCKS + MICA_BLOCK_FORMAT_Q4_K. In text: codes, q4_0, q4_k, ... */
enum { MICA_WEIGHTS_CODES, MICA_WEIGHTS_BLOCKS };

enum {
    MICA_QUANTIZED_GEMM_X,
    MICA_QUANTIZED_GEMM_W,
    MICA_QUANTIZED_GEMM_Y,
    MICA_QUANTIZED_GEMM_SCALES,
    MICA_QUANTIZED_GEMM_ZEROS,
    MICA_QUANTIZED_GEMM_BIAS,
    MICA_QUANTIZED_GEMM_ENDS
};
enum { MICA_QUANTIZED_GEMM_ALPHA };

typedef struct mica_quantized_gemm_desc {
    int32_t format;     /* 0 means codes */
    mica_tensor x;      /* f32, f16, bf16; needed */
    mica_tensor w;      /* codes, or u8; needed */
    mica_tensor y;      /* f32, f16, bf16; 0 means inferred: of x's type; a type alone is kept */
    mica_tensor scales; /* f32, f16, bf16, e4m3, e8m0; 0 means codes, nf4 and fp4: inferred, in f32.
                           Other blocks hold theirs */
    mica_tensor zeros;  /* 0 means none; a type alone is kept */
    mica_tensor bias;   /* N, or G x N, of f32, f16, bf16; 0 means none */
    int64_t group;      /* elements of a row with one scale; 0 means inferred: from scales, or the
                           whole row; of blocks the format's own */
    mica_tensor ends;   /* G, s32 or s64: where groups end; 0 means inferred where w has groups */
} mica_quantized_gemm_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_quantized_gemm_plan(mica_context *context,
                                                   const mica_quantized_gemm_desc *desc,
                                                   const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "quantized_gemm", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
