/* SPDX-License-Identifier: Apache-2.0
 * Sums of columns where they came from: a thread has an element of the image in GROUP channels, and
 * adds what the taps that read it have, in their order; its neighbours have the elements beside it,
 * whose taps lie in the same lines of the matrix. Floor: matrix and image once. Constants beside
 * those of im2col.cuh: GROUP; types x_t, real. */
#include "ops/im2col/im2col.cuh"

/* A tap that reads an element, and the window in which it does. */
struct reader_t {
    coord_t tap, window;
};

/* The first of them, of any window: what lies past the last one is left out by who walks. */
INLINE reader_t first_reader(const mica_im2col_axis &x, coord_t element)
{
    const coord_t at = element + (coord_t)x.pad, stride = (coord_t)x.stride,
                  step = (coord_t)x.dilation;
    if (stride == 1) return {0, at};
    for (coord_t k = 0; k < (coord_t)x.apart && k * step <= at; k++) {
        const coord_t q = (at - k * step) / stride;
        if (q * stride == at - k * step) return {k, q};
    }
    return {0, -1};
}

INLINE void next_reader(const mica_im2col_axis &x, reader_t &r)
{
    r.tap += (coord_t)x.apart, r.window -= (coord_t)x.back;
}

INLINE bool reads(const mica_im2col_axis &x, const reader_t &r)
{
    return r.tap < (coord_t)x.taps && r.window >= 0;
}

template <int D>
INLINE void add(const mica_im2col_args &a, const reader_t *first, s64 tap, s64 window,
                const x_t *from, int some, real (&sum)[GROUP])
{
    if constexpr (D == MICA_IM2COL_AXES) {
        const x_t *at = from + tap * a.matrix_k + window * a.matrix_l;
        x_t v[GROUP] = {};
#pragma unroll
        for (int g = 0; g < GROUP; g++)
            if (g < some) v[g] = at[g * a.taps * a.matrix_k];
#pragma unroll
        for (int g = 0; g < GROUP; g++) sum[g] += widen<real>(v[g]);
    } else {
        const mica_im2col_axis &x = a.axis[D];
#pragma unroll 1
        for (reader_t r = first[D]; reads(x, r); next_reader(x, r))
            if (r.window < (coord_t)x.out)
                add<D + 1>(a, first, tap * x.taps + r.tap, window * x.out + r.window, from, some,
                           sum);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK) col2im(const mica_im2col_args a)
{
    overlap_wait();
    const s64 i = (s64)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= a.count) return;
    count_t rest = (count_t)i;
    reader_t first[MICA_IM2COL_AXES];
    s64 place = 0;
#pragma unroll
    for (int d = MICA_IM2COL_AXES - 1; d >= FIRST; d--) {
        const coord_t at = split_off(rest, a.axis[d].in);
        first[d] = first_reader(a.axis[d], at);
        place += (s64)at * a.axis[d].step;
    }
    const s64 c = (s64)split_off(rest, a.parts) * GROUP, n = (s64)rest;
    const int some = a.c - c < GROUP ? (int)(a.c - c) : GROUP;
    const x_t *from = (const x_t *)a.from + n * a.matrix_n + c * a.taps * a.matrix_k;
    real sum[GROUP] = {};
    add<FIRST>(a, first, 0, 0, from, some, sum);
    x_t *to = (x_t *)a.to + n * a.image_n + c * a.image_c + place;
#pragma unroll
    for (int g = 0; g < GROUP; g++)
        if (g < some) to[g * a.image_c] = narrow<x_t>(sum[g]);
}
