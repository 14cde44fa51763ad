/* SPDX-License-Identifier: Apache-2.0
 * Resizing in f32, and in f64: a block of a row at a time. */
#include "ops/resize/cpu/resize_cpu.h"
#include "cpu/scratch.h"
#include "cpu/stream.h"
#include "ops/convert/cpu/real.h"

#include <string.h>

#if REAL_F64
#define RESIZE_LOOPS mica_resize_loops_f64
#else
#define RESIZE_LOOPS mica_resize_loops_f32
#endif

enum { LEAST_STREAM = 1024 }; /* bytes: of shorter runs past the caches too many lines are parts */

/* A block: where it lies, and the source columns that it is made of. */
typedef struct block {
    int64_t at, n;     /* columns of the result */
    int32_t low, high; /* of the source */
    int64_t part;      /* channels side by side; 1 where columns are */
    int64_t from, to;  /* offsets: without D, H, W; of the first element */
} block;

/* ---- lines: sums of rows ---- */

CLONES static void scale_run(real *restrict sum, const real *restrict v, real w, int64_t n)
{
    for (int64_t i = 0; i < n; i++) sum[i] = w * v[i];
}

CLONES static void add_run(real *restrict sum, const real *restrict v, real w, int64_t n)
{
    for (int64_t i = 0; i < n; i++) sum[i] += w * v[i];
}

CLONES static void blend_run(real *restrict sum, const real *restrict a, real u,
                             const real *restrict b, real v, int64_t n)
{
    for (int64_t i = 0; i < n; i++) sum[i] = u * a[i] + v * b[i];
}

/* The source columns of a row, of a block's channels: where they lie, or converted. */
static const real *load_line(const mica_resize_walk *w, const block *b, const void *in,
                             int64_t offset, real *buffer)
{
    const int64_t columns = b->high - b->low, step = w->from[4];
    offset += b->low * step;
    const bool beside =
        w->channels ? (step == b->part || columns == 1) : (step == 1 || columns == 1);
    if (beside && w->type == REAL_TYPE) return (const real *)in + offset;
    if (beside || !w->channels) {
        real_load(w->type, in, offset, w->channels ? 1 : step, buffer, columns * b->part);
        return buffer;
    }
    for (int64_t i = 0; i < columns; i++)
        real_load(w->type, in, offset + i * step, 1, buffer + i * b->part, b->part);
    return buffer;
}

/* The rows whose weights are not 0 are added up; false: nothing, an extrapolated row. */
static bool sum_rows(const mica_resize_walk *w, const block *b, const void *in, int64_t d,
                     int64_t h, real *line, real *loaded)
{
    const mica_resize_weights *deep = &w->axis[0], *high = &w->axis[1];
    const real *of_d = (const real *)deep->weight + d * deep->most;
    const real *of_h = (const real *)high->weight + h * high->most;
    const int64_t n = (b->high - b->low) * b->part;
    const real *waits = NULL; /* the first row, for a second */
    real by = 0;
    bool any = false;
    if (deep->first[d] < 0 || high->first[h] < 0) return false;
    for (int64_t i = 0; i < deep->most; i++)
        for (int64_t k = 0; k < high->most; k++) {
            const real weight = of_d[i] * of_h[k];
            if (weight == 0) continue;
            const int64_t offset =
                b->from + (deep->first[d] + i) * w->from[2] + (high->first[h] + k) * w->from[3];
            const real *v = load_line(w, b, in, offset, waits ? loaded + MICA_RESIZE_LINE : loaded);
            if (any)
                add_run(line, v, weight, n);
            else if (waits)
                blend_run(line, waits, by, v, weight, n), any = true, waits = NULL;
            else
                waits = v, by = weight;
        }
    if (waits) scale_run(line, waits, by, n);
    return any || waits;
}

/* ---- columns ---- */

/* What has none (-1) reads the line's first, and is replaced by the caller. */
static inline int32_t place_of(int32_t first, int32_t low)
{
    return first < low ? 0 : first - low;
}

CLONES static void columns_of_1(const int32_t *first, int32_t low, const real *weight,
                                const real *line, real *restrict out, int64_t n)
{
    for (int64_t i = 0; i < n; i++) out[i] = weight[i] * line[place_of(first[i], low)];
}

/* What has no weight is not read into the sum: it may be infinite. */
CLONES static void columns_of_2(const int32_t *first, int32_t low, const real *weight,
                                const real *line, real *restrict out, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const real *v = line + place_of(first[i], low), *w = weight + 2 * i;
        const real second = w[1] != 0 ? w[1] * v[1] : 0;
        out[i] = w[0] * v[0] + second;
    }
}

CLONES static void columns_of_4(const int32_t *first, int32_t low, const real *weight,
                                const real *line, real *restrict out, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const real *v = line + place_of(first[i], low), *w = weight + 4 * i;
        const real a = w[0] * v[0], b = w[1] != 0 ? w[1] * v[1] : 0;
        const real c = w[2] != 0 ? w[2] * v[2] : 0, d = w[3] != 0 ? w[3] * v[3] : 0;
        out[i] = a + b + (c + d);
    }
}

static void columns_of_many(const int32_t *first, int32_t low, const real *weight, int64_t most,
                            const real *line, real *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const real *v = line + place_of(first[i], low), *w = weight + most * i;
        real sum = 0;
        for (int64_t k = 0; k < most; k++)
            if (w[k] != 0) sum += w[k] * v[k];
        out[i] = sum;
    }
}

static void sum_columns(const mica_resize_weights *c, const block *b, const real *line, real *out)
{
    const int32_t *first = c->first + b->at;
    const real *weight = (const real *)c->weight + b->at * c->most;
    if (c->most == 1)
        columns_of_1(first, b->low, weight, line, out, b->n);
    else if (c->most == 2)
        columns_of_2(first, b->low, weight, line, out, b->n);
    else if (c->most == 4)
        columns_of_4(first, b->low, weight, line, out, b->n);
    else
        columns_of_many(first, b->low, weight, c->most, line, out, b->n);
}

/* Channels side by side. */
static void sum_pixels(const mica_resize_weights *c, const block *b, const real *line, real *out)
{
    for (int64_t i = 0; i < b->n; i++, out += b->part) {
        const real *w = (const real *)c->weight + (b->at + i) * c->most;
        const real *v = line + (c->first[b->at + i] - b->low) * b->part;
        if (c->first[b->at + i] < 0) continue;
        int64_t k = 1;
        if (c->most > 1 && w[1] != 0)
            blend_run(out, v, w[0], v + b->part, w[1], b->part), k = 2;
        else
            scale_run(out, v, w[0], b->part);
        for (; k < c->most; k++)
            if (w[k] != 0) add_run(out, v + k * b->part, w[k], b->part);
    }
}

/* ---- blocks ---- */

static void store_run(const mica_resize_walk *w, void *out, int64_t offset, int64_t step,
                      const real *from, int64_t n)
{
    const int64_t bytes = n * mica_dtype_bits(w->type) / 8;
    if (!w->past_cache || step != 1 || bytes < LEAST_STREAM)
        real_store(w->type, out, offset, step, from, n);
#if REAL_F64
    else
        mica_stream_f64(w->type, out, offset, from, n);
#else
    else
        mica_stream_f32(w->type, out, offset, from, n);
#endif
}

static void store_block(const mica_resize_walk *w, const block *b, void *out, const real *from)
{
    const int64_t step = w->to[4];
    if (!w->channels || step == b->part || b->n == 1) {
        store_run(w, out, b->to, w->channels ? 1 : step, from, b->n * b->part);
        return;
    }
    for (int64_t i = 0; i < b->n; i++)
        store_run(w, out, b->to + i * step, 1, from + i * b->part, b->part);
}

static void fill(real *to, real v, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] = v;
}

static void make_block(const mica_resize_walk *w, const void *in, void *out, int64_t item)
{
    const mica_resize_weights *c = &w->axis[2];
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    real *line = mica_scratch_take((MICA_RESIZE_LINE * 2) * sizeof *line);
    real *loaded = mica_scratch_take((2 * MICA_RESIZE_LINE) * sizeof *loaded);
    real *made = mica_scratch_take(MICA_RESIZE_TILE * sizeof *made);
    block b = {.part = 1};
    int64_t rest = item;
    const mica_resize_span span = w->span[rest % w->blocks];
    b.low = span.from, b.high = span.to;
    b.at = rest % w->blocks * w->block, rest /= w->blocks;
    b.n = w->w - b.at < w->block ? w->w - b.at : w->block;
    const int64_t h = rest % w->h;
    rest /= w->h;
    const int64_t d = rest % w->d;
    rest /= w->d;
    const int64_t lines = w->channels ? w->parts : w->c;
    const int64_t channel = rest % lines * (w->channels ? w->part : 1), image = rest / lines;
    if (w->channels) b.part = w->c - channel < w->part ? w->c - channel : w->part;
    b.from = image * w->from[0] + channel * w->from[1];
    b.to = image * w->to[0] + channel * w->to[1] + d * w->to[2] + h * w->to[3] + b.at * w->to[4];
    const bool any = b.high > b.low && sum_rows(w, &b, in, d, h, line, loaded);
    if (!any) {
        fill(made, (real)w->extrapolation, b.n * b.part);
    } else if (w->channels) {
        sum_pixels(c, &b, line, made);
    } else {
        sum_columns(c, &b, line, made);
    }
    for (int64_t i = 0; i < b.n && any; i++)
        if (c->first[b.at + i] < 0) fill(made + i * b.part, (real)w->extrapolation, b.part);
    store_block(w, &b, out, made);
}

void RESIZE_LOOPS(const mica_resize_walk *w, const void *in, void *out)
{
    const int threads = mica_cpu_threads_for(w->bytes);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
#pragma omp for schedule(static)
        for (int64_t i = 0; i < w->items; i++) make_block(w, in, out, i);
        mica_stream_end();
    }
}
