/* SPDX-License-Identifier: Apache-2.0
 * Numbers of N elements whose indices are `step` apart, in kernels. */
#pragma once
#include "kernels/types.cuh"
#include "ops/random/random_rounded.cuh"

struct stream {
    u32 key[2], offset;
};

/* rng: seed and, `stride` behind it, offset. */
RANDOM stream stream_of(const void *rng, s64 stride)
{
    const u64 *numbers = (const u64 *)rng;
    return {{(u32)numbers[0], (u32)(numbers[0] >> 32)}, (u32)numbers[stride]};
}

/* By make(block, lane, words). PER: elements of a counter; ALIGN: the first is where a counter begins, and indices
 * are neighbours; ROWS: counters are random_row_words'. */
template <int N, int PER, bool ALIGN, bool ROWS = false, typename T, typename F>
RANDOM void draw(const stream &s, u64 index, s64 step, T *v, F make)
{
    u32 w[4];
    T of_block[PER];
    u64 block = ~(u64)0;
#pragma unroll
    for (int e = 0; e < N; e++) {
        const u64 i = index + (u64)(e * (ALIGN ? 1 : step)), own = i / PER;
        if (ALIGN ? e % PER == 0 : own != block) {
            block = own;
            if constexpr (ROWS) random_row_words(s.key, s.offset, block, w);
            else random_words(s.key, s.offset, block, 0, w);
#pragma unroll
            for (int k = 0; k < PER; k++) of_block[k] = make(block, k, w);
        }
        if (ALIGN) {
            v[e] = of_block[e % PER];
            continue;
        }
        v[e] = of_block[0];
#pragma unroll
        for (int k = 1; k < PER; k++)
            if ((int)(i % PER) == k) v[e] = of_block[k];
    }
}
