/* SPDX-License-Identifier: Apache-2.0
 * Elements of blocks: PIECE neighbours per thread. Constants of quantize_blocks.cuh, and ELEMENTS of a
 * block, ASIDE (its scale is in a tensor). */
#include "ops/quantize_blocks/quantize_blocks.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK) dequantize_blocks(const __grid_constant__ mica_blocks_args a)
{
    constexpr int PIECES = ELEMENTS / PIECE;
    overlap_wait();
    const s64 i = (s64)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= a.count) return;
    s64 at[MICA_BLOCKS_PLACES];
    layout_offsets<MICA_BLOCKS_PLACES>(a.layout, i / PIECES, at);
    const int first = (int)(i % PIECES) * PIECE;
    const block_t b = {(const u8 *)a.at[MICA_BLOCKS_PLACE_CODE] + at[MICA_BLOCKS_PLACE_CODE], a.step[0]};
    const float scale = ASIDE ? ((const float *)a.at[MICA_BLOCKS_PLACE_SCALE])[at[MICA_BLOCKS_PLACE_SCALE]] : 1;
    value_t *to = (value_t *)a.at[MICA_BLOCKS_PLACE_VALUE] + at[MICA_BLOCKS_PLACE_VALUE] + first * a.step[1];
    float v[PIECE];
    CODER(b, first, scale, v);
    if (a.whole) {
        store_elements<value_t, PIECE>(to, true, v);
        return;
    }
#pragma unroll
    for (int e = 0; e < PIECE; e++) to[e * a.step[1]] = narrow<value_t>(v[e]);
}
