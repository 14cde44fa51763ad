/* SPDX-License-Identifier: Apache-2.0
 * Pooling backward on the CPU where columns are adjacent: a band of whole rows of one channel of dx
 * stays in the cache while every gradient whose window reaches it is added, once per band. Windows
 * without dilation, in one or two dimensions, in f32. Maxima are scattered one by one, those of
 * the usual windows added by whole vectors, which compare instead: a third of the time. */
#include "ops/pool/cpu/pool_cpu.h"
#include "cpu/cpu.h"
#include "cpu/stream.h"

#include <string.h>

#define INLINE __attribute__((always_inline)) static inline

/* Gradients that miss the band go to the cell behind it. */
enum { BAND = MICA_POOL_TILE * sizeof(double) / sizeof(float) - 1 };
enum { MOST_ROWS = 255 }; /* of a window: see cell_of */
enum { LANES = 8 };
_Static_assert(2 * LANES <= MICA_POOL_MORE, "vectors reach so far behind a band");

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* dy of a row of windows: vectors begin before it and end behind it. */
static float *source_of(mica_pool_buffers *b)
{
    return (float *)b->source + LANES;
}

bool mica_pool_band_fits(const mica_pool_state *s)
{
    const mica_pool_axis *a = s->axes;
    bool plain = !a[1].adaptive && !a[2].adaptive && a[1].dilation == 1 && a[2].dilation == 1;
    return s->backward && !s->channels && !s->wide && plain && a[0].x == 1 && a[0].y == 1 &&
           a[0].window == 1 && a[2].x <= BAND && a[2].y <= MICA_POOL_SOURCE &&
           a[1].window <= MOST_ROWS;
}

int64_t mica_pool_band_rows(const mica_pool_state *s)
{
    return BAND / s->axes[2].x;
}

/* One row of windows: their first column in x and number of columns, the first one's index counted
 * from the band's first element, rows in x. */
typedef struct windows {
    const int32_t *from, *columns;
    int64_t first, usual, usual_end; /* usual: [usual, usual_end) are for add_usual */
    uint32_t rows, width;            /* of x */
    uint64_t inverse;                /* 2^32 / width, rounded up */
    int64_t n;
} windows;

/* Where in the band the gradient of window o goes. Whether an index is one of the window's taps
 * takes a division by the width: by a product, exact as rows * width^2 is below 2^32. */
INLINE int64_t cell_of(const windows *w, int64_t o, int64_t index, int64_t cells)
{
    uint64_t in_window = (uint64_t)index - (uint64_t)(w->first + w->from[o]);
    uint32_t in = (uint32_t)in_window;
    uint32_t row = (uint32_t)(in * w->inverse >> 32), column = in - row * w->width;
    bool hit = (in_window < (uint64_t)w->rows * w->width) & (column < (uint32_t)w->columns[o]) &
               ((uint64_t)index < (uint64_t)cells);
    return hit ? index : cells;
}

static void scatter_s64(const windows *w, const int64_t *indices, int64_t step, int64_t start,
                        const float *dy, float *band, int64_t cells)
{
    for (int64_t o = 0; o < w->n; o++)
        band[cell_of(w, o, (int64_t)((uint64_t)indices[o * step] - (uint64_t)start), cells)] +=
            dy[o];
}

static void scatter_s32(const windows *w, const int32_t *indices, int64_t step, int64_t start,
                        const float *dy, float *band, int64_t cells)
{
    for (int64_t o = 0; o < w->n; o++)
        band[cell_of(w, o, indices[o * step] - start, cells)] += dy[o];
}

/* ---- windows of two or three taps, two apart: every element asks its windows ---- */

typedef float vector __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t vector_s32 __attribute__((vector_size(32), aligned(4), may_alias));

/* dy where the hit is at `here`, else 0. */
INLINE void ask_hits(const int32_t *hits, const float *dy, const vector_s32 *here, vector *sum)
{
    vector_s32 hit = *(const vector_s32 *)hits == *here;
    *sum = (vector)(*(const vector_s32 *)dy & hit);
}

/* Elements 2 o and 2 o + 1 of a row, element 0 being cell `at` of the band, from windows o < n, all
 * of whose taps lie in x. Of three taps the last is the next window's first. n is a multiple of
 * LANES: around those that count hits are -1. */
INLINE void add_pairs(const int32_t *hits, const float *dy, int32_t at, int64_t n, bool three,
                      float *row)
{
    vector_s32 here = (vector_s32){0, 2, 4, 6, 8, 10, 12, 14} + at;
    for (int64_t o = 0; o < n; o += LANES, here += 2 * LANES) {
        vector even, odd, before, *to = (vector *)(row + 2 * o);
        vector_s32 beside = here + 1;
        ask_hits(hits + o, dy + o, &here, &even);
        ask_hits(hits + o, dy + o, &beside, &odd);
        if (three) {
            ask_hits(hits + o - 1, dy + o - 1, &here, &before);
            even += before;
        }
        to[0] += (vector)MICA_SHUFFLE(vector_s32, even, odd, 0, 8, 1, 9, 2, 10, 3, 11);
        to[1] += (vector)MICA_SHUFFLE(vector_s32, even, odd, 4, 12, 5, 13, 6, 14, 7, 15);
    }
}

MICA_CLONES
static void add_usual(const int32_t *hits, const float *dy, int32_t at, int64_t n, bool three,
                      float *row)
{
    if (three)
        add_pairs(hits, dy, at, n, true, row);
    else
        add_pairs(hits, dy, at, n, false, row);
}

/* None unless they are of that kind. */
static void find_usual(const mica_pool_axis *a, windows *w)
{
    bool usual = a->stride == 2 && (a->window == 2 || a->window == 3);
    int64_t from = 0, to = usual ? a->y : 0;
    while (from < to && w->columns[from] != a->window) from++;
    while (to > from && w->columns[to - 1] != a->window) to--;
    w->usual = from, w->usual_end = to;
}

static void scatter_some(const mica_pool_call *k, int64_t at, const windows *w, int64_t from,
                         int64_t to, int64_t start, mica_pool_buffers *b, int64_t cells)
{
    const mica_pool_state *s = k->state;
    const float *dy = source_of(b) + from;
    float *band = (float *)b->result;
    windows some = *w;
    some.from += from, some.columns += from, some.n = to - from;
    at += from * s->i[4];
    if (s->index_type == MICA_S32)
        scatter_s32(&some, (const int32_t *)k->indices + at, s->i[4], start, dy, band, cells);
    else
        scatter_s64(&some, (const int64_t *)k->indices + at, s->i[4], start, dy, band, cells);
}

/* Of n windows; *hits has room for LANES before them. Returns how many there are with those that
 * fill up the last vector, and one more at least. */
static int64_t find_hits(const mica_pool_call *k, int64_t at, int64_t n, int64_t start,
                         int64_t cells, int32_t *hits)
{
    const mica_pool_state *s = k->state;
    int64_t whole = n / LANES * LANES + LANES;
    if (s->index_type == MICA_S32)
        mica_pool_find_hits_s32((const int32_t *)k->indices + at, s->i[4], n, start, (int32_t)cells,
                                hits);
    else
        mica_pool_find_hits_s64((const int64_t *)k->indices + at, s->i[4], n, start, (int32_t)cells,
                                hits);
    hits[-1] = -1;
    for (int64_t i = n; i < whole; i++) hits[i] = -1;
    return whole;
}

static void add_maxima(const mica_pool_call *k, const mica_pool_tile *t, int64_t h, int64_t rows,
                       windows *w, mica_pool_buffers *b)
{
    const mica_pool_state *s = k->state;
    const mica_pool_axis *a = s->axes;
    int64_t o_from = w->usual, o_to = w->usual_end, from, to;
    int64_t width = a[2].x, start = t->h * width, cells = rows * width;
    int64_t at = t->n * s->i[0] + t->c * s->i[1] + h * s->i[3], first = mica_pool_first(&a[1], h);
    mica_pool_valid(&a[1], h, &from, &to);
    w->first = (first + from) * width - start;
    w->rows = (uint32_t)(to - from);
    scatter_some(k, at, w, 0, o_from, start, b, cells);
    scatter_some(k, at, w, o_to, w->n, start, b, cells);
    if (o_from == o_to) return;
    int32_t *hits = b->hits + LANES;
    int64_t n = find_hits(k, at + o_from * s->i[4], o_to - o_from, start, cells, hits);
    for (int64_t i = first + from; i < first + to; i++) {
        int64_t cell = (i - t->h) * width + w->from[o_from];
        if (i >= t->h && i < t->h + rows)
            add_usual(hits, source_of(b) + o_from, (int32_t)cell, n, a[2].window == 3,
                      (float *)b->result + cell);
    }
}

MICA_CLONES
static void add_row(const float *line, float *row, int64_t n)
{
    for (int64_t i = 0; i < n; i++) row[i] += line[i];
}

/* All rows of a window get the same: windows are spread along one row, which is added to each. */
static void add_averages(const mica_pool_call *k, const mica_pool_tile *t, int64_t h, int64_t rows,
                         const windows *w, mica_pool_buffers *b)
{
    const mica_pool_state *s = k->state;
    const mica_pool_axis *a = s->axes;
    float *dy = source_of(b), *line = b->line, *band = (float *)b->result;
    int64_t from, to, width = a[2].x, first = mica_pool_first(&a[1], h);
    bool valid = s->mode == MICA_POOL_AVG_VALID;
    mica_pool_valid(&a[1], h, &from, &to);
    mica_pool_divide_rows(false, dy, 1, w->n, b->divisor,
                          (double)mica_pool_divisor(&a[1], h, valid));
    memset(line, 0, (size_t)width * sizeof *line);
    for (int64_t o = 0; o < w->n; o++)
        for (int32_t i = 0; i < w->columns[o]; i++) line[w->from[o] + i] += dy[o];
    for (int64_t i = first + from; i < first + to; i++)
        if (i >= t->h && i < t->h + rows) add_row(line, band + (i - t->h) * width, width);
}

/* Where windows lie in a row of x: none are dilated. */
static void find_columns(const mica_pool_axis *a, int32_t *first, int32_t *columns)
{
    int64_t from = -a->pad;
    for (int64_t o = 0; o < a->y; o++, from += a->stride) {
        int64_t start = from > 0 ? from : 0, end = from + a->window;
        if (end > a->x) end = a->x;
        first[o] = (int32_t)(start < a->x ? start : 0);
        columns[o] = (int32_t)(start < end ? end - start : 0);
    }
}

/* Asks for what the rows below take. */
static void ask_rows(const mica_pool_call *k, int64_t at, int64_t index_at)
{
    const mica_pool_state *s = k->state;
    int64_t n = s->axes[2].y, size = mica_dtype_bits(s->type) / 8;
    mica_fetch_ahead((const char *)k->in + at * size + MICA_AHEAD, least(n * size, MICA_AHEAD));
    if (s->mode != MICA_POOL_MAX) return;
    size = mica_dtype_bits(s->index_type) / 8;
    mica_fetch_ahead((const char *)k->indices + index_at * size + MICA_AHEAD,
                     least(n * size, MICA_AHEAD));
}

void mica_pool_band_tile(const mica_pool_call *k, const mica_pool_tile *t, int64_t rows,
                         mica_pool_buffers *b)
{
    const mica_pool_state *s = k->state;
    const mica_pool_axis *a = s->axes;
    int64_t width = a[2].x, cells = rows * width, h_from, h_to, unused;
    windows w = {.from = b->from, .columns = b->to, .n = a[2].y, .width = (uint32_t)width};
    w.inverse = (((uint64_t)1 << 32) + (uint64_t)width - 1) / (uint64_t)width;
    memset(b->result, 0, (size_t)(cells + 1) * sizeof(float));
    mica_pool_covering(&a[1], t->h, &h_from, &unused);
    mica_pool_covering(&a[1], t->h + rows - 1, &unused, &h_to);
    find_columns(&a[2], b->from, b->to);
    find_usual(&a[2], &w);
    if (s->mode != MICA_POOL_MAX) {
        mica_pool_tile all = {.wn = a[2].y};
        mica_pool_find_divisors(s, &all, b);
    }
    for (int64_t h = h_from; h < h_to; h++) {
        int64_t at = t->n * s->y[0] + t->c * s->y[1] + h * s->y[3];
        ask_rows(k, at, t->n * s->i[0] + t->c * s->i[1] + h * s->i[3]);
        mica_pool_load(s, k->in, at, s->y, 1, a[2].y, source_of(b));
        if (s->mode == MICA_POOL_MAX)
            add_maxima(k, t, h, rows, &w, b);
        else
            add_averages(k, t, h, rows, &w, b);
    }
    mica_pool_tile row = *t;
    bool whole = s->x[3] == width && s->x[4] == 1;
    int64_t at = t->n * s->x[0] + t->c * s->x[1] + t->h * s->x[3];
    if (whole) mica_pool_store_run(k, at, 1, b->result, cells);
    for (int64_t r = 0; !whole && r < rows; r++, row.h++)
        mica_pool_store_tile(k, &row, s->x, (float *)b->result + r * width);
}
