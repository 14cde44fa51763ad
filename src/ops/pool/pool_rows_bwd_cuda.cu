/* SPDX-License-Identifier: Apache-2.0
 * Pooling backward along W: one thread gathers OUTS neighbouring elements of dx from the windows over
 * them, in a fixed order; each window is read once by a thread. An index that is none of its window's
 * taps meets no element. Constants: OUTS (a multiple of STRIDE_W), X_VECTOR, Y_VECTOR, INDEX_VECTOR
 * (elements of an access), BLOCK and those of pool.cuh. */
#include "kernels/overlap.cuh"
#include "ops/pool/pool_rows.cuh"

static_assert(OUTS % STRIDE_W == 0, "a strip's first element lies alike to its windows");

/* Windows with taps in a strip, counted from the one whose taps start PAD_W before it. */
constexpr int REACH = WINDOW_W - 1 - PAD_W;
constexpr int LEFT = REACH > 0 ? REACH / STRIDE_W : 0;
constexpr int OWN = OUTS / STRIDE_W, SPAN = LEFT + (OUTS - 1 + PAD_W) / STRIDE_W + 1;
constexpr int ROWS_D = (WINDOW_D + STRIDE_D - 1) / STRIDE_D, ROWS_H = (WINDOW_H + STRIDE_H - 1) / STRIDE_H;

/* Adds g to the window's taps in the strip, or to the one at `hit`. */
__device__ __forceinline__ void add(int window, acc_t g, int hit, acc_t *sum)
{
#pragma unroll
    for (int k = 0; k < OUTS; k++) {
        int tap = k - (window * STRIDE_W - PAD_W);
        if (tap < 0 || tap >= WINDOW_W) continue;
        if (MODE != MAX || k == hit) sum[k] += g;
    }
}

/* Windows of one row of y. */
template <int VECTOR, int INDEX>
__device__ __forceinline__ void take_row(const mica_pool_args &a, const strip &s, int d, int h, bool in, acc_t *sum)
{
    int first = s.first / STRIDE_W, width = (int)a.axes[2].y;
    value_t g[SPAN];
    load_row<VECTOR, LEFT, OWN, SPAN>((const value_t *)a.in + row_offset(a.y, s, d, h), first, width, g);
    if constexpr (MODE == MAX) {
        index_t at[SPAN];
        load_row<INDEX, LEFT, OWN, SPAN>((const index_t *)a.indices + row_offset(a.i, s, d, h), first, width, at);
        int start = (s.d * (int)a.axes[1].x + s.h) * (int)a.axes[2].x + s.first;
#pragma unroll
        for (int j = 0; j < SPAN; j++) {
            long long hit = (long long)at[j] - start;
            bool counts = in && is_in(first - LEFT + j, width) && hit >= 0 && hit < OUTS;
            add(j - LEFT, widen<acc_t>(g[j]), counts ? (int)hit : -1, sum);
        }
    } else {
        int rows = taps_of<0>(a, d * STRIDE_D - PAD_D) * taps_of<1>(a, h * STRIDE_H - PAD_H);
#pragma unroll
        for (int j = 0; j < SPAN; j++) {
            int window = first - LEFT + j;
            int n = rows * taps_of<2>(a, window * STRIDE_W - PAD_W);
            if (in && is_in(window, width)) add(j - LEFT, widen<acc_t>(g[j]) / (acc_t)n, 0, sum);
        }
    }
}

template <int VECTOR, int INDEX> __device__ __forceinline__ void gather(const mica_pool_args &a, const strip &s, acc_t *sum)
{
    int last_d = (s.d + PAD_D) / STRIDE_D, last_h = (s.h + PAD_H) / STRIDE_H;
    int depth = (int)a.axes[0].y, height = (int)a.axes[1].y;
#pragma unroll
    for (int i = ROWS_D - 1; i >= 0; i--)
#pragma unroll
        for (int j = ROWS_H - 1; j >= 0; j--) {
            int d = last_d - i, h = last_h - j;
            bool in = is_in(d, depth) && is_in(h, height);
            in = in && s.d + PAD_D - d * STRIDE_D < WINDOW_D && s.h + PAD_H - h * STRIDE_H < WINDOW_H;
            take_row<VECTOR, INDEX>(a, s, clamp_to(d, depth), clamp_to(h, height), in, sum);
        }
}

template <int VECTOR> __device__ __forceinline__ void store(const mica_pool_args &a, const strip &s, const acc_t *sum)
{
    int n = (int)a.axes[2].x - s.first;
    value_t out[OUTS], *dx = (value_t *)a.out + row_offset(a.x, s, s.d, s.h) + s.first;
    if (a.beta != 0) load_strip<VECTOR>(dx, out, n);
#pragma unroll
    for (int k = 0; k < OUTS; k++) out[k] = finish(a, sum[k], out[k]);
    store_strip<VECTOR>(dx, out, n);
}

extern "C" __global__ void __launch_bounds__(BLOCK, 1) pool_rows_bwd(const mica_pool_args a)
{
    overlap_wait();
    unsigned item = blockIdx.x * BLOCK + threadIdx.x;
    if (item >= (unsigned)a.count) return;
    strip s = find_strip(a, item, (unsigned)a.axes[0].x, (unsigned)a.axes[1].x, (unsigned)a.axes[2].x);
    acc_t sum[OUTS];
#pragma unroll
    for (int k = 0; k < OUTS; k++) sum[k] = 0;
    if (a.aligned) {
        gather<Y_VECTOR, INDEX_VECTOR>(a, s, sum);
        store<X_VECTOR>(a, s, sum);
    } else {
        gather<1, 1>(a, s, sum);
        store<1>(a, s, sum);
    }
}
