/* SPDX-License-Identifier: Apache-2.0
 * Attention forward on Hopper, after FlashAttention-3 (Shah and others 2024). A persistent block takes
 * jobs of 64 rows of q for each of its warpgroups. One warp lets TMA bring q once and keys and
 * values, tile by tile, into two rings, from the last tile that the rows see to the first. A warpgroup
 * issues the products of q with the next tile's keys before those of its weights with the values of this
 * one, and makes weights of the former while the latter run; and warpgroups ping-pong: one
 * multiplies while others are at their exponentials. The first products of a job run while the results of the one
 * before it are stored. Tiles that no row sees are left out, only tiles on a
 * border are compared with it.
 *
 * Prologue: GROUPS (warpgroups that multiply), KEYS (of a tile), STAGES (tiles in each ring), QUERIES (jobs
 * whose q is there), TURNS (ping-pong), CLAIMED (blocks take the next job by a work counter); D_STEPS (of 16 columns of q),
 * D_CHUNKS and V_CHUNKS (of 64), SUMS (half the columns of out, padded); PACKED_Q PACKED_K COUNTED_Q COUNTED_K (cu_q, cu_k, seq_q, seq_k),
 * BOTTOM_RIGHT, PIECE (of a tile's keys that lie in one page; 0: no pages), PLAIN (scores are products times a
 * positive number), CAP ALIBI BIAS MASK SINKS LSE; types in_t out_t sink_t bias_t;
 * multiply_keys(scores, q, k, add), multiply_values(sums, weights, v, add). */
#include "kernels/math.cuh"
#include "kernels/overlap.cuh"
#include "kernels/vector.cuh"
#include "ops/attention/sm90/sm90_tiles.cuh"

static_assert(sizeof(in_t) == 2, "16-bit operands");
static_assert(KEYS % 16 == 0 && KEYS <= 256, "whole steps of weights, one instruction across");
static_assert(SUMS % 4 == 0 && SUMS <= 128, "one instruction across");

struct memory {
    u32 q, k, v;
    job *jobs; /* by their place in the cycle */
    barriers bar;
};

__device__ __forceinline__ u32 queries_of(const memory &m, int group, int place)
{
    return m.q + (place * GROUPS + group) * Q_BYTES;
}

/* ---- loads, by a whole warp ---- */

/* A tile of keys or values, from `key` on: pieces of pages. Absent pages are read as zeros. */
__device__ __forceinline__ void load_pages(const attention_sm90_args &a, u32 to, const mica_tensor_map *map,
                                           const attention_sm90_source &s, u32 bar, int chunks, int key, const job &j,
                                           int lane)
{
    if (lane == 0 && !a.direct) mbarrier_arrive_expect(bar, chunks * KEY_CHUNK);
#pragma unroll 1
    for (int i = 0; i < KEYS; i += RUN) {
        const int page = page_of(a, j.n, key + i);
        const int row = page < 0 ? s.rows : (key + i) % a.pages.size;
        if (a.direct)
            copy_tile(to + i * ROW, s, chunks, KEYS, RUN, row, j.key_head, max(page, 0), lane);
        else if (lane == 0)
#pragma unroll 1
            for (int c = 0; c < chunks; c++)
                tma_load(to + c * KEY_CHUNK + i * ROW, map, bar, 64 * c, row, j.key_head, max(page, 0));
    }
    if (lane == 0 && a.direct) mbarrier_arrive(bar);
}

__device__ __forceinline__ void load_rows(const attention_sm90_args &a, u32 to, const mica_tensor_map *map,
                                          const attention_sm90_source &s, u32 bar, int chunks, const job &j, int tile,
                                          int lane)
{
    if constexpr (PIECE > 0)
        load_pages(a, to, map, s, bar, chunks, tile * KEYS, j, lane);
    else
        load_tile(a, to, map, s, bar, chunks, KEYS, j.key + tile * KEYS, j.key_head, j.key_batch, lane);
}

__device__ __forceinline__ void load_keys(const attention_sm90_args &a, const memory &m, const ring &r, const job &j,
                                          int tile, int lane)
{
    mbarrier_wait(m.bar.k_empty(r.at), r.parity);
    load_rows(a, m.k + r.at * K_BYTES, &a.k, a.k_source, m.bar.k_full(r.at), D_CHUNKS, j, tile, lane);
}

/* Rows of another sequence, or of none, may hold anything, and weights of 0 would not help against NaN. */
__device__ __forceinline__ void clear_rows(u32 v, int from, int lane)
{
    const u32 zeros[4] = {0, 0, 0, 0};
    for (int c = 0; c < V_CHUNKS; c++)
        for (int at = from * ROW + lane * 16; at < KEY_CHUNK; at += 32 * 16) shared_store(v + c * KEY_CHUNK + at, zeros);
    async_fence();
    __syncwarp();
}

__device__ __forceinline__ void load_values(const attention_sm90_args &a, const memory &m, const ring &r, const job &j,
                                            int tile, u32 &landed, int lane)
{
    const int rows = j.keys - tile * KEYS;
    const bool more = PIECE > 0 || j.key + j.keys < a.k_source.rows;
    const bool foreign = (PACKED_K || COUNTED_K) && rows < KEYS && more;
    const u32 to = m.v + r.at * V_BYTES, full = m.bar.v_full(r.at), bar = foreign ? m.bar.landed() : full;
    mbarrier_wait(m.bar.v_empty(r.at), r.parity);
    load_rows(a, to, &a.v, a.v_source, bar, V_CHUNKS, j, tile, lane);
    if (!foreign) return;
    mbarrier_wait(bar, landed);
    landed ^= 1;
    clear_rows(to, rows, lane);
    if (lane == 0) mbarrier_arrive(full);
}

/* Each warpgroup's own 64 rows, when it is done with those before: it need not wait for others. */
__device__ __forceinline__ void load_queries(const attention_sm90_args &a, const memory &m, const job &j,
                                             const cycle &q, int lane)
{
#pragma unroll 1
    for (int group = 0; group < GROUPS; group++) {
        const int place = q.place();
        mbarrier_wait(m.bar.q_empty(place, group), q.parity() ^ 1);
        load_tile(a, queries_of(m, group, place), &a.q, a.q_source, m.bar.q_full(place, group), D_CHUNKS, 64,
                  j.row + 64 * group, j.head, j.batch, lane);
    }
}

/* In the order in which room is made: a job's first keys come before the last values of the job before. */
__device__ __forceinline__ void produce(const attention_sm90_args &a, const memory &m)
{
    const int lane = (int)threadIdx.x % 32;
    ring k = {0, 1}, v = {0, 1};
    cycle q = {0};
    u32 landed = 0;
    int round = 0;
    if (lane == 0) m.jobs[q.before()].n = -1;
    for (;;) {
        const job &before = m.jobs[q.before()], &j = m.jobs[q.at];
        find_next(a, &m.jobs[q.at], round, lane);
        if (has_keys(j)) {
            load_keys(a, m, k, j, j.to - 1, lane);
            k.next();
        }
        if (has_keys(before)) {
            load_values(a, m, v, before, before.from, landed, lane);
            v.next();
        }
        if (j.n < 0) break;
        load_queries(a, m, j, q, lane);
        q.next();
        for (int tile = j.to - 1; tile > j.from; tile--) {
            load_keys(a, m, k, j, tile - 1, lane);
            k.next();
            load_values(a, m, v, j, tile, landed, lane);
            v.next();
        }
    }
    if (lane != 0) return;
    for (int group = 0; group < GROUPS; group++) {
        mbarrier_wait(m.bar.q_empty(q.place(), group), q.parity() ^ 1);
        mbarrier_arrive(m.bar.q_full(q.place(), group));
    }
}

/* ---- products ---- */

__device__ __forceinline__ u32 pack(float low, float high)
{
    const in_t l = narrow<in_t>(low), h = narrow<in_t>(high);
    return (u32)l.bits | (u32)h.bits << 16;
}

/* The accumulators of 16 columns are, in 16 bits, the operand of 16 terms. */
__device__ __forceinline__ void pack_weights(const float (&s)[SCORES], u32 (&p)[KEYS / 16][4])
{
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++)
#pragma unroll
        for (int w = 0; w < 4; w++) p[i][w] = pack(s[8 * i + 2 * w], s[8 * i + 2 * w + 1]);
}

/* Sums of before are added, or not looked at. */
__device__ __forceinline__ void issue_values(float (&o)[SUMS], const u32 (&p)[KEYS / 16][4], u32 v, bool add)
{
    const u64 b = wgmma_operand<128>(v, KEY_CHUNK, 8 * ROW);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++) multiply_values(o, p[i], wgmma_advance(b, i * 16 * ROW), i > 0 || add);
    wgmma_commit();
}

__device__ __forceinline__ void scale_sums(float (&o)[SUMS], const float (&scale)[2])
{
#pragma unroll
    for (int i = 0; i < SUMS; i++) o[i] *= scale[i / 2 % 2];
}

/* Sums of a job that is done: nobody looks at them again. Without this the assembler takes them along to the next job,
 * and lets each product wait for the one before. */
__device__ __forceinline__ void forget(float (&o)[SUMS])
{
#pragma unroll
    for (int i = 0; i < SUMS; i++) asm volatile("" : "=f"(o[i]));
}

/* ---- a job ---- */

/* The job at a place, once its queries are there. */
__device__ __forceinline__ const job &wait_job(const memory &m, int group, const cycle &q)
{
    mbarrier_wait(m.bar.q_full(q.place(), group), q.parity());
    return m.jobs[q.at];
}

/* The products of q with a job's first tile begin; without `some` keys, or no job at all, nothing is waited for, and
 * they are of no use. */
__device__ __forceinline__ void begin(const memory &m, bool some, int group, int place, const ring &k,
                                      float (&s)[SCORES])
{
    if (some) mbarrier_wait(m.bar.k_full(k.at), k.parity);
    issue_keys(s, queries_of(m, group, place), m.k + k.at * K_BYTES);
}

/* Sums over all tiles of the job, in o and st; the products of its first tile have begun. At the end those of its
 * last weights are in flight. */
__device__ __forceinline__ void attend(const attention_sm90_args &a, const memory &m, const job &j, int group, int line,
                                       int place, float unit, ring &k, ring &v, turn &t, float (&s)[SCORES],
                                       float (&o)[SUMS], state &st)
{
    const lines l = {j, j.first + line};
    const range whole = whole_tiles(a, j, j.first + 64 * group, j.first + 64 * group + 63);
    const u32 q = queries_of(m, group, place);
    u32 p[KEYS / 16][4];
    int tile = j.to - 1;
    const int from = j.from;
    bool add = false;
    release(m.bar.k_empty(k.at));
    if (tile == from) release(m.bar.q_empty(place, group));
    k.next();
    bool border = tile < whole.from || tile >= whole.to;
    make_scores(a, l, s, tile * KEYS, border, absent_pieces(a, j, tile));
    weighing w = find_centers(st, s, unit, border);
    make_weights(st, w, s, unit);
    pack_weights(s, p);
    if ((tile > from) | is_negative(st)) mbarrier_wait(m.bar.k_full(k.at), k.parity);
#pragma unroll 1
    while (--tile >= from) {
        t.begin();
        issue_keys(s, q, m.k + k.at * K_BYTES);
        mbarrier_wait(m.bar.v_full(v.at), v.parity);
        issue_values(o, p, m.v + v.at * V_BYTES, add);
        add = true;
        t.end(m.bar);
        const u32 absent = absent_pieces(a, j, tile);
        wgmma_wait<1>();
        wgmma_hold(s);
        release(m.bar.k_empty(k.at));
        if (tile == from) release(m.bar.q_empty(place, group));
        k.next();
        border = tile < whole.from || tile >= whole.to;
        make_scores(a, l, s, tile * KEYS, border, absent);
        w = find_centers(st, s, unit, border);
        make_weights(st, w, s, unit);
        /* The assembler would move the wait for values up to the one for keys, were there no branch. */
        wgmma_hold(s);
        if ((tile > from) | is_negative(st)) mbarrier_wait(m.bar.k_full(k.at), k.parity);
        wgmma_wait<0>();
        wgmma_hold(o);
        wgmma_hold(s);
        release(m.bar.v_empty(v.at));
        v.next();
        pack_weights(s, p);
        if (w.moved) scale_sums(o, w.scale);
    }
    mbarrier_wait(m.bar.v_full(v.at), v.parity);
    issue_values(o, p, m.v + v.at * V_BYTES, add);
}

/* The first products of the next job run beside the last ones of this job and while its results are stored. */
__device__ __forceinline__ void consume(const attention_sm90_args &a, const memory &m, int group)
{
    const int line = group * 64 + (int)threadIdx.x / 32 % 4 * 16 + (int)threadIdx.x % 32 / 4;
    const float unit = PLAIN ? a.scale : NATURAL ? LOG2E : 1;
    ring k = {0, 0}, v = {0, 0};
    turn t(m.bar, group);
    cycle q = {0};
    float s[SCORES], o[SUMS];
    const job *j = &wait_job(m, group, q); /* there, not in registers */
    bool more = j->n >= 0, some = has_keys(*j); /* of j; looked up early, not where they are needed */
    begin(m, some, group, q.place(), k, s);
    while (more) {
        const int place = q.place();
        q.next();
        state st = {{-INFINITY_F, -INFINITY_F}, {0, 0}};
        wgmma_wait<0>();
        wgmma_hold(s);
        forget(o);
        if (some)
            attend(a, m, *j, group, line, place, unit, k, v, t, s, o, st);
        else
            release(m.bar.q_empty(place, group));
        const job *next = &wait_job(m, group, q);
        const bool next_has = has_keys(*next);
        more = next->n >= 0;
        begin(m, next_has, group, q.place(), k, s);
        wgmma_wait<1>();
        wgmma_hold(o);
        if (some) {
            release(m.bar.v_empty(v.at));
            v.next();
        }
        store_rows(finish_job(a, *j, st, line, unit, 1), o);
        j = next;
        some = next_has;
    }
    wgmma_wait<0>();
    wgmma_hold(s);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
attention_sm90(const __grid_constant__ attention_sm90_args a)
{
    extern __shared__ unsigned char dynamic[];
    __shared__ __align__(8) u64 words[BARRIERS];
    __shared__ job jobs[CYCLE];
    const u32 q = (shared_address(dynamic) + 1023) & ~1023u; /* the swizzle is one of addresses */
    const u32 k = q + QUERIES * GROUPS * Q_BYTES;
    const memory m = {q, k, k + STAGES * K_BYTES, jobs, barriers{shared_address(words)}};
    if (threadIdx.x == 0) {
        tma_prefetch(&a.q);
        tma_prefetch(&a.k);
        tma_prefetch(&a.v);
    }
    barriers_init(m.bar);
    overlap_wait();
    const int group = uniform((int)threadIdx.x / 128);
    if (group == GROUPS) {
        if constexpr (GROUPS > 1) registers_give<GIVEN>();
        if (uniform((int)threadIdx.x / 32) == 4 * GROUPS) produce(a, m);
    } else {
        if constexpr (GROUPS > 1) registers_take<TAKEN>();
        consume(a, m, group);
    }
}
