/* SPDX-License-Identifier: Apache-2.0
 * What the depthwise kernels share: strips of a tile. A thread has two channels.
 * Constants: those of conv_halo.cuh; CHANNELS (of a block), PITCH (elements from pixel to pixel in shared
 * memory); THREAD_H, THREAD_W (pixels of a thread at a time); GROUPS (threads of one pair of channels);
 * VECTOR (elements of a copy); PIXELS_FIRST; in_t. */
#pragma once
#include "ops/conv/depthwise/depthwise_args.h"
#include "ops/conv/cuda/conv_halo.cuh"

constexpr int PAIRS = CHANNELS / 2, THREADS = PAIRS * GROUPS;
static_assert(CHANNELS % 2 == 0 && CHANNELS % VECTOR == 0, "pairs and copies of channels");
static_assert(TILE_H % THREAD_H == 0 && TILE_W % THREAD_W == 0, "whole strips");
static_assert(!DGRAD || (TILE_H % STRIDE_Y == 0 && THREAD_W % STRIDE_X == 0), "strips of one phase");

constexpr int WINDOW = halo_size(THREAD_W, COLS, STRIDE_X, DILATION_X);
constexpr int STRIPS_X = TILE_W / THREAD_W, STRIPS = TILE_H / THREAD_H * STRIPS_X;

__device__ __forceinline__ plane_of_pixels plane_of(const in_t *first, const conv_depthwise_strides &s, const int (&size)[3],
                                                    int channels, bool aligned)
{
    return plane_of_pixels{first, s.s[1], s.s[2], s.c, size[1], size[2], channels, aligned};
}

template <int H, int W> __device__ __forceinline__ void copy_tile_of(in_t *to, const plane_of_pixels &p, bool exists, int y, int x)
{
    copy_pixels<H, W, CHANNELS, PITCH, VECTOR, PIXELS_FIRST, THREADS>(to, p, exists, y, x);
}

/* Two neighbouring channels. */
__device__ __forceinline__ void load_pair(const in_t *p, float (&v)[2])
{
    in_t e[2];
    load_vector<2>(p, e);
    v[0] = widen<float>(e[0]);
    v[1] = widen<float>(e[1]);
}
