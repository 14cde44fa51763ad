/* SPDX-License-Identifier: Apache-2.0
 * One value in all elements of a tensor: what rows keep that belong to no sequence.
 *
 * Prologue: type to_t. */
#include "kernels/overlap.cuh"
#include "kernels/types.cuh"
#include "ops/attention/cuda/attention_cuda_args.h"

extern "C" __global__ void __launch_bounds__(256) attention_clear(const attention_clear_args args)
{
    overlap_wait();
    const attention_operand &o = args.to;
    const to_t value = narrow<to_t>(args.value);
    for (s64 e = blockIdx.x * 256ll + threadIdx.x; e < args.count; e += gridDim.x * 256ll) {
        s64 rest = e, at = 0;
#pragma unroll
        for (int i = 3; i > 0; i--) {
            const s64 q = rest / o.dim[i];
            at += (rest - q * o.dim[i]) * o.stride[i];
            rest = q;
        }
        ((to_t *)o.data)[at + rest * o.stride[0]] = value;
    }
}
