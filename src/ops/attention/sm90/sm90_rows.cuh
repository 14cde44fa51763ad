/* SPDX-License-Identifier: Apache-2.0
 * Rows of tiles in shared memory by ordinary accesses, in the layout that TMA gives them
 * (chunks of 64 columns of 16 bits, rows of 128 bytes, swizzled), and gradients to memory. */
#pragma once
#include "kernels/mbarrier.cuh"
#include "kernels/shared.cuh"
#include "kernels/vector.cuh"
#include "ops/attention/backward_sm90/backward_args.h"
#include "ops/attention/sm90/sm90_store.cuh"

constexpr int ROW = 128; /* bytes of a row in shared memory */

/* By a warp: what TMA does, for pointers that it cannot take: element by element, so that it is
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
            shared_store(tile + c * rows * ROW + at, zeros);
}

/* Two rows of this thread, `row` and the eighth behind it; sums that are not `real` are not looked at. */
template <typename T, int N>
__device__ __forceinline__ void store_result(const attention_sm90_result &a, const float (&sum)[N], s64 batch, s64 head,
                                             int row, const bool (&there)[2], const bool (&real)[2], float factor)
{
    T *to = (T *)a.data + batch * a.stride[0] + head * a.stride[1] + row * a.stride[2];
    store_rows(rows_of<T>{{to, to + 8 * a.stride[2]},
                          {there[0], there[1]},
                          {real[0], real[1]},
                          {factor, factor},
                          a.stride[3],
                          a.columns,
                          a.whole != 0},
               sum);
}
