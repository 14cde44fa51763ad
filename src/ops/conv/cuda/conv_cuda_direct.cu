/* SPDX-License-Identifier: Apache-2.0
 * Convolutions with so few channels in a group that tiles would stay empty (depthwise above all),
 * fwd and dgrad: one result per thread. Constants: those of conv_device.cuh, BLOCK, and
 * CHANNEL_FAST: neighbouring threads compute neighbouring channels, else neighbouring pixels. */
#include "kernels/overlap.cuh"
#include "ops/conv/cuda/conv_device.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK, 4) conv_direct(const mica_conv_args a)
{
    overlap_wait();
    const mica_conv_geometry &g = a.g;
    const long long cols = a.cols * g.groups, count = a.rows * cols;
    const long long channels = DGRAD ? g.k : g.c;
    const left_t *left = (const left_t *)a.left;
    const right_t *right = (const right_t *)a.right;
    const long long i = blockIdx.x * (long long)BLOCK + threadIdx.x;
    if (i >= count) return;
    const long long fast = CHANNEL_FAST ? cols : a.rows, slow_i = divide(i, fast), fast_i = i - slow_i * fast;
    const long long channel = CHANNEL_FAST ? fast_i : slow_i, group = divide(channel, a.cols);
    const long long c = channel - group * a.cols;
    const pixel_entry p = make_pixel(g, CHANNEL_FAST ? slow_i : fast_i, a.rows);
    const long long image = p.source + group * read_strides(g).g;
    const long long filter = g.f_base + group * g.f.g + c * (DGRAD ? g.f.c : g.f.n);
    acc_t sum = 0;
    for (long long t0 = 0; t0 < g.tap[0]; t0++) {
        long long at0 = image, sign = DGRAD ? -1 : 1;
        if (!along(g, 0, (coord_t)(p.at[0] + sign * t0 * g.dilation[0]), at0)) continue;
        for (long long t1 = 0; t1 < g.tap[1]; t1++) {
            long long at1 = at0;
            if (!along(g, 1, (coord_t)(p.at[1] + sign * t1 * g.dilation[1]), at1)) continue;
            for (long long t2 = 0; t2 < g.tap[2]; t2++) {
                long long at2 = at1, f = filter + t0 * g.f.s[0] + t1 * g.f.s[1] + t2 * g.f.s[2];
                if (!along(g, 2, (coord_t)(p.at[2] + sign * t2 * g.dilation[2]), at2)) continue;
                for (long long z = 0; z < channels; z++)
                    sum += widen<acc_t>(left[at2 + z * read_strides(g).c]) *
                           widen<acc_t>(right[f + z * (DGRAD ? g.f.n : g.f.c)]);
            }
        }
    }
    finish(a, p.place + channel * counted_strides(g).c, channel, p.residual + channel * g.residual.c, sum);
}
