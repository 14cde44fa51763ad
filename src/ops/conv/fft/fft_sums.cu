/* SPDX-License-Identifier: Apache-2.0
 * Spectra of depthwise filters' gradients: a thread sums one value over a share of the images' tiles. Constants:
 * BLOCK; type sum_t. */
#include "kernels/overlap.cuh"
#include "ops/conv/fft/fft.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK) conv_fft_sums(const __grid_constant__ conv_fft_sums_args a)
{
    overlap_wait();
    const int bin = (int)(blockIdx.y * BLOCK + threadIdx.x);
    if (bin >= a.bins) return;
    u32 i = blockIdx.x, share = i / a.groups;
    const s64 group = i - share * a.groups;
    const u32 parts = (u32)(a.parts[0] * a.parts[1]);
    i = share, share = i / parts;
    const int part = (int)(i - share * parts);
    const s64 shift = part / a.parts[1] * a.part + part % a.parts[1];
    const s64 first = share * a.each, end = first + a.each < a.rows ? first + a.each : a.rows;
    const point *x = (const point *)((const sum_t *)a.image + group * a.group + shift * a.row) + bin;
    const point *g = (const point *)((const sum_t *)a.gradient + group * a.group) + bin;
    point *to = (point *)a.sums + (s64)blockIdx.x * a.bins + bin;
    point sum = a.add ? *to : point{0, 0};
    for (s64 row = first; row < end; row++) sum = sum + x[row * a.row / 2] * conjugate(g[row * a.row / 2]);
    *to = sum;
}
