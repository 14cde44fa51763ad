/* SPDX-License-Identifier: Apache-2.0
 * Tiles of an image or a filter to spectra. Constants: those of fft.cuh; type in_t. */
#include "kernels/overlap.cuh"
#include "ops/conv/fft/fft.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK) conv_fft_points(const __grid_constant__ conv_fft_args a)
{
    overlap_wait();
    extern __shared__ __align__(16) unsigned char memory[];
    point *x = (point *)memory;
    const shape s = shape_of(a);
    const where w = block_place(a);
    load_tile<in_t>(a, a.side, w, x);
    forward(a, x);
    const s64 to = spectrum_at(a, a.points, w);
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < s.signals * s.tile; i += BLOCK) {
        int lane, bin;
        find_value(a, a.points, s, i, lane, bin);
        if (w.digit[0] + lane < a.count[0])
            store_value(a.points, to + lane * a.points.digit[0] + bin * a.points.bin, x[skewed(lane * s.tile + bin)]);
    }
}
