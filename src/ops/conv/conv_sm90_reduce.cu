/* SPDX-License-Identifier: Apache-2.0
 * The sum of wgrad's partial sums in a fixed order, and its way into the filter: SHARES
 * parts of the splits for each weight, neighbouring threads at neighbouring channels. Constants: BLOCK;
 * SHARES (4); out_t. */
#include "ops/conv/conv_sm90_args.h"

constexpr int WEIGHTS = BLOCK / SHARES;
static_assert(SHARES == 4 && BLOCK % SHARES == 0, "the order of the last sum");

extern "C" __global__ void __launch_bounds__(BLOCK) conv_sm90_reduce(const mica_conv_sm90_reduce_args a)
{
    __shared__ float part[SHARES][WEIGHTS];
    const int lane = (int)threadIdx.x % WEIGHTS, share = (int)threadIdx.x / WEIGHTS;
    const int index = (int)blockIdx.x * WEIGHTS + lane;
    const bool exists = index < a.count;
    /* index counts (row, tap, channel) */
    const int c = index % a.channels, pair = index / a.channels;
    const int taps = a.taps[0] * a.taps[1] * a.taps[2], tap = pair % taps, row = pair / taps;
    const int width = (a.channels + 63) / 64 * 64;
    const float *from = a.partial + ((long long)row * a.columns + tap * width + c);
    float sum = 0;
    if (exists)
#pragma unroll 4
        for (int i = share; i < a.splits; i += SHARES) sum += from[i * a.split_stride];
    part[share][lane] = sum;
    __syncthreads();
    if (share > 0 || !exists) return;
    sum = (part[0][lane] + part[1][lane]) + (part[2][lane] + part[3][lane]);
    const int t2 = tap % a.taps[2], rest = tap / a.taps[2], t1 = rest % a.taps[1], t0 = rest / a.taps[1];
    out_t *out = (out_t *)a.out + (a.f_base + row * a.f.n + c * a.f.c + t0 * a.f.s[0] + t1 * a.f.s[1] + t2 * a.f.s[2]);
    float v = a.alpha * sum;
    if (a.beta != 0) v += a.beta * widen<float>(*out);
    *out = narrow<out_t>(v);
}
