/* SPDX-License-Identifier: Apache-2.0
 * What states of reductions and scans are made of, and how lanes pass them on. */
#pragma once
#include "kernels/types.cuh"

/* Where maxima begin, and the number by whose maximum a minimum is found. */
__device__ __forceinline__ float lowest(float) { return -INFINITY_F; }
__device__ __forceinline__ double lowest(double) { return (double)-INFINITY_F; }
__device__ __forceinline__ s64 lowest(s64) { return (s64)1 << 63; }
__device__ __forceinline__ float opposite(float v) { return -v; }
__device__ __forceinline__ double opposite(double v) { return -v; }
__device__ __forceinline__ s64 opposite(s64 v) { return ~v; } /* always exists */

/* A state from another lane: get(word) is a shuffle of each of its words of 32 bits. */
template <typename S, typename Get> __device__ __forceinline__ S state_by_words(const S &s, Get get)
{
    constexpr int WORDS = (int)sizeof(S) / 4;
    u32 words[WORDS];
    memcpy(words, &s, sizeof s);
#pragma unroll
    for (int i = 0; i < WORDS; i++) words[i] = get(words[i]);
    S r;
    memcpy(&r, words, sizeof r);
    return r;
}
