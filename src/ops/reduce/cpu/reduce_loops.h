/* SPDX-License-Identifier: Apache-2.0
 * Loops of the family `reduce` in elements of the type `real`, added up in `acc`, compared in
 * `held`; reduce_f32.c, _f64.c and _s64.c include this. A row is n neighbours; columns are n rows
 * of `width` neighbours, ld apart, with a value for each. Lanes are written out: the compiler would
 * add them one after the other. */
#include "cpu/cpu.h"
#include "cpu/scratch.h"

#include <string.h>

enum { LANES = 16 };

/* Elements as they are put together, in place or elsewhere. */
MICA_MEMORY_CLONES
static void front(int front, const real *x, int64_t n, real *out)
{
    switch (front) {
    case REDUCE_ABS:
        for (int64_t i = 0; i < n; i++) out[i] = ABSOLUTE(x[i]);
        break;
    case REDUCE_OPPOSITE:
        for (int64_t i = 0; i < n; i++) out[i] = OPPOSITE(x[i]);
        break;
    case REDUCE_NONZERO:
        for (int64_t i = 0; i < n; i++) out[i] = x[i] != 0;
        break;
    case REDUCE_IS_ZERO:
        for (int64_t i = 0; i < n; i++) out[i] = x[i] == 0;
        break;
    }
}

MICA_MEMORY_CLONES
static acc row_sum(const real *x, int64_t n)
{
    acc lane[LANES] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
#pragma omp simd
        for (int l = 0; l < LANES; l++) lane[l] += (acc)x[i + l];
    for (int l = 0; i + l < n; l++) lane[l] += (acc)x[i + l];
    for (int l = 0; l < LANES; l++) sum += lane[l];
    return sum;
}

/* Of squared deviations from `mean`. */
MICA_MEMORY_CLONES
static acc row_squares(const real *x, acc mean, int64_t n)
{
    acc lane[LANES] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
#pragma omp simd
        for (int l = 0; l < LANES; l++) {
            const acc v = (acc)x[i + l] - mean;
            lane[l] += v * v;
        }
    for (int l = 0; i + l < n; l++) lane[l] += ((acc)x[i + l] - mean) * ((acc)x[i + l] - mean);
    for (int l = 0; l < LANES; l++) sum += lane[l];
    return sum;
}

MICA_MEMORY_CLONES
static acc row_product(const real *x, int64_t n)
{
    acc lane[LANES], product = 1;
    int64_t i = 0;
    for (int l = 0; l < LANES; l++) lane[l] = 1;
    for (; i + LANES <= n; i += LANES)
#pragma omp simd
        for (int l = 0; l < LANES; l++) lane[l] *= (acc)x[i + l];
    for (int l = 0; i + l < n; l++) lane[l] *= (acc)x[i + l];
    for (int l = 0; l < LANES; l++) product *= lane[l];
    return product;
}

/* NaN if there is one. */
MICA_MEMORY_CLONES
static real row_max(const real *x, int64_t n)
{
    real lane[LANES], max = LOWEST;
    int nan[LANES] = {0}, any = 0;
    int64_t i = 0;
    for (int l = 0; l < LANES; l++) lane[l] = LOWEST;
    for (; i + LANES <= n; i += LANES)
#pragma omp simd
        for (int l = 0; l < LANES; l++) {
            const real v = x[i + l];
            lane[l] = v > lane[l] ? v : lane[l];
            nan[l] |= IS_NAN(v);
        }
    for (int l = 0; i + l < n; l++) {
        lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
        any |= IS_NAN(x[i + l]);
    }
    for (int l = 0; l < LANES; l++) max = lane[l] > max ? lane[l] : max, any |= nan[l];
    return any ? NO_NUMBER : max;
}

/* The first of n elements that is `v`, or NaN if that is. */
static int64_t find(const real *x, real v, int64_t step, int64_t n)
{
    int64_t i = 0;
    while (i < n && !(x[i * step] == v || (IS_NAN(v) && IS_NAN(x[i * step])))) i++;
    return i;
}

MICA_MEMORY_CLONES
static void cols_sum(const real *x, int64_t ld, int64_t n, int64_t width, acc *sum)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < width; c++) sum[c] += (acc)x[i * ld + c];
}

MICA_MEMORY_CLONES
static void cols_squares(const real *x, int64_t ld, const acc *mean, int64_t n, int64_t width,
                         acc *sum)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < width; c++) {
            const acc v = (acc)x[i * ld + c] - mean[c];
            sum[c] += v * v;
        }
}

MICA_MEMORY_CLONES
static void cols_product(const real *x, int64_t ld, int64_t n, int64_t width, acc *product)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < width; c++) product[c] *= (acc)x[i * ld + c];
}

MICA_MEMORY_CLONES
static void cols_max(const real *x, int64_t ld, int64_t n, int64_t width, real *max)
{
    int nan[MICA_TILE_WIDTH] = {0};
    for (int64_t c = 0; c < width; c++) max[c] = LOWEST;
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < width; c++) {
            const real v = x[i * ld + c];
            max[c] = v > max[c] ? v : max[c];
            nan[c] |= IS_NAN(v);
        }
    for (int64_t c = 0; c < width; c++)
        if (nan[c]) max[c] = NO_NUMBER;
}

/* ---- a chunk ---- */

/* NaN wins over everything but NaN. */
static bool wins(held v, held best)
{
    return v > best || (IS_NAN(v) && !IS_NAN(best));
}
static bool same(held v, held best)
{
    return v == best || (IS_NAN(v) && IS_NAN(best));
}

static void add_sums(const mica_reduce_row *row, bool one, const mica_reduce_values *v,
                     int64_t width, mica_reduce_states *s)
{
    const real *x = v->x;
    acc *a = s->a.SUMS;
    const acc zero[MICA_TILE_WIDTH] = {0};
    if (row->by == REDUCE_SUM && one)
        a[0] += row_sum(x, v->n);
    else if (row->by == REDUCE_SUM)
        cols_sum(x, v->ld, v->n, width, a);
    else if (row->by == REDUCE_SQUARES && one)
        a[0] += row_squares(x, 0, v->n);
    else if (row->by == REDUCE_SQUARES)
        cols_squares(x, v->ld, zero, v->n, width, a);
    else if (one)
        a[0] *= row_product(x, v->n);
    else
        cols_product(x, v->ld, v->n, width, a);
}

/* Of the chunk by itself, in two passes, and then merged. */
static void add_moments(bool one, const mica_reduce_values *v, int64_t width, mica_reduce_states *s)
{
    const real *x = v->x;
    mica_reduce_states chunk;
    acc *mean = chunk.a.SUMS, *squares = chunk.b.SUMS;
    /* not all of it: that costs what a short row does */
    memset(mean, 0, (size_t)width * sizeof *mean);
    memset(squares, 0, (size_t)width * sizeof *squares);
    if (one)
        mean[0] = row_sum(x, v->n);
    else
        cols_sum(x, v->ld, v->n, width, mean);
    for (int64_t c = 0; c < width; c++) mean[c] /= (acc)v->n;
    if (one)
        squares[0] = row_squares(x, mean[0], v->n);
    else
        cols_squares(x, v->ld, mean, v->n, width, squares);
    chunk.count = v->n;
    mica_reduce_merge_moments(s, &chunk, width);
}

static void add_maxima(const mica_reduce_row *row, bool one, const mica_reduce_values *v,
                       int64_t width, mica_reduce_states *s)
{
    const real *x = v->x;
    real max[MICA_TILE_WIDTH];
    held *best = s->a.HELD;
    if (one)
        max[0] = row_max(x, v->n);
    else
        cols_max(x, v->ld, v->n, width, max);
    for (int64_t c = 0; c < width; c++) {
        const held m = (held)max[c];
        const bool better = wins(m, best[c]) || (s->count == 0 && row->by == REDUCE_ARG);
        /* An equal one may come later and yet be the first: rows go by strides. */
        if (!better && (row->by == REDUCE_MAX || !same(m, best[c]))) continue;
        best[c] = m;
        if (row->by == REDUCE_MAX) continue;
        const int64_t at = v->index + v->step * find(x + c, max[c], one ? 1 : v->ld, v->n);
        if (better || at < s->index[c]) s->index[c] = at;
    }
    s->count += v->n;
}

void add_values(const mica_reduce_row *row, const mica_reduce_values *v, int64_t width, bool one,
                mica_reduce_states *s)
{
    mica_reduce_values mapped = *v;
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    real *buffer = mica_scratch_take(MICA_TILE_CHUNK * sizeof *buffer);
    if (row->front != REDUCE_AS_IT_IS) {
        for (int64_t i = 0; !one && i < v->n; i++)
            front(row->front, (const real *)v->x + i * v->ld, width, buffer + i * width);
        if (one) front(row->front, v->x, v->n, buffer);
        mapped.x = buffer, mapped.ld = width;
    }
    if (row->by == REDUCE_MOMENTS)
        add_moments(one, &mapped, width, s);
    else if (row->by == REDUCE_MAX || row->by == REDUCE_ARG)
        add_maxima(row, one, &mapped, width, s);
    else
        add_sums(row, one, &mapped, width, s);
}
