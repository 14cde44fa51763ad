/* SPDX-License-Identifier: Apache-2.0
 * Engine "cpu": pooling in tiles that stay in the first-level cache, tiles divided among threads.
 * Any strides and types, no workspace. Memory-bound for small windows in either order; neighbouring
 * lanes are channels where those are adjacent in memory, else columns. Every result is formed by
 * one thread in a fixed order. */
#include "ops/pool/cpu/pool_cpu.h"
#include "cpu/cpu.h"
#include "cpu/stream.h"
#include "cpu/scratch.h"
#include "ops/convert/cpu/convert.h"

#include <math.h>
#include <stdlib.h>

enum { LEAST_RUN = 16, CHANNEL_LANES = 256 };

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- rows in and out ---- */

static void load_run(const mica_pool_state *s, const void *data, int64_t offset, int64_t stride,
                     void *to, int64_t n)
{
    if (s->wide)
        mica_to_f64(s->type, data, offset, stride, to, n);
    else
        mica_to_f32(s->type, data, offset, stride, to, n);
}

void mica_pool_join(int64_t *outer, int64_t *outer_step, int64_t *inner, int64_t *inner_step)
{
    if (*inner == 1) *inner_step = *outer_step;
    if (*inner != 1 && *outer_step != *inner * *inner_step) return;
    *inner *= *outer;
    *outer = 1;
}

void mica_pool_load(const mica_pool_state *s, const void *data, int64_t offset,
                    const long long *strides, int64_t channels, int64_t columns, void *to)
{
    int64_t outer = s->channels ? columns : channels, inner = s->channels ? channels : columns;
    int64_t outer_step = strides[s->channels ? 4 : 1], inner_step = strides[s->channels ? 1 : 4];
    mica_pool_join(&outer, &outer_step, &inner, &inner_step);
    for (int64_t i = 0; i < outer; i++)
        load_run(s, data, offset + i * outer_step, inner_step,
                 mica_pool_cell(s->wide, to, i * inner), inner);
}

/* In f64 and rounded once, as on every device. */
static void scale_piece(const mica_pool_call *k, int64_t offset, int64_t stride,
                        const void *results, int64_t n)
{
    const mica_pool_state *s = k->state;
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    double *scaled = mica_scratch_take(MICA_POOL_TILE * sizeof *scaled);
    double *old = mica_scratch_take(MICA_POOL_TILE * sizeof *old);
    for (int64_t i = 0; i < n; i++)
        scaled[i] = s->wide ? ((const double *)results)[i] : (double)((const float *)results)[i];
    if (k->beta != 0) mica_to_f64(s->type, k->out, offset, stride, old, n);
    for (int64_t i = 0; i < n; i++)
        scaled[i] =
            k->beta != 0 ? fma(k->alpha, scaled[i], k->beta * old[i]) : k->alpha * scaled[i];
    mica_from_f64(s->type, k->out, offset, stride, scaled, n);
}

void mica_pool_store_run(const mica_pool_call *k, int64_t offset, int64_t stride,
                         const void *results, int64_t n)
{
    const mica_pool_state *s = k->state;
    if (k->scaled)
        for (int64_t i = 0; i < n; i += MICA_POOL_TILE)
            scale_piece(k, offset + i * stride, stride, mica_pool_cell(s->wide, results, i),
                        least(n - i, MICA_POOL_TILE));
    else if (s->wide)
        mica_from_f64(s->type, k->out, offset, stride, results, n);
    else if (s->past_cache && stride == 1 && n >= MICA_POOL_LEAST_STREAM)
        mica_stream_f32(s->type, k->out, offset, results, n);
    else
        mica_from_f32(s->type, k->out, offset, stride, results, n);
}

void mica_pool_store_tile(const mica_pool_call *k, const mica_pool_tile *t,
                          const long long *strides, void *results)
{
    const mica_pool_state *s = k->state;
    int64_t outer = s->channels ? t->wn : t->cn, inner = s->channels ? t->cn : t->wn;
    int64_t outer_step = strides[s->channels ? 4 : 1], inner_step = strides[s->channels ? 1 : 4];
    int64_t at = t->n * strides[0] + t->c * strides[1] + t->d * strides[2] + t->h * strides[3] +
                 t->w * strides[4];
    mica_pool_join(&outer, &outer_step, &inner, &inner_step);
    for (int64_t i = 0; i < outer; i++)
        mica_pool_store_run(k, at + i * outer_step, inner_step,
                            mica_pool_cell(s->wide, results, i * inner), inner);
}

/* ---- tiles ---- */

static int64_t pieces(int64_t n, int64_t size)
{
    return n > 0 ? (n - 1) / size + 1 : 0;
}

static void do_task(const mica_pool_call *k, int64_t task)
{
    const mica_pool_state *s = k->state;
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    mica_pool_buffers *buffers = mica_scratch_take(sizeof *buffers);
    mica_pool_tile t;
    t.w = task % s->tiles_w * s->tile_w, task /= s->tiles_w;
    t.h = task % s->tiles_h * s->tile_h, task /= s->tiles_h;
    t.d = task % s->rows_d, task /= s->rows_d;
    t.c = task % s->tiles_c * s->tile_c;
    t.n = task / s->tiles_c;
    t.cn = least(s->tile_c, s->c - t.c);
    t.wn = least(s->tile_w, s->columns - t.w);
    int64_t rows = least(s->tile_h, s->rows_h - t.h), end = t.h + rows;
    if (!s->backward) {
        if (s->mode != MICA_POOL_MAX) mica_pool_find_divisors(s, &t, buffers);
        mica_pool_forward_tile(k, &t, rows, buffers);
    } else if (s->planes) {
        mica_pool_planes_backward(k, &t, buffers);
    } else if (s->band) {
        mica_pool_band_tile(k, &t, rows, buffers);
    } else {
        for (; t.h < end; t.h++) mica_pool_backward_tile(k, &t, buffers);
    }
}

/* Channels by columns: a full tile, and few enough columns that one tap of each fits the source
 * buffer. */
static void choose_tile(mica_pool_state *s)
{
    int64_t columns = s->backward ? s->axes[2].x : s->axes[2].y;
    int64_t step = s->backward || s->axes[2].adaptive ? 1 : s->axes[2].stride;
    if (columns < 1) columns = 1;
    if (s->channels) {
        /* of a few columns all the channels, for longer runs in memory */
        int64_t lanes = MICA_POOL_TILE / columns;
        s->tile_c = least(s->c, lanes > CHANNEL_LANES ? lanes : CHANNEL_LANES);
        s->tile_w = least(columns, MICA_POOL_TILE / s->tile_c);
    } else {
        /* of large planes one: rows of many are too many streams of memory */
        bool large = !s->backward && s->axes[1].x * s->axes[2].x > MICA_POOL_TILE;
        s->tile_w = least(columns, MICA_POOL_TILE);
        s->tile_c = large ? 1 : least(s->c, MICA_POOL_TILE / s->tile_w);
    }
    while (s->tile_w > 1 && (s->tile_w - 1) > (MICA_POOL_SOURCE / s->tile_c - 1) / step)
        s->tile_w /= 2;
    s->rows_d = s->backward ? s->axes[0].x : s->axes[0].y;
    s->rows_h = s->backward ? s->axes[1].x : s->axes[1].y;
    s->tile_h = MICA_POOL_TILE / (s->tile_c * s->tile_w);
    if (s->band) s->tile_c = 1, s->tile_w = columns, s->tile_h = mica_pool_band_rows(s);
    s->columns = columns;
    if (s->planes) mica_pool_planes_tiles(s);
    s->tiles_c = pieces(s->c, s->tile_c), s->tiles_w = pieces(s->columns, s->tile_w);
    s->tiles_h = pieces(s->rows_h, s->tile_h);
    s->tasks = s->n * s->tiles_c * s->rows_d * s->tiles_h * s->tiles_w;
}

/* Whole rows of one channel, without gaps in y and the indices. */
static bool are_joined(const mica_pool_state *s)
{
    int64_t width = s->axes[2].y;
    bool indices = !s->index_type || (s->i[3] == width && s->i[4] == 1);
    return !s->channels && s->tile_c == 1 && s->tile_w == width && s->y[3] == width &&
           s->y[4] == 1 && indices;
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
    return 1.5 * mica_roofline_ms(&mica_op_pool, desc, device) + 5e-4;
}

static void choose(const mica_pool_desc *d, mica_pool_state *s)
{
    mica_pool_axes(d, s->axes);
    mica_pool_strides(&d->x, s->x);
    mica_pool_strides(&d->y, s->y);
    mica_pool_strides(&d->indices, s->i);
    s->type = d->x.dtype, s->index_type = d->indices.dtype;
    s->mode = d->mode;
    s->backward = d->pass == MICA_POOL_BWD;
    s->wide =
        !mica_fits_f32(s->type) || s->mode == MICA_POOL_LP || mica_pool_plane(s->axes) > INT32_MAX;
    s->samples = mica_tensor_given(&d->samples);
    if (s->samples) {
        s->wide = true;
        return;
    }
    const long long *lanes = s->x;
    s->channels = s->c > 1 && (d->x.dims[d->x.rank - 1] <= 1 || llabs(lanes[1]) < llabs(lanes[4]));
    bool long_runs = d->adaptive || s->axes[2].window >= LEAST_RUN || s->axes[2].y == 1;
    s->runs = !s->backward && !s->channels && long_runs && s->axes[2].dilation == 1;
    s->planes = mica_pool_planes_fits(s);
    s->band = !s->planes && mica_pool_band_fits(s);
    choose_tile(s);
    s->window = !s->planes && mica_pool_window_fits(s);
    s->joined = s->window && are_joined(s);
}

static mica_status build(mica_plan *plan)
{
    const mica_pool_desc *d = plan->desc;
    mica_pool_state *s, own = {.n = d->x.dims[0], .c = d->x.dims[1]};
    own.bytes = mica_op_bytes(plan->op, d);
    own.past_cache = mica_stream_pays(own.bytes, plan->device.cache_bytes);
    /* An empty result is never run. */
    bool empty = mica_tensor_count(&d->x) == 0 && mica_tensor_count(&d->y) == 0;
    if (!empty) choose(d, &own);
    int64_t table = own.planes ? mica_pool_planes_table(&own) : 0;
    MICA_TRY(mica_plan_state(plan, sizeof own + (size_t)table * sizeof *own.table, &s));
    *s = own;
    if (own.planes) mica_pool_planes_fill(s);
    return MICA_OK;
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const mica_pool_state *s = plan->state;
    mica_pool_call k = {.state = s,
                        .in = r->args[s->backward ? MICA_POOL_Y : MICA_POOL_X],
                        .out = r->args[s->backward ? MICA_POOL_X : MICA_POOL_Y],
                        .indices = s->index_type ? r->args[MICA_POOL_INDICES] : NULL,
                        .alpha = mica_run_scalar(plan, r, MICA_POOL_ALPHA),
                        .beta = mica_run_scalar(plan, r, MICA_POOL_BETA)};
    k.scaled = k.alpha != 1 || k.beta != 0;
    if (s->mode == MICA_POOL_LP) {
        mica_pool_lp_run(plan, r, &k);
        return MICA_OK;
    }
    if (s->samples) {
        mica_pool_fractional_run(plan, r, &k);
        return MICA_OK;
    }
#pragma omp parallel num_threads(mica_cpu_threads_for(s->bytes))
    {
#pragma omp for schedule(static) nowait
        for (int64_t task = 0; task < s->tasks; task++) do_task(&k, task);
        mica_stream_end();
    }
    return MICA_OK;
}

const mica_engine mica_pool_cpu = {
    .name = "cpu", .accepts = accepts, .predict = predict, .build = build, .run = run};
