/* SPDX-License-Identifier: Apache-2.0
 * Attention backward on the tensor cores of sm_80, dq: a block keeps rows of q and dout, keys and values
 * travel past it in a ring of STAGES tiles.
 *
 * Prologue: that of sm80.cuh; STAGES. */
#include "kernels/overlap.cuh"
#include "ops/attention/sm80/sm80_back.cuh"

typedef float sums_t[BLOCKS][D_WIDE / 8][4];

/* Lines of three tiles of keys: of one that is used, one that comes and one that is found. */
struct shared {
    job j;
    row rows[OWN];
    s64 q[OWN], dout[OWN];
    s64 k[3][OTHER], v[3][OTHER];
};

__device__ __forceinline__ void find_keys(const attention_cuda_args &args, int tile, shared &m)
{
    const int t = (int)threadIdx.x;
    if (t >= OTHER) return;
    const key_place at = find_key(args, m.j.s, (u32)(tile * OTHER + t));
    m.k[tile % 3][t] = key_line(args.k, at, m.j.w.head);
    m.v[tile % 3][t] = key_line(args.v, at, m.j.w.head);
}

/* Products become the gradients of products. */
__device__ __forceinline__ void differentiate(const attention_cuda_args &args, const units &u, const dropout &drop,
                                              const shared &m, int tile, tile_t &t, const tile_t &dp)
{
    const s64 line = m.j.s.n * args.heads;
    const int first = tile * OTHER + lane() % 4 * 2;
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        const row *rows = m.rows + warp_line() + 16 * b + lane() / 4;
        u32 dropped = 0;
        if constexpr (DROPOUT) dropped = find_dropped<OTHER / 8>(args, drop, rows, line, tile * OTHER);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const row &x = rows[8 * half];
#pragma unroll
            for (int n = 0; n < OTHER / 8; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float &v = t[b][n][2 * half + e];
                    const bool drops = dropped >> (4 * n + 2 * half + e) & 1;
                    v = find_pair(args, u, x, first + 8 * n + e, v, dp[b][n][2 * half + e], drops).ds;
                }
        }
    }
}

/* Rows of the job, tiles [from, to) of its keys. */
__device__ __forceinline__ void prepare(const attention_cuda_args &args, const share &w, shared &m, int &from, int &to)
{
    const sequence s = find_sequence(args, w.n);
    const s64 first = w.tile * OWN, rows = s.q.count * args.group;
    find_job(args, w, s, rows, m.j);
    s64 low = 0, high = 0;
    if (first < rows) find_tiles(args, s, w, first, min(first + OWN, rows) - 1, low, high);
    from = (int)low, to = (int)high;
    if (threadIdx.x < OWN) {
        const query x = find_query_back(args, s, w.head, (u32)first + threadIdx.x);
        m.rows[threadIdx.x] = row_of(x);
        m.q[threadIdx.x] = x.line;
        m.dout[threadIdx.x] = x.line == ABSENT ? ABSENT : line_of(args.dout, s.q, x.head, x.i);
    }
    __syncthreads();
    find_keys(args, from, m);
    find_keys(args, from + 1, m);
    __syncthreads();
}

__device__ __forceinline__ void store_results(const attention_cuda_args &args, const shared &m, float *memory, const sums_t &sum)
{
#pragma unroll 1
    for (int part = 0; part < 2 * BLOCKS; part++) {
        const int r = line_of_part(part);
        s64 line = ABSENT;
        if (r < m.j.count) {
            /* Also of rows that have no part in any gradient: they are written too. */
            const query x = find_query(args, m.j.s, m.j.w.head, (u32)m.j.first + r);
            line = line_of(args.d_q, m.j.s.q, x.head, x.i);
        }
        store_lines(memory, args.d_q, line, sum, part, (float)args.scale, 0, args.d);
    }
}

__device__ __forceinline__ void gradient(const attention_cuda_args &args, int from, int to, char *memory, shared &m)
{
    const u32 q = shared_address(memory), dout = q + OWN * D_PITCH, k = dout + OWN * V_PITCH;
    const u32 v = k + STAGES * OTHER * D_PITCH;
    const units u = find_units(args);
    const dropout drop = find_dropout(args);
    const auto bring = [&](int tile) {
        fetch<OTHER, D_WIDE>(k + tile % STAGES * OTHER * D_PITCH, args.k, m.k[tile % 3], args.d);
        fetch<OTHER, V_WIDE>(v + tile % STAGES * OTHER * V_PITCH, args.v, m.v[tile % 3], args.dv);
    };
    fetch<OWN, D_WIDE>(q, args.q, m.q, args.d);
    fetch<OWN, V_WIDE>(dout, args.dout, m.dout, args.dv);
    if (from < to) bring(from);
    copies_commit();
    sums_t sum;
    clear(sum);
#pragma unroll 1
    for (int tile = from; tile < to; tile++) {
        const u32 keys = k + tile % STAGES * OTHER * D_PITCH, values = v + tile % STAGES * OTHER * V_PITCH;
        copies_wait<0>();
        __syncthreads(); /* this tile has come, the one before is used */
        if (STAGES > 1 && tile + 1 < to) bring(tile + 1);
        copies_commit();
        find_keys(args, tile + 2, m);
        tile_t t, dp;
        clear(t);
        clear(dp);
        multiply_lines<D_WIDE>(t, q, keys);
        multiply_lines<V_WIDE>(dp, dout, values);
        differentiate(args, u, drop, m, tile, t, dp);
        add_lines<D_WIDE>(sum, t, keys, 0);
        if constexpr (STAGES == 1) {
            __syncthreads();
            if (tile + 1 < to) bring(tile + 1);
            copies_commit();
        }
    }
    copies_wait<0>();
    __syncthreads(); /* tiles are used */
    store_results(args, m, (float *)memory, sum);
}

extern "C" __global__ void __launch_bounds__(THREADS, THREADS > 128 ? 1 : 2) attention_sm80_dq(const attention_cuda_args args)
{
    overlap_wait();
    extern __shared__ __align__(16) char memory[];
    __shared__ shared m;
    share w;
    for (s64 index = blockIdx.x; find_queries(args, 1, index, w); index += gridDim.x) {
        int from, to;
        prepare(args, w, m, from, to);
        if (m.j.count > 0) gradient(args, from, to, memory, m);
        __syncthreads();
    }
}
