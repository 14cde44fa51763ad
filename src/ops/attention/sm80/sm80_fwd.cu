/* SPDX-License-Identifier: Apache-2.0
 * Attention forward on the tensor cores of sm_80: a block keeps rows of queries; keys and values travel
 * past it in tiles. Values come while keys are multiplied, the next keys while values are. With splits > 1
 * each block sees a part of the keys, and attention_cuda_merge.cu does the rest.
 *
 * Prologue: that of sm80.cuh. */
#include "kernels/overlap.cuh"
#include "ops/attention/sm80/sm80.cuh"
#include "ops/attention/cuda/attention_cuda_finish.cuh"

constexpr int SCORES = OTHER / 8, SUMS = V_WIDE / 8;

typedef float scores_t[BLOCKS][SCORES][4];
typedef float sums_t[BLOCKS][SUMS][4];

struct state {
    float max[BLOCKS][2], sum[BLOCKS][2]; /* sum: this thread's columns only */
};

/* What a block knows of a tile of keys; there are two, used alternately. */
struct key_tile {
    s64 k[OTHER], v[OTHER];
    u32 absent[2]; /* keys whose pages are, a bit each */
};

struct shared {
    job j;
    attention_operand to; /* out, or what a merge reads */
    row rows[OWN];
    key_tile keys[2];
    s64 lines[OWN]; /* of q */
};

__device__ __forceinline__ void find_keys(const attention_cuda_args &args, int tile, shared &m)
{
    constexpr int WHOLE = (OTHER + 31) / 32 * 32;
    const int t = (int)threadIdx.x;
    if (t >= WHOLE) return;
    key_tile &keys = m.keys[tile % 2];
    key_place at = {};
    if (t < OTHER) {
        at = find_key(args, m.j.s, (u32)(tile * OTHER + t));
        keys.k[t] = key_line(args.k, at, m.j.w.head);
        keys.v[t] = key_line(args.v, at, m.j.w.head);
    }
    const u32 absent = __ballot_sync(0xffffffffu, at.batch < 0);
    if (t % 32 == 0) keys.absent[t / 32] = absent;
}

/* Products become scores; those that a row does not see, -infinity. */
__device__ __forceinline__ void make_scores(const attention_cuda_args &args, const units &u, const shared &m, int tile,
                                            scores_t &s)
{
    const int first = tile * OTHER + lane() % 4 * 2;
    const u32 *absent = m.keys[tile % 2].absent;
    const bool holes = args.pages.data != nullptr;
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const row &x = m.rows[warp_line() + 16 * b + 8 * half + lane() / 4];
            const int from = x.from, to = x.to;
            /* All rows of a warp see whole tiles more often than not. */
            const bool border = from > tile * OTHER || to < (tile + 1) * OTHER;
            if (PLAIN && !__any_sync(0xffffffffu, border) && !holes) continue;
#pragma unroll
            for (int n = 0; n < SCORES; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float &v = s[b][n][2 * half + e], slope;
                    const int j = first + 8 * n + e;
                    const bool hole = holes && absent[n / 4] >> (n % 4 * 8 + lane() % 4 * 2 + e) & 1;
                    if constexpr (PLAIN)
                        v = j < from || j >= to || hole ? -INFINITY_F : v;
                    else
                        v = sees(args, x, j) && !hole ? find_score(args, u, x, j, v, slope) : -INFINITY_F;
                }
        }
}

/* The weight of a score, about `top`. Of products alone in one instruction; other scores, which distances and
 * biases make large, lose least if their difference comes first. */
__device__ __forceinline__ float find_weight(float unit, float v, float top)
{
    if constexpr (PLAIN) return exp2_of(v * unit - top * unit);
    return exp2_of((v - top) * unit);
}

/* Scores become weights about the new maximum; sums so far follow it. */
__device__ __forceinline__ void make_weights(float unit, state &st, scores_t &s, sums_t &out)
{
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float top = st.max[b][half];
#pragma unroll
            for (int n = 0; n < SCORES; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) top = fmaxf(top, s[b][n][2 * half + e]);
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
            /* A row that has seen no key yet has no maximum. */
            const float center = top == -INFINITY_F ? 0 : top;
            const float factor = find_weight(unit, st.max[b][half], center);
            st.max[b][half] = top;
            float sum = st.sum[b][half] * factor;
#pragma unroll
            for (int n = 0; n < SCORES; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float &v = s[b][n][2 * half + e];
                    v = find_weight(unit, v, center);
                    sum += v;
                }
            st.sum[b][half] = sum;
            /* Maxima soon stand: rows of a warp whose sums stay as they are are the rule. */
            if (!__any_sync(0xffffffffu, factor != 1)) continue;
#pragma unroll
            for (int n = 0; n < SUMS; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) out[b][n][2 * half + e] *= factor;
        }
}

__device__ __forceinline__ void drop_weights(const attention_cuda_args &args, const dropout &drop, const shared &m,
                                             int tile, scores_t &s)
{
    const float keep = (float)args.keep_scale;
    const s64 line = m.j.s.n * args.heads;
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        const row *rows = m.rows + warp_line() + 16 * b + lane() / 4;
        const u32 dropped = find_dropped<SCORES>(args, drop, rows, line, tile * OTHER);
#pragma unroll
        for (int n = 0; n < SCORES; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[b][n][e] = dropped >> (4 * n + e) & 1 ? 0 : s[b][n][e] * keep;
    }
}

/* Where the sums of a row go; with splits a merge scales them. */
__device__ __forceinline__ void store_results(const attention_cuda_args &args, const shared &m, float *memory, float scale,
                                              const state &st, const sums_t &out)
{
    const span &rows = m.j.s.q;
#pragma unroll 1
    for (int part = 0; part < 2 * BLOCKS; part++) {
        const int r = line_of_part(part);
        const row &x = m.rows[r];
        float max = 0, sum = 0, factor = 1;
#pragma unroll
        for (int i = 0; i < 2 * BLOCKS; i++)
            if (i == part) max = st.max[i / 2][i % 2], sum = st.sum[i / 2][i % 2];
        max = max == nothing() ? nothing() : max * scale;
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        const bool there = r < m.j.count, first = there && lane() % 4 == 0;
        s64 line = ABSENT;
        if (args.splits > 1) {
            const s64 at = place_of(args, rows, x.head, x.i) * args.splits + m.j.w.split;
            float *stats = (float *)args.partial_stats + 2 * at;
            if (first) stats[0] = max, stats[1] = sum;
            if (there) line = at * args.dv;
        } else {
            const finished f = finish_row(args, x.head, m.j.w.head, max, sum);
            if (args.lse.data && first) ((float *)args.lse.data)[line_of(args.lse, rows, x.head, x.i)] = f.lse;
            if (there) line = line_of(args.out, rows, x.head, x.i);
            factor = f.factor;
        }
        store_lines(memory, m.to, line, out, part, factor, 0, args.dv);
    }
}

/* Rows of the job, tiles [from, to) of its keys. */
__device__ __forceinline__ void prepare(const attention_cuda_args &args, const share &w, shared &m, int &from, int &to)
{
    const sequence s = find_sequence(args, w.n);
    const s64 first = w.tile * OWN, rows = s.q.count * args.group;
    find_job(args, w, s, rows, m.j);
    if (threadIdx.x == 0) {
        m.to = args.out;
        if (args.splits > 1) m.to = {args.partial, {0, 0, 0, 1}, {}, ATTENTION_F32, args.dv % 4 == 0};
    }
    s64 low = 0, high = 0;
    if (first < rows) find_tiles(args, s, w, first, min(first + OWN, rows) - 1, low, high);
    from = (int)low, to = (int)high;
    if (threadIdx.x < OWN) {
        const query x = find_query(args, s, w.head, (u32)first + threadIdx.x);
        m.rows[threadIdx.x] = row_of(x);
        m.lines[threadIdx.x] = x.line;
    }
    __syncthreads();
    if (from < to) find_keys(args, from, m);
    __syncthreads();
}

__device__ __forceinline__ void forward(const attention_cuda_args &args, int from, int to, char *memory, shared &m)
{
    const u32 q = shared_address(memory), k = q + OWN * D_PITCH, v = k + OTHER * D_PITCH;
    const units u = find_units(args);
    const float scale = PLAIN ? u.scale : 1, unit = scale * LOG2E;
    const dropout drop = find_dropout(args);
    fetch<OWN, D_WIDE>(q, args.q, m.lines, args.d);
    if (from < to) fetch<OTHER, D_WIDE>(k, args.k, m.keys[from % 2].k, args.d);
    copies_commit();
    state st = {};
    sums_t out;
    clear(out);
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) st.max[b][0] = st.max[b][1] = nothing();
#pragma unroll 1
    for (int tile = from; tile < to; tile++) {
        copies_wait<0>();
        __syncthreads(); /* keys have come, values before are used */
        fetch<OTHER, V_WIDE>(v, args.v, m.keys[tile % 2].v, args.dv);
        copies_commit();
        if (tile + 1 < to) find_keys(args, tile + 1, m);
        scores_t t;
        clear(t);
        multiply_lines<D_WIDE>(t, q, k);
        copies_wait<0>();
        __syncthreads(); /* values have come, keys are used */
        if (tile + 1 < to) {
            fetch<OTHER, D_WIDE>(k, args.k, m.keys[(tile + 1) % 2].k, args.d);
            copies_commit();
        }
        make_scores(args, u, m, tile, t);
        make_weights(unit, st, t, out);
        if constexpr (DROPOUT) drop_weights(args, drop, m, tile, t);
        add_lines<V_WIDE>(out, t, v, 0);
    }
    copies_wait<0>();
    __syncthreads(); /* tiles are used */
    store_results(args, m, (float *)memory, scale, st, out);
}

extern "C" __global__ void __launch_bounds__(THREADS, THREADS > 128 ? 1 : 2) attention_sm80_fwd(const attention_cuda_args args)
{
    overlap_wait();
    extern __shared__ __align__(16) char memory[];
    __shared__ shared m;
    share w;
    for (s64 index = blockIdx.x; find_queries(args, args.splits, index, w); index += gridDim.x) {
        int from, to;
        prepare(args, w, m, from, to);
        if (m.j.count > 0) forward(args, from, to, memory, m);
        __syncthreads();
    }
}
