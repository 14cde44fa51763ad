/* SPDX-License-Identifier: Apache-2.0
 * Vector loops of softmax. */
#include "ops/shared/rows.h"
#include "ops/shared/functions_f32.h"
#include "cpu/cpu.h"

#include <math.h>
#include <string.h>

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
MICA_INLINE void exp_lanes(const float *x, float shift, float *e, float *lane)
{
#pragma omp simd
    for (int l = 0; l < LANES; l++) {
        e[l] = mica_exp_negative_f32(x[l] - shift);
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
    for (int64_t i = 0; i < n; i++) y[i] = scale * mica_exp_f32(x[i] - shift) + bias;
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
    for (int64_t i = 0; i < n; i++) dx[i] = dy[i] - mica_exp_f32(y[i]) * sum;
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
        e[c] = mica_exp_negative_f32(x[c] - shift[c]);
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
    for (int64_t c = 0; c < width; c++) y[c] = scale[c] * mica_exp_f32(x[c] - shift[c]) + bias[c];
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
    for (int64_t c = 0; c < width; c++) dx[c] = dy[c] - mica_exp_f32(y[c]) * sum[c];
}
