/* SPDX-License-Identifier: Apache-2.0
 * One element of bf16 to and from f32, for loops that the compiler turns into vector code: no
 * branches, no calls. */
#ifndef MICA_OPS_CONVERT_CPU_BF16_H
#define MICA_OPS_CONVERT_CPU_BF16_H

#include "ops/convert/cpu/functions_f32.h"

MICA_INLINE float mica_bf16_value(uint16_t h)
{
    return mica_float_of((uint32_t)h << 16);
}

/* Nearest even; NaN stays one. The choice is made before the shift: between 32-bit numbers, it
 * leaves one of them to be shortened. */
MICA_INLINE uint16_t mica_bf16_rounded(float v)
{
    uint32_t u = mica_bits_of(v), rounded = u + 0x7fff + (u >> 16 & 1);
    return (uint16_t)((v != v ? u | 0x400000 : rounded) >> 16);
}

#endif
