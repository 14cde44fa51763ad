/* SPDX-License-Identifier: Apache-2.0
 * The CPU engine: depthwise convolutions (one channel of a and of b in each group), where a product
 * of matrices would fill one lane of sixteen. With channels next to each other in memory they lie
 * along the vector registers; otherwise the pixels of a row do. Sums are in float. */
#include "ops/conv/cpu/conv_cpu.h"

#include "cpu/cpu.h"
#include "cpu/scratch.h"
#include "ops/convert/cpu/convert.h"

#include <string.h>

enum {
    CHANNELS = 64, /* of a block, where the filter's taps allow it */
    WIDTH = 16,    /* pixels of a row at a time, with channels along the lanes */
    PACKED = 8192, /* floats of filter kept on the stack */
    TAPS = PACKED / 8,
    CHUNK = 8 /* rows of a task */
};

#define INLINE __attribute__((always_inline)) static inline

static bool is_plain(const mica_conv_job *job)
{
    return job->alpha == 1 && job->beta == 0 && !job->epilogue.steps[0] &&
           job->types[job->out] == MICA_F32;
}

bool mica_conv_is_depthwise(const mica_conv_job *job)
{
    const mica_conv_geometry *g = &job->g;
    int64_t taps = g->tap[0] * g->tap[1] * g->tap[2];
    return g->c == 1 && g->k == 1 && g->groups > 1 && !job->wide && taps <= TAPS;
}

/* What fwd and dgrad read: the other image. */
typedef struct depthwise {
    const mica_conv_job *job;
    mica_conv_axis axes[3];
    mica_conv_strides in, out;
    mica_dtype type;
    const void *data;
    long long grid[3]; /* pixels of the output */
    int64_t block;     /* channels of a task */
    bool plain;        /* sums are the results */
    bool wide;         /* vectors of 64 bytes */
} depthwise;

int64_t mica_conv_filter_at(const mica_conv_geometry *g, int64_t channel, int64_t tap)
{
    return g->f_base + channel * g->f.g + tap % g->tap[2] * g->f.s[2] +
           tap / g->tap[2] % g->tap[1] * g->f.s[1] + tap / g->tap[2] / g->tap[1] * g->f.s[0];
}

/* n elements as floats: in place where they are that already. */
static const float *floats(mica_dtype type, const void *data, int64_t at, int64_t stride,
                           float *buffer, int64_t n)
{
    if (type == MICA_F32 && stride == 1) return (const float *)data + at;
    mica_to_f32(type, data, at, stride, buffer, n);
    return buffer;
}

MICA_CLONES
static void multiply_add(float *restrict sum, const float *restrict p, const float *restrict q,
                         int64_t n)
{
    for (int64_t i = 0; i < n; i++) sum[i] += p[i] * q[i];
}

/* sum[i * every] += by * p[i] */
MICA_CLONES
static void scale_add(float *restrict sum, int64_t every, const float *restrict p, float by,
                      int64_t n)
{
    if (every == 1)
        for (int64_t i = 0; i < n; i++) sum[i] += by * p[i];
    else
        for (int64_t i = 0; i < n; i++) sum[i * every] += by * p[i];
}

/* ---- fwd and dgrad, channels along the lanes ---- */

/* Source offset of a row of the output at one (t0, t1), or false where it lies outside. */
static bool row_source(const depthwise *d, int64_t at0, int64_t at1, int64_t t0, int64_t t1,
                       int64_t *offset)
{
    mica_conv_window w0 = mica_conv_window_of(&d->axes[0], at0, 1, t0);
    mica_conv_window w1 = mica_conv_window_of(&d->axes[1], at1, 1, t1);
    *offset = w0.source * d->in.s[0] + w1.source * d->in.s[1];
    return w0.count > 0 && w1.count > 0;
}

static void channel_tile(const depthwise *d, const float *filter, int64_t base, const int64_t at[3],
                         int64_t width, int64_t n, float sum[WIDTH][CHANNELS])
{
    const mica_conv_geometry *g = &d->job->g;
    for (int64_t t0 = 0; t0 < g->tap[0]; t0++)
        for (int64_t t1 = 0; t1 < g->tap[1]; t1++) {
            int64_t row;
            if (!row_source(d, at[0], at[1], t0, t1, &row)) continue;
            for (int64_t t2 = 0; t2 < g->tap[2]; t2++) {
                mica_conv_window w = mica_conv_window_of(&d->axes[2], at[2], width, t2);
                const float *f = filter + ((t0 * g->tap[1] + t1) * g->tap[2] + t2) * d->block;
                int64_t from = base + row + w.source * d->in.s[2];
                int64_t stride = d->axes[2].mul * d->in.s[2];
                MICA_ALIGNED float buffer[CHANNELS];
                for (int64_t i = 0; i < w.count; i++) {
                    mica_to_f32(d->type, d->data, from + i * stride, 1, buffer, n);
                    multiply_add(sum[w.first + i * w.step], buffer, f, n);
                }
            }
        }
}

static void finish_pixel(const depthwise *d, int64_t image, int64_t channel, const int64_t at[3],
                         int64_t n, float *sum)
{
    const mica_conv_geometry *g = &d->job->g;
    for (int64_t i = 0; i < n; i += MICA_CONV_LINE) {
        mica_conv_line line = {.n = n - i < MICA_CONV_LINE ? n - i : MICA_CONV_LINE,
                               .step = 1,
                               .channel = channel + i,
                               .channel_step = 1,
                               .residual_step = g->residual.g};
        line.offset = image * d->out.n + channel + i + at[0] * d->out.s[0] + at[1] * d->out.s[1] +
                      at[2] * d->out.s[2];
        line.residual = image * g->residual.n + (channel + i) * g->residual.g +
                        at[0] * g->residual.s[0] + at[1] * g->residual.s[1] +
                        at[2] * g->residual.s[2];
        mica_conv_cpu_epilogue_f32(d->job, &line, sum + i);
    }
}

static void convert_rows(const depthwise *d, const float *filter, int64_t image, int64_t channel,
                         int64_t n, int64_t r0, int64_t rows)
{
    for (int64_t r = r0; r < r0 + rows; r++)
        for (int64_t w0 = 0; w0 < d->grid[2]; w0 += WIDTH) {
            int64_t at[3] = {r / d->grid[1], r % d->grid[1], w0};
            int64_t width = d->grid[2] - w0 < WIDTH ? d->grid[2] - w0 : WIDTH;
            MICA_ALIGNED float sum[WIDTH][CHANNELS] = {{0}};
            channel_tile(d, filter, image * d->in.n + channel, at, width, n, sum);
            for (int64_t w = 0; w < width; w++, at[2]++)
                finish_pixel(d, image, channel, at, n, sum[w]);
        }
}

/* ---- the same of floats: a pixel's sums stay in registers ---- */

/* What a pixel is the sum of: rows of the source and of the filter, and places in both. */
typedef struct products {
    const float *data[TAPS], *filter[TAPS];
    int64_t from[TAPS], tap[TAPS];
    int64_t rows, columns;
} products;

#define VECTOR  64
#define CLONES  MICA_WIDE
#define NAME(x) x##_wide
#include "ops/conv/cpu/depthwise_products.h"

#define VECTOR  MICA_NARROW
#define CLONES  MICA_NARROW_CLONES
#define NAME(x) x##_narrow
#include "ops/conv/cpu/depthwise_products.h"

/* A tap along a row: the next pixel that it reaches, how many are left, and from where. */
typedef struct cursor {
    int64_t next, left, from;
} cursor;

/* The taps that reach pixel w, and on to the next pixel. */
static void move_cursors(const depthwise *d, cursor *cursors, int64_t w, products *p)
{
    int64_t stride = d->axes[2].mul * d->in.s[2];
    p->columns = 0;
    for (int64_t t = 0; t < d->job->g.tap[2]; t++) {
        cursor *c = &cursors[t];
        if (c->next != w) continue;
        p->from[p->columns] = c->from, p->tap[p->columns++] = t * d->block;
        c->next = --c->left > 0 ? w + d->axes[2].div : -1;
        c->from += stride;
    }
}

/* Row r of results. */
static void float_row(const depthwise *d, const float *filter, int64_t image, int64_t channel,
                      int64_t n, int64_t r)
{
    const mica_conv_geometry *g = &d->job->g;
    int64_t at[3] = {r / d->grid[1], r % d->grid[1], 0};
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    float *sum = mica_scratch_take(PACKED * sizeof *sum);
    cursor *cursors = mica_scratch_take(TAPS * sizeof *cursors);
    products *p = mica_scratch_take(sizeof *p);
    p->rows = 0;
    for (int64_t t = 0; t < g->tap[0] * g->tap[1]; t++) {
        int64_t offset;
        if (!row_source(d, at[0], at[1], t / g->tap[1], t % g->tap[1], &offset)) continue;
        p->data[p->rows] = (const float *)d->data + image * d->in.n + channel + offset;
        p->filter[p->rows++] = filter + t * g->tap[2] * d->block;
    }
    for (int64_t t = 0; t < g->tap[2]; t++) {
        mica_conv_window w = mica_conv_window_of(&d->axes[2], 0, d->grid[2], t);
        cursors[t] = (cursor){w.count > 0 ? w.first : -1, w.count, w.source * d->in.s[2]};
    }
    float *out = (float *)d->job->data[d->job->out] + image * d->out.n + channel +
                 at[0] * d->out.s[0] + at[1] * d->out.s[1];
    void (*add)(const products *, int64_t, float *) =
        d->wide ? add_products_wide : add_products_narrow;
    for (; at[2] < d->grid[2]; at[2]++) {
        move_cursors(d, cursors, at[2], p);
        add(p, n, d->plain ? out + at[2] * d->out.s[2] : sum);
        if (!d->plain) finish_pixel(d, image, channel, at, n, sum);
    }
}

static void channel_rows(const depthwise *d, int64_t image, int64_t channel, int64_t n, int64_t r0,
                         int64_t rows)
{
    const mica_conv_geometry *g = &d->job->g;
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    float *filter = mica_scratch_take(PACKED * sizeof *filter);
    int64_t taps = g->tap[0] * g->tap[1] * g->tap[2];
    for (int64_t t = 0; t < taps; t++)
        mica_to_f32(d->job->types[2], d->job->data[2], mica_conv_filter_at(g, channel, t), g->f.g,
                    filter + t * d->block, n);
    if (d->type != MICA_F32)
        convert_rows(d, filter, image, channel, n, r0, rows);
    else
        for (int64_t r = r0; r < r0 + rows; r++) float_row(d, filter, image, channel, n, r);
}

static void by_channels(const depthwise *d, int threads)
{
    int64_t rows = d->grid[0] * d->grid[1], groups = d->job->g.groups;
    int64_t chunks = (rows + CHUNK - 1) / CHUNK, blocks = (groups + d->block - 1) / d->block;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t task = 0; task < d->job->g.n * chunks * blocks; task++) {
        int64_t channel = task % blocks * d->block, rest = task / blocks;
        int64_t r0 = rest % chunks * CHUNK, image = rest / chunks;
        channel_rows(d, image, channel, groups - channel < d->block ? groups - channel : d->block,
                     r0, rows - r0 < CHUNK ? rows - r0 : CHUNK);
    }
}

/* ---- fwd and dgrad, pixels along the lanes ---- */

static void pixel_tile(const depthwise *d, const float *filter, int64_t base, const int64_t at[3],
                       int64_t width, float *sum)
{
    const mica_conv_geometry *g = &d->job->g;
    MICA_ALIGNED float buffer[MICA_CONV_LINE];
    for (int64_t t0 = 0; t0 < g->tap[0]; t0++)
        for (int64_t t1 = 0; t1 < g->tap[1]; t1++) {
            int64_t row;
            if (!row_source(d, at[0], at[1], t0, t1, &row)) continue;
            for (int64_t t2 = 0; t2 < g->tap[2]; t2++) {
                mica_conv_window w = mica_conv_window_of(&d->axes[2], at[2], width, t2);
                if (w.count <= 0) continue;
                const float *p = floats(d->type, d->data, base + row + w.source * d->in.s[2],
                                        d->axes[2].mul * d->in.s[2], buffer, w.count);
                scale_add(sum + w.first, w.step, p, filter[(t0 * g->tap[1] + t1) * g->tap[2] + t2],
                          w.count);
            }
        }
}

static void pixel_plane(const depthwise *d, int64_t image, int64_t channel)
{
    const mica_conv_geometry *g = &d->job->g;
    float filter[TAPS];
    int64_t taps = g->tap[0] * g->tap[1] * g->tap[2];
    for (int64_t t = 0; t < taps; t++)
        mica_to_f32(d->job->types[2], d->job->data[2], mica_conv_filter_at(g, channel, t), 1,
                    filter + t, 1);
    for (int64_t r = 0; r < d->grid[0] * d->grid[1]; r++)
        for (int64_t w0 = 0; w0 < d->grid[2]; w0 += MICA_CONV_LINE) {
            int64_t at[3] = {r / d->grid[1], r % d->grid[1], w0}, left = d->grid[2] - w0;
            int64_t width = left < MICA_CONV_LINE ? left : MICA_CONV_LINE;
            MICA_ALIGNED float sum[MICA_CONV_LINE] = {0};
            pixel_tile(d, filter, image * d->in.n + channel * d->in.g, at, width, sum);
            mica_conv_line line = {.n = width,
                                   .step = d->out.s[2],
                                   .residual_step = g->residual.s[2],
                                   .channel = channel};
            line.offset = image * d->out.n + channel * d->out.g + at[0] * d->out.s[0] +
                          at[1] * d->out.s[1] + w0 * d->out.s[2];
            line.residual = image * g->residual.n + channel * g->residual.g +
                            at[0] * g->residual.s[0] + at[1] * g->residual.s[1] +
                            w0 * g->residual.s[2];
            mica_conv_cpu_epilogue_f32(d->job, &line, sum);
        }
}

static void by_pixels(const depthwise *d, int threads)
{
    int64_t groups = d->job->g.groups;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t task = 0; task < d->job->g.n * groups; task++)
        pixel_plane(d, task / groups, task % groups);
}

/* ---- wgrad ---- */

static bool wgrad_row(const depthwise *d, int64_t q0, int64_t q1, int64_t tap, int64_t *offset)
{
    const long long *t = d->job->g.tap;
    return row_source(d, q0, q1, tap / t[2] / t[1], tap / t[2] % t[1], offset);
}

/* One tap of up to CHANNELS channels: the sum over all pixels, in their order. */
static void wgrad_channels(const depthwise *d, int64_t tap, int64_t channel, int64_t n)
{
    const mica_conv_geometry *g = &d->job->g;
    MICA_ALIGNED float sum[CHANNELS] = {0}, pa[CHANNELS], pb[CHANNELS];
    int64_t rows = g->out[0] * g->out[1], row;
    mica_conv_window w = mica_conv_window_of(&d->axes[2], 0, g->out[2], tap % g->tap[2]);
    for (int64_t r = 0; r < g->n * rows; r++) {
        int64_t image = r / rows, q0 = r % rows / g->out[1], q1 = r % rows % g->out[1];
        if (!wgrad_row(d, q0, q1, tap, &row)) continue;
        int64_t a = image * g->a.n + channel + row + w.source * g->a.s[2];
        int64_t b =
            image * g->b.n + channel + q0 * g->b.s[0] + q1 * g->b.s[1] + w.first * g->b.s[2];
        for (int64_t i = 0; i < w.count; i++)
            multiply_add(sum,
                         floats(d->job->types[0], d->job->data[0], a + i * g->stride[2] * g->a.s[2],
                                1, pa, n),
                         floats(d->job->types[1], d->job->data[1], b + i * g->b.s[2], 1, pb, n), n);
    }
    mica_conv_line line = {.n = n, .offset = mica_conv_filter_at(g, channel, tap), .step = g->f.g};
    mica_conv_cpu_epilogue_f32(d->job, &line, sum);
}

/* One element: lanes hold partial sums of neighbouring pixels and are added at the end. */
static void wgrad_pixels(const depthwise *d, int64_t tap, int64_t channel)
{
    const mica_conv_geometry *g = &d->job->g;
    enum { PART = MICA_CONV_LINE };
    MICA_ALIGNED float sum[PART] = {0}, pa[PART], pb[PART];
    int64_t rows = g->out[0] * g->out[1], row;
    mica_conv_window w = mica_conv_window_of(&d->axes[2], 0, g->out[2], tap % g->tap[2]);
    for (int64_t r = 0; r < g->n * rows; r++) {
        int64_t image = r / rows, q0 = r % rows / g->out[1], q1 = r % rows % g->out[1];
        if (!wgrad_row(d, q0, q1, tap, &row)) continue;
        int64_t a = image * g->a.n + channel * g->a.g + row + w.source * g->a.s[2];
        int64_t b = image * g->b.n + channel * g->b.g + q0 * g->b.s[0] + q1 * g->b.s[1] +
                    w.first * g->b.s[2];
        int64_t step = g->stride[2] * g->a.s[2];
        for (int64_t i = 0; i < w.count; i += PART) {
            int64_t n = w.count - i < PART ? w.count - i : PART;
            multiply_add(
                sum, floats(d->job->types[0], d->job->data[0], a + i * step, step, pa, n),
                floats(d->job->types[1], d->job->data[1], b + i * g->b.s[2], g->b.s[2], pb, n), n);
        }
    }
    for (int half = PART / 2; half; half /= 2)
        for (int i = 0; i < half; i++) sum[i] += sum[i + half];
    mica_conv_line line = {.n = 1, .offset = mica_conv_filter_at(g, channel, tap)};
    mica_conv_cpu_epilogue_f32(d->job, &line, sum);
}

static void wgrad(const depthwise *d, bool channels_last, int threads)
{
    const mica_conv_geometry *g = &d->job->g;
    int64_t taps = g->tap[0] * g->tap[1] * g->tap[2], block = channels_last ? CHANNELS : 1;
    int64_t blocks = (g->groups + block - 1) / block;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t task = 0; task < blocks * taps; task++) {
        int64_t channel = task / taps * block, tap = task % taps, left = g->groups - channel;
        if (channels_last)
            wgrad_channels(d, tap, channel, left < block ? left : block);
        else
            wgrad_pixels(d, tap, channel);
    }
}

/* Of floats as many channels as the filter leaves room for, all of a pixel if can be, while there
 * is enough to do for all threads. */
static int64_t block_of(const depthwise *d, int threads)
{
    const mica_conv_geometry *g = &d->job->g;
    int64_t taps = g->tap[0] * g->tap[1] * g->tap[2], block = CHANNELS;
    int64_t chunks = (d->grid[0] * d->grid[1] + CHUNK - 1) / CHUNK * g->n;
    while (block * taps > PACKED) block /= 2;
    if (d->type != MICA_F32) return block;
    while (block < g->groups && 2 * block * taps <= PACKED &&
           (g->groups + 2 * block - 1) / (2 * block) * chunks >= 4 * threads)
        block *= 2;
    return block;
}

/* Memory, products at a quarter of the rate, and of each pixel what an epilogue takes; from times
 * on two cores. */
double mica_conv_channels_ms(const mica_conv_job *job, double bytes, double flops,
                             const mica_device_info *device)
{
    const double start_ms = 1e-3, line_ms = 20e-6, efficiency = 0.25;
    const mica_conv_geometry *g = &job->g;
    bool dgrad = job->kind == MICA_CONV_KIND_DGRAD, last = g->a.g == 1 && g->b.g == 1;
    if (job->kind == MICA_CONV_KIND_WGRAD || !last || !mica_conv_is_depthwise(job)) return 0;
    if (job->types[dgrad] != MICA_F32) return 0;
    const long long *grid = dgrad ? g->in : g->out;
    double pixels = (double)g->n * (double)grid[0] * (double)grid[1] * (double)grid[2];
    double lines = is_plain(job) ? 0 : pixels * (double)((g->groups - 1) / MICA_CONV_LINE + 1);
    return start_ms + 1.1 * bytes / (device->copy_gbps * 1e6) +
           flops / (efficiency * device->f32_tflops * 1e9) + lines * line_ms / device->units;
}

void mica_conv_depthwise(const mica_conv_job *job, int threads)
{
    const mica_conv_geometry *g = &job->g;
    bool dgrad = job->kind == MICA_CONV_KIND_DGRAD, channels_last = g->a.g == 1 && g->b.g == 1;
    depthwise d = {.job = job,
                   .in = dgrad ? g->b : g->a,
                   .out = dgrad ? g->a : g->b,
                   .type = job->types[dgrad],
                   .data = job->data[dgrad],
                   .plain = is_plain(job),
                   .wide = mica_cpu_is_wide()};
    memcpy(d.grid, dgrad ? g->in : g->out, sizeof d.grid);
    mica_conv_axes(g, job->kind, d.axes);
    d.block = block_of(&d, threads);
    if (job->kind == MICA_CONV_KIND_WGRAD)
        wgrad(&d, channels_last, threads);
    else if (channels_last)
        by_channels(&d, threads);
    else if (!mica_conv_planar(job, threads))
        by_pixels(&d, threads);
}
