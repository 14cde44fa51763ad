/* SPDX-License-Identifier: Apache-2.0
 * Gradient of q, a warp per query. */
#include "ops/attention/attention_cuda_bwd.cuh"

extern "C" __global__ void __launch_bounds__(WARPS * 32) attention_dq(const mica_attention_args a)
{
    __shared__ acc_t q_rows[WARPS][MOST];
    __shared__ acc_t dout_rows[WARPS][MOST];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    s64 total = a.batches * a.heads * a.rows;
    for (s64 task = (s64)blockIdx.x * WARPS + warp; task < total; task += (s64)gridDim.x * WARPS) {
        query r = query_at(a, task / a.rows / a.heads, task / a.rows % a.heads, task % a.rows);
        s64 head = r.h / a.group;
        acc_t acc[COLUMNS] = {0};
        if (!r.none) {
            __syncwarp();
            load_row(at<q_t>(a, ATTENTION_Q, r.b, r.h, r.row), a.stride[ATTENTION_Q][3], a.d, q_rows[warp]);
            load_row(at<dout_t>(a, ATTENTION_DOUT, r.b, r.h, r.row), a.stride[ATTENTION_DOUT][3], a.dv, dout_rows[warp]);
            for (s64 j0 = r.see.from; j0 < r.see.to; j0 += 32) {
                s64 j = j0 + lane;
                gradients g = {0};
                if (sees(a, r, j)) {
                    const k_t *k = (const k_t *)a.data[ATTENTION_K] + key_offset(a, ATTENTION_K, r.n, r.keys, head, j);
                    const v_t *v = (const v_t *)a.data[ATTENTION_V] + key_offset(a, ATTENTION_V, r.n, r.keys, head, j);
                    acc_t qk = dot(q_rows[warp], k, a.stride[ATTENTION_K][3], a.d);
                    g = gradients_of(a, r, j, qk, dot(dout_rows[warp], v, a.stride[ATTENTION_V][3], a.dv));
                }
                for (int l = 0; l < 32; l++) {
                    acc_t weight = __shfl_sync(ALL, g.dx, l);
                    if (weight == 0) continue;
                    const k_t *k = (const k_t *)a.data[ATTENTION_K] + key_offset(a, ATTENTION_K, r.n, r.keys, head, j0 + l);
                    add_row(acc, weight, k, a.stride[ATTENTION_K][3], a.d);
                }
            }
        }
        store_row(acc, (acc_t)1, (acc_t)1, (dq_t *)at<dq_t>(a, ATTENTION_DQ, r.b, r.h, r.row), a.stride[ATTENTION_DQ][3], a.d);
    }
}
