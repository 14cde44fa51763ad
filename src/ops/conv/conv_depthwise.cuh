/* SPDX-License-Identifier: Apache-2.0
 * What the depthwise kernels share: tiles of an image with their halo in shared memory, and which
 * pixel of the halo a tap of a pixel needs. A thread has two channels.
 * Constants: KIND; ROWS, COLS (taps); STRIDE_Y, STRIDE_X, DILATION_Y, DILATION_X; CHANNELS (of a block),
 * PITCH (elements from pixel to pixel in shared memory); TILE_H, TILE_W (pixels of a block's result, in
 * wgrad of b); THREAD_H, THREAD_W (of a thread at a time); GROUPS (threads of one pair of channels);
 * VECTOR (elements of a copy); PIXELS_FIRST (neighbouring threads copy neighbouring pixels, else
 * channels); in_t. */
#pragma once
#include "cuda/device/mma.cuh"
#include "cuda/device/vector.cuh"
#include "ops/conv/conv_args.h"
#include "ops/conv/conv_depthwise_args.h"

constexpr bool DGRAD = KIND == MICA_CONV_KIND_DGRAD;
constexpr int PAIRS = CHANNELS / 2, THREADS = PAIRS * GROUPS;
static_assert(CHANNELS % 2 == 0 && CHANNELS % VECTOR == 0, "pairs and copies of channels");
static_assert(TILE_H % THREAD_H == 0 && TILE_W % THREAD_W == 0, "whole strips");
static_assert(!DGRAD || (TILE_H % STRIDE_Y == 0 && THREAD_W % STRIDE_X == 0), "strips of one phase");

/* Along one axis of `taps` taps: halo pixels of n pixels; the pixel that tap t of pixel o needs, -1
 * where stride skips it in dgrad; the first pixel of the strip that starts at o. */
__device__ __forceinline__ constexpr int before(int taps, int stride, int dilation)
{
    return (taps - 1) * dilation / stride;
}
__device__ __forceinline__ constexpr int halo_size(int n, int taps, int stride, int dilation)
{
    return DGRAD ? (n - 1) / stride + before(taps, stride, dilation) + 1 : (n - 1) * stride + (taps - 1) * dilation + 1;
}
__device__ __forceinline__ constexpr int halo_of(int o, int t, int taps, int stride, int dilation)
{
    if (!DGRAD) return o * stride + t * dilation;
    const int u = o - t * dilation + before(taps, stride, dilation) * stride;
    return u % stride ? -1 : u / stride;
}
__device__ __forceinline__ constexpr int strip_start(int o, int stride) { return DGRAD ? o / stride : o * stride; }

constexpr int HALO_H = halo_size(TILE_H, ROWS, STRIDE_Y, DILATION_Y);
constexpr int HALO_W = halo_size(TILE_W, COLS, STRIDE_X, DILATION_X);
constexpr int WINDOW = halo_size(THREAD_W, COLS, STRIDE_X, DILATION_X);
constexpr int STRIPS_X = TILE_W / THREAD_W, STRIPS = TILE_H / THREAD_H * STRIPS_X;

/* Copies H x W pixels of CHANNELS channels from row y, column x on; what lies outside is zero. */
template <int H, int W>
__device__ __forceinline__ void copy_pixels(in_t *to, const in_t *plane, bool exists, const conv_depthwise_strides &s,
                                            const int (&size)[3], int y, int x, int channels, bool aligned)
{
    constexpr int CHUNKS = CHANNELS / VECTOR, BYTES = VECTOR * (int)sizeof(in_t);
    if constexpr (BYTES >= 4) {
        if (aligned) {
            for (int i = (int)threadIdx.x; i < H * W * CHUNKS; i += THREADS) {
                const int pixel = i / CHUNKS, c = i % CHUNKS * VECTOR, row = y + pixel / W, col = x + pixel % W;
                const bool inside = exists && (unsigned)row < (unsigned)size[1] && (unsigned)col < (unsigned)size[2] &&
                                    c < channels;
                const in_t *from = inside ? plane + row * s.s[1] + col * s.s[2] + c : plane;
                copy_async<BYTES>(shared_address(to + pixel * PITCH + c), from, inside ? BYTES : 0);
            }
            return;
        }
    }
    for (int i = (int)threadIdx.x; i < H * W * CHANNELS; i += THREADS) {
        const int pixel = PIXELS_FIRST ? i % (H * W) : i / CHANNELS, c = PIXELS_FIRST ? i / (H * W) : i % CHANNELS;
        const int row = y + pixel / W, col = x + pixel % W;
        const bool inside = exists && (unsigned)row < (unsigned)size[1] && (unsigned)col < (unsigned)size[2] &&
                            c < channels;
        in_t v = {};
        if (inside) v = plane[row * s.s[1] + col * s.s[2] + c * s.c];
        to[pixel * PITCH + c] = v;
    }
}

/* Two neighbouring channels. */
__device__ __forceinline__ void load_pair(const in_t *p, float (&v)[2])
{
    in_t e[2];
    load_vector<2>(p, e);
    v[0] = widen<float>(e[0]);
    v[1] = widen<float>(e[1]);
}
