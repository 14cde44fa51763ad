/* SPDX-License-Identifier: Apache-2.0
 * Accumulators of Hopper's attention kernels to memory. A thread has two rows, eight apart; of columns those
 * numbered 8 i + 2 (lane % 4) and the next one: elements 4 i, 4 i + 1 (first row), 4 i + 2, 4 i + 3. */
#pragma once
#include "cuda/device/vector.cuh"

/* Four words of each thread of a quad: thread t receives word t of all. */
__device__ __forceinline__ void transpose_quad(u32 (&w)[4])
{
    const int lane = (int)threadIdx.x;
#pragma unroll
    for (int by = 1; by < 4; by *= 2)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i & by) continue;
            const bool high = lane & by;
            const u32 got = __shfl_xor_sync(0xffffffffu, high ? w[i] : w[i + by], by);
            if (high)
                w[i] = got;
            else
                w[i + by] = got;
        }
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

template <typename T, int N>
__device__ __forceinline__ void make_pair(const rows_of<T> &r, const float (&sum)[N], int i, int half, T (&pair)[2])
{
#pragma unroll
    for (int e = 0; e < 2; e++) pair[e] = narrow<T>(r.real[half] ? sum[4 * i + 2 * half + e] * r.factor[half] : 0);
}

/* By whole warps: vectors of 16 bytes of 16-bit numbers where there are four blocks of 8 columns. All of them
 * without a branch between: shuffles of one wait beside those of others. */
template <typename T, int N>
__device__ __forceinline__ void store_rows(const rows_of<T> &r, const float (&sum)[N])
{
    constexpr int BLOCKS = N / 4, VECTORS = sizeof(T) == 2 ? BLOCKS / 4 * 4 : 0;
    const int quarter = (int)threadIdx.x % 4;
    if (r.whole) {
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int block = 0; block < VECTORS; block += 4) {
                u32 w[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    T pair[2];
                    make_pair(r, sum, block + i, half, pair);
                    memcpy(&w[i], pair, 4);
                }
                transpose_quad(w);
                const int column = 8 * (block + quarter);
                if (r.there[half] && column < r.columns) store_vector<4>((u32 *)(r.to[half] + column), w);
            }
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int i = VECTORS; i < BLOCKS; i++) {
                T pair[2];
                make_pair(r, sum, i, half, pair);
                const int column = 8 * i + 2 * quarter;
                if (r.there[half] && column < r.columns) store_vector<2>(r.to[half] + column, pair);
            }
        return;
    }
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int i = 0; i < BLOCKS; i++) {
            T pair[2];
            make_pair(r, sum, i, half, pair);
            const int column = 8 * i + 2 * quarter;
#pragma unroll
            for (int e = 0; e < 2; e++)
                if (r.there[half] && column + e < r.columns) r.to[half][(column + e) * r.stride] = pair[e];
        }
}
