/* SPDX-License-Identifier: Apache-2.0
 * How the slab kernels finish and place a tile's sums, channels by pixels, for the copy engine to store.
 * Constants: those of conv_slab.cuh; RESIDUAL; STATS (sums and sums of squares by channel are formed of what
 * is stored, for conv_stats_sum.cu); those of the epilogue. */
#pragma once
#include "ops/conv/conv_slab.cuh"
#include "ops/conv/conv_sm90_epilogue.cuh"

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

/* One result. Pixels past the image and channels past the last are computed and not stored; OTHERS: the
 * result also depends on what memory holds at its place, which must exist. */
template <bool OTHERS>
__device__ __forceinline__ float finish(const mica_conv_slab_args &a, const place &p, int position, int channel,
                                        const channel_terms &terms, float sum)
{
    float v = a.alpha * sum, residual = 0;
    if constexpr (OTHERS) {
        const pixel at = pixel_at(a, p, position);
        if (channel >= a.channels || !at.exists) return 0;
        if (a.beta != 0)
            v += a.beta * widen<float>(((const in_t *)a.out)[p.image * a.to.n + p.z * a.to.s[0] + at.y * a.to.s[1] +
                                                              at.x * a.to.s[2] + channel * a.to.c]);
        if constexpr (RESIDUAL)
            residual = widen<float>(
                ((const residual_t *)a.epilogue.residual)[p.image * a.residual.n + p.z * a.residual.s[0] +
                                                          at.y * a.residual.s[1] + at.x * a.residual.s[2] +
                                                          channel * a.residual.c]);
    }
    return apply_terms(a.epilogue, terms, v, residual);
}

/* A position and the next, of one channel. */
template <bool OTHERS>
__device__ __forceinline__ u32 finish_pair(const mica_conv_slab_args &a, const place &p, int position, int channel,
                                           const channel_terms &terms, const float *sum)
{
    const in_t pair[2] = {narrow<in_t>(finish<OTHERS>(a, p, position, channel, terms, sum[0])),
                          narrow<in_t>(finish<OTHERS>(a, p, position + 1, channel, terms, sum[1]))};
    u32 word;
    memcpy(&word, pair, sizeof word);
    return word;
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

/* The accumulator, channels by pixels, to memory pixel by pixel, swizzled as the copy engine reads it; first: the
 * chunk's first channel. */
template <bool OTHERS>
__device__ __forceinline__ void place_results(const mica_conv_slab_args &a, const place &p, int first, u32 tile,
                                              const channel_terms (&terms)[2], const float (&sum)[PIXELS / 2],
                                              channel_sums &totals)
{
    channel_sums own = {};
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5 & 3;
    const int channel = first + warp * 16 + lane / 4, pair = 2 * (lane & 3), part = lane >> 3;
#pragma unroll
    for (int j = 0; j < EIGHTS; j += 2) {
        u32 v[4] = {};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (j + i / 2 == EIGHTS) continue; /* of an odd number, nothing is stored beside the last */
            int position = 8 * (j + i / 2) + pair;
            if constexpr (LINE && OTHERS) asm volatile("" : "+r"(position)); /* not all places at once */
            v[i] = finish_pair<OTHERS>(a, p, position, channel + i % 2 * 8, terms[i % 2], sum + 4 * j + 2 * i);
            if constexpr (STATS) count(a, p, own, i % 2, position, v[i]);
        }
        const u32 to = tile + (8 * (j + part / 2) + (lane & 7)) * ROW, block = 2 * warp + part % 2;
        store_matrices_transposed(to + ((block ^ (to >> 7 & 7)) << 4), v[0], v[1], v[2], v[3]);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        totals.sum[i] += own.sum[i];
        totals.square[i] += own.square[i];
    }
}

/* Those of this thread's two channels; past the last channel those of the last. */
__device__ __forceinline__ void load_own_terms(const mica_conv_slab_args &a, int first, channel_terms (&terms)[2])
{
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5 & 3;
#pragma unroll
    for (int i = 0; i < 2; i++)
        load_terms(a.epilogue, (long long)min(first + warp * 16 + lane / 4 + 8 * i, a.channels - 1), terms[i]);
}
