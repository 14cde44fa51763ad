/* SPDX-License-Identifier: Apache-2.0
 * Reading for gemm with few rows or columns: vectors of 16 bytes along K, each once, and their elements.
 * Constant: VECTOR (elements of 16 bytes). */
#pragma once
#include "kernels/shifted.cuh"

template <typename T> constexpr bool IS_FLOAT8 = false;
template <> constexpr bool IS_FLOAT8<e4m3> = true;
template <> constexpr bool IS_FLOAT8<e5m2> = true;

struct vector {
    u32 word[4];
};

__device__ __forceinline__ vector read_once(const void *p)
{
    vector v;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3]) : "l"(p));
    return v;
}

/* What a read gives, and the vector that it is. */
template <bool SHIFTED> struct read_of {
    typedef vector type;
};
template <> struct read_of<true> {
    typedef shifted_piece type;
};
__device__ __forceinline__ const vector &settled(const vector &v) { return v; }
__device__ __forceinline__ vector settled(const shifted_piece &piece)
{
    vector v;
    shift_piece(piece, v.word);
    return v;
}

/* A vector that begins anywhere, of which `left` elements or more are there. */
template <bool SAFE, typename T>
__device__ __forceinline__ shifted_piece read_anywhere(const T *p, s64 left, const char *low, const char *high)
{
    return read_shifted(p, SAFE || left >= VECTOR ? VECTOR : (int)left, low, high);
}

/* The first n elements of a vector, `stride` apart; the rest is zero. All are on their way before the first is
 * used: one after the other they would cost the latency of memory each. */
template <typename T> __device__ __forceinline__ vector read_some(const T *p, s64 stride, s64 n)
{
    T e[VECTOR] = {};
    vector v;
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        if (i < n) e[i] = p[i * stride];
    memcpy(v.word, e, sizeof v);
    return v;
}

/* ---- what arithmetic takes in place of a type: f16 for 8-bit floats ---- */

template <typename T> struct widened {
    typedef T type;
};
template <> struct widened<e4m3> {
    typedef f16 type;
    static __device__ __forceinline__ u32 two(u32 pair)
    {
        u32 r;
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"((u16)pair));
        return r;
    }
};
template <> struct widened<e5m2> {
    typedef f16 type;
    static __device__ __forceinline__ u32 two(u32 pair)
    {
        u32 r;
        asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(r) : "h"((u16)pair));
        return r;
    }
};
