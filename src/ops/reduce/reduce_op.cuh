/* SPDX-License-Identifier: Apache-2.0
 * States of the family `reduce`. Constants: BY, FRONT, BEHIND (reduce_args.h), FROM_ZERO (maxima begin
 * with 0). Types x_t, acc_t, y_t. Before this reduce.cuh is included. */
#pragma once

/* Integers are put together in 64 bits. */
constexpr bool INTEGERS = same_type<acc_t, s64>;
constexpr bool FLOATING = same_type<x_t, float> || same_type<x_t, double> || same_type<x_t, f16> || same_type<x_t, bf16> ||
                          same_type<x_t, e4m3> || same_type<x_t, e5m2>;

/* A floating element as it is. */
template <typename T> struct widened {
    typedef float type;
};
template <> struct widened<double> {
    typedef double type;
};
typedef typename widened<x_t>::type element_t;

template <int B> struct state_of {
    acc_t a;
};
template <> struct state_of<REDUCE_EXP> {
    acc_t a, max;
};
template <> struct state_of<REDUCE_MOMENTS> {
    acc_t a, squares, n;
};
template <> struct state_of<REDUCE_ARG> {
    acc_t a;
    long long at; /* -1: of nothing */
};
typedef state_of<BY> state;

REDUCE s64 abs_of(s64 v) { return v < 0 ? (s64)(0 - (u64)v) : v; }

REDUCE acc_t front(x_t x)
{
    if constexpr (FRONT == REDUCE_NONZERO || FRONT == REDUCE_IS_ZERO) {
        bool zero;
        if constexpr (FLOATING) zero = widen<element_t>(x) == 0;
        else zero = widen<s64>(x) == 0;
        return (acc_t)(FRONT == REDUCE_NONZERO ? !zero : zero);
    } else {
        const acc_t v = widen<acc_t>(x);
        return FRONT == REDUCE_ABS ? abs_of(v) : FRONT == REDUCE_OPPOSITE ? opposite(v) : v;
    }
}

/* NaN wins over everything but NaN. */
REDUCE bool wins(acc_t v, acc_t best) { return v > best || (v != v && best == best); }

template <typename S> REDUCE void state_begin(S &s)
{
    s.a = BY == REDUCE_PRODUCT ? (acc_t)1 : (BY == REDUCE_MAX && !FROM_ZERO) || BY == REDUCE_ARG ? lowest(acc_t()) : (acc_t)0;
    if constexpr (BY == REDUCE_EXP) s.max = lowest(acc_t());
    if constexpr (BY == REDUCE_MOMENTS) s.squares = s.n = 0;
    if constexpr (BY == REDUCE_ARG) s.at = -1;
}

/* Of two sets (Chan, Golub and LeVeque 1979). */
template <typename S> REDUCE void merge_moments(S &s, acc_t n, acc_t mean, acc_t squares)
{
    if (n == 0) return;
    const acc_t all = s.n + n, apart = mean - s.a, share = n / all;
    s.a += apart * share;
    s.squares += squares + apart * apart * share * s.n;
    s.n = all;
}

/* About an infinite maximum the sum of exponentials is 1, or NaN if one is there. */
template <typename A> REDUCE A exponential(A v, A max)
{
    if (max == -lowest(A())) return v == max ? (A)1 : v != v ? v : (A)0;
    return max == lowest(A()) ? (A)0 : exp_of(v - max);
}

template <typename S> REDUCE void merge_exponentials(S &s, acc_t max, acc_t sum)
{
    const acc_t top = s.max > max ? s.max : max;
    s.a = (s.a == 0 ? (acc_t)0 : s.a * exponential(s.max, top)) + (sum == 0 ? (acc_t)0 : sum * exponential(max, top));
    s.max = top;
}

/* The maximum passes NaN by, the sum has it. */
template <int N, typename S> REDUCE void add_exponentials(S &s, const acc_t *v)
{
    acc_t max = lowest(acc_t()), sum = 0;
#pragma unroll
    for (int i = 0; i < N; i++) max = v[i] > max ? v[i] : max;
#pragma unroll
    for (int i = 0; i < N; i++) sum += v[i] != v[i] ? v[i] : exponential(v[i], max);
    merge_exponentials(s, max, sum);
}

template <int N, typename S> REDUCE void add_moments(S &s, const acc_t *v)
{
    acc_t mean = 0, squares = 0;
#pragma unroll
    for (int i = 0; i < N; i++) mean += v[i];
    mean *= (acc_t)1 / (acc_t)N;
#pragma unroll
    for (int i = 0; i < N; i++) squares += (v[i] - mean) * (v[i] - mean);
    merge_moments(s, (acc_t)N, mean, squares);
}

template <int N, typename S, typename Index> REDUCE void state_add(S &s, const x_t *x, Index index)
{
    acc_t v[N];
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = front(x[i]);
    if constexpr (BY == REDUCE_EXP) {
        add_exponentials<N>(s, v);
    } else if constexpr (BY == REDUCE_MOMENTS) {
        add_moments<N>(s, v);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) {
            if constexpr (BY == REDUCE_SUM) s.a += v[i];
            if constexpr (BY == REDUCE_SQUARES) s.a += v[i] * v[i];
            if constexpr (BY == REDUCE_PRODUCT) s.a *= v[i];
            if constexpr (BY == REDUCE_MAX) s.a = wins(v[i], s.a) ? v[i] : s.a;
            if constexpr (BY == REDUCE_ARG) {
                const bool same = v[i] == s.a || (v[i] != v[i] && s.a != s.a);
                if (s.at < 0 || wins(v[i], s.a) || (same && index(i) < s.at)) s.a = v[i], s.at = index(i);
            }
        }
    }
}

template <typename S> REDUCE void state_merge(S &s, const S &other)
{
    if constexpr (BY == REDUCE_SUM || BY == REDUCE_SQUARES) s.a += other.a;
    if constexpr (BY == REDUCE_PRODUCT) s.a *= other.a;
    if constexpr (BY == REDUCE_MAX) s.a = wins(other.a, s.a) ? other.a : s.a;
    if constexpr (BY == REDUCE_EXP) merge_exponentials(s, other.max, other.a);
    if constexpr (BY == REDUCE_MOMENTS) merge_moments(s, other.n, other.a, other.squares);
    if constexpr (BY == REDUCE_ARG) {
        if (other.at < 0) return;
        const bool same = other.a == s.a || (other.a != other.a && s.a != s.a);
        if (s.at < 0 || wins(other.a, s.a) || (same && other.at < s.at)) s = other;
    }
}

/* The result of a whole slice. */
template <typename S> REDUCE void store_result(const mica_reduce_args &args, long long at, const S &s)
{
    y_t *to = (y_t *)args.y + at;
    if constexpr (BY == REDUCE_ARG) {
        *to = narrow<y_t>((s64)s.at);
    } else if constexpr (INTEGERS) {
        *to = narrow<y_t>(BEHIND == REDUCE_BACK ? opposite(s.a) : BEHIND == REDUCE_NOT ? (s64)(s.a == 0) : s.a);
    } else if constexpr (BEHIND == REDUCE_VARIANCE || BEHIND == REDUCE_DEVIATION) {
        const double n = (double)args.length, left = n > args.correction ? n - args.correction : 0;
        const auto v = s.squares / (acc_t)left;
        *to = narrow<y_t>(BEHIND == REDUCE_VARIANCE ? v : sqrt_of(v));
    } else if constexpr (BY == REDUCE_EXP) {
        *to = narrow<y_t>(s.a != s.a ? s.a : s.max - s.max == 0 ? s.max + log_of(s.a) : s.max);
    } else {
        auto v = s.a;
        if constexpr (BEHIND == REDUCE_BACK) v = -v;
        if constexpr (BEHIND == REDUCE_MEAN) v = v / (acc_t)args.length;
        if constexpr (BEHIND == REDUCE_ROOT) v = sqrt_of(v);
        if constexpr (BEHIND == REDUCE_NOT) v = (acc_t)(v == 0);
        *to = narrow<y_t>(v);
    }
}
