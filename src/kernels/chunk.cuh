/* SPDX-License-Identifier: Apache-2.0
 * Chunks: elements that lie together in memory, which a block takes to shared memory and back in whole
 * accesses, whatever they are made of: short rows, small planes. All threads of the block call these, each
 * with its number; `whole`: memory is aligned to 16 bytes, as shared memory has to be. */
#pragma once
#include "kernels/mma.cuh"
#include "kernels/vector.cuh"

/* Begins to read; what is there after chunk_wait. */
template <int BLOCK, typename T>
__device__ __forceinline__ void chunk_read(T *to, const T *from, int count, bool whole, int thread)
{
    constexpr int N = 16 / (int)sizeof(T);
    const int copied = whole ? count / N * N : 0;
#pragma unroll 1
    for (int i = thread * N; i < copied; i += BLOCK * N) copy_async<16>(shared_address(to + i), from + i, 16);
#pragma unroll 4
    for (int i = copied + thread; i < count; i += BLOCK) to[i] = from[i];
}

__device__ __forceinline__ void chunk_wait()
{
    copies_commit();
    copies_wait<0>();
    __syncthreads();
}

/* Writes what all threads put there before they met. */
template <int BLOCK, typename T>
__device__ __forceinline__ void chunk_write(T *to, const T *from, int count, bool whole, int thread)
{
    constexpr int N = 16 / (int)sizeof(T);
    const int copied = whole ? count / N * N : 0;
#pragma unroll 4
    for (int i = thread * N; i < copied; i += BLOCK * N) {
        T v[N];
        load_vector<N>(from + i, v);
        store_vector<N>(to + i, v);
    }
#pragma unroll 4
    for (int i = copied + thread; i < count; i += BLOCK) to[i] = from[i];
}
