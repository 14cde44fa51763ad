/* SPDX-License-Identifier: Apache-2.0
 * Lp pooling forward: GROUP threads form VEC channels of a window, (sum |x|^p)^(1/p). A sum of whole powers
 * that neither overflows nor comes near to what f32 (f64) has no digits for stands; else, and for any other
 * p, the window is walked twice more, now from the first-level cache: for its largest |x|, and for the powers
 * of multiples of the power of two below that. Floor: bytes / bandwidth for whole powers; pow of every tap for others. Constants
 * beside those of pool_lp.cuh: GROUP (1, or a warp). */
#include "ops/pool/pool_lp.cuh"

static_assert(GROUP == 1 || GROUP == 32, "a thread or a warp");

enum { POWERS, LARGEST, MULTIPLES };

struct window {
    taps d, h, w;
    const value_t *x; /* the image's first element, of these channels */
};

__device__ __forceinline__ acc_t power(acc_t v, acc_t p)
{
    const acc_t base = SIGNED ? v : abs_of(v);
    if constexpr (POWER > 0) return whole_power<POWER>(base);
    else return pow_of(base, p);
}

__device__ __forceinline__ acc_t root(acc_t sum, acc_t p)
{
    if constexpr (POWER == 1) return sum;
    if constexpr (POWER == 2) return sqrt_of(sum);
    return pow_of(sum, (acc_t)1 / p);
}

template <int WHAT>
__device__ __forceinline__ void take_tap(const mica_pool_args &a, const value_t *from, acc_t p, const acc_t *largest, acc_t *found)
{
    value_t v[VEC];
    load_some<VEC>(from, v, VEC, a.aligned);
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        const acc_t x = widen<acc_t>(v[i]);
        if constexpr (WHAT == LARGEST) found[i] = max_of(found[i], abs_of(x));
        else found[i] += power(WHAT == MULTIPLES ? x / largest[i] : x, p);
    }
}

/* The taps of a lane; all lanes of a group have the results. */
template <int WHAT>
__device__ __forceinline__ void walk(const mica_pool_args &a, const window &n, int lane, acc_t p, const acc_t *largest, acc_t *found)
{
#pragma unroll
    for (int i = 0; i < VEC; i++) found[i] = 0;
    if constexpr (GROUP == 1) {
        for (int_t d = n.d.from; d < n.d.to; d++)
            for (int_t h = n.h.from; h < n.h.to; h++) {
                const value_t *line = n.x + (n.d.first + d * n.d.step) * (int_t)a.x[2] + (n.h.first + h * n.h.step) * (int_t)a.x[3];
#pragma unroll 4
                for (int_t w = n.w.from; w < n.w.to; w++)
                    take_tap<WHAT>(a, line + (n.w.first + w * n.w.step) * (int_t)a.x[4], p, largest, found);
            }
    } else {
        const int_t nh = n.h.to - n.h.from, nw = n.w.to - n.w.from, count = (n.d.to - n.d.from) * nh * nw;
        for (int_t t = lane; t < count; t += GROUP) {
            int_t rest = t;
            const int_t w = n.w.from + next_digit(rest, nw), h = n.h.from + next_digit(rest, nh), d = n.d.from + rest;
            take_tap<WHAT>(a, n.x + (n.d.first + d * n.d.step) * (int_t)a.x[2] + (n.h.first + h * n.h.step) * (int_t)a.x[3] +
                                  (n.w.first + w * n.w.step) * (int_t)a.x[4], p, largest, found);
        }
#pragma unroll
        for (int step = GROUP / 2; step > 0; step /= 2)
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                const acc_t other = __shfl_xor_sync(0xffffffffu, found[i], step);
                found[i] = WHAT == LARGEST ? max_of(found[i], other) : found[i] + other;
            }
    }
}

/* Digits of a power of `least` that are lost are none of this sum's. */
__device__ __forceinline__ bool stands(acc_t sum)
{
    constexpr acc_t least = sizeof(acc_t) == 4 ? (acc_t)0x1p-90 : (acc_t)0x1p-900;
    const acc_t size = abs_of(sum);
    return size >= least && size - size == 0;
}

/* What elements are taken as multiples of: the power of two below the largest, by which powers of integers
 * stay exact and those that cancel do so; powers above 64 need the largest itself, and subnormals have none. */
__device__ __forceinline__ acc_t unit_of(acc_t largest, acc_t p)
{
    acc_t unit;
    if constexpr (sizeof(acc_t) == 4) unit = (acc_t)__uint_as_float(__float_as_uint((float)largest) & 0x7f800000u);
    else unit = (acc_t)__longlong_as_double(__double_as_longlong((double)largest) & 0x7ff0000000000000ll);
    return p <= 64 && unit > 0 ? unit : largest;
}

__device__ __forceinline__ void form(const mica_pool_args &a, const window &n, int lane, acc_t p, acc_t *y)
{
    const acc_t by = rescale_of(a, n.d, n.h, n.w);
    acc_t sum[VEC], largest[VEC];
    bool done[VEC] = {};
    if constexpr (POWER > 0) {
        bool all = true;
        walk<POWERS>(a, n, lane, p, nullptr, sum);
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            done[i] = POWER == 1 || stands(sum[i]);
            all &= done[i];
            y[i] = root(sum[i] * by, p);
        }
        if (all) return;
    }
    walk<LARGEST>(a, n, lane, p, nullptr, largest);
    acc_t multiple[VEC];
#pragma unroll
    for (int i = 0; i < VEC; i++) multiple[i] = largest[i] > 0 && largest[i] - largest[i] == 0 ? unit_of(largest[i], p) : (acc_t)1;
    walk<MULTIPLES>(a, n, lane, p, multiple, sum);
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        const bool plain = largest[i] > 0 && (SIGNED || largest[i] - largest[i] == 0);
        if (done[i]) continue;
        y[i] = plain ? multiple[i] * root(sum[i] * by, p) : largest[i];
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK, 1) pool_lp(const __grid_constant__ mica_pool_lp_args all)
{
    const mica_pool_args &a = all.pool;
    overlap_wait();
    const long long item = ((long long)blockIdx.x * BLOCK + threadIdx.x) / GROUP;
    if (item >= a.count) return;
    const place p = find_place(a, (int_t)item);
    window n = {find_taps<0>(a, p.d), find_taps<1>(a, p.h), find_taps<2>(a, p.w)};
    n.x = (const value_t *)a.in + p.n * (int_t)a.x[0] + p.c * (int_t)a.x[1];
    acc_t formed[VEC];
    const int lane = threadIdx.x % GROUP;
    form(a, n, lane, (acc_t)all.p, formed);
    if (lane != 0) return;
    value_t out[VEC], *y = (value_t *)a.out + offset_of(a.y, p);
    if (a.beta != 0) load_some<VEC>(y, out, VEC, a.aligned);
#pragma unroll
    for (int i = 0; i < VEC; i++) out[i] = finish(a, formed[i], out[i]);
    store_some<VEC>(y, out, VEC, a.aligned);
}
