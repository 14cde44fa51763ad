/* SPDX-License-Identifier: Apache-2.0
 * Rows of tiles in shared memory by ordinary accesses, in the layout that the copy engine gives them
 * (chunks of 64 columns of 16 bits, rows of 128 bytes, swizzled), and rows of accumulators to memory. */
#pragma once
#include "cuda/device/mbarrier.cuh"
#include "cuda/device/vector.cuh"
#include "ops/attention/attention_sm90_bwd_args.h"

constexpr int ROW = 128; /* bytes of a row in shared memory */

__device__ __forceinline__ void store_words(u32 to, const u32 (&w)[4])
{
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(__uint_as_float(w[0])),
                 "f"(__uint_as_float(w[1])), "f"(__uint_as_float(w[2])), "f"(__uint_as_float(w[3])) : "memory");
}

/* By a warp: what the copy engine does, for pointers that it cannot take: element by element, so that it is
 * slow, and with few registers. */
template <typename T>
__device__ __forceinline__ void copy_tile(unsigned char *to, const attention_sm90_source &s, int chunks, int rows,
                                          int row, int head, int batch, int lane)
{
#pragma unroll 1
    for (int i = lane; i < chunks * rows * 64; i += 32) {
        const int line = i / 64, y = line % rows, x = line / rows * 64 + i % 64;
        T v = {0};
        if (x < s.columns && row + y < s.rows)
            v = ((const T *)s.data)[batch * s.stride[0] + head * s.stride[1] + (row + y) * s.stride[2] + x];
        *(T *)(to + line * ROW + (i % 64 / 8 ^ line % 8) * 16 + i % 8 * 2) = v;
    }
    async_fence();
    __syncwarp();
}

/* By a warp, rows [from, rows) of all chunks; async_fence and __syncwarp come after. */
__device__ __forceinline__ void clear_rows(u32 tile, int chunks, int rows, int from, int lane)
{
    const u32 zeros[4] = {0, 0, 0, 0};
#pragma unroll 1
    for (int c = 0; c < chunks; c++)
        for (int at = from * ROW + lane * 16; at < rows * ROW; at += 32 * 16)
            store_words(tile + c * rows * ROW + at, zeros);
}

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

/* Row `half` of this thread, by vectors of 16 bytes where there are four blocks of 8 columns. Sums of rows
 * that are not `real` are not looked at: 0 is stored. */
template <typename T, int N>
__device__ __forceinline__ void store_row(const attention_sm90_result &r, const float (&sum)[N], s64 batch, s64 head,
                                          s64 row, bool there, int half, bool real, float factor)
{
    T *to = (T *)r.data + batch * r.stride[0] + head * r.stride[1] + row * r.stride[2];
    const int quarter = (int)threadIdx.x % 4;
    const bool vectors = sizeof(T) == 2 && r.whole;
#pragma unroll
    for (int block = 0; block < N / 4; block += 4) {
        T pair[4][2];
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                pair[i][e] = narrow<T>(block + i < N / 4 && real ? sum[4 * (block + i) % N + 2 * half + e] * factor : 0);
        if (vectors && block + 4 <= N / 4) {
            u32 w[4];
#pragma unroll
            for (int i = 0; i < 4; i++) memcpy(&w[i], pair[i], 4);
            transpose_quad(w);
            const int column = 8 * (block + quarter);
            if (there && column < r.columns) store_vector<4>((u32 *)(to + column), w);
            continue;
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int column = 8 * (block + i) + 2 * quarter;
            if (there && r.whole && column < r.columns)
                store_vector<2>(to + column, pair[i]);
            else
#pragma unroll
                for (int e = 0; e < 2; e++)
                    if (there && column + e < r.columns) to[(column + e) * r.stride[3]] = pair[i][e];
        }
    }
}
