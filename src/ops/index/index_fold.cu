/* SPDX-License-Identifier: Apache-2.0
 * Sums over all that a map without indices brings to an element: a thread per element of the result,
 * in an order of its own that never varies. Constants: RANK, BORDERED (bit d: dimension d), BLOCK; types
 * here_t, there_t, real. */
#include "kernels/overlap.cuh"
#include "kernels/types.cuh"
#include "ops/index/index_args.h"

#define INLINE __device__ __forceinline__

struct coordinates {
    long long at[RANK > 0 ? RANK : 1];
};

template <int D> INLINE void add(const mica_index_fold_args &a, const coordinates &c, long long offset, real &sum)
{
    if constexpr (D == RANK) {
        sum += widen<real>(((const here_t *)a.here)[offset]);
    } else if constexpr (!(BORDERED >> D & 1)) {
        add<D + 1>(a, c, offset + c.at[D] * a.form.at[D].here, sum);
    } else {
        const mica_index_sources s = mica_index_sources_of(&a.form.at[D], c.at[D]);
        for (int k = 0; k < 2; k++)
            for (long long i = 0; i < s.count[k]; i++)
                add<D + 1>(a, c, offset + (s.first[k] + i * s.apart) * a.form.at[D].here, sum);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK) index_fold(const mica_index_fold_args a)
{
    overlap_wait();
    long long i = (long long)blockIdx.x * BLOCK + threadIdx.x, to = 0;
    if (i >= a.form.count) return;
    coordinates c;
#pragma unroll
    for (int d = RANK - 1; d >= 0; d--) {
        const long long q = d ? i / a.form.at[d].size : 0;
        c.at[d] = i - q * a.form.at[d].size;
        to += c.at[d] * a.form.at[d].there;
        i = q;
    }
    real sum = 0;
    add<0>(a, c, 0, sum);
    ((there_t *)a.there)[to] = narrow<there_t>(sum);
}
