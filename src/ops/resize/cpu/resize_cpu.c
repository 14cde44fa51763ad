/* SPDX-License-Identifier: Apache-2.0
 * Engine "cpu" of resize: any types and strides, forward and backward alike, from weights that the
 * plan holds. Rows (and planes) of the source are added up first, to a line that stays in the
 * cache, then its columns. Bound by memory for few taps. */
#include "ops/resize/cpu/resize_cpu.h"
#include "cpu/stream.h"

enum { MOST_ROWS = 1 << 24, LEAST_CHANNELS = 4 };

typedef struct state {
    mica_resize_walk walk;
    void (*loops)(const mica_resize_walk *w, const void *in, void *out);
} state;

static const mica_tensor *source(const mica_resize_desc *d)
{
    return d->pass == MICA_RESIZE_BWD ? &d->y : &d->x;
}
static const mica_tensor *result(const mica_resize_desc *d)
{
    return d->pass == MICA_RESIZE_BWD ? &d->x : &d->y;
}

static bool is_wide(const mica_resize_desc *d)
{
    return d->x.dtype == MICA_F64 || mica_dtype_is_integer(d->x.dtype);
}

static int64_t rows_of(const mica_resize_axis *a, bool backward)
{
    return backward ? a->x : a->y;
}

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    const mica_resize_desc *d = desc;
    const bool backward = d->pass == MICA_RESIZE_BWD;
    mica_resize_axis axes[3];
    (void)device;
    mica_resize_axes(d, axes);
    for (int a = 0; a < 3; a++) {
        const int64_t rows = rows_of(&axes[a], backward),
                      most = mica_resize_most(&axes[a], backward);
        if (axes[a].x > MOST_ROWS || axes[a].y > MOST_ROWS)
            return mica_refuse(why, "an axis has %lld elements, this engine holds weights of %d",
                               (long long)(axes[a].x > axes[a].y ? axes[a].x : axes[a].y),
                               MOST_ROWS);
        if (most > MICA_RESIZE_LINE / 4 || most * rows > 4 * (int64_t)MOST_ROWS)
            return mica_refuse(why,
                               "an element is the sum of %lld along an axis, this engine holds %d",
                               (long long)most, MICA_RESIZE_LINE / 4);
    }
    return MICA_OK;
}

/* ---- planning ---- */

/* Source columns of the block that begins at column `at`, of so many columns in all. */
static mica_resize_span span_of(const mica_resize_walk *w, int64_t at, int64_t columns)
{
    const mica_resize_weights *c = &w->axis[2];
    const int64_t end = at + w->block < w->w ? at + w->block : w->w;
    int64_t low = INT32_MAX, high = -1;
    for (int64_t i = at; i < end; i++) {
        if (c->first[i] < 0) continue;
        if (c->first[i] < low) low = c->first[i];
        if (c->first[i] > high) high = c->first[i];
    }
    if (high < 0) return (mica_resize_span){0, 0};
    high += c->most;
    return (mica_resize_span){(int32_t)low, (int32_t)(high < columns ? high : columns)};
}

static int64_t longest_span(const mica_resize_walk *w)
{
    int64_t longest = 0;
    for (int64_t i = 0; i < w->w; i += w->block) {
        const mica_resize_span s = span_of(w, i, INT32_MAX);
        longest = s.to - s.from > longest ? s.to - s.from : longest;
    }
    return longest;
}

static void choose_blocks(mica_resize_walk *w)
{
    const int64_t fits = MICA_RESIZE_LINE / w->axis[2].most;
    w->part = w->channels ? w->c : 1;
    if (w->part > MICA_RESIZE_TILE) w->part = MICA_RESIZE_TILE;
    if (w->part > fits) w->part = fits;
    w->parts = w->channels ? (w->c + w->part - 1) / w->part : 1;
    w->block = MICA_RESIZE_TILE / w->part;
    if (w->block > w->w) w->block = w->w;
    while (w->block > 1 && longest_span(w) * w->part > MICA_RESIZE_LINE)
        w->block = (w->block + 1) / 2;
    w->blocks = (w->w + w->block - 1) / w->block;
    w->items = w->n * (w->channels ? w->parts : w->c) * w->d * w->h * w->blocks;
}

/* Where the tables of an axis lie behind the state: weights, firsts, and a row in f64. */
typedef struct place {
    int64_t rows, most, weight, first, row;
} place;

static void make_weights(const mica_resize_axis *a, bool backward, bool wide, double by,
                         const place *p, char *memory, mica_resize_weights *to)
{
    int32_t *first = (int32_t *)(void *)(memory + p->first);
    double *row = (double *)(void *)(memory + p->row);
    *to = (mica_resize_weights){first, memory + p->weight, p->rows, p->most};
    for (int64_t i = 0; i < p->rows; i++) {
        first[i] = (int32_t)mica_resize_row(a, backward, i, row, p->most);
        for (int64_t k = 0; k < p->most; k++)
            if (wide)
                ((double *)(void *)(memory + p->weight))[i * p->most + k] = by * row[k];
            else
                ((float *)(void *)(memory + p->weight))[i * p->most + k] = (float)(by * row[k]);
    }
}

static int64_t place_tables(const mica_resize_axis *a, bool backward, int64_t bytes, place *p)
{
    p->rows = rows_of(a, backward), p->most = mica_resize_most(a, backward);
    p->weight = (bytes + 63) / 64 * 64;
    p->row = p->weight + p->rows * p->most * (int64_t)sizeof(double);
    p->first = p->row + p->most * (int64_t)sizeof(double);
    return p->first + p->rows * (int64_t)sizeof(int32_t);
}

static mica_status build(mica_plan *plan)
{
    const mica_resize_desc *d = plan->desc;
    const bool backward = d->pass == MICA_RESIZE_BWD, wide = is_wide(d);
    mica_resize_axis axes[3];
    place places[3];
    int64_t bytes = sizeof(state);
    state *s;
    mica_resize_axes(d, axes);
    const bool empty = mica_tensor_count(result(d)) == 0 || mica_tensor_count(source(d)) == 0;
    for (int a = 0; a < 3 && !empty; a++)
        bytes = place_tables(&axes[a], backward, bytes, &places[a]);
    const int64_t spans = (bytes + 63) / 64 * 64;
    if (!empty) bytes = spans + places[2].rows * (int64_t)sizeof(mica_resize_span);
    MICA_TRY(mica_plan_state(plan, (size_t)bytes, &s));
    mica_resize_walk *w = &s->walk;
    s->loops = wide ? mica_resize_loops_f64 : mica_resize_loops_f32;
    if (empty) return MICA_OK;
    /* Magnitudes of cubic weights add up to more than 1: an eighth of a line stays below the type's
     * end. */
    const double part =
        d->mode == MICA_RESIZE_CUBIC && !mica_dtype_is_integer(d->x.dtype) ? 0.125 : 1;
    const double by[] = {1, part, 1 / part};
    for (int a = 0; a < 3; a++)
        make_weights(&axes[a], backward, wide, by[a], &places[a], (char *)s, &w->axis[a]);
    mica_resize_strides(source(d), w->from);
    mica_resize_strides(result(d), w->to);
    w->type = d->x.dtype;
    w->n = d->x.dims[0], w->c = d->x.dims[1];
    w->d = places[0].rows, w->h = places[1].rows, w->w = places[2].rows;
    w->channels = w->c >= LEAST_CHANNELS && w->from[1] == 1 && w->to[1] == 1;
    w->extrapolation = backward ? 0 : d->extrapolation;
    w->bytes = mica_op_bytes(plan->op, d);
    w->past_cache = mica_stream_pays(w->bytes, plan->device.cache_bytes);
    choose_blocks(w);
    mica_resize_span *span = (mica_resize_span *)(void *)((char *)s + spans);
    w->span = span;
    for (int64_t b = 0; b < w->blocks; b++)
        span[b] = span_of(w, b * w->block, backward ? axes[2].y : axes[2].x);
    return MICA_OK;
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    const mica_resize_desc *d = plan->desc;
    const bool backward = d->pass == MICA_RESIZE_BWD;
    if (s->walk.items == 0) return MICA_OK;
    s->loops(&s->walk, r->args[backward ? MICA_RESIZE_Y : MICA_RESIZE_X],
             r->args[backward ? MICA_RESIZE_X : MICA_RESIZE_Y]);
    return MICA_OK;
}

const mica_engine mica_resize_cpu = {.name = "cpu",
                                     .accepts = accepts,
                                     .reached = 0.5,
                                     .start_ms = 3e-4,
                                     .build = build,
                                     .run = run};
