/* SPDX-License-Identifier: Apache-2.0
 * Probabilities of CTC as numbers with an exponent of their own, and what a sequence is. Such a number
 * costs a step no exponential and no logarithm where the steps wait for each other: exponentials are
 * those of x, found while earlier steps are on their way. Constants: LOGITS (x needs lse). Types x_t, label_t, label_length_t, input_length_t, acc_t. */
#pragma once
#include "kernels/math.cuh"
#include "kernels/overlap.cuh"
#include "kernels/types.cuh"
#include "kernels/vector.cuh"
#include "ops/ctc_loss/ctc_loss_args.h"

#define CTC __device__ __forceinline__

/* ---- numbers ---- */

/* m 2^e, e a whole number; m is 0, infinite or NaN, or from 1 to below 2. As an acc_t, e loses whole numbers
 * past 2^24 only, where logarithms in that type would have as few digits. */
struct __align__(2 * sizeof(acc_t)) number { acc_t m, e; };

/* The exponent of 0: no other's is lower. */
constexpr acc_t LOWEST = same_type<acc_t, double> ? (acc_t)-1e308 : (acc_t)-3e38f;

CTC number zero() { return number{(acc_t)0, LOWEST}; }
CTC number one() { return number{(acc_t)1, (acc_t)0}; }

/* 2^e of a whole e up to 0; of very low ones something very small. The sum with 1.5 2^23 has e in its last
 * bits. */
CTC float power(float e) { return __uint_as_float(__float_as_uint(fmaxf(e, -126.0f) + 12583039.0f) << 23); }
CTC double power(double e)
{
    return __longlong_as_double((long long)((u64)__double_as_longlong(fmax(e, -1022.0) + 6755399441056767.0) << 52));
}

/* The exponent of a positive normal number, and its significand. */
CTC float exponent_of(float m) { return __uint_as_float(0x4b000000u | __float_as_uint(m) >> 23) - 8388735.0f; }
CTC float significand_of(float m) { return __uint_as_float((__float_as_uint(m) & 0x7fffffu) | 0x3f800000u); }
CTC double exponent_of(double m)
{
    return __longlong_as_double((long long)(0x4330000000000000ull | (u64)__double_as_longlong(m) >> 52)) - 4503599627371519.0;
}
CTC double significand_of(double m)
{
    return __longlong_as_double((long long)(((u64)__double_as_longlong(m) & 0xfffffffffffffull) | 0x3ff0000000000000ull));
}

CTC number normal(acc_t m, acc_t e)
{
    if (m > 0 && m - m == 0) return number{significand_of(m), e + exponent_of(m)};
    return number{m, m == 0 ? LOWEST : (acc_t)0};
}

CTC acc_t higher(acc_t a, acc_t b) { return a > b ? a : b; }

/* 0 times infinity or NaN is 0: where nothing comes from, or nothing leads to, nothing is said. */
CTC number times(const number &a, const number &b)
{
    return normal(a.m == 0 || b.m == 0 ? (acc_t)0 : a.m * b.m, a.e + b.e);
}

/* (a + b + c) times y, and the sum itself; without c: */
CTC number plus(const number &a, const number &b)
{
    const acc_t e = higher(a.e, b.e);
    return normal(a.m * power(a.e - e) + b.m * power(b.e - e), e);
}
CTC number plus(const number &a, const number &b, const number &c)
{
    const acc_t e = higher(higher(a.e, b.e), c.e);
    return normal(a.m * power(a.e - e) + b.m * power(b.e - e) + c.m * power(c.e - e), e);
}

CTC float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
CTC double multiply_add(double a, double b, double c) { return fma(a, b, c); }

/* exp(l); what is past the whole numbers of acc_t has an e that is rounded. */
CTC number exponential(acc_t l)
{
    constexpr bool WIDE = same_type<acc_t, double>;
    constexpr acc_t HIGH = WIDE ? (acc_t)0x1.62e42fefa39efp-1 : (acc_t)0x1.62e430p-1f;
    constexpr acc_t LOW = WIDE ? (acc_t)0x1.abc9e3b39803fp-56 : (acc_t)-0x1.05c610p-29f;
    if (l - l != 0) return number{l < 0 ? (acc_t)0 : l, l < 0 ? LOWEST : (acc_t)0};
    const acc_t e = rint(l * (acc_t)1.44269504088896341);
    acc_t rest = multiply_add(-e, LOW, multiply_add(-e, HIGH, l));
    rest = rest > (acc_t)1 ? (acc_t)1 : rest < (acc_t)-1 ? (acc_t)-1 : rest;
    return normal(exp_of(rest), e);
}

/* ---- sequences ---- */

/* What the walks leave of a sequence for its gradients: 1 / its probability, and the gradient of its loss. */
enum { REACHED, NO_ALIGNMENT, NOT_A_NUMBER, BAD };
struct outcome {
    number inverse;
    acc_t gradient, kind;
};

struct sequence {
    long long steps, count; /* of labels */
    long long pairs, pair;  /* of states; the first among all sequences' */
    const label_t *labels;
    const x_t *x;
    const acc_t *lse;
    bool bad;
};

CTC sequence find_sequence(const mica_ctc_loss_args &a, long long b)
{
    sequence s;
    s.steps = a.steps;
    if (a.input_lengths) s.steps = widen<long long>(((const input_length_t *)a.input_lengths)[b * a.input_length_by]);
    s.count = widen<long long>(((const label_length_t *)a.label_lengths)[b * a.label_length_by]);
    long long first = b * a.most;
    s.bad = s.steps < 0 || s.steps > a.steps || s.count < 0 || s.count > a.most;
    s.labels = (const label_t *)a.labels + b * a.labels_by[0];
    if (a.starts) {
        first = a.starts[b];
        s.bad = s.bad || first < 0 || first > a.label_count || s.count > a.label_count - first;
        s.labels = (const label_t *)a.labels + (s.bad ? 0 : first * a.labels_by[1]);
    }
    if (s.bad) s.steps = s.count = first = 0;
    s.pairs = s.count + 1;
    s.pair = first + b;
    s.x = (const x_t *)a.x + b * a.x_by[1];
    s.lse = (const acc_t *)a.lse + b;
    return s;
}

/* A label, and whether it is one: else the blank stands for it. */
CTC long long label_at(const mica_ctc_loss_args &a, const sequence &s, long long i, bool &bad)
{
    const long long label = widen<long long>(s.labels[i * a.labels_by[1]]);
    if (label >= 0 && label < a.classes && label != a.blank) return label;
    bad = true;
    return a.blank;
}

CTC acc_t log_prob(const mica_ctc_loss_args &a, const sequence &s, long long t, long long c)
{
    const acc_t l = widen<acc_t>(s.x[t * a.x_by[0] + c * a.x_by[2]]);
    if constexpr (LOGITS) return l - s.lse[t * a.batch];
    return l;
}
