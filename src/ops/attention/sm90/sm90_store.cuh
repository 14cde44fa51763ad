/* SPDX-License-Identifier: Apache-2.0
 * Accumulators of Hopper's attention kernels to memory. A thread has two rows, eight apart; of columns those
 * numbered 8 i + 2 (lane % 4) and the next one: elements 4 i, 4 i + 1 (first row), 4 i + 2, 4 i + 3. */
#pragma once
#include "kernels/vector.cuh"

/* Two words of both threads of a pair: an even one receives the first of both, an odd one the second. */
__device__ __forceinline__ void transpose_pair(u32 (&w)[2])
{
    const bool odd = threadIdx.x % 2;
    const u32 got = __shfl_xor_sync(0xffffffffu, odd ? w[0] : w[1], 1);
    w[0] = odd ? got : w[0];
    w[1] = odd ? w[1] : got;
}

/* Where a thread's two rows go. */
template <typename T> struct rows_of {
    T *to[2];         /* column 0 */
    bool there[2];    /* they are written */
    bool real[2];     /* else 0 is, and sums are not looked at */
    float factor[2];  /* of sums */
    s64 stride;       /* of columns */
    int columns;
    bool whole;       /* columns lie side by side, aligned to vectors */
};

/* Two neighbouring columns as they are stored. A mask for two is less work than a choice for each. */
template <typename T>
__device__ __forceinline__ void make_pair(const rows_of<T> &r, int half, float low, float high, u32 *words)
{
    const T pair[2] = {narrow<T>(low * r.factor[half]), narrow<T>(high * r.factor[half])};
    memcpy(words, pair, sizeof pair);
#pragma unroll
    for (int w = 0; w < (int)sizeof(T) / 2; w++) words[w] &= r.real[half] ? 0xffffffffu : 0;
}

/* Of block i. */
template <typename T, int N>
__device__ __forceinline__ void make_pair(const rows_of<T> &r, const float (&sum)[N], int i, int half, u32 *words)
{
    make_pair(r, half, sum[4 * i + 2 * half], sum[4 * i + 2 * half + 1], words);
}

/* By whole warps: vectors of 8 bytes, of 16-bit numbers from two blocks of 8 columns where there are two. All of
 * them without a branch between: shuffles of one wait beside those of others. */
template <typename T, int N> __device__ __forceinline__ void store_rows(const rows_of<T> &r, const float (&sum)[N])
{
    constexpr int BLOCKS = N / 4, WORDS = (int)sizeof(T) / 2, PAIRED = WORDS == 1 ? BLOCKS / 2 * 2 : 0;
    const int quarter = (int)threadIdx.x % 4, own = 2 * quarter, paired = 8 * (quarter % 2) + 4 * (quarter / 2);
    const int columns[2] = {r.there[0] ? r.columns : 0, r.there[1] ? r.columns : 0};
    if (r.whole) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            T *const to = r.to[half] + paired, *const rest = r.to[half] + own;
#pragma unroll
            for (int i = 0; i < PAIRED; i += 2) {
                u32 first[WORDS], second[WORDS];
                make_pair(r, sum, i, half, first);
                make_pair(r, sum, i + 1, half, second);
                u32 w[2] = {first[0], second[0]};
                transpose_pair(w);
                if (8 * i < columns[half] - paired) store_vector<2>((u32 *)(to + 8 * i), w);
            }
#pragma unroll
            for (int i = PAIRED; i < BLOCKS; i++) {
                u32 words[WORDS];
                make_pair(r, sum, i, half, words);
                if (8 * i < columns[half] - own) store_vector<WORDS>((u32 *)(rest + 8 * i), words);
            }
        }
        return;
    }
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int i = 0; i < BLOCKS; i++) {
            u32 words[WORDS];
            T pair[2];
            make_pair(r, sum, i, half, words);
            memcpy(pair, words, sizeof pair);
#pragma unroll
            for (int e = 0; e < 2; e++)
                if (8 * i + e < columns[half] - own) r.to[half][(own + 8 * i + e) * r.stride] = pair[e];
        }
}

/* Columns of block i, of 16, that changed places so that a thread has four side by side. */
template <typename T, int N>
__device__ __forceinline__ void make_four(const rows_of<T> &r, const float (&sum)[N], int i, int half,
                                          u32 (&words)[sizeof(T)])
{
    const int at = 8 * i + 2 * half;
    make_pair(r, half, sum[at], sum[at + 4], words);
    make_pair(r, half, sum[at + 1], sum[at + 5], words + sizeof(T) / 2);
}

/* As store_rows, by vectors of four, for accumulators of blocks whose columns changed places. */
template <typename T, int N> __device__ __forceinline__ void store_fours(const rows_of<T> &r, const float (&sum)[N])
{
    constexpr int BLOCKS = N / 8;
    const int own = (int)threadIdx.x % 4 * 4;
    const int columns[2] = {r.there[0] ? r.columns - own : 0, r.there[1] ? r.columns - own : 0};
    u32 words[sizeof(T)];
    if (r.whole) {
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int i = 0; i < BLOCKS; i++) {
                make_four(r, sum, i, half, words);
                if (16 * i < columns[half]) store_vector<sizeof(T)>((u32 *)(r.to[half] + own + 16 * i), words);
            }
        return;
    }
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int i = 0; i < BLOCKS; i++) {
            T four[4];
            make_four(r, sum, i, half, words);
            memcpy(four, words, sizeof four);
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (16 * i + e < columns[half]) r.to[half][(own + 16 * i + e) * r.stride] = four[e];
        }
}
