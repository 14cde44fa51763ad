/* SPDX-License-Identifier: Apache-2.0
 * Numbers in few bits with scales: quantize makes them, dequantize reads them, fake_quantize does
 * both at once.
 *
 *   quantize     y = saturate(round(x / scale) + zero)
 *   dequantize   y = (x - zero) * scale
 *
 * scale and zero have one element for each block of elements: block[d] elements along dimension d
 * share one, the last ones fewer if there are fewer left. So scale has, along d, dimension /
 * block[d] elements, rounded up, or is one element of any rank that stands for all. For x of 64 x
 * 4096
 *
 *   block 0x0    scale 1x1      of the tensor
 *   block 1x0    scale 64x1     of each row (token)
 *   block 0x1    scale 1x4096   of each column (channel)
 *   block 1x128  scale 64x32    of groups of a row
 *   block 128x128 scale 1x32    of squares
 *
 * At most 4 dimensions may end in shorter blocks, and dimensions and those within a block, which
 * are longer than 1, may be 8 together. A block that is left out follows from scale. Where there is
 * a global_scale (NVFP4), the scale is scale * global_scale, rounded to f32.
 *
 * Quantised types: e4m3 e5m2 e2m1 s8 u8 s4 u4, packed two to a byte where they are 4 bits, the
 * first in the low half. Integers: to nearest even, then zero is added, then it is saturated; NaN
 * becomes zero's code. e4m3, e5m2 and e2m1 round once to nearest even and saturate at 448, 57344
 * and 6, infinities too; NaN stays NaN (e2m1, which has none: 6). They have no zero point. s32 is
 * taken by dequantize (what a product of bytes has).
 *
 * Arithmetic is in f32, in f64 if x or y is f64 or x s32: each of the operations above, and no
 * other, is rounded to it, so results are the same bits on every device. Division is division, but
 * for 0 / 0, which is 0.
 *
 * rounding=stochastic takes, in place of the nearest, one of the two neighbours of a quotient among
 * the type's numbers (of integers: before zero is added), so that the mean of many is the quotient:
 * of a magnitude the larger if W / 2 < f 2^31, both rounded down, where f is the fraction of the
 * way from the smaller to the larger, and W the word that dropout of mica/random.h takes for the
 * element's index, i = first + c0 steps[0] + c1 steps[1] + ...; rng holds {seed, offset}. What the
 * type holds and what saturates is as ever, and so are scales that are made.
 *
 * pass of quantize says where scales (and zero points) come from; made ones are written to scale
 * (and zero): given    arguments amax     scale = a / top / global_scale, a being the largest
 * magnitude of the block and top the type's largest number (448, 57344, 6, 127, 255, 7, 15),
 * rounded to scale's type; in e8m0 (MX) it is 2^(floor(log2 a) - floor(log2 top)) minmax integers:
 * with low and high the least and the greatest element of the block, or 0 where that is beyond
 * them, and the type's range from bottom to top, scale = (high - low) / (top
 *            - bottom), zero = saturate(bottom + round(-low / scale))
 * A block of zeros has the scale 0 (e8m0: 2^-127) and codes 0, one with a NaN NaN codes; an
 * infinity makes the scale infinite (e4m3: 448, e8m0: NaN). */
#ifndef MICA_QUANTIZE_H
#define MICA_QUANTIZE_H

#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mica_quantize_pass {
    MICA_QUANTIZE_GIVEN,
    MICA_QUANTIZE_AMAX,
    MICA_QUANTIZE_MINMAX
} mica_quantize_pass;

typedef enum mica_quantize_rounding {
    MICA_QUANTIZE_NEAREST,
    MICA_QUANTIZE_STOCHASTIC
} mica_quantize_rounding;

enum {
    MICA_QUANTIZE_X,
    MICA_QUANTIZE_Y,
    MICA_QUANTIZE_SCALE,
    MICA_QUANTIZE_ZERO,
    MICA_QUANTIZE_GLOBAL_SCALE,
    MICA_QUANTIZE_RNG
};

typedef struct mica_quantize_desc {
    mica_quantize_pass pass; /* 0 means given */
    mica_tensor x;           /* f64, f32, f16, bf16; needed */
    mica_tensor y;           /* quantised, any strides; needed, where a type alone suffices */
    mica_tensor scale; /* f32, f16, bf16, e4m3, e8m0, and f64 for x of f64. 0 means inferred: f32,
                          of the blocks; a type alone is kept */
    mica_tensor zero;  /* of y's type, integers only; 0 means none; minmax: inferred, as scale */
    mica_tensor global_scale;        /* f32, one element; 0 means none */
    int64_t block[MICA_MAX_RANK];    /* 0 means the whole dimension; all 0: inferred from scale */
    mica_quantize_rounding rounding; /* 0 means nearest */
    mica_tensor rng;              /* s64, 2 elements: seed, offset; 0 means stochastic: inferred */
    int64_t first;                /* index of the first element; 0 means 0 */
    int64_t steps[MICA_MAX_RANK]; /* of the index along each dimension; 0 means packed */
} mica_quantize_desc;

enum {
    MICA_DEQUANTIZE_X,
    MICA_DEQUANTIZE_Y,
    MICA_DEQUANTIZE_SCALE,
    MICA_DEQUANTIZE_ZERO,
    MICA_DEQUANTIZE_GLOBAL_SCALE
};

typedef struct mica_dequantize_desc {
    mica_tensor x; /* quantised, or s32; any strides; needed */
    mica_tensor y; /* f64, f32, f16, bf16; 0 means inferred: f32, in x's memory order; a type alone
                      is kept */
    mica_tensor scale; /* f32, f16, bf16, e4m3, e8m0, and f64 for y of f64; 0 means inferred: f32,
                          of the blocks */
    mica_tensor zero;  /* of x's type, integers only; 0 means none */
    mica_tensor global_scale;     /* f32, one element; 0 means none */
    int64_t block[MICA_MAX_RANK]; /* 0 means the whole dimension; all 0: inferred from scale */
} mica_dequantize_desc;

/* fake_quantize: what quantize to a type and dequantize of it make of x, without the codes, and the
 * gradient that goes straight through where the type has room:
 *
 *   fwd   y = (clamp(round(x / scale) + zero, low, high) - zero) * scale
 *   bwd   dx = low <= round(x / scale) + zero <= high ? dy : 0
 *
 * of floating-point types without zero, low and high: bwd passes where |x / scale| is at most the
 * type's largest number. low and high are the type's, or narrower or wider ones, as -127 to 127;
 * codes from 0 on are those of u8 and u4.
 *
 * rule quotient is quantize's: x / scale, and NaN becomes zero's code, so 0. rule product is
 * PyTorch's (torch.fake_quantize_per_tensor_affine on CPUs): x times 1 / scale, each rounded to f32
 * (f64), which other halves than those of x / scale may come from, and NaN becomes `low`. Of
 * either, NaN has no gradient and infinities saturate (fake_quantize_per_channel_affine of PyTorch
 * 2.15 makes `low` of both infinities). Blocks must be whole. zero within 2^16. Floating-point
 * types keep NaN, e2m1 too. Division of 0 by 0 in floating-point types is 0. */
typedef enum mica_fake_quantize_pass {
    MICA_FAKE_QUANTIZE_FWD,
    MICA_FAKE_QUANTIZE_BWD
} mica_fake_quantize_pass;

typedef enum mica_fake_quantize_type {
    MICA_FAKE_QUANTIZE_S8,
    MICA_FAKE_QUANTIZE_U8,
    MICA_FAKE_QUANTIZE_S4,
    MICA_FAKE_QUANTIZE_U4,
    MICA_FAKE_QUANTIZE_E4M3,
    MICA_FAKE_QUANTIZE_E5M2,
    MICA_FAKE_QUANTIZE_E2M1
} mica_fake_quantize_type;

typedef enum mica_fake_quantize_rule {
    MICA_FAKE_QUANTIZE_QUOTIENT,
    MICA_FAKE_QUANTIZE_PRODUCT
} mica_fake_quantize_rule;

enum {
    MICA_FAKE_QUANTIZE_X,
    MICA_FAKE_QUANTIZE_Y,
    MICA_FAKE_QUANTIZE_DY,
    MICA_FAKE_QUANTIZE_DX,
    MICA_FAKE_QUANTIZE_SCALE,
    MICA_FAKE_QUANTIZE_ZERO
};

#define MICA_FAKE_QUANTIZE_MOST 65536 /* of low and high, negative too */

typedef struct mica_fake_quantize_desc {
    mica_fake_quantize_pass pass; /* 0 means fwd */
    mica_fake_quantize_type type; /* 0 means s8 */
    mica_fake_quantize_rule rule; /* 0 means quotient */
    mica_tensor x;                /* f64, f32, f16, bf16, any strides; needed */
    mica_tensor y;                /* fwd: 0 means inferred: as x */
    mica_tensor dy;               /* bwd: 0 means inferred: as x */
    mica_tensor dx;               /* bwd: 0 means inferred: as x */
    mica_tensor scale;            /* f64, f32, f16, bf16; 0 means inferred: f32, of the blocks */
    mica_tensor zero;             /* f32, s8, u8, integers only; 0 means none */
    int64_t block[MICA_MAX_RANK]; /* 0 means the whole dimension; all 0: inferred from scale */
    int64_t low;                  /* least code; 0 means the type's */
    int64_t high;                 /* greatest code; 0 means the type's */
} mica_fake_quantize_desc;

/* Make plans; see mica_plan_create. */
static inline mica_status mica_quantize_plan(mica_context *context, const mica_quantize_desc *desc,
                                             const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "quantize", desc, sizeof *desc, options, plan);
}

static inline mica_status mica_dequantize_plan(mica_context *context,
                                               const mica_dequantize_desc *desc,
                                               const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "dequantize", desc, sizeof *desc, options, plan);
}

static inline mica_status mica_fake_quantize_plan(mica_context *context,
                                                  const mica_fake_quantize_desc *desc,
                                                  const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "fake_quantize", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
