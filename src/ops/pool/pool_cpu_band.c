/* SPDX-License-Identifier: Apache-2.0
 * Pooling backward on the CPU where columns are adjacent: a band of whole rows of one channel of dx
 * stays in the cache while every gradient whose window reaches it is added, once per band. Windows
 * without dilation, in one or two dimensions, in f32. */
#include "ops/pool/pool_cpu.h"
#include "cpu/cpu.h"

#include <string.h>

#define INLINE __attribute__((always_inline)) static inline

/* Gradients that miss the band go to the cell behind it. */
enum { BAND = MICA_POOL_TILE * sizeof(double) / sizeof(float) - 1 };
enum { MOST_ROWS = 255 }; /* of a window: see cell_of */

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
    int64_t first;
    uint32_t rows, width, inverse; /* of x; inverse: 2^32 / width, rounded up */
    int64_t n;
} windows;

/* Where in the band the gradient of window o goes. Whether an index is one of the window's taps
 * takes a division by the width: by a product, exact as rows * width^2 is below 2^32. */
INLINE int64_t cell_of(const windows *w, int64_t o, int64_t index, int64_t cells)
{
    uint64_t in_window = (uint64_t)index - (uint64_t)(w->first + w->from[o]);
    uint32_t in = (uint32_t)in_window;
    uint32_t row = (uint32_t)((uint64_t)in * w->inverse >> 32), column = in - row * w->width;
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

static void add_maxima(const mica_pool_call *k, const mica_pool_tile *t, int64_t h, windows *w,
                       mica_pool_buffers *b, int64_t cells)
{
    const mica_pool_state *s = k->state;
    const mica_pool_axis *a = s->axes;
    int64_t from, to, start = t->h * a[2].x;
    int64_t at = t->n * s->i[0] + t->c * s->i[1] + h * s->i[3];
    mica_pool_valid(&a[1], h, &from, &to);
    w->first = (mica_pool_first(&a[1], h) + from) * a[2].x - start;
    w->rows = (uint32_t)(to - from);
    if (s->index_type == MICA_S32)
        scatter_s32(w, (const int32_t *)k->indices + at, s->i[4], start, (float *)b->source,
                    (float *)b->result, cells);
    else
        scatter_s64(w, (const int64_t *)k->indices + at, s->i[4], start, (float *)b->source,
                    (float *)b->result, cells);
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
    const float *dy = (const float *)b->source;
    float *line = b->line, *band = (float *)b->result;
    int64_t from, to, width = a[2].x, first = mica_pool_first(&a[1], h);
    bool valid = s->mode == MICA_POOL_AVG_VALID;
    mica_pool_valid(&a[1], h, &from, &to);
    mica_pool_divide_rows(false, b->source, 1, w->n, b->divisor,
                          (double)mica_pool_divisor(&a[1], h, valid));
    memset(line, 0, (size_t)width * sizeof *line);
    for (int64_t o = 0; o < w->n; o++)
        for (int32_t i = 0; i < w->columns[o]; i++) line[w->from[o] + i] += dy[o];
    for (int64_t i = first + from; i < first + to; i++)
        if (i >= t->h && i < t->h + rows) add_row(line, band + (i - t->h) * width, width);
}

static void find_columns(const mica_pool_axis *a, int32_t *first, int32_t *columns)
{
    for (int64_t o = 0; o < a->y; o++) {
        int64_t from, to;
        mica_pool_valid(a, o, &from, &to);
        first[o] = (int32_t)(mica_pool_first(a, o) + from);
        columns[o] = (int32_t)(to - from);
    }
}

void mica_pool_band_tile(const mica_pool_call *k, const mica_pool_tile *t, int64_t rows,
                         mica_pool_buffers *b)
{
    const mica_pool_state *s = k->state;
    const mica_pool_axis *a = s->axes;
    int64_t width = a[2].x, cells = rows * width, h_from, h_to, unused;
    windows w = {.from = b->from, .columns = b->to, .n = a[2].y, .width = (uint32_t)width};
    w.inverse = (uint32_t)((((uint64_t)1 << 32) + (uint64_t)width - 1) / (uint64_t)width);
    memset(b->result, 0, (size_t)(cells + 1) * sizeof(float));
    mica_pool_covering(&a[1], t->h, &h_from, &unused);
    mica_pool_covering(&a[1], t->h + rows - 1, &unused, &h_to);
    find_columns(&a[2], b->from, b->to);
    if (s->mode != MICA_POOL_MAX) {
        mica_pool_tile all = {.wn = a[2].y};
        mica_pool_find_divisors(s, &all, b->divisor);
    }
    for (int64_t h = h_from; h < h_to; h++) {
        int64_t at = t->n * s->y[0] + t->c * s->y[1] + h * s->y[3];
        mica_pool_load(s, k->in, at, s->y, 1, a[2].y, b->source);
        if (s->mode == MICA_POOL_MAX)
            add_maxima(k, t, h, &w, b, cells);
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
