/* SPDX-License-Identifier: Apache-2.0
 * Attention backward on the tensor cores of sm_80, dk and dv: a block keeps keys and values; the rows of q
 * and dout that see them travel past it, those of all heads of the group, in order. With PARTS > 1 the
 * warps of a part have the sums of as many columns, which would not fit the registers of one, and form the
 * same scores.
 *
 * Prologue: that of sm80.cuh; STAGES. */
#include "kernels/overlap.cuh"
#include "ops/attention/sm80/sm80_back.cuh"

constexpr int D_PART = D_WIDE / PARTS, V_PART = V_WIDE / PARTS;
static_assert(D_PART % 32 == 0 && V_PART % 32 == 0, "results are stored by whole warps");

/* Three tiles of queries: one that is used, one that comes and one that is found. */
struct shared {
    job j;
    s64 base; /* the first row of queries that sees one of the keys */
    s64 k[OWN], v[OWN];
    row rows[3][OTHER];
    s64 q[3][OTHER], dout[3][OTHER];
};

__device__ __forceinline__ void find_rows(const attention_cuda_args &args, int tile, shared &m)
{
    const int t = (int)threadIdx.x;
    if (t >= OTHER) return;
    const int slot = tile % 3;
    const query x = find_query_back(args, m.j.s, m.j.w.head, (u32)m.base + tile * OTHER + t);
    m.rows[slot][t] = row_of(x);
    m.q[slot][t] = x.line;
    m.dout[slot][t] = x.line == ABSENT ? ABSENT : line_of(args.dout, m.j.s.q, x.head, x.i);
}

/* Which weights of 16 keys from j on (this thread's of half 0) and a tile of queries are dropped: bit 4 n + e is
 * that of accumulator e of block n. Lanes of four keys in a row each make the words of one of two queries and
 * of one half. */
__device__ __forceinline__ u32 find_dropped_keys(const attention_cuda_args &args, const dropout &drop, const row *rows,
                                                 s64 line, s64 j)
{
    const int own = lane() / 4 % 4, head = lane() & ~12;
    u32 dropped = 0;
#pragma unroll 1
    for (int n = 0; n < OTHER / 8; n++) {
        const row &x = rows[8 * n + lane() % 4 * 2 + own % 2];
        const words w = make_words(drop, line + x.head, x.i, j - own + own / 2 * 8);
        u32 bits = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) bits |= (u32)(w.w[i] < args.threshold) << i;
#pragma unroll
        for (int e = 0; e < 4; e++) dropped |= (__shfl_sync(0xffffffffu, bits, head + 4 * e) >> own & 1) << (4 * n + e);
    }
    return dropped;
}

/* Products of keys (own) and queries (others) become weights and the gradients of products. */
__device__ __forceinline__ void differentiate(const attention_cuda_args &args, const units &u, const dropout &drop,
                                              const shared &m, int tile, tile_t &t, tile_t &dp)
{
    const row *rows = m.rows[tile % 3];
    const s64 line = m.j.s.n * args.heads;
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        const int j = (int)m.j.first + warp_line() + 16 * b + lane() / 4;
        u32 dropped = 0;
        if constexpr (DROPOUT) dropped = find_dropped_keys(args, drop, rows, line, j);
#pragma unroll
        for (int n = 0; n < OTHER / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const row &x = rows[8 * n + lane() % 4 * 2 + e % 2];
                const bool drops = dropped >> (4 * n + e) & 1;
                const pair p = find_pair(args, u, x, j + e / 2 * 8, t[b][n][e], dp[b][n][e], drops);
                t[b][n][e] = p.weight;
                dp[b][n][e] = p.ds;
            }
    }
}

/* Keys of the job; how many tiles of queries see them. */
__device__ __forceinline__ int prepare(const attention_cuda_args &args, const share &w, shared &m)
{
    const sequence s = find_sequence(args, w.n);
    const s64 first = w.tile * OWN, last = min(first + OWN, s.k.count) - 1;
    find_job(args, w, s, s.k.count, m.j);
    /* Queries [low, high) see one of these keys. */
    const s64 low = clamp_of(first - s.shift - args.right + 1, 0, s.q.count);
    const s64 high = clamp_of(last - s.shift + args.left, low, s.q.count);
    if (threadIdx.x == 0) m.base = low * args.group;
    if (threadIdx.x < OWN) {
        const key_place at = find_key(args, s, (u32)first + threadIdx.x);
        m.k[threadIdx.x] = key_line(args.k, at, w.head);
        m.v[threadIdx.x] = key_line(args.v, at, w.head);
    }
    __syncthreads();
    find_rows(args, 0, m);
    find_rows(args, 1, m);
    __syncthreads();
    return (int)(((high - low) * args.group + OTHER - 1) / OTHER);
}

__device__ __forceinline__ void store_results(const attention_cuda_args &args, const shared &m, float *memory, int columns,
                                              const float (&dk)[BLOCKS][D_PART / 8][4],
                                              const float (&dv)[BLOCKS][V_PART / 8][4])
{
#pragma unroll 1
    for (int part = 0; part < 2 * BLOCKS; part++) {
        const int r = line_of_part(part);
        const bool there = r < m.j.count;
        const s64 j = m.j.first + r;
        const s64 to_k = there ? line_of(args.d_k, m.j.s.k, m.j.w.head, j) : ABSENT;
        const s64 to_v = there ? line_of(args.d_v, m.j.s.k, m.j.w.head, j) : ABSENT;
        store_lines(memory, args.d_k, to_k, dk, part, (float)args.scale, columns * D_PART, args.d);
        store_lines(memory, args.d_v, to_v, dv, part, 1, columns * V_PART, args.dv);
    }
}

__device__ __forceinline__ void gradient(const attention_cuda_args &args, int tiles, char *memory, shared &m)
{
    const u32 k = shared_address(memory), v = k + OWN * D_PITCH, q = v + OWN * V_PITCH;
    const u32 dout = q + STAGES * OTHER * D_PITCH;
    const int columns = (int)threadIdx.x / (32 * GROUPS); /* the part of this warp */
    const units u = find_units(args);
    const dropout drop = find_dropout(args);
    const auto bring = [&](int tile) {
        fetch<OTHER, D_WIDE>(q + tile % STAGES * OTHER * D_PITCH, args.q, m.q[tile % 3], args.d);
        fetch<OTHER, V_WIDE>(dout + tile % STAGES * OTHER * V_PITCH, args.dout, m.dout[tile % 3], args.dv);
    };
    fetch<OWN, D_WIDE>(k, args.k, m.k, args.d);
    fetch<OWN, V_WIDE>(v, args.v, m.v, args.dv);
    if (tiles > 0) bring(0);
    copies_commit();
    float dk[BLOCKS][D_PART / 8][4], dv[BLOCKS][V_PART / 8][4];
    clear(dk);
    clear(dv);
#pragma unroll 1
    for (int tile = 0; tile < tiles; tile++) {
        const u32 rows = q + tile % STAGES * OTHER * D_PITCH, douts = dout + tile % STAGES * OTHER * V_PITCH;
        copies_wait<0>();
        __syncthreads(); /* this tile has come, the one before is used */
        if (STAGES > 1 && tile + 1 < tiles) bring(tile + 1);
        copies_commit();
        find_rows(args, tile + 2, m);
        tile_t t, dp;
        clear(t);
        clear(dp);
        multiply_lines<D_WIDE>(t, k, rows);
        multiply_lines<V_WIDE>(dp, v, douts);
        differentiate(args, u, drop, m, tile, t, dp);
        add_lines<V_WIDE>(dv, t, douts, columns * V_PART);
        add_lines<D_WIDE>(dk, dp, rows, columns * D_PART);
        if constexpr (STAGES == 1) {
            __syncthreads();
            if (tile + 1 < tiles) bring(tile + 1);
            copies_commit();
        }
    }
    copies_wait<0>();
    __syncthreads(); /* tiles are used */
    store_results(args, m, (float *)memory, columns, dk, dv);
}

extern "C" __global__ void __launch_bounds__(THREADS, THREADS > 128 ? 1 : 2) attention_sm80_dkv(const attention_cuda_args args)
{
    overlap_wait();
    extern __shared__ __align__(16) char memory[];
    __shared__ shared m;
    share w;
    for (s64 index = blockIdx.x; find_share(args, args.cu_k, args.keys, 1, 1, index, w); index += gridDim.x) {
        const int tiles = prepare(args, w, m);
        if (m.j.count > 0) gradient(args, tiles, memory, m);
        __syncthreads();
    }
}
