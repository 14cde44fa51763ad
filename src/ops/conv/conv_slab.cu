/* SPDX-License-Identifier: Apache-2.0
 * Convolution with up to 64 channels on both sides, or groups of as many, forward and dgrad: the whole
 * filter stays in shared memory, the image passes through it once as slabs. Rows of the product are channels
 * of the result, columns the pixels of a tile. Two warpgroups take tiles in turns, so that one stores
 * while the other multiplies; a slab that has been read becomes the tile that is stored.
 * Constants: those of conv_slab.cuh; FILTER_MN (rows are what lies side by side in the filter, else
 * terms); RESIDUAL; STATS (sums and sums of squares by channel are formed of what is stored, for
 * conv_stats_sum.cu); those of the epilogue; mma(). */
#include "cuda/device/overlap.cuh"
#include "cuda/device/shared.cuh"
#include "ops/conv/conv_slab.cuh"
#include "ops/conv/conv_sm90_epilogue.cuh"

constexpr int TAP_BYTES = 64 * ROW, THREADS = 384;

/* ---- the filter ---- */

/* Its coordinates of a tap. */
__device__ __forceinline__ int filter_down(const mica_conv_slab_args &a, int tap)
{
    return a.filter[0] + tap / TAPS_ACROSS * a.filter_step[0];
}

__device__ __forceinline__ int filter_across(const mica_conv_slab_args &a, int tap)
{
    return a.filter[1] + tap % TAPS_ACROSS * a.filter_step[1];
}

__device__ __forceinline__ void load_filter(const mica_conv_slab_args &a, const line &l, u32 filter, u32 ready)
{
    mbarrier_arrive_expect(ready, TAPS * TAP_BYTES);
    for (int t = 0; t < TAPS; t++)
        tma_load(filter + t * TAP_BYTES, &a.other, ready, 0, filter_across(a, t), filter_down(a, t), l.channel);
}

/* Groups of fewer than 64 channels: by both warpgroups, swizzled as the copy engine does it, with zeros where a
 * row (a channel of b) and the channels of a belong to different groups. */
__device__ __forceinline__ void place_filter(const mica_conv_slab_args &a, const line &l, u32 filter)
{
    constexpr int BATCH = TAPS < 8 ? TAPS : 8; /* taps whose loads are under way at once */
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int i = (int)threadIdx.x - 128 + 256 * half, row = i / 8, part = i % 8;
        const bool exists = row / WIDTH == part * 8 / WIDTH && l.channel + row < a.channels;
        const in_t *const from =
            (const in_t *)a.narrow + (l.channel + row) * a.narrow_strides[0] + part * 8 % WIDTH;
        const u32 to = filter + row * ROW + ((part ^ row & 7) << 4);
        for (int first = 0; first < TAPS; first += BATCH) {
            uint4 v[BATCH];
#pragma unroll
            for (int j = 0; j < BATCH; j++) {
                const int t = min(first + j, TAPS - 1);
                v[j] = make_uint4(0, 0, 0, 0);
                if (exists)
                    v[j] = *(const uint4 *)(from + filter_down(a, t) * a.narrow_strides[1] +
                                            filter_across(a, t) * a.narrow_strides[2]);
            }
#pragma unroll
            for (int j = 0; j < BATCH; j++) {
                const u32 words[4] = {v[j].x, v[j].y, v[j].z, v[j].w};
                shared_store(to + min(first + j, TAPS - 1) * TAP_BYTES, words);
            }
        }
    }
    async_fence();
    named_barrier_sync(3, 256);
}

__device__ __forceinline__ void produce(const mica_conv_slab_args &a, u32 filter, u32 slabs, u32 full)
{
    const u32 empty = full + 8 * SLOTS, ready = empty + 8 * SLOTS;
    const line l = own_line(a);
    if (WIDTH == 64) load_filter(a, l, filter, ready);
    const int tiles = own_tiles(a, l);
    for (int i = 0; i < tiles; i++) {
        const place p = tile_at(a, l, i);
        const int slot = i % SLOTS;
        mbarrier_wait(empty + 8 * slot, i / SLOTS & 1 ^ 1);
        mbarrier_arrive_expect(full + 8 * slot, SLAB_BYTES);
        load_slab(a, p, l.channel, slabs + slot * SLAB_BYTES, full + 8 * slot);
    }
}

__device__ __forceinline__ void multiply(float (&sum)[PIXELS / 2], u32 filter, u32 slab)
{
    wgmma_fence();
#pragma unroll
    for (int t = 0; t < TAPS; t++) {
        const u64 left = wgmma_operand<ROW>(filter + t * TAP_BYTES, FILTER_MN ? TAP_BYTES : 16, 8 * ROW);
        const u64 right = wgmma_operand<ROW>(slab + tap_bytes(t), 16, tap_pitch(t));
#pragma unroll
        for (int z = 0; z < 4; z++)
            mma(sum, wgmma_advance(left, FILTER_MN ? z * 16 * ROW : z * 32), wgmma_advance(right, z * 32), t + z > 0);
    }
    wgmma_commit();
}

/* ---- results ---- */

/* One result; y and x: its pixel. Pixels past the image and channels past the last are computed and not
 * stored; OTHERS: the result also depends on what memory holds at its place, which must exist. */
template <bool OTHERS>
__device__ __forceinline__ float finish(const mica_conv_slab_args &a, const place &p, int y, int x, int channel,
                                        const channel_terms &terms, float sum)
{
    float v = a.alpha * sum, residual = 0;
    if constexpr (OTHERS) {
        if (channel >= a.channels || y >= a.size[0] || x >= a.size[1]) return 0;
        if (a.beta != 0)
            v += a.beta * widen<float>(((const in_t *)a.out)[p.image * a.to.n + y * a.to.s[1] + x * a.to.s[2] +
                                                              channel * a.to.c]);
        if constexpr (RESIDUAL)
            residual = widen<float>(
                ((const residual_t *)a.epilogue.residual)[p.image * a.residual.n + y * a.residual.s[1] +
                                                          x * a.residual.s[2] + channel * a.residual.c]);
    }
    return apply_terms(a.epilogue, terms, v, residual);
}

/* Pixels x and x + 1 of one channel. */
template <bool OTHERS>
__device__ __forceinline__ u32 finish_pair(const mica_conv_slab_args &a, const place &p, int y, int x, int channel,
                                           const channel_terms &terms, const float *sum)
{
    const in_t pair[2] = {narrow<in_t>(finish<OTHERS>(a, p, y, x, channel, terms, sum[0])),
                          narrow<in_t>(finish<OTHERS>(a, p, y, x + 1, channel, terms, sum[1]))};
    u32 word;
    memcpy(&word, pair, sizeof word);
    return word;
}

/* Of a thread's two channels. */
struct channel_sums {
    float sum[2], square[2];
};

/* Pixels x and x + 1 of one channel, as they are stored; those past the image count for nothing. */
__device__ __forceinline__ void count(const mica_conv_slab_args &a, channel_sums &s, int channel, int y, int x, u32 word)
{
    in_t pair[2];
    memcpy(pair, &word, sizeof pair);
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const float v = y < a.size[0] && x + e < a.size[1] ? widen<float>(pair[e]) : 0;
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
    const int channel = first + warp * 16 + lane / 4, x = p.x + 2 * (lane & 3), part = lane >> 3;
#pragma unroll
    for (int j = 0; j < HEIGHT; j += 2) {
        u32 v[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = finish_pair<OTHERS>(a, p, p.y + j + i / 2, x, channel + i % 2 * 8, terms[i % 2],
                                       sum + 4 * j + 2 * i);
        if constexpr (STATS)
#pragma unroll
            for (int i = 0; i < 4; i++) count(a, own, i % 2, p.y + j + i / 2, x, v[i]);
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

__device__ __forceinline__ void consume(const mica_conv_slab_args &a, int group, u32 filter, u32 slabs, u32 full)
{
    const u32 empty = full + 8 * SLOTS, ready = empty + 8 * SLOTS;
    const bool leader = (threadIdx.x & 127) == 0;
    const line l = own_line(a);
    const int tiles = own_tiles(a, l);
    const bool others = RESIDUAL || a.beta != 0;
    channel_terms terms[2];
    float sum[PIXELS / 2];
    channel_sums totals = {};
    int last = -1;
    load_own_terms(a, l.channel, terms);
    if constexpr (WIDTH == 64)
        mbarrier_wait(ready, 0);
    else
        place_filter(a, l, filter);
    for (int i = group; i < tiles; i += 2) {
        const int slot = i % SLOTS;
        const u32 slab = slabs + slot * SLAB_BYTES;
        const place p = tile_at(a, l, i);
        mbarrier_wait(full + 8 * slot, i / SLOTS & 1);
        multiply(sum, filter, slab);
        if (leader && last >= 0) {
            tma_wait_read<0>();
            mbarrier_arrive(empty + 8 * last);
        }
        wgmma_wait<0>();
        named_barrier_sync(group + 1, 128); /* all warps have read the slab */
        /* decided for the whole tile: a branch at each result would cost more than the products */
        if (others)
            place_results<true>(a, p, l.channel, slab, terms, sum, totals);
        else
            place_results<false>(a, p, l.channel, slab, terms, sum, totals);
        async_fence();
        named_barrier_sync(group + 1, 128);
        if (leader) {
            tma_store(&a.result, slab, l.channel, p.x, p.y, p.image);
            tma_commit();
        }
        last = slot;
    }
    if (leader && last >= 0) {
        tma_wait_read<0>();
        mbarrier_arrive(empty + 8 * last);
        tma_wait<0>();
    }
    if constexpr (STATS) store_sums(a, l, group, totals);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) conv_slab(const __grid_constant__ mica_conv_slab_args a)
{
    const u32 filter = slot_memory(), slabs = filter + TAPS * TAP_BYTES, full = slot_barriers(1);
    overlap_wait();
    const int group = uniform((int)threadIdx.x / 128) - 1;
    if (group < 0) {
        registers_give<40>();
        if (threadIdx.x == 0) produce(a, filter, slabs, full);
    } else {
        registers_take<232>();
        consume(a, group, filter, slabs, full);
    }
}
