/* SPDX-License-Identifier: Apache-2.0
 * Scores that decide which experts are chosen, and the order of numbers, one text for the
 * reference, the CPU's loops and the kernels: the same bits, by the means of
 * ops/random/random_body.h. */
#ifndef MICA_OPS_MOE_ROUTE_BODY_H
#define MICA_OPS_MOE_ROUTE_BODY_H

#ifndef RANDOM_ROUNDED
#include "ops/random/random_body.h"
#endif

/* What DeepSeek-V3 adds to a sum of sigmoids. */
#define ROUTE_LEAST 1e-20

/* ---- exp(v) of v <= 0, within 2 units in the last place; below the smallest subnormal it is 0
 * ---- */

/* v = n log 2 + r, in two steps: log 2 has a part whose products with n are exact. */
RANDOM float route_exp32(float v)
{
    const float x = v >= -104 ? v : -104;
    const int n = (int)add32(mul32(x, 0x1.715476p+0f), -0.5f), half = n / 2;
    const float r =
        add32(add32(x, mul32((float)-n, 0x1.62e4p-1f)), mul32((float)-n, 0x1.7f7d1cp-20f));
    float p = step32(1 / 5040.0f, r, 1 / 720.0f);
    p = step32(p, r, 1 / 120.0f);
    p = step32(p, r, 1 / 24.0f);
    p = step32(p, r, 1 / 6.0f);
    p = step32(p, r, 0.5f);
    p = step32(p, r, 1);
    p = step32(p, r, 1);
    const unsigned low = (unsigned)(half + 127) << 23, high = (unsigned)(n - half + 127) << 23;
    float a, b;
    memcpy(&a, &low, sizeof a);
    memcpy(&b, &high, sizeof b);
    p = mul32(mul32(p, a), b);
    return v >= -104 ? p : v != v ? v : 0;
}

RANDOM double route_exp64(double v)
{
    const double x = v >= -746 ? v : -746;
    const int n = (int)add64(mul64(x, 0x1.71547652b82fep+0), -0.5), half = n / 2;
    const double r =
        add64(add64(x, mul64(-n, 0x1.62e42fefap-1)), mul64(-n, 0x0.00000000039ef35793c7p-1));
    double p = step64(1 / 6227020800.0, r, 1 / 479001600.0);
    p = step64(p, r, 1 / 39916800.0);
    p = step64(p, r, 1 / 3628800.0);
    p = step64(p, r, 1 / 362880.0);
    p = step64(p, r, 1 / 40320.0);
    p = step64(p, r, 1 / 5040.0);
    p = step64(p, r, 1 / 720.0);
    p = step64(p, r, 1 / 120.0);
    p = step64(p, r, 1 / 24.0);
    p = step64(p, r, 1 / 6.0);
    p = step64(p, r, 0.5);
    p = step64(p, r, 1);
    p = step64(p, r, 1);
    const unsigned long long low = (unsigned long long)(half + 1023) << 52;
    const unsigned long long high = (unsigned long long)(n - half + 1023) << 52;
    double a, b;
    memcpy(&a, &low, sizeof a);
    memcpy(&b, &high, sizeof b);
    p = mul64(mul64(p, a), b);
    return v >= -746 ? p : v != v ? v : 0;
}

/* ---- scores ---- */

/* 1 - s, too, with all its digits. */
RANDOM float route_sigmoid32(float v, float *rest)
{
    const float e = route_exp32(v < 0 ? v : -v), by = add32(1, e), small = e / by, large = 1 / by;
    *rest = v < 0 ? large : small;
    return v < 0 ? small : large;
}
RANDOM double route_sigmoid64(double v, double *rest)
{
    const double e = route_exp64(v < 0 ? v : -v), by = add64(1, e), small = e / by, large = 1 / by;
    *rest = v < 0 ? large : small;
    return v < 0 ? small : large;
}

/* Of exponentials of a softmax, 1 or less: their sum as integers is the same in any order. */
RANDOM unsigned long long route_fixed32(float e)
{
    return (unsigned long long)(long long)mul32(e, 0x1p40f);
}
RANDOM unsigned long long route_fixed64(double e)
{
    return (unsigned long long)(long long)mul64(e, 0x1p52);
}
RANDOM float route_sum32(unsigned long long sum)
{
    return mul32((float)(long long)sum, 0x1p-40f);
}
RANDOM double route_sum64(unsigned long long sum)
{
    return mul64((double)(long long)sum, 0x1p-52);
}

/* ---- the order of numbers, NaN above all, and back; 0 is below all ---- */

RANDOM unsigned route_key32(float v)
{
    unsigned bits;
    memcpy(&bits, &v, sizeof bits);
    bits = v == 0 ? 0 : bits;
    return v != v ? ~0u : bits >> 31 ? ~bits : bits | 0x80000000u;
}
RANDOM float route_value32(unsigned key)
{
    const unsigned bits = key >> 31 ? key & 0x7fffffffu : ~key;
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}
RANDOM unsigned long long route_key64(double v)
{
    unsigned long long bits;
    memcpy(&bits, &v, sizeof bits);
    bits = v == 0 ? 0 : bits;
    return v != v ? ~0ull : bits >> 63 ? ~bits : bits | 0x8000000000000000u;
}
RANDOM double route_value64(unsigned long long key)
{
    const unsigned long long bits = key >> 63 ? key & 0x7fffffffffffffffu : ~key;
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

#endif
