/* SPDX-License-Identifier: Apache-2.0
 * Gradients of the bias and of the sinks, a warp per element: its lanes go through what the element
 * was broadcast to, in order. SINKS: of the sinks. */
#include "ops/attention/attention_cuda_bwd.cuh"

__device__ __forceinline__ acc_t pair_gradient(const mica_attention_args &a, s64 n, s64 h, s64 i, s64 j)
{
    extent queries = queries_of(a, n);
    if (i >= queries.count) return 0;
    query r = query_at(a, queries.batch, h, queries.first + i);
    if (!sees(a, r, j)) return 0;
    s64 head = h / a.group;
    const q_t *q = at<q_t>(a, ATTENTION_Q, r.b, h, r.row);
    const k_t *k = (const k_t *)a.data[ATTENTION_K] + key_offset(a, ATTENTION_K, n, r.keys, head, j);
    const dout_t *o = at<dout_t>(a, ATTENTION_DOUT, r.b, h, r.row);
    const v_t *v = (const v_t *)a.data[ATTENTION_V] + key_offset(a, ATTENTION_V, n, r.keys, head, j);
    acc_t qk = 0, dp = 0;
    for (int c = 0; c < a.d; c++)
        qk += widen<acc_t>(q[c * a.stride[ATTENTION_Q][3]]) * widen<acc_t>(k[c * a.stride[ATTENTION_K][3]]);
    for (int c = 0; c < a.dv; c++)
        dp += widen<acc_t>(o[c * a.stride[ATTENTION_DOUT][3]]) * widen<acc_t>(v[c * a.stride[ATTENTION_V][3]]);
    return gradients_of(a, r, j, qk, dp).ds;
}

__device__ __forceinline__ acc_t sink_gradient(const mica_attention_args &a, s64 h, s64 n, s64 i)
{
    extent queries = queries_of(a, n);
    if (i >= queries.count) return 0;
    query r = query_at(a, queries.batch, h, queries.first + i);
    acc_t sink = widen<acc_t>(((const sinks_t *)a.data[ATTENTION_SINKS])[h * a.stride[ATTENTION_SINKS][0]]);
    return r.none ? (acc_t)0 : -exp_of(sink - r.lse) * r.delta;
}

extern "C" __global__ void __launch_bounds__(WARPS * 32) attention_bias(const mica_attention_args a)
{
    const s64 full[4] = {a.sequences, a.heads, a.rows, a.keys};
    int lane = threadIdx.x % 32;
    s64 total = SINKS ? a.heads : a.bias_dims[0] * a.bias_dims[1] * a.bias_dims[2] * a.bias_dims[3];
    for (s64 task = (s64)blockIdx.x * WARPS + threadIdx.x / 32; task < total; task += (s64)gridDim.x * WARPS) {
        acc_t sum = 0;
        if constexpr (SINKS) {
            for (s64 x = lane; x < a.sequences * a.rows; x += 32) sum += sink_gradient(a, task, x / a.rows, x % a.rows);
        } else {
            s64 first[4], count[4], rest = task;
            for (int d = 3; d >= 0; d--) {
                first[d] = rest % a.bias_dims[d];
                rest /= a.bias_dims[d];
                count[d] = a.bias_dims[d] == 1 ? full[d] : 1;
            }
            s64 all = count[0] * count[1] * count[2] * count[3];
            for (s64 x = lane; x < all; x += 32) {
                s64 y = x, at_[4];
                for (int d = 3; d >= 0; d--) {
                    at_[d] = first[d] + y % count[d];
                    y /= count[d];
                }
                sum += pair_gradient(a, at_[0], at_[1], at_[2], at_[3]);
            }
        }
        sum = warp_sum(sum);
        if (lane) continue;
        if constexpr (SINKS) {
            ((dsinks_t *)a.data[ATTENTION_DSINKS])[task * a.stride[ATTENTION_DSINKS][0]] = narrow<dsinks_t>(sum);
        } else {
            s64 offset = 0, rest = task;
            for (int d = 3; d >= 0; d--) {
                offset += rest % a.bias_dims[d] * a.stride[ATTENTION_DBIAS][d];
                rest /= a.bias_dims[d];
            }
            ((dbias_t *)a.data[ATTENTION_DBIAS])[offset] = narrow<dbias_t>(sum);
        }
    }
}
