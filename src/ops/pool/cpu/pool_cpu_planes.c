/* SPDX-License-Identifier: Apache-2.0
 * Maxima of small planes on the CPU, and their gradients: some whole planes at a time, for rows of
 * a few elements are too short a loop. Where a plane's windows lie is in tables that the plan has.
 * Forward: a window's taps are gathered; in place of those beside x stands its first one. Backward:
 * gradients are scattered one by one, once vectors have found which index is one of its window's
 * taps. In f32; planes of x, y and the indices without gaps. */
#include "ops/pool/cpu/pool_cpu.h"
#include "cpu/cpu.h"

#include <string.h>

#define INLINE __attribute__((always_inline)) static inline

enum { CELLS = MICA_POOL_TILE * sizeof(double) / sizeof(float) - 1, WINDOWS = MICA_POOL_SOURCE };
enum { TABLE = 8192 }; /* numbers of a table of taps, which is to stay in the first-level cache */
/* backward: so many rows of a window, times 2^SHIFT, in 32 bits */
enum { MOST_ROWS = 255, SHIFT = 24 };
_Static_assert(((int64_t)CELLS + 1) * (CELLS + 1) <= 1 << SHIFT, "quotients are exact");

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- which planes ---- */

static int64_t windows_of(const mica_pool_state *s)
{
    return s->axes[0].y * s->axes[1].y * s->axes[2].y;
}

/* Taps of the largest window; 0 if one has none. */
static int64_t most_taps(const mica_pool_axis *a)
{
    int64_t most = 0;
    for (int64_t o = 0; o < a->y; o++) {
        int64_t from, to;
        mica_pool_valid(a, o, &from, &to);
        if (to == from) return 0;
        if (to - from > most) most = to - from;
    }
    return most;
}

static int64_t taps_of(const mica_pool_state *s)
{
    return most_taps(&s->axes[0]) * most_taps(&s->axes[1]) * most_taps(&s->axes[2]);
}

/* Whether elements of a plane of d x h x w follow each other. */
static bool is_packed(const long long *strides, int64_t d, int64_t h, int64_t w)
{
    return (w == 1 || strides[4] == 1) && (h == 1 || strides[3] == w) &&
           (d == 1 || strides[2] == h * w);
}

/* Forward, against a row at a time, or of large windows one at a time. As measured on a Zen 3. */
static bool pays(const mica_pool_state *s, int64_t taps)
{
    int64_t columns = s->axes[2].y;
    if (windows_of(s) < 4) return taps <= 16;
    if (s->runs) return taps <= 256;
    return s->index_type ? columns <= 32 && columns * taps <= 280
                         : columns <= 24 && columns * taps <= 160;
}

static bool forward_fits(const mica_pool_state *s)
{
    int64_t taps = taps_of(s);
    return taps > 0 && windows_of(s) * taps <= TABLE && pays(s, taps);
}

static bool backward_fits(const mica_pool_state *s)
{
    const mica_pool_axis *a = s->axes;
    bool plain = !a[1].adaptive && !a[2].adaptive && a[1].dilation == 1 && a[2].dilation == 1;
    bool flat = a[0].x == 1 && a[0].y == 1 && a[0].window == 1;
    return plain && flat && a[1].window <= MOST_ROWS;
}

bool mica_pool_planes_fits(const mica_pool_state *s)
{
    const mica_pool_axis *a = s->axes;
    if (s->mode != MICA_POOL_MAX || s->channels || s->wide) return false;
    /* factors first: products may overflow */
    for (int i = 0; i < 3; i++)
        if (a[i].x > CELLS || a[i].y > WINDOWS) return false;
    if (mica_pool_plane(a) < 1 || windows_of(s) < 1) return false;
    if (mica_pool_plane(a) > CELLS || windows_of(s) > WINDOWS) return false;
    if (!is_packed(s->x, a[0].x, a[1].x, a[2].x) || !is_packed(s->y, a[0].y, a[1].y, a[2].y) ||
        (s->index_type && !is_packed(s->i, a[0].y, a[1].y, a[2].y)))
        return false;
    return s->backward ? backward_fits(s) : forward_fits(s);
}

void mica_pool_planes_tiles(mica_pool_state *s)
{
    int64_t cells = mica_pool_plane(s->axes), n = windows_of(s);
    s->taps = s->backward ? 0 : taps_of(s);
    s->x[4] = s->y[4] = s->i[4] = 1;
    s->columns = s->tile_w = s->backward ? cells : n;
    s->rows_d = s->rows_h = s->tile_h = 1;
    s->tile_c = least(s->c, least(CELLS / cells, WINDOWS / n));
}

/* ---- tables ---- */

/* Forward: cells of the first taps of all windows, of their second ones, ... Backward: of all
 * windows the first cell, columns, and cells from there to the end of the last row. */
int64_t mica_pool_planes_table(const mica_pool_state *s)
{
    return windows_of(s) * (s->backward ? 3 : s->taps);
}

static void list_taps(const mica_pool_state *s, const int64_t window[3], int64_t step, int32_t *to)
{
    const mica_pool_axis *a = s->axes;
    int64_t first[3], n[3], count = 0;
    for (int i = 0; i < 3; i++) {
        int64_t from, end;
        mica_pool_valid(&a[i], window[i], &from, &end);
        first[i] = mica_pool_first(&a[i], window[i]) + from * a[i].dilation;
        n[i] = end - from;
    }
    for (int64_t d = 0; d < n[0]; d++)
        for (int64_t h = 0; h < n[1]; h++)
            for (int64_t w = 0; w < n[2]; w++) {
                int64_t row =
                    (first[0] + d * a[0].dilation) * a[1].x + first[1] + h * a[1].dilation;
                to[count++ * step] = (int32_t)(row * a[2].x + first[2] + w * a[2].dilation);
            }
    for (; count < s->taps; count++) to[count * step] = to[0];
}

static void list_window(const mica_pool_state *s, const int64_t window[3], int64_t step,
                        int32_t *to)
{
    const mica_pool_axis *a = s->axes;
    int64_t h_from, h_to, w_from, w_to;
    mica_pool_valid(&a[1], window[1], &h_from, &h_to);
    mica_pool_valid(&a[2], window[2], &w_from, &w_to);
    int64_t row = mica_pool_first(&a[1], window[1]) + h_from;
    to[0] = (int32_t)(row * a[2].x + mica_pool_first(&a[2], window[2]) + w_from);
    to[step] = (int32_t)(w_to - w_from);
    to[2 * step] = (int32_t)((h_to - h_from) * a[2].x);
}

void mica_pool_planes_fill(mica_pool_state *s)
{
    const mica_pool_axis *a = s->axes;
    int64_t n = windows_of(s), window[3];
    int32_t *table = s->table;
    for (window[0] = 0; window[0] < a[0].y; window[0]++)
        for (window[1] = 0; window[1] < a[1].y; window[1]++)
            for (window[2] = 0; window[2] < a[2].y; window[2]++, table++)
                if (s->backward)
                    list_window(s, window, n, table);
                else
                    list_taps(s, window, n, table);
}

/* Planes of `n` elements that have to be in f32, as they lie or converted. */
static const float *load(const mica_pool_call *k, const mica_pool_tile *t, const long long *strides,
                         int64_t n, void *buffer)
{
    const mica_pool_state *s = k->state;
    const long long flat[5] = {[1] = strides[1], [4] = 1};
    int64_t at = t->n * strides[0] + t->c * strides[1];
    if (s->type == MICA_F32 && (t->cn == 1 || strides[1] == n)) return (const float *)k->in + at;
    mica_pool_load(s, k->in, at, flat, t->cn, n, buffer);
    return buffer;
}

/* ---- forward ---- */

/* Takes `count` taps, a constant, of n windows of a plane; the first ones start the results. */
INLINE void take_taps(const float *plane, const int32_t *taps, int count, bool start, int64_t n,
                      float *restrict best, int32_t *restrict index)
{
    for (int64_t o = 0; o < n; o++) {
        int32_t at = start ? taps[o] : index[o];
        float b = start ? plane[at] : best[o];
        for (int i = start; i < count; i++)
            at = mica_pool_max_of(&b, plane[taps[i * n + o]], at, taps[i * n + o]);
        best[o] = b, index[o] = at;
    }
}

MICA_CLONES
static void take_planes(const float *in, int64_t planes, int64_t cells, const int32_t *taps,
                        int64_t count, int64_t n, float *best, int32_t *index)
{
    for (int64_t p = 0; p < planes; p++, in += cells, best += n, index += n) {
        int64_t i = count % 4 ? count % 4 : 4;
        if (i == 1) take_taps(in, taps, 1, true, n, best, index);
        if (i == 2) take_taps(in, taps, 2, true, n, best, index);
        if (i == 3) take_taps(in, taps, 3, true, n, best, index);
        if (i == 4) take_taps(in, taps, 4, true, n, best, index);
        for (; i < count; i += 4) take_taps(in, taps + i * n, 4, false, n, best, index);
    }
}

void mica_pool_planes_forward(const mica_pool_call *k, const mica_pool_tile *t,
                              mica_pool_buffers *b)
{
    const mica_pool_state *s = k->state;
    int64_t cells = mica_pool_plane(s->axes), n = windows_of(s);
    const float *in = load(k, t, s->x, cells, b->source);
    take_planes(in, t->cn, cells, s->table, s->taps, n, (float *)b->result, (int32_t *)b->index);
}

/* ---- backward ---- */

typedef struct windows {
    const int32_t *first, *columns, *span;
    int64_t n;
    uint32_t width, inverse; /* of the plane; 2^SHIFT / width, rounded up */
} windows;

/* Where in planes of `cells` cells the gradient of each window goes; -1: nowhere. */
INLINE void find_some(const windows *w, int64_t planes, int64_t cells, const void *indices,
                      int64_t step, bool wide, int32_t *restrict to)
{
    for (int64_t p = 0; p < planes; p++, to += w->n) {
        const int32_t *narrow = (const int32_t *)indices + p * step, start = (int32_t)(p * cells);
        const int64_t *all = (const int64_t *)indices + p * step;
        for (int64_t o = 0; o < w->n; o++) {
            int32_t index = wide ? (int32_t)all[o] : narrow[o];
            uint32_t in = (uint32_t)index - (uint32_t)w->first[o];
            uint32_t column = in - (in * w->inverse >> SHIFT) * w->width;
            bool hit = (in < (uint32_t)w->span[o]) & (column < (uint32_t)w->columns[o]);
            if (wide) hit &= index == all[o];
            to[o] = hit ? start + index : -1;
        }
    }
}

MICA_CLONES
static void find_cells(const windows *w, int64_t planes, int64_t cells, const void *indices,
                       int64_t step, bool wide, int32_t *to)
{
    wide ? find_some(w, planes, cells, indices, step, true, to)
         : find_some(w, planes, cells, indices, step, false, to);
}

static void scatter(const int32_t *cells, const float *dy, int64_t n, float *planes)
{
    for (int64_t i = 0; i < n; i++)
        if (cells[i] >= 0) planes[cells[i]] += dy[i];
}

/* dx itself, where it can take sums: cleared, it is in the cache. NULL: it cannot. */
static float *in_place(const mica_pool_call *k, const mica_pool_tile *t, int64_t cells)
{
    const mica_pool_state *s = k->state;
    if (s->type != MICA_F32 || k->scaled || (t->cn > 1 && s->x[1] != cells)) return NULL;
    return (float *)k->out + t->n * s->x[0] + t->c * s->x[1];
}

void mica_pool_planes_backward(const mica_pool_call *k, const mica_pool_tile *t,
                               mica_pool_buffers *b)
{
    const mica_pool_state *s = k->state;
    int64_t n = windows_of(s), cells = mica_pool_plane(s->axes), width = s->axes[2].x;
    int64_t at = t->n * s->i[0] + t->c * s->i[1];
    const windows w = {.first = s->table,
                       .columns = s->table + n,
                       .span = s->table + 2 * n,
                       .n = n,
                       .width = (uint32_t)width,
                       .inverse = (uint32_t)(((1 << SHIFT) + width - 1) / width)};
    const char *indices = (const char *)k->indices + at * (mica_dtype_bits(s->index_type) / 8);
    find_cells(&w, t->cn, cells, indices, s->i[1], s->index_type == MICA_S64, b->hits);
    const float *dy = load(k, t, s->y, n, b->source);
    float *direct = in_place(k, t, cells), *planes = direct ? direct : (float *)b->result;
    memset(planes, 0, (size_t)(t->cn * cells) * sizeof *planes);
    scatter(b->hits, dy, t->cn * n, planes);
    if (!direct) mica_pool_store_tile(k, t, s->x, planes);
}
