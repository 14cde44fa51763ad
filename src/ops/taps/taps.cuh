/* SPDX-License-Identifier: Apache-2.0
 * Lists of taps in kernels. Types mark (u32 or u64), real. */
#pragma once
#include "kernels/overlap.cuh"
#include "kernels/types.cuh"
#include "ops/taps/taps_args.h"

constexpr mark NO_CELL = ~(mark)0;

/* Entry e goes to a cell, or to none (below 0). The order in which entries come is not kept. */
__device__ __forceinline__ void taps_emit(const mica_taps_lists &l, s64 e, s64 cell, real weight)
{
    ((mark *)l.cells_of_entries)[e] = cell < 0 ? NO_CELL : (mark)cell;
    if (cell < 0) return;
    ((mark *)l.slots)[e] = atomicAdd((mark *)l.counts + cell, (mark)1);
    ((real *)l.weights)[e] = weight;
}
