/* SPDX-License-Identifier: Apache-2.0
 * Softmax on the CPU. Slices whose axis is contiguous are worked one at a time; otherwise up to
 * MICA_TILE_WIDTH neighbouring slices side by side, so that vectors run along memory either way.
 * Data passes through chunks that stay in the first-level cache: a slice that fits one chunk is
 * read once, a longer one twice (the maximum and the sum are formed together, rescaling the sum
 * when the maximum grows). f32 sums for f16, bf16 and f32, combined in double between chunks; f64
 * operands go through double and libm. Long slices that are too few to share out are cut into
 * parts, by shape alone, so that the threads' number does not show in the bits. */
#include "ops/softmax/softmax.h"
#include "ops/shared/convert.h"
#include "ops/shared/rows.h"
#include "ops/shared/tile.h"
#include "cpu/cpu.h"

#include <math.h>

#define MAX_PARTS    32
#define SECOND_LEVEL 262144 /* elements of a slice that is worked on three times: 1 MiB */

typedef struct state {
    mica_tiling tiling;
    int arg[3], count; /* run arguments of the operands */
    double bytes;
    int64_t parts;
    bool wide, log, through_output;
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
    mica_tiling_make(t, contiguous, s->wide);
    s->through_output =
        !s->log && t->n * t->width <= SECOND_LEVEL && mica_tiling_is_float_run(t, o.count - 1);
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
    for (int64_t c = 0; c < t->tile.width; c++)
        by[c] = t->s->log ? logf((float)st->sum[c]) : 1 / (float)st->sum[c];
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

static void forward_scale(const job *t, const float *e, int64_t eld, int64_t n, const float *by,
                          float *y, int64_t yld)
{
    if (t->tile.s->width == 1)
        mica_row_scale(e, by[0], n, y);
    else
        for (int64_t i = 0; i < n; i++)
            mica_cols_scale(e + i * eld, by, t->tile.width, y + i * yld);
}

static void forward_part(const job *t, int64_t from, int64_t to, mica_stats_of_slices *st)
{
    float x[MICA_TILE_CHUNK], e[MICA_TILE_CHUNK];
    int64_t ld;
    for (int64_t a = from; a < to; a += t->tile.s->chunk) {
        int64_t n = least(t->tile.s->chunk, to - a);
        const float *in = mica_tile_fetch(&t->tile, 0, a, n, x, &ld);
        mica_slices_max(&t->tile, in, ld, n, st);
        mica_slices_exp(&t->tile, in, ld, n, st, e, t->tile.width);
    }
}

static void forward_part_write(const job *t, int64_t from, int64_t to,
                               const mica_stats_of_slices *st)
{
    float x[MICA_TILE_CHUNK], y[MICA_TILE_CHUNK], by[MICA_TILE_WIDTH];
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

/* A slice of one chunk: read once, each exponential computed once. */
static void forward_resident(const job *t, mica_stats_of_slices *st)
{
    float x[MICA_TILE_CHUNK], e[MICA_TILE_CHUNK], by[MICA_TILE_WIDTH];
    int64_t n = t->tile.s->n, ld, yld;
    const float *in = mica_tile_fetch(&t->tile, 0, 0, n, x, &ld);
    mica_slices_max(&t->tile, in, ld, n, st);
    mica_slices_exp(&t->tile, in, ld, n, st, e, t->tile.width);
    forward_factors(t, st, by);
    float *out = mica_tile_place(&t->tile, 1, 0, e, &yld);
    if (t->s->log)
        forward_write(t, in, ld, n, st, by, out, yld);
    else
        forward_scale(t, e, t->tile.width, n, by, out, yld);
    if (out == e) mica_tile_put(&t->tile, 1, 0, n, e);
}

/* A slice that stays in the second-level cache and whose results are floats: the exponentials wait
 * where the results will be, and none is computed twice. */
static void forward_through_output(const job *t, mica_stats_of_slices *st)
{
    float x[MICA_TILE_CHUNK], by[MICA_TILE_WIDTH];
    int64_t to = t->tile.s->n, ld, yld;
    for (int64_t a = 0; a < to; a += t->tile.s->chunk) {
        int64_t n = least(t->tile.s->chunk, to - a);
        const float *in = mica_tile_fetch(&t->tile, 0, a, n, x, &ld);
        mica_slices_max(&t->tile, in, ld, n, st);
    }
    for (int64_t a = 0; a < to; a += t->tile.s->chunk) {
        int64_t n = least(t->tile.s->chunk, to - a);
        const float *in = mica_tile_fetch(&t->tile, 0, a, n, x, &ld);
        float *out = mica_tile_direct(&t->tile, 1, a, &yld);
        mica_slices_exp(&t->tile, in, ld, n, st, out, yld);
    }
    forward_factors(t, st, by);
    float *out = mica_tile_direct(&t->tile, 1, 0, &yld);
    forward_scale(t, out, yld, to, by, out, yld);
}

/* ---- backward ---- */

static void backward_add(const job *t, const float *y, int64_t yld, const float *dy, int64_t dyld,
                         int64_t n, mica_stats_of_slices *st)
{
    if (t->tile.s->width == 1) {
        st->sum[0] += (double)(t->s->log ? mica_row_sum(dy, n) : mica_row_dot(y, dy, n));
        return;
    }
    float sum[MICA_TILE_WIDTH] = {0};
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
    float sum[MICA_TILE_WIDTH];
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
    float yb[MICA_TILE_CHUNK], dyb[MICA_TILE_CHUNK];
    int64_t yld = 0, dyld;
    for (int64_t a = from; a < to; a += t->tile.s->chunk) {
        int64_t n = least(t->tile.s->chunk, to - a);
        const float *y = t->s->log ? NULL : mica_tile_fetch(&t->tile, 0, a, n, yb, &yld);
        const float *dy = mica_tile_fetch(&t->tile, 1, a, n, dyb, &dyld);
        backward_add(t, y, yld, dy, dyld, n, st);
    }
}

static void backward_part_write(const job *t, int64_t from, int64_t to,
                                const mica_stats_of_slices *st)
{
    float yb[MICA_TILE_CHUNK], dyb[MICA_TILE_CHUNK], dxb[MICA_TILE_CHUNK];
    int64_t yld, dyld, dxld;
    for (int64_t a = from; a < to; a += t->tile.s->chunk) {
        int64_t n = least(t->tile.s->chunk, to - a);
        const float *y = mica_tile_fetch(&t->tile, 0, a, n, yb, &yld),
                    *dy = mica_tile_fetch(&t->tile, 1, a, n, dyb, &dyld);
        float *dx = mica_tile_place(&t->tile, 2, a, dxb, &dxld);
        backward_write(t, y, yld, dy, dyld, n, st, dx, dxld);
        if (dx == dxb) mica_tile_put(&t->tile, 2, a, n, dxb);
    }
}

static void backward_resident(const job *t, mica_stats_of_slices *st)
{
    float yb[MICA_TILE_CHUNK], dyb[MICA_TILE_CHUNK];
    int64_t n = t->tile.s->n, yld, dyld, dxld;
    const float *y = mica_tile_fetch(&t->tile, 0, 0, n, yb, &yld),
                *dy = mica_tile_fetch(&t->tile, 1, 0, n, dyb, &dyld);
    backward_add(t, y, yld, dy, dyld, n, st);
    float *dx = mica_tile_place(&t->tile, 2, 0, yb, &dxld);
    backward_write(t, y, yld, dy, dyld, n, st, dx, dxld);
    if (dx == yb) mica_tile_put(&t->tile, 2, 0, n, yb);
}

/* ---- f64 ---- */

enum { WIDE_CHUNK = 512 };

static const double *wide_fetch(const mica_tile *t, int64_t from, int64_t n, double *buffer)
{
    int64_t step = t->s->along[0], at = t->offset[0] + from * step;
    if (t->s->type[0] == MICA_F64 && step == 1) return (const double *)t->data[0] + at;
    mica_to_f64(t->s->type[0], t->data[0], at, step, buffer, n);
    return buffer;
}

static void wide_forward(const job *j)
{
    const mica_tile *t = &j->tile;
    int64_t n = t->s->n, step = t->s->along[1];
    double in[WIDE_CHUNK], out[WIDE_CHUNK], max = -INFINITY, sum = 0;
    for (int64_t a = 0; a < n; a += WIDE_CHUNK) {
        int64_t m = least(n - a, WIDE_CHUNK);
        max = fmax(max, mica_row_max_f64(wide_fetch(t, a, m, in), m));
    }
    for (int64_t a = 0; a < n; a += WIDE_CHUNK) {
        int64_t m = least(n - a, WIDE_CHUNK);
        sum += mica_row_exp_sum_f64(wide_fetch(t, a, m, in), max, m, out);
    }
    double by = j->s->log ? log(sum) : 1 / sum;
    for (int64_t a = 0; a < n; a += WIDE_CHUNK) {
        int64_t m = least(n - a, WIDE_CHUNK);
        const double *x = wide_fetch(t, a, m, in);
        if (j->s->log)
            mica_row_subtract_f64(x, max, by, m, out);
        else
            mica_row_exp_f64(x, max, by, m, out);
        mica_from_f64(t->s->type[1], t->data[1], t->offset[1] + a * step, step, out, m);
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
    mica_slices_clear(&st, j->tile.width);
    if (forward && s->through_output) {
        forward_through_output(j, &st);
    } else if (resident) {
        forward ? forward_resident(j, &st) : backward_resident(j, &st);
    } else if (forward) {
        forward_part(j, 0, n, &st);
        forward_part_write(j, 0, n, &st);
    } else {
        backward_part(j, 0, n, &st);
        backward_part_write(j, 0, n, &st);
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
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t i = 0; i < s->tiling.tiles; i++)
        run_tile(&(job){s, mica_tile_at(&s->tiling, data, i)});
    return MICA_OK;
}

const mica_engine mica_softmax_cpu = {
    .name = "cpu", .accepts = accepts, .predict = predict, .build = build, .run = run};
