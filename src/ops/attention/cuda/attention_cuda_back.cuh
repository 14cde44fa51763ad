/* SPDX-License-Identifier: Apache-2.0
 * What the gradients of attention share: weights are formed again from lse. */
#pragma once
#include "ops/attention/cuda/attention_cuda.cuh"

/* A weight as values see it, and the gradient of the score. */
struct pair {
    acc_t weight, ds, slope; /* slope: of the soft cap */
};

__device__ __forceinline__ pair find_pair(const attention_cuda_args &args, const query &x, s64 j, acc_t s, acc_t dp, acc_t keep)
{
    acc_t slope;
    const acc_t p = exp_of(finish_score(args, x, j, s, slope) - x.lse);
    return {p * keep, p * (keep * dp - x.delta), slope};
}

/* Products of a tile of queries (own) and keys (others) become ds, or its product with the slope. */
template <bool SLOPE>
__device__ __forceinline__ void differentiate(const attention_cuda_args &args, const sequence &s, const dropout &drop,
                                              const query *queries, s64 j0, acc_t scale, tile_t &t, const tile_t &dp)
{
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const query &x = queries[ty() * ROWS + r];
        const s64 first = j0 + tx() * COLS;
        const keys seen = find_keys(x, first);
        words w = {};
        if constexpr (DROPOUT) w = find_words(args, drop, s.n, x, first);
#pragma unroll
        for (int c = 0; c < COLS; c++) {
            acc_t ds = 0;
            if (sees(args, x, seen, c)) {
                const acc_t keep = DROPOUT ? kept(args, w, first + c) : (acc_t)1;
                const pair e = find_pair(args, x, first + c, scale * t[r][c], dp[r][c], keep);
                ds = SLOPE ? e.ds * e.slope : e.ds;
            }
            t[r][c] = ds;
        }
    }
}
