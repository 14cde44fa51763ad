/* SPDX-License-Identifier: Apache-2.0
 * What the parts of Hopper's attention kernel share: rings, ping-pong, and the jobs of a block: which
 * rows of which head, which keys these see. Constants: those of sm90.cu. */
#pragma once
#include "kernels/mbarrier.cuh"
#include "ops/attention/sm90/sm90_args.h"

constexpr int ROWS = 64 * GROUPS;                /* of a job */
constexpr int RUN = PIECE > 0 ? PIECE : KEYS; /* keys that lie one behind the other */

struct ring {
    int at;
    u32 parity;
    __device__ __forceinline__ void next()
    {
        if (++at < STAGES) return;
        at = 0;
        parity ^= 1;
    }
};

/* A block's jobs go round by fours: the one whose keys begin to come, the one whose queries do, and up to two that
 * warpgroups are at. Where a job's queries are, and the parity of their barriers. */
constexpr int CYCLE = 4;
static_assert(QUERIES == 1 || QUERIES == 2, "a cycle is whole rounds of both parities");
struct cycle {
    int at;
    __device__ __forceinline__ int place() const { return at % QUERIES; }
    __device__ __forceinline__ u32 parity() const { return at / QUERIES % 2; }
    __device__ __forceinline__ int before() const { return (at + CYCLE - 1) % CYCLE; }
    __device__ __forceinline__ void next() { at = (at + 1) % CYCLE; }
};

/* ---- barriers ---- */

/* Addresses of 8 bytes each: full and empty of both rings and of queries, then single ones. */
struct barriers {
    u32 base;
    __device__ __forceinline__ u32 k_full(int i) const { return base + 8 * i; }
    __device__ __forceinline__ u32 k_empty(int i) const { return base + 8 * (STAGES + i); }
    __device__ __forceinline__ u32 v_full(int i) const { return base + 8 * (2 * STAGES + i); }
    __device__ __forceinline__ u32 v_empty(int i) const { return base + 8 * (3 * STAGES + i); }
    /* Of each warpgroup's own queries. */
    __device__ __forceinline__ u32 q_full(int place, int group) const
    {
        return base + 8 * (4 * STAGES + place * GROUPS + group);
    }
    __device__ __forceinline__ u32 q_empty(int place, int group) const
    {
        return base + 8 * (4 * STAGES + (QUERIES + place) * GROUPS + group);
    }
    __device__ __forceinline__ u32 turn(int group) const
    {
        return base + 8 * (4 * STAGES + 2 * QUERIES * GROUPS + group);
    }
    __device__ __forceinline__ u32 landed() const { return turn(GROUPS); }
};
constexpr int BARRIERS = 4 * STAGES + 2 * QUERIES * GROUPS + GROUPS + 1;

/* By all threads, once. Warps of consumers release what they have read. */
__device__ __forceinline__ void barriers_init(const barriers &b)
{
    if (threadIdx.x == 0) {
        for (int i = 0; i < BARRIERS; i++) mbarrier_init(b.base + 8 * i, 1);
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(b.k_empty(i), 4 * GROUPS);
            mbarrier_init(b.v_empty(i), 4 * GROUPS);
        }
        for (int i = 0; i < QUERIES * GROUPS; i++) mbarrier_init(b.q_empty(i / GROUPS, i % GROUPS), 4);
        mbarrier_fence_init();
    }
    __syncthreads();
}

/* Ping-pong: one warpgroup's WGMMAs overlap the softmax of another one. The barrier of the next warpgroup is found
 * when it is needed: it lies behind this one's, and a register is dear. */
struct turn {
    u32 own, parity;
    __device__ __forceinline__ turn(const barriers &b, int group) : own(b.turn(group)), parity(group ? 0 : 1) {}
    __device__ __forceinline__ void begin()
    {
        if constexpr (!TURNS) return;
        mbarrier_wait(own, parity);
        parity ^= 1;
    }
    __device__ __forceinline__ void end(const barriers &b) const
    {
        if constexpr (!TURNS) return;
        if (threadIdx.x % 128 == 0) mbarrier_arrive(own == b.turn(GROUPS - 1) ? b.turn(0) : own + 8);
    }
};

/* ---- jobs ---- */

struct job {
    int n, head;         /* sequence; -1: no more jobs */
    int batch, row;      /* of q: where the rows begin */
    int first;           /* of the rows, in their sequence */
    int rows, valid;     /* rows of the tensor, those of them that belong to the sequence */
    int key_batch, key_head, key; /* where the sequence's keys begin */
    int keys, shift;     /* keys of the sequence; the diagonal's key in its row 0 */
    int from, to;        /* tiles of keys */
};

__device__ __forceinline__ bool has_keys(const job &j) { return j.n >= 0 && j.from < j.to; }

struct range {
    int from, to;
};

/* Keys that row i of a sequence sees. */
__device__ __forceinline__ range keys_of(const attention_sm90_args &a, const job &j, int i)
{
    const int diagonal = i + j.shift;
    const int to = max(min(diagonal + a.right, j.keys), 0);
    return range{min(max(diagonal - a.left + 1, 0), to), to};
}

__device__ __forceinline__ int number(const attention_sm90_list &list, int i, int most)
{
    return min(max(list.data[i * list.stride], 0), most);
}

/* The page of a key, -1 if it is absent. */
__device__ __forceinline__ int page_of(const attention_sm90_args &a, int n, int key)
{
    const int index = key / a.pages.size;
    if (index >= a.pages.count) return -1;
    const int page = a.pages.data[n * a.pages.stride[0] + index * a.pages.stride[1]];
    return (u32)page < (u32)a.pages.pool ? page : -1;
}

__device__ __forceinline__ void find_keys(const attention_sm90_args &a, job &j, int queries)
{
    j.key = 0;
    j.key_head = j.head / a.group;
    j.key_batch = PACKED_K ? 0 : j.n;
    j.keys = a.keys;
    if constexpr (PACKED_K) {
        j.key = number(a.cu_k, j.n, a.keys);
        j.keys = max(number(a.cu_k, j.n + 1, a.keys) - j.key, 0);
    }
    if constexpr (COUNTED_K) j.keys = number(a.seq_k, j.n, a.keys);
    j.shift = BOTTOM_RIGHT ? j.keys - queries : 0;
    j.from = j.to = 0;
    if (j.valid <= 0) return;
    j.from = keys_of(a, j, j.first).from / KEYS;
    j.to = (keys_of(a, j, j.first + j.valid - 1).to + KEYS - 1) / KEYS;
}

/* Tiles of rows: of the heads of a section side by side, those that see most keys first. */
__device__ __forceinline__ void find_batched(const attention_sm90_args &a, int tile, job &j)
{
    const int section = tile / (a.section * a.row_tiles), head = section * a.section;
    const int width = min(a.section, a.sequences * a.heads - head), inside = tile - head * a.row_tiles;
    const int line = head + inside % width;
    j.n = line / a.heads;
    j.head = line % a.heads;
    j.batch = j.n;
    j.row = j.first = (a.row_tiles - 1 - inside / width) * ROWS;
    j.rows = min(a.rows - j.row, ROWS);
    const int queries = COUNTED_Q ? number(a.seq_q, j.n, a.rows) : a.rows;
    j.valid = min(max(queries - j.row, 0), j.rows);
    find_keys(a, j, queries);
}

/* Where packed sequence e - 1 begins: number 0 and the last one are the rows that belong to none. */
__device__ __forceinline__ int boundary(const attention_sm90_args &a, int e)
{
    if (e == 0) return 0;
    return e > a.sequences + 1 ? a.rows : number(a.cu_q, e - 1, a.rows);
}

/* By a whole warp: the sequence that holds tile `tile` of a head. */
__device__ __forceinline__ bool find_packed(const attention_sm90_args &a, int tile, job &j)
{
    const int lane = (int)threadIdx.x % 32, head = tile % a.heads, spans = a.sequences + 2;
    tile /= a.heads;
    for (int e = lane; e - lane < spans; e += 32) {
        const int begin = e < spans ? boundary(a, e) : 0;
        const int count = e < spans ? max(boundary(a, e + 1) - begin, 0) : 0, tiles = (count + ROWS - 1) / ROWS;
        int sum = tiles; /* up to this lane */
#pragma unroll
        for (int by = 1; by < 32; by *= 2) {
            const int other = __shfl_up_sync(0xffffffffu, sum, by);
            if (lane >= by) sum += other;
        }
        const u32 behind = __ballot_sync(0xffffffffu, sum > tile);
        if (behind) {
            const int at = __ffs((int)behind) - 1;
            const int own = tile - __shfl_sync(0xffffffffu, sum - tiles, at);
            const int all = __shfl_sync(0xffffffffu, tiles, at), rows = __shfl_sync(0xffffffffu, count, at);
            j.row = __shfl_sync(0xffffffffu, begin, at);
            j.n = min(max(e - lane + at - 1, 0), a.sequences - 1);
            const bool real = e - lane + at - 1 == j.n;
            j.head = head;
            j.batch = 0;
            j.first = (all - 1 - own) * ROWS;
            j.row += j.first;
            j.rows = min(rows - j.first, ROWS);
            j.valid = real ? j.rows : 0;
            find_keys(a, j, rows);
            return true;
        }
        tile -= __shfl_sync(0xffffffffu, sum, 31);
    }
    return false;
}

/* By a whole warp: the next job by the work counter. */
__device__ __forceinline__ int claim(const attention_sm90_args &a)
{
    int tile = 0;
    if (threadIdx.x % 32 == 0) tile = (int)gridDim.x + atomicAdd(a.claims, 1);
    return __shfl_sync(0xffffffffu, tile, 0);
}

/* Job number `round` of this block, rounds going back and forth, or the next that is left; n is -1 behind the
 * last one. */
__device__ __forceinline__ job find_job(const attention_sm90_args &a, int &round)
{
    job j;
    j.n = -1;
    const int blocks = (int)gridDim.x, block = (int)blockIdx.x;
    if constexpr (CLAIMED || PACKED_Q) {
        const int tile = round == 0 ? block : CLAIMED ? claim(a) : round * blocks + block;
        round++;
        if constexpr (PACKED_Q) {
            if (!find_packed(a, tile, j)) j.n = -1;
        } else {
            if (tile < a.tiles) find_batched(a, tile, j);
        }
    } else {
        for (; round * (s64)blocks < a.tiles && j.n < 0; round++) {
            const s64 tile = round * (s64)blocks + (round & 1 ? blocks - 1 - block : block);
            if (tile < a.tiles) find_batched(a, (int)tile, j);
        }
    }
    return j;
}
