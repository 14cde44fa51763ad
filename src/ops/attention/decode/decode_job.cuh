/* SPDX-License-Identifier: Apache-2.0
 * Which rows and which keys a block of attention's kernel for few queries has. Rows of a key head are those
 * of all query heads of its group, query by query: row r is query r / group of head r % group. */
#pragma once
#include "kernels/types.cuh"
#include "ops/attention/decode/decode_args.h"

struct range {
    int from, to;
};

struct job {
    int n, head, split; /* sequence, key head */
    int batch, row;     /* of q: where the sequence begins */
    int first;          /* of the tile's rows, in their sequence */
    int rows, valid;    /* rows that are there, those of them that belong to the sequence */
    int key_batch, key; /* where the sequence's keys begin */
    int keys, shift;    /* keys of the sequence; the diagonal's key in its query 0 */
    range part;         /* of the keys: this split's */
};

__device__ __forceinline__ int number(const attention_decode_tensor &list, int i, int most)
{
    return min(max(((const int *)list.data)[i * list.stride[0]], 0), most);
}

/* The query of row r of a sequence. */
__device__ __forceinline__ int query_of(const attention_decode_args &a, int r)
{
    return (int)mica_fastdiv_of(a.groups, (u32)r);
}

/* Keys that query i of a sequence sees. */
__device__ __forceinline__ range keys_of(const attention_decode_args &a, const job &j, int i)
{
    const int diagonal = i + j.shift;
    const int to = max(min(diagonal + a.right, j.keys), 0);
    return range{min(max(diagonal - a.left + 1, 0), to), to};
}

/* Where packed sequence e - 1 begins: number 0 and the last one are the rows that belong to none. */
__device__ __forceinline__ int boundary(const attention_decode_args &a, int e)
{
    if (e == 0) return 0;
    return e > a.sequences + 1 ? a.rows : number(a.cu_q, e - 1, a.rows);
}

/* By a whole warp: the packed sequence that has tile `tile` of a head, and how many queries it has. */
__device__ __forceinline__ bool find_packed(const attention_decode_args &a, int tile, job &j, int &queries)
{
    const int lane = (int)threadIdx.x % 32, spans = a.sequences + 2;
    for (int base = 0; base < spans; base += 32) {
        const int e = base + lane, begin = e < spans ? boundary(a, e) : 0;
        const int count = e < spans ? max(boundary(a, e + 1) - begin, 0) : 0;
        const int tiles = (int)(((s64)count * a.group + ROWS - 1) / ROWS);
        int sum = tiles; /* up to this lane */
#pragma unroll
        for (int by = 1; by < 32; by *= 2) {
            const int other = __shfl_up_sync(0xffffffffu, sum, by);
            if (lane >= by) sum += other;
        }
        const u32 behind = __ballot_sync(0xffffffffu, sum > tile);
        if (behind) {
            const int at = __ffs((int)behind) - 1;
            j.row = __shfl_sync(0xffffffffu, begin, at);
            j.first = (tile - __shfl_sync(0xffffffffu, sum - tiles, at)) * ROWS;
            queries = __shfl_sync(0xffffffffu, count, at);
            j.n = min(max(base + at - 1, 0), a.sequences - 1);
            j.batch = 0;
            j.rows = min((int)min((s64)queries * a.group - j.first, (s64)ROWS), ROWS);
            j.valid = base + at - 1 == j.n ? j.rows : 0;
            return true;
        }
        tile -= __shfl_sync(0xffffffffu, sum, 31);
    }
    return false;
}

__device__ __forceinline__ void find_padded(const attention_decode_args &a, int tile, job &j, int &queries)
{
    j.n = j.batch = tile / a.tiles;
    j.row = 0;
    j.first = (tile - j.n * a.tiles) * ROWS;
    queries = a.seq_q.data ? number(a.seq_q, j.n, a.rows) : a.rows;
    j.rows = min(a.rows * a.group - j.first, ROWS);
    j.valid = min(max(queries * a.group - j.first, 0), j.rows);
}

/* The keys that any of the rows sees are dealt to the splits in whole rounds of the warps. */
__device__ __forceinline__ range find_part(const attention_decode_args &a, const job &j)
{
    if (j.valid <= 0) return range{0, 0};
    /* Tiles begin at multiples of their length: pages that are such multiples hold them whole. */
    const int from = keys_of(a, j, query_of(a, j.first)).from / KEYS * KEYS, to = keys_of(a, j, query_of(a, j.first + j.valid - 1)).to;
    const int rounds = max(to - from + ROUND - 1, 0) / ROUND, each = (rounds + a.splits - 1) / a.splits * ROUND;
    const int start = (int)min(from + (s64)j.split * each, (s64)to);
    return range{start, (int)min(start + (s64)each, (s64)to)};
}

/* The job of a block; splits of a tile are neighbours. False: there is none. */
__device__ __forceinline__ bool find_job(const attention_decode_args &a, u32 index, job &j)
{
    int tile = (int)(index / a.splits), queries;
    j.split = (int)(index - (u32)tile * a.splits);
    if (a.cu_q.data) {
        j.head = tile % a.kv_heads;
        if (!find_packed(a, tile / a.kv_heads, j, queries)) return false;
    } else {
        const int tiles = a.tiles * a.kv_heads, n = tile / tiles;
        tile -= n * tiles;
        j.head = tile / a.tiles;
        find_padded(a, n * a.tiles + tile % a.tiles, j, queries);
    }
    j.key = 0;
    j.key_batch = a.cu_k.data ? 0 : j.n;
    j.keys = a.keys;
    if (a.cu_k.data) {
        j.key = number(a.cu_k, j.n, a.keys);
        j.keys = max(number(a.cu_k, j.n + 1, a.keys) - j.key, 0);
    }
    if (a.seq_k.data) j.keys = number(a.seq_k, j.n, a.keys);
    j.shift = a.bottom_right ? j.keys - queries : 0;
    j.part = find_part(a, j);
    return true;
}
