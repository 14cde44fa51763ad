/* SPDX-License-Identifier: Apache-2.0
 * Winograd: from points to tiles of the result, with alpha, beta and the epilogue. Constants:
 * those of winograd.cuh and the epilogue's; BLOCK; CHANNEL_FAST; out_t. */
#include "ops/conv/winograd/winograd.cuh"
#include "kernels/epilogue.cuh"
#include "kernels/overlap.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK) conv_winograd_result(const __grid_constant__ conv_winograd_args a)
{
    overlap_wait();
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= a.count) return;
    const place p = find_place<CHANNEL_FAST>(a, i);
    if (!p.exists) return;
    const conv_winograd_image &g = a.image;
    sum_t m[POINTS][POINTS], r[TILE][TILE];
    load_points(a, i, m);
    both_axes<points_to_result>(m, r);
    const sum_t alpha = (sum_t)a.alpha, beta = (sum_t)a.beta;
    out_t *row = (out_t *)a.to + p.n * g.n + p.channel * g.c + p.y * g.s[0] + p.x * g.s[1];
    s64 residual_row = p.n * a.residual_n + p.channel * a.residual_c + p.y * a.residual_s[0] + p.x * a.residual_s[1];
#pragma unroll
    for (int y = 0; y < TILE; y++, row += g.s[0], residual_row += a.residual_s[0]) {
        out_t *out = row;
        s64 residual = residual_row;
#pragma unroll
        for (int x = 0; x < TILE; x++, out += g.s[1], residual += a.residual_s[1]) {
            if (p.y + y >= g.size[0] || p.x + x >= g.size[1]) continue;
            sum_t v = r[y][x] * alpha;
            if (beta != 0) v += beta * widen<sum_t>(*out);
            *out = narrow<out_t>(epilogue(a.epilogue, v, p.channel, residual));
        }
    }
}
