/* SPDX-License-Identifier: Apache-2.0
 * Attention for few queries: where rows of a tile belong, and their results go. */
#pragma once
#include "ops/attention/decode/decode.cuh"
#include "ops/attention/decode/decode_job.cuh"

/* Row r of the tile, in q. */
struct line {
    int head;
    s64 row;
};

__device__ __forceinline__ line line_of(const attention_decode_args &a, const job &j, int r)
{
    const int at = j.first + r, i = query_of(a, at);
    return line{j.head * a.group + (at - i * a.group), j.row + i};
}

/* What sums of row r about `max` are multiplied by; the logarithm goes to memory. */
__device__ __forceinline__ float finish(const attention_decode_args &a, const job &j, int r, float max, float sum, bool writes)
{
    const line l = line_of(a, j, r);
    const finished f = finish_row(a, l.head, j.head, max, r < j.valid ? sum : FOREIGN);
    if (a.lse && writes)
        a.lse[j.batch * a.lse_stride[0] + l.head * a.lse_stride[1] + l.row * a.lse_stride[2]] = f.lse;
    return f.factor;
}

__device__ __forceinline__ void store(const attention_decode_args &a, const job &j, int r, int c, float4 sums)
{
    const line l = line_of(a, j, r);
    store_columns(a, j.batch, l.head, l.row, c, sums, 1);
}

/* Place of row r in the workspace. */
__device__ __forceinline__ s64 place_of(const attention_decode_args &a, const job &j, int r)
{
    const line l = line_of(a, j, r);
    return (((s64)j.batch * a.heads + l.head) * a.rows + l.row) * a.splits + j.split;
}
