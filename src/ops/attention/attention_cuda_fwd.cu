/* SPDX-License-Identifier: Apache-2.0
 * Attention forward, a warp per query: 32 keys at a time, online softmax. */
#include "ops/attention/attention_cuda.cuh"

extern "C" __global__ void __launch_bounds__(WARPS * 32) attention_forward(const mica_attention_args a)
{
    __shared__ acc_t rows[WARPS][MOST];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    acc_t *q = rows[warp];
    s64 total = a.batches * a.heads * a.rows;
    for (s64 task = (s64)blockIdx.x * WARPS + warp; task < total; task += (s64)gridDim.x * WARPS) {
        s64 b = task / a.rows / a.heads, h = task / a.rows % a.heads, row = task % a.rows, head = h / a.group;
        place p = place_of(a, ATTENTION_CU_Q, ATTENTION_SEQ_Q, a.rows, b, row);
        acc_t acc[COLUMNS] = {0}, max = minus_infinity(), sum = 0, slope;
        if (!p.none) {
            extent queries = queries_of(a, p.n), keys = keys_of(a, p.n);
            s64 diagonal = p.i + (a.bottom_right ? keys.count - queries.count : 0);
            range see = range_of(a, diagonal, keys.count);
            __syncwarp();
            load_row(at<q_t>(a, ATTENTION_Q, b, h, row), a.stride[ATTENTION_Q][3], a.d, q);
            acc_t scale = score_scale(a, head);
            for (s64 j0 = see.from; j0 < see.to; j0 += 32) {
                s64 j = j0 + lane;
                s64 offset = j < see.to && !is_masked(a, p.n, h, p.i, j) ? key_offset(a, ATTENTION_K, p.n, keys, head, j) : -1;
                bool seen = j < see.to && !is_masked(a, p.n, h, p.i, j) &&
                            (!has(a, ATTENTION_PAGES) || offset >= 0);
                acc_t s = minus_infinity();
                if (seen) {
                    s = scale * dot(q, (const k_t *)a.data[ATTENTION_K] + offset, a.stride[ATTENTION_K][3], a.d);
                    s = finish_score(a, s, p.n, h, p.i, j, diagonal, slope);
                }
                acc_t most = warp_max(s);
                most = most > max ? most : max;
                /* A row that has seen no key yet is shifted by 0: -inf - -inf would be NaN. */
                acc_t shift = most == minus_infinity() ? (acc_t)0 : most;
                acc_t factor = exp_of(max - shift), w = exp_of(s - shift);
                max = most;
                sum = sum * factor + warp_sum(w);
                for (int t = 0; t < COLUMNS; t++) acc[t] *= factor;
                if (w > 0 && a.drops && kept(a, p.n * a.heads + h, p.i, j) == 0) w = 0;
                for (int l = 0; l < 32; l++) {
                    acc_t weight = __shfl_sync(ALL, w, l);
                    if (weight == 0) continue;
                    s64 v = key_offset(a, ATTENTION_V, p.n, keys, head, j0 + l);
                    add_row(acc, weight, (const v_t *)a.data[ATTENTION_V] + v, a.stride[ATTENTION_V][3], a.dv);
                }
            }
        }
        acc_t factor = scale_of(a, ATTENTION_SCALE_V, head) * (acc_t)a.drop_scale;
        if (!p.none && has(a, ATTENTION_SINKS)) {
            acc_t sink = widen<acc_t>(((const sinks_t *)a.data[ATTENTION_SINKS])[h * a.stride[ATTENTION_SINKS][0]]);
            acc_t most = sink > max ? sink : max, by = exp_of(max - most);
            sum = sum * by + exp_of(sink - most);
            factor *= by;
            max = most;
        }
        bool any = sum > 0;
        store_row(acc, any ? factor : (acc_t)0, any ? sum : (acc_t)1, (out_t *)at<out_t>(a, ATTENTION_OUT, b, h, row),
                  a.stride[ATTENTION_OUT][3], a.dv);
        if (lane == 0 && has(a, ATTENTION_LSE))
            *(acc_t *)at<acc_t>(a, ATTENTION_LSE, b, h, row) = any ? max + log_of(sum) : minus_infinity();
    }
}
