/* SPDX-License-Identifier: Apache-2.0
 * Gradients of k and v, a warp per key: the queries of all heads of its group, in order. */
#include "ops/attention/attention_cuda_bwd.cuh"

extern "C" __global__ void __launch_bounds__(WARPS * 32) attention_dkv(const mica_attention_args a)
{
    __shared__ acc_t k_rows[WARPS][MOST];
    __shared__ acc_t v_rows[WARPS][MOST];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    s64 total = a.k_batches * a.kv_heads * a.key_rows;
    for (s64 task = (s64)blockIdx.x * WARPS + warp; task < total; task += (s64)gridDim.x * WARPS) {
        s64 b = task / a.key_rows / a.kv_heads, head = task / a.key_rows % a.kv_heads, row = task % a.key_rows;
        place p = place_of(a, ATTENTION_CU_K, ATTENTION_SEQ_K, a.key_rows, b, row);
        acc_t dk[COLUMNS] = {0}, dv[COLUMNS] = {0};
        extent queries = {0};
        if (!p.none) {
            queries = queries_of(a, p.n);
            __syncwarp();
            load_row(at<k_t>(a, ATTENTION_K, b, head, row), a.stride[ATTENTION_K][3], a.d, k_rows[warp]);
            load_row(at<v_t>(a, ATTENTION_V, b, head, row), a.stride[ATTENTION_V][3], a.dv, v_rows[warp]);
        }
        s64 rows = queries.count * a.group;
        for (s64 first = 0; first < rows; first += 32) {
            gradients g = {0};
            s64 x = first + lane;
            if (x < rows) {
                query r = query_at(a, queries.batch, head * a.group + x / queries.count, queries.first + x % queries.count);
                if (sees(a, r, p.i)) {
                    acc_t qk = dot(k_rows[warp], at<q_t>(a, ATTENTION_Q, r.b, r.h, r.row), a.stride[ATTENTION_Q][3], a.d);
                    acc_t dp = dot(v_rows[warp], at<dout_t>(a, ATTENTION_DOUT, r.b, r.h, r.row), a.stride[ATTENTION_DOUT][3], a.dv);
                    g = gradients_of(a, r, p.i, qk, dp);
                }
            }
            for (int l = 0; l < 32 && first + l < rows; l++) {
                acc_t w = __shfl_sync(ALL, g.w, l), dx = __shfl_sync(ALL, g.dx, l);
                if (w == 0 && dx == 0) continue;
                s64 h = head * a.group + (first + l) / queries.count, i = queries.first + (first + l) % queries.count;
                add_row(dk, dx, at<q_t>(a, ATTENTION_Q, queries.batch, h, i), a.stride[ATTENTION_Q][3], a.d);
                add_row(dv, w, at<dout_t>(a, ATTENTION_DOUT, queries.batch, h, i), a.stride[ATTENTION_DOUT][3], a.dv);
            }
        }
        store_row(dk, (acc_t)1, (acc_t)1, (dk_t *)at<dk_t>(a, ATTENTION_DK, b, head, row), a.stride[ATTENTION_DK][3], a.d);
        store_row(dv, (acc_t)1, (acc_t)1, (dv_t *)at<dv_t>(a, ATTENTION_DV, b, head, row), a.stride[ATTENTION_DV][3], a.dv);
    }
}
