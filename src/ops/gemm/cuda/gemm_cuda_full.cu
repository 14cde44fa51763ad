/* SPDX-License-Identifier: Apache-2.0
 * gemm_cuda with what gemm_full_epilogue.cuh adds. With a gate a block sums two tiles, first that of the gates.
 * Prologue: that of gemm_cuda.cuh and of gemm_full_epilogue.cuh. */
#include "kernels/overlap.cuh"
#include "ops/gemm/cuda/gemm_cuda.cuh"
#include "ops/gemm/cuda/gemm_full.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    gemm_cuda_full(const __grid_constant__ gemm_full_args args)
{
    overlap_wait();
    const gemm_shape &s = args.gemm.shape;
    __shared__ slices held;
    const worker w((int)threadIdx.x);
    const s64 plane = (s.m + TILE_M - 1) / TILE_M * ((s.n + TILE_N - 1) / TILE_N);
    const s64 tiles = plane * s.batches;
    maximum amax = {0};

    for (s64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const place p = tile_place(s, tile);
        const s64 aux = AUX ? aux_item(args, tile / plane) : 0;
        factors f = {(const a_t *)args.gemm.a + p.a + p.row * s.a_m,
                     (const b_t *)args.gemm.b + p.b + p.col * s.b_n,
                     s.m - p.row,
                     s.n - p.col,
                     s.k,
                     p.row,
                     p.col,
                     args.gemm.scale_a,
                     args.gemm.scale_b};
        sum_t sum[MICRO_M][MICRO_N] = {}, partner[MICRO_M][MICRO_N] = {};
        sum_tile(sum, args.gemm, f, w, held);
        if constexpr (GATE) {
            f.b += args.extra.partner;
            sum_tile(partner, args.gemm, f, w, held);
        }
#pragma unroll
        for (int i = 0; i < MICRO_M; i++) {
            const int row = w.row(i);
#pragma unroll
            for (int j = 0; j < MICRO_N; j++) {
                const int col = w.col(j);
                if (row >= f.rows || col >= f.cols) continue;
                const element at = {p.row + row, p.col + col, p.r, aux};
                c_t *c = (c_t *)args.gemm.c + p.c + at.row * s.c_m + at.col * s.c_n;
                *c = finish_extra(args, at, sum[i][j], partner[i][j], c, amax);
            }
        }
    }
    if constexpr (AMAX) amax.store(args.amax);
}
