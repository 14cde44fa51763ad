/* SPDX-License-Identifier: Apache-2.0
 * Transforms on the CPU, bound by memory.
 *
 * Good for everything; three ways through memory after merging dimensions:
 *   linear   one run in both tensors: memcpy, or blocks converted in the first-level cache
 *   tiled    y's fastest dimension is not x's: tiles whose lines are read and written whole,
 *            transposed in registers where bits are only moved
 *   rows     all other strides: runs along y's fastest dimension
 * Tiles that are thin (a few channels beside each other on one side) are sorted in blocks.
 * Cost: bytes moved at copy bandwidth; some 0.1 us of work per tile of 64 x 64 on top when types
 * differ. */
#include "ops/transform/cpu/transform_cpu.h"
#include "ops/transform/transform.h"
#include "cpu/cpu.h"
#include "cpu/stream.h"
#include "cpu/scratch.h"
#include "ops/access/layout.h"
#include "ops/convert/cpu/convert.h"

#include <math.h>
#include <string.h>

#define INLINE __attribute__((always_inline)) static inline

enum { LINE = 64, AHEAD = 16 }; /* bytes of a cache line; tiles of a task */
enum { TILE = 64, THIN = 8, THIN_TILE = 2048, BLOCK = 512, SEGMENT = 1 << 14 };
enum { PIECE = 1024, ROWS = 32 }; /* bytes copied between two requests of memory; rows of a task */

typedef struct cpu_state {
    mica_layout layout; /* y's strides, then x's */
    mica_dtype x_type, y_type;
    bool tiled, linear;
    /* tiled: dimensions of x's and y's fastest steps */
    int x_fast, y_fast;
    bool thin;       /* one of the two is short */
    int64_t tile[2]; /* elements of a task along x_fast, y_fast */
    bool past_cache; /* y is streamed */
} cpu_state;

typedef struct cpu_call {
    const cpu_state *state;
    const void *x;
    void *y;
    double alpha, beta;
    bool plain; /* alpha 1, beta 0 */
    bool copy;  /* plain and equal types: bits are moved */
} cpu_call;

/* ---- blocks of at most BLOCK elements ---- */

MICA_MEMORY_CLONES
static void scale(double *v, double alpha, int64_t n)
{
    for (int64_t i = 0; i < n; i++) v[i] *= alpha;
}

MICA_MEMORY_CLONES
static void scale_and_add(double *v, double alpha, const double *old, double beta, int64_t n)
{
    for (int64_t i = 0; i < n; i++) v[i] = fma(alpha, v[i], beta * old[i]);
}

/* Images on their way to a network: the same in one pass. */
MICA_MEMORY_CLONES
static void scale_bytes(const uint8_t *x, double alpha, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = (float)(alpha * x[i]);
}

static void scale_block(const cpu_call *c, int64_t y_at, int64_t y_stride, int64_t n, double *block)
{
    MICA_ALIGNED double old[BLOCK];
    if (c->beta == 0) {
        scale(block, c->alpha, n);
        return;
    }
    mica_to_f64(c->state->y_type, c->y, y_at, y_stride, old, n);
    scale_and_add(block, c->alpha, old, c->beta, n);
}

/* Between types of at most f32 a float holds every value, so what is not added to y goes through
 * it. */
static bool through_float(const cpu_call *c)
{
    return c->beta == 0 && mica_runs_f32(c->state->x_type) && mica_runs_f32(c->state->y_type);
}

static void load_block(const cpu_call *c, const void *x, int64_t at, int64_t stride, int64_t n,
                       double *out)
{
    mica_dtype from = c->state->x_type, to = c->state->y_type;
    if (from == MICA_S64 && c->plain && to != MICA_F64)
        mica_s64_to_f64_odd(x, at, stride, out, n);
    else
        mica_to_f64(from, x, at, stride, out, n);
}

static void convert_row(const cpu_call *c, int64_t x_at, int64_t x_stride, int64_t y_at,
                        int64_t y_stride, int64_t n)
{
    const cpu_state *s = c->state;
    MICA_ALIGNED double block[BLOCK];
    float *short_block = (float *)block;
    bool floats = through_float(c);
    int64_t size = mica_dtype_bits(s->x_type) / 8;
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t m = n - i < BLOCK ? n - i : BLOCK;
        int64_t xo = x_at + i * x_stride, yo = y_at + i * y_stride;
        if (x_stride == 1) mica_fetch_ahead((const char *)c->x + xo * size + MICA_AHEAD, m * size);
        if (floats) {
            const float *run = mica_run_f32(s->x_type, c->x, xo, x_stride, short_block, m);
            if (s->past_cache && y_stride == 1)
                mica_scaled_stream_f32(s->y_type, c->alpha, c->y, yo, run, m);
            else
                mica_scaled_from_f32(s->y_type, c->alpha, c->y, yo, y_stride, run, m);
            continue;
        }
        load_block(c, c->x, xo, x_stride, m, block);
        if (!c->plain) scale_block(c, yo, y_stride, m, block);
        if (s->past_cache && y_stride == 1)
            mica_stream_f64(s->y_type, c->y, yo, block, m);
        else
            mica_from_f64(s->y_type, c->y, yo, y_stride, block, m);
    }
}

/* Past the caches if it is whole lines. */
static void put_line(const cpu_state *s, char *to, const char *from, size_t bytes)
{
    if (s->past_cache && ((uintptr_t)to | bytes) % LINE == 0)
        mica_stream_copy(to, from, bytes);
    else
        memcpy(to, from, bytes);
}

static void copy_row(const cpu_state *s, const char *x, int64_t x_stride, char *y, int64_t y_stride,
                     int64_t n, size_t bytes)
{
    if (x_stride == 1 && y_stride == 1)
        put_line(s, y, x, (size_t)n * bytes);
    else
        mica_move(x, x_stride, y, y_stride, (int64_t)bytes, n);
}

static void do_row(const cpu_call *c, int64_t x_at, int64_t x_stride, int64_t y_at,
                   int64_t y_stride, int64_t n)
{
    if (!c->copy) {
        convert_row(c, x_at, x_stride, y_at, y_stride, n);
        return;
    }
    int64_t bytes = mica_dtype_bits(c->state->x_type) / 8;
    copy_row(c->state, (const char *)c->x + x_at * bytes, x_stride, (char *)c->y + y_at * bytes,
             y_stride, n, (size_t)bytes);
}

/* ---- tiles ---- */

static int64_t pieces(int64_t n, int64_t size)
{
    return (n - 1) / size + 1;
}

typedef struct steps {
    int64_t x_row, x_col, y_row, y_col; /* a run of x is along columns, one of y along rows */
} steps;

static steps tile_steps(const cpu_state *s)
{
    const mica_layout *l = &s->layout;
    return (steps){l->strides[1][s->y_fast], l->strides[1][s->x_fast], l->strides[0][s->y_fast],
                   l->strides[0][s->x_fast]};
}

/* `lines` lines of n elements, TILE apart. */
static void convert_lines(const cpu_call *c, const void *from, void *to, int64_t lines, int64_t n)
{
    const cpu_state *s = c->state;
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    float *block = mica_scratch_take(TILE * TILE * sizeof *block);
    if (n == TILE) n *= lines, lines = 1;
    for (int64_t i = 0; i < lines; i++) {
        if (s->y_type == MICA_F32 && c->alpha == 1) {
            mica_to_f32(s->x_type, from, i * TILE, 1, (float *)to + i * TILE, n);
            continue;
        }
        const float *run = mica_run_f32(s->x_type, from, i * TILE, 1, block, n);
        mica_scaled_from_f32(s->y_type, c->alpha, to, i * TILE, 1, run, n);
    }
}

/* Elements `rows` along y's runs, `cols` along x's. */
typedef struct tile {
    int64_t x_at, y_at, rows, cols;
} tile;

/* The rows of a tile, of which one is asked for with each that is read of the tile before: of short
 * runs the hardware sees no stream, and all at once are more than can be in flight. */
typedef struct asked {
    const char *from;
    int64_t step, bytes, rows;
} asked;

static asked asked_of(const cpu_call *c, const tile *t)
{
    steps at = tile_steps(c->state);
    int64_t bytes = mica_dtype_bits(c->state->x_type) / 8;
    return (asked){.from = (const char *)c->x + t->x_at * bytes,
                   .step = at.x_row * bytes,
                   .bytes = t->cols * bytes,
                   .rows = at.x_col == 1 ? t->rows : 0};
}

INLINE void ask(const asked *a, int64_t row)
{
    if (row < a->rows) mica_fetch_ahead(a->from + row * a->step, a->bytes);
}

/* Runs of neighbours on both sides, types that go through float or are equal: x's runs gathered in
 * one place, for rows a power of two apart would push each other out of the first-level cache;
 * transposed in the shorter type; y's runs put in their places. */
static void move_tile(const cpu_call *c, const tile *t, const tile *next)
{
    const cpu_state *s = c->state;
    steps at = tile_steps(s);
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    double(*blocks)[TILE * TILE] = mica_scratch_take(3 * sizeof *blocks);
    int x_bytes = mica_dtype_bits(s->x_type) / 8, y_bytes = mica_dtype_bits(s->y_type) / 8;
    int64_t rows = t->rows, cols = t->cols;
    const char *x = (const char *)c->x + t->x_at * x_bytes;
    char *y = (char *)c->y + t->y_at * y_bytes;
    char *staged = (char *)blocks[0], *transposed = (char *)blocks[1], *other = (char *)blocks[2];
    asked ahead = asked_of(c, next);
    for (int64_t i = 0; i < rows; i++) {
        ask(&ahead, i);
        memcpy(staged + i * TILE * x_bytes, x + i * at.x_row * x_bytes, (size_t)(cols * x_bytes));
    }
    if (c->copy) {
        transform_cpu_transpose(staged, TILE * x_bytes, transposed, TILE * x_bytes, rows, cols,
                                x_bytes);
    } else if (y_bytes < x_bytes) {
        convert_lines(c, staged, other, rows, cols);
        transform_cpu_transpose(other, TILE * y_bytes, transposed, TILE * y_bytes, rows, cols,
                                y_bytes);
    } else {
        transform_cpu_transpose(staged, TILE * x_bytes, other, TILE * x_bytes, rows, cols, x_bytes);
        convert_lines(c, other, transposed, cols, rows);
    }
    for (int64_t j = 0; j < cols; j++)
        put_line(s, y + j * at.y_col * y_bytes, transposed + j * TILE * y_bytes,
                 (size_t)(rows * y_bytes));
}

/* With scaling, strided runs or wide types: convert x's runs, transpose, convert into y's runs. */
static void convert_tile(const cpu_call *c, const tile *t, const tile *next)
{
    const cpu_state *s = c->state;
    steps at = tile_steps(s);
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    double *loaded = mica_scratch_take(TILE * TILE * sizeof *loaded);
    double *transposed = mica_scratch_take(TILE * TILE * sizeof *transposed);
    const int bytes = sizeof(double);
    asked ahead = asked_of(c, next);
    for (int64_t i = 0; i < t->rows; i++) {
        ask(&ahead, i);
        load_block(c, c->x, t->x_at + i * at.x_row, at.x_col, t->cols, loaded + i * TILE);
    }
    transform_cpu_transpose((const char *)loaded, TILE * bytes, (char *)transposed, TILE * bytes,
                            t->rows, t->cols, bytes);
    for (int64_t j = 0; j < t->cols; j++) {
        int64_t to = t->y_at + j * at.y_col;
        if (!c->plain) scale_block(c, to, at.y_row, t->rows, transposed + j * TILE);
        mica_from_f64(s->y_type, c->y, to, at.y_row, transposed + j * TILE, t->rows);
    }
}

/* ---- thin tiles: a short dimension (three channels) that is the fastest of one side ---- */

/* m neighbouring elements of x, in y's type; beta is 0. */
static void convert_apart(const cpu_call *c, const void *from, int64_t m, void *to)
{
    const cpu_state *s = c->state;
    MICA_ALIGNED double block[BLOCK];
    if (s->x_type == MICA_U8 && s->y_type == MICA_F32) {
        scale_bytes(from, c->alpha, to, m);
        return;
    }
    for (int64_t i = 0; i < m; i += BLOCK) {
        int64_t n = m - i < BLOCK ? m - i : BLOCK;
        if (through_float(c)) {
            const float *run = mica_run_f32(s->x_type, from, i, 1, (float *)block, n);
            mica_scaled_from_f32(s->y_type, c->alpha, to, i, 1, run, n);
            continue;
        }
        load_block(c, from, i, 1, n, block);
        if (!c->plain) scale(block, c->alpha, n);
        mica_from_f64(s->y_type, to, i, 1, block, n);
    }
}

/* n groups of k, neighbours in x, to lines of y: sorted in the shorter type. */
static void part_thin(const cpu_call *c, const char *x, char *y, int64_t y_step, int64_t n,
                      int64_t k)
{
    const cpu_state *s = c->state;
    int64_t x_bytes = mica_dtype_bits(s->x_type) / 8, y_bytes = mica_dtype_bits(s->y_type) / 8;
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    double *first = mica_scratch_take(THIN * TRANSFORM_CPU_LINE * sizeof *first);
    double *second = mica_scratch_take(THIN * TRANSFORM_CPU_LINE * sizeof *second);
    bool early = !c->copy && y_bytes < x_bytes, late = !c->copy && !early;
    for (int64_t i = 0; i < n; i += TRANSFORM_CPU_LINE) {
        int64_t m = n - i < TRANSFORM_CPU_LINE ? n - i : TRANSFORM_CPU_LINE,
                bytes = early ? y_bytes : x_bytes;
        const char *from = x + i * k * x_bytes;
        mica_fetch_ahead(from + MICA_AHEAD, m * k * x_bytes);
        if (early) convert_apart(c, from, m * k, first);
        transform_cpu_regroup(true, early ? (const char *)first : from, (char *)second, m, k,
                              bytes);
        for (int64_t j = 0; j < k; j++) {
            const char *line = (const char *)second + j * TRANSFORM_CPU_LINE * bytes;
            if (late) convert_apart(c, line, m, first);
            put_line(s, y + (j * y_step + i) * y_bytes, late ? (const char *)first : line,
                     (size_t)(m * y_bytes));
        }
    }
}

/* k lines of x to n groups of k, neighbours in y. */
static void join_thin(const cpu_call *c, const char *x, int64_t x_step, char *y, int64_t n,
                      int64_t k)
{
    const cpu_state *s = c->state;
    int64_t x_bytes = mica_dtype_bits(s->x_type) / 8, y_bytes = mica_dtype_bits(s->y_type) / 8;
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    double *first = mica_scratch_take(THIN * TRANSFORM_CPU_LINE * sizeof *first);
    double *second = mica_scratch_take(THIN * TRANSFORM_CPU_LINE * sizeof *second);
    bool early = !c->copy && y_bytes < x_bytes, late = !c->copy && !early;
    for (int64_t i = 0; i < n; i += TRANSFORM_CPU_LINE) {
        int64_t m = n - i < TRANSFORM_CPU_LINE ? n - i : TRANSFORM_CPU_LINE,
                bytes = early ? y_bytes : x_bytes;
        for (int64_t j = 0; j < k; j++) {
            const char *from = x + (j * x_step + i) * x_bytes;
            char *line = (char *)first + j * TRANSFORM_CPU_LINE * bytes;
            mica_fetch_ahead(from + MICA_AHEAD, m * x_bytes);
            if (early)
                convert_apart(c, from, m, line);
            else
                memcpy(line, from, (size_t)(m * x_bytes));
        }
        transform_cpu_regroup(false, (const char *)first, (char *)second, m, k, bytes);
        if (late) convert_apart(c, second, m * k, first);
        put_line(s, y + i * k * y_bytes, (const char *)(late ? first : second),
                 (size_t)(m * k * y_bytes));
    }
}

/* Other strides: runs along the long dimension. */
static void do_thin_rows(const cpu_call *c, int64_t x_at, int64_t y_at, int64_t rows, int64_t cols)
{
    steps at = tile_steps(c->state);
    if (cols < rows)
        for (int64_t j = 0; j < cols; j++)
            do_row(c, x_at + j * at.x_col, at.x_row, y_at + j * at.y_col, at.y_row, rows);
    else
        for (int64_t i = 0; i < rows; i++)
            do_row(c, x_at + i * at.x_row, at.x_col, y_at + i * at.y_row, at.y_col, cols);
}

static void do_thin_tile(const cpu_call *c, int64_t x_at, int64_t y_at, int64_t rows, int64_t cols)
{
    const cpu_state *s = c->state;
    steps at = tile_steps(s);
    const char *x = (const char *)c->x + x_at * (mica_dtype_bits(s->x_type) / 8);
    char *y = (char *)c->y + y_at * (mica_dtype_bits(s->y_type) / 8);
    bool unit = at.x_col == 1 && at.y_row == 1 && c->beta == 0;
    if (unit && cols <= THIN && at.x_row == cols)
        part_thin(c, x, y, at.y_col, rows, cols);
    else if (unit && rows <= THIN && at.y_col == rows)
        join_thin(c, x, at.x_row, y, cols, rows);
    else
        do_thin_rows(c, x_at, y_at, rows, cols);
}

/* One of a task's tiles, side by side along x's runs. */
static tile tile_of(const cpu_call *c, const tile *task, int64_t index)
{
    steps at = tile_steps(c->state);
    int64_t across = pieces(task->cols, TILE);
    int64_t i = index / across * TILE, j = index % across * TILE;
    if (i >= task->rows) return (tile){0};
    return (tile){.x_at = task->x_at + i * at.x_row + j * at.x_col,
                  .y_at = task->y_at + i * at.y_row + j * at.y_col,
                  .rows = task->rows - i < TILE ? task->rows - i : TILE,
                  .cols = task->cols - j < TILE ? task->cols - j : TILE};
}

static void do_tiles(const cpu_call *c, const tile *task)
{
    steps at = tile_steps(c->state);
    bool unit = at.x_col == 1 && at.y_row == 1;
    if (c->state->thin || (c->copy && !unit)) {
        do_thin_tile(c, task->x_at, task->y_at, task->rows, task->cols);
        return;
    }
    tile now = tile_of(c, task, 0);
    for (int64_t i = 1; now.rows > 0; i++) {
        tile next = tile_of(c, task, i);
        if (unit && (c->copy || through_float(c)))
            move_tile(c, &now, &next);
        else
            convert_tile(c, &now, &next);
        now = next;
    }
}

/* ---- walks ---- */

/* Elements of a task along dimension d. */
static int64_t task_step(const cpu_state *s, int d)
{
    if (s->tiled && d == s->x_fast) return s->tile[0];
    if (s->tiled && d == s->y_fast) return s->tile[1];
    if (s->tiled || d < s->layout.rank - 2) return 1;
    return d == s->layout.rank - 1 ? SEGMENT : ROWS;
}

/* Dimensions in units of tasks: tiles of the two fast ones, or segments of some rows. */
static int64_t task_counts(const cpu_state *s, int64_t *counts)
{
    const mica_layout *l = &s->layout;
    int64_t total = 1;
    for (int d = 0; d < l->rank; d++) {
        counts[d] = pieces(l->dims[d], task_step(s, d));
        total *= counts[d];
    }
    return total;
}

/* Rows of n elements. Short ones of x are no stream that the hardware would see. */
static void do_rows(const cpu_call *c, int64_t x_at, int64_t y_at, int64_t rows, int64_t n)
{
    const mica_layout *l = &c->state->layout;
    int last = l->rank - 1;
    int64_t y_step = last > 0 ? l->strides[0][last - 1] : 0;
    int64_t x_step = last > 0 ? l->strides[1][last - 1] : 0;
    int64_t size = mica_dtype_bits(c->state->x_type) / 8, bytes = n * size;
    int64_t ahead = l->strides[1][last] == 1 && bytes < MICA_AHEAD ? MICA_AHEAD / bytes : 0;
    for (int64_t i = 0; i < rows; i++) {
        if (ahead && i + ahead < rows)
            mica_fetch_ahead((const char *)c->x + (x_at + ahead * x_step) * size, bytes);
        do_row(c, x_at, l->strides[1][last], y_at, l->strides[0][last], n);
        x_at += x_step, y_at += y_step;
    }
}

static void do_task(const cpu_call *c, const int64_t *counts, int64_t task)
{
    const cpu_state *s = c->state;
    const mica_layout *l = &s->layout;
    int64_t x_at = 0, y_at = 0, extent[MICA_LAYOUT_RANK] = {0};
    for (int d = l->rank - 1; d >= 0; d--) {
        int64_t i = task % counts[d], step = task_step(s, d);
        task /= counts[d];
        int64_t left = l->dims[d] - i * step;
        extent[d] = left < step ? left : step;
        y_at += i * step * l->strides[0][d];
        x_at += i * step * l->strides[1][d];
    }
    if (s->tiled)
        do_tiles(c, &(tile){x_at, y_at, extent[s->y_fast], extent[s->x_fast]});
    else
        do_rows(c, x_at, y_at, l->rank > 1 ? extent[l->rank - 2] : 1, extent[l->rank - 1]);
}

/* memcpy goes past the caches for sizes of its own choice only, which virtual machines, with the
 * whole socket's cache to show, put at gigabytes. */
static void do_run(const cpu_call *c, int64_t at, int64_t n)
{
    int64_t size = mica_dtype_bits(c->state->x_type) / 8, bytes = n * size;
    const char *x = (const char *)c->x + at * size;
    char *y = (char *)c->y + at * size;
    if (!c->copy || !c->state->past_cache) {
        do_row(c, at, 1, at, 1, n);
        return;
    }
    for (int64_t i = 0; i < bytes; i += PIECE) {
        int64_t m = bytes - i < PIECE ? bytes - i : PIECE;
        mica_fetch_ahead(x + i + MICA_AHEAD, m);
        mica_stream_copy(y + i, x + i, (size_t)m);
    }
}

/* One run: each thread takes one piece. */
static void run_linear(const cpu_call *c, int threads)
{
    int64_t n = c->state->layout.count, each = (n - 1) / threads + 1;
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int t = 0; t < threads; t++) {
        int64_t at = t * each, m = n - at < each ? n - at : each;
        if (m > 0) do_run(c, at, m);
        mica_stream_end();
    }
}

/* ---- the engine ---- */

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)desc, (void)device, (void)why;
    return MICA_OK;
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    (void)config;
    return 1.2 * mica_roofline_ms(&mica_op_transform, desc, device) + 2e-4;
}

static int fastest(const mica_layout *l, int tensor)
{
    int best = l->rank - 1;
    for (int d = l->rank - 2; d >= 0; d--) {
        int64_t step = l->strides[tensor][d], least = l->strides[tensor][best];
        if ((step < 0 ? -step : step) < (least < 0 ? -least : least)) best = d;
    }
    return best;
}

static mica_status build(mica_plan *plan)
{
    const mica_transform_desc *d = plan->desc;
    cpu_state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_tensor x = mica_transform_source(d, &d->x);
    const mica_tensor *tensors[] = {&d->y, &x};
    mica_layout_make(&s->layout, tensors, 2);
    s->x_type = d->x.dtype, s->y_type = d->y.dtype;
    s->linear = mica_layout_is_linear(&s->layout, 2);
    s->past_cache = mica_stream_pays(mica_op_bytes(plan->op, d), plan->device.cache_bytes);
    if (s->layout.rank < 2) return MICA_OK;
    s->y_fast = s->layout.rank - 1;
    s->x_fast = fastest(&s->layout, 1);
    s->tiled = s->x_fast != s->y_fast && s->layout.strides[1][s->x_fast] != 0;
    int64_t cols = s->layout.dims[s->x_fast], rows = s->layout.dims[s->y_fast];
    s->thin = cols <= THIN || rows <= THIN;
    /* tiles of a task side by side along x's runs; of short ones several rows */
    int64_t across = pieces(cols, TILE), down = across < AHEAD ? AHEAD / across : 1;
    s->tile[0] = s->thin && cols > THIN ? THIN_TILE : AHEAD * TILE;
    s->tile[1] = s->thin && rows > THIN ? THIN_TILE : down * TILE;
    return MICA_OK;
}

static mica_status run(const mica_plan *plan, const mica_run *run)
{
    const cpu_state *s = plan->state;
    const mica_layout *l = &s->layout;
    if (l->count == 0) return MICA_OK;
    cpu_call c = {.state = s,
                  .x = run->args[MICA_TRANSFORM_X],
                  .y = run->args[MICA_TRANSFORM_Y],
                  .alpha = mica_run_scalar(plan, run, MICA_TRANSFORM_ALPHA),
                  .beta = mica_run_scalar(plan, run, MICA_TRANSFORM_BETA)};
    c.plain = c.alpha == 1 && c.beta == 0;
    c.copy = c.plain && s->x_type == s->y_type;
    double bytes = (double)l->count * (mica_dtype_bits(s->x_type) + mica_dtype_bits(s->y_type)) / 8;
    int threads = mica_cpu_threads_for(bytes);
    if (s->linear) {
        run_linear(&c, threads);
        return MICA_OK;
    }
    int64_t counts[MICA_LAYOUT_RANK], tasks = task_counts(s, counts);
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static) nowait
        for (int64_t task = 0; task < tasks; task++) do_task(&c, counts, task);
        mica_stream_end();
    }
    return MICA_OK;
}

const mica_engine mica_transform_cpu = {
    .name = "cpu",
    .accepts = accepts,
    .predict = predict,
    .contract = mica_transform_contract,
    .build = build,
    .run = run,
};
