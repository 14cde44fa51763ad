/* SPDX-License-Identifier: Apache-2.0
 * Scales, and zero points, of what blocks hold: a thread each, or one for the two blocks whose zero
 * points share a byte. Constants: CODE, ENDS (of the greatest and the least, else of the largest
 * magnitude), POWER (scales are e8m0), NIBBLES (zero points are of four bits), PAIRS (and 2 in a byte are
 * one thread's, else 1), HAS_GLOBAL, BLOCK;
 * types scale_t, zero_t, real. */
#include "kernels/layout.cuh"
#include "kernels/overlap.cuh"
#include "ops/quantize/quantize.cuh"

/* Puts the scale of a block; returns its zero point. */
QUANTIZE real make(const mica_quantize_scales_args &a, s64 of, s64 to)
{
    const real high = ((const real *)a.amax)[of];
    scale_t *scale = (scale_t *)a.scale + to;
    if constexpr (!ENDS) {
        const real v = scale_of_amax(CODE, POWER, high, HAS_GLOBAL ? (real)*a.global_scale : (real)1);
        put_scale(scale, v, CODE_EXPONENT(CODE), false);
        return 0;
    } else {
        const real low = ((const real *)a.low)[of];
        put_scale(scale, scale_of_ends(CODE, low, high), 0, true);
        return zero_of_ends(CODE, low, widen<real>(*scale));
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK) quantize_scales(const __grid_constant__ mica_quantize_scales_args a)
{
    overlap_wait();
    const s64 i = (s64)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= a.layout.count) return;
    s64 at[3];
    layout_offsets<3>(a.layout, i, at);
    real zero[PAIRS];
    const s64 column = (a.layout.rank == 1 ? i : i % a.layout.dims[a.layout.rank - 1]) * PAIRS;
    const int n = column + PAIRS <= a.columns ? PAIRS : 1;
#pragma unroll
    for (int e = 0; e < PAIRS; e++) zero[e] = e < n ? make(a, at[0] + e * a.step[0], at[1] + e * a.step[1]) : (real)0;
    if constexpr (!ENDS) return;
    if constexpr (NIBBLES && PAIRS == 1) {
        put_nibble(a.zero, at[2], nibble_of(CODE, (float)zero[0]));
    } else if constexpr (PAIRS == 1) {
        ((zero_t *)a.zero)[at[2]] = narrow<zero_t>(zero[0]);
    } else {
        u8 *byte = (u8 *)a.zero + (at[2] >> 1);
        const u32 low = nibble_of(CODE, (float)zero[0]);
        *byte = (u8)(n == 2 ? low | nibble_of(CODE, (float)zero[1]) << 4 : (*byte & 0xf0) | low);
    }
}
