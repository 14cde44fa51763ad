/* SPDX-License-Identifier: Apache-2.0
 * Transforms on the CPU, bound by memory.
 *
 * Good for everything; three ways through memory after merging dimensions:
 *   linear   one run in both tensors: memcpy, or blocks converted in the first-level cache
 *   tiled    y's fastest dimension is not x's: tiles whose lines are read and written whole,
 *            transposed in registers where bits are only moved
 *   rows     all other strides: runs along y's fastest dimension
 * Cost: bytes moved at copy bandwidth; some 0.1 us of work per tile of 64 x 64 on top when types
 * differ. */
#include "ops/transform/transform.h"
#include "cpu/cpu.h"
#include "ops/shared/layout.h"
#include "ops/shared/convert.h"

#include <math.h>
#include <string.h>

#define INLINE __attribute__((always_inline)) static inline

enum { TILE = 64, THIN = 8, THIN_TILE = 2048, BLOCK = 512, SEGMENT = 1 << 14 };

typedef struct cpu_state {
    mica_layout layout; /* y's strides, then x's */
    mica_dtype x_type, y_type;
    bool tiled, linear;
    /* tiled: dimensions of x's and y's fastest steps */
    int x_fast, y_fast;
    bool thin;       /* one of the two is short */
    int64_t tile[2]; /* elements of a tile along x_fast, y_fast */
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

static void scale_block(const cpu_call *c, int64_t y_at, int64_t y_stride, int64_t n, double *block)
{
    double old[BLOCK];
    if (c->beta == 0) {
        for (int64_t i = 0; i < n; i++) block[i] *= c->alpha;
        return;
    }
    mica_to_f64(c->state->y_type, c->y, y_at, y_stride, old, n);
    for (int64_t i = 0; i < n; i++) block[i] = fma(c->alpha, block[i], c->beta * old[i]);
}

/* Between types of at most f32 a float holds every value, so unscaled conversions go through it. */
static bool through_float(const cpu_call *c)
{
    return c->plain && mica_fits_f32(c->state->x_type) && mica_fits_f32(c->state->y_type);
}

static void load_block(const cpu_call *c, int64_t at, int64_t stride, int64_t n, double *out)
{
    mica_dtype from = c->state->x_type, to = c->state->y_type;
    if (from == MICA_S64 && c->plain && to != MICA_F64)
        mica_s64_to_f64_odd(c->x, at, stride, out, n);
    else
        mica_to_f64(from, c->x, at, stride, out, n);
}

static void convert_row(const cpu_call *c, int64_t x_at, int64_t x_stride, int64_t y_at,
                        int64_t y_stride, int64_t n)
{
    const cpu_state *s = c->state;
    double block[BLOCK];
    float *short_block = (float *)block;
    bool floats = through_float(c);
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t m = n - i < BLOCK ? n - i : BLOCK;
        int64_t xo = x_at + i * x_stride, yo = y_at + i * y_stride;
        if (floats) {
            mica_to_f32(s->x_type, c->x, xo, x_stride, short_block, m);
            mica_from_f32(s->y_type, c->y, yo, y_stride, short_block, m);
            continue;
        }
        load_block(c, xo, x_stride, m, block);
        if (!c->plain) scale_block(c, yo, y_stride, m, block);
        mica_from_f64(s->y_type, c->y, yo, y_stride, block, m);
    }
}

INLINE void move_strided(const char *x, int64_t x_stride, char *y, int64_t y_stride, int64_t n,
                         size_t bytes)
{
    int64_t size = (int64_t)bytes;
    for (int64_t i = 0; i < n; i++) memcpy(y + i * y_stride * size, x + i * x_stride * size, bytes);
}

static void copy_row(const char *x, int64_t x_stride, char *y, int64_t y_stride, int64_t n,
                     size_t bytes)
{
    if (x_stride == 1 && y_stride == 1)
        memcpy(y, x, (size_t)n * bytes);
    else if (bytes == 1)
        move_strided(x, x_stride, y, y_stride, n, 1);
    else if (bytes == 2)
        move_strided(x, x_stride, y, y_stride, n, 2);
    else if (bytes == 4)
        move_strided(x, x_stride, y, y_stride, n, 4);
    else
        move_strided(x, x_stride, y, y_stride, n, 8);
}

static void do_row(const cpu_call *c, int64_t x_at, int64_t x_stride, int64_t y_at,
                   int64_t y_stride, int64_t n)
{
    if (!c->copy) {
        convert_row(c, x_at, x_stride, y_at, y_stride, n);
        return;
    }
    int64_t bytes = mica_dtype_bits(c->state->x_type) / 8;
    copy_row((const char *)c->x + x_at * bytes, x_stride, (char *)c->y + y_at * bytes, y_stride, n,
             (size_t)bytes);
}

/* ---- transposes in registers ----
 * Sixteen-byte vectors of N = 16 / size lanes. Interleaving row i with row i + N/2, log2 N times,
 * transposes N x N. */

typedef uint8_t lanes_8 __attribute__((vector_size(16)));
typedef uint16_t lanes_16 __attribute__((vector_size(16)));
typedef uint32_t lanes_32 __attribute__((vector_size(16)));
typedef uint64_t lanes_64 __attribute__((vector_size(16)));

#ifdef __clang__
/* clang lacks __builtin_shuffle, and makes one instruction of this loop by itself */
INLINE lanes_8 zip(lanes_8 a, lanes_8 b, int bytes, bool high)
{
    lanes_8 r;
    for (int i = 0; i < 16; i++) {
        int lane = i / bytes, from = (lane / 2 + (high ? 8 / bytes : 0)) * bytes + i % bytes;
        r[i] = lane % 2 ? b[from] : a[from];
    }
    return r;
}
#else
INLINE lanes_8 zip(lanes_8 a, lanes_8 b, int bytes, bool high)
{
    lanes_8 r;
    if (bytes == 1) {
        const lanes_8 low = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23};
        r = high ? __builtin_shuffle(a, b, low + 8) : __builtin_shuffle(a, b, low);
    } else if (bytes == 2) {
        const lanes_16 low = {0, 8, 1, 9, 2, 10, 3, 11};
        r = (lanes_8)(high ? __builtin_shuffle((lanes_16)a, (lanes_16)b, low + 4)
                           : __builtin_shuffle((lanes_16)a, (lanes_16)b, low));
    } else if (bytes == 4) {
        const lanes_32 low = {0, 4, 1, 5};
        r = (lanes_8)(high ? __builtin_shuffle((lanes_32)a, (lanes_32)b, low + 2)
                           : __builtin_shuffle((lanes_32)a, (lanes_32)b, low));
    } else {
        const lanes_64 low = {0, 2};
        r = (lanes_8)(high ? __builtin_shuffle((lanes_64)a, (lanes_64)b, low + 1)
                           : __builtin_shuffle((lanes_64)a, (lanes_64)b, low));
    }
    return r;
}
#endif

/* x: rows x_step bytes apart; y: the columns, y_step bytes apart. */
INLINE void transpose_block(const char *x, int64_t x_step, char *y, int64_t y_step, int bytes)
{
    const int n = 16 / bytes;
    lanes_8 a[16], b[16];
    for (int i = 0; i < n; i++) memcpy(&a[i], x + i * x_step, 16);
    for (int width = n; width > 1; width /= 2) {
        for (int i = 0; i < n / 2; i++) {
            b[2 * i] = zip(a[i], a[i + n / 2], bytes, false);
            b[2 * i + 1] = zip(a[i], a[i + n / 2], bytes, true);
        }
        for (int i = 0; i < n; i++) a[i] = b[i];
    }
    for (int i = 0; i < n; i++) memcpy(y + i * y_step, &a[i], 16);
}

/* A tile of `rows` runs of x, each `cols` long, becoming columns of y. */
INLINE void transpose_tile(const char *x, int64_t x_step, char *y, int64_t y_step, int64_t rows,
                           int64_t cols, int bytes)
{
    const int n = 16 / bytes;
    int64_t whole_rows = rows - rows % n, whole_cols = cols - cols % n;
    for (int64_t j = 0; j < whole_cols; j += n)
        for (int64_t i = 0; i < whole_rows; i += n)
            transpose_block(x + i * x_step + j * bytes, x_step, y + j * y_step + i * bytes, y_step,
                            bytes);
    for (int64_t j = 0; j < cols; j++)
        for (int64_t i = j < whole_cols ? whole_rows : 0; i < rows; i++)
            memcpy(y + j * y_step + i * bytes, x + i * x_step + j * bytes, (size_t)bytes);
}

static void copy_tile(const char *x, int64_t x_step, char *y, int64_t y_step, int64_t rows,
                      int64_t cols, int bytes)
{
    if (bytes == 1)
        transpose_tile(x, x_step, y, y_step, rows, cols, 1);
    else if (bytes == 2)
        transpose_tile(x, x_step, y, y_step, rows, cols, 2);
    else if (bytes == 4)
        transpose_tile(x, x_step, y, y_step, rows, cols, 4);
    else
        transpose_tile(x, x_step, y, y_step, rows, cols, 8);
}

/* ---- tiles ---- */

typedef struct steps {
    int64_t x_row, x_col, y_row, y_col; /* a run of x is along columns, one of y along rows */
} steps;

static steps tile_steps(const cpu_state *s)
{
    const mica_layout *l = &s->layout;
    return (steps){l->strides[1][s->y_fast], l->strides[1][s->x_fast], l->strides[0][s->y_fast],
                   l->strides[0][s->x_fast]};
}

/* With a change of type or scaling: convert x's runs, transpose, convert into y's runs. */
static void convert_tile(const cpu_call *c, int64_t x_at, int64_t y_at, int64_t rows, int64_t cols)
{
    const cpu_state *s = c->state;
    steps at = tile_steps(s);
    double loaded[TILE * TILE], turned[TILE * TILE];
    bool floats = through_float(c);
    int bytes = floats ? sizeof(float) : sizeof(double);
    for (int64_t i = 0; i < rows; i++) {
        int64_t from = x_at + i * at.x_row;
        if (floats)
            mica_to_f32(s->x_type, c->x, from, at.x_col, (float *)loaded + i * TILE, cols);
        else
            load_block(c, from, at.x_col, cols, loaded + i * TILE);
    }
    copy_tile((const char *)loaded, TILE * bytes, (char *)turned, TILE * bytes, rows, cols, bytes);
    for (int64_t j = 0; j < cols; j++) {
        int64_t to = y_at + j * at.y_col;
        if (floats) {
            mica_from_f32(s->y_type, c->y, to, at.y_row, (const float *)turned + j * TILE, rows);
            continue;
        }
        if (!c->plain) scale_block(c, to, at.y_row, rows, turned + j * TILE);
        mica_from_f64(s->y_type, c->y, to, at.y_row, turned + j * TILE, rows);
    }
}

/* Rows a power of two apart would push each other out of the first-level cache: they are first
 * gathered in one place. */
static void move_tile(const cpu_call *c, int64_t x_at, int64_t y_at, int64_t rows, int64_t cols)
{
    steps at = tile_steps(c->state);
    double staged[TILE * TILE];
    int bytes = mica_dtype_bits(c->state->x_type) / 8;
    const char *x = (const char *)c->x + x_at * bytes;
    char *y = (char *)c->y + y_at * bytes, *place = (char *)staged;
    for (int64_t i = 0; i < rows; i++)
        memcpy(place + i * TILE * bytes, x + i * at.x_row * bytes, (size_t)(cols * bytes));
    copy_tile(place, TILE * bytes, y, at.y_col * bytes, rows, cols, bytes);
}

/* A short dimension (three channels): runs along the other one. */
static void do_thin_tile(const cpu_call *c, int64_t x_at, int64_t y_at, int64_t rows, int64_t cols)
{
    steps at = tile_steps(c->state);
    if (cols < rows)
        for (int64_t j = 0; j < cols; j++)
            do_row(c, x_at + j * at.x_col, at.x_row, y_at + j * at.y_col, at.y_row, rows);
    else
        for (int64_t i = 0; i < rows; i++)
            do_row(c, x_at + i * at.x_row, at.x_col, y_at + i * at.y_row, at.y_col, cols);
}

static void do_tile(const cpu_call *c, int64_t x_at, int64_t y_at, int64_t rows, int64_t cols)
{
    steps at = tile_steps(c->state);
    bool unit = at.x_col == 1 && at.y_row == 1;
    if (c->state->thin || (c->copy && !unit))
        do_thin_tile(c, x_at, y_at, rows, cols);
    else if (c->copy)
        move_tile(c, x_at, y_at, rows, cols);
    else
        convert_tile(c, x_at, y_at, rows, cols);
}

/* ---- walks ---- */

static int64_t pieces(int64_t n, int64_t size)
{
    return (n - 1) / size + 1;
}

/* Elements of a task along dimension d. */
static int64_t task_step(const cpu_state *s, int d)
{
    if (s->tiled && d == s->x_fast) return s->tile[0];
    if (s->tiled && d == s->y_fast) return s->tile[1];
    return !s->tiled && d == s->layout.rank - 1 ? SEGMENT : 1;
}

/* Dimensions in units of tasks: tiles of the two fast ones, or segments of the last. */
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
        do_tile(c, x_at, y_at, extent[s->y_fast], extent[s->x_fast]);
    else
        do_row(c, x_at, l->strides[1][l->rank - 1], y_at, l->strides[0][l->rank - 1],
               extent[l->rank - 1]);
}

/* One run: each thread takes one piece, long enough for memcpy to bypass the caches. */
static void run_linear(const cpu_call *c, int threads)
{
    int64_t n = c->state->layout.count, each = (n - 1) / threads + 1;
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int t = 0; t < threads; t++) {
        int64_t at = t * each, m = n - at < each ? n - at : each;
        if (m > 0) do_row(c, at, 1, at, 1, m);
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
    if (s->layout.rank < 2) return MICA_OK;
    s->y_fast = s->layout.rank - 1;
    s->x_fast = fastest(&s->layout, 1);
    s->tiled = s->x_fast != s->y_fast && s->layout.strides[1][s->x_fast] != 0;
    int64_t cols = s->layout.dims[s->x_fast], rows = s->layout.dims[s->y_fast];
    s->thin = cols <= THIN || rows <= THIN;
    s->tile[0] = s->thin && cols > THIN ? THIN_TILE : TILE;
    s->tile[1] = s->thin && rows > THIN ? THIN_TILE : TILE;
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
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t task = 0; task < tasks; task++) do_task(&c, counts, task);
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
