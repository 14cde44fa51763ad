/* SPDX-License-Identifier: Apache-2.0
 * N neighbours with one scale, to and from the words that hold their codes. Constants: CODE; POWER (scales are
 * powers of two), HAS_GLOBAL; types code_t (u8 for four bits), scale_t, real. */
#pragma once
#include "kernels/vector.cuh"
#include "ops/quantize/quantize.cuh"

constexpr bool NIBBLES = CODE == CODE_E2M1 || CODE == CODE_S4 || CODE == CODE_U4;
constexpr bool EIGHT = CODE == CODE_E4M3 || CODE == CODE_E5M2;
constexpr int BITS = NIBBLES ? 4 : CODE == CODE_S32 ? 32 : 8;

template <int N> struct codes {
    u32 words[N * BITS < 32 ? 1 : N * BITS / 32];
};

QUANTIZE u32 code_at(const u32 *words, int e) { return words[e * BITS / 32] >> e * BITS % 32 & (u32)((1ull << BITS) - 1); }

/* ---- quotients ---- */

/* A scale and its reciprocal. `sound`: quotients may be made of products. */
struct divisor {
    real scale, by;
    bool sound;
};

QUANTIZE divisor divisor_of(double scale) { return divisor{(real)scale, 0, false}; }
QUANTIZE divisor divisor_of(float scale)
{
    const float a = fabsf(scale);
    return divisor{(real)scale, (real)__frcp_rn(scale), (POWER && !HAS_GLOBAL) || (a > 0x1p-60f && a < 0x1p60f)};
}

/* v / scale, rounded once: by Markstein's theorem a quotient off by less than a unit in its last place is corrected
 * by its remainder, which an fma gives exactly, times the correctly rounded reciprocal. Where the remainder is
 * too small for f32, the quotient is below 2^-40 and no code but 0. first: its sign is the quotient's. */
QUANTIZE float quotient_of(float v, const divisor &d, float first)
{
    if (POWER && !HAS_GLOBAL) return first; /* products with powers of two are exact, or round as quotients do */
    const float next = __fmaf_rn(__fmaf_rn(-d.scale, first, v), d.by, first);
    const float last = __fmaf_rn(__fmaf_rn(-d.scale, next, v), d.by, next);
    return __uint_as_float((__float_as_uint(last) & 0x7fffffffu) | (__float_as_uint(first) & 0x80000000u));
}

/* ---- codes ---- */

template <typename T> QUANTIZE T byte_as(u8 byte)
{
    T r;
    memcpy(&r, &byte, sizeof byte);
    return r;
}
template <typename T> QUANTIZE u8 byte_of(T v)
{
    u8 r;
    memcpy(&r, &v, sizeof r);
    return r;
}

/* Numbers of the type, or what rounds to them. */
template <int N, typename T> QUANTIZE void pack(const T *v, codes<N> &c)
{
#pragma unroll
    for (int w = 0; w < (int)sizeof c.words / 4; w++) c.words[w] = 0;
    if constexpr (EIGHT && has_pairs<code_t>::value && same_type<T, float> && N > 1) {
#pragma unroll
        for (int e = 0; e < N; e += 2) c.words[e / 4] |= (u32)narrow_pair(v[e], v[e + 1], code_t()) << e % 4 * 8;
    } else {
#pragma unroll
        for (int e = 0; e < N; e++) {
            u32 code;
            if constexpr (NIBBLES) code = nibble_of(CODE, narrow_float(v[e]));
            else if constexpr (EIGHT) code = byte_of(narrow<code_t>(v[e]));
            else code = (u32)(int)v[e] & 255;
            c.words[e * BITS / 32] |= code << e * BITS % 32;
        }
    }
}

/* Integers nearest to quotients, and a zero point, in the last bits of f32: INTEGERS and half as much again
 * leaves room below. */
template <int N> QUANTIZE void pack_nearest(const float *q, float zero, codes<N> &c)
{
    const float low = (float)CODE_LOW(CODE) - zero, top = (float)CODE_TOP(CODE) - zero;
    const u32 offset = (u32)(int)zero;
#pragma unroll
    for (int w = 0; w < (int)sizeof c.words / 4; w++) c.words[w] = 0;
#pragma unroll
    for (int e = 0; e < N; e++) {
        const float near = __fadd_rn(fminf(fmaxf(q[e], low), top), 1.5f * INTEGERS);
        c.words[e * BITS / 32] |= ((__float_as_uint(near) + offset) & (u32)((1ull << BITS) - 1)) << e * BITS % 32;
    }
}

template <int N> QUANTIZE void pack_quotients(const float *q, float zero, codes<N> &c)
{
    if constexpr (!CODE_IS_FLOAT(CODE)) {
        pack_nearest<N>(q, zero, c);
    } else {
        constexpr float TOP = (float)CODE_TOP(CODE);
        float v[N];
#pragma unroll
        for (int e = 0; e < N; e++) v[e] = fminf(fmaxf(q[e], -TOP), TOP);
        pack<N>(v, c);
    }
}

/* False where products do not make them. least: of what is smaller all digits matter, too. */
template <int N> QUANTIZE bool quotients(const float *v, const divisor &d, float least, float *q)
{
    bool sound = d.sound;
#pragma unroll
    for (int e = 0; e < N; e++) {
        q[e] = __fmul_rn(v[e], d.by);
        sound = sound && fabsf(q[e]) < 0x1p60f; /* no NaN either */
        if (least > 0) sound = sound && (v[e] == 0 || fabsf(q[e]) > least);
    }
    if (!sound) return false;
#pragma unroll
    for (int e = 0; e < N; e++) q[e] = quotient_of(v[e], d, q[e]);
    return true;
}

template <int N> QUANTIZE void encode(const real *v, const divisor &d, real zero, codes<N> &c)
{
    if constexpr (same_type<real, float>) {
        float q[N];
        if (quotients<N>(v, d, 0, q)) {
            pack_quotients<N>(q, zero, c);
            return;
        }
    }
    real all[N];
#pragma unroll
    for (int e = 0; e < N; e++) all[e] = coded(CODE, v[e], d.scale, zero);
    pack<N>(all, c);
}

template <int N, typename A> QUANTIZE void decode(const codes<N> &c, A *v)
{
    if constexpr (EIGHT && same_type<A, float> && N > 1) {
#pragma unroll
        for (int e = 0; e < N; e += 2) widen_pair(code_t(), (u16)(c.words[e / 4] >> e % 4 * 8), v + e);
    } else {
#pragma unroll
        for (int e = 0; e < N; e++) {
            if constexpr (NIBBLES) v[e] = (A)value_of(CODE, code_at(c.words, e));
            else if constexpr (BITS == 32) v[e] = (A)(int)c.words[e];
            else v[e] = widen<A>(byte_as<code_t>((u8)code_at(c.words, e)));
        }
    }
}

/* ---- in memory ---- */

/* The first n, `step` apart, of four bits from the element `at` on. whole: N neighbours, aligned. */
template <int N> QUANTIZE void put_codes(void *base, s64 at, s64 step, int n, bool whole, bool in_bytes, const codes<N> &c)
{
    if (whole && n == N) {
        store_vector<N * BITS / 8>((u8 *)base + at * BITS / 8, (const u8 *)c.words);
        return;
    }
    if constexpr (!NIBBLES) {
#pragma unroll
        for (int e = 0; e < N; e++)
            if (e < n) ((u8 *)base)[at + e * step] = (u8)code_at(c.words, e);
    } else if (!in_bytes) {
#pragma unroll
        for (int e = 0; e < N; e++)
            if (e < n) put_nibble(base, at + e * step, code_at(c.words, e));
    } else {
        u8 *to = (u8 *)base + (at >> 1);
#pragma unroll
        for (int e = 0; e < N; e += 2) {
            const u32 both = c.words[e * BITS / 32] >> e * BITS % 32;
            if (e + 1 < n) to[e / 2] = (u8)both;
            else if (e < n) to[e / 2] = (u8)((to[e / 2] & 0xf0) | (both & 15));
        }
    }
}

template <int N> QUANTIZE void get_codes(const void *base, s64 at, s64 step, int n, bool whole, codes<N> &c)
{
    if (whole && n == N) {
        load_vector<N * BITS / 8>((const u8 *)base + at * BITS / 8, (u8 *)c.words);
        return;
    }
#pragma unroll
    for (int w = 0; w < (int)sizeof c.words / 4; w++) c.words[w] = 0;
#pragma unroll
    for (int e = 0; e < N; e++) {
        if (e >= n) continue;
        const s64 i = at + e * step;
        const u32 code = NIBBLES ? ((const u8 *)base)[i >> 1] >> (i & 1 ? 4 : 0) & 15 : BITS == 32 ? ((const u32 *)base)[i] : ((const u8 *)base)[i];
        c.words[e * BITS / 32] |= code << e * BITS % 32;
    }
}
