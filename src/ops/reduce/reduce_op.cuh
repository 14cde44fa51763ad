/* SPDX-License-Identifier: Apache-2.0
 * States of the family `reduce`. Constants: BY, FRONT, BEHIND (reduce_args.h), FROM_ZERO (maxima begin
 * with 0). Types x_t, acc_t, y_t. Before this reduce.cuh is included. */
#pragma once

/* Integers are put together in 64 bits. Of a batch 32 do where they hold all sums, or choose. */
constexpr bool INTEGERS = same_type<acc_t, s64>;
constexpr bool TRUTHS = FRONT == REDUCE_NONZERO || FRONT == REDUCE_IS_ZERO;
constexpr bool CHOOSES = BY == REDUCE_MAX || BY == REDUCE_ARG;
constexpr bool SHORT = INTEGERS && BY != REDUCE_PRODUCT &&
                       (sizeof(x_t) == 1 || TRUTHS || (same_type<x_t, s32> && CHOOSES && FRONT != REDUCE_ABS));
template <bool IS_SHORT> struct part_of {
    typedef acc_t type;
};
template <> struct part_of<true> {
    typedef s32 type;
};
typedef part_of<SHORT>::type part_t;

/* What a thread adds to, and what merges. */
template <int B> struct state_of {
    typedef state_of running;
    acc_t a;
};
template <> struct state_of<REDUCE_EXP> {
    typedef state_of running;
    acc_t a, max;
};
/* About a value of the slice, the first that the thread has. */
struct running_moments {
    acc_t about, sum, squares;
};
template <> struct state_of<REDUCE_MOMENTS> {
    typedef running_moments running;
    acc_t a, squares, n;
};
template <> struct state_of<REDUCE_ARG> {
    typedef state_of running;
    acc_t a;
    long long at; /* -1: of nothing; where ORDERED, of a thread, the first of a unit in which it is */
};
typedef state_of<BY> state;

REDUCE s32 lowest(s32) { return (s32)1 << 31; }
REDUCE s32 opposite(s32 v) { return ~v; }
REDUCE s64 abs_of(s64 v) { return v < 0 ? (s64)(0 - (u64)v) : v; }
REDUCE s32 abs_of(s32 v) { return v < 0 ? -v : v; }

template <typename T> REDUCE bool is_zero(T x)
{
    if constexpr (FLOATING) return x == 0;
    else return widen<s64>(x) == 0;
}

REDUCE part_t front(value_t x)
{
    if constexpr (TRUTHS) {
        return (part_t)(is_zero(x) == (FRONT != REDUCE_NONZERO));
    } else {
        const part_t v = widen<part_t>(x);
        return FRONT == REDUCE_ABS ? abs_of(v) : FRONT == REDUCE_OPPOSITE ? opposite(v) : v;
    }
}

/* NaN wins over everything but NaN. */
template <typename A> REDUCE bool wins(A v, A best) { return !(v <= best) && best == best; }

/* What is nothing to a state. */
template <typename A> REDUCE A neutral()
{
    if constexpr (BY == REDUCE_PRODUCT) return (A)1;
    if constexpr ((BY == REDUCE_MAX && !FROM_ZERO) || BY == REDUCE_ARG || BY == REDUCE_EXP) return lowest(A());
    return (A)0;
}

template <typename S> REDUCE void state_begin(S &s)
{
    s.a = BY == REDUCE_EXP ? (acc_t)0 : neutral<acc_t>();
    if constexpr (BY == REDUCE_EXP) s.max = lowest(acc_t());
    if constexpr (BY == REDUCE_MOMENTS) s.squares = s.n = 0;
    if constexpr (BY == REDUCE_ARG) s.at = -1;
}
template <typename R> REDUCE void running_begin(R &r) { state_begin(r); }
REDUCE void running_begin(running_moments &r) { r.about = r.sum = r.squares = 0; }

template <typename R> REDUCE R running_end(const R &r, long long) { return r; }
template <int B = BY> REDUCE state_of<B> running_end(const running_moments &r, long long seen)
{
    if (seen == 0) return state_of<B>{0, 0, 0};
    const acc_t n = (acc_t)seen, apart = r.sum / n, squares = r.squares - r.sum * apart;
    return state_of<B>{r.about + apart, squares < 0 ? (acc_t)0 : squares, n};
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

/* The maximum passes NaN by, the sum has it. */
template <typename S> REDUCE void merge_exponentials(S &s, acc_t max, acc_t sum)
{
    const bool more = max > s.max;
    const acc_t top = more ? max : s.max, low = more ? s.max : max;
    s.a = (more ? sum : s.a) + (more ? s.a : sum) * exponential(low, top);
    s.max = top;
}

template <int N, typename S> REDUCE void add_exponentials(S &s, const acc_t *v)
{
    acc_t max = lowest(acc_t()), sum = 0;
#pragma unroll
    for (int i = 0; i < N; i++) max = v[i] > max ? v[i] : max;
#pragma unroll
    for (int i = 0; i < N; i++) sum += v[i] != v[i] ? v[i] : exponential(v[i], max);
    merge_exponentials(s, max, sum);
}

/* A unit in the last place or two off: no more than a logarithm of its sum is. */
REDUCE float exp2_near(float v)
{
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}

/* The same in f32. Of 4 and more a product and a sum in one for each, about a multiple of the maximum whose
 * rounding the sum is corrected for; differences where that rounding itself has no bound, and of fewer. */
template <int N, typename S> REDUCE void add_exponentials_near(S &s, const float *v)
{
    constexpr float LOG2_E = 1.4426950408889634f;
    float max = v[0], sum = 0;
#pragma unroll
    for (int i = 1; i < N; i++) max = fmaxf(max, v[i]);
    max = fmaxf(max, s.max);
    if (max > s.max) {
        s.a *= exp2_near((s.max - max) * LOG2_E);
        s.max = max;
    }
    const bool none = max == lowest(max);
    if (N >= 4 && (fabsf(max) < 1024.0f || none)) {
        const float base = none ? 0 : max, about = base * LOG2_E;
#pragma unroll
        for (int i = 0; i < N; i++) sum += exp2_near(fmaf(v[i], LOG2_E, -about));
        sum *= exp2_near(fmaf(-base, LOG2_E, about));
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) sum += v[i] == max ? (float)!none : exp2_near((v[i] - max) * LOG2_E);
    }
    s.a += sum;
}

/* Units whose positions follow each other: of one nothing but its first is kept. */
template <int N, typename S, typename Present, typename Position>
REDUCE void add_units(S &s, const part_t *v, Present present, Position position, bool begins)
{
    constexpr int EACH = N < UNIT ? N : UNIT;
    if (begins) s.at = position(0);
#pragma unroll
    for (int u = 0; u < N; u += EACH) {
        part_t most = v[u];
#pragma unroll
        for (int i = 1; i < EACH; i++) most = max_of(most, v[u + i]);
        if (present(u) && wins<acc_t>((acc_t)most, s.a)) s.a = (acc_t)most, s.at = position(u);
    }
}

template <int N, typename R, typename Present, typename Position>
REDUCE void running_add(R &r, const value_t *x, Present present, Position position, bool begins)
{
    part_t v[N];
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = present(i) ? front(x[i]) : neutral<part_t>();
    if constexpr (BY == REDUCE_EXP && same_type<acc_t, float>) {
        constexpr int EACH = N < 16 ? N : 16;
#pragma unroll
        for (int i = 0; i < N; i += EACH) add_exponentials_near<EACH>(r, v + i);
    } else if constexpr (BY == REDUCE_EXP) {
        add_exponentials<N>(r, v);
    } else if constexpr (BY == REDUCE_MOMENTS) {
        if (begins) r.about = v[0];
#pragma unroll
        for (int i = 0; i < N; i++) {
            const acc_t apart = present(i) ? v[i] - r.about : (acc_t)0;
            r.sum += apart, r.squares += apart * apart;
        }
    } else if constexpr (BY == REDUCE_SUM || (BY == REDUCE_MAX)) {
        part_t part = v[0];
#pragma unroll
        for (int i = 1; i < N; i++) part = BY == REDUCE_SUM ? part + v[i] : max_of(part, v[i]);
        r.a = BY == REDUCE_SUM ? r.a + (acc_t)part : max_of(r.a, (acc_t)part);
    } else if constexpr (BY == REDUCE_ARG && ORDERED) {
        add_units<N>(r, v, present, position, begins);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) {
            if constexpr (BY == REDUCE_SQUARES) r.a += v[i] * v[i];
            if constexpr (BY == REDUCE_PRODUCT) r.a *= v[i];
            if constexpr (BY == REDUCE_ARG) {
                const acc_t a = (acc_t)v[i];
                const bool same = a == r.a || (a != a && r.a != r.a);
                if (present(i) && (r.at < 0 || wins(a, r.a) || (same && position(i) < r.at)))
                    r.a = a, r.at = position(i);
            }
        }
    }
}

template <typename S> REDUCE void state_merge(S &s, const S &other)
{
    if constexpr (BY == REDUCE_SUM || BY == REDUCE_SQUARES) s.a += other.a;
    if constexpr (BY == REDUCE_PRODUCT) s.a *= other.a;
    if constexpr (BY == REDUCE_MAX) s.a = max_of(s.a, other.a);
    if constexpr (BY == REDUCE_EXP) merge_exponentials(s, other.max, other.a);
    if constexpr (BY == REDUCE_MOMENTS) merge_moments(s, other.n, other.a, other.squares);
    if constexpr (BY == REDUCE_ARG) {
        if (other.at < 0) return;
        const bool same = other.a == s.a || (other.a != other.a && s.a != s.a);
        if (s.at < 0 || wins(other.a, s.a) || (same && other.at < s.at)) s = other;
    }
}

/* The last ones first: of equals the first stays. */
template <typename S, typename Element> REDUCE void state_settle(S &s, long long length, Element element)
{
    if constexpr (BY == REDUCE_ARG) {
        const long long first = s.at;
        if (first < 0) return;
#pragma unroll
        for (int i = UNIT - 1; i >= 0; i--) {
            if (first + i >= length) continue;
            const x_t x = element(first + i);
            lanes<x_t, 1> raw;
            value_t v;
            memcpy(raw.words, &x, sizeof x);
            widen_access(raw, &v);
            const acc_t a = (acc_t)front(v);
            if (a == s.a || (a != a && s.a != s.a)) s.at = first + i;
        }
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
