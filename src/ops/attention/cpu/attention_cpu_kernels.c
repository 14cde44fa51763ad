/* SPDX-License-Identifier: Apache-2.0
 * The vector loops of attention on the CPU. */
#include "ops/attention/cpu/attention_cpu.h"
#include "ops/convert/cpu/bf16.h"
#include "ops/convert/cpu/functions_f32.h"
#include "cpu/cpu.h"
#include "cpu/stream.h"
#include "cpu/scratch.h"

#include <math.h>

typedef float vector __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t words __attribute__((vector_size(64), aligned(2), may_alias));
enum { WIDTH = 16 };

/* ---- products ---- */

#define VECTOR     64
#define BLOCK_ROWS 8
#define CLONES     MICA_WIDE
#define NAME(x)    x##_wide
#include "ops/attention/cpu/attention_cpu_product.h"

#define VECTOR     MICA_NARROW
#define BLOCK_ROWS 6
#define CLONES     MICA_NARROW_CLONES
#define NAME(x)    x##_narrow
#include "ops/attention/cpu/attention_cpu_product.h"

void attention_multiply(const attention_product *p)
{
    if (p->wide)
        multiply_wide(p);
    else
        multiply_narrow(p);
}

/* ---- products of few rows ---- */

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

/* ---- the same with rows of bf16 ----
 * They are widened in flight: each is read once, from memory. */

#if defined(__x86_64__)
enum { AHEAD = 64 }; /* rows: those of the next tile */

/* 32 numbers, those at even places and those at odd ones: an operation each, where in order they
 * would be shuffled. */
MICA_INLINE void widen(const uint16_t *from, vector *even, vector *odd)
{
    words pairs = *(const words *)from;
    *even = (vector)(pairs << 16);
    *odd = (vector)(pairs & 0xffff0000);
}

#define PICK(a, b, ...) ((vector)MICA_SHUFFLE(words, a, b, __VA_ARGS__))

/* 32 floats in order to and from such two. */
MICA_INLINE void split(const float *from, vector *even, vector *odd)
{
    words a = *(const words *)from, b = *(const words *)(from + WIDTH);
    *even = PICK(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    *odd = PICK(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}

MICA_INLINE void join(const vector *even, const vector *odd, float *to)
{
    words a = (words)*even, b = (words)*odd;
    *(vector *)to = PICK(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    *(vector *)(to + WIDTH) =
        PICK(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}

/* Totals of four vectors, in places 0, 4, 8 and 12. */
MICA_INLINE void total(const vector v[4], vector *to)
{
    vector x[2];
    for (int i = 0; i < 2; i++) {
        words a = (words)v[2 * i], b = (words)v[2 * i + 1];
        x[i] = PICK(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
               PICK(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    }
    words a = (words)x[0], b = (words)x[1];
    vector y = PICK(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
               PICK(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    a = (words)y;
    y += PICK(a, a, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
    a = (words)y;
    *to = y + PICK(a, a, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
}

/* `count` rows with `lanes` of b, both constants; in b pairs are split. */
MICA_INLINE void dots16(const attention_product *p, const float *b, int64_t row, int count,
                        int lanes)
{
    vector sum[FEW][4] = {0};
    const uint16_t *a = p->a16 + row * p->a_row;
    int64_t k = 0, a_row = p->a_row, depth = p->depth;
    for (int r = 0; r < count; r++) mica_fetch_ahead(a + (AHEAD + r) * a_row, 2 * depth);
    for (; k + 2 * WIDTH <= depth; k += 2 * WIDTH)
#pragma GCC unroll 4
        for (int r = 0; r < count; r++) {
            vector even, odd;
            widen(a + r * a_row + k, &even, &odd);
#pragma GCC unroll 4
            for (int l = 0; l < lanes; l++) {
                sum[l][r] += even * *(const vector *)(b + l * depth + k);
                sum[l][r] += odd * *(const vector *)(b + l * depth + k + WIDTH);
            }
        }
#pragma GCC unroll 4
    for (int l = 0; l < lanes; l++) {
        vector totals;
        total(sum[l], &totals);
        for (int r = 0; r < count; r++) {
            float rest = 0;
            for (int64_t i = k; i < depth; i++)
                rest += mica_bf16_value(a[r * a_row + i]) * b[l * depth + i];
            p->c[(row + r) * LANES + l] = rest + totals[4 * r];
        }
    }
}

MICA_INLINE void dots16_of(const attention_product *p, const float *b, int lanes)
{
    int64_t row = 0;
    for (; row + 4 <= p->rows; row += 4) dots16(p, b, row, 4, lanes);
    for (; row < p->rows; row++) dots16(p, b, row, 1, lanes);
}

MICA_WIDE static void multiply_dots16(const attention_product *p)
{
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    float *b = mica_scratch_take(FEW * ATTENTION_MAX_DIM * sizeof *b);
    for (int l = 0; l < p->lanes; l++) {
        const float *from = p->b + l * p->depth;
        float *to = b + l * p->depth;
        int64_t k = 0;
        for (; k + 2 * WIDTH <= p->depth; k += 2 * WIDTH)
            split(from + k, (vector *)(to + k), (vector *)(to + k + WIDTH));
        for (; k < p->depth; k++) to[k] = from[k];
    }
    if (p->lanes == 1)
        dots16_of(p, b, 1);
    else if (p->lanes == 2)
        dots16_of(p, b, 2);
    else if (p->lanes == 3)
        dots16_of(p, b, 3);
    else
        dots16_of(p, b, 4);
}

/* `count` rows from k on, a constant, times lanes of b. */
MICA_INLINE void sums16(const attention_product *p, int64_t k, int count)
{
    const uint16_t *a = p->a16 + k * p->a_step;
    const float *b = p->b + k * LANES;
    int64_t i = 0, n = p->rows;
    for (int r = 0; r < count; r++) mica_fetch_ahead(a + (AHEAD + r) * p->a_step, 2 * n);
    for (; i + 2 * WIDTH <= n; i += 2 * WIDTH) {
        vector even[4], odd[4];
#pragma GCC unroll 4
        for (int r = 0; r < count; r++) widen(a + r * p->a_step + i, &even[r], &odd[r]);
        for (int l = 0; l < p->lanes; l++) {
            float *c = p->c + l * n + i;
            vector x, y;
            split(c, &x, &y);
#pragma GCC unroll 4
            for (int r = 0; r < count; r++) {
                x += b[r * LANES + l] * even[r];
                y += b[r * LANES + l] * odd[r];
            }
            join(&x, &y, c);
        }
    }
    for (; i < n; i++)
        for (int l = 0; l < p->lanes; l++)
            for (int r = 0; r < count; r++)
                p->c[l * n + i] += b[r * LANES + l] * mica_bf16_value(a[r * p->a_step + i]);
}

MICA_WIDE static void multiply_sums16(const attention_product *p)
{
    int64_t k = 0;
    for (; k + 4 <= p->depth; k += 4) sums16(p, k, 4);
    for (; k < p->depth; k++) sums16(p, k, 1);
}
#endif

void attention_multiply_few(const attention_product *p)
{
#if defined(__x86_64__)
    if (p->a16 && p->add) {
        multiply_sums16(p);
        return;
    }
    if (p->a16) {
        multiply_dots16(p);
        return;
    }
#endif
    if (p->add)
        multiply_sums(p);
    else if (p->wide)
        multiply_dots_wide(p);
    else
        multiply_dots_narrow(p);
}

/* ---- scores ---- */

MICA_CLONES void attention_softmax(float *s, int64_t n, float scale, float slack,
                                   attention_lanes *lanes)
{
    MICA_ALIGNED float max[LANES], shift[LANES], sum[LANES];
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

/* x becomes exponentials about the maximum; returns their sum. n is a multiple of WIDTH. */
MICA_INLINE float softmax_run(float *x, int64_t n, float *most)
{
    MICA_ALIGNED float max[WIDTH], sum[WIDTH] = {0};
    float all = 0;
    for (int l = 0; l < WIDTH; l++) max[l] = *most;
    for (int64_t i = 0; i < n; i += WIDTH)
#pragma omp simd
        for (int l = 0; l < WIDTH; l++) max[l] = x[i + l] > max[l] ? x[i + l] : max[l];
    for (int l = 0; l < WIDTH; l++) *most = max[l] > *most ? max[l] : *most;
    float shift = *most == -INFINITY ? 0 : *most;
    for (int64_t i = 0; i < n; i += WIDTH)
#pragma omp simd
        for (int l = 0; l < WIDTH; l++) {
            x[i + l] = mica_exp_negative_f32(x[i + l] - shift);
            sum[l] += x[i + l];
        }
    for (int l = 0; l < WIDTH; l++) all += sum[l];
    return all;
}

MICA_CLONES void attention_softmax_few(float *s, int64_t n, int count, attention_lanes *lanes)
{
    int64_t full = (n + WIDTH - 1) / WIDTH * WIDTH;
    lanes->changed = false;
    for (int l = 0; l < count; l++) {
        MICA_ALIGNED float x[TILE];
        float before = lanes->max[l], max = before;
        for (int64_t i = 0; i < n; i++) x[i] = s[i * LANES + l];
        for (int64_t i = n; i < full; i++) x[i] = -INFINITY;
        float sum = softmax_run(x, full, &max), shift = max == -INFINITY ? 0 : max;
        lanes->factor[l] = mica_exp_negative_f32(before - shift);
        lanes->sum[l] = lanes->sum[l] * lanes->factor[l] + sum;
        lanes->max[l] = max;
        lanes->changed |= before != max;
        for (int64_t i = 0; i < n; i++) s[i * LANES + l] = x[i];
    }
}

MICA_CLONES void attention_rescale(float *acc, int64_t columns, const float *factor)
{
    for (int64_t i = 0; i < columns; i++)
#pragma omp simd
        for (int l = 0; l < LANES; l++) acc[i * LANES + l] *= factor[l];
}

MICA_CLONES void attention_scale(float *s, int64_t n, float factor)
{
#pragma omp simd
    for (int64_t i = 0; i < n * LANES; i++) s[i] *= factor;
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
        MICA_ALIGNED float tangent[LANES];
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
