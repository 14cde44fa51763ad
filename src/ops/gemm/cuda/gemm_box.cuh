/* SPDX-License-Identifier: Apache-2.0
 * sm_90: what the products of a batch share: boxes of an item by TMA, and shares of K. RANK: batch
 * dimensions, slowest first. Constant: SPLIT (blocks that share K out). */
#pragma once
#include "kernels/tma.cuh"
#include "ops/gemm/gemm_args.h"

template <int RANK> __device__ __forceinline__ void find_item(const gemm_shape &s, int number, int *item)
{
#pragma unroll
    for (int i = RANK - 1; i > 0; i--) {
        const int count = (int)s.batch[i], above = number / count;
        item[i] = number - above * count;
        number = above;
    }
    if constexpr (RANK > 0) item[0] = number;
}

/* stride: of the operand from item to item; 0 where all have the same. */
template <int RANK>
__device__ __forceinline__ void load_box(u32 to, const mica_tensor_map *map, u32 bar, int x, int y, const int *item,
                                         const long long *stride)
{
    int z[3];
#pragma unroll
    for (int i = 0; i < RANK; i++) z[i] = stride[i] ? item[i] : 0;
    if constexpr (RANK == 0) tma_load(to, map, bar, x, y);
    if constexpr (RANK == 1) tma_load(to, map, bar, x, y, z[0]);
    if constexpr (RANK == 2) tma_load(to, map, bar, x, y, z[1], z[0]);
    if constexpr (RANK == 3) tma_load(to, map, bar, x, y, z[2], z[1], z[0]);
}

/* The stages of K that are a block's, of so many. */
struct extent {
    int first, end;
};

__device__ __forceinline__ extent stages_of(int fills, int rank)
{
    if constexpr (SPLIT == 1) return extent{0, fills};
    const int each = fills / SPLIT, more = fills % SPLIT;
    const int first = rank * each + min(rank, more);
    return extent{first, first + each + (rank < more)};
}
