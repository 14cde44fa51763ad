/* SPDX-License-Identifier: Apache-2.0
 * Pooling forward on the CPU: a tile takes one tap of all its windows after the other, in the order
 * of memory, so that the first of equal values wins. */
#include "ops/pool/cpu/pool_cpu.h"
#include "cpu/stream.h"

#include <math.h>
#include <string.h>

/* Source elements of a tile in one row of x. */
typedef struct row {
    const void *data; /* column `first` of the tile's first channel */
    int64_t channel_step, column_step;
    int64_t first;
    int64_t index; /* of column `first` in its plane */
} row;

static void start(const mica_pool_state *s, void *best, void *index, int64_t n)
{
    double least = s->mode == MICA_POOL_MAX ? -INFINITY : 0;
    for (int64_t i = 0; i < n; i++) {
        if (s->wide)
            ((double *)best)[i] = least;
        else
            ((float *)best)[i] = (float)least;
    }
    if (index) memset(index, 0xff, (size_t)n * (s->wide ? sizeof(int64_t) : sizeof(int32_t)));
}

static bool is_native(const mica_pool_state *s)
{
    return s->type == (s->wide ? MICA_F64 : MICA_F32);
}

/* Columns [first, end) of row d, h of x: where they are, or converted. */
static row fetch(const mica_pool_call *k, const mica_pool_tile *t, int64_t d, int64_t h,
                 int64_t first, int64_t end, void *buffer)
{
    const mica_pool_state *s = k->state;
    int64_t at = t->n * s->x[0] + t->c * s->x[1] + d * s->x[2] + h * s->x[3] + first * s->x[4];
    row r = {.first = first, .index = (d * s->axes[1].x + h) * s->axes[2].x + first};
    if (is_native(s)) {
        r.data = mica_pool_cell(s->wide, k->in, at);
        r.channel_step = s->x[1], r.column_step = s->x[4];
        return r;
    }
    mica_pool_load(s, k->in, at, s->x, t->cn, end - first, buffer);
    r.data = buffer;
    r.channel_step = s->channels ? 1 : end - first;
    r.column_step = s->channels ? t->cn : 1;
    return r;
}

/* Results `from` to `to` of the tile take columns from `column` on, `step` apart. */
static void take(const mica_pool_state *s, const mica_pool_tile *t, const row *r, int64_t from,
                 int64_t to, int64_t column, int64_t step, void *best, void *index)
{
    int64_t skip = column - r->first;
    const void *source = mica_pool_cell(s->wide, r->data, skip * r->column_step);
    int64_t lead = s->channels ? from * t->cn : from, wn = to - from;
    mica_pool_lanes l = {.outer = t->cn,
                         .inner = wn,
                         .to = t->wn,
                         .from_outer = r->channel_step,
                         .from_inner = r->column_step * step,
                         .index_inner = step};
    if (s->channels)
        l = (mica_pool_lanes){.outer = wn,
                              .inner = t->cn,
                              .to = t->cn,
                              .from_outer = r->column_step * step,
                              .from_inner = r->channel_step,
                              .index_outer = step};
    void *results = mica_pool_cell(s->wide, best, lead);
    if (s->mode == MICA_POOL_MAX)
        mica_pool_take_max(s->wide, &l, results,
                           index ? mica_pool_cell(s->wide, index, lead) : NULL, source,
                           r->index + skip);
    else
        mica_pool_take_sum(s->wide, &l, results, source);
}

/* Windows of equal size: tap by tap over all of the tile's columns, as many taps at a time as fit
 * the source buffer. */
static void take_row(const mica_pool_call *k, const mica_pool_tile *t, int64_t d, int64_t h,
                     mica_pool_buffers *b, void *index)
{
    const mica_pool_state *s = k->state;
    const mica_pool_axis *a = &s->axes[2];
    int64_t room = MICA_POOL_SOURCE / t->cn - 1 - (t->wn - 1) * a->stride;
    int64_t chunk = room / a->dilation + 1;
    int64_t start_column = mica_pool_first(a, t->w);
    for (int64_t tap = 0; tap < a->window; tap += chunk) {
        int64_t taps = a->window - tap < chunk ? a->window - tap : chunk;
        int64_t first = start_column + tap * a->dilation;
        int64_t end = first + (taps - 1) * a->dilation + (t->wn - 1) * a->stride + 1;
        if (end <= 0 || first >= a->x) continue;
        row r = fetch(k, t, d, h, first > 0 ? first : 0, end < a->x ? end : a->x, b->source);
        for (int64_t i = 0; i < taps; i++) {
            int64_t column = first + i * a->dilation;
            int64_t from = column < 0 ? (-column - 1) / a->stride + 1 : 0;
            int64_t to = column < a->x ? (a->x - 1 - column) / a->stride + 1 : 0;
            if (to > t->wn) to = t->wn;
            if (from < to)
                take(s, t, &r, from, to, column + from * a->stride, a->stride, b->result, index);
        }
    }
}

/* Adaptive windows, channels adjacent: window by window. */
static void take_adaptive_row(const mica_pool_call *k, const mica_pool_tile *t, int64_t d,
                              int64_t h, mica_pool_buffers *b, void *index)
{
    const mica_pool_state *s = k->state;
    int64_t chunk = MICA_POOL_SOURCE / t->cn;
    for (int64_t o = 0; o < t->wn; o++) {
        int64_t column = mica_pool_first(&s->axes[2], t->w + o);
        int64_t end = column + mica_pool_taps(&s->axes[2], t->w + o);
        for (; column < end; column += chunk) {
            int64_t last = end - column < chunk ? end : column + chunk;
            row r = fetch(k, t, d, h, column, last, b->source);
            for (int64_t i = column; i < last; i++)
                take(s, t, &r, o, o + 1, i, 1, b->result, index);
        }
    }
}

/* ---- runs: a window on its own ---- */

static void take_run(const mica_pool_call *k, int64_t offset, int64_t n, int64_t first_index,
                     void *best, void *index, void *buffer)
{
    const mica_pool_state *s = k->state;
    for (int64_t i = 0; i < n; i += MICA_POOL_SOURCE) {
        int64_t m = n - i < MICA_POOL_SOURCE ? n - i : MICA_POOL_SOURCE, step = s->x[4];
        const void *source = mica_pool_cell(s->wide, k->in, offset + i * step);
        if (!is_native(s)) {
            long long strides[5] = {0, 0, 0, 0, step};
            mica_pool_load(s, k->in, offset + i * step, strides, 1, m, buffer);
            source = buffer, step = 1;
        }
        if (s->mode == MICA_POOL_MAX)
            mica_pool_run_max(s->wide, best, index, source, step, m, first_index + i);
        else
            mica_pool_run_sum(s->wide, best, source, step, m);
    }
}

static double cell(bool wide, const void *values, int64_t i)
{
    return wide ? ((const double *)values)[i] : (double)((const float *)values)[i];
}
static int64_t place(bool wide, const void *indices, int64_t i)
{
    return wide ? ((const int64_t *)indices)[i] : ((const int32_t *)indices)[i];
}
static void set_cell(bool wide, void *values, int64_t i, double v)
{
    if (wide)
        ((double *)values)[i] = v;
    else
        ((float *)values)[i] = (float)v;
}
static void set_place(bool wide, void *indices, int64_t i, int64_t v)
{
    if (wide)
        ((int64_t *)indices)[i] = v;
    else
        ((int32_t *)indices)[i] = (int32_t)v;
}

/* Adds the partial sums up in pairs: the order depends on nothing. */
static void merge_sums(bool wide, void *parts, void *result, int64_t at)
{
    for (int width = MICA_POOL_PARTS / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++)
            set_cell(wide, parts, i, cell(wide, parts, i) + cell(wide, parts, i + width));
    set_cell(wide, result, at, cell(wide, parts, 0));
}

/* The largest, of equal ones the lowest index; the NaN with the lowest index. */
static void merge_maxima(bool wide, const void *parts, const void *places, void *result,
                         void *index, int64_t at)
{
    double best = -INFINITY;
    int64_t winner = -1;
    for (int i = 0; i < MICA_POOL_PARTS; i++) {
        double v = cell(wide, parts, i);
        int64_t p = place(wide, places, i);
        if (p < 0) continue;
        bool same = v == best || (v != v && best != best);
        bool beats = best == best && (v != v || v > best);
        if (winner >= 0 && !beats && !(same && p < winner)) continue;
        best = v, winner = p;
    }
    set_cell(wide, result, at, best);
    if (index) set_place(wide, index, at, winner);
}

/* A window's rows as runs. */
typedef struct runs {
    int64_t planes, rows, n; /* rows of n elements */
    int64_t d_step, h_step;
    int64_t at, index, d_index, h_index; /* offset and index of the first element; their steps */
} runs;

static runs find_runs(const mica_pool_state *s, const mica_pool_tile *t, int64_t o)
{
    const int64_t window[3] = {t->d, t->h, t->w + o};
    const mica_pool_axis *ax = s->axes;
    int64_t first[3], n[3];
    for (int a = 0; a < 3; a++) {
        int64_t from, to;
        mica_pool_valid(&ax[a], window[a], &from, &to);
        first[a] = mica_pool_first(&ax[a], window[a]) + from * ax[a].dilation;
        n[a] = to - from;
    }
    runs r = {.planes = n[0],
              .rows = n[1],
              .n = n[2],
              .d_step = ax[0].dilation * s->x[2],
              .h_step = ax[1].dilation * s->x[3],
              .d_index = ax[0].dilation * ax[1].x * ax[2].x,
              .h_index = ax[1].dilation * ax[2].x};
    r.at = first[0] * s->x[2] + first[1] * s->x[3] + first[2] * s->x[4];
    r.index = (first[0] * ax[1].x + first[1]) * ax[2].x + first[2];
    /* Whole rows that follow each other are one run. */
    if (r.n == ax[2].x && r.h_step == r.n * s->x[4] && r.h_index == r.n) {
        r.n *= r.rows;
        r.rows = r.rows > 0;
    }
    return r;
}

static void take_window(const mica_pool_call *k, const runs *r, int64_t base, int64_t result,
                        mica_pool_buffers *b, void *index)
{
    const mica_pool_state *s = k->state;
    MICA_ALIGNED double parts[MICA_POOL_PARTS];
    int64_t places[MICA_POOL_PARTS];
    bool max = s->mode == MICA_POOL_MAX;
    start(s, parts, max ? places : NULL, MICA_POOL_PARTS);
    for (int64_t i = 0; i < r->planes; i++)
        for (int64_t j = 0; j < r->rows; j++)
            take_run(k, base + r->at + i * r->d_step + j * r->h_step, r->n,
                     r->index + i * r->d_index + j * r->h_index, parts, places, b->source);
    if (max)
        merge_maxima(s->wide, parts, places, b->result, index, result);
    else
        merge_sums(s->wide, parts, b->result, result);
}

/* The usual case, averages over a whole plane: one run per channel, in place or, a block of
 * channels at a time, converted. */
static void sum_runs(const mica_pool_call *k, const mica_pool_tile *t, const runs *r, int64_t o,
                     mica_pool_buffers *b)
{
    const mica_pool_state *s = k->state;
    int64_t base = t->n * s->x[0] + t->c * s->x[1] + r->at;
    int64_t block = is_native(s) ? t->cn : MICA_AHEAD / 2 / r->n;
    if (block < 1) block = 1;
    for (int64_t c = 0; c < t->cn; c += block) {
        int64_t cn = t->cn - c < block ? t->cn - c : block, at = base + c * s->x[1];
        mica_pool_lanes l = {
            .outer = cn, .inner = r->n, .to = t->wn, .from_outer = s->x[1], .from_inner = s->x[4]};
        const void *source = mica_pool_cell(s->wide, k->in, at);
        if (!is_native(s)) {
            int64_t bytes = mica_dtype_bits(s->type) / 8;
            mica_fetch_ahead((const char *)k->in + at * bytes + MICA_AHEAD, cn * r->n * bytes);
            mica_pool_load(s, k->in, at, s->x, cn, r->n, b->source);
            source = b->source;
            l.from_outer = r->n, l.from_inner = 1;
        }
        mica_pool_run_sums(s->wide, &l, mica_pool_cell(s->wide, b->result, c * t->wn + o), source);
    }
}

static void take_windows(const mica_pool_call *k, const mica_pool_tile *t, mica_pool_buffers *b,
                         void *index)
{
    const mica_pool_state *s = k->state;
    for (int64_t o = 0; o < t->wn; o++) {
        runs r = find_runs(s, t, o);
        bool one = r.planes == 1 && r.rows == 1 && r.n > 0;
        if (s->mode != MICA_POOL_MAX && one && (is_native(s) || r.n <= MICA_POOL_SOURCE)) {
            sum_runs(k, t, &r, o, b);
            continue;
        }
        for (int64_t c = 0; c < t->cn; c++)
            take_window(k, &r, t->n * s->x[0] + (t->c + c) * s->x[1], c * t->wn + o, b, index);
    }
}

/* ---- results ---- */

void mica_pool_find_divisors(const mica_pool_state *s, const mica_pool_tile *t,
                             mica_pool_buffers *b)
{
    bool valid = s->mode == MICA_POOL_AVG_VALID;
    b->alike = true;
    for (int64_t o = 0; o < t->wn; o++) {
        b->divisor[o] = (double)mica_pool_divisor(&s->axes[2], t->w + o, valid);
        b->alike &= b->divisor[o] == b->divisor[0];
    }
}

/* Windows without an element of x have the sum 0, and so the average 0. */
static void divide(const mica_pool_state *s, const mica_pool_tile *t, const mica_pool_buffers *b,
                   void *results)
{
    bool valid = s->mode == MICA_POOL_AVG_VALID;
    double rows = (double)mica_pool_divisor(&s->axes[0], t->d, valid) *
                  (double)mica_pool_divisor(&s->axes[1], t->h, valid);
    if (b->alike) {
        double n = rows * b->divisor[0];
        mica_pool_divide(s->wide, results, t->cn * t->wn, n > 0 ? n : 1);
    } else if (!s->channels) {
        mica_pool_divide_rows(s->wide, results, t->cn, t->wn, b->divisor, rows);
    } else {
        for (int64_t o = 0; o < t->wn; o++) {
            double n = rows * b->divisor[o];
            mica_pool_divide(s->wide, mica_pool_cell(s->wide, results, o * t->cn), t->cn,
                             n > 0 ? n : 1);
        }
    }
}

/* As s64 past the caches, a piece at a time. */
static void stream_indices(int64_t *to, const int32_t *found, int64_t n)
{
    enum { PIECE = 256 };
    MICA_ALIGNED int64_t piece[PIECE];
    for (int64_t i = 0; i < n; i += PIECE) {
        int64_t m = n - i < PIECE ? n - i : PIECE;
        mica_pool_put_indices_s64(false, found + i, m, piece, 1);
        mica_stream_copy(to + i, piece, (size_t)m * sizeof *piece);
    }
}

static void store_indices(const mica_pool_call *k, const mica_pool_tile *t, const void *index)
{
    const mica_pool_state *s = k->state;
    int64_t at = t->n * s->i[0] + t->c * s->i[1] + t->d * s->i[2] + t->h * s->i[3] + t->w * s->i[4];
    int64_t outer = s->channels ? t->wn : t->cn, inner = s->channels ? t->cn : t->wn;
    int64_t outer_step = s->i[s->channels ? 4 : 1], inner_step = s->i[s->channels ? 1 : 4];
    mica_pool_join(&outer, &outer_step, &inner, &inner_step);
    bool stream = s->past_cache && !s->wide && inner_step == 1 && inner >= MICA_POOL_LEAST_STREAM;
    for (int64_t i = 0; i < outer; i++, at += outer_step) {
        const char *found = (const char *)index + i * inner * (s->wide ? 8 : 4);
        if (s->index_type == MICA_S32)
            mica_pool_put_indices_s32(s->wide, found, inner, (int32_t *)k->indices + at,
                                      inner_step);
        else if (stream)
            stream_indices((int64_t *)k->indices + at, (const int32_t *)(const void *)found, inner);
        else
            mica_pool_put_indices_s64(s->wide, found, inner, (int64_t *)k->indices + at,
                                      inner_step);
    }
}

static void take_rows(const mica_pool_call *k, const mica_pool_tile *t, mica_pool_buffers *b,
                      void *index)
{
    const mica_pool_axis *ax = k->state->axes;
    int64_t d_from, d_to, h_from, h_to;
    mica_pool_valid(&ax[0], t->d, &d_from, &d_to);
    mica_pool_valid(&ax[1], t->h, &h_from, &h_to);
    for (int64_t kd = d_from; kd < d_to; kd++)
        for (int64_t kh = h_from; kh < h_to; kh++) {
            int64_t d = mica_pool_first(&ax[0], t->d) + kd * ax[0].dilation;
            int64_t h = mica_pool_first(&ax[1], t->h) + kh * ax[1].dilation;
            if (ax[2].adaptive)
                take_adaptive_row(k, t, d, h, b, index);
            else
                take_row(k, t, d, h, b, index);
        }
}

static void forward_row(const mica_pool_call *k, const mica_pool_tile *t, mica_pool_buffers *b)
{
    const mica_pool_state *s = k->state;
    void *index = k->indices ? b->index : NULL;
    if (s->planes) {
        mica_pool_planes_forward(k, t, b);
    } else if (s->window) {
        mica_pool_window_tile(k, t, b, (float *)b->result, index);
    } else {
        start(s, b->result, index, t->cn * t->wn);
        if (s->runs)
            take_windows(k, t, b, index);
        else
            take_rows(k, t, b, index);
    }
    if (s->mode != MICA_POOL_MAX) divide(s, t, b, b->result);
    mica_pool_store_tile(k, t, s->y, b->result);
    if (index) store_indices(k, t, index);
}

/* Joined rows: stored at once. */
static void forward_rows(const mica_pool_call *k, const mica_pool_tile *t, int64_t rows,
                         mica_pool_buffers *b)
{
    const mica_pool_state *s = k->state;
    mica_pool_tile row = *t, all = *t;
    float *best = (float *)b->result;
    int32_t *index = k->indices ? (int32_t *)b->index : NULL;
    for (int64_t i = 0; i < rows; i++, row.h++) {
        int64_t at = i * t->wn;
        mica_pool_window_tile(k, &row, b, best + at, index ? index + at : NULL);
        if (s->mode != MICA_POOL_MAX) divide(s, &row, b, best + at);
    }
    all.wn = rows * t->wn;
    mica_pool_store_tile(k, &all, s->y, best);
    if (index) store_indices(k, &all, index);
}

void mica_pool_forward_tile(const mica_pool_call *k, const mica_pool_tile *t, int64_t rows,
                            mica_pool_buffers *b)
{
    mica_pool_tile row = *t;
    if (k->state->joined) {
        forward_rows(k, t, rows, b);
        return;
    }
    for (; row.h < t->h + rows; row.h++) forward_row(k, &row, b);
}
