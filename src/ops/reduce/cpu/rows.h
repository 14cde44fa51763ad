/* SPDX-License-Identifier: Apache-2.0
 * The vector loops of softmax and its relatives on the CPU, in f32. A row is one slice along the
 * axis; columns are neighbouring slices. Sums are formed in vector lanes and so depend on the
 * instruction set, never on the number of threads. Results may be written over an operand. */
#ifndef MICA_OPS_REDUCE_CPU_ROWS_H
#define MICA_OPS_REDUCE_CPU_ROWS_H

#include <stdint.h>

/* What exp may add, in units in the last place, for ops that state their accuracy. */
#define MICA_EXP_ULPS 2

/* A maximum ignores NaN: exp and the sum carry it. n = 0 gives -inf. */
float mica_row_max(const float *x, int64_t n);
/* Sum of exp(x - shift), which e receives (it may be x); shift is the maximum or more. A shift of
 * +-inf gives NaN. Meanwhile n elements of `size` bytes from `next` on are asked for: what is read
 * next, wherever that is. */
float mica_row_exp_sum(const float *x, float shift, int64_t n, float *e, const void *next,
                       int64_t size);
/* y = exp(x - max) / sum: NaN for -inf alone. A row short enough to stay in the first-level cache.
 */
void mica_row_softmax(const float *x, int64_t n, float *y, const void *next, int64_t size);
float mica_row_sum(const float *x, int64_t n);
/* Sum of x - about of at most 4096 values, times MICA_DEVIATION so that it cannot overflow. */
#define MICA_DEVIATION 0x1p-14F
float mica_row_deviation(const float *x, float about, int64_t n);
float mica_row_dot(const float *a, const float *b, int64_t n);
/* y = x scale */
void mica_row_scale(const float *x, float scale, int64_t n, float *y);
/* y = x scale + bias */
void mica_row_scale_add(const float *x, float scale, float bias, int64_t n, float *y);
/* y = x - shift - log_sum: two steps, for the first is exact where x is near the maximum */
void mica_row_subtract(const float *x, float shift, float log_sum, int64_t n, float *y);
/* y = scale exp(x - shift) + bias */
void mica_row_exp(const float *x, float shift, float scale, float bias, int64_t n, float *y);
/* dx = y (dy - dot) */
void mica_row_softmax_bwd(const float *y, const float *dy, float dot, int64_t n, float *dx);
/* dx = dy - exp(y) sum */
void mica_row_log_softmax_bwd(const float *y, const float *dy, float sum, int64_t n, float *dx);

/* Some of them in f64; x - shift is 0 or less. */
double mica_row_max_f64(const double *x, int64_t n);
double mica_row_exp_sum_f64(const double *x, double shift, int64_t n, double *e);
void mica_row_exp_f64(const double *x, double shift, double scale, int64_t n, double *y);
void mica_row_scale_f64(const double *x, double scale, int64_t n, double *y);
void mica_row_subtract_f64(const double *x, double shift, double log_sum, int64_t n, double *y);

/* The same for n positions, ld apart, of `width` neighbouring slices, with a value per column. max
 * is raised; sums are added to. */
void mica_cols_max(const float *x, int64_t ld, int64_t n, int64_t width, float *max);
void mica_cols_exp_sum(const float *x, int64_t ld, int64_t n, const float *shift, int64_t width,
                       float *e, int64_t eld, float *sum);
void mica_cols_scale(const float *x, int64_t ld, int64_t n, const float *scale, int64_t width,
                     float *y, int64_t yld);
/* And for one position. */
void mica_cols_sum(const float *x, int64_t width, float *sum);
void mica_cols_deviation(const float *x, const float *about, int64_t width, float *sum);
void mica_cols_dot(const float *a, const float *b, int64_t width, float *sum);
void mica_cols_scale_add(const float *x, const float *scale, const float *bias, int64_t width,
                         float *y);
void mica_cols_subtract(const float *x, const float *shift, const float *log_sum, int64_t width,
                        float *y);
void mica_cols_exp(const float *x, const float *shift, const float *scale, const float *bias,
                   int64_t width, float *y);
void mica_cols_softmax_bwd(const float *y, const float *dy, const float *dot, int64_t width,
                           float *dx);
void mica_cols_log_softmax_bwd(const float *y, const float *dy, const float *sum, int64_t width,
                               float *dx);

/* Sums about the maxima `from` become sums about `to`, which are no lower. */
void mica_cols_rescale(double *sum, const float *from, const float *to, int64_t width);
/* by / sum exp(shift - max), shift being no higher */
void mica_cols_factors(const double *sum, const float *max, const float *shift, const double *by,
                       int64_t width, float *factor);
/* Logarithms of normal floats of 1 or more; NaN and infinity give NaN. */
void mica_logs(const double *x, int64_t n, float *log);

#endif
