/* SPDX-License-Identifier: Apache-2.0
 * Quantised types as numbers, and what the kernels of quantize and dequantize receive; host and
 * device share this file. */
#ifndef MICA_OPS_QUANTIZE_ARGS_H
#define MICA_OPS_QUANTIZE_ARGS_H

#include "kernels/layout.h"

enum { CODE_E4M3, CODE_E5M2, CODE_E2M1, CODE_S8, CODE_U8, CODE_S4, CODE_U4, CODE_S32 };
#define CODE_IS_FLOAT(code) ((code) <= CODE_E2M1)
#define CODE_TOP(code)                                                                             \
    ((code) == CODE_E4M3   ? 448                                                                   \
     : (code) == CODE_E5M2 ? 57344                                                                 \
     : (code) == CODE_E2M1 ? 6                                                                     \
     : (code) == CODE_S8   ? 127                                                                   \
     : (code) == CODE_U8   ? 255                                                                   \
     : (code) == CODE_S4   ? 7                                                                     \
                           : 15)
#define CODE_LOW(code) ((code) == CODE_U8 || (code) == CODE_U4 ? 0 : (code) == CODE_S8 ? -128 : -8)
/* floor(log2 top) */
#define CODE_EXPONENT(code)                                                                        \
    ((code) == CODE_E4M3   ? 8                                                                     \
     : (code) == CODE_E5M2 ? 15                                                                    \
     : (code) == CODE_E2M1 ? 2                                                                     \
     : (code) == CODE_S8   ? 6                                                                     \
     : (code) == CODE_U8   ? 7                                                                     \
     : (code) == CODE_S4   ? 2                                                                     \
                           : 3)

/* Of a scale that is a power of two: floor(log2 |v|) - exponent within the ends of e8m0, -127 and
 * 127; 128 where v is no finite number. bits: v as f64. */
__attribute__((always_inline)) static inline int code_power(long long bits, int exponent)
{
    const int field = (int)(bits >> 52 & 0x7ff), e = field - 1023 - exponent;
    return field == 0x7ff ? 128 : e < -127 ? -127 : e > 127 ? 127 : e;
}

/* Digits behind the first, and exponent of the least number that has all. */
#define CODE_DIGITS(code) ((code) == CODE_E4M3 ? 3 : (code) == CODE_E5M2 ? 2 : 1)
#define CODE_LEAST(code)  ((code) == CODE_E4M3 ? -6 : (code) == CODE_E5M2 ? -14 : 0)

/* Tensors of an element. SCALE and ZERO have the strides of its block, 0 within one. INDEX has no
 * memory: its offsets are indices of what is drawn. */
enum {
    MICA_QUANTIZE_PLACE_CODE, /* quantised */
    MICA_QUANTIZE_PLACE_VALUE,
    MICA_QUANTIZE_PLACE_INDEX,
    MICA_QUANTIZE_PLACE_SCALE,
    MICA_QUANTIZE_PLACE_ZERO,
    MICA_QUANTIZE_PLACES
};

/* Where tensors lie: what a run adds to what its plan knows. */
typedef struct mica_quantize_memory {
    void *at[MICA_QUANTIZE_PLACES];
    const float *global_scale;
    const void *rng; /* seed, offset */
    long long rng_stride;
    long long first[MICA_QUANTIZE_PLACES]; /* offset of the first element, in elements */
    int whole;                             /* rows and pointers are aligned for vectors */
} mica_quantize_memory;

typedef struct mica_quantize_args {
    mica_quantize_memory memory;
    mica_layout layout;              /* the last dimension is counted in vectors */
    long long columns;               /* elements of a row */
    long long group;                 /* neighbours of a row with one scale */
    long long scale_step, zero_step; /* from group to group */
} mica_quantize_args;

/* Scales of what blocks hold. */
typedef struct mica_quantize_scales_args {
    const void *amax, *low; /* packed; of minmax the greatest and the least */
    void *scale, *zero;
    const float *global_scale;
    mica_layout layout; /* of blocks: amax, scale, zero; the last dimension in pairs */
    long long columns;  /* blocks of a row */
    long long step[2];  /* to the next one: amax, scale */
} mica_quantize_scales_args;

/* Blocks whose elements stay in registers: neighbours of a row, or of several rows. */
typedef struct mica_quantize_once_args {
    mica_quantize_memory memory;
    mica_layout blocks;
    long long rows, columns; /* of a block */
    long long row_step[3];   /* from row to row: code, value, index */
    long long column_step;   /* of the index */
    int vectors;             /* of a row */
} mica_quantize_once_args;

#endif
