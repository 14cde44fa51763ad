/* SPDX-License-Identifier: Apache-2.0
 * Sums and sums of squares by channel of what Hopper's forward kernels store. All tiles of a block have
 * the same columns, so a warp keeps theirs until the block's last tile; then a block's sums are one of the
 * parts that lowered/stats_sum.cu adds. Constants: STATS (they are wanted); those of im2col_store.cuh. */
#pragma once
#include "ops/conv/cuda/conv_halve.cuh"
#include "ops/conv/im2col/im2col.cuh"

constexpr int LANES = SLICE / 8; /* that share a row of a slice */
constexpr int KEPT = BN / 16;    /* sums of a lane: a warp has 2 for each of BN columns */

struct statistics {
    float v[KEPT];
};

/* Of N columns, as a lane meets them. */
template <int N> struct column_sums {
    float sum[N], square[N];
};

__device__ __forceinline__ void clear(statistics &s)
{
#pragma unroll
    for (int i = 0; i < KEPT; i++) s.v[i] = 0;
}

template <int N> __device__ __forceinline__ void clear(column_sums<N> &s)
{
#pragma unroll
    for (int e = 0; e < N; e++) s.sum[e] = s.square[e] = 0;
}

/* Neighbours as they are stored. */
template <int N> __device__ __forceinline__ void count(column_sums<N> &s, const out_t (&stored)[N])
{
#pragma unroll
    for (int e = 0; e < N; e++) {
        const float f = widen<float>(stored[e]);
        s.sum[e] += f;
        s.square[e] = fmaf(f, f, s.square[e]);
    }
}

/* Rows of a slice, of which LANES neighbours have one. Lanes of the upper half of a warp keep squares; where
 * four have the same columns, two of them each keep half of the eight. */
__device__ __forceinline__ void add_rows(statistics &to, int slice, const column_sums<8> &s)
{
    float v[16];
    memcpy(v, s.sum, sizeof s.sum);
    memcpy(v + 8, s.square, sizeof s.square);
    halve<16>(v, 16);
    if constexpr (LANES == 8) halve<8>(v, 8);
#pragma unroll
    for (int e = 0; e < LANES / 2; e++) to.v[slice * (LANES / 2) + e] += v[e];
}

/* Rows of two blocks of 8 columns, of which four neighbours have one. */
__device__ __forceinline__ void add_rows(statistics &to, int pair, const column_sums<2> (&s)[2])
{
    float v[8] = {s[0].sum[0],    s[0].sum[1],    s[1].sum[0],    s[1].sum[1],
                  s[0].square[0], s[0].square[1], s[1].square[0], s[1].square[1]};
    halve<8>(v, 16);
    halve<4>(v, 8);
    halve<2>(v, 4);
    to.v[pair] += v[0];
}

/* A warp's sums in its part of the memory for staging, and behind them its squares: places, of which a lane
 * has four or more in a row. */
__device__ __forceinline__ void place_statistics(u32 own, const statistics &s)
{
    const int lane = (int)threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < KEPT; i += 4) {
        int place = (lane & 15) * KEPT + i;
        if constexpr (VECTOR == 8)
            place = i / (LANES / 2) * SLICE + lane % LANES * 8 + (LANES == 8 ? (lane & 8) / 2 : i % 8);
        shared_store(own + (u32)((lane >> 4) * BN + place) * 4, s.v + i);
    }
}

__device__ __forceinline__ int column_of(int place)
{
    const int lane = place / KEPT;
    return VECTOR == 8 ? place : place % KEPT * 16 + (lane & 8) + (lane & 3) * 2 + (lane >> 2 & 1);
}

/* After the block's last tile. staging: of the first of eight warps, each of which has so many bytes of its
 * own. All of both warpgroups come here. */
__device__ __forceinline__ void store_statistics(const mica_conv_sm90_args &a, u32 staging, u32 each,
                                                 const statistics &s)
{
    const int thread = (int)threadIdx.x - 128, four = thread % (BN / 4) * 4, squares = thread / (BN / 4);
    const int first = (int)blockIdx.x % a.col_tiles * BN, part = (int)blockIdx.x / a.col_tiles;
    place_statistics(staging + (u32)(thread / 32) * each, s);
    named_barrier_sync(1, 256);
    if (squares > 1) return;
    double sum[4] = {};
#pragma unroll
    for (u32 w = 0; w < 8; w++) {
        const uint4 words = shared_load(staging + w * each + (u32)(squares * BN + four) * 4);
        float v[4];
        memcpy(v, &words, sizeof v);
#pragma unroll
        for (int e = 0; e < 4; e++) sum[e] += (double)v[e];
    }
    double *const to = a.partial + (2LL * part + squares) * a.cols;
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const int column = first + column_of(four + e);
        if (column < a.cols) to[column] = sum[e];
    }
}
