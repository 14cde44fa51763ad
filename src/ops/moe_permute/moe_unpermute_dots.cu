/* SPDX-License-Identifier: Apache-2.0
 * Gradients of weights: a product of rows for each choice, by a warp. Constants: BLOCK, VECTOR; types x_t,
 * dy_t, place_t, y_t (of results), acc_t. */
#include "ops/moe_permute/moe_permute.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK) moe_unpermute_dots(const arguments a)
{
    overlap_wait();
    const int lane = threadIdx.x % 32;
    for (s64 c = (s64)blockIdx.x * (BLOCK / 32) + threadIdx.x / 32; c < a.choices; c += (s64)gridDim.x * (BLOCK / 32)) {
        const s64 r = (s64)((const place_t *)a.places)[choice_offset(a, c, a.place_token, a.place_slot)];
        acc_t sum = 0;
        if (r >= 0 && r < a.all_rows) {
            const x_t *x = (const x_t *)a.x + r * a.x_row;
            const dy_t *dy = (const dy_t *)a.dy + token_of(a, c) * a.dy_row;
#pragma unroll 2
            for (s64 i = (s64)lane * VECTOR; i < a.columns; i += 32 * VECTOR) {
                acc_t v[VECTOR], g[VECTOR];
                load_elements<x_t, VECTOR>(x + (VECTOR > 1 ? i : i * a.x_column), a.whole, v);
                load_elements<dy_t, VECTOR>(dy + (VECTOR > 1 ? i : i * a.dy_column), a.whole, g);
#pragma unroll
                for (int n = 0; n < VECTOR; n++) sum += v[n] * g[n];
            }
        }
#pragma unroll
        for (int by = 1; by < 32; by *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, by);
        if (lane == 0) ((y_t *)a.y)[choice_offset(a, c, a.y_row, a.y_column)] = narrow<y_t>(sum);
    }
}
