/* SPDX-License-Identifier: Apache-2.0
 * Pooling backward where every window is all of x's plane, whose elements are evenly spaced: each of them
 * receives its window's share, or the winner its gradient, and nothing is added up. Constants: ROWS
 * (elements of the plane that a thread writes, CHANNELS), VEC (channels of an access; in columns elements
 * of dx, packed from its first plane to its last, at most a plane), BLOCK and those of pool.cuh. */
#include "kernels/overlap.cuh"
#include "ops/pool/pool.cuh"

/* What a window gives to each of its taps, or (MAX) to the one at `winner`. */
struct share {
    acc_t value;
    value_t stored; /* as dx receives it where nothing is added */
    int_t winner;
};

__device__ __forceinline__ share find_share(const mica_pool_args &a, value_t g, index_t at)
{
    share s;
    s.value = MODE == MAX ? widen<acc_t>(g) : widen<acc_t>(g) / (acc_t)a.divisor;
    s.stored = a.scaled ? narrow<value_t>(__dmul_rn(a.alpha, (double)s.value)) : narrow<value_t>(s.value);
    s.winner = (int_t)at;
    return s;
}

template <bool ADDS> __device__ __forceinline__ value_t element(const mica_pool_args &a, const share &s, int_t tap, value_t old)
{
    const bool hit = MODE != MAX || tap == s.winner;
    if constexpr (ADDS) return finish(a, hit ? s.value : (acc_t)0, old);
    return hit ? s.stored : narrow<value_t>((acc_t)0);
}

/* VEC channels of ROWS elements. */
template <bool ADDS> __device__ __forceinline__ void spread_channels(const mica_pool_args &a, int_t item)
{
    const int_t plane = (int_t)a.plane;
    place p = {0, next_digit(item, (int_t)a.c), 0, 0, 0};
    const int_t first = next_digit(item, (plane + ROWS - 1) / ROWS) * ROWS;
    p.n = item;
    value_t g[VEC], out[VEC], *dx = (value_t *)a.out + offset_of(a.x, p);
    index_t at[VEC];
    share from[VEC];
    load_some<VEC>((const value_t *)a.in + offset_of(a.y, p), g, VEC, a.aligned);
    if constexpr (MODE == MAX) load_some<VEC>((const index_t *)a.indices + offset_of(a.i, p), at, VEC, a.aligned);
#pragma unroll
    for (int k = 0; k < VEC; k++) from[k] = find_share(a, g[k], MODE == MAX ? at[k] : 0);
#pragma unroll 1
    for (int_t tap = first; tap < first + ROWS && tap < plane; tap++) {
        value_t *to = dx + tap * (int_t)a.x[4];
        if constexpr (ADDS) load_some<VEC>(to, out, VEC, a.aligned);
#pragma unroll
        for (int k = 0; k < VEC; k++) out[k] = element<ADDS>(a, from[k], tap, out[k]);
        store_some<VEC>(to, out, VEC, a.aligned);
    }
}

/* VEC elements of at most two neighbouring planes. */
template <bool ADDS> __device__ __forceinline__ void spread_columns(const mica_pool_args &a, int_t item)
{
    const int_t plane = (int_t)a.plane, first = item * VEC, left = (int_t)a.elements - first;
    const int n = left < VEC ? (int)left : VEC;
    const int_t window = sizeof(int_t) == 4 ? (int_t)mica_fastdiv_of(a.by_plane, (u32)first) : first / plane;
    const int_t tap = first - window * plane, next = tap + n > plane ? window + 1 : window;
    const value_t *dy = (const value_t *)a.in;
    const value_t g[2] = {dy[window * (int_t)a.y[1]], dy[next * (int_t)a.y[1]]};
    index_t at[2] = {0, 0};
    if constexpr (MODE == MAX) {
        const index_t *indices = (const index_t *)a.indices;
        at[0] = indices[window * (int_t)a.i[1]], at[1] = indices[next * (int_t)a.i[1]];
    }
    const share from[2] = {find_share(a, g[0], at[0]), find_share(a, g[1], at[1])};
    value_t out[VEC], *dx = (value_t *)a.out + first;
    if constexpr (ADDS) load_some<VEC>(dx, out, n, a.aligned);
#pragma unroll
    for (int k = 0; k < VEC; k++)
        out[k] = tap + k < plane ? element<ADDS>(a, from[0], tap + k, out[k])
                                 : element<ADDS>(a, from[1], tap + k - plane, out[k]);
    store_some<VEC>(dx, out, n, a.aligned);
}

template <bool ADDS> __device__ __forceinline__ void spread(const mica_pool_args &a, int_t item)
{
    if constexpr (CHANNELS) spread_channels<ADDS>(a, item);
    else spread_columns<ADDS>(a, item);
}

extern "C" __global__ void __launch_bounds__(BLOCK, 1) pool_spread(const mica_pool_args a)
{
    overlap_wait();
    long long item = (long long)blockIdx.x * BLOCK + threadIdx.x;
    if (item >= a.count) return;
    if (a.beta != 0) spread<true>(a, (int_t)item);
    else spread<false>(a, (int_t)item);
}
