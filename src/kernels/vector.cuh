/* SPDX-License-Identifier: Apache-2.0
 * N elements at once: one access of up to 16 bytes, or several of 16, where memory is aligned to
 * them. */
#pragma once

template <typename W, typename T>
__device__ __forceinline__ void load_word(const T *p, T *v)
{
    W w = *(const W *)p;
    memcpy(v, &w, sizeof w);
}

template <typename W, typename T>
__device__ __forceinline__ void store_word(T *p, const T *v)
{
    W w;
    memcpy(&w, v, sizeof w);
    *(W *)p = w;
}

template <int N, typename T> __device__ __forceinline__ void load_vector(const T *p, T *v)
{
    constexpr int BYTES = N * (int)sizeof(T);
    static_assert((BYTES & (BYTES - 1)) == 0, "whole accesses");
    if constexpr (BYTES > 16) {
        load_vector<N / 2>(p, v);
        load_vector<N / 2>(p + N / 2, v + N / 2);
    } else if constexpr (BYTES == 16)
        load_word<uint4>(p, v);
    else if constexpr (BYTES == 8)
        load_word<uint2>(p, v);
    else if constexpr (BYTES == 4)
        load_word<u32>(p, v);
    else if constexpr (BYTES == 2)
        load_word<u16>(p, v);
    else
        load_word<u8>(p, v);
}

template <int N, typename T> __device__ __forceinline__ void store_vector(T *p, const T *v)
{
    constexpr int BYTES = N * (int)sizeof(T);
    static_assert((BYTES & (BYTES - 1)) == 0, "whole accesses");
    if constexpr (BYTES > 16) {
        store_vector<N / 2>(p, v);
        store_vector<N / 2>(p + N / 2, v + N / 2);
    } else if constexpr (BYTES == 16)
        store_word<uint4>(p, v);
    else if constexpr (BYTES == 8)
        store_word<uint2>(p, v);
    else if constexpr (BYTES == 4)
        store_word<u32>(p, v);
    else if constexpr (BYTES == 2)
        store_word<u16>(p, v);
    else
        store_word<u8>(p, v);
}

/* The first n of N elements (n = N where memory is known to be aligned and whole). */
template <int N, typename T>
__device__ __forceinline__ void load_some(const T *p, T *v, int n, bool aligned)
{
    if (aligned && n == N) {
        load_vector<N>(p, v);
        return;
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        if (i < n) v[i] = p[i];
}

template <int N, typename T>
__device__ __forceinline__ void store_some(T *p, const T *v, int n, bool aligned)
{
    if (aligned && n == N) {
        store_vector<N>(p, v);
        return;
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        if (i < n) p[i] = v[i];
}

/* ---- the same, widened to an arithmetic type and narrowed from it ---- */

/* Elements as they were read. Several may be in flight before the first is unpacked: an unpacking
 * beside its load would wait for it. */
template <typename T, int N> struct lanes {
    static constexpr int BYTES = N * (int)sizeof(T), WORDS = BYTES < 4 ? 1 : BYTES / 4;
    u32 words[WORDS];
};

/* `whole`: the address is aligned for accesses of all N, or of 16 bytes. */
template <int N, typename T> __device__ __forceinline__ lanes<T, N> fetch(const T *from, bool whole)
{
    lanes<T, N> r;
    T e[N];
    if (N > 1 && whole) {
        if constexpr (lanes<T, N>::BYTES >= 4) {
            load_vector<lanes<T, N>::WORDS>((const u32 *)from, r.words);
            return r;
        }
        load_vector<N>(from, e);
    } else {
#pragma unroll
        for (int k = 0; k < N; k++) e[k] = from[k];
    }
    memcpy(r.words, e, sizeof e);
    return r;
}

template <typename T, int N, typename A> __device__ __forceinline__ void unpack(const lanes<T, N> &r, A *v)
{
    T e[N];
    memcpy(e, r.words, sizeof e);
#pragma unroll
    for (int k = 0; k < N; k++) v[k] = widen<A>(e[k]);
}

/* The same to f32. Pairs of bf16 take two instructions; what the compiler makes of single elements are
 * three. */
template <typename T, int N> __device__ __forceinline__ void unpack_pairs(const lanes<T, N> &r, float *v) { unpack(r, v); }
template <int N> __device__ __forceinline__ void unpack_pairs(const lanes<bf16, N> &r, float *v)
{
    if constexpr (N == 1)
        unpack(r, v);
    else
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            v[2 * i] = __uint_as_float(r.words[i] << 16);
            v[2 * i + 1] = __uint_as_float(r.words[i] & 0xffff0000u);
        }
}

/* `whole`: the address is aligned for one access of all N. */
template <typename T, int N, typename A>
__device__ __forceinline__ void load_elements(const T *from, bool whole, A *v)
{
    T e[N];
    if (N > 1 && whole) {
        load_vector<N>(from, e);
    } else {
#pragma unroll
        for (int k = 0; k < N; k++) e[k] = from[k];
    }
#pragma unroll
    for (int k = 0; k < N; k++) v[k] = widen<A>(e[k]);
}

template <typename T, int N, typename A>
__device__ __forceinline__ void store_elements(T *to, bool whole, const A *v)
{
    T e[N];
#pragma unroll
    for (int k = 0; k < N; k++) e[k] = narrow<T>(v[k]);
    if (N > 1 && whole) {
        store_vector<N>(to, e);
    } else {
#pragma unroll
        for (int k = 0; k < N; k++) to[k] = e[k];
    }
}
