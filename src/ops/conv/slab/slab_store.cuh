/* SPDX-License-Identifier: Apache-2.0
 * How the slab kernels finish and place a tile's sums, channels by pixels, for TMA to store.
 * Constants: those of slab.cuh and place.cuh; STATS (sums and sums of squares by channel are formed of what
 * is stored, for lowered/stats_sum.cu); those of the epilogue. */
#pragma once
#include "ops/conv/slab/slab.cuh"
#include "ops/conv/slab/place.cuh"

constexpr u32 BOX_BYTES = (LINE ? LINE : 8) * ROWS * ROW; /* those of a tile that are stored */

/* Of a tile's positions. exists: it is one of the image's, and no other tile's. */
struct pixel {
    int y, x;
    bool exists;
};

__device__ __forceinline__ pixel pixel_at(const mica_conv_slab_args &a, const place &p, int position)
{
    constexpr int ACROSS = LINE ? LINE : 8;
    const int row = position / ACROSS;
    const pixel at = {p.y + row, p.x + position % ACROSS, false};
    return pixel{at.y, at.x, row < ROWS && at.y < a.size[0] && at.x < a.size[1]};
}

/* One result. Pixels past the image and channels past the last are computed and not stored; SINGLE: its place in
 * memory must exist. */
template <reading OTHERS>
__device__ __forceinline__ float finish(const mica_conv_slab_args &a, const place &p, int position, int channel,
                                        const channel_terms &terms, float sum, float residual)
{
    float v = a.alpha * sum;
    if constexpr (OTHERS == SINGLE) {
        const pixel at = pixel_at(a, p, position);
        if (channel >= a.channels || !at.exists) return 0;
        residual = add_others(a, p.image, p.z, at.y, at.x, channel, v);
    }
    return apply_terms(a.epilogue, terms, v, residual);
}

/* The first of this thread's two channels of a chunk; the other is 8 further. */
__device__ __forceinline__ int own_channel(int first)
{
    return first + ((int)threadIdx.x >> 5 & 3) * 16 + ((int)threadIdx.x & 31) / 4;
}

/* Of a thread's two channels. */
struct channel_sums {
    float sum[2], square[2];
};

/* A position and the next, of one channel, as they are stored; those past the image count for nothing. */
__device__ __forceinline__ void count(const mica_conv_slab_args &a, const place &p, channel_sums &s, int channel,
                                      int position, u32 word)
{
    in_t pair[2];
    memcpy(pair, &word, sizeof pair);
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const float v = pixel_at(a, p, position + e).exists ? widen<float>(pair[e]) : 0;
        s.sum[channel] += v;
        s.square[channel] = fmaf(v, v, s.square[channel]);
    }
}

/* Each warpgroup's sums are a part of their own, so that none waits for the other. */
__device__ __forceinline__ void store_sums(const mica_conv_slab_args &a, const line &l, int group, channel_sums &s)
{
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5 & 3;
    double *const to = a.sums + 2LL * (2 * l.first + group) * a.channels;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int channel = l.channel + warp * 16 + lane / 4 + 8 * i;
#pragma unroll
        for (int far = 1; far < 4; far *= 2) {
            s.sum[i] += __shfl_xor_sync(0xffffffffu, s.sum[i], far);
            s.square[i] += __shfl_xor_sync(0xffffffffu, s.square[i], far);
        }
        if (lane % 4 > 0 || channel >= a.channels) continue;
        to[channel] = (double)s.sum[i];
        to[a.channels + channel] = (double)s.square[i];
    }
}

/* first: the chunk's first channel. */
template <reading OTHERS>
__device__ __forceinline__ void place_results(const mica_conv_slab_args &a, const place &p, int first, u32 tile,
                                              const channel_terms (&terms)[2], const float (&sum)[PIXELS / 2],
                                              channel_sums &totals)
{
    channel_sums own = {};
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5 & 3;
    const int channel = first + warp * 16 + lane / 4, pair = 2 * (lane & 3);
    place_pixels<EIGHTS, OTHERS>(tile, warp, sum, [&](int j, int i, const float *two, u32 residual) {
        int position = 8 * j + pair;
        if constexpr (LINE && OTHERS == SINGLE) asm volatile("" : "+r"(position)); /* not all places at once */
        const u32 word = finish_pair([&](int e) {
            return finish<OTHERS>(a, p, position + e, channel + 8 * i, terms[i], two[e],
                                  OTHERS == WIDE ? residual_in(residual, e) : 0);
        });
        if constexpr (STATS) count(a, p, own, i, position, word);
        return word;
    });
#pragma unroll
    for (int i = 0; i < 2; i++) {
        totals.sum[i] += own.sum[i];
        totals.square[i] += own.square[i];
    }
}
