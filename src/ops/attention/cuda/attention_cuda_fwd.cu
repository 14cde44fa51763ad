/* SPDX-License-Identifier: Apache-2.0
 * Attention forward: a block keeps some rows of queries; keys and values travel past it in tiles, and
 * each row keeps the maximum, the sum and the result of what it has seen (Milakov and Gimelshein
 * 2018). With splits > 1 each block sees a part of the keys, and attention_cuda_merge.cu does the rest.
 *
 * Prologue: that of attention_cuda.cuh; types k_t, v_t. */
#include "kernels/overlap.cuh"
#include "ops/attention/cuda/attention_cuda.cuh"
#include "ops/attention/cuda/attention_cuda_finish.cuh"

/* Of a thread's rows. */
struct rows_state {
    acc_t max[ROWS], sum[ROWS];
};

/* Scores become weights about the maximum, which they may raise. */
__device__ __forceinline__ void soften(const attention_cuda_args &args, const sequence &s, const dropout &drop,
                                       const query *queries, const s64 *k_line, s64 j0, acc_t scale, tile_t &t,
                                       rows_state &state, sums_t &out)
{
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const query &x = queries[ty() * ROWS + r];
        const s64 first = j0 + tx() * COLS;
        const keys seen = find_keys(x, first);
        acc_t max = state.max[r];
#pragma unroll
        for (int c = 0; c < COLS; c++) {
            acc_t slope;
            const bool there = sees(args, x, seen, c) && k_line[tx() * COLS + c] != ABSENT;
            t[r][c] = there ? finish_score(args, x, first + c, scale * t[r][c], slope) : nothing();
            max = max_of(max, t[r][c]);
        }
        max = row_max(max);
        const acc_t factor = state.max[r] == nothing() ? (acc_t)0 : exp_of(state.max[r] - max);
        state.max[r] = max;
        state.sum[r] *= factor;
#pragma unroll
        for (int c = 0; c < COLS; c++) {
            t[r][c] = t[r][c] == nothing() ? (acc_t)0 : exp_of(t[r][c] - max);
            state.sum[r] += t[r][c];
        }
        if constexpr (DROPOUT) {
            words w = find_words(args, drop, s.n, x, first);
#pragma unroll
            for (int c = 0; c < COLS; c++) t[r][c] *= kept(args, w, first + c);
        }
#pragma unroll
        for (int i = 0; i < CHUNKS; i++)
#pragma unroll
            for (int l = 0; l < LANES; l++) out[i][r][l] *= factor;
    }
}

/* Where the results of a row go, and what they are multiplied by. */
struct target {
    s64 line;
    acc_t factor;
};

__device__ __forceinline__ target finish(const attention_cuda_args &args, const sequence &s, const share &w,
                                         const query &x, acc_t max, acc_t sum)
{
    if (args.splits > 1) {
        const s64 at = place_of(args, s.q, x.head, x.i) * args.splits + w.split;
        acc_t *stats = (acc_t *)args.partial_stats + 2 * at;
        stats[0] = max, stats[1] = sum;
        return {at * args.dv, 1};
    }
    const finished f = finish_row(args, x.head, w.head, max, sum);
    if (args.lse.data) ((acc_t *)args.lse.data)[line_of(args.lse, s.q, x.head, x.i)] = f.lse;
    return {line_of(args.out, s.q, x.head, x.i), f.factor};
}

__device__ __forceinline__ void store_rows(const attention_cuda_args &args, const target *targets, const acc_t *memory, int count)
{
    if (args.splits > 1)
        each_sum(memory, count, args.dv, [&](int r, int c, acc_t v) { ((acc_t *)args.partial)[targets[r].line + c] = v; });
    else
        each_sum(memory, count, args.dv, [&](int r, int c, acc_t v) {
            store_any(args.out, targets[r].line + c * args.out.stride[3], v * targets[r].factor);
        });
}

__device__ __forceinline__ void forward(const attention_cuda_args &args, const share &w, acc_t *own, query *queries,
                                        s64 *k_line, s64 *v_line, target *targets)
{
    const sequence s = find_sequence(args, w.n);
    const s64 first = w.tile * OWN, count = min(s.q.count * args.group - first, (s64)OWN);
    if (count <= 0) return;
    acc_t *stage = own + OWN * pitch_of(args.d), *weights = stage + OTHER * PITCH;
    if (threadIdx.x < OWN) queries[threadIdx.x] = find_query(args, s, w.head, first + threadIdx.x);
    __syncthreads();
    load_own(own, args.q, args.d, [&](int r) { return queries[r].line; });
    const acc_t scale = score_scale(args, w.head);
    const dropout drop = find_dropout(args);
    rows_state state = {};
    sums_t out = {};
#pragma unroll
    for (int r = 0; r < ROWS; r++) state.max[r] = nothing();
    s64 from, to;
    find_tiles(args, s, w, first, first + count - 1, from, to);
    for (s64 j0 = from * OTHER; j0 < to * OTHER; j0 += OTHER) {
        __syncthreads();
        if (threadIdx.x < OTHER) {
            const key_place at = find_key(args, s, j0 + threadIdx.x);
            k_line[threadIdx.x] = key_line(args.k, at, w.head);
            v_line[threadIdx.x] = key_line(args.v, at, w.head);
        }
        __syncthreads();
        tile_t t;
        multiply_lines<k_t>(t, own, stage, args.k, k_line, args.d, args.k_across);
        soften(args, s, drop, queries, k_line, j0, scale, t, state, out);
        store_weights(weights, t);
        add_lines<v_t>(out, weights, stage, args.v, v_line, args.dv, args.v_across);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int row = ty() * ROWS + r;
        const acc_t sum = row_sum(state.sum[r]);
        if (row < count && tx() == 0) targets[row] = finish(args, s, w, queries[row], state.max[r], sum);
    }
    store_sums(own, out);
    store_rows(args, targets, own, (int)count);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) attention_fwd(const attention_cuda_args args)
{
    overlap_wait();
    extern __shared__ __align__(16) char memory[];
    __shared__ query queries[OWN];
    __shared__ s64 k_line[OTHER];
    __shared__ s64 v_line[OTHER];
    __shared__ target targets[OWN];
    share w;
    for (s64 index = blockIdx.x; find_queries(args, args.splits, index, w); index += gridDim.x) {
        forward(args, w, (acc_t *)memory, queries, k_line, v_line, targets);
        __syncthreads();
    }
}
