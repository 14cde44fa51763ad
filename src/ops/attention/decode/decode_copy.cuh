/* SPDX-License-Identifier: Apache-2.0
 * Attention for few queries: where the keys of a tile lie, and their way to shared memory. Constants: those of
 * decode.cu. */
#pragma once
#include "kernels/mma.cuh"
#include "ops/attention/decode/decode_job.cuh"

/* ---- keys and where they lie ---- */

/* Of a tile: the first of `count` keys that lie at equal distances, known to all lanes; or, among pages of
 * any size, key `lane` and the one 32 further on. */
struct places {
    int count;
    int page[OWNED], inside[OWNED]; /* page -1: there is no such key */
};

__device__ __forceinline__ int page_of(const attention_decode_args &a, const job &j, int key, int &inside)
{
    const int number = (int)mica_fastdiv_of(a.page, (u32)key);
    const s64 at = j.n * a.pages.stride[0] + number * a.pages.stride[1];
    inside = key - number * (int)a.page.divisor;
    const int page = ((const int *)a.pages.data)[at];
    return (u32)page < (u32)a.pool ? page : -1;
}

__device__ __forceinline__ places find_places(const attention_decode_args &a, const job &j, int tile, int lane)
{
    places p;
    const int first = j.part.from + tile * KEYS;
    p.count = min(max(j.part.to - first, 0), KEYS);
    p.page[0] = j.key_batch;
    p.inside[0] = j.key + first;
    if (!a.pages.data) return p;
    if (a.runs) {
        p.page[0] = p.count > 0 ? page_of(a, j, first, p.inside[0]) : 0;
        if (p.page[0] < 0) p.page[0] = p.count = 0;
        return p;
    }
#pragma unroll
    for (int i = 0; i < OWNED; i++) {
        const int key = 32 * i + lane;
        p.page[i] = key < p.count ? page_of(a, j, first + key, p.inside[i]) : -1;
    }
    return p;
}

/* Which keys there are, a bit each. */
__device__ __forceinline__ u32 find_there(const attention_decode_args &a, const places &p, int i)
{
    if (!a.runs) return __ballot_sync(0xffffffffu, p.page[i] >= 0);
    return p.count >= 32 * (i + 1) ? 0xffffffffu : (1u << max(p.count - 32 * i, 0)) - 1;
}

/* ---- copies ---- */

/* The first n bytes of 16, for pointers that are not aligned: slow. */
__device__ __forceinline__ void copy_apart(char *to, const char *from, int n)
{
#pragma unroll 1
    for (int i = 0; i < 16; i += SIZE) {
        kv_t v{};
        if (i < n) v = *(const kv_t *)(from + i);
        *(kv_t *)(to + i) = v;
    }
}

/* 16 bytes of a row of k or v: which key's, and how many of them are columns. */
template <int CHUNKS> struct piece {
    int key, chunk;
    __device__ __forceinline__ piece(int i, int lane) : key((32 * i + lane) / CHUNKS), chunk((32 * i + lane) % CHUNKS) {}
    __device__ __forceinline__ int bytes(int columns) const { return min(max(columns * SIZE - chunk * 16, 0), 16); }
};

/* Neighbours of the 16 bytes will be wanted: memory is asked for 128 at once. */
__device__ __forceinline__ void copy_line(u32 to, const char *from)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(16) : "memory");
}

/* A whole tile of keys at equal distances, whole rows of which are columns. from: the lane's first piece. */
template <int STEPS, int PITCH>
__device__ __forceinline__ void copy_whole(u32 to, const char *from, s64 step, int lane)
{
    constexpr int CHUNKS = 2 * STEPS, PIECES = KEYS * CHUNKS / 32, AHEAD = 32 / CHUNKS;
    const piece<CHUNKS> first(0, lane);
    to += first.key * PITCH + first.chunk * 16;
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        if constexpr (32 % CHUNKS == 0) {
            copy_line(to + i * AHEAD * PITCH, from);
            from += AHEAD * step;
        } else {
            const piece<CHUNKS> p(i, lane);
            const int keys = p.key - first.key, chunks = p.chunk - first.chunk;
            copy_line(to + keys * PITCH + chunks * 16, from + keys * step + chunks * 16);
        }
    }
}

/* Some keys. Those that there are not, and columns behind the last one, become zeros. */
template <int STEPS, int PITCH>
__device__ __forceinline__ void copy_some(const attention_decode_args &a, char *to, const char *from, s64 step, int columns,
                                          int count, int lane)
{
    constexpr int CHUNKS = 2 * STEPS, PIECES = KEYS * CHUNKS / 32;
    const piece<CHUNKS> first(0, lane);
    from -= first.key * step + first.chunk * 16;
#pragma unroll 1
    for (int i = 0; i < PIECES; i++) {
        const piece<CHUNKS> p(i, lane);
        const char *at = from + p.key * step + p.chunk * 16;
        const int bytes = p.key < count ? p.bytes(columns) : 0;
        char *where = to + p.key * PITCH + p.chunk * 16;
        if (a.copies)
            copy_async<16>(shared_address(where), at, bytes);
        else
            copy_apart(where, at, bytes);
    }
}

/* Keys that lie anywhere: `at` and `there` are those of the lane's own keys, and of all. */
template <int STEPS, int PITCH>
__device__ __forceinline__ void copy_scattered(const attention_decode_args &a, char *to, const char *data,
                                               const s64 (&at)[OWNED], const u32 (&there)[OWNED], int columns, int lane)
{
    constexpr int CHUNKS = 2 * STEPS, PIECES = KEYS * CHUNKS / 32;
    static_assert(OWNED == 1 || 32 % CHUNKS == 0, "a piece's keys are in one lane's hand");
#pragma unroll
    for (int owned = 0; owned < OWNED; owned++) {
        constexpr int EACH = OWNED > 1 ? CHUNKS : PIECES;
#pragma unroll 2
        for (int i = owned * EACH; i < (owned + 1) * EACH; i++) {
            const piece<CHUNKS> p(i, lane);
            const char *from = data + __shfl_sync(0xffffffffu, at[owned], p.key % 32) + p.chunk * 16;
            const int bytes = there[owned] >> p.key % 32 & 1 ? p.bytes(columns) : 0;
            char *where = to + p.key * PITCH + p.chunk * 16;
            if (a.copies)
                copy_async<16>(shared_address(where), from, bytes);
            else
                copy_apart(where, from, bytes);
        }
    }
}

/* lane_data: the lane's first piece of a key head's first row. */
template <int STEPS, int PITCH>
__device__ __forceinline__ void copy_tile(const attention_decode_args &a, char *to, const attention_decode_tensor &t,
                                          const char *lane_data, int columns, const places &p, int lane)
{
    const s64 apart = t.stride[0] * SIZE, step = t.stride[2] * SIZE;
    if (a.runs) {
        const char *from = lane_data + p.page[0] * apart + p.inside[0] * step;
        if (a.copies && p.count == KEYS && columns * SIZE == 32 * STEPS)
            copy_whole<STEPS, PITCH>(shared_address(to), from, step, lane);
        else
            copy_some<STEPS, PITCH>(a, to, from, step, columns, p.count, lane);
        return;
    }
    const piece<2 * STEPS> first(0, lane);
    s64 at[OWNED];
    u32 there[OWNED];
#pragma unroll
    for (int i = 0; i < OWNED; i++) {
        at[i] = p.page[i] < 0 ? 0 : p.page[i] * apart + p.inside[i] * step;
        there[i] = find_there(a, p, i);
    }
    copy_scattered<STEPS, PITCH>(a, to, lane_data - first.key * step - first.chunk * 16, at, there, columns, lane);
}

/* What copy_tile wants of a tensor. */
template <int STEPS>
__device__ __forceinline__ const char *find_lane(const attention_decode_tensor &t, int head, int lane)
{
    const piece<2 * STEPS> first(0, lane);
    return (const char *)t.data + (head * t.stride[1] + first.key * t.stride[2]) * SIZE + first.chunk * 16;
}

/* ---- the ring of a warp ---- */

/* A warp's memory: slots of keys and of values; for each slot which of its keys there are, a bit each. */
struct ring {
    char *k, *v;
    u32 *there;
    const char *k_lane, *v_lane; /* where its lanes begin to copy */
};

__device__ __forceinline__ void copy_keys(const attention_decode_args &a, const ring &r, int slot,
                                          const places &p, int lane)
{
#pragma unroll
    for (int i = 0; i < OWNED; i++) {
        const u32 there = find_there(a, p, i);
        if (lane == 0) r.there[slot * OWNED + i] = there;
    }
    copy_tile<K_STEPS, K_PITCH>(a, r.k + slot * K_BYTES, a.k, r.k_lane, a.d, p, lane);
}

__device__ __forceinline__ void copy_values(const attention_decode_args &a, const ring &r, int slot,
                                            const places &p, int lane)
{
    copy_tile<V_STEPS, V_PITCH>(a, r.v + slot * V_BYTES, a.v, r.v_lane, a.dv, p, lane);
}

/* The same in all lanes, and known to be. */
__device__ __forceinline__ bool all_lanes(bool yes) { return __all_sync(0xffffffffu, yes); }

/* Keys and values of the first STAGES tiles; returns where those of the next one lie. */
__device__ __forceinline__ places start(const attention_decode_args &a, const job &j, const ring &r, int warp, int count,
                                        int lane)
{
    places p[STAGES + 1];
#pragma unroll
    for (int i = 0; i <= STAGES; i++) p[i] = find_places(a, j, warp + WARPS * i, lane);
#pragma unroll
    for (int i = 0; i < STAGES; i++) {
        const bool more = all_lanes(i < count);
        if (more) copy_keys(a, r, i, p[i], lane);
        copies_commit();
        if (more) copy_values(a, r, i, p[i], lane);
        copies_commit();
    }
    return p[STAGES];
}
