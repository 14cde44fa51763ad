/* SPDX-License-Identifier: Apache-2.0
 * Rows by choices: copies, or with SCALED the gradient of what moe_unpermute adds up. THREADS neighbours
 * have a row, whose accesses are neighbours. Bytes: each row of y once, its token's once. Constants: BLOCK,
 * THREADS (a power of two), VECTOR, SCALED, WEIGHTED; types x_t, y_t, row_t, weight_t, acc_t. */
#include "ops/moe_permute/moe_permute.cuh"

template <bool scaled> __device__ __forceinline__ void put(const x_t *from, y_t *to, bool there, acc_t w, bool whole)
{
    if constexpr (scaled) {
        acc_t v[VECTOR];
        if (there) load_elements<x_t, VECTOR>(from, whole, v);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) v[i] = there ? w * v[i] : (acc_t)0;
        store_elements<y_t, VECTOR>(to, whole, v);
    } else {
        y_t v[VECTOR] = {};
        if (there) load_some<VECTOR>((const y_t *)from, v, VECTOR, whole);
        store_some<VECTOR>(to, v, VECTOR, whole);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK) moe_permute_rows(const arguments a)
{
    overlap_wait();
    const int thread = threadIdx.x % THREADS;
    for (s64 r = (s64)blockIdx.x * (BLOCK / THREADS) + threadIdx.x / THREADS; r < a.count; r += (s64)gridDim.x * (BLOCK / THREADS)) {
        const s64 c = (s64)((const row_t *)a.rows)[r * a.row_row];
        const bool there = c >= 0 && c < a.choices;
        acc_t w = 1;
        if constexpr (WEIGHTED)
            if (there) w = widen<acc_t>(((const weight_t *)a.weights)[choice_offset(a, c, a.weight_token, a.weight_slot)]);
        const x_t *from = (const x_t *)a.x + (there ? token_of(a, c) * a.x_row : 0);
        y_t *to = (y_t *)a.y + r * a.y_row;
#pragma unroll 2
        for (s64 i = (s64)thread * VECTOR; i < a.columns; i += THREADS * VECTOR)
            put<SCALED>(from + (VECTOR > 1 ? i : i * a.x_column), to + (VECTOR > 1 ? i : i * a.y_column), there, w, a.whole);
    }
}
