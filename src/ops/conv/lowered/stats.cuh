/* SPDX-License-Identifier: Apache-2.0
 * The threads of a block that add up the same channel are its lanes: threads CHANNELS apart. */
#pragma once

constexpr int LANES = BLOCK / CHANNELS;
static_assert(BLOCK % CHANNELS == 0 && (LANES & (LANES - 1)) == 0, "lanes are added in pairs");

struct totals {
    double sum[BLOCK], square[BLOCK];
};

/* Lane 0 of each channel receives the totals. All threads come here. */
__device__ __forceinline__ void add_lanes(totals &t, double &sum, double &square)
{
    const int i = (int)threadIdx.x;
    t.sum[i] = sum;
    t.square[i] = square;
    __syncthreads();
#pragma unroll
    for (int far = BLOCK / 2; far >= CHANNELS; far /= 2) {
        if (i < far) {
            t.sum[i] += t.sum[i + far];
            t.square[i] += t.square[i + far];
        }
        __syncthreads();
    }
    sum = t.sum[i];
    square = t.square[i];
}
