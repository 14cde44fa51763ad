/* SPDX-License-Identifier: Apache-2.0
 * What quantize_body.h asks for, in C; real, rint_of, sign_of and CODE_NAME are the includer's. */
#ifndef MICA_OPS_QUANTIZE_ROUNDED_H
#define MICA_OPS_QUANTIZE_ROUNDED_H

#include <math.h>
#include <stdbool.h>
#include <string.h>

#define QUANTIZE     __attribute__((always_inline, unused)) static inline
#define div_of(a, b) ((a) / (b))
#define mul_of(a, b) ((a) * (b))
#define add_of(a, b) ((a) + (b))
#define sub_of(a, b) ((a) - (b))
#define nan_of()     ((real)NAN)

/* Adding and subtracting rounds to nearest even; what is past 2^20 saturates anyway. */
QUANTIZE float near_f32(float v)
{
    v = v > 0x1p20f ? 0x1p20f : v < -0x1p20f ? -0x1p20f : v;
    return (v + 0x1.8p23f) - 0x1.8p23f;
}
QUANTIZE double near_f64(double v)
{
    v = v > 0x1p20 ? 0x1p20 : v < -0x1p20 ? -0x1p20 : v;
    return (v + 0x1.8p52) - 0x1.8p52;
}

#endif
