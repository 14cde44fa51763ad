/* SPDX-License-Identifier: Apache-2.0
 * dq out of the sums that backward_once.cu leaves. A block takes the tile of `own` rows that one of
 * theirs is, a warpgroup 64 rows and 64 columns of it. Sums of a tile that no block of keys saw were never
 * written.
 *
 * Prologue: that of backward.cu but products, for one that keeps queries, GROUPS times 64 of them;
 * LINES rows of a tile of sums, PARTS of it; a_t of dq. */
#include "kernels/overlap.cuh"
#include "ops/attention/backward_sm90/backward.cuh"
#include "ops/attention/sm90/sm90_rows.cuh"

constexpr int PART = 64;

extern "C" __global__ void __launch_bounds__(128 * PARTS)
attention_sm90_bwd_dq(const __grid_constant__ attention_sm90_bwd_args a)
{
    overlap_wait();
    const job j = find_job(a, (int)blockIdx.x);
    if (j.n < 0) return;
    const int thread = (int)threadIdx.x % 128, part = (int)threadIdx.x / 128;
    const int chunk = part % (ROWS / PART), column = part / (ROWS / PART) * PART;
    const s64 head = (s64)j.batch * a.heads + j.head;
    const s64 at = sums_at(a, j.n, j.row - j.first, head, j.first / ROWS) * PARTS + part;
    const bool seen = j.valid > 0 && a.turns[at] != 0;
    float sum[PART / 2] = {};
#pragma unroll
    for (int i = 0; i < PART / 8; i++)
        if (seen) {
            float v[4];
            load_vector<4>(a.sums + at * (PART * PART) + (i * 128 + thread) * 4, v);
#pragma unroll
            for (int e = 0; e < 4; e++) sum[4 * i + e] = v[e];
        }
    attention_sm90_result to = a.da;
    to.data = (a_t *)to.data + column * to.stride[3];
    to.columns -= column;
    const int line = chunk * PART + thread / 32 * 16 + thread % 32 / 4;
    const bool there[2] = {line < j.rows, line + 8 < j.rows};
    const bool real[2] = {seen && line < j.valid, seen && line + 8 < j.valid};
    store_result<a_t>(to, sum, j.batch, j.head, j.row + line, there, real, a.scale);
}
