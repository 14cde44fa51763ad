/* SPDX-License-Identifier: Apache-2.0
 * Gumbel noise and the logits that it is a part of, one text for the reference, the CPU's loops and
 * the kernel: the same bits, by the means of ops/random/random_body.h. */
#ifndef MICA_OPS_SOFTMAX_VARIANTS_BODY_H
#define MICA_OPS_SOFTMAX_VARIANTS_BODY_H

#ifndef RANDOM_ROUNDED
#include "ops/random/random_body.h"
#endif

/* -log(1 - u) of u in (0, 1]. Small ones, which make large noise, keep all their digits: there it
 * is 2 artanh(u / (2 - u)). */
RANDOM float gumbel_exponential32(float u)
{
    const float s = u / add32(2, -u), t = mul32(s, s), rest = add32(1, -u);
    float p = step32(2 / 9.0f, t, 2 / 7.0f);
    p = step32(p, t, 2 / 5.0f);
    p = step32(p, t, 2 / 3.0f);
    p = step32(p, t, 2);
    return u < 0.29f ? mul32(p, s) : -random_log32(rest < 0x1p-25f ? 0x1p-25f : rest);
}

RANDOM double gumbel_exponential64(double u)
{
    const double s = u / add64(2, -u), t = mul64(s, s), rest = add64(1, -u);
    double p = step64(2 / 21.0, t, 2 / 19.0);
    p = step64(p, t, 2 / 17.0);
    p = step64(p, t, 2 / 15.0);
    p = step64(p, t, 2 / 13.0);
    p = step64(p, t, 2 / 11.0);
    p = step64(p, t, 2 / 9.0);
    p = step64(p, t, 2 / 7.0);
    p = step64(p, t, 2 / 5.0);
    p = step64(p, t, 2 / 3.0);
    p = step64(p, t, 2);
    return u < 0.29 ? mul64(p, s) : -random_log64(rest);
}

RANDOM float gumbel32(unsigned w)
{
    return -random_log32(gumbel_exponential32(random_open32(w)));
}
RANDOM double gumbel64(unsigned long long w)
{
    return -random_log64(gumbel_exponential64(random_open64(w)));
}

RANDOM float gumbel_at32(const unsigned *key, unsigned offset, long long i)
{
    unsigned w[4];
    random_words(key, offset, (unsigned long long)i / 4, 0, w);
    const unsigned low = i & 1 ? w[1] : w[0], high = i & 1 ? w[3] : w[2];
    return gumbel32(i & 2 ? high : low);
}
RANDOM double gumbel_at64(const unsigned *key, unsigned offset, long long i)
{
    unsigned w[4];
    random_words(key, offset, (unsigned long long)i / 2, 0, w);
    return gumbel64(i & 1 ? random_wide(w + 2) : random_wide(w));
}

/* (x scale + more + noise) by */
RANDOM float logit32(float x, float scale, float more, float noise, float by)
{
    return mul32(add32(add32(mul32(x, scale), more), noise), by);
}
RANDOM double logit64(double x, double scale, double more, double noise, double by)
{
    return mul64(add64(add64(mul64(x, scale), more), noise), by);
}

#endif
