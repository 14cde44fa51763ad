/* SPDX-License-Identifier: Apache-2.0
 * Scales that are powers of two; host and device share this file. */
#ifndef MICA_OPS_QUANTIZE_POWER_H
#define MICA_OPS_QUANTIZE_POWER_H

/* floor(log2 |v|) - exponent within the ends of e8m0, -127 and 127; 128 where v is no finite
 * number. bits: v as f64. */
__attribute__((always_inline)) static inline int mica_quantize_exponent(long long bits,
                                                                        int exponent)
{
    const int field = (int)(bits >> 52 & 0x7ff), e = field - 1023 - exponent;
    return field == 0x7ff ? 128 : e < -127 ? -127 : e > 127 ? 127 : e;
}

#endif
