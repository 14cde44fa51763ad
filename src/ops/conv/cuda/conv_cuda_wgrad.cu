/* SPDX-License-Identifier: Apache-2.0
 * wgrad with few channels in a group: a warp column of CHANNELS filters for one (tap, channel) pair
 * per block, its pixels divided among the threads and their sums added in a fixed order. Constants:
 * those of conv_device.cuh, BLOCK, CHANNELS (32: neighbouring channels lie next to each other; 1:
 * neighbouring pixels do). */
#include "kernels/overlap.cuh"
#include "ops/conv/cuda/conv_device.cuh"

constexpr int SHARES = BLOCK / CHANNELS;
static_assert(BLOCK % CHANNELS == 0 && (SHARES & (SHARES - 1)) == 0, "halving must end at one");

extern "C" __global__ void __launch_bounds__(BLOCK, 4) conv_wgrad(const mica_conv_args a)
{
    overlap_wait();
    __shared__ acc_t part[SHARES][CHANNELS];
    const mica_conv_geometry &g = a.g;
    const int lane = (int)threadIdx.x % CHANNELS, share = (int)threadIdx.x / CHANNELS;
    const left_t *left = (const left_t *)a.left;
    const right_t *right = (const right_t *)a.right;
    for (long long index = blockIdx.x; index < a.tiles; index += gridDim.x) {
        const long long rest = divide(index, a.rows), split = divide(rest, a.col_tiles);
        const long long k = (rest - split * a.col_tiles) * CHANNELS + lane, group = divide(k, a.cols);
        const long long first = split * a.terms_each;
        const long long last = a.terms < first + a.terms_each ? a.terms : first + a.terms_each;
        const bool exists = k < a.cols * g.groups;
        const pair_entry q = make_pair_entry(g, index - rest * a.rows, a.rows);
        const left_t *image = left + group * g.a.g;
        acc_t sum = 0;
        for (long long z = first + share; exists && z < last; z += SHARES) {
            const pixel_entry p = make_pixel(g, z, a.terms);
            const acc_t v = image_value(g, image, p, q);
            sum += v * widen<acc_t>(right[p.place + k * g.b.c]);
        }
        __syncthreads();
        part[share][lane] = sum;
        for (int half = SHARES / 2; half > 0; half /= 2) {
            __syncthreads();
            if (share < half) part[share][lane] += part[share + half][lane];
        }
        if (share == 0 && exists) finish(a, q.filter + k * g.f.n + split * a.part, 0, 0, part[0][lane]);
    }
}
