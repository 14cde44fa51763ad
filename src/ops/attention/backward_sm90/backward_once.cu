/* SPDX-License-Identifier: Apache-2.0
 * Attention backward on Hopper with scores formed once: as backward.cu, a block keeps keys and values,
 * queries and gradients of out go by, dk and dv grow in registers, and here dq is added up, too. Gradients of
 * scores also go to shared memory, where all keys of the block meet: dq of the tile, LINES x D, is their product
 * with the keys, each warpgroup making 64 x 64 of it. Another warp adds that to f32 sums in memory by TMA,
 * so that nobody waits for it; after FlashAttention-3's backward (Shah and others 2024).
 *
 * Bits do not vary, since the reduction is serialised: blocks of keys add to a part of a tile in the order of the
 * keys, a counter in memory says which is next; the first one stores instead of adding. Thread blocks stay and take one job after the other: jobs that
 * one waits for have been taken before it, and so go on. Tiles go by from the last to the first: blocks that begin
 * together are soon a tile behind one another.
 *
 * Prologue: that of backward.cu with KEYS, SUM_A, SUM_B and ONCE, two GROUPS, and one of
 * LINES = 128, D_CHUNKS = 1 or LINES = 64, D_CHUNKS = 2; multiply_queries(sum, gradients, keys, add). */
#include "kernels/bulk.cuh"
#include "kernels/overlap.cuh"
#include "ops/attention/backward_sm90/backward_tiles.cuh"

constexpr int PART = 64; /* rows and columns of dq that a warpgroup makes */
constexpr int PARTS = LINES / PART * D_CHUNKS;
constexpr int GRADIENTS = LINES / 64 * OWN_CHUNK; /* bytes: rows of 64 queries of a key */
constexpr int PART_BYTES = PART * PART * 4;
constexpr int BOTH = 1; /* the named barrier of both warpgroups */

static_assert(KEYS && SUM_A && SUM_B && ONCE, "all three gradients");
static_assert(PARTS == GROUPS, "a part each");
static_assert(!CAP, "its slope would need registers");

struct places {
    u32 gradients;    /* of scores, twice: one tile is multiplied while the next one is stored */
    u32 parts;        /* of dq, of each warpgroup */
    const job *slots; /* two */
};

/* Number of a job, of which there are two slots. */
struct number_of_job {
    u32 at;
    __device__ __forceinline__ int slot() const { return at % 2; }
    __device__ __forceinline__ u32 parity() const { return at / 2 % 2; }
};

/* ---- dq ---- */

/* Of 64 keys and LINES queries, from operands; rows of keys, so that both sides of the product are along k. */
__device__ __forceinline__ void store_gradients(u32 to, const operand_t &gradients, int group)
{
    const int lane = (int)threadIdx.x % 32, row = group * 64 + (int)threadIdx.x / 32 % 4 * 16 + lane % 16;
#pragma unroll
    for (int i = 0; i < LINES / 16; i++) {
        const int block = 2 * (i % 4) + lane / 16;
        store_matrices(to + i / 4 * OWN_CHUNK + row * ROW + (block ^ row % 8) * 16, gradients[i][0], gradients[i][1],
                       gradients[i][2], gradients[i][3]);
    }
}

/* Queries of chunk group % (LINES / 64) by columns of chunk group / (LINES / 64). */
__device__ __forceinline__ void issue_queries(float (&sum)[PART / 2], u32 gradients, u32 keys, int group)
{
    const u64 a = wgmma_operand<128>(gradients + group % (LINES / 64) * OWN_CHUNK, OWN_CHUNK, 8 * ROW);
    const u64 b = wgmma_operand<128>(keys + group / (LINES / 64) * OWN_CHUNK, OWN_CHUNK, 8 * ROW);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < ROWS / 16; i++)
        multiply_queries(sum, wgmma_advance(a, i * 16 * ROW), wgmma_advance(b, i * 16 * ROW), i);
    wgmma_commit();
}

/* For this warpgroup's adder, in the order in which threads have them. */
__device__ __forceinline__ void leave_part(const memory &m, u32 parts, const float (&sum)[PART / 2], int group,
                                           u32 tile)
{
    const u32 to = parts + group * PART_BYTES + (int)threadIdx.x % 128 * 16;
    mbarrier_wait(m.bar.taken(group), (tile + 1) % 2);
#pragma unroll
    for (int i = 0; i < PART / 8; i++) {
        u32 w[4];
#pragma unroll
        for (int e = 0; e < 4; e++) w[e] = __float_as_uint(sum[4 * i + e]);
        shared_store(to + i * 128 * 16, w);
    }
    async_fence();
    release(m.bar.left(group));
}

/* By one thread: part `part` of all tiles. */
__device__ __forceinline__ void add_parts(const attention_sm90_bwd_args &a, const memory &m, u32 parts, const job &j,
                                          int part, u32 &parity)
{
    const u32 from = parts + part * PART_BYTES;
    const int block = j.first / ROWS;
    /* From this tile on no block before this one sees any. */
    const int fresh = block ? (seen_by(a, j, j.first - 1).to + LINES - 1) / LINES : 0;
    for (int g = 0; g < a.group; g++) {
        const s64 line = ((s64)j.other_batch * a.heads + j.head) * a.group + g;
        s64 at = sums_at(a, j.n, j.other, line, j.to) * PARTS + part;
        for (int tile = j.to - 1; tile >= j.from; tile--) {
            at -= PARTS;
            int *turn = a.turns + at;
            float *to = a.sums + at * (PART * PART);
            mbarrier_wait(m.bar.left(part), parity);
            parity ^= 1;
            if (tile >= fresh) {
                bulk_store(to, from, PART_BYTES);
            } else {
                while (acquire_number(turn) != block) {}
                bulk_fence();
                bulk_add(to, from, PART_BYTES);
            }
            tma_commit();
            tma_wait_read<0>();
            mbarrier_arrive(m.bar.taken(part));
            tma_wait<0>();
            bulk_fence();
            release_number(turn, block + 1);
        }
    }
}

/* ---- a job ---- */

/* What a warpgroup goes on with in its next job. */
struct progress {
    ring others;
    u32 own;   /* parity */
    u32 tiles; /* so far */
};

/* All tiles of a job: each tile's first product runs while dq of the one before is stored. */
__device__ __forceinline__ void add_tiles(const attention_sm90_bwd_args &a, const memory &m, const places &to,
                                          const job &j, int group, int line, progress &at, sums &sum)
{
    const range whole = j.valid < ROWS ? range{0, 0} : whole_tiles(a, j, j.first + 64 * group);
    const u32 own_a = m.a + group * 64 * ROW, own_b = m.b + group * 64 * ROW;
    const int column = (int)threadIdx.x % 4 * 2;
    const statistics own = {};
    ring &r = at.others;
    float t[SCORES], u[SCORES], q[PART / 2];
    operand_t weights, gradients;
    mbarrier_wait(m.bar.own(), at.own);
    at.own ^= 1;
    mbarrier_wait(m.bar.full(r.at), r.parity);
    issue_products<D_STEPS>(t, own_a, m.other_a(r.at));
    wgmma_wait<0>();
    wgmma_hold(t);
#pragma unroll 1
    for (int g = 0; g < a.group; g++) {
        const place p = {j, j.first + line, ALIBI ? a.slopes[(j.head * a.group + g) * a.slopes_stride] : 0};
#pragma unroll 1
        for (int tile = j.to - 1; tile >= j.from; tile--) {
            const float *stats = m.stats_of(j, r.at) + column;
            const ring now = r;
            const u32 gradients_at = to.gradients + at.tiles % 2 * GRADIENTS;
            issue_products<V_STEPS>(u, own_b, m.other_b(r.at));
            make_weights(a, p, own, stats, t, tile * LINES + column, tile < whole.from || tile >= whole.to, weights);
            wgmma_wait<0>();
            wgmma_hold(u);
            make_gradients(own, stats, t, u, gradients);
            pack_weights(t, weights);
            store_gradients(gradients_at, gradients, group);
            async_fence();
            issue_a(sum.a, gradients, m.other_a(r.at));
            issue_b(sum.b, weights, m.other_b(r.at));
            named_barrier_sync(BOTH, 128 * GROUPS);
            wgmma_wait<1>(); /* registers of gradients are needed */
            issue_queries(q, gradients_at, m.a, group);
            /* After the last tile the same again: a branch here would part the products from their sums. */
            const bool more = tile > j.from || g + 1 < a.group;
            if (more) r.next();
            mbarrier_wait(m.bar.full(r.at), r.parity);
            issue_products<D_STEPS>(t, own_a, m.other_a(r.at));
            wgmma_wait<1>();
            wgmma_hold(q);
            if (more) release(m.bar.empty(now.at));
            leave_part(m, to.parts, q, group, at.tiles++);
            wgmma_wait<0>();
            wgmma_hold(t);
            if (!more) release(m.bar.empty(now.at));
        }
    }
    r.next();
    wgmma_hold(sum.a);
    wgmma_hold(sum.b);
}

/* ---- blocks ---- */

/* By a warp: the next job once all tiles of this one are in flight. */
__device__ __forceinline__ void find_jobs(const attention_sm90_bwd_args &a, const memory &m, job *slots)
{
    const int lane = (int)threadIdx.x % 32;
    u32 loaded = 1;
    for (number_of_job n = {2};; n.at++) {
        mbarrier_wait(m.bar.loaded(), loaded);
        loaded ^= 1;
        mbarrier_wait(m.bar.done(n.slot()), n.parity());
        int index = 0;
        if (lane == 0) index = atomicAdd(a.claims, 1);
        index = __shfl_sync(0xffffffffu, index, 0);
        job found;
        found.n = -1;
        if (index < a.jobs) found = find_job(a, index);
        if (lane == 0) {
            slots[n.slot()] = found;
            mbarrier_arrive(m.bar.known(n.slot()));
        }
        if (found.n < 0) return;
    }
}

/* By a thread, for each job until there are no more. */
template <typename F> __device__ __forceinline__ void each_job(const memory &m, const places &to, F run)
{
    for (number_of_job n = {0};; n.at++) {
        mbarrier_wait(m.bar.known(n.slot()), n.parity());
        const job &j = to.slots[n.slot()];
        if (j.n < 0) return;
        run(j, m.bar.done(n.slot()));
    }
}

/* By a warp. */
__device__ __forceinline__ void produce_jobs(const attention_sm90_bwd_args &a, const memory &m, const places &to)
{
    const int lane = (int)threadIdx.x % 32;
    ring r = {0, 1};
    u32 landed = 0, empty = 1;
    each_job(m, to, [&](const job &j, u32) {
        if (j.from < j.to) {
            mbarrier_wait(m.bar.own_empty(), empty);
            empty ^= 1;
            produce(a, m, j, r, landed, lane);
        }
        release(m.bar.loaded());
    });
}

__device__ __forceinline__ void consume(const attention_sm90_bwd_args &a, const memory &m, const places &to, int group)
{
    const int line = group * 64 + (int)threadIdx.x / 32 % 4 * 16 + (int)threadIdx.x % 32 / 4;
    progress at = {{0, 0}, 0, 0};
    each_job(m, to, [&](const job &j, u32 done) {
        sums sum;
        clear(sum);
        if (j.from < j.to) {
            add_tiles(a, m, to, j, group, line, at, sum);
            release(m.bar.own_empty());
        }
        store(a, j, line, statistics{}, sum);
        release(done);
    });
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
attention_sm90_bwd_once(const __grid_constant__ attention_sm90_bwd_args a)
{
    extern __shared__ unsigned char dynamic[];
    __shared__ __align__(8) u64 words[BARRIERS];
    __shared__ job slots[2];
    const u32 base = shared_address(dynamic), first = (base + 1023) & ~1023u; /* the swizzle is one of addresses */
    const u32 others = first + OWN_A + OWN_B, gradients = others + STAGES * STAGE;
    const places to = {gradients, gradients + 2 * GRADIENTS, slots};
    float *stats = (float *)(dynamic + (to.parts + PARTS * PART_BYTES - base));
    const memory m = {dynamic + (first - base), first, first + OWN_A, others, stats, barriers{shared_address(words)}};
    if (threadIdx.x == 0) barriers_init(m.bar);
    __syncthreads();
    overlap_wait();
    const int group = uniform((int)threadIdx.x / 128);
    if (group == GROUPS) {
        registers_give<GIVEN>();
        const int warp = uniform((int)threadIdx.x / 32) - 4 * GROUPS;
        u32 parity = 0;
        if (warp == 0)
            produce_jobs(a, m, to);
        else if (warp > PARTS)
            find_jobs(a, m, slots);
        else if (threadIdx.x % 32 == 0)
            each_job(m, to, [&](const job &j, u32 done) {
                add_parts(a, m, to.parts, j, warp - 1, parity);
                mbarrier_arrive(done);
            });
    } else {
        registers_take<TAKEN>();
        consume(a, m, to, group);
    }
}
