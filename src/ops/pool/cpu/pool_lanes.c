/* SPDX-License-Identifier: Apache-2.0
 * Inner loops of pooling, one form in float and one in double. */
#include "ops/pool/cpu/pool_lanes.h"
#include "cpu/cpu.h"
#include "cpu/stream.h"
#include "ops/convert/cpu/functions_f32.h"

#include <math.h>
#include <string.h>

#define INLINE __attribute__((always_inline)) static inline

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- lanes ---- */

/* The stride is a constant at the calls that matter, so that those loops vectorise. */
INLINE void max_row_f32(float *restrict best, int32_t *restrict index, const float *restrict source,
                        int64_t stride, int64_t n, int32_t first, int32_t grow)
{
    if (!index) {
        for (int64_t i = 0; i < n; i++) {
            float v = source[i * stride], b = best[i];
            best[i] = (!(v <= b) & (b == b)) ? v : b;
        }
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        float v = source[i * stride], b = best[i];
        bool take = (index[i] < 0) | ((!(v <= b)) & (b == b));
        best[i] = take ? v : b;
        index[i] = take ? first + (int32_t)i * grow : index[i];
    }
}

INLINE void max_row_f64(double *restrict best, int64_t *restrict index,
                        const double *restrict source, int64_t stride, int64_t n, int64_t first,
                        int64_t grow)
{
    if (!index) {
        for (int64_t i = 0; i < n; i++) {
            double v = source[i * stride], b = best[i];
            best[i] = (!(v <= b) & (b == b)) ? v : b;
        }
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        double v = source[i * stride], b = best[i];
        bool take = (index[i] < 0) | ((!(v <= b)) & (b == b));
        best[i] = take ? v : b;
        index[i] = take ? first + i * grow : index[i];
    }
}

MICA_MEMORY_CLONES
static void max_f32(const mica_pool_lanes *l, float *best, int32_t *index, const float *source,
                    int64_t first)
{
    for (int64_t i = 0; i < l->outer; i++) {
        float *b = best + i * l->to;
        int32_t *x = index ? index + i * l->to : NULL;
        const float *s = source + i * l->from_outer;
        int32_t at = (int32_t)(first + i * l->index_outer), grow = (int32_t)l->index_inner;
        if (l->from_inner == 1)
            max_row_f32(b, x, s, 1, l->inner, at, grow);
        else if (l->from_inner == 2)
            max_row_f32(b, x, s, 2, l->inner, at, grow);
        else
            max_row_f32(b, x, s, l->from_inner, l->inner, at, grow);
    }
}

MICA_MEMORY_CLONES
static void max_f64(const mica_pool_lanes *l, double *best, int64_t *index, const double *source,
                    int64_t first)
{
    for (int64_t i = 0; i < l->outer; i++) {
        double *b = best + i * l->to;
        int64_t *x = index ? index + i * l->to : NULL;
        const double *s = source + i * l->from_outer;
        int64_t at = first + i * l->index_outer;
        if (l->from_inner == 1)
            max_row_f64(b, x, s, 1, l->inner, at, l->index_inner);
        else
            max_row_f64(b, x, s, l->from_inner, l->inner, at, l->index_inner);
    }
}

INLINE void sum_row_f32(float *restrict sum, const float *restrict source, int64_t stride,
                        int64_t n)
{
    for (int64_t i = 0; i < n; i++) sum[i] += source[i * stride];
}
INLINE void sum_row_f64(double *restrict sum, const double *restrict source, int64_t stride,
                        int64_t n)
{
    for (int64_t i = 0; i < n; i++) sum[i] += source[i * stride];
}

MICA_MEMORY_CLONES
static void sum_f32(const mica_pool_lanes *l, float *sum, const float *source)
{
    for (int64_t i = 0; i < l->outer; i++) {
        const float *s = source + i * l->from_outer;
        if (l->from_inner == 1)
            sum_row_f32(sum + i * l->to, s, 1, l->inner);
        else if (l->from_inner == 2)
            sum_row_f32(sum + i * l->to, s, 2, l->inner);
        else
            sum_row_f32(sum + i * l->to, s, l->from_inner, l->inner);
    }
}

MICA_MEMORY_CLONES
static void sum_f64(const mica_pool_lanes *l, double *sum, const double *source)
{
    for (int64_t i = 0; i < l->outer; i++) {
        const double *s = source + i * l->from_outer;
        if (l->from_inner == 1)
            sum_row_f64(sum + i * l->to, s, 1, l->inner);
        else
            sum_row_f64(sum + i * l->to, s, l->from_inner, l->inner);
    }
}

void mica_pool_take_max(bool wide, const mica_pool_lanes *l, void *best, void *index,
                        const void *source, int64_t first_index)
{
    if (wide)
        max_f64(l, best, index, source, first_index);
    else
        max_f32(l, best, index, source, first_index);
}

void mica_pool_take_sum(bool wide, const mica_pool_lanes *l, void *sum, const void *source)
{
    if (wide)
        sum_f64(l, sum, source);
    else
        sum_f32(l, sum, source);
}

/* By a power of two, whose reciprocal is exact, a product: the same in a tenth of the time. */
MICA_MEMORY_CLONES
static void divide_f32(float *values, int64_t n, float by)
{
    int exponent;
    float exact = 1 / by;
    if (frexpf(by, &exponent) == 0.5F)
        for (int64_t i = 0; i < n; i++) values[i] *= exact;
    else
        for (int64_t i = 0; i < n; i++) values[i] /= by;
}

void mica_pool_divide(bool wide, void *values, int64_t n, double by)
{
    double *v = values;
    if (!wide)
        divide_f32(values, n, (float)by);
    else
        for (int64_t i = 0; i < n; i++) v[i] /= by;
}

MICA_MEMORY_CLONES
static void divide_row_f32(float *values, int64_t n, const double *by, double factor)
{
    for (int64_t i = 0; i < n; i++) {
        double d = by[i] * factor;
        values[i] /= (float)(d > 1 ? d : 1);
    }
}

MICA_MEMORY_CLONES
static void divide_row_f64(double *values, int64_t n, const double *by, double factor)
{
    for (int64_t i = 0; i < n; i++) {
        double d = by[i] * factor;
        values[i] /= d > 1 ? d : 1;
    }
}

void mica_pool_divide_rows(bool wide, void *values, int64_t rows, int64_t n, const double *by,
                           double factor)
{
    for (int64_t r = 0; r < rows; r++) {
        if (wide)
            divide_row_f64((double *)values + r * n, n, by, factor);
        else
            divide_row_f32((float *)values + r * n, n, by, factor);
    }
}

/* ---- runs: the same loops, blocks of a run being the outer lanes of one block of results ---- */

void mica_pool_run_max(bool wide, void *best, void *index, const void *source, int64_t stride,
                       int64_t n, int64_t first_index)
{
    int64_t whole = n / MICA_POOL_PARTS, rest = n % MICA_POOL_PARTS;
    mica_pool_lanes l = {.outer = whole,
                         .inner = MICA_POOL_PARTS,
                         .from_outer = MICA_POOL_PARTS * stride,
                         .from_inner = stride,
                         .index_outer = MICA_POOL_PARTS,
                         .index_inner = 1};
    mica_pool_take_max(wide, &l, best, index, source, first_index);
    int64_t size = wide ? sizeof(double) : sizeof(float);
    l.outer = 1, l.inner = rest;
    mica_pool_take_max(wide, &l, best, index, (const char *)source + whole * l.from_outer * size,
                       first_index + whole * MICA_POOL_PARTS);
}

void mica_pool_run_sum(bool wide, void *sum, const void *source, int64_t stride, int64_t n)
{
    int64_t whole = n / MICA_POOL_PARTS, rest = n % MICA_POOL_PARTS;
    mica_pool_lanes l = {.outer = whole,
                         .inner = MICA_POOL_PARTS,
                         .from_outer = MICA_POOL_PARTS * stride,
                         .from_inner = stride};
    mica_pool_take_sum(wide, &l, sum, source);
    int64_t size = wide ? sizeof(double) : sizeof(float);
    l.outer = 1, l.inner = rest;
    mica_pool_take_sum(wide, &l, sum, (const char *)source + whole * l.from_outer * size);
}

/* The run's sum as parts in registers, added up in pairs. */
INLINE float run_sum_f32(const float *source, int64_t stride, int64_t n)
{
    float parts[MICA_POOL_PARTS] = {0};
    int64_t i = 0;
    for (; i + MICA_POOL_PARTS <= n; i += MICA_POOL_PARTS)
        for (int p = 0; p < MICA_POOL_PARTS; p++) parts[p] += source[(i + p) * stride];
    for (int p = 0; i + p < n; p++) parts[p] += source[(i + p) * stride];
    for (int width = MICA_POOL_PARTS / 2; width > 0; width /= 2)
        for (int p = 0; p < width; p++) parts[p] += parts[p + width];
    return parts[0];
}

enum { LANES = MICA_NARROW / 4, VECTORS = MICA_POOL_PARTS / LANES };
typedef float lanes __attribute__((vector_size(MICA_NARROW), aligned(4), may_alias));
typedef uint32_t masks __attribute__((vector_size(MICA_NARROW), aligned(4), may_alias));

/* The same of n >= MICA_POOL_PARTS neighbours. The rest is the end of the last whole vectors:
 * `fresh` masks what was not in the ones before. */
INLINE float long_sum_f32(const float *source, int64_t n, const uint32_t *fresh)
{
    MICA_ALIGNED float parts[LANES];
    const float *end = source + n - MICA_POOL_PARTS;
    lanes sums[VECTORS];
    int64_t i = MICA_POOL_PARTS;
    for (int v = 0; v < VECTORS; v++) sums[v] = *(const lanes *)(source + v * LANES);
    for (; i + MICA_POOL_PARTS <= n; i += MICA_POOL_PARTS)
        for (int v = 0; v < VECTORS; v++) sums[v] += *(const lanes *)(source + i + v * LANES);
    for (int v = 0; v < VECTORS && i < n; v++)
        sums[v] += (lanes)(*(const masks *)(end + v * LANES) & *(const masks *)(fresh + v * LANES));
    for (int width = VECTORS / 2; width > 0; width /= 2)
        for (int v = 0; v < width; v++) sums[v] += sums[v + width];
    *(lanes *)parts = sums[0];
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int p = 0; p < width; p++) parts[p] += parts[p + width];
    return parts[0];
}

INLINE double run_sum_f64(const double *source, int64_t stride, int64_t n)
{
    double parts[MICA_POOL_PARTS] = {0};
    int64_t i = 0;
    for (; i + MICA_POOL_PARTS <= n; i += MICA_POOL_PARTS)
        for (int p = 0; p < MICA_POOL_PARTS; p++) parts[p] += source[(i + p) * stride];
    for (int p = 0; i + p < n; p++) parts[p] += source[(i + p) * stride];
    for (int width = MICA_POOL_PARTS / 2; width > 0; width /= 2)
        for (int p = 0; p < width; p++) parts[p] += parts[p + width];
    return parts[0];
}

MICA_MEMORY_CLONES
static void run_sums_f32(const mica_pool_lanes *l, float *sums, const float *source)
{
    bool usual = l->from_inner == 1 && l->inner >= MICA_POOL_PARTS;
    MICA_ALIGNED uint32_t fresh[MICA_POOL_PARTS];
    for (int64_t p = 0; p < MICA_POOL_PARTS; p++)
        fresh[p] = p >= MICA_POOL_PARTS - l->inner % MICA_POOL_PARTS ? UINT32_MAX : 0;
    for (int64_t c = 0; c < l->outer; c++) {
        const float *s = source + c * l->from_outer;
        if (usual) mica_fetch_ahead((const char *)s + MICA_AHEAD, least(4 * l->inner, MICA_AHEAD));
        sums[c * l->to] =
            usual ? long_sum_f32(s, l->inner, fresh) : run_sum_f32(s, l->from_inner, l->inner);
    }
}
MICA_MEMORY_CLONES
static void run_sums_f64(const mica_pool_lanes *l, double *sums, const double *source)
{
    for (int64_t c = 0; c < l->outer; c++) {
        const double *s = source + c * l->from_outer;
        sums[c * l->to] = l->from_inner == 1 ? run_sum_f64(s, 1, l->inner)
                                             : run_sum_f64(s, l->from_inner, l->inner);
    }
}

void mica_pool_run_sums(bool wide, const mica_pool_lanes *l, void *sums, const void *source)
{
    if (wide)
        run_sums_f64(l, sums, source);
    else
        run_sums_f32(l, sums, source);
}

/* ---- backward ---- */

INLINE void add_f32(float *restrict dx, const float *restrict dy, const int32_t *restrict hits,
                    int32_t at, int64_t n)
{
    if (!hits)
        for (int64_t c = 0; c < n; c++) dx[c] += dy[c];
    else
        for (int64_t c = 0; c < n; c++) {
            /* bits, not a choice, of which the compiler makes a masked load */
            uint32_t hit = 0 - (uint32_t)(hits[c] == at);
            dx[c] += mica_float_of(mica_bits_of(dy[c]) & hit);
        }
}
INLINE void add_f64(double *restrict dx, const double *restrict dy, const int32_t *restrict hits,
                    int32_t at, int64_t n)
{
    if (!hits)
        for (int64_t c = 0; c < n; c++) dx[c] += dy[c];
    else
        for (int64_t c = 0; c < n; c++) dx[c] += hits[c] == at ? dy[c] : 0;
}

MICA_MEMORY_CLONES
static void channels_f32(const mica_pool_spread *s, float *dx, const float *dy)
{
    for (int64_t o = 0; o < s->windows; o++) {
        const int32_t *hits = s->hits ? s->hits + o * s->dy_stride : NULL;
        for (int64_t w = s->from[o]; w < s->to[o]; w += s->step)
            add_f32(dx + w * s->dx_stride, dy + o * s->dy_stride, hits, (int32_t)w, s->channels);
    }
}
MICA_MEMORY_CLONES
static void channels_f64(const mica_pool_spread *s, double *dx, const double *dy)
{
    for (int64_t o = 0; o < s->windows; o++) {
        const int32_t *hits = s->hits ? s->hits + o * s->dy_stride : NULL;
        for (int64_t w = s->from[o]; w < s->to[o]; w += s->step)
            add_f64(dx + w * s->dx_stride, dy + o * s->dy_stride, hits, (int32_t)w, s->channels);
    }
}

INLINE void windows_row_f32(const mica_pool_spread *s, const int32_t *hits, float *dx,
                            const float *dy, bool dilated)
{
    float nowhere = 0;
    for (int64_t o = 0; o < s->windows; o++) {
        int32_t w = hits[o];
        bool hit = (w >= s->from[o]) & (w < s->to[o]);
        if (dilated) hit = hit && (w - s->from[o]) % s->step == 0;
        /* No branch: hits are as good as random. */
        float *at = hit ? dx + w : &nowhere;
        *at += dy[o];
    }
}
INLINE void windows_row_f64(const mica_pool_spread *s, const int32_t *hits, double *dx,
                            const double *dy, bool dilated)
{
    double nowhere = 0;
    for (int64_t o = 0; o < s->windows; o++) {
        int32_t w = hits[o];
        bool hit = (w >= s->from[o]) & (w < s->to[o]);
        if (dilated) hit = hit && (w - s->from[o]) % s->step == 0;
        double *at = hit ? dx + w : &nowhere;
        *at += dy[o];
    }
}

INLINE void windows_apart_f32(const mica_pool_spread *s, float *dx, const float *dy)
{
    for (int64_t o = 0; o < s->windows; o++)
        for (int64_t w = s->from[o]; w < s->to[o]; w += s->step) dx[w] += dy[o];
}

MICA_MEMORY_CLONES
static void windows_f32(const mica_pool_spread *s, float *dx, const float *dy)
{
    for (int64_t c = 0; c < s->channels; c++, dx += s->dx_stride, dy += s->dy_stride) {
        if (s->hits) {
            windows_row_f32(s, s->hits + c * s->dy_stride, dx, dy, s->step > 1);
            continue;
        }
        if (s->step > 1) {
            windows_apart_f32(s, dx, dy);
            continue;
        }
        for (int64_t o = 0; o < s->windows; o++)
            for (int64_t w = s->from[o]; w < s->to[o]; w++) dx[w] += dy[o];
    }
}
INLINE void windows_apart_f64(const mica_pool_spread *s, double *dx, const double *dy)
{
    for (int64_t o = 0; o < s->windows; o++)
        for (int64_t w = s->from[o]; w < s->to[o]; w += s->step) dx[w] += dy[o];
}

MICA_MEMORY_CLONES
static void windows_f64(const mica_pool_spread *s, double *dx, const double *dy)
{
    for (int64_t c = 0; c < s->channels; c++, dx += s->dx_stride, dy += s->dy_stride) {
        if (s->hits) {
            windows_row_f64(s, s->hits + c * s->dy_stride, dx, dy, s->step > 1);
            continue;
        }
        if (s->step > 1) {
            windows_apart_f64(s, dx, dy);
            continue;
        }
        for (int64_t o = 0; o < s->windows; o++)
            for (int64_t w = s->from[o]; w < s->to[o]; w++) dx[w] += dy[o];
    }
}

/* ---- indices ---- */

MICA_MEMORY_CLONES
void mica_pool_find_hits_s64(const int64_t *indices, int64_t stride, int64_t n, int64_t first,
                             int32_t columns, int32_t *hits)
{
    for (int64_t i = 0; i < n; i++) {
        uint64_t column = (uint64_t)indices[i * stride] - (uint64_t)first;
        hits[i] = column < (uint64_t)columns ? (int32_t)column : -1;
    }
}
MICA_MEMORY_CLONES
void mica_pool_find_hits_s32(const int32_t *indices, int64_t stride, int64_t n, int64_t first,
                             int32_t columns, int32_t *hits)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t column = (uint32_t)indices[i * stride] - (uint32_t)first;
        hits[i] = column < (uint32_t)columns ? (int32_t)column : -1;
    }
}

INLINE void widen(const int32_t *restrict found, int64_t n, int64_t *restrict to, int64_t to_step)
{
    for (int64_t i = 0; i < n; i++) to[i * to_step] = found[i];
}

MICA_MEMORY_CLONES
void mica_pool_put_indices_s64(bool wide, const void *found, int64_t n, int64_t *to,
                               int64_t to_step)
{
    const int64_t *q = found;
    if (wide)
        for (int64_t i = 0; i < n; i++) to[i * to_step] = q[i];
    else if (to_step == 1)
        widen(found, n, to, 1);
    else
        widen(found, n, to, to_step);
}

void mica_pool_put_indices_s32(bool wide, const void *found, int64_t n, int32_t *to,
                               int64_t to_step)
{
    const int64_t *q = found;
    const int32_t *w = found;
    for (int64_t i = 0; i < n; i++) to[i * to_step] = wide ? (int32_t)q[i] : w[i];
}

void mica_pool_spread_channels(bool wide, const mica_pool_spread *s, void *dx, const void *dy)
{
    if (wide)
        channels_f64(s, dx, dy);
    else
        channels_f32(s, dx, dy);
}

void mica_pool_spread_windows(bool wide, const mica_pool_spread *s, void *dx, const void *dy)
{
    if (wide)
        windows_f64(s, dx, dy);
    else
        windows_f32(s, dx, dy);
}
