/* SPDX-License-Identifier: Apache-2.0
 * Weighted sums of the rows of each token's choices, one after the other. THREADS neighbours have a token.
 * Bytes: each chosen row once, sums once. Constants: BLOCK, THREADS (a power of two), VECTOR, WEIGHTED;
 * types x_t, y_t, place_t, weight_t, acc_t. */
#include "ops/moe_permute/moe_permute.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK) moe_unpermute(const arguments a)
{
    overlap_wait();
    const int thread = threadIdx.x % THREADS;
    for (s64 t = (s64)blockIdx.x * (BLOCK / THREADS) + threadIdx.x / THREADS; t < a.count; t += (s64)gridDim.x * (BLOCK / THREADS)) {
        const place_t *places = (const place_t *)a.places + t * a.place_token;
        const weight_t *weights = (const weight_t *)a.weights + t * a.weight_token;
        y_t *to = (y_t *)a.y + t * a.y_row;
        for (s64 i = (s64)thread * VECTOR; i < a.columns; i += THREADS * VECTOR) {
            const x_t *from = (const x_t *)a.x + (VECTOR > 1 ? i : i * a.x_column);
            acc_t sum[VECTOR] = {};
#pragma unroll (sizeof(acc_t) > 4 ? 2 : 4)
            for (int j = 0; j < a.k; j++) {
                const s64 r = (s64)places[j * a.place_slot];
                const bool there = r >= 0 && r < a.all_rows;
                acc_t v[VECTOR] = {}, w = 1;
                if constexpr (WEIGHTED) w = widen<acc_t>(weights[j * a.weight_slot]);
                if (there) load_elements<x_t, VECTOR>(from + r * a.x_row, a.whole, v);
#pragma unroll
                for (int n = 0; n < VECTOR; n++) sum[n] = there ? sum[n] + w * v[n] : sum[n];
            }
            store_elements<y_t, VECTOR>(to + (VECTOR > 1 ? i : i * a.y_column), a.whole, sum);
        }
    }
}
