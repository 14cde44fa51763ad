/* SPDX-License-Identifier: Apache-2.0
 * Pooling forward on the CPU where all windows are alike and small, in f32 and bf16. Adjacent
 * channels: three taps at a time, of averages ten. Adjacent columns: down the window's rows first,
 * as many at a time, then along the row that results. */
#include "ops/pool/cpu/pool_cpu.h"
#include "ops/convert/cpu/bf16.h"
#include "cpu/cpu.h"
#include "cpu/stream.h"

#include <math.h>
#include <string.h>

#define INLINE __attribute__((always_inline)) static inline

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

enum { LANES = 16, TOGETHER = 3, MOST_ROWS = 16, MOST_TAPS = 64 };
enum { STREAMS = 10 };  /* taps summed at a time: of memory, no more streams are read well */
enum { FEW_TAPS = 32 }; /* of f32, whose others are taken one by one, in the order of memory */

/* Columns of x under n windows. */
static int64_t window_columns(const mica_pool_axis *a, int64_t n)
{
    return (n - 1) * a->stride + (a->window - 1) * a->dilation + 1;
}

/* Whole vectors of results: those past the last are written over by the next row's, or lost. */
static int64_t whole(int64_t n)
{
    return (n + LANES - 1) / LANES * LANES;
}

bool mica_pool_window_fits(const mica_pool_state *s)
{
    const mica_pool_axis *a = s->axes;
    bool adaptive = a[0].adaptive || a[1].adaptive || a[2].adaptive;
    if (s->backward || s->wide || s->runs || adaptive) return false;
    if (s->type != MICA_F32 && s->type != MICA_BF16) return false;
    /* factors first: the product of three may overflow */
    if (a[0].window > MOST_ROWS || a[1].window > MOST_ROWS || a[2].window > MOST_TAPS) return false;
    int64_t rows = a[0].window * a[1].window;
    bool few = s->type == MICA_F32 && (s->mode == MICA_POOL_MAX || !s->channels);
    int64_t most = few ? FEW_TAPS : MOST_TAPS;
    if (rows > MOST_ROWS || rows * a[2].window > most) return false;
    if (s->channels) return s->x[1] == 1;
    return s->x[4] == 1 && window_columns(&a[2], whole(s->tile_w)) <= MICA_POOL_SOURCE;
}

/* ---- elements ---- */

INLINE float element(const void *data, int64_t i, bool bf16)
{
    if (!bf16) return ((const float *)data)[i];
    return mica_bf16_value(((const uint16_t *)data)[i]);
}

/* Places in memory that are pooled together, element by element. */
typedef struct taps {
    const void *data[MOST_TAPS];
    int32_t index[MOST_TAPS]; /* in the plane, of element 0 */
    int count;
} taps;

/* Takes `count` taps, a constant, from the k-th on; the first ones start the results. The index of
 * an element grows by `step` per element. */
INLINE void max_some(const taps *t, int k, bool start, int count, int64_t n, int32_t step,
                     float *restrict best, int32_t *restrict index, bool bf16)
{
    const void *data[TOGETHER];
    int32_t place[TOGETHER];
    for (int i = 0; i < count; i++) data[i] = t->data[k + i], place[i] = t->index[k + i];
#pragma omp simd
    for (int64_t l = 0; l < n; l++) {
        float b = start ? element(data[0], l, bf16) : best[l];
        int32_t from = !index ? 0 : start ? place[0] + (int32_t)l * step : index[l];
        if (!start)
            from =
                mica_pool_max_of(&b, element(data[0], l, bf16), from, place[0] + (int32_t)l * step);
        if (count > 1)
            from =
                mica_pool_max_of(&b, element(data[1], l, bf16), from, place[1] + (int32_t)l * step);
        if (count > 2)
            from =
                mica_pool_max_of(&b, element(data[2], l, bf16), from, place[2] + (int32_t)l * step);
        best[l] = b;
        if (index) index[l] = from;
    }
}

INLINE void max_run(const taps *t, int64_t n, int32_t step, float *best, int32_t *index, bool bf16)
{
    int k = t->count % TOGETHER;
    if (k == 1) max_some(t, 0, true, 1, n, step, best, index, bf16);
    if (k == 2) max_some(t, 0, true, 2, n, step, best, index, bf16);
    if (k == 0) max_some(t, 0, true, k = TOGETHER, n, step, best, index, bf16);
    for (; k < t->count; k += TOGETHER) max_some(t, k, false, TOGETHER, n, step, best, index, bf16);
}

enum { SUMS = MICA_NARROW / 4 };
typedef float lanes __attribute__((vector_size(MICA_NARROW), aligned(4), may_alias));
typedef uint32_t words __attribute__((vector_size(MICA_NARROW), aligned(4), may_alias));
typedef uint16_t halves __attribute__((vector_size(MICA_NARROW / 2), aligned(2), may_alias));

/* *sum += SUMS elements from the i-th on */
INLINE void add_vector(lanes *sum, const void *data, int64_t i, bool bf16)
{
    if (!bf16) {
        *sum += *(const lanes *)((const float *)data + i);
        return;
    }
    const halves *h = (const halves *)((const uint16_t *)data + i);
    *sum += (lanes)(__builtin_convertvector(*h, words) << 16);
}

/* Taps [from, to) of so many vectors, a constant, in registers. */
INLINE void sum_block(const taps *t, int from, int to, int64_t at, int vectors, float *sum,
                      bool bf16)
{
    lanes *results = (lanes *)(sum + at);
    lanes a = {0}, b = {0}, c = {0}, d = {0};
    if (from > 0) {
        a = results[0];
        if (vectors > 1) b = results[1], c = results[2], d = results[3];
    }
    for (int k = from; k < to; k++) {
        const void *data = t->data[k];
        add_vector(&a, data, at, bf16);
        if (vectors == 1) continue;
        add_vector(&b, data, at + SUMS, bf16);
        add_vector(&c, data, at + 2 * SUMS, bf16);
        add_vector(&d, data, at + 3 * SUMS, bf16);
    }
    results[0] = a;
    if (vectors > 1) results[1] = b, results[2] = c, results[3] = d;
}

/* Some taps of some results, then of the next; what is no whole vector a result at a time. */
INLINE void sum_blocks(const taps *t, int from, int to, int64_t n, float *sum, bool bf16)
{
    int64_t i = 0;
    for (; i + 4 * SUMS <= n; i += 4 * SUMS) sum_block(t, from, to, i, 4, sum, bf16);
    for (; i + SUMS <= n; i += SUMS) sum_block(t, from, to, i, 1, sum, bf16);
    for (; i < n; i++) {
        float b = from > 0 ? sum[i] : 0;
        for (int k = from; k < to; k++) b += element(t->data[k], i, bf16);
        sum[i] = b;
    }
}

INLINE void sum_run(const taps *t, int64_t n, float *sum, bool bf16)
{
    for (int k = 0; k < t->count; k += STREAMS)
        sum_blocks(t, k, k + STREAMS < t->count ? k + STREAMS : t->count, n, sum, bf16);
}

/* Maxima (index may be NULL) or sums of n elements; with no tap -inf and index -1, or 0. */
MICA_CLONES
static void take_taps(const taps *t, mica_pool_mode mode, bool bf16, int64_t n, int32_t step,
                      float *best, int32_t *index)
{
    if (t->count == 0) {
        for (int64_t i = 0; i < n; i++) best[i] = mode == MICA_POOL_MAX ? -INFINITY : 0;
        for (int64_t i = 0; index && i < n; i++) index[i] = -1;
    } else if (mode != MICA_POOL_MAX) {
        bf16 ? sum_run(t, n, best, true) : sum_run(t, n, best, false);
    } else if (!index) {
        bf16 ? max_run(t, n, 0, best, NULL, true) : max_run(t, n, 0, best, NULL, false);
    } else {
        bf16 ? max_run(t, n, step, best, index, true) : max_run(t, n, step, best, index, false);
    }
}

/* ---- rows of the window ---- */

static const void *at_element(const mica_pool_state *s, const void *data, int64_t i)
{
    return (const char *)data + i * (s->type == MICA_F32 ? 4 : 2);
}

/* The window's rows that lie in x, at column 0 and channel t->c. */
static void find_rows(const mica_pool_call *k, const mica_pool_tile *t, taps *rows)
{
    const mica_pool_state *s = k->state;
    const mica_pool_axis *a = s->axes;
    int64_t d_from, d_to, h_from, h_to;
    int64_t base = t->n * s->x[0] + t->c * s->x[1];
    mica_pool_valid(&a[0], t->d, &d_from, &d_to);
    mica_pool_valid(&a[1], t->h, &h_from, &h_to);
    rows->count = 0;
    for (int64_t i = d_from; i < d_to; i++)
        for (int64_t j = h_from; j < h_to; j++) {
            int64_t d = mica_pool_first(&a[0], t->d) + i * a[0].dilation;
            int64_t h = mica_pool_first(&a[1], t->h) + j * a[1].dilation;
            rows->data[rows->count] = at_element(s, k->in, base + d * s->x[2] + h * s->x[3]);
            rows->index[rows->count++] = (int32_t)((d * a[1].x + h) * a[2].x);
        }
}

/* Asks for elements of the rows that the windows below take and these do not, from `first` on. */
static void ask_rows(const mica_pool_state *s, const taps *rows, int64_t first, int64_t n)
{
    int64_t fresh = least(s->axes[1].stride, rows->count), size = s->type == MICA_F32 ? 4 : 2;
    int64_t bytes = least(n * size, MICA_AHEAD);
    for (int r = rows->count - (int)fresh; r < rows->count; r++)
        mica_fetch_ahead((const char *)at_element(s, rows->data[r], first) + MICA_AHEAD, bytes);
}

/* ---- channels ---- */

/* Window o's taps: of rows, columns [from, to). */
static void find_taps(const mica_pool_state *s, const taps *rows, int64_t o, int64_t from,
                      int64_t to, taps *window)
{
    const mica_pool_axis *a = &s->axes[2];
    window->count = 0;
    for (int r = 0; r < rows->count; r++)
        for (int64_t i = from; i < to; i++) {
            int64_t column = mica_pool_first(a, o) + i * a->dilation;
            window->data[window->count] = at_element(s, rows->data[r], column * s->x[4]);
            window->index[window->count++] = rows->index[r] + (int32_t)column;
        }
}

/* The taps of the next window, where that is whole as this one. */
static void move_taps(const mica_pool_state *s, taps *window)
{
    int64_t step = s->axes[2].stride;
    for (int k = 0; k < window->count; k++) {
        window->data[k] = at_element(s, window->data[k], step * s->x[4]);
        window->index[k] += (int32_t)step;
    }
}

static void channels_tile(const mica_pool_call *k, const mica_pool_tile *t, const taps *rows,
                          float *best, int32_t *index)
{
    const mica_pool_state *s = k->state;
    const mica_pool_axis *a = &s->axes[2];
    const int64_t reach = (a->window - 1) * a->dilation;
    const int64_t step = a->stride * t->cn;
    bool whole_before = false, near = s->x[4] == t->cn && step <= MICA_AHEAD / 4;
    taps window;
    for (int64_t o = 0; o < t->wn; o++) {
        int64_t first = mica_pool_first(a, t->w + o), from, to;
        bool is_whole = first >= 0 && first + reach < a->x;
        if (is_whole && whole_before) {
            move_taps(s, &window);
        } else {
            mica_pool_valid(a, t->w + o, &from, &to);
            find_taps(s, rows, t->w + o, from, to, &window);
        }
        whole_before = is_whole;
        if (near) ask_rows(s, rows, first * s->x[4], step);
        take_taps(&window, s->mode, s->type == MICA_BF16, t->cn, 0, best + o * t->cn,
                  index ? index + o * t->cn : NULL);
    }
}

/* ---- columns ---- */

/* One tap of n results. Equal values: the smaller index wins, for rows came first. */
INLINE void max_along(const float *line, const int32_t *places, int64_t stride, int64_t n,
                      float *restrict best, int32_t *restrict index)
{
    if (!places) {
        for (int64_t i = 0; i < n; i++) {
            float v = line[i * stride];
            best[i] = mica_pool_beats(v, best[i]) ? v : best[i];
        }
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        float v = line[i * stride], b = best[i];
        int32_t at = places[i * stride], old = index[i];
        bool same = (v == b) | ((v != v) & (b != b));
        bool take = (at >= 0) & ((old < 0) | mica_pool_beats(v, b) | (same & (at < old)));
        best[i] = take ? v : b;
        index[i] = take ? at : old;
    }
}

INLINE void sum_along(const float *line, int64_t stride, int64_t n, float *restrict sum)
{
    for (int64_t i = 0; i < n; i++) sum[i] += line[i * stride];
}

/* All taps of a result at once: `stride` and `taps` are constants. */
INLINE void short_windows(mica_pool_mode mode, const float *line, int stride, int taps, int64_t n,
                          float *restrict best)
{
    for (int64_t i = 0; i < n; i++) {
        float b = line[i * stride];
        for (int k = 1; k < taps; k++) {
            float v = line[i * stride + k];
            if (mode == MICA_POOL_MAX)
                mica_pool_max_of(&b, v, 0, 0);
            else
                b += v;
        }
        best[i] = b;
    }
}

/* The usual windows, without indices; false: it is another. */
INLINE bool usual_line(const mica_pool_axis *a, mica_pool_mode mode, const float *line, int64_t n,
                       float *best)
{
    if (a->stride != 2 || a->dilation != 1) return false;
    if (a->window == 2)
        short_windows(mode, line, 2, 2, n, best);
    else if (a->window == 3)
        short_windows(mode, line, 2, 3, n, best);
    else
        return false;
    return true;
}

/* The stride is a constant at the calls that matter, so that those loops vectorise. */
INLINE void along(const mica_pool_axis *a, mica_pool_mode mode, const float *line,
                  const int32_t *places, int64_t stride, int64_t n, float *best, int32_t *index)
{
    for (int64_t k = 0; k < a->window; k++) {
        int64_t at = k * a->dilation;
        if (mode == MICA_POOL_MAX)
            max_along(line + at, places ? places + at : NULL, stride, n, best, index);
        else
            sum_along(line + at, stride, n, best);
    }
}

MICA_CLONES
static void take_line(const mica_pool_axis *a, mica_pool_mode mode, const float *line,
                      const int32_t *places, int64_t n, float *best, int32_t *index)
{
    bool max = mode == MICA_POOL_MAX;
    if (!places && max && usual_line(a, MICA_POOL_MAX, line, n, best)) return;
    if (!max && usual_line(a, MICA_POOL_AVG, line, n, best)) return;
    for (int64_t i = 0; i < n; i++) best[i] = max ? -INFINITY : 0;
    for (int64_t i = 0; places && i < n; i++) index[i] = -1;
    if (a->stride == 1)
        along(a, mode, line, places, 1, n, best, index);
    else if (a->stride == 2)
        along(a, mode, line, places, 2, n, best, index);
    else
        along(a, mode, line, places, a->stride, n, best, index);
}

static void fill_edge(float *line, int32_t *places, int64_t n, float value)
{
    for (int64_t i = 0; i < n; i++) line[i] = value;
    for (int64_t i = 0; places && i < n; i++) places[i] = -1;
}

static void columns_tile(const mica_pool_call *k, const mica_pool_tile *t, taps *rows,
                         mica_pool_buffers *b, float *best, int32_t *index)
{
    const mica_pool_state *s = k->state;
    const mica_pool_axis *a = &s->axes[2];
    float *line = (float *)b->source;
    int32_t *places = index ? b->hits : NULL;
    int64_t first = mica_pool_first(a, t->w), columns = window_columns(a, whole(t->wn));
    int64_t from = first < 0 ? least(-first, columns) : 0;
    int64_t to = first + columns > a->x ? a->x - first : columns;
    if (to < from) to = from;
    float outside = s->mode == MICA_POOL_MAX ? -INFINITY : 0;
    fill_edge(line, places, from, outside);
    fill_edge(line + to, places ? places + to : NULL, columns - to, outside);
    for (int r = 0; r < rows->count; r++) {
        rows->data[r] = at_element(s, rows->data[r], first + from);
        rows->index[r] += (int32_t)(first + from);
    }
    for (int64_t c = 0; c < t->cn; c++) {
        ask_rows(s, rows, 0, to - from);
        take_taps(rows, s->mode, s->type == MICA_BF16, to - from, 1, line + from,
                  places ? places + from : NULL);
        take_line(a, s->mode, line, places, whole(t->wn), best + c * t->wn,
                  index ? index + c * t->wn : NULL);
        for (int r = 0; r < rows->count; r++) rows->data[r] = at_element(s, rows->data[r], s->x[1]);
    }
}

void mica_pool_window_tile(const mica_pool_call *k, const mica_pool_tile *t, mica_pool_buffers *b,
                           float *best, int32_t *index)
{
    taps rows;
    find_rows(k, t, &rows);
    if (k->state->channels)
        channels_tile(k, t, &rows, best, index);
    else
        columns_tile(k, t, &rows, b, best, index);
}
