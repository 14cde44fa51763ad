/* SPDX-License-Identifier: Apache-2.0
 * Vector loops of softmax. */
#include "ops/reduce/cpu/rows.h"
#include "ops/convert/cpu/functions_f32.h"
#include "cpu/cpu.h"

#include <math.h>
#include <string.h>

/* ---- rows ---- */

#define LANES 16

/* The lanes added in pairs, which are written out: a loop over them stays one. */
MICA_INLINE float folded_sum(float *lane)
{
    for (int l = 0; l < 8; l++) lane[l] += lane[l + 8];
    for (int l = 0; l < 4; l++) lane[l] += lane[l + 4];
    return (lane[0] + lane[2]) + (lane[1] + lane[3]);
}

MICA_INLINE float larger(float a, float b)
{
    return b > a ? b : a;
}

/* Lanes written out: a reduction clause goes through them one after the other at the end, and
 * leaves a tail to scalar code, which costs more than a short row itself. */
MICA_INLINE float row_max(const float *x, int64_t n)
{
    MICA_ALIGNED float lane[LANES];
    int64_t i = 0;
    for (int l = 0; l < LANES; l++) lane[l] = -INFINITY;
    for (; i + LANES <= n; i += LANES) {
#pragma omp simd
        for (int l = 0; l < LANES; l++) lane[l] = larger(lane[l], x[i + l]);
    }
    for (int l = 0; i + l < n; l++) lane[l] = larger(lane[l], x[i + l]);
    for (int l = 0; l < 8; l++) lane[l] = larger(lane[l], lane[l + 8]);
    for (int l = 0; l < 4; l++) lane[l] = larger(lane[l], lane[l + 4]);
    return larger(larger(lane[0], lane[2]), larger(lane[1], lane[3]));
}

MICA_CLONES float mica_row_max(const float *x, int64_t n)
{
    return row_max(x, n);
}

/* One vector of exponentials, added lane by lane. */
MICA_INLINE void exp_lanes(const float *x, float shift, float *e, float *lane)
{
#pragma omp simd
    for (int l = 0; l < LANES; l++) {
        e[l] = mica_exp_negative_f32(x[l] - shift);
        lane[l] += e[l];
    }
}

MICA_INLINE float row_exp_sum(const float *x, float shift, int64_t n, float *e, const char *next,
                              int64_t size)
{
    MICA_ALIGNED float lane[LANES] = {0}, tail[LANES];
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        __builtin_prefetch(next + i * size, 0, 2);
        exp_lanes(x + i, shift, e + i, lane);
    }
    if (i < n) {
        for (int l = 0; l < LANES; l++) tail[l] = i + l < n ? x[i + l] : -INFINITY;
        exp_lanes(tail, shift, tail, lane);
        for (int l = 0; i + l < n; l++) e[i + l] = tail[l];
    }
    return folded_sum(lane);
}

MICA_CLONES float mica_row_exp_sum(const float *x, float shift, int64_t n, float *e,
                                   const void *next, int64_t size)
{
    return row_exp_sum(x, shift, n, e, next, size);
}

MICA_CLONES void mica_row_softmax(const float *x, int64_t n, float *y, const void *next,
                                  int64_t size)
{
    float max = row_max(x, n);
    float sum = row_exp_sum(x, max == -INFINITY ? 0 : max, n, y, next, size), by = 1 / sum;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] *= by;
}

/* Four chains of additions in each lane, which would wait for each other in one; in vectors that
 * every machine keeps in registers. */
enum { CHAINS = 4, STEP = MICA_NARROW / sizeof(float), PARTS = LANES / STEP };
typedef float part __attribute__((vector_size(MICA_NARROW), aligned(4), may_alias));
typedef part chains[CHAINS][PARTS];

MICA_INLINE const part *parts_at(const float *x)
{
    return (const part *)x;
}

/* The chains and fewer than LANES further values, added in pairs. */
MICA_INLINE float chains_sum(chains sum, const float *more, int64_t n)
{
    MICA_ALIGNED float lane[LANES];
    for (int v = 0; v < PARTS; v++)
        *(part *)(lane + v * STEP) = (sum[0][v] + sum[1][v]) + (sum[2][v] + sum[3][v]);
    for (int l = 0; l < n; l++) lane[l] += more[l];
    return folded_sum(lane);
}

MICA_CLONES float mica_row_sum(const float *x, int64_t n)
{
    chains sum = {0};
    int64_t i = 0;
    for (; i + CHAINS * LANES <= n; i += CHAINS * LANES)
#pragma GCC unroll 4
        for (int c = 0; c < CHAINS; c++)
#pragma GCC unroll 4
            for (int v = 0; v < PARTS; v++) sum[c][v] += parts_at(x + i + c * LANES)[v];
    for (; i + LANES <= n; i += LANES)
#pragma GCC unroll 4
        for (int v = 0; v < PARTS; v++) sum[0][v] += parts_at(x + i)[v];
    return chains_sum(sum, x + i, n - i);
}

MICA_CLONES float mica_row_deviation(const float *x, float about, int64_t n)
{
    chains sum = {0};
    MICA_ALIGNED float rest[LANES];
    const float scale = MICA_DEVIATION, shift = about * MICA_DEVIATION;
    int64_t i = 0;
    for (; i + CHAINS * LANES <= n; i += CHAINS * LANES)
#pragma GCC unroll 4
        for (int c = 0; c < CHAINS; c++)
#pragma GCC unroll 4
            for (int v = 0; v < PARTS; v++)
                sum[c][v] += parts_at(x + i + c * LANES)[v] * scale - shift;
    for (; i + LANES <= n; i += LANES)
#pragma GCC unroll 4
        for (int v = 0; v < PARTS; v++) sum[0][v] += parts_at(x + i)[v] * scale - shift;
    for (int64_t l = 0; i + l < n; l++) rest[l] = x[i + l] * scale - shift;
    return chains_sum(sum, rest, n - i);
}

MICA_CLONES float mica_row_dot(const float *x, const float *y, int64_t n)
{
    chains sum = {0};
    MICA_ALIGNED float rest[LANES];
    int64_t i = 0;
    for (; i + CHAINS * LANES <= n; i += CHAINS * LANES)
#pragma GCC unroll 4
        for (int c = 0; c < CHAINS; c++)
#pragma GCC unroll 4
            for (int v = 0; v < PARTS; v++)
                sum[c][v] += parts_at(x + i + c * LANES)[v] * parts_at(y + i + c * LANES)[v];
    for (; i + LANES <= n; i += LANES)
#pragma GCC unroll 4
        for (int v = 0; v < PARTS; v++) sum[0][v] += parts_at(x + i)[v] * parts_at(y + i)[v];
    for (int64_t l = 0; i + l < n; l++) rest[l] = x[i + l] * y[i + l];
    return chains_sum(sum, rest, n - i);
}

MICA_CLONES void mica_row_scale(const float *x, float scale, int64_t n, float *y)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * scale;
}

MICA_CLONES void mica_row_scale_add(const float *x, float scale, float bias, int64_t n, float *y)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * scale + bias;
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

/* ---- rows of f64 ---- */

/* exp for x <= 0 (600 and less are right, too) within an ulp or two: x = n ln 2 + r, Taylor's
 * series for r, whose first term left out is 4e-18 of the result. 2^n, too small for bits of its
 * own, is 2^(n + 128) times a constant. */
MICA_INLINE double exp_negative(double x)
{
    const double round = 0x1.8p52, ln2_high = 0x1.62e42feep-1, ln2_low = 0x1.a39ef35793c76p-33;
    x = x < -746 ? -746 : x;
    double shifted = x * 0x1.71547652b82fep0 + round, n = shifted - round;
    double r = (x - n * ln2_high) - n * ln2_low;
    double q = 1 / 6227020800.0;
    q = q * r + 1 / 479001600.0;
    q = q * r + 1 / 39916800.0;
    q = q * r + 1 / 3628800.0;
    q = q * r + 1 / 362880.0;
    q = q * r + 1 / 40320.0;
    q = q * r + 1 / 5040.0;
    q = q * r + 1 / 720.0;
    q = q * r + 1 / 120.0;
    q = q * r + 1 / 24.0;
    q = q * r + 1 / 6.0;
    q = q * r + 0.5;
    q = q * (r * r) + r + 1;
    uint64_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 1023 + 128) << 52; /* the shift drops all but n */
    double power;
    memcpy(&power, &bits, sizeof power);
    return q * power * 0x1p-128;
}

/* By lanes as well: clang 14 begins a reduction clause's maxima at the least finite number. */
MICA_CLONES double mica_row_max_f64(const double *x, int64_t n)
{
    MICA_ALIGNED double lane[LANES];
    double max = -INFINITY;
    int64_t i = 0;
    for (int l = 0; l < LANES; l++) lane[l] = -INFINITY;
    for (; i + LANES <= n; i += LANES) {
#pragma omp simd
        for (int l = 0; l < LANES; l++) lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
    }
    for (int l = 0; i + l < n; l++) lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
    for (int l = 0; l < LANES; l++) max = lane[l] > max ? lane[l] : max;
    return max;
}

MICA_CLONES double mica_row_exp_sum_f64(const double *x, double shift, int64_t n, double *e)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        e[i] = exp_negative(x[i] - shift);
        sum += e[i];
    }
    return sum;
}

MICA_CLONES void mica_row_exp_f64(const double *x, double shift, double scale, int64_t n, double *y)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = exp_negative(x[i] - shift) * scale;
}

MICA_CLONES void mica_row_scale_f64(const double *x, double scale, int64_t n, double *y)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * scale;
}

MICA_CLONES void mica_row_subtract_f64(const double *x, double shift, double log_sum, int64_t n,
                                       double *y)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = (x[i] - shift) - log_sum;
}

/* ---- columns ---- */

MICA_CLONES void mica_cols_max(const float *x, int64_t ld, int64_t n, int64_t width, float *max)
{
    int64_t c = 0;
    for (; c + LANES <= width; c += LANES) {
        MICA_ALIGNED float lane[LANES];
        memcpy(lane, max + c, sizeof lane);
        for (int64_t i = 0; i < n; i++) {
#pragma omp simd
            for (int l = 0; l < LANES; l++) lane[l] = larger(lane[l], x[i * ld + c + l]);
        }
        memcpy(max + c, lane, sizeof lane);
    }
    for (; c < width; c++)
        for (int64_t i = 0; i < n; i++) max[c] = larger(max[c], x[i * ld + c]);
}

MICA_CLONES void mica_cols_exp_sum(const float *x, int64_t ld, int64_t n, const float *shift,
                                   int64_t width, float *e, int64_t eld, float *sum)
{
    for (int64_t i = 0; i < n; i++, x += ld, e += eld) {
#pragma omp simd
        for (int64_t c = 0; c < width; c++) {
            e[c] = mica_exp_negative_f32(x[c] - shift[c]);
            sum[c] += e[c];
        }
    }
}

MICA_CLONES void mica_cols_sum(const float *x, int64_t width, float *sum)
{
#pragma omp simd
    for (int64_t c = 0; c < width; c++) sum[c] += x[c];
}

MICA_CLONES void mica_cols_deviation(const float *x, const float *about, int64_t width, float *sum)
{
#pragma omp simd
    for (int64_t c = 0; c < width; c++) sum[c] += x[c] * MICA_DEVIATION - about[c] * MICA_DEVIATION;
}

MICA_CLONES void mica_cols_dot(const float *a, const float *b, int64_t width, float *sum)
{
#pragma omp simd
    for (int64_t c = 0; c < width; c++) sum[c] += a[c] * b[c];
}

MICA_CLONES void mica_cols_scale(const float *x, int64_t ld, int64_t n, const float *scale,
                                 int64_t width, float *y, int64_t yld)
{
    for (int64_t i = 0; i < n; i++, x += ld, y += yld) {
#pragma omp simd
        for (int64_t c = 0; c < width; c++) y[c] = x[c] * scale[c];
    }
}

MICA_CLONES void mica_cols_scale_add(const float *x, const float *scale, const float *bias,
                                     int64_t width, float *y)
{
#pragma omp simd
    for (int64_t c = 0; c < width; c++) y[c] = x[c] * scale[c] + bias[c];
}

MICA_CLONES void mica_cols_rescale(double *sum, const float *from, const float *to, int64_t width)
{
#pragma omp simd
    for (int64_t c = 0; c < width; c++) {
        float by = to[c] == from[c] ? 0 : from[c] - to[c]; /* infinities may be equal */
        sum[c] *= (double)mica_exp_negative_f32(by);
    }
}

MICA_CLONES void mica_cols_factors(const double *sum, const float *max, const float *shift,
                                   const double *by, int64_t width, float *factor)
{
#pragma omp simd
    for (int64_t c = 0; c < width; c++) {
        float below = shift[c] == max[c] ? 0 : shift[c] - max[c];
        factor[c] = (float)(by[c] / sum[c]) * mica_exp_negative_f32(below);
    }
}

MICA_CLONES void mica_logs(const double *x, int64_t n, float *log)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) log[i] = mica_log_f32((float)x[i]);
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
