/* SPDX-License-Identifier: Apache-2.0
 * The vector loops of attention on the CPU. */
#include "ops/attention/attention_cpu.h"
#include "ops/shared/functions_f32.h"
#include "cpu/cpu.h"

#include <math.h>

typedef float vector __attribute__((vector_size(64), aligned(4), may_alias));
enum { WIDTH = 16, ROWS = 8, NARROW_ROWS = 4 };

/* ---- products ---- */

/* `rows` rows by `width` vectors of 16 lanes; both are constants where it is inlined. */
MICA_INLINE void multiply_rows(const attention_product *p, int64_t row, int lane, int rows,
                               int width)
{
    vector c[ROWS][2] = {0};
    const float *a = p->a + row * p->a_row, *b = p->b + lane;
    int64_t a_row = p->a_row, a_step = p->a_step;
    for (int64_t k = 0; k < p->depth; k++, a += a_step, b += LANES) {
        const vector *x = (const vector *)b;
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            c[r][0] += a[r * a_row] * x[0];
            if (width > 1) c[r][1] += a[r * a_row] * x[1];
        }
    }
    float *to = p->c + row * LANES + lane;
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++, to += LANES) {
        vector *y = (vector *)to;
        for (int v = 0; v < width; v++) {
            if (p->add) c[r][v] += y[v];
            y[v] = c[r][v];
        }
    }
}

MICA_CLONES static void multiply_wide(const attention_product *p)
{
    int64_t row = 0;
    if (p->lanes > WIDTH) {
        for (; row + ROWS <= p->rows; row += ROWS) multiply_rows(p, row, 0, ROWS, 2);
        for (; row < p->rows; row++) multiply_rows(p, row, 0, 1, 2);
    } else {
        for (; row + ROWS <= p->rows; row += ROWS) multiply_rows(p, row, 0, ROWS, 1);
        for (; row < p->rows; row++) multiply_rows(p, row, 0, 1, 1);
    }
}

MICA_CLONES static void multiply_narrow(const attention_product *p)
{
    for (int lane = 0; lane < p->lanes; lane += WIDTH) {
        int64_t row = 0;
        for (; row + NARROW_ROWS <= p->rows; row += NARROW_ROWS)
            multiply_rows(p, row, lane, NARROW_ROWS, 1);
        for (; row < p->rows; row++) multiply_rows(p, row, lane, 1, 1);
    }
}

void attention_multiply(const attention_product *p)
{
    if (p->wide)
        multiply_wide(p);
    else
        multiply_narrow(p);
}

/* ---- products of few rows ---- */

/* `count` rows of a, a constant, with row b. */
MICA_INLINE void dots(const attention_product *p, int64_t row, int count, int lane)
{
    vector sum[4] = {0};
    const float *a = p->a + row * p->a_row, *b = p->b + lane * p->depth;
    int64_t k = 0, a_row = p->a_row;
    for (; k + WIDTH <= p->depth; k += WIDTH)
#pragma GCC unroll 4
        for (int r = 0; r < count; r++)
            sum[r] += *(const vector *)(a + r * a_row + k) * *(const vector *)(b + k);
#pragma GCC unroll 4
    for (int r = 0; r < count; r++) {
        float total = 0;
        for (int64_t i = k; i < p->depth; i++) total += a[r * a_row + i] * b[i];
        for (int half = WIDTH / 2; half > 0; half /= 2)
            for (int i = 0; i < half; i++) sum[r][i] += sum[r][i + half];
        p->c[(row + r) * LANES + lane] = total + sum[r][0];
    }
}

MICA_CLONES static void multiply_dots(const attention_product *p)
{
    for (int lane = 0; lane < p->lanes; lane++) {
        int64_t row = 0;
        for (; row + 4 <= p->rows; row += 4) dots(p, row, 4, lane);
        for (; row < p->rows; row++) dots(p, row, 1, lane);
    }
}

MICA_CLONES static void multiply_sums(const attention_product *p)
{
    int64_t step = p->a_step, n = p->rows;
    for (int lane = 0; lane < p->lanes; lane++) {
        float *c = p->c + lane * n;
        const float *a = p->a, *b = p->b + lane;
        int64_t k = 0;
        for (; k + 4 <= p->depth; k += 4, a += 4 * step, b += 4 * LANES) {
            float b0 = b[0], b1 = b[LANES], b2 = b[2 * LANES], b3 = b[3 * LANES];
#pragma omp simd
            for (int64_t i = 0; i < n; i++)
                c[i] +=
                    (b0 * a[i] + b1 * a[i + step]) + (b2 * a[i + 2 * step] + b3 * a[i + 3 * step]);
        }
        for (; k < p->depth; k++, a += step, b += LANES)
#pragma omp simd
            for (int64_t i = 0; i < n; i++) c[i] += b[0] * a[i];
    }
}

void attention_multiply_few(const attention_product *p)
{
    if (p->add)
        multiply_sums(p);
    else
        multiply_dots(p);
}

bool attention_is_wide(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512f");
#else
    return false;
#endif
}

/* ---- scores ---- */

MICA_CLONES void attention_softmax(float *s, int64_t n, float scale, float slack,
                                   attention_lanes *lanes)
{
    float max[LANES], shift[LANES], sum[LANES];
    for (int l = 0; l < LANES; l++) max[l] = -INFINITY;
    for (int64_t i = 0; i < n; i++)
#pragma omp simd
        for (int l = 0; l < LANES; l++)
            max[l] = s[i * LANES + l] > max[l] ? s[i * LANES + l] : max[l];
    int changed = 0;
    for (int l = 0; l < LANES; l++) {
        max[l] = scale * max[l] > lanes->max[l] + slack ? scale * max[l] : lanes->max[l];
        /* -inf - -inf would be NaN: a row that has seen no key is shifted by 0. */
        shift[l] = max[l] == -INFINITY ? 0 : max[l];
        lanes->factor[l] = mica_exp_negative_f32(lanes->max[l] - shift[l]);
        changed |= lanes->max[l] != max[l];
        lanes->max[l] = max[l];
        sum[l] = lanes->sum[l] * lanes->factor[l];
    }
    for (int64_t i = 0; i < n; i++) {
        float *row = s + i * LANES;
#pragma omp simd
        for (int l = 0; l < LANES; l++) {
            row[l] = mica_exp_negative_f32(scale * row[l] - shift[l]);
            sum[l] += row[l];
        }
    }
    for (int l = 0; l < LANES; l++) lanes->sum[l] = sum[l];
    lanes->changed = changed;
}

MICA_CLONES void attention_rescale(float *acc, int64_t columns, const float *factor)
{
    for (int64_t i = 0; i < columns; i++)
#pragma omp simd
        for (int l = 0; l < LANES; l++) acc[i * LANES + l] *= factor[l];
}

MICA_CLONES void attention_scale(float *s, int64_t n, float factor)
{
    for (int64_t i = 0; i < n * LANES; i += WIDTH) *(vector *)(s + i) *= factor;
}

MICA_CLONES void attention_rescale_few(float *acc, int64_t columns, const float *factor, int lanes)
{
    for (int l = 0; l < lanes; l++)
#pragma omp simd
        for (int64_t c = 0; c < columns; c++) acc[l * columns + c] *= factor[l];
}

MICA_CLONES void attention_cap(float *s, int64_t n, float cap, float *slope)
{
    for (int64_t i = 0; i < n * LANES; i += LANES) {
        float tangent[LANES];
#pragma omp simd
        for (int l = 0; l < LANES; l++) {
            tangent[l] = mica_tanh_f32(s[i + l] / cap);
            s[i + l] = cap * tangent[l];
        }
        for (int l = 0; l < LANES && slope; l++) slope[i + l] = 1 - tangent[l] * tangent[l];
    }
}

MICA_CLONES void attention_limit(float *s, int64_t n, const int32_t *from, const int32_t *to)
{
    for (int64_t i = 0; i < n; i++) {
        float *row = s + i * LANES;
        int32_t key = (int32_t)i;
#pragma omp simd
        for (int l = 0; l < LANES; l++) row[l] = key >= from[l] && key < to[l] ? row[l] : -INFINITY;
    }
}

MICA_CLONES void attention_alibi(float *s, int64_t n, float key, const float *slope,
                                 const float *diagonal)
{
    for (int64_t i = 0; i < n; i++) {
        float *row = s + i * LANES, at = key + (float)i;
#pragma omp simd
        for (int l = 0; l < LANES; l++) row[l] -= slope[l] * fabsf(at - diagonal[l]);
    }
}

/* ---- backward ---- */

/* One row; without dropout keep is 1, without a cap slope is. */
MICA_INLINE void gradient(const attention_gradients *g, int64_t row, int step_shift)
{
    int64_t at = row * LANES, first = step_shift ? 0 : row;
    float *s = g->s + at, *dp = g->dp + at, p[LANES];
    const float *shift = g->shift + first, *delta = g->delta + first;
#pragma omp simd
    for (int l = 0; l < LANES; l++) p[l] = mica_exp_f32(s[l] - shift[l * step_shift]);
    if (g->keep) {
        const float *keep = g->keep + at;
        for (int l = 0; l < LANES; l++) {
            s[l] = p[l] * keep[l];
            dp[l] *= keep[l];
        }
    } else {
        for (int l = 0; l < LANES; l++) s[l] = p[l];
    }
    for (int l = 0; l < LANES; l++) dp[l] = g->scale * (p[l] * (dp[l] - delta[l * step_shift]));
    for (int l = 0; l < LANES && g->slope; l++) dp[l] *= g->slope[at + l];
}

MICA_CLONES void attention_gradients_by_lane(const attention_gradients *g)
{
    for (int64_t i = 0; i < g->n; i++) gradient(g, i, 1);
}

MICA_CLONES void attention_gradients_by_row(const attention_gradients *g)
{
    for (int64_t i = 0; i < g->n; i++) gradient(g, i, 0);
}
