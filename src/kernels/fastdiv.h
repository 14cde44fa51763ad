/* SPDX-License-Identifier: Apache-2.0
 * Division of numbers below 2^31 by a divisor that the host knows: a product and a shift (Granlund
 * and Montgomery 1994). Host and device share this file, so no types but C's own. */
#ifndef MICA_KERNELS_FASTDIV_H
#define MICA_KERNELS_FASTDIV_H

typedef struct mica_fastdiv {
    unsigned divisor, factor, shift;
} mica_fastdiv;

/* divisor: 1 to 2^31 - 1 */
static inline mica_fastdiv mica_fastdiv_make(unsigned divisor)
{
    mica_fastdiv f = {divisor, 0, 0};
    while ((1ull << f.shift) < divisor) f.shift++;
    unsigned long long power = 1ull << f.shift;
    f.factor = (unsigned)(((power - divisor) << 32) / divisor + 1);
    return f;
}

static inline unsigned mica_fastdiv_of(mica_fastdiv f, unsigned n)
{
    unsigned high = (unsigned)((unsigned long long)n * f.factor >> 32);
    return (high + n) >> f.shift;
}

#endif
