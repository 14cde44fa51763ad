/* SPDX-License-Identifier: Apache-2.0
 * Columns of windows. A thread has VECTOR neighbouring windows of a channel and goes through `each`
 * of its taps; its neighbours have the next windows, so that rows of the matrix are written whole
 * and the image is read from lines that they share. Or, with PAIRS_FAST, it has one tap of one
 * window, and its neighbours those beside it. Floor: the matrix written once, the image read once
 * from memory. Constants beside those of im2col.cuh: VECTOR, PAIRS_FAST; element_t, of the
 * element's size. */
#include "ops/im2col/im2col.cuh"

static_assert(VECTOR == 1 || !PAIRS_FAST, "neighbouring windows");

struct work_t {
    s64 n, c, window, tap, taps;
};

INLINE work_t work_of(const mica_im2col_args &a, count_t i)
{
    work_t w;
    if constexpr (PAIRS_FAST) {
        w.tap = split_off(i, a.taps), w.taps = 1;
        w.c = split_off(i, a.c);
        w.window = split_off(i, a.windows);
    } else {
        w.window = (s64)split_off(i, a.windows / VECTOR) * VECTOR;
        w.tap = (s64)split_off(i, a.parts) * a.each;
        w.taps = a.taps - w.tap < a.each ? a.taps - w.tap : a.each;
        w.c = split_off(i, a.c);
    }
    w.n = (s64)i;
    return w;
}

INLINE coords_t coords_of(const mica_im2col_args &a, s64 number, bool taps)
{
    coords_t c;
    count_t rest = (count_t)number;
#pragma unroll
    for (int d = MICA_IM2COL_AXES - 1; d >= FIRST; d--)
        c.at[d] = split_off(rest, taps ? a.axis[d].taps : a.axis[d].out);
    return c;
}

INLINE void advance(const mica_im2col_args &a, coords_t &c, bool taps)
{
#pragma unroll
    for (int d = MICA_IM2COL_AXES - 1; d >= FIRST; d--) {
        const long long size = taps ? a.axis[d].taps : a.axis[d].out;
        if (++c.at[d] < (coord_t)size) return;
        c.at[d] = 0;
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK) im2col(const mica_im2col_args a)
{
    overlap_wait();
    const s64 i = (s64)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= a.count) return;
    const work_t w = work_of(a, (count_t)i);
    const element_t *from = (const element_t *)a.from + w.n * a.image_n + w.c * a.image_c;
    element_t *to = (element_t *)a.to + w.n * a.matrix_n + (w.c * a.taps + w.tap) * a.matrix_k +
                    w.window * a.matrix_l;
    coords_t window[VECTOR], tap = coords_of(a, w.tap, true);
    s64 place[VECTOR];
    window[0] = coords_of(a, w.window, false);
#pragma unroll
    for (int e = 1; e < VECTOR; e++) {
        window[e] = window[e - 1];
        advance(a, window[e], false);
    }
    /* The element that tap 0 reads. */
#pragma unroll
    for (int e = 0; e < VECTOR; e++) {
        place[e] = 0;
#pragma unroll
        for (int d = FIRST; d < MICA_IM2COL_AXES; d++) {
            window[e].at[d] = window[e].at[d] * (coord_t)a.axis[d].stride - (coord_t)a.axis[d].pad;
            place[e] += (s64)window[e].at[d] * a.axis[d].step;
        }
    }
#pragma unroll 1
    for (s64 k = 0; k < w.taps; k++, to += a.matrix_k) {
        coord_t shift[MICA_IM2COL_AXES];
        s64 moved = 0;
#pragma unroll
        for (int d = FIRST; d < MICA_IM2COL_AXES; d++) {
            shift[d] = tap.at[d] * (coord_t)a.axis[d].dilation;
            moved += (s64)shift[d] * a.axis[d].step;
        }
        element_t v[VECTOR] = {};
#pragma unroll
        for (int e = 0; e < VECTOR; e++) {
            bool inside = true;
#pragma unroll
            for (int d = FIRST; d < MICA_IM2COL_AXES; d++)
                inside &= (count_t)(window[e].at[d] + shift[d]) < (count_t)a.axis[d].in;
            if (inside) v[e] = from[place[e] + moved];
        }
        store_some<VECTOR>(to, v, VECTOR, a.whole);
        advance(a, tap, true);
    }
}
