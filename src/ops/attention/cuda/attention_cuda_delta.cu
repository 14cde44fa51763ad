/* SPDX-License-Identifier: Apache-2.0
 * Attention backward: the sum of dout out of each row, by a warp.
 *
 * Prologue: that of attention_cuda.cuh. */
#include "kernels/overlap.cuh"
#include "ops/attention/cuda/attention_cuda.cuh"

static_assert(TX == 32 && ROWS == 1, "a warp per row");

extern "C" __global__ void __launch_bounds__(THREADS) attention_delta(const attention_cuda_args args)
{
    overlap_wait();
    const s64 rows = args.q.dim[0] * args.heads * args.q.dim[2];
    for (s64 place = (s64)blockIdx.x * OWN + ty(); place < rows; place += (s64)gridDim.x * OWN) {
        const s64 line = place / args.q.dim[2], row = place - line * args.q.dim[2];
        const s64 batch = line / args.heads, head = line - batch * args.heads;
        const s64 out = line_of(args.out, {batch, 0, 0}, head, row), dout = line_of(args.dout, {batch, 0, 0}, head, row);
        acc_t sum = 0;
        for (s64 c = tx(); c < args.dv; c += 32)
            sum += load_any(args.out, out + c * args.out.stride[3]) * load_any(args.dout, dout + c * args.dout.stride[3]);
        sum = row_sum(sum);
        if (tx() == 0) ((acc_t *)args.delta)[place] = sum;
    }
}
