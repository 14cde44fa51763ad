/* SPDX-License-Identifier: Apache-2.0
 * Pooling forward along W: one thread forms OUTS neighbouring windows from strips of x's rows.
 * Constants: OUTS, X_VECTOR, Y_VECTOR, INDEX_VECTOR (elements of an access), BLOCK and those of
 * pool.cuh. */
#include "kernels/overlap.cuh"
#include "ops/pool/pool_rows.cuh"

constexpr int OWN = OUTS * STRIDE_W, SPAN = (OUTS - 1) * STRIDE_W + WINDOW_W;

struct results {
    acc_t best[OUTS];
    int winner[OUTS];
};

/* One row of taps; !in: all of them are padding. */
template <int VECTOR>
__device__ __forceinline__ void take_row(const value_t *row, int first, int width, int row_index, bool in, results &r)
{
    value_t v[SPAN];
    load_row<VECTOR, PAD_W, OWN, SPAN>(row, first, width, v);
#pragma unroll
    for (int o = 0; o < OUTS; o++)
#pragma unroll
        for (int k = 0; k < WINDOW_W; k++) {
            int s = o * STRIDE_W + k, column = first - PAD_W + s;
            if (in && is_in(column, width)) take(widen<acc_t>(v[s]), row_index + column, r.best[o], r.winner[o]);
        }
}

template <int VECTOR> __device__ __forceinline__ results form(const mica_pool_args &a, const strip &s)
{
    const value_t *x = (const value_t *)a.in + row_offset(a.x, s, 0, 0);
    int depth = (int)a.axes[0].x, height = (int)a.axes[1].x, width = (int)a.axes[2].x;
    int d0 = s.d * STRIDE_D - PAD_D, h0 = s.h * STRIDE_H - PAD_H, w0 = s.first * STRIDE_W;
    results r;
#pragma unroll
    for (int o = 0; o < OUTS; o++) r.best[o] = least(), r.winner[o] = -1;
#pragma unroll
    for (int kd = 0; kd < WINDOW_D; kd++)
#pragma unroll
        for (int kh = 0; kh < WINDOW_H; kh++) {
            int d = clamp_to(d0 + kd, depth), h = clamp_to(h0 + kh, height);
            bool in = is_in(d0 + kd, depth) && is_in(h0 + kh, height);
            take_row<VECTOR>(x + d * a.x[2] + h * a.x[3], w0, width, (d * height + h) * width, in, r);
        }
    if constexpr (MODE != MAX) {
        int rows = taps_of<0>(a, d0) * taps_of<1>(a, h0);
#pragma unroll
        for (int o = 0; o < OUTS; o++) {
            int n = rows * taps_of<2>(a, w0 + o * STRIDE_W - PAD_W);
            r.best[o] = n > 0 ? r.best[o] / (acc_t)n : (acc_t)0;
        }
    }
    return r;
}

template <int VECTOR, int INDEX>
__device__ __forceinline__ void store(const mica_pool_args &a, const strip &s, const results &r)
{
    int n = (int)a.axes[2].y - s.first;
    value_t out[OUTS], *y = (value_t *)a.out + row_offset(a.y, s, s.d, s.h) + s.first;
    if (a.beta != 0) load_strip<VECTOR>(y, out, n);
#pragma unroll
    for (int o = 0; o < OUTS; o++) out[o] = finish(a, r.best[o], out[o]);
    store_strip<VECTOR>(y, out, n);
    if constexpr (INDICES) {
        index_t at[OUTS];
#pragma unroll
        for (int o = 0; o < OUTS; o++) at[o] = (index_t)r.winner[o];
        store_strip<INDEX>((index_t *)a.indices + row_offset(a.i, s, s.d, s.h) + s.first, at, n);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK, 1) pool_rows(const mica_pool_args a)
{
    overlap_wait();
    unsigned item = blockIdx.x * BLOCK + threadIdx.x;
    if (item >= (unsigned)a.count) return;
    strip s = find_strip(a, item, (unsigned)a.axes[0].y, (unsigned)a.axes[1].y, (unsigned)a.axes[2].y);
    if (a.aligned) store<Y_VECTOR, INDEX_VECTOR>(a, s, form<X_VECTOR>(a, s));
    else store<1, 1>(a, s, form<1>(a, s));
}
