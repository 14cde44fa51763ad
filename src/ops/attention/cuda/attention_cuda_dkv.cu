/* SPDX-License-Identifier: Apache-2.0
 * Attention backward, dk and dv: a block keeps keys and values, the rows of q and dout that see them
 * travel past it, those of all heads of the group, in order.
 *
 * Prologue: that of attention_cuda.cuh; types x_t (of q, k, v), dout_t. */
#include "kernels/overlap.cuh"
#include "ops/attention/cuda/attention_cuda_back.cuh"

/* Products of keys (own) and queries (others) become weights, and ds with the cap's slope. */
__device__ __forceinline__ void differentiate_keys(const attention_cuda_args &args, const sequence &s, const dropout &drop,
                                                   const query *queries, s64 j0, acc_t scale, tile_t &t, tile_t &dp)
{
    const s64 first = j0 + ty() * ROWS;
#pragma unroll
    for (int c = 0; c < COLS; c++) {
        const query &x = queries[tx() * COLS + c];
        const keys seen = find_keys(x, first);
        words w = {};
        if constexpr (DROPOUT) w = find_words(args, drop, s.n, x, first);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            pair e = {};
            if (sees(args, x, seen, r)) {
                const acc_t keep = DROPOUT ? kept(args, w, first + r) : (acc_t)1;
                e = find_pair(args, x, first + r, scale * t[r][c], dp[r][c], keep);
            }
            t[r][c] = e.weight;
            dp[r][c] = e.ds * e.slope;
        }
    }
}

__device__ __forceinline__ void gradient(const attention_cuda_args &args, const share &w, acc_t *own, query *queries,
                                         s64 *q_line, s64 *dout_line)
{
    const sequence s = find_sequence(args, w.n);
    const s64 first = w.tile * OWN, count = min(s.k.count - first, (s64)OWN);
    if (count <= 0) return;
    acc_t *own_v = own + OWN * pitch_of(args.d), *stage = own_v + OWN * pitch_of(args.dv);
    acc_t *weights = stage + OTHER * PITCH;
    load_own(own, args.k, args.d, [&](int r) { return key_line(args.k, find_key(args, s, first + r), w.head); });
    load_own(own_v, args.v, args.dv, [&](int r) { return key_line(args.v, find_key(args, s, first + r), w.head); });
    const acc_t scale = score_scale(args, w.head);
    const dropout drop = find_dropout(args);
    sums_t dk = {}, dv = {};
    /* Queries [low, high) see one of these keys. */
    const s64 low = clamp_of(first - s.shift - args.right + 1, 0, s.q.count);
    const s64 high = clamp_of(first + count - 1 - s.shift + args.left, low, s.q.count);
    for (s64 r0 = low * args.group; r0 < high * args.group; r0 += OTHER) {
        __syncthreads();
        if (threadIdx.x < OTHER) {
            const query x = find_query_back(args, s, w.head, r0 + threadIdx.x);
            queries[threadIdx.x] = x;
            q_line[threadIdx.x] = x.line;
            dout_line[threadIdx.x] = x.line == ABSENT ? ABSENT : line_of(args.dout, s.q, x.head, x.i);
        }
        __syncthreads();
        tile_t t, dp;
        multiply_lines<x_t>(t, own, stage, args.q, q_line, args.d, args.q_across);
        multiply_lines<dout_t>(dp, own_v, stage, args.dout, dout_line, args.dv, args.dout_across);
        differentiate_keys(args, s, drop, queries, first, scale, t, dp);
        store_weights(weights, t);
        add_lines<dout_t>(dv, weights, stage, args.dout, dout_line, args.dv, args.dout_across);
        __syncthreads();
        store_weights(weights, dp);
        add_lines<x_t>(dk, weights, stage, args.q, q_line, args.d, args.q_across);
    }
    store_sums(own, dk);
    each_sum(own, (int)count, args.d, [&](int r, int c, acc_t v) {
        store_any(args.d_k, line_of(args.d_k, s.k, w.head, first + r) + c * args.d_k.stride[3], v * scale);
    });
    store_sums(own, dv);
    each_sum(own, (int)count, args.dv, [&](int r, int c, acc_t v) {
        store_any(args.d_v, line_of(args.d_v, s.k, w.head, first + r) + c * args.d_v.stride[3], v);
    });
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) attention_dkv(const attention_cuda_args args)
{
    overlap_wait();
    extern __shared__ __align__(16) char memory[];
    __shared__ query queries[OTHER];
    __shared__ s64 q_line[OTHER];
    __shared__ s64 dout_line[OTHER];
    share w;
    for (s64 index = blockIdx.x; find_share(args, args.cu_k, args.keys, 1, 1, index, w); index += gridDim.x) {
        gradient(args, w, (acc_t *)memory, queries, q_line, dout_line);
        __syncthreads();
    }
}
