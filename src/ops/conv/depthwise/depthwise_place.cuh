/* SPDX-License-Identifier: Apache-2.0
 * Which tile of which image a block of the depthwise kernels has. Constant: CHANNELS (of a block). */
#pragma once
#include "kernels/types.cuh"
#include "ops/conv/depthwise/depthwise_args.h"

struct depthwise_place {
    int channel, j, x, y, z; /* x, y: tiles */
    s64 n;
};

__device__ __forceinline__ depthwise_place block_place(const conv_depthwise_args &a)
{
    unsigned i = blockIdx.x, rest;
    depthwise_place p;
    rest = mica_fastdiv_of(a.channel_blocks, i), p.channel = (int)(i - rest * a.channel_blocks.divisor) * CHANNELS;
    i = rest, rest = mica_fastdiv_of(a.multipliers, i), p.j = (int)(i - rest * a.multipliers.divisor);
    i = rest, rest = mica_fastdiv_of(a.across, i), p.x = (int)(i - rest * a.across.divisor);
    i = rest, rest = mica_fastdiv_of(a.down, i), p.y = (int)(i - rest * a.down.divisor);
    i = rest, rest = mica_fastdiv_of(a.depth, i), p.z = (int)(i - rest * a.depth.divisor);
    p.n = rest;
    return p;
}
