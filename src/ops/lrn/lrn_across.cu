/* SPDX-License-Identifier: Apache-2.0
 * Gradient across channels that are no neighbours in memory, in one pass: a thread keeps the channels of a window, the
 * slopes of those windows that hold an element, and what waits for them. Floor: x and dy read and dx written once at copy
 * bandwidth. Constants of lrn.cuh, with MARCH along the channels; BEFORE, AFTER (elements of a window beside its own). */
#include "ops/lrn/lrn.cuh"

static_assert(MARCH == 1 && !MEANS, "windows reach along channels");
constexpr int SIZE = BEFORE + 1 + AFTER;

template <int N> struct queue {
    real v[N][VEC]; /* oldest first */

    INLINE void clear()
    {
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (int k = 0; k < VEC; k++) v[i][k] = 0;
    }
    INLINE void push(const real *newest)
    {
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (int k = 0; k < VEC; k++) v[i][k] = i < N - 1 ? v[i < N - 1 ? i + 1 : i][k] : newest[k];
    }
};

/* The slopes of channel i's window, that of the queue. */
INLINE void find_slopes(const mica_lrn_args &a, const queue<SIZE> &x, const x_t *dy, real *slope, real *scaled)
{
    unpack(fetch<VEC>(dy, a.whole), scaled);
#pragma unroll
    for (int k = 0; k < VEC; k++) {
        real sum = 0;
#pragma unroll
        for (int i = 0; i < SIZE; i++) sum = fma_of(x.v[i][k], x.v[i][k], sum);
        const real s = fma_of((real)a.alpha, sum, (real)a.k);
        scaled[k] *= power_of(a, s);
        slope[k] = ordinary(a, s) ? scaled[k] * (x.v[BEFORE][k] / s) : (real)NAN_F;
    }
}

INLINE void finish(const mica_lrn_args &a, const column &c, int_t m, const real *x, const queue<SIZE> &slopes, const real *scaled)
{
    real dx[VEC];
    bool all = true;
#pragma unroll
    for (int k = 0; k < VEC; k++) {
        real sum = 0;
#pragma unroll
        for (int i = 0; i < SIZE; i++) sum += slopes.v[i][k];
        dx[k] = scaled[k] - (real)(2 * a.alpha * a.beta) * x[k] * sum;
        all &= is_finite(dx[k]);
    }
    if (!all) leave(a);
    store_elements<x_t, VEC>((x_t *)a.dx + place(a.dx_step, c, m), a.whole, dx);
}

extern "C" __global__ void __launch_bounds__(BLOCK) lrn_across(const __grid_constant__ mica_lrn_args a)
{
    overlap_wait();
    column c;
    if (!find_column(a, c)) return;
    const x_t *x = (const x_t *)a.x + place(a.x_step, c, 0), *dy = (const x_t *)a.dy + place(a.dy_step, c, 0);
    const int_t channels = (int_t)a.sizes[1];
    queue<SIZE> xs, slopes;
    queue<BEFORE + 1> scaled;
    xs.clear(), slopes.clear(), scaled.clear();
#pragma unroll 1
    for (int_t m = c.first - 2 * (SIZE - 1); m < c.last; m++) {
        const int_t newest = m + SIZE - 1, middle = m + BEFORE; /* of the window; of the slopes */
        real v[VEC], slope[VEC], waits[VEC];
#pragma unroll
        for (int k = 0; k < VEC; k++) v[k] = slope[k] = waits[k] = 0;
        if (newest >= 0 && newest < channels) unpack(fetch<VEC>(x + newest * (int_t)a.x_step.at[1], a.whole), v);
        xs.push(v);
        if (middle >= 0 && middle < channels && middle >= c.first - AFTER)
            find_slopes(a, xs, dy + middle * (int_t)a.dy_step.at[1], slope, waits);
        slopes.push(slope);
        scaled.push(waits);
        if (m >= c.first) finish(a, c, m, xs.v[0], slopes, scaled.v[0]);
    }
}
