/* SPDX-License-Identifier: Apache-2.0
 * What becomes of a logit, one text for the reference, the CPU's loops and the kernel, so that all
 * have the same bits: see mica/sample.h. Products and sums are those of random_body.h, each rounded
 * by itself; everything behind the exponential is integers. */
#ifndef MICA_OPS_SAMPLE_BODY_H
#define MICA_OPS_SAMPLE_BODY_H

#include "ops/random/random_body.h"
#include "ops/sample/sample_args.h"

/* Weights are below 2^40 but for one; 2^22 of them sum below 2^63. */
enum { SAMPLE_BITS = 40, SAMPLE_COLUMNS = 1 << 22, SAMPLE_TOP = 1024 };
/* The bits of 2^-40 in f32: what is below has no weight, and the key 0. Keys are the bits of shares
 * from there on, in the order of weights. */
#define SAMPLE_LEAST ((127u - SAMPLE_BITS) << 23)
#ifdef RANDOM_ROUNDED
#define SAMPLE_NEVER (-INFINITY_F)
#else
#define SAMPLE_NEVER (-INFINITY)
#endif

/* A row's parameters. */
typedef struct sample_row {
    float temperature, top_p, min_p, repetition, presence, frequency, typical_p;
    long long top_k;
    unsigned long long random;
    int greedy;
} sample_row;

RANDOM float sample_number(mica_sample_operand o, long long row)
{
    return o.at ? ((const float *)o.at)[row * o.row] : (float)o.value;
}

RANDOM unsigned long long sample_word(mica_sample_operand o, long long row)
{
    return o.at ? ((const unsigned long long *)o.at)[row * o.row]
                : (unsigned long long)(long long)o.value;
}

RANDOM void sample_row_make(const mica_sample_args *a, long long row, sample_row *r)
{
    const float temperature = sample_number(a->temperature, row);
    r->greedy = !(temperature >= 1e-5f);
    r->temperature = temperature < 0x1.fffffep127f ? temperature : 0x1.fffffep127f;
    r->top_p = sample_number(a->top_p, row);
    r->min_p = sample_number(a->min_p, row);
    r->repetition = sample_number(a->repetition, row);
    r->presence = sample_number(a->presence, row);
    r->frequency = sample_number(a->frequency, row);
    r->typical_p = sample_number(a->typical_p, row);
    r->top_k =
        a->top_k.at ? ((const int *)a->top_k.at)[row * a->top_k.row] : (long long)a->top_k.value;
    if (r->top_k <= 0 || r->top_k > a->columns) r->top_k = a->columns;
    const unsigned long long seed = sample_word(a->seed, row), offset = sample_word(a->offset, row);
    const unsigned key[2] = {(unsigned)seed, (unsigned)(seed >> 32)};
    unsigned w[4] = {(unsigned)offset, (unsigned)(offset >> 32), a->seed.at ? 0 : (unsigned)row,
                     0x80000000u};
    mica_philox(key, w);
    r->random = random_wide(w);
}

/* Whether bit c of a row's words is set. */
RANDOM int sample_bit(mica_sample_operand o, long long row, long long c)
{
    return (int)(((const unsigned *)o.at)[row * o.row + (c >> 5) * o.column] >> (c & 31) & 1);
}

/* A logit behind mask, bias and penalties; then behind temperature, which keeps their order.
 * Neither is NaN or -0. */
RANDOM float sample_penalised(const sample_row *r, float v, int allowed, float bias, int count,
                              int in_prompt)
{
    v = add32(v, bias);
    if (count > 0 || in_prompt) v = v > 0 ? v / r->repetition : mul32(v, r->repetition);
    if (count > 0) v = add32(add32(v, -mul32(r->frequency, (float)count)), -r->presence);
    return v == v && allowed ? add32(v, 0) : SAMPLE_NEVER;
}
RANDOM float sample_tempered(const sample_row *r, float v)
{
    return r->greedy ? v : add32(v / r->temperature, 0);
}

/* The same of a probability. */
RANDOM float sample_probability(float v, int allowed)
{
    return v > 0 && allowed ? v : SAMPLE_NEVER;
}

/* exp(v - max) for v up to max, which is not -inf; 0 far below: 2^-n times a polynomial about the
 * multiple of log 2 next to the exponent. */
RANDOM float sample_exp(float v, float max)
{
    const float d = v == max ? 0 : add32(max, -v);
    const float near = d < 28 ? d : 28;
    const int n = (int)add32(mul32(near, 0x1.715476p0f), 0.5f);
    const float r =
        add32(add32(mul32((float)n, 0x1.62ep-1f), -near), mul32((float)n, 0x1.0bfbe8p-15f));
    float p = step32(1 / 720.0f, r, 1 / 120.0f);
    p = step32(p, r, 1 / 24.0f);
    p = step32(p, r, 1 / 6.0f);
    p = step32(p, r, 0.5f);
    p = step32(p, r, 1);
    p = step32(p, r, 1);
    const unsigned power = (unsigned)(127 - n) << 23;
    float scale;
    memcpy(&scale, &power, sizeof scale);
    p = mul32(p, scale);
    p = p < 1 ? p : 1;
    return d < 28 ? p : 0;
}

/* Share of the largest, 0 to 1. */
RANDOM float sample_share(int probabilities, float v, float max)
{
    if (!probabilities) return sample_exp(v, max);
    return v == max ? 1 : v > 0 ? v / max : 0;
}

RANDOM unsigned sample_key(float share)
{
    unsigned bits;
    memcpy(&bits, &share, sizeof bits);
    return bits >= SAMPLE_LEAST ? bits : 0;
}

RANDOM unsigned long long sample_weight(unsigned key)
{
    const unsigned long long m = (key & 0x7fffffu) | 0x800000u;
    const int n = 127 - (int)(key >> 23);
    return key == 0 ? 0 : (m << (SAMPLE_BITS - 23)) >> n;
}

/* The least key that min_p leaves. */
RANDOM unsigned sample_least(const sample_row *r)
{
    const float least = r->min_p < 1 ? r->min_p : 1;
    unsigned bits;
    memcpy(&bits, &least, sizeof bits);
    return r->min_p > 0 && bits > SAMPLE_LEAST ? bits : SAMPLE_LEAST;
}

/* Where top_p or typical_p ends: the cumulated weight, of `sum`, that has to be reached. */
RANDOM unsigned long long sample_reached(float part, unsigned long long sum)
{
    if (!(part < 1)) return sum;
    if (!(part > 0)) return 1;
    const double exact = mul64(part, 0x1p32);
    unsigned long long p = (unsigned long long)exact;
    if ((double)p < exact) p++;
    const unsigned long long low = p * (sum & 0xffffffffu) + 0xffffffffu;
    const unsigned long long reached = p * (sum >> 32) + (low >> 32);
    return reached ? reached : 1;
}

/* What is left to draw from: keys from `least` on, from the element `cut` on in the order of
 * weights, and that deviate from `mean` by `deviation` at most. */
typedef struct sample_left {
    unsigned least, mean, deviation;
    unsigned long long cut;
} sample_left;

RANDOM sample_left sample_left_from(unsigned least)
{
    const sample_left all = {least, 0, 0xffffffffu, 0};
    return all;
}

/* A key and its column, in the order of weights. */
RANDOM unsigned long long sample_element(unsigned key, long long c)
{
    return (unsigned long long)key << 32 | (unsigned)(SAMPLE_COLUMNS - c);
}

/* -log share, in 2^-24: below 2^29. */
RANDOM unsigned sample_distance(unsigned key)
{
    float share;
    memcpy(&share, &key, sizeof share);
    return (unsigned)(int)mul32(random_log32(share), -0x1p24f);
}

/* Its products with weights, below 2^63 (x exp(-x) is below 1/2), are summed by halves of a word.
 */
RANDOM unsigned long long sample_moment(unsigned key)
{
    return sample_weight(key) * sample_distance(key);
}

/* The mean distance: a quotient below 2^29. */
RANDOM unsigned sample_mean(unsigned long long high, unsigned long long low, unsigned long long sum)
{
    unsigned mean = 0;
    high += low >> 32;
    for (int bit = 31; bit >= 0; bit--) {
        high = 2 * high + (low >> bit & 1);
        if (high < sum) continue;
        high -= sum;
        mean |= 1u << bit;
    }
    return mean;
}

/* How far -log probability is from the entropy: what both have in common cancels out. */
RANDOM unsigned sample_deviation(unsigned key, unsigned mean)
{
    const unsigned distance = sample_distance(key);
    return distance > mean ? distance - mean : mean - distance;
}

/* Whether an element, not 0, is left. */
RANDOM int sample_is_left(const sample_left *l, unsigned key, long long c)
{
    if (key < l->least || sample_element(key, c) < l->cut) return 0;
    return l->deviation == 0xffffffffu || sample_deviation(key, l->mean) <= l->deviation;
}

/* The cumulated weight that the chosen token reaches. */
RANDOM unsigned long long sample_target(const sample_row *r, unsigned long long sum)
{
    return random_high(r->random, sum) + 1;
}

/* log(share / sum of shares) by the distance to the largest and the sum of weights. */
RANDOM float sample_logprob(int probabilities, float v, float max, unsigned long long sum)
{
    const float all = random_log32(mul32((float)sum, 0x1p-40f));
    const float own = probabilities ? random_log32(sample_share(1, v, max))
                      : v == max    ? 0
                                    : add32(v, -max);
    return add32(own, -all);
}

/* Bits in the order of numbers. */
RANDOM unsigned sample_order(float v)
{
    unsigned bits;
    memcpy(&bits, &v, sizeof bits);
    return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}
RANDOM float sample_unorder(unsigned bits)
{
    bits ^= bits >> 31 ? 0x80000000u : 0xffffffffu;
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* Values, of equal ones columns, in the order of top_tokens, in 54 bits; back again. */
RANDOM unsigned long long sample_rank(float v, long long c)
{
    return (unsigned long long)sample_order(v) << 22 | (unsigned)(SAMPLE_COLUMNS - 1 - c);
}
RANDOM long long sample_rank_column(unsigned long long rank)
{
    return SAMPLE_COLUMNS - 1 - (long long)(rank & (SAMPLE_COLUMNS - 1));
}

#endif
