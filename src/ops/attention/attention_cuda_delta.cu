/* SPDX-License-Identifier: Apache-2.0
 * Before the backward pass: the sum of dout out of each row of q, a warp per row. */
#include "ops/attention/attention_cuda_bwd.cuh"

extern "C" __global__ void __launch_bounds__(WARPS * 32) attention_delta(const mica_attention_args a)
{
    s64 total = a.batches * a.heads * a.rows;
    for (s64 task = (s64)blockIdx.x * WARPS + threadIdx.x / 32; task < total; task += (s64)gridDim.x * WARPS) {
        s64 b = task / a.rows / a.heads, h = task / a.rows % a.heads, row = task % a.rows;
        const out_t *x = at<out_t>(a, ATTENTION_OUT, b, h, row);
        const dout_t *y = at<dout_t>(a, ATTENTION_DOUT, b, h, row);
        acc_t sum = 0;
        for (int c = threadIdx.x % 32; c < a.dv; c += 32)
            sum += widen<acc_t>(x[c * a.stride[ATTENTION_OUT][3]]) * widen<acc_t>(y[c * a.stride[ATTENTION_DOUT][3]]);
        sum = warp_sum(sum);
        if (threadIdx.x % 32 == 0) ((acc_t *)a.delta)[task] = sum;
    }
}
