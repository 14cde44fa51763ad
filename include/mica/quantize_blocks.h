/* SPDX-License-Identifier: Apache-2.0
 * Blocks of bytes that hold codes and their scales, as files of weights have them: GGUF's formats,
 * and NF4 and FP4 of bitsandbytes.
 *
 *   dequantize_blocks   y = the elements of x's blocks
 *   quantize_blocks     y = blocks of x's elements
 *
 * Blocks lie along the last dimension, which has a whole number of them: a row of 4096 elements is
 * 16 blocks of q4_k, 2304 bytes.
 *
 *   format  elements bytes
 *   q4_0    32       18     q4_1 20, q5_0 22, q5_1 24, q8_0 34, iq4_nl 18, mxfp4 17
 *   q2_k    256      84     q3_k 110, q4_k 144, q5_k 176, q6_k 210, iq4_xs 136, tq1_0 54, tq2_0 66
 *   iq1_s   256      50     iq1_m 56, iq2_xxs 66, iq2_xs 74, iq2_s 82, iq3_xxs 98, iq3_s 110
 *   nvfp4   64       36
 *   nf4     64       32     fp4 alike: codes of 4 bits, the first of two in the high half; scale
 *                           has an f32 (bitsandbytes' absmax) for each block of `block` elements
 *
 * Results are, bit for bit, those of the packages that define the formats (gguf 0.19.0's
 * gguf.quants, bitsandbytes 0.50.2): arithmetic is in f32, each product and sum rounded, then
 * rounded to y's type. Scales that are infinite or NaN give what the arithmetic gives.
 * bitsandbytes' nested scales are blocks of 8 bits of their own.
 *
 * quantize_blocks makes what gguf.quants makes: q4_0 q4_1 q5_0 q5_1 q8_0 tq1_0 tq2_0; the other
 * formats have no rule there and are only read. x is rounded to f32 first. Elements that are NaN
 * make the scale of their block NaN (0x7e00), infinities make it infinite. */
#ifndef MICA_QUANTIZE_BLOCKS_H
#define MICA_QUANTIZE_BLOCKS_H

#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mica_block_format {
    MICA_BLOCK_FORMAT_Q4_0,
    MICA_BLOCK_FORMAT_Q4_1,
    MICA_BLOCK_FORMAT_Q5_0,
    MICA_BLOCK_FORMAT_Q5_1,
    MICA_BLOCK_FORMAT_Q8_0,
    MICA_BLOCK_FORMAT_Q2_K,
    MICA_BLOCK_FORMAT_Q3_K,
    MICA_BLOCK_FORMAT_Q4_K,
    MICA_BLOCK_FORMAT_Q5_K,
    MICA_BLOCK_FORMAT_Q6_K,
    MICA_BLOCK_FORMAT_IQ4_NL,
    MICA_BLOCK_FORMAT_IQ4_XS,
    MICA_BLOCK_FORMAT_TQ1_0,
    MICA_BLOCK_FORMAT_TQ2_0,
    MICA_BLOCK_FORMAT_MXFP4,
    MICA_BLOCK_FORMAT_NVFP4,
    MICA_BLOCK_FORMAT_NF4,
    MICA_BLOCK_FORMAT_FP4,
    MICA_BLOCK_FORMAT_IQ1_S,
    MICA_BLOCK_FORMAT_IQ1_M,
    MICA_BLOCK_FORMAT_IQ2_XXS,
    MICA_BLOCK_FORMAT_IQ2_XS,
    MICA_BLOCK_FORMAT_IQ2_S,
    MICA_BLOCK_FORMAT_IQ3_XXS,
    MICA_BLOCK_FORMAT_IQ3_S
} mica_block_format;

enum { MICA_QUANTIZE_BLOCKS_X, MICA_QUANTIZE_BLOCKS_Y };

typedef struct mica_quantize_blocks_desc {
    mica_block_format format; /* 0 means q4_0 */
    mica_tensor x;            /* f64, f32, f16, bf16, any strides; needed */
    mica_tensor y;            /* u8, any strides; 0 means inferred: packed */
} mica_quantize_blocks_desc;

enum { MICA_DEQUANTIZE_BLOCKS_X, MICA_DEQUANTIZE_BLOCKS_Y, MICA_DEQUANTIZE_BLOCKS_SCALE };

typedef struct mica_dequantize_blocks_desc {
    mica_block_format format; /* 0 means q4_0 */
    mica_tensor x;            /* u8, any strides; needed */
    mica_tensor y;            /* f64, f32, f16, bf16; 0 means inferred: f32, packed */
    mica_tensor scale;        /* f32, for each block; 0 means nf4 and fp4: inferred */
    int64_t block;            /* nf4, fp4: 32 to 4096, a power of two; 0 means the format's own */
} mica_dequantize_blocks_desc;

/* Make plans; see mica_plan_create. */
static inline mica_status mica_quantize_blocks_plan(mica_context *context,
                                                    const mica_quantize_blocks_desc *desc,
                                                    const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "quantize_blocks", desc, sizeof *desc, options, plan);
}

static inline mica_status mica_dequantize_blocks_plan(mica_context *context,
                                                      const mica_dequantize_blocks_desc *desc,
                                                      const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "dequantize_blocks", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
