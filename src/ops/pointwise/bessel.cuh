/* SPDX-License-Identifier: Apache-2.0
 * Bessel functions of the first kind, of orders 0 and 1, from 8 on, where CUDA's own are only held to
 * 5e-12 in f64 and 2.2e-6 in f32 (CUDA 13.0, mathematical functions appendix): Miller's recurrence
 * below 25 (DLMF 3.6), Hankel's expansion from there on (DLMF 10.17). Both of |v|, in f64. */
#pragma once

/* From order 64, which is below 1e-18 of the largest there, down to 0; J_0 + 2 (J_2 + J_4 + ...) = 1
 * gives the scale. */
__device__ inline double bessel_recurrence(double v, int order)
{
    const double step = 2 / v;
    double above = 0, here = 1e-60, sum = 0;
    for (int n = 64; n > 0; n--) {
        const double below = step * n * here - above;
        if (n % 2 == 0) sum += 2 * here;
        above = here, here = below;
    }
    return (order ? above : here) / (sum + here);
}

__device__ inline double bessel_expansion(double v, int order)
{
    const double mu = 4 * order, step = 1 / (8 * v);
    double p = 1, q = 0, term = 1;
    for (int k = 1; k < 26; k++) {
        term *= (mu - (2 * k - 1) * (2 * k - 1)) * step / k;
        const double signed_term = k & 2 ? -term : term;
        if (k & 1) q += signed_term;
        else p += signed_term;
    }
    /* The phase is v - pi / 4, or v - 3 pi / 4 of order 1. */
    double s, c;
    sincos(v, &s, &c);
    const double even = order ? s - c : s + c, odd = order ? -s - c : s - c;
    return sqrt(1 / (3.14159265358979324 * v)) * (p * even - q * odd);
}

__device__ inline double bessel_beyond_8(double v, int order)
{
    if (v == (double)INFINITY_F) return 0;
    return v < 25 ? bessel_recurrence(v, order) : bessel_expansion(v, order);
}

__device__ inline double j0_of(double v)
{
    return abs_of(v) >= 8 ? bessel_beyond_8(abs_of(v), 0) : j0(v);
}

__device__ inline double j1_of(double v)
{
    if (!(abs_of(v) >= 8)) return j1(v);
    const double value = bessel_beyond_8(abs_of(v), 1);
    return v < 0 ? -value : value;
}

__device__ inline float j0_of(float v) { return abs_of(v) >= 8 ? (float)j0_of((double)v) : j0f(v); }
__device__ inline float j1_of(float v) { return abs_of(v) >= 8 ? (float)j1_of((double)v) : j1f(v); }
