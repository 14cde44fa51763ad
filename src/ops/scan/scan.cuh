/* SPDX-License-Identifier: Apache-2.0
 * What scans put together, element by element and state by state. Constants: BY (scan_args.h),
 * OPPOSITE (minima), EXCLUSIVE, REVERSE, SEGMENTED, INDEXED (positions are results), WRAP (integers wrap
 * around where they are stored). Types a_t, b_t, c_t, flag_t, out_t, index_t, acc_t. */
#pragma once
#include "kernels/layout.cuh"
#include "kernels/math.cuh"
#include "kernels/overlap.cuh"
#include "kernels/states.cuh"
#include "kernels/types.cuh"
#include "kernels/vector.cuh"
#include "ops/scan/scan_args.h"

#define SCAN __device__ __forceinline__

constexpr bool INTEGERS = same_type<acc_t, s64>;
constexpr bool LOGS = BY == SCAN_EXP || BY == SCAN_EXP_SLOPES, TWO = LOGS || BY == SCAN_MAPS;
constexpr bool CUTS = SEGMENTED || BY == SCAN_RUNS;
constexpr bool READS_B = BY == SCAN_RUNS || BY == SCAN_MAPS || BY == SCAN_EXP_SLOPES;
constexpr bool READS_C = BY == SCAN_MAPS || BY == SCAN_EXP_SLOPES;

/* ---- states ---- */

template <bool> struct second_number {};
template <> struct second_number<true> { acc_t b; };
template <bool> struct place_of {};
template <> struct place_of<true> { long long at; };
template <bool> struct beginning {};
template <> struct beginning<true> { int cut; };

/* a: sum, product, maximum; of SCAN_MAPS what 0 becomes. b: the maximum that exponentials are about; of
 * SCAN_MAPS the factor. at: position of the maximum, -1 of nothing. cut: a segment begins in it. */
struct state : second_number<TWO>, place_of<INDEXED>, beginning<CUTS> { acc_t a; };

template <typename S> SCAN S nothing()
{
    S s;
    memset(&s, 0, sizeof s);
    s.a = BY == SCAN_PRODUCT ? (acc_t)1 : BY == SCAN_MAX ? lowest(acc_t()) : (acc_t)0;
    if constexpr (TWO) s.b = LOGS ? lowest(acc_t()) : (acc_t)1;
    if constexpr (INDEXED) s.at = -1;
    if constexpr (CUTS) s.cut = 0;
    return s;
}

/* One exponential and no branch: lanes differ in whose maximum is the larger. Equal maxima may be infinite, and
 * about an infinite one the sum is 1, or NaN if one is there. */
template <typename S> SCAN S join_exponentials(const S &l, const S &r)
{
    S s = r;
    const bool rises = r.b > l.b;
    const auto top = rises ? r.b : l.b, low = rises ? l.b : r.b; /* of S: other states need no exponentials */
    const auto less = low == top ? (acc_t)1 : exp_of(low - top);
    s.a = (rises ? r.a : l.a) + (rises ? l.a : r.a) * less, s.b = top;
    if (top == -lowest(acc_t()) && s.a == s.a) s.a = 1;
    return s;
}

/* r comes behind l. */
template <typename S> SCAN S join(const S &l, const S &r)
{
    S s = r;
    if constexpr (CUTS)
        if (r.cut) return s;
    if constexpr (BY == SCAN_SUM || BY == SCAN_RUNS) s.a = l.a + r.a;
    if constexpr (BY == SCAN_PRODUCT) s.a = l.a * r.a;
    if constexpr (BY == SCAN_MAX) {
        bool later = r.a >= l.a || r.a != r.a;
        if constexpr (INDEXED) later = later && r.at >= 0;
        if (!later) s = l;
    }
    if constexpr (LOGS) s = join_exponentials(l, r);
    if constexpr (BY == SCAN_MAPS) {
        s.a = l.a == 0 ? r.a : r.a + r.b * l.a;
        s.b = l.b * r.b;
    }
    if constexpr (CUTS) s.cut = l.cut;
    return s;
}

/* ---- elements ---- */

struct element {
    a_t a;
    b_t b;
    c_t c;
    bool head, shown;
};

template <typename S> SCAN S state_of(const element &e, long long position)
{
    S s = nothing<S>();
    const acc_t v = widen<acc_t>(e.a);
    s.a = v;
    if constexpr (BY == SCAN_MAX) s.a = OPPOSITE ? opposite(v) : v;
    if constexpr (BY == SCAN_EXP) {
        s.a = v != v ? v : (acc_t)(v > lowest(acc_t()));
        s.b = v != v ? lowest(acc_t()) : v;
    }
    if constexpr (BY == SCAN_RUNS && EXCLUSIVE) s.a = widen<long long>(e.b) < 0 ? (acc_t)0 : v;
    if constexpr (BY == SCAN_MAPS) {
        s.b = widen<acc_t>(e.b);
        if constexpr (!EXCLUSIVE) s.a = v * s.b;
    }
    if constexpr (BY == SCAN_EXP_SLOPES) {
        const acc_t y = widen<acc_t>(e.c);
        const bool none = y - y != 0;
        s.a = y != y ? y : none ? (acc_t)0 : v;
        s.b = none ? lowest(acc_t()) : -y;
    }
    if constexpr (INDEXED) s.at = position;
    if constexpr (CUTS) s.cut = e.head;
    return s;
}

template <typename S> SCAN acc_t shown_of(const S &run, const element &e)
{
    if constexpr (BY == SCAN_MAX) return OPPOSITE ? opposite(run.a) : run.a;
    if constexpr (BY == SCAN_EXP) return run.a != run.a ? run.a : run.b - run.b != 0 ? run.b : run.b + log_of(run.a);
    if constexpr (BY == SCAN_RUNS) return e.shown ? run.a : (acc_t)0;
    if constexpr (BY == SCAN_MAPS) return (EXCLUSIVE ? run.a : widen<acc_t>(e.a) + run.a) * widen<acc_t>(e.c);
    if constexpr (BY == SCAN_EXP_SLOPES) {
        const acc_t x = widen<acc_t>(e.b);
        if (x != x || x == -lowest(acc_t()) || run.a != run.a) return (acc_t)NAN_F;
        return run.a == 0 || run.b - run.b != 0 ? (acc_t)0 : run.a * exp_of(x + run.b);
    }
    return run.a;
}

/* The result at an element behind `run`, which then has it, too. */
template <typename S> SCAN acc_t step(S &run, const element &e, long long position, long long *index)
{
    S before = run;
    run = join(run, state_of<S>(e, position));
    if constexpr (SEGMENTED)
        if (e.head) before = nothing<S>();
    constexpr bool EARLY = EXCLUSIVE || BY == SCAN_MAPS;
    if constexpr (INDEXED) *index = EXCLUSIVE ? before.at : run.at;
    return shown_of(EARLY ? before : run, e);
}

template <typename T> SCAN T stored(acc_t v)
{
    if constexpr (WRAP) return (T)v;
    else return narrow<T>(v);
}

/* Of SCAN_RUNS, what index and the one a step earlier say of an element at p, of n: see
 * cpu/scan_cpu.c. */
SCAN void find_run(element &e, long long earlier, bool first, long long p)
{
    const long long before = REVERSE ? p + 1 : p - 1;
    if constexpr (EXCLUSIVE) e.shown = e.head = !first && earlier == p;
    else {
        e.shown = widen<long long>(e.b) == p;
        e.head = first || earlier == before;
    }
}
