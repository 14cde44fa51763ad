/* SPDX-License-Identifier: Apache-2.0
 * Taps of deformable convolution for the gradient of x (ops/taps/taps.h): what reads which element of the image
 * and offset group, by weight and mask. A thread has a tap of a pixel. Constants: BLOCK, MASK; types x_t, and those
 * of taps.cuh. */
#include "ops/deform_conv/deform_conv.cuh"
#include "ops/taps/taps.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK) deform_emit(const mica_deform_conv_args a)
{
    overlap_wait();
    const s64 own = (s64)blockIdx.x * BLOCK + threadIdx.x;
    if (own >= a.count) return;
    s64 i = own;
    tap_t t;
    t.pixel = split_off(i, a.pixels), t.tap = split_off(i, a.taps);
    const s64 plane = i; /* of images and their offset groups */
    t.group = split_off(i, a.offset_groups), t.image = i;
    find_tap(a, t);
#pragma unroll
    for (int corner = 0; corner < 4; corner++) {
        const real weight = t.h.weight[corner / 2] * t.w.weight[corner % 2];
        const s64 h = t.h.first + corner / 2, w = t.w.first + corner % 2;
        const s64 cell = (plane * a.axis[0].in + h) * a.axis[1].in + w;
        taps_emit(a.lists, own * 4 + corner, weight != 0 ? cell : -1, weight * t.mask);
    }
}
