/* SPDX-License-Identifier: Apache-2.0
 * Weights as numbers: PIECE rows of K of a column per thread, neighbouring threads along N. Constants of
 * packed_weights.cuh; type y_t. */
#include "ops/packed_weights/packed_weights.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK) dequantize_weights(const __grid_constant__ mica_packed_args a)
{
    overlap_wait();
    const s64 i = (s64)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= a.count) return;
    const s64 n = i % a.n, first = i / a.n * PIECE;
    s64 group = -1;
    int zero = 0;
    float scale = 0;
#pragma unroll
    for (int e = 0; e < PIECE; e++) {
        const s64 k = first + e;
        if (k >= a.k) break;
        const s64 g = index_of(a, k, a.groups);
        if (g >= 0 && g != group) group = g, zero = zero_of(a, g, n), scale = widen<float>(scale_of(a, g, n));
        const float v = g < 0 ? 0.0f : __fmul_rn((float)(weight_of(a, k, n) - zero), scale);
        ((y_t *)a.to)[k * a.to_k + n * a.to_n] = narrow<y_t>(v);
    }
}
