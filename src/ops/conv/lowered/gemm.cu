/* SPDX-License-Identifier: Apache-2.0
 * An image as a matrix (im2col): row by row the pixels of the result, along a row the pairs (tap,
 * channel) of the image that is read, 0 outside of it. A warp writes a part of a row at a time. Constants:
 * those of conv_device.cuh; BLOCK; VECTOR (neighbouring channels in one access); TAP_FAST: taps of one channel are
 * neighbours, else channels of one tap. */
#include "kernels/overlap.cuh"
#include "kernels/vector.cuh"
#include "ops/conv/cuda/conv_device.cuh"
#include "ops/conv/lowered/gemm_args.h"

constexpr int ABREAST = 4; /* loads of a thread in flight */

static_assert(!WGRAD, "its image is read as in a forward pass");
static_assert(VECTOR == 1 || !TAP_FAST, "neighbouring channels");

__device__ __forceinline__ pair_entry pair_at(const conv_gemm_args &a, long long i)
{
    if constexpr (TAP_FAST) {
        const mica_conv_geometry &g = a.g;
        const long long taps = g.tap[0] * g.tap[1] * g.tap[2], c = divide(i, taps);
        i = (i - c * taps) * (DGRAD ? g.k : g.c) + c;
    }
    return make_pair_entry(a.g, i, a.pairs);
}

/* Where the image holds this pixel as this pair sees it; false outside. */
__device__ __forceinline__ bool find(const mica_conv_geometry &g, const pixel_entry &p, const pair_entry &q,
                                     long long &offset)
{
    offset = p.source + q.source;
#pragma unroll
    for (int d = 0; d < 3; d++)
        if (!along(g, d, p.at[d] + q.tap[d], offset)) return false;
    return true;
}

extern "C" __global__ void __launch_bounds__(BLOCK) conv_gemm(const conv_gemm_args a)
{
    overlap_wait();
    const long long items = a.rows * a.g.groups * a.parts, step = (long long)gridDim.x * (BLOCK / 32);
    constexpr int PART = MICA_CONV_GEMM_PART * VECTOR;
    const int lane = (int)threadIdx.x % 32;
    for (long long item = blockIdx.x * (long long)(BLOCK / 32) + threadIdx.x / 32; item < items; item += step) {
        const long long row = divide(item, a.parts), group = divide(row, a.rows);
        const long long first = (item - row * a.parts) * PART;
        const long long last = a.pairs - first < PART ? a.pairs : first + PART;
        const pixel_entry p = make_pixel(a.g, row - group * a.rows, a.rows);
        const left_t *image = (const left_t *)a.image + group * read_strides(a.g).g;
        left_t *to = (left_t *)a.matrix + row * a.pairs;
        for (long long i = first + lane * VECTOR; i < last; i += ABREAST * 32 * VECTOR) {
            left_t v[ABREAST][VECTOR] = {};
#pragma unroll
            for (int k = 0; k < ABREAST; k++) {
                const long long at = i + k * 32 * VECTOR;
                long long offset;
                if (at < last && find(a.g, p, pair_at(a, at), offset))
                    load_some<VECTOR>(image + offset, v[k], VECTOR, a.whole);
            }
#pragma unroll
            for (int k = 0; k < ABREAST; k++) {
                const long long at = i + k * 32 * VECTOR;
                if (at < last) store_some<VECTOR>(to + at, v[k], VECTOR, a.whole);
            }
        }
    }
}
