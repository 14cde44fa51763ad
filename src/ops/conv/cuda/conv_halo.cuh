/* SPDX-License-Identifier: Apache-2.0
 * Tiles of an image with their halo, and which pixel of the halo a tap of a pixel needs: in dgrad the
 * image that is read has a pixel for every STRIDE of the result. Constants: KIND; ROWS, COLS (taps);
 * STRIDE_Y, STRIDE_X, DILATION_Y, DILATION_X; TILE_H, TILE_W (pixels of a block's result, in wgrad of b). */
#pragma once
#include "kernels/mma.cuh"
#include "kernels/vector.cuh"
#include "ops/conv/conv_args.h"

constexpr bool DGRAD = KIND == MICA_CONV_KIND_DGRAD;

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

/* Where the pixels of a plane lie, in elements. */
struct plane_of_pixels {
    const in_t *first; /* pixel 0, 0 of the block's first channel */
    s64 row, col, channel;
    int rows, cols, channels; /* channels: from the first on */
    bool aligned;             /* channels lie side by side, VECTOR of them at multiples of their size */
};

/* Copies H x W pixels of CHANNELS channels from row y, column x on, PITCH elements apart; what lies
 * outside is zero. PIXELS_FIRST: neighbouring threads copy neighbouring pixels, else channels. */
template <int H, int W, int CHANNELS, int PITCH, int VECTOR, bool PIXELS_FIRST, int THREADS>
__device__ __forceinline__ void copy_pixels(in_t *to, const plane_of_pixels &p, bool exists, int y, int x)
{
    constexpr int CHUNKS = CHANNELS / VECTOR, BYTES = VECTOR * (int)sizeof(in_t);
    if constexpr (BYTES >= 4) {
        if (p.aligned) {
            for (int i = (int)threadIdx.x; i < H * W * CHUNKS; i += THREADS) {
                const int pixel = i / CHUNKS, c = i % CHUNKS * VECTOR, row = y + pixel / W, col = x + pixel % W;
                const bool inside = exists && (unsigned)row < (unsigned)p.rows && (unsigned)col < (unsigned)p.cols &&
                                    c < p.channels;
                const in_t *from = inside ? p.first + row * p.row + col * p.col + c : p.first;
                copy_async<BYTES>(shared_address(to + pixel * PITCH + c), from, inside ? BYTES : 0);
            }
            return;
        }
    }
    for (int i = (int)threadIdx.x; i < H * W * CHANNELS; i += THREADS) {
        const int pixel = PIXELS_FIRST ? i % (H * W) : i / CHANNELS, c = PIXELS_FIRST ? i / (H * W) : i % CHANNELS;
        const int row = y + pixel / W, col = x + pixel % W;
        const bool inside = exists && (unsigned)row < (unsigned)p.rows && (unsigned)col < (unsigned)p.cols &&
                            c < p.channels;
        in_t v = {};
        if (inside) v = p.first[row * p.row + col * p.col + c * p.channel];
        to[pixel * PITCH + c] = v;
    }
}
