/* SPDX-License-Identifier: Apache-2.0
 * What both kernels of max_unpool share. Constants: CHANNELS_LAST (channels are walked fastest), WIDE (counts
 * that need 64 bits), BLOCK; types winner_t, index_t, element_t (of the element's size). */
#pragma once
#include "kernels/overlap.cuh"
#include "kernels/types.cuh"
#include "ops/max_unpool/max_unpool_args.h"

#define INLINE __device__ __forceinline__

template <bool W> struct number { typedef u32 type; };
template <> struct number<true> { typedef u64 type; };
typedef number<WIDE>::type count_t;

/* An element of a tensor: sample, channel, and its row-major number in the plane. */
struct element_place {
    count_t n, c, k;
};

INLINE element_place element_of(count_t i, count_t channels, count_t size)
{
    const count_t fast = CHANNELS_LAST ? channels : size, slow = CHANNELS_LAST ? size : channels;
    const count_t rest = i / fast, a = i - rest * fast, n = rest / slow, b = rest - n * slow;
    return CHANNELS_LAST ? element_place{n, a, b} : element_place{n, b, a};
}

/* Its offset where axes have these steps; extent: D, H, W. */
INLINE long long offset_of(const element_place &p, const long long *extent, const long long *step)
{
    const count_t wide = (count_t)extent[2], high = (count_t)extent[1];
    const count_t row = p.k / wide, w = p.k - row * wide, d = row / high, h = row - d * high;
    return (long long)p.n * step[0] + (long long)p.c * step[1] + (long long)d * step[2] + (long long)h * step[3] +
           (long long)w * step[4];
}
