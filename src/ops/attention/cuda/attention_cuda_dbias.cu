/* SPDX-License-Identifier: Apache-2.0
 * Attention backward, dbias: a block forms the gradients of a tile of scores and adds, in order, those
 * of all sequences, heads, rows and keys that share an element.
 *
 * Prologue: that of attention_cuda.cuh; type x_t (of q, k, v). */
#include "kernels/overlap.cuh"
#include "ops/attention/cuda/attention_cuda_back.cuh"

struct place {
    s64 n, head, row_tile, key_tile;
};

/* Adds the gradients of one tile of scores. */
__device__ __forceinline__ void add_tile(const attention_cuda_args &args, const place &at, acc_t *own, query *queries,
                                         s64 *k_line, s64 *v_line, tile_t &sum)
{
    const sequence s = find_sequence(args, at.n);
    const s64 i0 = at.row_tile * OWN, j0 = at.key_tile * OTHER;
    if (i0 >= s.q.count) return;
    const s64 last = min(i0 + OWN, s.q.count) - 1;
    const s64 high = clamp_of(last + s.shift + args.right, 0, s.k.count), low = i0 + s.shift - args.left + 1;
    if (j0 >= high || j0 + OTHER <= low) return; /* none of these rows sees one of these keys */
    const s64 kv_head = at.head / args.group, within = at.head - kv_head * args.group;
    acc_t *own_dout = own + OWN * pitch_of(args.d), *stage = own_dout + OWN * pitch_of(args.dv);
    __syncthreads();
    if (threadIdx.x < OWN)
        queries[threadIdx.x] = find_query_back(args, s, kv_head, (i0 + threadIdx.x) * args.group + within);
    if (threadIdx.x < OTHER) {
        const key_place at_key = find_key(args, s, j0 + threadIdx.x);
        k_line[threadIdx.x] = key_line(args.k, at_key, kv_head);
        v_line[threadIdx.x] = key_line(args.v, at_key, kv_head);
    }
    __syncthreads();
    load_own(own, args.q, args.d, [&](int r) { return queries[r].line; });
    load_own(own_dout, args.dout, args.dv, [&](int r) {
        return queries[r].line == ABSENT ? ABSENT : line_of(args.dout, s.q, queries[r].head, queries[r].i);
    });
    tile_t t, dp;
    multiply_lines<x_t>(t, own, stage, args.k, k_line, args.d, args.k_across);
    multiply_lines<x_t>(dp, own_dout, stage, args.v, v_line, args.dv, args.v_across);
    differentiate<false>(args, s, find_dropout(args), queries, j0, score_scale(args, kv_head), t, dp);
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int c = 0; c < COLS; c++) sum[r][c] += t[r][c];
}

/* The sum over keys of each row, over rows of each key, in order; where dbias has one of them. */
__device__ __forceinline__ void fold(const attention_cuda_args &args, tile_t &sum, acc_t *memory)
{
    if (args.dbias.dim[3] == 1) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            acc_t all = 0;
#pragma unroll
            for (int c = 0; c < COLS; c++) all += sum[r][c];
            sum[r][0] = row_sum(all);
        }
    }
    if (args.dbias.dim[2] != 1) return;
    __syncthreads();
    store_weights(memory, sum);
    __syncthreads();
    if (ty() > 0) return;
#pragma unroll
    for (int c = 0; c < COLS; c++) {
        acc_t all = 0;
        for (int r = 0; r < OWN; r++) all += memory[r * WEIGHTS + tx() * COLS + c];
        sum[0][c] = all;
    }
}

__device__ __forceinline__ void gradient(const attention_cuda_args &args, s64 index, const s64 *tiles, acc_t *own,
                                         query *queries, s64 *k_line, s64 *v_line)
{
    const s64 *dim = args.dbias.dim;
    const bool all_rows = dim[2] == 1, all_keys = dim[3] == 1;
    place p;
    p.key_tile = all_keys ? 0 : index % tiles[1];
    if (!all_keys) index /= tiles[1];
    p.row_tile = all_rows ? 0 : index % tiles[0];
    if (!all_rows) index /= tiles[0];
    p.head = index % dim[1];
    p.n = index / dim[1];
    const place first = p;
    tile_t sum = {};
    for (p.n = first.n; p.n < (dim[0] == 1 ? args.sequences : first.n + 1); p.n++)
        for (p.head = first.head; p.head < (dim[1] == 1 ? args.heads : first.head + 1); p.head++)
            for (p.row_tile = first.row_tile; p.row_tile < (all_rows ? tiles[0] : first.row_tile + 1); p.row_tile++)
                for (p.key_tile = first.key_tile; p.key_tile < (all_keys ? tiles[1] : first.key_tile + 1); p.key_tile++)
                    add_tile(args, p, own, queries, k_line, v_line, sum);
    fold(args, sum, own);
    const s64 *stride = args.dbias.stride;
    const s64 base = first.n * stride[0] + first.head * stride[1];
    const s64 i0 = first.row_tile * OWN + ty() * ROWS, j0 = first.key_tile * OTHER + tx() * COLS;
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int c = 0; c < COLS; c++)
            if (i0 + r < dim[2] && j0 + c < dim[3])
                store_any(args.dbias, base + (i0 + r) * stride[2] + (j0 + c) * stride[3], sum[r][c]);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) attention_dbias(const attention_cuda_args args)
{
    overlap_wait();
    extern __shared__ __align__(16) char memory[];
    __shared__ query queries[OWN];
    __shared__ s64 k_line[OTHER];
    __shared__ s64 v_line[OTHER];
    const s64 tiles[2] = {(args.rows + OWN - 1) / OWN, (args.keys + OTHER - 1) / OTHER};
    const s64 blocks = args.dbias.dim[0] * args.dbias.dim[1] * (args.dbias.dim[2] == 1 ? 1 : tiles[0]) *
                       (args.dbias.dim[3] == 1 ? 1 : tiles[1]);
    for (s64 index = blockIdx.x; index < blocks; index += gridDim.x) {
        gradient(args, index, tiles, (acc_t *)memory, queries, k_line, v_line);
        __syncthreads();
    }
}
