/* SPDX-License-Identifier: Apache-2.0
 * The end of a filter gradient whose pixels were split: adds up the parts of each element in their
 * order, so that the bits do not depend on the grid. Types: out_t, acc_t; constant BLOCK. */
#include "kernels/overlap.cuh"
#include "kernels/types.cuh"
#include "ops/conv/cuda/conv_parts_args.h"

extern "C" __global__ void __launch_bounds__(BLOCK) conv_parts(const __grid_constant__ conv_parts_args a)
{
    overlap_wait();
    const s64 i = blockIdx.x * (s64)BLOCK + threadIdx.x;
    if (i >= a.count) return;
    const acc_t *part = (const acc_t *)a.parts + i;
    out_t *out = (out_t *)a.out + i;
    acc_t sum = 0;
#pragma unroll 8
    for (int s = 0; s < a.splits; s++, part += a.count) sum += *part;
    sum *= (acc_t)a.alpha;
    if (a.beta != 0) sum += (acc_t)a.beta * widen<acc_t>(*out);
    *out = narrow<out_t>(sum);
}
