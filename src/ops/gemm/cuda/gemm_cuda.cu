/* SPDX-License-Identifier: Apache-2.0
 * gemm with plain multiply-adds: a block computes tiles of c. Prologue: that of gemm_cuda.cuh. */
#include "kernels/overlap.cuh"
#include "ops/gemm/cuda/gemm_cuda.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    gemm_cuda(const __grid_constant__ gemm_args args)
{
    overlap_wait();
    const gemm_shape &s = args.shape;
    __shared__ slices held;
    const worker w((int)threadIdx.x);
    const s64 tiles = (s.m + TILE_M - 1) / TILE_M * ((s.n + TILE_N - 1) / TILE_N) * s.batches;

    for (s64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const place p = tile_place(s, tile);
        const factors f = {(const a_t *)args.a + p.a + p.row * s.a_m,
                           (const b_t *)args.b + p.b + p.col * s.b_n,
                           s.m - p.row,
                           s.n - p.col,
                           s.k,
                           p.row,
                           p.col,
                           args.scale_a,
                           args.scale_b};
        sum_t sum[MICRO_M][MICRO_N] = {};
        sum_tile(sum, args, f, w, held);
#pragma unroll
        for (int i = 0; i < MICRO_M; i++) {
            const int row = w.row(i);
#pragma unroll
            for (int j = 0; j < MICRO_N; j++) {
                const int col = w.col(j);
                if (row >= f.rows || col >= f.cols) continue;
                const s64 r = p.row + row, n = p.col + col;
                c_t *c = (c_t *)args.c + p.c + r * s.c_m + n * s.c_n;
                *c = finish(args, p, r, n, sum[i][j], c);
            }
        }
    }
}
