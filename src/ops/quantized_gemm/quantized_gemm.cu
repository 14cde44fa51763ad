/* SPDX-License-Identifier: Apache-2.0
 * quantized_gemm, any types and strides: tiles of 64 x 64 of y, whose weights are decoded once for all
 * rows of the tile into shared memory. Constants of quantized_gemm.cuh. */
#include "ops/quantized_gemm/quantized_gemm.cuh"

constexpr int TILE = 64, DEPTH = 32, SIDE = 16, PER = TILE / SIDE, THREADS = SIDE * SIDE;
static_assert(TILE * DEPTH == THREADS * PIECE, "each thread has a piece of the weights");

extern "C" __global__ void __launch_bounds__(THREADS) quantized_gemm(const __grid_constant__ mica_qgemm_args all)
{
    overlap_wait();
    __shared__ float x[DEPTH][TILE + 1];
    __shared__ float w[DEPTH][TILE + 1];
    const int t = (int)threadIdx.x, row = t / SIDE, col = t % SIDE;
    const int line = t / (DEPTH / PIECE), first = t % (DEPTH / PIECE) * PIECE;
    mica_qgemm_args a = all;
    const s64 across = (a.n - 1) / TILE + 1, tiles = ((a.m - 1) / TILE + 1) * across;
    groups_walk<s64, TILE> walk;
    if constexpr (GROUPED) walk.begin(a.ends, 0, across);
    for (s64 tile = blockIdx.x; GROUPED || tile < tiles; tile += gridDim.x) {
        tile_at at = {tile / across * TILE, tile % across * TILE, true};
        if constexpr (GROUPED) at = tile_of_group<TILE, TILE>(walk, tile, a);
        if (!at.there) break;
        const s64 m0 = at.m, n0 = at.n;
        float sum[PER][PER] = {};
        for (s64 k0 = 0; k0 < a.k; k0 += DEPTH) {
            float v[PIECE] = {};
            if (n0 + line < a.n && k0 + first < a.k) weights_at(a, n0 + line, k0 + first, v);
            __syncthreads();
#pragma unroll
            for (int e = 0; e < PIECE; e++) {
                const s64 m = m0 + line, k = k0 + first + e;
                w[first + e][line] = v[e];
                x[first + e][line] = m < a.m && k < a.k ? widen<float>(((const x_t *)a.x)[m * a.x_m + k * a.x_k]) : 0.0f;
            }
            __syncthreads();
#pragma unroll 4
            for (int k = 0; k < DEPTH; k++)
#pragma unroll
                for (int i = 0; i < PER; i++)
#pragma unroll
                    for (int j = 0; j < PER; j++) sum[i][j] += x[k][row + SIDE * i] * w[k][col + SIDE * j];
        }
#pragma unroll
        for (int i = 0; i < PER; i++)
#pragma unroll
            for (int j = 0; j < PER; j++) {
                const s64 m = m0 + row + SIDE * i, n = n0 + col + SIDE * j;
                if (m < a.m && n < a.n) put_result(a, m, n, sum[i][j]);
            }
    }
    if constexpr (GROUPED) clear_rows(a, walk.ended, THREADS);
}
