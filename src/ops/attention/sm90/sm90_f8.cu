/* SPDX-License-Identifier: Apache-2.0
 * Attention forward of 8-bit floats on Hopper: sm90.cu with operands of half the size, and three
 * differences.
 *
 * Values. The tensor core wants 8-bit operands with the summed dimension, here keys, inside a row; memory has
 * columns there. So TMA brings a tile of values as it lies, and three warps that would else be
 * idle transpose it by 8x8 blocks of pairs of bytes. The order of keys is that in which accumulators hold
 * scores (a thread has 2 of 8 keys, and next to them 2 of the following 8), so that weights become operands
 * without any exchange; the order of columns (in 16 the even ones, then the odd ones) is the one that
 * writes blocks without conflicts, and gives a thread 4 columns of out side by side.
 *
 * Weights are rounded to e4m3 times 2^8, where their maximum is 1: what is above 2^-14 has all its four digits.
 *
 * Sums. An accumulator of 8-bit products keeps 13 bits behind the point of its largest term, and cuts what is
 * behind them, every time; so each tile begins with an empty one, and is added to f32 sums, which costs no
 * more than scaling them does.
 *
 * AHEAD: the next tile's keys are multiplied before this one's values, whose sums then are registers
 * besides; else a warpgroup's products and exponentials alternate, and parts of values, two at a time, use the
 * registers of scores.
 *
 * Prologue: GROUPS (warpgroups that multiply), KEYS (of a tile), STAGES (tiles in each ring), TURNS (ping-pong), CLAIMED,
 * AHEAD; D_STEPS (of 32 columns of q), D_CHUNKS and V_CHUNKS (of 128), COLUMNS (of out, padded), PARTS (in which
 * they are multiplied); PACKED_Q PACKED_K COUNTED_Q COUNTED_K BOTTOM_RIGHT SINKS LSE as there; types q_t k_t v_t out_t
 * sink_t; multiply_keys(scores, q, k, add), multiply_values(sums, weights, v, add). */
#include "kernels/math.cuh"
#include "kernels/overlap.cuh"
#include "kernels/vector.cuh"

typedef q_t in_t; /* bytes are only moved */
typedef float bias_t;
constexpr bool PLAIN = true, CAP = false, ALIBI = false, BIAS = false, MASK = false;
constexpr int PIECE = 0, SUMS = COLUMNS / 2, QUERIES = 1;

#include "ops/attention/sm90/sm90_tiles.cuh"

constexpr int PART = COLUMNS / PARTS;
constexpr int PITCH = 16 * COLUMNS; /* bytes of 16 keys of transposed values */
constexpr int TURNED_BYTES = KEYS * COLUMNS;
constexpr int TURNERS = 3;  /* warps */
constexpr int ARRIVING = 1; /* of their lanes, when values are read: as in ops/grouped_gemm/sm90/sm90.cu */
constexpr float LIFT = 8, LOWER = 0.00390625f;

static_assert(GROUPS == 2 || GROUPS == 3, "registers are dealt out so");
static_assert(KEYS % 32 == 0 && KEYS <= 256, "whole steps of weights, one instruction across");
static_assert(COLUMNS % (16 * PARTS) == 0 && PART <= 256, "whole blocks, one instruction across");
static_assert(!AHEAD || PARTS == 1, "parts use the registers of scores");

/* Numbers of a job: of scores, in units of log 2, and of results. */
struct factors {
    float scores, values;
};

/* What warps tell each other. */
struct board {
    job jobs[CYCLE]; /* by their place in the cycle */
    factors scales[CYCLE];
    int rows[STAGES]; /* keys of each tile of values as it comes; -1: no more tiles */
};

/* Addresses of everything by that of q and of barriers: warps that load have few registers. */
struct memory {
    u32 q;
    barriers bar;
    board *b;
    __device__ __forceinline__ u32 k(int i) const { return q + GROUPS * Q_BYTES + i * K_BYTES; }
    __device__ __forceinline__ u32 raw(int i) const { return k(STAGES) + i * V_BYTES; }
    __device__ __forceinline__ u32 v(int i) const { return raw(STAGES) + i * TURNED_BYTES; }
    __device__ __forceinline__ u32 raw_full(int i) const { return bar.base + 8 * (BARRIERS + i); }
    __device__ __forceinline__ u32 raw_empty(int i) const { return bar.base + 8 * (BARRIERS + STAGES + i); }
};

/* ---- loads, by a whole warp ---- */

__device__ __forceinline__ void load_keys(const attention_sm90_args &a, const memory &m, const ring &r, const job &j,
                                          int tile, int lane)
{
    mbarrier_wait(m.bar.k_empty(r.at), r.parity);
    load_tile(a, m.k(r.at), &a.k, a.k_source, m.bar.k_full(r.at), D_CHUNKS, KEYS, j.key + tile * KEYS,
              j.key_head, j.key_batch, lane);
}

__device__ __forceinline__ void load_values(const attention_sm90_args &a, const memory &m, const ring &r, const job &j,
                                            int tile, int lane)
{
    mbarrier_wait(m.raw_empty(r.at), r.parity);
    if (lane == 0) m.b->rows[r.at] = min(j.keys - tile * KEYS, KEYS);
    load_tile(a, m.raw(r.at), &a.v, a.v_source, m.raw_full(r.at), V_CHUNKS, KEYS, j.key + tile * KEYS,
              j.key_head, j.key_batch, lane);
    /* Threads read what a lane copied, so each lane arrives; the first one has. */
    if (a.direct && lane > 0) mbarrier_arrive(m.raw_full(r.at));
}

__device__ __forceinline__ float factor_of(const attention_sm90_factors &f, int head)
{
    return f.data ? f.data[head * f.stride] : 1;
}

__device__ __forceinline__ void find_factors(const attention_sm90_args &a, const job &j, factors &f)
{
    f.scores = a.scale * factor_of(a.scale_q, j.key_head) * factor_of(a.scale_k, j.key_head);
    f.values = factor_of(a.scale_v, j.key_head);
}

/* Each warpgroup's own 64 rows, when it is done with those before. */
__device__ __forceinline__ void load_queries(const attention_sm90_args &a, const memory &m, const job &j, u32 parity,
                                             int lane)
{
#pragma unroll 1
    for (int group = 0; group < GROUPS; group++) {
        mbarrier_wait(m.bar.q_empty(0, group), parity ^ 1);
        load_tile(a, m.q + group * Q_BYTES, &a.q, a.q_source, m.bar.q_full(0, group), D_CHUNKS, 64, j.row + 64 * group,
                  j.head, j.batch, lane);
    }
}

/* In the order in which room is made: a job's first keys come before the last values of the job before. */
__device__ __forceinline__ void produce(const attention_sm90_args &a, const memory &m)
{
    const int lane = (int)threadIdx.x % 32;
    ring k = {0, 1}, v = {0, 1};
    cycle q = {0};
    int round = 0;
    if (lane == 0) m.b->jobs[q.before()].n = -1;
    for (;;) {
        const job &before = m.b->jobs[q.before()], &j = m.b->jobs[q.at];
        find_next(a, &m.b->jobs[q.at], round, lane);
        if (has_keys(j)) {
            load_keys(a, m, k, j, j.to - 1, lane);
            k.next();
        }
        if (has_keys(before)) {
            load_values(a, m, v, before, before.from, lane);
            v.next();
        }
        if (j.n < 0) break;
        if (lane == 0) find_factors(a, j, m.b->scales[q.at]);
        load_queries(a, m, j, q.parity(), lane);
        q.next();
        for (int tile = j.to - 1; tile > j.from; tile--) {
            load_keys(a, m, k, j, tile - 1, lane);
            k.next();
            load_values(a, m, v, j, tile, lane);
            v.next();
        }
    }
    mbarrier_wait(m.raw_empty(v.at), v.parity);
    if (lane == 0) m.b->rows[v.at] = -1;
    if (a.direct || lane == 0) mbarrier_arrive(m.raw_full(v.at));
    if (lane != 0) return;
    for (int group = 0; group < GROUPS; group++) {
        mbarrier_wait(m.bar.q_empty(0, group), q.parity() ^ 1);
        mbarrier_arrive(m.bar.q_full(0, group));
    }
}

/* ---- values are transposed, by three warps ---- */

/* Four 8x8 blocks of pairs of bytes, transposed; lane l gives the address of row l % 8 of block l / 8. */
__device__ __forceinline__ void load_transposed(u32 address, u32 (&w)[4])
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "r"(address) : "memory");
}

/* Keys of another sequence, or of none, may hold anything, and weights of 0 would not help against NaN.
 * Of a word, `key` and the next one. */
__device__ __forceinline__ u32 kept_pair(u32 word, int key, int rows)
{
    return word & ((key < rows ? 0xffffu : 0) | (key + 1 < rows ? 0xffff0000u : 0));
}

/* BLOCKS of 32 keys by 16 columns side by side: a thread gets of two columns 2 keys of each 8, and stores 4 of each 16 as
 * a word. Neighbours of a block are at places that differ from its own by a bit of the swizzle. */
template <int BLOCKS>
__device__ __forceinline__ void turn_blocks(u32 from, u32 to, int key, int rows, int lane)
{
    u32 w[BLOCKS][4];
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) load_transposed(from ^ b * 16, w[b]);
    if (rows < KEYS)
#pragma unroll
        for (int i = 0; i < 4 * BLOCKS; i++)
            w[i / 4][i % 4] = kept_pair(w[i / 4][i % 4], key + i % 4 * 8 + lane % 4 * 2, rows);
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
        store_matrices(to + b * 256, __byte_perm(w[b][0], w[b][1], 0x6420), __byte_perm(w[b][0], w[b][1], 0x7531),
                       __byte_perm(w[b][2], w[b][3], 0x6420), __byte_perm(w[b][2], w[b][3], 0x7531));
}

/* The warps take one after the other what a thread has registers for, or less, so that all have about as much. */
__device__ __forceinline__ void turn_tile(u32 raw, u32 v, int rows, int warp, int lane)
{
    constexpr int DOWN = KEYS / 32, PIECES = COLUMNS / 16;
    constexpr int BLOCKS = PIECES % 2 ? 1 : PIECES % 4 || GROUPS == 3 || DOWN * PIECES < 48 ? 2 : 4;
#pragma unroll 1
    for (u32 i = (u32)warp; i < DOWN * PIECES / BLOCKS; i += TURNERS) {
        const u32 key = i % DOWN * 32, piece = i / DOWN * BLOCKS;
        const u32 from = raw + piece / 8 * KEY_CHUNK + (key + lane) * ROW + (piece % 8 ^ lane % 8) * 16;
        const u32 to = v + (key / 16 + lane / 16) * PITCH + (piece * 16 + lane % 16) * 16;
        turn_blocks<BLOCKS>(from, to, (int)key, rows, lane);
    }
}

__device__ __forceinline__ void turn_values(const memory &m, int warp)
{
    const int lane = (int)threadIdx.x % 32;
    for (ring r = {0, 0};; r.next()) {
        mbarrier_wait(m.raw_full(r.at), r.parity);
        const int rows = m.b->rows[r.at];
        if (rows < 0) return;
        mbarrier_wait(m.bar.v_empty(r.at), r.parity ^ 1);
        turn_tile(m.raw(r.at), m.v(r.at), rows, warp, lane);
        async_fence();
        __syncwarp();
        if (lane < ARRIVING) mbarrier_arrive(m.raw_empty(r.at));
        if (lane == 0) mbarrier_arrive(m.bar.v_full(r.at));
    }
}

/* ---- products ---- */

/* Two weights of a row and the next two that its thread has. */
__device__ __forceinline__ u32 pack(float a, float b, float c, float d)
{
    u16 low, high;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
    return (u32)low | (u32)high << 16;
}

/* The accumulators of 32 columns are the operand of 32 terms. */
__device__ __forceinline__ void pack_weights(const float (&s)[SCORES], u32 (&p)[KEYS / 32][4])
{
#pragma unroll
    for (int i = 0; i < KEYS / 32; i++)
#pragma unroll
        for (int w = 0; w < 4; w++) {
            const int at = 16 * i + w / 2 * 8 + w % 2 * 2;
            p[i][w] = pack(s[at], s[at + 1], s[at + 4], s[at + 5]);
        }
}

/* Of one tile and part, from 0. */
__device__ __forceinline__ void issue_values(float (&t)[PART / 2], const u32 (&p)[KEYS / 32][4], u32 v)
{
    const u64 b = wgmma_operand<0>(v, PITCH, 128);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < KEYS / 32; i++) multiply_values(t, p[i], wgmma_advance(b, i * 2 * PITCH), i);
    wgmma_commit();
}

__device__ __forceinline__ void add_part(float (&o)[SUMS], const float (&t)[PART / 2], const float (&scale)[2],
                                         int part)
{
#pragma unroll
    for (int i = 0; i < PART / 2; i++) {
        float &sum = o[part * (PART / 2) + i];
        sum = sum * scale[i / 2 % 2] + t[i];
    }
}

/* ---- a job ---- */

/* What a warpgroup is at. */
struct work {
    int group;
    const job &j;
    lines l;
    range whole;  /* tiles that are seen whole */
    float factor; /* of scores */
    /* What is not positive must multiply them before their maximum is looked for, and leave it as it is. */
    __device__ __forceinline__ bool early() const { return !(factor > 0); }
    __device__ __forceinline__ float unit() const { return early() ? 1 : factor; }
};

/* Scores become weights about the new maximum, times 2^LIFT; `scale` is what sums so far are to be multiplied
 * by. Unlike those of 16 bits these have no room above 1 for a center that lags behind, and here, where no products
 * run beside them, row by row is quicker. */
__device__ __forceinline__ void weigh(state &st, float (&s)[SCORES], float unit, float (&scale)[2])
{
    /* -infinity, which the assembler does not know: it would else look for the second row's maximum before it makes
     * the first row's weights, and exponentials would wait for it. */
    float nothing = unit * -INFINITY_F;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float tops[2] = {fmaxf(s[2 * half], nothing), fmaxf(s[2 * half + 1], nothing)}; /* shorter chains */
#pragma unroll
        for (int i = 0; i < SCORES; i++)
            if (i / 2 % 2 == half) tops[i % 2] = fmaxf(tops[i % 2], s[i]);
        float top = fmaxf(tops[0], tops[1]);
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        top = fmaxf(top, st.max[half]);
        /* A row that has seen no key yet has no maximum. */
        const float center = top == -INFINITY_F ? 0 : top * unit;
        scale[half] = exp2_of(st.max[half] * unit - center);
        st.max[half] = top;
        float sums[2] = {st.sum[half] * scale[half], 0};
#pragma unroll
        for (int i = 0; i < SCORES; i++) {
            if (i / 2 % 2 != half) continue;
            s[i] = exp2_of(s[i] * unit - (center - LIFT));
            sums[i % 2] += s[i];
        }
        st.sum[half] = sums[0] + sums[1];
        nothing = fminf(s[4], nothing); /* once the third of this row's weights is there */
    }
}

/* Scores of a tile become weights. */
__device__ __forceinline__ void soften(const attention_sm90_args &a, const work &w, float (&s)[SCORES], int tile,
                                       state &st, float (&scale)[2])
{
    if (w.early())
#pragma unroll
        for (int i = 0; i < SCORES; i++) s[i] *= w.factor;
    make_scores(a, w.l, s, tile * KEYS, tile < w.whole.from || tile >= w.whole.to, 0);
    weigh(st, s, w.unit(), scale);
}

/* Products of queries with a tile of keys, when they are there. */
__device__ __forceinline__ void finish_keys(const memory &m, ring &k, float (&s)[SCORES])
{
    wgmma_hold(s);
    release(m.bar.k_empty(k.at));
    k.next();
}

__device__ __forceinline__ void attend_ahead(const attention_sm90_args &a, const memory &m, const work &w, u32 q,
                                             ring &k, ring &v, turn &t, float (&o)[SUMS], state &st)
{
    u32 p[KEYS / 32][4];
    float scale[2];
    int tile = w.j.to - 1;
    const int from = w.j.from;
    mbarrier_wait(m.bar.k_full(k.at), k.parity);
    {
        float s[SCORES];
        issue_keys(s, q, m.k(k.at));
        wgmma_wait<0>();
        finish_keys(m, k, s);
        soften(a, w, s, tile, st, scale);
        pack_weights(s, p);
    }
    if (tile > from) mbarrier_wait(m.bar.k_full(k.at), k.parity);
#pragma unroll 1
    while (--tile >= from) {
        float s[SCORES], fresh[PART / 2], next[2];
        t.begin();
        issue_keys(s, q, m.k(k.at));
        mbarrier_wait(m.bar.v_full(v.at), v.parity);
        issue_values(fresh, p, m.v(v.at));
        t.end(m.bar);
        wgmma_wait<1>();
        finish_keys(m, k, s);
        soften(a, w, s, tile, st, next);
        /* As in sm90.cu: a branch, or the wait for values would move up to the one for keys. */
        wgmma_hold(s);
        if (tile > from) mbarrier_wait(m.bar.k_full(k.at), k.parity);
        wgmma_wait<0>();
        wgmma_hold(fresh);
        wgmma_hold(s);
        release(m.bar.v_empty(v.at));
        v.next();
        add_part(o, fresh, scale, 0);
        scale[0] = next[0];
        scale[1] = next[1];
        pack_weights(s, p);
    }
    release(m.bar.q_empty(0, w.group));
    mbarrier_wait(m.bar.v_full(v.at), v.parity);
    float fresh[PART / 2];
    issue_values(fresh, p, m.v(v.at));
    wgmma_wait<0>();
    wgmma_hold(fresh);
    release(m.bar.v_empty(v.at));
    v.next();
    add_part(o, fresh, scale, 0);
}

/* One part is multiplied while the one before it is added. */
__device__ __forceinline__ void add_parts(const memory &m, const ring &v, const u32 (&p)[KEYS / 32][4],
                                          const float (&scale)[2], float (&o)[SUMS])
{
    float fresh[2][PART / 2];
    issue_values(fresh[0], p, m.v(v.at));
#pragma unroll
    for (int part = 1; part < PARTS; part++) {
        issue_values(fresh[part % 2], p, m.v(v.at) + part * PART * 16);
        wgmma_wait<1>();
        wgmma_hold(fresh[(part + 1) % 2]);
        add_part(o, fresh[(part + 1) % 2], scale, part - 1);
    }
    wgmma_wait<0>();
    wgmma_hold(fresh[(PARTS + 1) % 2]);
    add_part(o, fresh[(PARTS + 1) % 2], scale, PARTS - 1);
}

/* Ping-pong: a warpgroup has the tensor cores from a tile's values to the next one's keys. */
__device__ __forceinline__ void attend_in_turn(const attention_sm90_args &a, const memory &m, const work &w, u32 q,
                                               ring &k, ring &v, turn &t, float (&o)[SUMS], state &st)
{
    const int from = w.j.from, last = w.j.to - 1;
#pragma unroll 1
    for (int tile = last; tile >= from; tile--) {
        float s[SCORES], scale[2];
        u32 p[KEYS / 32][4];
        mbarrier_wait(m.bar.k_full(k.at), k.parity);
        issue_keys(s, q, m.k(k.at));
        if (tile < last) t.end(m.bar);
        wgmma_wait<0>();
        finish_keys(m, k, s);
        if (tile == from) release(m.bar.q_empty(0, w.group));
        soften(a, w, s, tile, st, scale);
        pack_weights(s, p);
        mbarrier_wait(m.bar.v_full(v.at), v.parity);
        t.begin();
        add_parts(m, v, p, scale, o);
        release(m.bar.v_empty(v.at));
        v.next();
    }
    t.end(m.bar);
}

__device__ __forceinline__ void consume(const attention_sm90_args &a, const memory &m, int group)
{
    const int line = group * 64 + (int)threadIdx.x / 32 % 4 * 16 + (int)threadIdx.x % 32 / 4;
    ring k = {0, 0}, v = {0, 0};
    turn t(m.bar, group);
    for (cycle c = {0};; c.next()) {
        mbarrier_wait(m.bar.q_full(0, group), c.parity());
        const job &j = m.b->jobs[c.at]; /* there, not in registers */
        const factors &scales = m.b->scales[c.at];
        if (j.n < 0) return;
        const work w = {group, j, {j, j.first + line}, whole_tiles(a, j, j.first + 64 * group, j.first + 64 * group + 63),
                        scales.scores};
        float o[SUMS];
        state st = {{-INFINITY_F, -INFINITY_F}, {0, 0}};
#pragma unroll
        for (int i = 0; i < SUMS; i++) o[i] = 0;
        const u32 q = m.q + group * Q_BYTES;
        if (j.from >= j.to)
            release(m.bar.q_empty(0, group));
        else if constexpr (AHEAD)
            attend_ahead(a, m, w, q, k, v, t, o, st);
        else
            attend_in_turn(a, m, w, q, k, v, t, o, st);
        st.sum[0] *= LOWER; /* weights are times 2^LIFT */
        st.sum[1] *= LOWER;
        store_fours(finish_job(a, j, st, line, w.unit(), LOWER * scales.values), o);
    }
}

/* By all threads, once. */
__device__ __forceinline__ void raw_barriers_init(const attention_sm90_args &a, const memory &m)
{
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(m.raw_full(i), a.direct ? 32 : 1);
            mbarrier_init(m.raw_empty(i), TURNERS * ARRIVING);
            mbarrier_init(m.bar.v_full(i), TURNERS);
        }
        mbarrier_fence_init();
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
attention_sm90_f8(const __grid_constant__ attention_sm90_args a)
{
    extern __shared__ unsigned char dynamic[];
    __shared__ __align__(8) u64 words[BARRIERS + 2 * STAGES];
    __shared__ board shared_board;
    /* the swizzle is one of addresses */
    const memory m = {(shared_address(dynamic) + 1023) & ~1023u, barriers{shared_address(words)}, &shared_board};
    if (threadIdx.x == 0) {
        tma_prefetch(&a.q);
        tma_prefetch(&a.k);
        tma_prefetch(&a.v);
    }
    barriers_init(m.bar);
    raw_barriers_init(a, m);
    overlap_wait();
    const int group = uniform((int)threadIdx.x / 128);
    if (group == GROUPS) {
        registers_give<GIVEN>();
        const int warp = uniform((int)threadIdx.x / 32) - 4 * GROUPS;
        if (warp == 0)
            produce(a, m);
        else
            turn_values(m, warp - 1);
    } else {
        registers_take<TAKEN>();
        consume(a, m, group);
    }
}
