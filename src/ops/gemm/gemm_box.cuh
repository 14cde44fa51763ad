/* SPDX-License-Identifier: Apache-2.0
 * sm_90: a box of a matrix of a batch, by the copy engine. RANK: batch dimensions, slowest first in `item`. */
#pragma once
#include "cuda/device/tma.cuh"

template <int RANK>
__device__ __forceinline__ void load_box(u32 to, const mica_tensor_map *map, u32 bar, int x, int y, const int *item)
{
    if constexpr (RANK == 0) tma_load(to, map, bar, x, y);
    if constexpr (RANK == 1) tma_load(to, map, bar, x, y, item[0]);
    if constexpr (RANK == 2) tma_load(to, map, bar, x, y, item[1], item[0]);
    if constexpr (RANK == 3) tma_load(to, map, bar, x, y, item[2], item[1], item[0]);
}
