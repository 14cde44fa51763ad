/* SPDX-License-Identifier: Apache-2.0
 * Blocks of elements: one per thread. Constants of quantize_blocks.cuh. */
#include "ops/quantize_blocks/quantize_blocks.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK) quantize_blocks(const __grid_constant__ mica_blocks_args a)
{
    overlap_wait();
    const s64 i = (s64)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= a.count) return;
    s64 at[MICA_BLOCKS_PLACES];
    layout_offsets<MICA_BLOCKS_PLACES>(a.layout, i, at);
    const values_t x = {(const value_t *)a.at[MICA_BLOCKS_PLACE_VALUE] + at[MICA_BLOCKS_PLACE_VALUE], a.step[1]};
    const made_t b = {(u8 *)a.at[MICA_BLOCKS_PLACE_CODE] + at[MICA_BLOCKS_PLACE_CODE], a.step[0]};
    CODER(x, b);
}
