/* SPDX-License-Identifier: Apache-2.0
 * Attention backward, dq: a block keeps rows of q and dout, keys and values travel past it.
 *
 * Prologue: that of attention_cuda.cuh; type x_t (of q, k, v). */
#include "kernels/overlap.cuh"
#include "ops/attention/cuda/attention_cuda_back.cuh"

__device__ __forceinline__ void gradient(const attention_cuda_args &args, const share &w, acc_t *own, query *queries,
                                         s64 *k_line, s64 *v_line)
{
    const sequence s = find_sequence(args, w.n);
    const s64 first = w.tile * OWN, count = min(s.q.count * args.group - first, (s64)OWN);
    if (count <= 0) return;
    acc_t *own_dout = own + OWN * pitch_of(args.d), *stage = own_dout + OWN * pitch_of(args.dv);
    acc_t *weights = stage + OTHER * PITCH;
    if (threadIdx.x < OWN) queries[threadIdx.x] = find_query_back(args, s, w.head, first + threadIdx.x);
    __syncthreads();
    load_own(own, args.q, args.d, [&](int r) { return queries[r].line; });
    load_own(own_dout, args.dout, args.dv, [&](int r) {
        return queries[r].line == ABSENT ? ABSENT : line_of(args.dout, s.q, queries[r].head, queries[r].i);
    });
    const acc_t scale = score_scale(args, w.head);
    const dropout drop = find_dropout(args);
    sums_t sum = {};
    const s64 high = clamp_of((first + count - 1) / args.group + s.shift + args.right, 0, s.k.count);
    const s64 low = clamp_of(first / args.group + s.shift - args.left + 1, 0, high);
    for (s64 j0 = low / OTHER * OTHER; j0 < high; j0 += OTHER) {
        __syncthreads();
        if (threadIdx.x < OTHER) {
            const key_place at = find_key(args, s, j0 + threadIdx.x);
            k_line[threadIdx.x] = key_line(args.k, at, w.head);
            v_line[threadIdx.x] = key_line(args.v, at, w.head);
        }
        __syncthreads();
        tile_t t, dp;
        multiply_lines<x_t>(dp, own_dout, stage, args.v, v_line, args.dv, args.v_across);
        multiply_lines<x_t>(t, own, stage, args.k, k_line, args.d, args.k_across);
        differentiate<true>(args, s, drop, queries, j0, scale, t, dp);
        store_weights(weights, t);
        add_lines<x_t>(sum, weights, stage, args.k, k_line, args.d, args.k_across);
    }
    store_sums(own, sum);
    each_sum(own, (int)count, args.d, [&](int r, int c, acc_t v) {
        store_any(args.d_q, line_of(args.d_q, s.q, queries[r].head, queries[r].i) + c * args.d_q.stride[3], v * scale);
    });
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) attention_dq(const attention_cuda_args args)
{
    overlap_wait();
    extern __shared__ __align__(16) char memory[];
    __shared__ query queries[OWN];
    __shared__ s64 k_line[OTHER];
    __shared__ s64 v_line[OTHER];
    share w;
    for (s64 index = blockIdx.x; find_queries(args, 1, index, w); index += gridDim.x) {
        gradient(args, w, (acc_t *)memory, queries, k_line, v_line);
        __syncthreads();
    }
}
