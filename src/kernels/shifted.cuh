/* SPDX-License-Identifier: Apache-2.0
 * 16 bytes that begin at any element: read as the one or two aligned accesses that hold them, and shifted later,
 * so that a thread may have several of them on their way. */
#pragma once
#include "kernels/vector.cuh"

struct shifted_piece {
    u32 word[8];
    int shift; /* bytes from word[0] to the first that counts */
    int bytes; /* that exist; the others of 16 are zero */
};

/* Element by element, for what lies at an end of memory. None waits for the one before. */
template <typename T> __device__ __forceinline__ void read_apart(const T *p, int count, u32 (&word)[4])
{
    constexpr int MOST = 16 / (int)sizeof(T);
    T e[MOST] = {};
#pragma unroll
    for (int i = 0; i < MOST; i++)
        if (i < count) e[i] = p[i];
    memcpy(word, e, sizeof word);
}

/* The first `count` elements from p on, of 16 bytes. Aligned accesses may reach beyond them, but not beyond the
 * memory from low to high. */
template <typename T>
__device__ __forceinline__ shifted_piece read_shifted(const T *p, int count, const char *low, const char *high)
{
    shifted_piece r = {};
    r.bytes = count * (int)sizeof(T);
    r.shift = (int)((u64)p & 15);
    const char *from = (const char *)p - r.shift;
    const bool both = r.shift + r.bytes > 16;
    if (count <= 0) return r;
    if (from >= low && from + (both ? 32 : 16) <= high) {
        load_vector<4>((const u32 *)from, r.word);
        if (both) load_vector<4>((const u32 *)(from + 16), r.word + 4);
    } else {
        read_apart(p, count, (u32(&)[4])r.word);
        r.shift = 0;
    }
    return r;
}

/* What counts of a piece: four words. */
__device__ __forceinline__ void shift_piece(const shifted_piece &r, u32 (&word)[4])
{
    u32 by_eight[6], by_four[5];
#pragma unroll
    for (int i = 0; i < 6; i++) by_eight[i] = r.shift & 8 ? r.word[i + 2] : r.word[i];
#pragma unroll
    for (int i = 0; i < 5; i++) by_four[i] = r.shift & 4 ? by_eight[i + 1] : by_eight[i];
#pragma unroll
    for (int i = 0; i < 4; i++)
        word[i] = (u32)(((u64)by_four[i + 1] << 32 | by_four[i]) >> 8 * (r.shift & 3));
    if (r.bytes < 16)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int there = r.bytes - 4 * i;
            word[i] &= there >= 4 ? ~0u : there <= 0 ? 0u : (1u << 8 * there) - 1;
        }
}
