/* SPDX-License-Identifier: Apache-2.0
 * Random numbers, one text for the reference, the CPU's loops and the kernel, so that all have the
 * same bits: each product and sum is rounded by itself (the build says -ffp-contract=off, the
 * kernel defines the operations below), and functions are made of those alone. mica/random.h says
 * which words of which counter an element gets. */
#ifndef MICA_OPS_RANDOM_BODY_H
#define MICA_OPS_RANDOM_BODY_H

#include "kernels/philox.h"
#include "ops/random/random_args.h"

#ifndef RANDOM_ROUNDED
#include <math.h>
#include <string.h>
#define RANDOM      static inline __attribute__((always_inline))
#define RANDOM_CALL static __attribute__((unused, noinline)) /* not in vector loops */
RANDOM float mul32(float a, float b)
{
    return a * b;
}
RANDOM float add32(float a, float b)
{
    return a + b;
}
RANDOM float root32(float a)
{
    return sqrtf(a);
}
RANDOM double mul64(double a, double b)
{
    return a * b;
}
RANDOM double add64(double a, double b)
{
    return a + b;
}
RANDOM double root64(double a)
{
    return sqrt(a);
}
#endif

/* A step of a polynomial: p x + c. */
RANDOM float step32(float p, float x, float c)
{
    return add32(mul32(p, x), c);
}
RANDOM double step64(double p, double x, double c)
{
    return add64(mul64(p, x), c);
}

/* ---- logarithm and circle, within 4 units in the last place ---- */

/* Of normal numbers: m 2^e with m about 1, log m = 2 artanh s, s = (m - 1) / (m + 1). */
RANDOM float random_log32(float v)
{
    unsigned bits;
    memcpy(&bits, &v, sizeof bits);
    const int e = (int)(bits - 0x3f3504f3u) >> 23;
    bits -= (unsigned)e << 23;
    float m;
    memcpy(&m, &bits, sizeof m);
    const float s = add32(m, -1) / add32(m, 1), t = mul32(s, s);
    float p = step32(2 / 9.0f, t, 2 / 7.0f);
    p = step32(p, t, 2 / 5.0f);
    p = step32(p, t, 2 / 3.0f);
    p = step32(p, t, 2);
    return add32(mul32((float)e, 0x1.62e43p-1f), mul32(p, s));
}

RANDOM double random_log64(double v)
{
    unsigned long long bits;
    memcpy(&bits, &v, sizeof bits);
    const int e = (int)((long long)(bits - 0x3fe6a09e667f3bcdu) >> 52);
    bits -= (unsigned long long)(long long)e << 52;
    double m;
    memcpy(&m, &bits, sizeof m);
    const double s = add64(m, -1) / add64(m, 1), t = mul64(s, s);
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
    return add64(mul64(e, 0x1.62e42fefa39efp-1), mul64(p, s));
}

/* Cosine and sine of w 2^-32 turns: within an eighth of a turn, then mirrored by quarters. */
RANDOM void random_circle32(unsigned w, float *cosine, float *sine)
{
    const unsigned quarter = (w + 0x20000000u) >> 30;
    const float x = mul32((float)(int)(w - (quarter << 30)), 0x1.921fb6p-30f), t = mul32(x, x);
    float c = step32(-1 / 3628800.0f, t, 1 / 40320.0f);
    c = step32(c, t, -1 / 720.0f);
    c = step32(c, t, 1 / 24.0f);
    c = step32(c, t, -0.5f);
    c = step32(c, t, 1);
    float s = step32(1 / 362880.0f, t, -1 / 5040.0f);
    s = step32(s, t, 1 / 120.0f);
    s = step32(s, t, -1 / 6.0f);
    s = step32(s, t, 1);
    s = mul32(s, x);
    const float across = quarter & 1 ? s : c, up = quarter & 1 ? c : s;
    *cosine = (quarter + 1) & 2 ? -across : across;
    *sine = quarter & 2 ? -up : up;
}

RANDOM void random_circle64(unsigned long long w, double *cosine, double *sine)
{
    const unsigned long long quarter = (w + 0x2000000000000000u) >> 62;
    const double x = mul64((double)(long long)(w - (quarter << 62)), 0x1.921fb54442d18p-62);
    const double t = mul64(x, x);
    double c = step64(1 / 20922789888000.0, t, -1 / 87178291200.0);
    c = step64(c, t, 1 / 479001600.0);
    c = step64(c, t, -1 / 3628800.0);
    c = step64(c, t, 1 / 40320.0);
    c = step64(c, t, -1 / 720.0);
    c = step64(c, t, 1 / 24.0);
    c = step64(c, t, -0.5);
    c = step64(c, t, 1);
    double s = step64(1 / 355687428096000.0, t, -1 / 1307674368000.0);
    s = step64(s, t, 1 / 6227020800.0);
    s = step64(s, t, -1 / 39916800.0);
    s = step64(s, t, 1 / 362880.0);
    s = step64(s, t, -1 / 5040.0);
    s = step64(s, t, 1 / 120.0);
    s = step64(s, t, -1 / 6.0);
    s = step64(s, t, 1);
    s = mul64(s, x);
    const double across = quarter & 1 ? s : c, up = quarter & 1 ? c : s;
    *cosine = (quarter + 1) & 2 ? -across : across;
    *sine = quarter & 2 ? -up : up;
}

/* Quotient of two polynomials, highest power first. */
RANDOM double random_quotient(const double *over, const double *under, double x)
{
    double p = over[0], q = under[0];
    for (int i = 1; i < 8; i++) {
        p = step64(p, x, over[i]);
        q = step64(q, x, under[i]);
    }
    return p / q;
}

/* The normal distribution's quantile of 0 < p <= 1/2 (M. J. Wichura, "The percentage points of the
 * normal distribution", 1988), within 1e-15 of itself. */
RANDOM_CALL double random_quantile(double p)
{
    const double middle_over[] = {
        2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457,
        13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.387132872796366608};
    const double middle_under[] = {
        5226.495278852854561,  28729.085735721942674, 39307.89580009271061,  21213.794301586595867,
        5394.1960214247511077, 687.1870074920579083,  42.313330701600911252, 1};
    const double side_over[] = {7.7454501427834140764e-4, .0227238449892691845833,
                                .24178072517745061177,    1.27045825245236838258,
                                3.64784832476320460504,   5.7694972214606914055,
                                4.6303378461565452959,    1.42343711074968357734};
    const double side_under[] = {1.05075007164441684324e-9, 5.475938084995344946e-4,
                                 .0151986665636164571966,   .14810397642748007459,
                                 .68976733498510000455,     1.6763848301838038494,
                                 2.05319162663775882187,    1};
    const double far_over[] = {2.01033439929228813265e-7, 2.71155556874348757815e-5,
                               .0012426609473880784386,   .026532189526576123093,
                               .29656057182850489123,     1.7848265399172913358,
                               5.4637849111641143699,     6.6579046435011037772};
    const double far_under[] = {2.04426310338993978564e-15, 1.4215117583164458887e-7,
                                1.8463183175100546818e-5,   7.868691311456132591e-4,
                                .0148753612908506148525,    .13692988092273580531,
                                .59983220655588793769,      1};
    const double q = add64(p, -0.5);
    const bool middle = q >= -0.425;
    double x = add64(0.180625, -mul64(q, q));
    if (!middle) {
        const double r = root64(-random_log64(p));
        if (r > 5) return -random_quotient(far_over, far_under, add64(r, -5));
        x = add64(r, -1.6);
    }
    /* One quotient for lanes of either kind. */
    double over = middle ? middle_over[0] : side_over[0];
    double under = middle ? middle_under[0] : side_under[0];
#ifdef RANDOM_ROUNDED
#pragma unroll
#endif
    for (int i = 1; i < 8; i++) {
        over = step64(over, x, middle ? middle_over[i] : side_over[i]);
        under = step64(under, x, middle ? middle_under[i] : side_under[i]);
    }
    return mul64(middle ? q : -1, over / under);
}

/* ---- words to numbers ---- */

RANDOM unsigned long long random_wide(const unsigned *w)
{
    return w[0] | (unsigned long long)w[1] << 32;
}

/* Above 0 and up to 1, both excluded but for the rounding of the upper end. */
RANDOM float random_open32(unsigned w)
{
    return mul32(add32((float)(int)(w >> 1), 0.5f), 0x1p-31f);
}
RANDOM double random_open64(unsigned long long w)
{
    return mul64(add64((double)(long long)(w >> 12), 0.5), 0x1p-52);
}

/* low + span u, u of the leading `digits` bits; what rounds to high becomes low. */
RANDOM float random_uniform32(float low, float high, float span, int digits, unsigned w)
{
    const float unit = 1 / (float)(1 << digits);
    const float v = add32(mul32(mul32((float)(int)(w >> (32 - digits)), unit), span), low);
    return v < high ? v : low;
}
RANDOM double random_uniform64(double low, double high, double span, unsigned long long w)
{
    const double v = add64(mul64(mul64((double)(long long)(w >> 11), 0x1p-53), span), low);
    return v < high ? v : low;
}

/* Two by Box and Muller. */
RANDOM void random_normal32(float mean, float std, unsigned w0, unsigned w1, float *v)
{
    const float r = root32(mul32(-2, random_log32(random_open32(w0))));
    float c, s;
    random_circle32(w1, &c, &s);
    v[0] = add32(mul32(mul32(r, c), std), mean);
    v[1] = add32(mul32(mul32(r, s), std), mean);
}
RANDOM void random_normal64(double mean, double std, const unsigned *w, double *v)
{
    const double r = root64(mul64(-2, random_log64(random_open64(random_wide(w)))));
    double c, s;
    random_circle64(random_wide(w + 2), &c, &s);
    v[0] = add64(mul64(mul64(r, c), std), mean);
    v[1] = add64(mul64(mul64(r, s), std), mean);
}

RANDOM float random_exponential32(float scale, unsigned w)
{
    return mul32(add32(0, -random_log32(random_open32(w))), scale);
}
RANDOM double random_exponential64(double scale, unsigned long long w)
{
    return mul64(add64(0, -random_log64(random_open64(w))), scale);
}

/* By the quantile, in the tail where it is accurate. u: in (0, 1) */
RANDOM_CALL double random_truncated(const mica_random_numbers *n, double u)
{
    const double p = add64(mul64(u, n->mass), n->tail);
    const bool above = p > 0.5;
    const double z = random_quantile(above ? add64(1, -p) : p);
    const double v = add64(mul64((bool)n->upper != above ? -z : z, n->std), n->mean);
    return v < n->low ? n->low : v > n->high ? n->high : v;
}

/* ---- integers ---- */

RANDOM void random_words(const unsigned *key, unsigned offset, unsigned long long block,
                         unsigned again, unsigned *w)
{
    w[0] = (unsigned)block;
    w[1] = (unsigned)(block >> 32);
    w[2] = again;
    w[3] = offset;
    mica_philox(key, w);
}

/* Of dropout by rows: column, row and matrix are in the index. */
RANDOM void random_row_words(const unsigned *key, unsigned offset, unsigned long long block,
                             unsigned *w)
{
    const unsigned long long i = block * 4, column = i & ((1ull << RANDOM_ROW_AT) - 1);
    const unsigned long long row =
        i >> RANDOM_ROW_AT & ((1ull << (RANDOM_MATRIX_AT - RANDOM_ROW_AT)) - 1);
    random_words(key, offset, column / 4 | row << 32, (unsigned)(i >> RANDOM_MATRIX_AT), w);
}

/* High half of a product. */
RANDOM unsigned long long random_high(unsigned long long a, unsigned long long b)
{
    const unsigned long long a0 = (unsigned)a, a1 = a >> 32, b0 = (unsigned)b, b1 = b >> 32;
    const unsigned long long middle = a1 * b0 + (a0 * b0 >> 32), low = a0 * b1 + (unsigned)middle;
    return a1 * b1 + (middle >> 32) + (low >> 32);
}

/* The product's high half, unless its low half is one of the 2^64 mod range that would make some
 * numbers more likely (D. Lemire, "Fast random integer generation in an interval", 2019). w: words
 * of the element's block; lane: 0 or 1, the element in it */
RANDOM_CALL long long random_integer(const mica_random_numbers *n, const unsigned *key,
                                     unsigned offset, unsigned long long block, int lane,
                                     const unsigned *w)
{
    unsigned long long x = random_wide(w + 2 * lane);
    for (unsigned again = 1; x * n->range < n->rejected; again++) {
        unsigned fresh[4];
        random_words(key, offset, block, again, fresh);
        x = random_wide(fresh + 2 * lane);
    }
    return (long long)((unsigned long long)n->from + random_high(x, n->range));
}

/* Up to RANDOM_RANKED numbers: how many of as many wide words are smaller, of equal ones those
 * before. More: a Feistel network over as many bits as the largest has, again until the number is
 * one of those that there are. */
enum { RANDOM_RANKED = 256, RANDOM_ROUNDS = 8 };

RANDOM long long random_rank(long long count, const unsigned *key, unsigned offset, long long i)
{
    unsigned w[4];
    random_words(key, offset, (unsigned long long)i / 2, 0, w);
    const unsigned long long own = random_wide(w + i % 2 * 2);
    long long rank = 0;
    for (long long k = 0; k < count; k++) {
        if (k % 2 == 0) random_words(key, offset, (unsigned long long)k / 2, 0, w);
        const unsigned long long other = random_wide(w + k % 2 * 2);
        rank += other < own || (other == own && k < i);
    }
    return rank;
}

RANDOM_CALL long long random_permuted(long long count, const unsigned *key, unsigned offset,
                                      long long i)
{
    if (count <= RANDOM_RANKED) return random_rank(count, key, offset, i);
    int bits = 0;
    while ((count - 1) >> bits) bits++;
    const int low_bits = bits / 2, high_bits = bits - low_bits;
    const unsigned low_mask = (1u << low_bits) - 1, high_mask = (1u << high_bits) - 1;
    unsigned long long at = (unsigned long long)i;
    do {
        unsigned low = (unsigned)at & low_mask, high = (unsigned)(at >> low_bits);
        for (unsigned round = 0; round < RANDOM_ROUNDS; round += 2) {
            unsigned w[4];
            random_words(key, offset, low, round, w);
            high ^= w[0] & high_mask;
            random_words(key, offset, high, round + 1, w);
            low ^= w[0] & low_mask;
        }
        at = (unsigned long long)high << low_bits | low;
    } while (at >= (unsigned long long)count);
    return (long long)at;
}

/* Element `lane` of a block as the bytes of its words lie in memory. */
RANDOM long long random_bits(int bytes, int lane, const unsigned *w)
{
    if (bytes == 8) return (long long)random_wide(w + 2 * lane);
    return bytes == 4 ? w[lane] : (long long)(w[lane / 4] >> lane % 4 * 8 & 255);
}

/* ---- an element of a block ---- */

/* How many elements get their numbers from one counter. */
RANDOM int random_per_block(mica_random_draw draw, int bytes, int is_f64)
{
    if (draw == MICA_RANDOM_DRAW_BITS) return 16 / bytes;
    if (draw == MICA_RANDOM_DRAW_BERNOULLI || draw == MICA_RANDOM_DRAW_NONE) return 4;
    return is_f64 || draw == MICA_RANDOM_DRAW_INTEGERS || draw == MICA_RANDOM_DRAW_PERMUTATION ? 2
                                                                                               : 4;
}

RANDOM_CALL float random_f32(mica_random_draw draw, int digits, const mica_random_numbers *n,
                             int lane, const unsigned *w)
{
    float pair[2];
    switch (draw) {
    case MICA_RANDOM_DRAW_UNIFORM:
        return random_uniform32((float)n->low, (float)n->high, (float)n->span, digits, w[lane]);
    case MICA_RANDOM_DRAW_NORMAL:
        random_normal32((float)n->mean, (float)n->std, w[lane & ~1], w[lane | 1], pair);
        return lane & 1 ? pair[1] : pair[0];
    case MICA_RANDOM_DRAW_EXPONENTIAL:
        return random_exponential32((float)n->scale, w[lane]);
    default:
        return w[lane] < n->threshold;
    }
}

RANDOM_CALL double random_f64(mica_random_draw draw, int is_f64, const mica_random_numbers *n,
                              int lane, const unsigned *w)
{
    double pair[2];
    if (draw == MICA_RANDOM_DRAW_BERNOULLI) return w[lane] < n->threshold;
    if (!is_f64) return random_truncated(n, mul64(add64(w[lane], 0.5), 0x1p-32));
    const unsigned long long wide = random_wide(w + 2 * lane);
    switch (draw) {
    case MICA_RANDOM_DRAW_UNIFORM:
        return random_uniform64(n->low, n->high, n->span, wide);
    case MICA_RANDOM_DRAW_NORMAL:
        random_normal64(n->mean, n->std, w, pair);
        return lane ? pair[1] : pair[0];
    case MICA_RANDOM_DRAW_EXPONENTIAL:
        return random_exponential64(n->scale, wide);
    default:
        return random_truncated(n, random_open64(wide));
    }
}

RANDOM_CALL long long random_s64(mica_random_draw draw, int bytes, const mica_random_numbers *n,
                                 const unsigned *key, unsigned offset, unsigned long long block,
                                 int lane, const unsigned *w)
{
    if (draw == MICA_RANDOM_DRAW_BITS) return random_bits(bytes, lane, w);
    if (draw == MICA_RANDOM_DRAW_INTEGERS) return random_integer(n, key, offset, block, lane, w);
    return random_permuted(n->count, key, offset, (long long)block * 2 + lane);
}

#endif
