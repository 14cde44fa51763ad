/* SPDX-License-Identifier: Apache-2.0
 * Cosine and sine of position * frequency; host and device share this file, so no types but C's
 * own. The product is formed in turns as two doubles, whole quarters are taken off, and what is
 * left, at most an eighth of a turn, goes into a Taylor series: no error grows with the position.
 * On the host <math.h> and <string.h> come first. */
#ifndef MICA_OPS_ROPE_ROPE_ANGLE_ARGS_H
#define MICA_OPS_ROPE_ROPE_ANGLE_ARGS_H

#define ROPE_INLINE __attribute__((always_inline)) static inline

/* The rest in radians, at most pi / 4 and a little; returns the quarters that were taken off, of
 * which the last two bits count. The frequency is `frequency` + `below`: what rounding it to a
 * double takes away is 2^-14 of a radian at position 2^40. */
ROPE_INLINE unsigned rope_reduce(double position, double frequency, double below, double *rest)
{
    /* 1 / (2 pi) */
    const double high = 0x1.45f306dc9c883p-3, low = -0x1.6b01ec5417056p-57;
    double per = frequency * high,
           per_low = fma(frequency, high, -per) + (frequency * low + below * high);
    double turns = position * per, turns_low = fma(position, per, -turns) + position * per_low;
    turns -= rint(turns);
    /* The sum has the nearest whole number in its last bits. */
    const double shift = 0x1.8p52;
    double shifted = 4 * turns + shift;
    unsigned long long bits;
    memcpy(&bits, &shifted, sizeof bits);
    turns -= 0.25 * (shifted - shift); /* exact, and turns_low may be all that is left */
    *rest = (turns + turns_low) * 0x1.921fb54442d18p2;
    return (unsigned)bits;
}

/* Quarter turns exchange the two and change their signs. */
ROPE_INLINE void rope_place_f32(unsigned quarters, float c, float s, float *cosine, float *sine)
{
    float first = quarters & 1 ? s : c, second = quarters & 1 ? c : s;
    *cosine = (quarters + 1) & 2 ? -first : first;
    *sine = quarters & 2 ? -second : second;
}

/* Within two units in the last place for |x| <= pi / 4. */
ROPE_INLINE void rope_quadrant_f32(float x, unsigned quarters, float *cosine, float *sine)
{
    float z = x * x;
    float s = z * (1 / 362880.0f) - 1 / 5040.0f;
    s = s * z + 1 / 120.0f;
    s = s * z - 1 / 6.0f;
    float c = z * (-1 / 3628800.0f) + 1 / 40320.0f;
    c = c * z - 1 / 720.0f;
    c = c * z + 1 / 24.0f;
    c = c * z - 0.5f;
    rope_place_f32(quarters, c * z + 1, s * z * x + x, cosine, sine);
}

ROPE_INLINE void rope_place_f64(unsigned quarters, double c, double s, double *cosine, double *sine)
{
    double first = quarters & 1 ? s : c, second = quarters & 1 ? c : s;
    *cosine = (quarters + 1) & 2 ? -first : first;
    *sine = quarters & 2 ? -second : second;
}

ROPE_INLINE void rope_quadrant_f64(double x, unsigned quarters, double *cosine, double *sine)
{
    double z = x * x;
    double s = z * (1 / 355687428096000.0) - 1 / 1307674368000.0;
    s = s * z + 1 / 6227020800.0;
    s = s * z - 1 / 39916800.0;
    s = s * z + 1 / 362880.0;
    s = s * z - 1 / 5040.0;
    s = s * z + 1 / 120.0;
    s = s * z - 1 / 6.0;
    double c = z * (-1 / 6402373705728000.0) + 1 / 20922789888000.0;
    c = c * z - 1 / 87178291200.0;
    c = c * z + 1 / 479001600.0;
    c = c * z - 1 / 3628800.0;
    c = c * z + 1 / 40320.0;
    c = c * z - 1 / 720.0;
    c = c * z + 1 / 24.0;
    c = c * z - 0.5;
    rope_place_f64(quarters, c * z + 1, s * z * x + x, cosine, sine);
}

#endif
