/* SPDX-License-Identifier: Apache-2.0
 * Vector loops of softmax. */
#include "ops/shared/rows.h"
#include "cpu/cpu.h"

#include <math.h>
#include <string.h>

#define ALWAYS_INLINE __attribute__((always_inline)) static inline

/* exp within 2 units in the last place over the whole range, subnormal results included, NaN and
 * infinities as they should be. x = n ln 2 + r; exp(r) = 1 + r + r^2 q(r), q of degree 4 by Remez
 * exchange for the relative error (3.9e-9 with the rounded coefficients). Branch-free, so that the
 * loops around it become vector code. */
ALWAYS_INLINE float fast_exp(float x)
{
    const float low = -104, high = 89;   /* results past these are 0 and infinity */
    const float round = 12582912;        /* 1.5 2^23: adding it rounds to an integer */
    const float ln2_high = 0x1.62e4p-1f; /* 16 digits: n times it is exact */
    const float ln2_low = 0x1.7f7d1cp-20f;
    x = x < low ? low : x;
    x = x > high ? high : x;
    float shifted = x * 1.44269504f + round;
    float n = shifted - round;
    float r = (x - n * ln2_high) - n * ln2_low;
    float q = 0x1.6a244cp-10f;
    q = q * r + 0x1.1239d4p-7f;
    q = q * r + 0x1.5558f2p-5f;
    q = q * r + 0x1.555492p-3f;
    q = q * r + 0x1.fffffcp-2f;
    float p = q * (r * r) + r + 1;
    /* Two factors: 2^128 and subnormal powers have no float bits of their own. */
    int32_t k, half;
    memcpy(&k, &shifted, sizeof k);
    k -= 0x4b400000;
    half = k >> 1;
    uint32_t a = (uint32_t)(half + 127) << 23, b = (uint32_t)(k - half + 127) << 23;
    float fa, fb;
    memcpy(&fa, &a, sizeof fa);
    memcpy(&fb, &b, sizeof fb);
    return p * fa * fb;
}

/* ---- rows ---- */

MICA_CLONES float mica_row_max(const float *x, int64_t n)
{
    float m = -INFINITY;
#pragma omp simd reduction(max : m)
    for (int64_t i = 0; i < n; i++) m = x[i] > m ? x[i] : m;
    return m;
}

#define LANES 16

/* One vector of exponentials, added lane by lane. */
ALWAYS_INLINE void exp_lanes(const float *x, float shift, float *e, float *lane)
{
#pragma omp simd
    for (int l = 0; l < LANES; l++) {
        e[l] = fast_exp(x[l] - shift);
        lane[l] += e[l];
    }
}

/* Lanes written out: a reduction clause adds them one after the other at the end, and leaves a tail
 * to scalar code, which costs more than a short row itself. */
MICA_CLONES float mica_row_exp_sum(const float *x, float shift, int64_t n, float *e)
{
    float lane[LANES] = {0}, tail[LANES];
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) exp_lanes(x + i, shift, e + i, lane);
    if (i < n) {
        for (int l = 0; l < LANES; l++) tail[l] = i + l < n ? x[i + l] : -INFINITY;
        exp_lanes(tail, shift, tail, lane);
        memcpy(e + i, tail, (size_t)(n - i) * sizeof *e);
    }
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++) lane[l] += lane[l + half];
    return lane[0];
}

MICA_CLONES float mica_row_sum(const float *x, int64_t n)
{
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += x[i];
    return sum;
}

MICA_CLONES float mica_row_dot(const float *a, const float *b, int64_t n)
{
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

MICA_CLONES void mica_row_scale(const float *x, float scale, int64_t n, float *y)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * scale;
}

MICA_CLONES void mica_row_subtract(const float *x, float shift, float log_sum, int64_t n, float *y)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = (x[i] - shift) - log_sum;
}

MICA_CLONES void mica_row_exp(const float *x, float shift, float scale, float bias, int64_t n,
                              float *y)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = scale * fast_exp(x[i] - shift) + bias;
}

MICA_CLONES void mica_row_softmax_bwd(const float *y, const float *dy, float dot, int64_t n,
                                      float *dx)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) dx[i] = y[i] * (dy[i] - dot);
}

MICA_CLONES void mica_row_log_softmax_bwd(const float *y, const float *dy, float sum, int64_t n,
                                          float *dx)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) dx[i] = dy[i] - fast_exp(y[i]) * sum;
}

/* ---- columns ---- */

MICA_CLONES void mica_cols_max(const float *x, int64_t width, float *max)
{
#pragma omp simd
    for (int64_t c = 0; c < width; c++) max[c] = x[c] > max[c] ? x[c] : max[c];
}

MICA_CLONES void mica_cols_exp_sum(const float *x, const float *shift, int64_t width, float *e,
                                   float *sum)
{
#pragma omp simd
    for (int64_t c = 0; c < width; c++) {
        e[c] = fast_exp(x[c] - shift[c]);
        sum[c] += e[c];
    }
}

MICA_CLONES void mica_cols_sum(const float *x, int64_t width, float *sum)
{
#pragma omp simd
    for (int64_t c = 0; c < width; c++) sum[c] += x[c];
}

MICA_CLONES void mica_cols_dot(const float *a, const float *b, int64_t width, float *sum)
{
#pragma omp simd
    for (int64_t c = 0; c < width; c++) sum[c] += a[c] * b[c];
}

MICA_CLONES void mica_cols_scale(const float *x, const float *scale, int64_t width, float *y)
{
#pragma omp simd
    for (int64_t c = 0; c < width; c++) y[c] = x[c] * scale[c];
}

MICA_CLONES void mica_cols_subtract(const float *x, const float *shift, const float *log_sum,
                                    int64_t width, float *y)
{
#pragma omp simd
    for (int64_t c = 0; c < width; c++) y[c] = (x[c] - shift[c]) - log_sum[c];
}

MICA_CLONES void mica_cols_exp(const float *x, const float *shift, const float *scale,
                               const float *bias, int64_t width, float *y)
{
#pragma omp simd
    for (int64_t c = 0; c < width; c++) y[c] = scale[c] * fast_exp(x[c] - shift[c]) + bias[c];
}

MICA_CLONES void mica_cols_softmax_bwd(const float *y, const float *dy, const float *dot,
                                       int64_t width, float *dx)
{
#pragma omp simd
    for (int64_t c = 0; c < width; c++) dx[c] = y[c] * (dy[c] - dot[c]);
}

MICA_CLONES void mica_cols_log_softmax_bwd(const float *y, const float *dy, const float *sum,
                                           int64_t width, float *dx)
{
#pragma omp simd
    for (int64_t c = 0; c < width; c++) dx[c] = dy[c] - fast_exp(y[c]) * sum[c];
}
