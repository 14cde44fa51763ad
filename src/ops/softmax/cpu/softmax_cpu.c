/* SPDX-License-Identifier: Apache-2.0
 * Softmax on the CPU. Slices whose axis is contiguous are worked one at a time; otherwise up to
 * MICA_TILE_WIDTH neighbouring slices side by side, so that vectors run along memory either way.
 * Data passes through chunks that stay in the first-level cache; the maximum and the sum are formed
 * together, rescaling the sum when the maximum grows. Exponentials are kept, if they fit the
 * second-level cache, until the sum is known; else they are formed twice. f32 sums for f16, bf16
 * and f32, combined in double between chunks; f64 operands go through double. Long slices that are
 * too few to divide are cut into parts, by shape alone, so that the threads' number does not
 * show in the bits. Cost: memory's, or some 14 cycles per vector for exp, in short types the more.
 */
#include "ops/softmax/softmax.h"
#include "ops/shared/cpu/convert.h"
#include "ops/shared/cpu/rows.h"
#include "ops/shared/cpu/tile.h"
#include "cpu/cpu.h"
#include "cpu/stream.h"

#include <math.h>
#include <string.h>

#define MAX_PARTS 32

typedef struct state {
    mica_tiling tiling;
    int arg[3], count; /* run arguments of the operands */
    double bytes;
    int64_t parts;
    bool wide, log, kept, packed; /* packed: short rows of floats at one distance, forward */
} state;

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)desc, (void)device, (void)why;
    return MICA_OK;
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    (void)config;
    return 1.5 * mica_roofline_ms(&mica_op_softmax, desc, device) + 3e-4;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static mica_status build(mica_plan *plan)
{
    const mica_softmax_desc *d = plan->desc;
    mica_softmax_operands o = mica_softmax_operands_of(d);
    mica_softmax_shape shape;
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_softmax_shape_make(&shape, d);
    mica_tiling *t = &s->tiling;
    bool contiguous = true;
    for (int k = 0; k < o.count; k++) {
        s->arg[k] = o.arg[k];
        t->type[k] = o.tensor[k]->dtype;
        t->along[k] = shape.axis_stride[k];
        contiguous &= t->along[k] == 1;
    }
    t->outer = shape.outer;
    t->n = shape.n;
    s->count = o.count;
    s->log = d->log;
    s->bytes = mica_op_bytes(plan->op, d);
    s->wide = mica_softmax_is_wide(&o);
    t->past_cache = mica_stream_pays(s->bytes, plan->device.cache_bytes);
    t->light = s->log == (o.count == 2); /* one exponential or none */
    mica_tiling_make(t, contiguous, s->wide);
    s->kept = mica_tiling_is_kept(t, o.count - 1);
    bool short_rows = o.count == 2 && !s->log && !s->wide && t->width == 1 && t->n <= t->chunk;
    s->packed = short_rows && t->outer.rank == 1 && mica_tiling_is_float_run(t, 0) &&
                mica_tiling_is_float_run(t, 1);
    s->parts = 1;
    if (!s->wide && t->tiles < 16 && t->n >= 4 * MICA_TILE_CHUNK)
        s->parts = least(t->n / MICA_TILE_CHUNK, MAX_PARTS);
    return MICA_OK;
}

/* A tile of a run. */
typedef struct job {
    const state *s;
    mica_tile tile;
} job;

/* ---- forward ---- */

/* 1 / sum, or log(sum), by column. */
static void forward_factors(const job *t, const mica_stats_of_slices *st, float *by)
{
    if (t->s->log)
        mica_logs(st->sum, t->tile.width, by);
    else
        for (int64_t c = 0; c < t->tile.width; c++) by[c] = 1 / (float)st->sum[c];
}

/* Results of n positions from x. */
static void forward_write(const job *t, const float *x, int64_t ld, int64_t n,
                          const mica_stats_of_slices *st, const float *by, float *y, int64_t yld)
{
    static const float zero[MICA_TILE_WIDTH];
    if (t->tile.s->width == 1) {
        if (t->s->log)
            mica_row_subtract(x, st->max[0], by[0], n, y);
        else
            mica_row_exp(x, st->max[0], by[0], 0, n, y);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        if (t->s->log)
            mica_cols_subtract(x + i * ld, st->max, by, t->tile.width, y + i * yld);
        else
            mica_cols_exp(x + i * ld, st->max, by, zero, t->tile.width, y + i * yld);
    }
}

static void forward_part(const job *t, int64_t from, int64_t to, mica_stats_of_slices *st)
{
    MICA_ALIGNED float x[MICA_TILE_CHUNK], e[MICA_TILE_CHUNK];
    int64_t ld;
    for (int64_t a = from; a < to; a += t->tile.s->chunk) {
        int64_t n = least(t->tile.s->chunk, to - a);
        const float *in = mica_tile_fetch(&t->tile, 0, a, n, x, &ld);
        mica_slices_max(&t->tile, in, ld, n, st);
        mica_slices_exp(&t->tile, in, ld, a, n, st, e, t->tile.width);
    }
}

static void forward_part_write(const job *t, int64_t from, int64_t to,
                               const mica_stats_of_slices *st)
{
    MICA_ALIGNED float x[MICA_TILE_CHUNK], y[MICA_TILE_CHUNK], by[MICA_TILE_WIDTH];
    int64_t ld, yld;
    forward_factors(t, st, by);
    for (int64_t a = from; a < to; a += t->tile.s->chunk) {
        int64_t n = least(t->tile.s->chunk, to - a);
        const float *in = mica_tile_fetch(&t->tile, 0, a, n, x, &ld);
        float *out = mica_tile_place(&t->tile, 1, a, y, &yld);
        forward_write(t, in, ld, n, st, by, out, yld);
        if (out == y) mica_tile_put(&t->tile, 1, a, n, y);
    }
}

static void forward_scale(const job *t, const float *e, int64_t eld, int64_t n, const float *by,
                          float *y, int64_t yld)
{
    if (t->tile.s->width == 1)
        mica_row_scale(e, by[0], n, y);
    else
        mica_cols_scale(e, eld, n, by, t->tile.width, y, yld);
}

/* A tile that is kept: read once, each exponential formed once, about the maximum at the time. They
 * wait where the results will be, if that is memory of floats; its lines come while exp is formed.
 */
static void forward_kept(const job *t, mica_stats_of_slices *st)
{
    MICA_ALIGNED float x[MICA_TILE_CHUNK], buffer[MICA_TILE_KEPT];
    MICA_ALIGNED float shift[MICA_TILE_SHIFTS], factor[MICA_TILE_WIDTH];
    MICA_ALIGNED double one[MICA_TILE_WIDTH];
    const mica_tiling *s = t->tile.s;
    int64_t width = t->tile.width, ld, eld;
    for (int64_t i = 0, a = 0; a < s->n; i++, a += s->chunk) {
        int64_t n = least(s->chunk, s->n - a);
        const float *in = mica_tile_fetch(&t->tile, 0, a, n, x, &ld);
        float *e = mica_tile_place(&t->tile, 1, a, buffer, &eld);
        if (e == buffer) e += a * width, mica_tile_ask_place(&t->tile, 1, a, n);
        mica_slices_max(&t->tile, in, ld, n, st);
        memcpy(shift + i * width, st->max, (size_t)width * sizeof *st->max);
        mica_slices_exp(&t->tile, in, ld, a, n, st, e, eld);
    }
    for (int64_t c = 0; c < width; c++) one[c] = 1;
    for (int64_t i = 0, a = 0; a < s->n; i++, a += s->chunk) {
        int64_t n = least(s->chunk, s->n - a);
        float *e = mica_tile_place(&t->tile, 1, a, buffer, &eld);
        bool buffered = e == buffer;
        if (buffered) e += a * width;
        mica_cols_factors(st->sum, st->max, shift + i * width, one, width, factor);
        forward_scale(t, e, eld, n, factor, e, eld);
        if (buffered) mica_tile_put(&t->tile, 1, a, n, e);
    }
}

/* A row of one chunk: nothing but three loops, for short rows are many. */
static void forward_row(const job *t)
{
    MICA_ALIGNED float x[MICA_TILE_CHUNK], y[MICA_TILE_CHUNK];
    int64_t n = t->tile.s->n, ld;
    const float *in = mica_tile_fetch(&t->tile, 0, 0, n, x, &ld);
    float *out = mica_tile_place(&t->tile, 1, 0, y, &ld);
    int64_t bytes = mica_dtype_bits(t->tile.s->type[0]) / 8;
    const void *next = t->tile.s->along[0] == 1 ? mica_tile_later(&t->tile, 0, 0) : in;
    mica_row_softmax(in, n, out, next, bytes);
    if (out == y) mica_tile_put(&t->tile, 1, 0, n, y);
}

/* A tile of one chunk, of which the logarithm is asked: the input is what is kept. */
static void forward_log(const job *t, mica_stats_of_slices *st)
{
    MICA_ALIGNED float x[MICA_TILE_CHUNK], e[MICA_TILE_CHUNK], by[MICA_TILE_WIDTH];
    int64_t n = t->tile.s->n, ld, yld;
    const float *in = mica_tile_fetch(&t->tile, 0, 0, n, x, &ld);
    mica_slices_max(&t->tile, in, ld, n, st);
    mica_slices_exp(&t->tile, in, ld, 0, n, st, e, t->tile.width);
    forward_factors(t, st, by);
    float *out = mica_tile_place(&t->tile, 1, 0, e, &yld);
    forward_write(t, in, ld, n, st, by, out, yld);
    if (out == e) mica_tile_put(&t->tile, 1, 0, n, e);
}

/* ---- backward ---- */

static void backward_add(const job *t, const float *y, int64_t yld, const float *dy, int64_t dyld,
                         int64_t n, mica_stats_of_slices *st)
{
    if (t->tile.s->width == 1) {
        st->sum[0] += (double)(t->s->log ? mica_row_sum(dy, n) : mica_row_dot(y, dy, n));
        return;
    }
    MICA_ALIGNED float sum[MICA_TILE_WIDTH] = {0};
    for (int64_t i = 0; i < n; i++) {
        if (t->s->log)
            mica_cols_sum(dy + i * dyld, t->tile.width, sum);
        else
            mica_cols_dot(y + i * yld, dy + i * dyld, t->tile.width, sum);
    }
    for (int64_t c = 0; c < t->tile.width; c++) st->sum[c] += (double)sum[c];
}

static void backward_write(const job *t, const float *y, int64_t yld, const float *dy, int64_t dyld,
                           int64_t n, const mica_stats_of_slices *st, float *dx, int64_t dxld)
{
    MICA_ALIGNED float sum[MICA_TILE_WIDTH];
    for (int64_t c = 0; c < t->tile.width; c++) sum[c] = (float)st->sum[c];
    if (t->tile.s->width == 1) {
        if (t->s->log)
            mica_row_log_softmax_bwd(y, dy, sum[0], n, dx);
        else
            mica_row_softmax_bwd(y, dy, sum[0], n, dx);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        if (t->s->log)
            mica_cols_log_softmax_bwd(y + i * yld, dy + i * dyld, sum, t->tile.width,
                                      dx + i * dxld);
        else
            mica_cols_softmax_bwd(y + i * yld, dy + i * dyld, sum, t->tile.width, dx + i * dxld);
    }
}

static void backward_part(const job *t, int64_t from, int64_t to, mica_stats_of_slices *st)
{
    MICA_ALIGNED float yb[MICA_TILE_CHUNK], dyb[MICA_TILE_CHUNK];
    int64_t yld = 0, dyld;
    for (int64_t a = from; a < to; a += t->tile.s->chunk) {
        int64_t n = least(t->tile.s->chunk, to - a);
        const float *y = t->s->log ? NULL : mica_tile_fetch(&t->tile, 0, a, n, yb, &yld);
        const float *dy = mica_tile_fetch(&t->tile, 1, a, n, dyb, &dyld);
        mica_tile_ask(&t->tile, 1, a, n);
        if (!t->s->log) mica_tile_ask(&t->tile, 0, a, n);
        backward_add(t, y, yld, dy, dyld, n, st);
    }
}

static void backward_part_write(const job *t, int64_t from, int64_t to,
                                const mica_stats_of_slices *st)
{
    MICA_ALIGNED float yb[MICA_TILE_CHUNK], dyb[MICA_TILE_CHUNK], dxb[MICA_TILE_CHUNK];
    int64_t yld, dyld, dxld;
    for (int64_t a = from; a < to; a += t->tile.s->chunk) {
        int64_t n = least(t->tile.s->chunk, to - a);
        const float *y = mica_tile_fetch(&t->tile, 0, a, n, yb, &yld),
                    *dy = mica_tile_fetch(&t->tile, 1, a, n, dyb, &dyld);
        /* read here for the first time, in one go if converted */
        if (t->s->log && t->tile.s->type[0] != MICA_F32) mica_tile_ask(&t->tile, 0, a, n);
        float *dx = mica_tile_place(&t->tile, 2, a, dxb, &dxld);
        backward_write(t, y, yld, dy, dyld, n, st, dx, dxld);
        if (dx == dxb) mica_tile_put(&t->tile, 2, a, n, dxb);
    }
}

static void backward_resident(const job *t, mica_stats_of_slices *st)
{
    MICA_ALIGNED float yb[MICA_TILE_CHUNK], dyb[MICA_TILE_CHUNK];
    int64_t n = t->tile.s->n, yld, dyld, dxld;
    const float *y = mica_tile_fetch(&t->tile, 0, 0, n, yb, &yld),
                *dy = mica_tile_fetch(&t->tile, 1, 0, n, dyb, &dyld);
    mica_tile_ask(&t->tile, 0, 0, n);
    backward_add(t, y, yld, dy, dyld, n, st);
    mica_tile_ask(&t->tile, 1, 0, n);
    float *dx = mica_tile_place(&t->tile, 2, 0, yb, &dxld);
    backward_write(t, y, yld, dy, dyld, n, st, dx, dxld);
    if (dx == yb) mica_tile_put(&t->tile, 2, 0, n, yb);
}

/* ---- f64 ---- */

enum { WIDE_CHUNK = 512, WIDE_KEPT = 16384 };

static const double *wide_fetch(const mica_tile *t, int64_t from, int64_t n, double *buffer)
{
    int64_t step = t->s->along[0], at = t->offset[0] + from * step;
    if (t->s->type[0] == MICA_F64 && step == 1) return (const double *)t->data[0] + at;
    mica_to_f64(t->s->type[0], t->data[0], at, step, buffer, n);
    return buffer;
}

static void wide_put(const mica_tile *t, int64_t from, int64_t n, const double *values)
{
    int64_t step = t->s->along[1], at = t->offset[1] + from * step;
    if (t->s->past_cache && step == 1 && t->s->type[1] == MICA_F64)
        mica_stream_copy((double *)t->data[1] + at, values, (size_t)n * sizeof *values);
    else
        mica_from_f64(t->s->type[1], t->data[1], at, step, values, n);
}

static void wide_forward(const job *j)
{
    const mica_tile *t = &j->tile;
    int64_t n = t->s->n;
    MICA_ALIGNED double in[WIDE_CHUNK], out[WIDE_CHUNK], e[WIDE_KEPT];
    double max = -INFINITY, sum = 0;
    bool kept = n <= WIDE_KEPT && !j->s->log;
    for (int64_t a = 0; a < n; a += WIDE_CHUNK) {
        int64_t m = least(n - a, WIDE_CHUNK);
        max = fmax(max, mica_row_max_f64(wide_fetch(t, a, m, in), m));
    }
    for (int64_t a = 0; a < n; a += WIDE_CHUNK) {
        int64_t m = least(n - a, WIDE_CHUNK);
        mica_tile_ask(t, 0, a, m);
        sum += mica_row_exp_sum_f64(wide_fetch(t, a, m, in), max, m, kept ? e + a : out);
    }
    double by = j->s->log ? log(sum) : 1 / sum;
    for (int64_t a = 0; a < n; a += WIDE_CHUNK) {
        int64_t m = least(n - a, WIDE_CHUNK);
        if (kept)
            mica_row_scale_f64(e + a, by, m, out);
        else if (j->s->log)
            mica_row_subtract_f64(wide_fetch(t, a, m, in), max, by, m, out);
        else
            mica_row_exp_f64(wide_fetch(t, a, m, in), max, by, m, out);
        wide_put(t, a, m, out);
    }
}

static void wide_backward(const job *j)
{
    const mica_tile *t = &j->tile;
    mica_load_fn load_y = mica_dtype_load(t->s->type[0]), load_dy = mica_dtype_load(t->s->type[1]);
    mica_store_fn store = mica_dtype_store(t->s->type[2]);
    const int64_t *stride = t->s->along;
    double sum = 0;
    for (int64_t a = 0; a < t->s->n; a++) {
        double dy = load_dy(t->data[1], t->offset[1] + a * stride[1]);
        sum += j->s->log ? dy : dy * load_y(t->data[0], t->offset[0] + a * stride[0]);
    }
    for (int64_t a = 0; a < t->s->n; a++) {
        double y = load_y(t->data[0], t->offset[0] + a * stride[0]);
        double dy = load_dy(t->data[1], t->offset[1] + a * stride[1]);
        store(t->data[2], t->offset[2] + a * stride[2],
              j->s->log ? dy - exp(y) * sum : y * (dy - sum));
    }
}

/* ---- running ---- */

static void run_tile(const job *j)
{
    const state *s = j->s;
    int64_t n = s->tiling.n;
    bool forward = s->count == 2, resident = n <= s->tiling.chunk;
    mica_stats_of_slices st;
    if (s->wide) {
        forward ? wide_forward(j) : wide_backward(j);
        return;
    }
    if (forward && resident && !s->log && s->tiling.width == 1) {
        forward_row(j);
        return;
    }
    mica_slices_clear(&st, j->tile.width);
    if (forward && s->kept && !s->log) {
        forward_kept(j, &st);
    } else if (resident) {
        forward ? forward_log(j, &st) : backward_resident(j, &st);
    } else if (forward) {
        forward_part(j, 0, n, &st);
        forward_part_write(j, 0, n, &st);
    } else {
        backward_part(j, 0, n, &st);
        backward_part_write(j, 0, n, &st);
    }
}

static void run_packed(const state *s, void *const *data, int threads)
{
    const mica_tiling *t = &s->tiling;
    int64_t x_step = t->outer.strides[0][0], y_step = t->outer.strides[1][0];
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t i = 0; i < t->tiles; i++) {
        const float *x = (const float *)data[0] + i * x_step;
        mica_row_softmax(x, t->n, (float *)data[1] + i * y_step, x + x_step, sizeof *x);
    }
}

static void run_in_parts(const job *j, int threads)
{
    const state *s = j->s;
    int64_t n = s->tiling.n, width = j->tile.width;
    bool forward = s->count == 2;
    mica_stats_of_slices part[MAX_PARTS], all;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t p = 0; p < s->parts; p++) {
        int64_t from = n * p / s->parts, to = n * (p + 1) / s->parts;
        mica_slices_clear(&part[p], width);
        forward ? forward_part(j, from, to, &part[p]) : backward_part(j, from, to, &part[p]);
    }
    mica_slices_clear(&all, width);
    for (int64_t p = 0; p < s->parts; p++) mica_slices_merge(&all, &part[p], width);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t p = 0; p < s->parts; p++) {
        int64_t from = n * p / s->parts, to = n * (p + 1) / s->parts;
        forward ? forward_part_write(j, from, to, &all) : backward_part_write(j, from, to, &all);
        mica_stream_end();
    }
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    int threads = mica_cpu_threads_for(s->bytes);
    void *data[4] = {0};
    for (int k = 0; k < s->count; k++) data[k] = r->args[s->arg[k]];
    if (s->parts > 1) {
        for (int64_t i = 0; i < s->tiling.tiles; i++)
            run_in_parts(&(job){s, mica_tile_at(&s->tiling, data, i)}, threads);
        return MICA_OK;
    }
    if (s->packed) {
        run_packed(s, data, threads);
        return MICA_OK;
    }
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
#pragma omp for schedule(static)
        for (int64_t i = 0; i < s->tiling.tiles; i++)
            run_tile(&(job){s, mica_tile_at(&s->tiling, data, i)});
        mica_stream_end();
    }
    return MICA_OK;
}

const mica_engine mica_softmax_cpu = {
    .name = "cpu", .accepts = accepts, .predict = predict, .build = build, .run = run};
