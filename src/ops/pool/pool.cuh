/* SPDX-License-Identifier: Apache-2.0
 * Where windows lie, and what pooling kernels do with a value. Constants: MODE (MAX, AVG or
 * AVG_VALID), CHANNELS (the threads of a warp are neighbours in C, else in W), ADAPTIVE, DILATED,
 * DIVISOR_GIVEN (averages divide by axes[].divisor, whatever counts), BAKED
 * (small windows are constants: WINDOW_, STRIDE_ and PAD_ with D, H, W), INDICES (written too); types
 * value_t (of x and y), acc_t, index_t, int_t (holds every size and offset). */
#pragma once
#include "kernels/vector.cuh"
#include "ops/pool/pool_args.h"

struct taps {
    int_t first, step, from, to; /* tap k lies at first + k * step; [from, to) are in x */
};

__device__ __forceinline__ int_t ceil_div(int_t a, int_t b) { return (a + b - 1) / b; }

/* Axis 0, 1, 2 is D, H, W. */
template <int AXIS> __device__ __forceinline__ int_t window_of(const mica_pool_args &a)
{
    if constexpr (BAKED) return AXIS == 0 ? WINDOW_D : AXIS == 1 ? WINDOW_H : WINDOW_W;
    return (int_t)a.axes[AXIS].window;
}
template <int AXIS> __device__ __forceinline__ int_t stride_of(const mica_pool_args &a)
{
    if constexpr (BAKED) return AXIS == 0 ? STRIDE_D : AXIS == 1 ? STRIDE_H : STRIDE_W;
    return (int_t)a.axes[AXIS].stride;
}
template <int AXIS> __device__ __forceinline__ int_t pad_of(const mica_pool_args &a)
{
    if constexpr (BAKED) return AXIS == 0 ? PAD_D : AXIS == 1 ? PAD_H : PAD_W;
    return (int_t)a.axes[AXIS].pad;
}

template <int AXIS> __device__ __forceinline__ taps find_taps(const mica_pool_args &a, int_t o)
{
    taps t = {0, 1, 0, 0};
    int_t x = (int_t)a.axes[AXIS].x, window = window_of<AXIS>(a);
    if constexpr (ADAPTIVE) {
        int_t y = (int_t)a.axes[AXIS].y;
        t.first = o * x / y;
        t.to = ceil_div((o + 1) * x, y) - t.first;
        return t;
    }
    t.first = o * stride_of<AXIS>(a) - pad_of<AXIS>(a);
    int_t inside = x - t.first;
    if constexpr (DILATED) {
        t.step = (int_t)a.axes[AXIS].dilation;
        t.from = t.first < 0 ? ceil_div(-t.first, t.step) : 0;
        inside = inside > 0 ? ceil_div(inside, t.step) : 0;
    } else {
        t.from = t.first < 0 ? -t.first : 0;
    }
    t.to = inside < window ? inside : window;
    if (t.to < t.from) t.to = t.from;
    return t;
}

/* This axis' factor of an average's divisor. */
template <int AXIS> __device__ __forceinline__ int_t count_taps(const mica_pool_args &a, const taps &t)
{
    if constexpr (DIVISOR_GIVEN) return (int_t)a.axes[AXIS].divisor;
    if (ADAPTIVE || MODE == AVG_VALID) return t.to - t.from;
    int_t left = (int_t)a.axes[AXIS].end - t.first;
    if constexpr (DILATED) left = ceil_div(left, t.step);
    return left < window_of<AXIS>(a) ? left : window_of<AXIS>(a);
}

__device__ __forceinline__ acc_t average(acc_t sum, double n) { return n > 0 ? sum / (acc_t)n : (acc_t)0; }

/* v / n, by = 1 / n rounded, for several v. One correction makes the quotient the rounded one (Markstein
 * 1990); an infinite one has none. */
__device__ __forceinline__ acc_t share_of(acc_t v, acc_t n, acc_t by)
{
    acc_t q = v * by, better = fma(fma(-q, n, v), by, q);
    return q - q == 0 ? better : q;
}

/* Windows [from, to) that reach over element i; with dilation not all of them have a tap there. */
template <int AXIS> __device__ __forceinline__ void find_windows(const mica_pool_args &a, int_t i, int_t &from, int_t &to)
{
    const mica_pool_axis &axis = a.axes[AXIS];
    if constexpr (ADAPTIVE) {
        from = i * (int_t)axis.y / (int_t)axis.x;
        to = ceil_div((i + 1) * (int_t)axis.y, (int_t)axis.x);
        return;
    }
    int_t stride = stride_of<AXIS>(a), at = i + pad_of<AXIS>(a);
    int_t past = at - (window_of<AXIS>(a) - 1) * (DILATED ? (int_t)axis.dilation : 1);
    from = past > 0 ? ceil_div(past, stride) : 0;
    to = at / stride + 1;
    if (to > (int_t)axis.y) to = (int_t)axis.y;
}

template <int AXIS> __device__ __forceinline__ bool has_tap(const mica_pool_args &a, int_t o, int_t i)
{
    if constexpr (!DILATED) return true;
    return (i + pad_of<AXIS>(a) - o * stride_of<AXIS>(a)) % (int_t)a.axes[AXIS].dilation == 0;
}

/* Thread `i` of the work over a tensor with rows, d x h x w. */
struct place {
    int_t n, c, d, h, w;
};

__device__ __forceinline__ int_t next_digit(int_t &rest, int_t size)
{
    int_t q = rest / size, digit = rest - q * size;
    rest = q;
    return digit;
}
/* Digit AXIS of D, H, W, C, by a product where numbers are small. */
template <int AXIS> __device__ __forceinline__ int_t next_place(const mica_pool_args &a, int_t &rest)
{
    if constexpr (sizeof(int_t) > 4) return next_digit(rest, (int_t)a.sizes[AXIS]);
    int_t q = (int_t)mica_fastdiv_of(a.by_size[AXIS], (u32)rest), digit = rest - q * (int_t)a.by_size[AXIS].divisor;
    rest = q;
    return digit;
}

__device__ __forceinline__ place find_place(const mica_pool_args &a, int_t i)
{
    place p;
    if (CHANNELS) p.c = next_place<3>(a, i);
    p.w = next_place<2>(a, i);
    p.h = next_place<1>(a, i);
    p.d = next_place<0>(a, i);
    if (!CHANNELS) p.c = next_place<3>(a, i);
    p.n = i;
    return p;
}

__device__ __forceinline__ int_t offset_of(const long long *s, const place &p)
{
    return p.n * (int_t)s[0] + p.c * (int_t)s[1] + p.d * (int_t)s[2] + p.h * (int_t)s[3] + p.w * (int_t)s[4];
}

/* ---- values ---- */

__device__ __forceinline__ acc_t least() { return MODE == MAX ? (acc_t)-INFINITY_F : (acc_t)0; }

/* In memory order: of equal values the first stays, the first NaN beats everything. Without indices a
 * first value of -inf need not win over least(). */
__device__ __forceinline__ void take(acc_t v, int_t at, acc_t &best, int_t &winner)
{
    if constexpr (MODE != MAX) {
        best += v;
        return;
    }
    if (!(v <= best) && best == best) {
        best = v;
        winner = at;
    } else if (INDICES && winner < 0) {
        winner = at;
    }
}

/* Scaled results are formed in f64 and rounded once, as on the host. */
__device__ __forceinline__ value_t finish(const mica_pool_args &a, acc_t v, value_t old)
{
    if (!a.scaled) return narrow<value_t>(v);
    if (a.beta == 0) return narrow<value_t>(__dmul_rn(a.alpha, (double)v));
    return narrow<value_t>(fma(a.alpha, (double)v, __dmul_rn(a.beta, widen<double>(old))));
}
