/* SPDX-License-Identifier: Apache-2.0
 * Spectra of results to tiles of a tensor, with alpha, beta and the epilogue. Constants: those
 * of fft.cuh and the epilogue's; MODE: SHARES, spectra are sums of those that are there; PRODUCTS, of
 * those of image tiles times the conjugates of the filter's parts; FUSED, as that, the filter having one
 * part and the image being transformed here; types in_t (of the image, then), out_t. */
#include "kernels/epilogue.cuh"
#include "kernels/overlap.cuh"
#include "ops/conv/fft/fft.cuh"

constexpr int SHARES = 0, PRODUCTS = 1, FUSED = 2;
static_assert(MODE == SHARES || MODE == PRODUCTS || MODE == FUSED, "where spectra come from");

/* Values of what the block transforms back. */
__device__ __forceinline__ void load_spectra(const conv_fft_args &a, const where &w, point *x)
{
    const shape s = shape_of(a);
    const s64 first = spectrum_at(a, a.points, w), filter = digits_at(a.filter.digit, w);
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < s.signals * s.tile; i += BLOCK) {
        int lane, bin;
        find_value(a, a.points, s, i, lane, bin);
        point sum = {0, 0};
        if (w.digit[0] + lane < a.count[0]) {
            const s64 at = first + lane * a.points.digit[0] + bin * a.points.bin;
            const s64 f = filter + lane * a.filter.digit[0] + bin * a.filter.bin;
            if constexpr (MODE == FUSED)
                sum = x[skewed(lane * s.tile + bin)] * conjugate(load_value(a.filter, f));
            else
                for (int u = 0; u < a.parts[0]; u++)
                    for (int v = 0; v < a.parts[1]; v++) {
                        if constexpr (MODE == SHARES)
                            sum = sum + load_value(a.points, at + v * a.share);
                        else
                            sum = sum + load_value(a.points, at + ((s64)u * a.places[1] + v) * a.points.place) *
                                            conjugate(load_value(a.filter, f + (u * a.parts[1] + v) * a.filter.place));
                    }
        }
        x[skewed(lane * s.tile + bin)] = sum;
    }
    __syncthreads();
}

__device__ __forceinline__ void store_tile(const conv_fft_args &a, const where &w, point *x)
{
    const shape s = shape_of(a);
    const conv_fft_side &side = a.side;
    const sum_t alpha = (sum_t)a.alpha, beta = (sum_t)a.beta, scale = (sum_t)a.scale;
    out_t *to = (out_t *)side.data + side.t.base + digits_at(side.digit, w);
    const s64 channel = digits_at(a.channel, w), residual = digits_at(a.residual, w);
    const int y = w.place[0] * side.step[0], c = w.place[1] * side.step[1];
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < s.signals * s.rows * 2 * s.half; i += BLOCK) {
        const number_place p = find_number(a, side, i);
        if (w.digit[0] + p.lane >= side.limit[0] || p.row >= side.take[0] || p.col >= side.take[1]) continue;
        const int row = element_at(side.t, 0, y + p.row), col = element_at(side.t, 1, c + p.col);
        if (row < 0 || col < 0) continue;
        out_t *out = to + p.lane * side.digit[0] + row * side.t.s[0] + col * side.t.s[1];
        sum_t v = number_at(x, s, p) * scale * alpha;
        if (beta != 0) v += beta * widen<sum_t>(*out);
        *out = narrow<out_t>(epilogue(a.epilogue, v, channel + p.lane * a.channel[0],
                                      residual + p.lane * a.residual[0] + row * a.residual_s[0] + col * a.residual_s[1]));
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK) conv_fft_result(const __grid_constant__ conv_fft_args a)
{
    overlap_wait();
    extern __shared__ __align__(16) unsigned char memory[];
    point *x = (point *)memory;
    const where w = block_place(a);
    if (w.place[0] >= a.side.places[0] || w.place[1] >= a.side.places[1]) return;
    if (w.digit[1] >= a.side.limit[1] || w.digit[2] >= a.side.limit[2]) return;
    if constexpr (MODE == FUSED) {
        load_tile<in_t>(a, a.image, w, x);
        forward(a, x);
    }
    load_spectra(a, w, x);
    inverse(a, x);
    store_tile(a, w, x);
}
