/* SPDX-License-Identifier: Apache-2.0
 * grouped_gemm with plain multiply-adds: blocks take tiles of c in turn, group after group. Prologue: those
 * of gemm_cuda.cuh and grouped_gemm_device.cuh. */
#include "kernels/overlap.cuh"
#include "ops/gemm/cuda/gemm_cuda.cuh"
#include "ops/grouped_gemm/cuda/grouped_gemm_device.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    grouped_cuda(const __grid_constant__ grouped_args args)
{
    overlap_wait();
    const gemm_args &gemm = args.gemm;
    const gemm_shape &s = gemm.shape;
    __shared__ slices held;
    const worker w((int)threadIdx.x);
    const s64 down_all = (s.m + TILE_M - 1) / TILE_M, across = (s.n + TILE_N - 1) / TILE_N;
    group_walk<s64> walk;
    walk.begin(args, down_all, across);

    for (s64 tile = blockIdx.x;; tile += gridDim.x) {
        const group_walk<s64>::found g = walk.find(args, tile, down_all, across);
        if (!g.there) return;
        const s64 rows = FORM == FORM_TERMS ? s.m : g.rows, down = (rows + TILE_M - 1) / TILE_M;
        const s64 row_0 = g.tile % down * TILE_M, col_0 = g.tile / down * TILE_N;
        const companions of = companions_of(args, g.group, g.from);
        const factors f = {(const a_t *)gemm.a + in_group(args.a, g.group, g.from) + row_0 * s.a_m,
                           (const b_t *)gemm.b + in_group(args.b, g.group, g.from) + col_0 * s.b_n,
                           rows - row_0,
                           s.n - col_0,
                           FORM == FORM_TERMS ? g.rows : s.k,
                           row_0,
                           col_0,
                           of.scale_a,
                           of.scale_b};
        sum_t sum[MICRO_M][MICRO_N] = {};
        sum_tile(sum, gemm, f, w, held);
#pragma unroll
        for (int i = 0; i < MICRO_M; i++) {
            const int row = w.row(i);
#pragma unroll
            for (int j = 0; j < MICRO_N; j++) {
                const int col = w.col(j);
                if (row >= f.rows || col >= f.cols) continue;
                const s64 r = row_0 + row, n = col_0 + col;
                c_t *c = (c_t *)gemm.c + in_group(args.c, g.group, g.from) + r * s.c_m + n * s.c_n;
                *c = finish(gemm, of, r, n, sum[i][j], c);
            }
        }
    }
}
