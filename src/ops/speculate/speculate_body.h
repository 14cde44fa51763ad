/* SPDX-License-Identifier: Apache-2.0
 * What decides, one text for the reference, the CPU and the kernel, so that all have the same bits:
 * see mica/speculate.h. */
#ifndef MICA_OPS_SPECULATE_BODY_H
#define MICA_OPS_SPECULATE_BODY_H

#include "ops/random/random_body.h"
#include "ops/speculate/speculate_args.h"

/* 2^22 weights up to 2^40 sum to 2^62 at most. */
enum { SPECULATE_COLUMNS = 1 << 22, SPECULATE_DRAFTS = 1 << 16 };

RANDOM long long speculate_integer(mica_speculate_operand o, long long b, long long i)
{
    const long long at = b * o.batch + i * o.position;
    return o.wide ? ((const long long *)o.at)[at] : ((const int *)o.at)[at];
}

/* Drafts of a sequence. */
RANDOM long long speculate_length(const mica_speculate_args *a, long long b)
{
    const long long n = a->lengths.at ? speculate_integer(a->lengths, b, 0) : a->drafts_most;
    return n < 0 ? 0 : n < a->drafts_most ? n : a->drafts_most;
}

RANDOM void speculate_words(const mica_speculate_args *a, long long b, long long i, unsigned *w)
{
    const unsigned long long seed =
        a->seeds.at ? (unsigned long long)speculate_integer(a->seeds, b, 0) : a->seed;
    const unsigned long long offset =
        a->offsets.at ? (unsigned long long)speculate_integer(a->offsets, b, 0) : a->offset;
    const unsigned key[2] = {(unsigned)seed, (unsigned)(seed >> 32)};
    w[0] = (unsigned)offset, w[1] = (unsigned)(offset >> 32);
    w[2] = a->seeds.at ? 0 : (unsigned)b, w[3] = 0x80000001u + (unsigned)i;
    mica_philox(key, w);
}

RANDOM float speculate_probability(float v)
{
    return v > 0 ? v < 1 ? v : 1 : 0;
}

RANDOM int speculate_accepts(const mica_speculate_args *a, long long b, long long i, float p,
                             float q)
{
    unsigned w[4];
    speculate_words(a, b, i, w);
    return mul64(random_open64(random_wide(w)), q) < p;
}

/* Weight of a column where q is left out of p; q is 0 where p is drawn from. */
RANDOM unsigned long long speculate_weight(float p, float q)
{
    const float rest = add32(p, -q);
    return rest > 0 ? (unsigned long long)mul32(rest, 0x1p40f) : 0;
}

/* The cumulated weight that the drawn token reaches. */
RANDOM unsigned long long speculate_target(const mica_speculate_args *a, long long b, long long i,
                                           unsigned long long sum)
{
    unsigned w[4];
    speculate_words(a, b, i, w);
    return random_high(random_wide(w + 2), sum) + 1;
}

#endif
