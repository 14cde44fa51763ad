/* SPDX-License-Identifier: Apache-2.0
 * The filter gradient of small groups on tensor cores: a warp keeps the sums of all taps of 16 channels of
 * b by 16 of a. A block takes every `parts`th tile of all images, two in shared memory at a time; warps that
 * divide the pixels add up their sums in order, parts are added up by conv_parts.cu. Constants: those of
 * grouped.cuh; BLOCKS (per multiprocessor, wanted); out_t. */
#include "kernels/overlap.cuh"
#include "ops/conv/grouped/grouped.cuh"

constexpr int BESIDE = WIDTH == 32 ? 2 : 1; /* times 16 channels of a that one of b belongs with */
constexpr int JOBS = 4 * BESIDE, THREADS = 32 * JOBS * WARPS_P, SLICES = PIXELS / 16;
constexpr int SLOT = (HALO_H * HALO_W + PIXELS) * PITCH;
static_assert(PIXELS % 16 == 0, "whole slices");

typedef float sums[TAPS][2][4];

__device__ __forceinline__ void copy_tile(const conv_grouped_args &a, unsigned tile, int channel, in_t *slot)
{
    const tile_place p = place_of(a, tile);
    copy_halo<THREADS>(slot, a, p, channel);
    copy_plane<TILE_H, TILE_W, THREADS>(slot + HALO_H * HALO_W * PITCH, (const in_t *)a.other, a.to, a.size_to, p, channel,
                                        a.channels - channel, a.to_aligned, p.y * TILE_H, p.x * TILE_W);
}

/* Bytes from the start of the halo to pixel `pixel` of the tile. */
__device__ __forceinline__ u32 halo_bytes(int pixel)
{
    return (u32)((pixel / TILE_W * STRIDE_Y * HALO_W + pixel % TILE_W * STRIDE_X) * ROW_BYTES);
}

__device__ __forceinline__ void multiply(sums &sum, u32 slot, int slice, int to, int from)
{
    const int lane = (int)threadIdx.x % 32;
    const u32 other = slot + (u32)((HALO_H * HALO_W + slice * 16 + lane / 16 * 8 + lane % 8) * ROW_BYTES +
                                   (to + lane / 8 % 2 * 8) * (int)sizeof(in_t));
    const u32 image = slot + halo_bytes(slice * 16 + lane % 16) + (u32)((from + lane / 16 * 8) * (int)sizeof(in_t));
    u32 y[4];
    load_transposed(y[0], y[1], y[2], y[3], other);
#pragma unroll
    for (int tap = 0; tap < TAPS; tap++) {
        u32 x[4];
        load_transposed(x[0], x[1], x[2], x[3],
                        image + (u32)((tap / COLS * DILATION_Y * HALO_W + tap % COLS * DILATION_X) * ROW_BYTES));
        const u32 low[2] = {x[0], x[1]}, high[2] = {x[2], x[3]};
        matrix_unit<in_t, in_t>::multiply(sum[tap][0], y, low);
        matrix_unit<in_t, in_t>::multiply(sum[tap][1], y, high);
    }
}

/* Adds up the sums of the warps that divided the pixels; the last of them has all. */
__device__ __forceinline__ void merge(sums &sum, float *space, int job, int share)
{
    float *mine = space + job * TAPS * 256 + (int)threadIdx.x % 32;
    for (int w = 0; w < WARPS_P; w++) {
        __syncthreads();
        if (w != share) continue;
#pragma unroll
        for (int i = 0; i < TAPS * 8; i++) {
            float &v = sum[i / 8][i / 4 % 2][i % 4];
            if (w > 0) v += mine[i * 32];
            mine[i * 32] = v;
        }
    }
}

__device__ __forceinline__ void store_sum(const conv_grouped_args &a, out_t *out, int to, int from, int tap, float sum)
{
    if (to >= a.channels || to / WIDTH != from / WIDTH) return;
    out += to / WIDTH * a.filter_g + to % WIDTH * a.filter_to + from % WIDTH * a.filter_from + tap / COLS * a.filter_s[0] +
           tap % COLS * a.filter_s[1];
    float v = sum * (float)a.alpha;
    if (a.beta != 0) v += (float)a.beta * widen<float>(*out);
    *out = narrow<out_t>(v);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) conv_grouped_wgrad(const __grid_constant__ conv_grouped_args a)
{
    overlap_wait();
    extern __shared__ __align__(16) unsigned char memory[];
    in_t *const slots = (in_t *)memory;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, job = warp % JOBS, share = warp / JOBS;
    const int to = job / BESIDE * 16, from = BESIDE == 2 ? to / 32 * 32 + job % 2 * 16 : to;
    const unsigned part = mica_fastdiv_of(a.channel_blocks, blockIdx.x), parts = gridDim.x / a.channel_blocks.divisor;
    const int channel = (int)(blockIdx.x - part * a.channel_blocks.divisor) * CHANNELS;
    sums sum = {};
    if (part < (unsigned)a.tiles) copy_tile(a, part, channel, slots);
    copies_commit();
    int slot = 0;
    for (unsigned tile = part; tile < (unsigned)a.tiles; tile += parts) {
        if (tile + parts < (unsigned)a.tiles) copy_tile(a, tile + parts, channel, slots + (slot ^ 1) * SLOT);
        copies_commit();
        copies_wait<1>();
        __syncthreads();
        const u32 here = shared_address(slots + slot * SLOT);
#pragma unroll 1
        for (int slice = share; slice < SLICES; slice += WARPS_P) multiply(sum, here, slice, to, from);
        __syncthreads(); /* this slot is filled next */
        slot ^= 1;
    }
    copies_wait<0>();
    if constexpr (WARPS_P > 1) merge(sum, (float *)memory, job, share);
    if (share != WARPS_P - 1) return;
    out_t *const out = (out_t *)a.out + part * a.part;
#pragma unroll
    for (int tap = 0; tap < TAPS; tap++)
#pragma unroll
        for (int e = 0; e < 8; e++)
            store_sum(a, out, channel + to + lane / 4 + e / 2 % 2 * 8, channel + from + e / 4 * 8 + lane % 4 * 2 + e % 2, tap,
                      sum[tap][e / 4][e % 4]);
}
