/* SPDX-License-Identifier: Apache-2.0
 * Attention for few queries: a tile's rows of q are copied to shared memory. Constants: those of
 * decode.cu. */
#pragma once
#include "ops/attention/decode/decode.cuh"
#include "ops/attention/decode/decode_scores.cuh"

/* Eight columns of a row; those of an 8-bit step in the order in which its threads take them. */
__device__ __forceinline__ void store_query(char *q, int r, int column, const q_t (&v)[8])
{
    u32 words[4];
    memcpy(words, v, 16);
    char *line = q + r * Q_PITCH;
    if constexpr (SIZE == 2) {
        store_vector<4>((u32 *)(line + 2 * column), words);
    } else {
        const int first = column / 16 * 16, quarter = column % 16 / 4;
#pragma unroll
        for (int i = 0; i < 4; i++) *(u32 *)(line + 2 * (first + i % 2 * 8 + 2 * (quarter + i / 2))) = words[i];
    }
}

/* Rows of q, and what scores need to know of them. Those of no sequence are zero. */
__device__ __forceinline__ void load_queries(const attention_decode_args &a, const job &j, char *q, row *rows)
{
    constexpr int CHUNKS = D / 8;
    for (int e = (int)threadIdx.x; e < ROWS * CHUNKS; e += THREADS) {
        const int r = e / CHUNKS, column = e % CHUNKS * 8, at = j.first + r, i = query_of(a, at);
        const int count = r < j.valid ? min(max(a.d - column, 0), 8) : 0;
        const s64 head = j.head * a.group + (at - i * a.group);
        const q_t *from = (const q_t *)a.q.data + j.batch * a.q.stride[0] + head * a.q.stride[1] +
                          (j.row + i) * a.q.stride[2] + column * a.q.stride[3];
        q_t v[8];
        if (a.q_whole && count == 8)
            load_vector<8>(from, v);
        else
#pragma unroll
            for (int k = 0; k < 8; k++) v[k] = k < count ? from[k * a.q.stride[3]] : q_t{0};
        store_query(q, r, column, v);
    }
    if (threadIdx.x < ROWS) {
        const int r = (int)threadIdx.x, at = j.first + r, i = query_of(a, at);
        row x = {{0, 0}, i + j.shift, 0};
        if (r < j.valid) {
            x.seen = keys_of(a, j, i);
            if (a.slopes.data) x.slope = LOG2E * load_float(a.slopes, j.head * a.group + (at - i * a.group));
        }
        rows[r] = x;
    }
}
