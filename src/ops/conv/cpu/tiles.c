/* SPDX-License-Identifier: Apache-2.0
 * The CPU engine: any convolution as a product of matrices that are never stored. A tile of the
 * result is FIRST x SECOND: for fwd and dgrad pixels by channels, summed over (tap, channel) pairs;
 * for wgrad (tap, channel) pairs by channels, summed over pixels. Pieces of both operands are
 * gathered into packed float or double blocks on the stack and multiplied there. One side of a tile
 * lies along the vector registers (lanes), the other (rows) is broadcast. 8-bit integers are
 * multiplied in float, whose sums move to double while they are exact. */
#include "ops/conv/cpu/conv_cpu.h"

#include "cpu/cpu.h"
#include "cpu/scratch.h"
#include "ops/convert/cpu/convert.h"

#include <stddef.h>
#include <string.h>

enum { LANES = 64, ROWS = 64, DEPTH = 64, SIDE = 64 };
enum { EXACT = 256 }; /* that many products of two bytes stay below 2^24 */

/* ---- the product of two blocks ---- */

#define REAL    float
#define VECTOR  64
#define CLONES  MICA_WIDE
#define NAME(x) x##_f32_wide
#include "ops/conv/cpu/tiles_product.h"

#define REAL    float
#define VECTOR  MICA_NARROW
#define CLONES  MICA_NARROW_CLONES
#define NAME(x) x##_f32_narrow
#include "ops/conv/cpu/tiles_product.h"

#define REAL    double
#define VECTOR  64
#define CLONES  MICA_WIDE
#define NAME(x) x##_f64_wide
#include "ops/conv/cpu/tiles_product.h"

#define REAL    double
#define VECTOR  MICA_NARROW
#define CLONES  MICA_NARROW_CLONES
#define NAME(x) x##_f64_narrow
#include "ops/conv/cpu/tiles_product.h"

/* Moves exact sums on. */
MICA_CLONES
static void move_sums(float *restrict c, double *restrict total)
{
    for (int i = 0; i < ROWS * LANES; i++) {
        total[i] += (double)c[i];
        c[i] = 0;
    }
}

/* ---- gathering ---- */

/* A block that is being filled: element (i, j) at i * step_i + j * step_j; one step is 1. */
typedef struct block {
    void *data;
    bool wide;
    int64_t step_i, step_j;
} block;

/* n elements to consecutive places. */
static void row_f64(const void *data, int64_t at, int64_t stride, double *out, int64_t n)
{
    const double *p = (const double *)data + at;
    for (int64_t i = 0; i < n; i++) out[i] = p[i * stride];
}

static void copy_row(const block *b, mica_dtype type, const void *data, int64_t at, int64_t stride,
                     int64_t to, int64_t step, int64_t n)
{
    if (b->wide) {
        double *out = (double *)b->data + to, row[SIDE];
        row_f64(data, at, stride, step == 1 ? out : row, n);
        for (int64_t i = 0; step != 1 && i < n; i++) out[i * step] = row[i];
    } else {
        float *out = (float *)b->data + to, row[SIDE];
        mica_to_f32(type, data, at, stride, step == 1 ? out : row, n);
        for (int64_t i = 0; step != 1 && i < n; i++) out[i * step] = row[i];
    }
}

/* ni x nj elements from data + at, stride_i and stride_j apart, to the places (i0 + i * every, j0 +
 * j). Consecutive stores matter more than consecutive loads. */
static void copy_block(const block *b, mica_dtype type, const void *data, int64_t at,
                       int64_t stride_i, int64_t stride_j, int64_t i0, int64_t every, int64_t ni,
                       int64_t j0, int64_t nj)
{
    int64_t to = i0 * b->step_i + j0 * b->step_j;
    if (b->step_j == 1)
        for (int64_t i = 0; i < ni; i++)
            copy_row(b, type, data, at + i * stride_i, stride_j, to + i * every * b->step_i, 1, nj);
    else
        for (int64_t j = 0; j < nj; j++)
            copy_row(b, type, data, at + j * stride_j, stride_i, to + j * b->step_j,
                     every * b->step_i, ni);
}

static void zero_block(const block *b, int64_t i0, int64_t ni, int64_t j0, int64_t nj)
{
    size_t size = b->wide ? sizeof(double) : sizeof(float);
    bool by_j = b->step_j == 1;
    int64_t outer = by_j ? ni : nj, inner = by_j ? nj : ni, step = by_j ? b->step_i : b->step_j;
    char *to = (char *)b->data + (size_t)(i0 * b->step_i + j0 * b->step_j) * size;
    for (int64_t o = 0; o < outer; o++)
        memset(to + (size_t)(o * step) * size, 0, (size_t)inner * size);
}

/* Consecutive pixels of one image row. */
typedef struct run {
    int64_t start, len, n, at[3];
} run;

static int make_runs(const long long grid[3], int64_t first, int64_t count, run *runs)
{
    int made = 0;
    for (int64_t done = 0; done < count; made++) {
        int64_t rest = first + done;
        run *r = &runs[made];
        for (int d = 2; d >= 0; d--) r->at[d] = rest % grid[d], rest /= grid[d];
        r->n = rest;
        r->start = done;
        r->len = grid[2] - r->at[2] < count - done ? grid[2] - r->at[2] : count - done;
        done += r->len;
    }
    return made;
}

/* What pixels are gathered from: pairs (tap, channel) count tap * channels + channel. */
typedef struct source {
    mica_dtype type;
    const void *data;
    mica_conv_strides strides;
    mica_conv_axis axes[3];
    long long tap[3], channels;
} source;

/* Pixels of one run at one tap, `nc` channels from `c` on. */
static void gather_run(const source *s, const run *r, int64_t tap, int64_t group, int64_t c,
                       int64_t nc, const block *b, int64_t j0)
{
    int64_t t2 = tap % s->tap[2], t1 = tap / s->tap[2] % s->tap[1];
    int64_t t[3] = {tap / s->tap[2] / s->tap[1], t1, t2};
    int64_t at = r->n * s->strides.n + group * s->strides.g + c * s->strides.c;
    mica_conv_window w = mica_conv_window_of(&s->axes[2], r->at[2], r->len, t[2]);
    for (int d = 0; d < 2; d++) {
        mica_conv_window one = mica_conv_window_of(&s->axes[d], r->at[d], 1, t[d]);
        if (one.count == 0) w.count = 0;
        at += one.source * s->strides.s[d];
    }
    if (w.count < r->len) zero_block(b, r->start, r->len, j0, nc);
    if (w.count > 0)
        copy_block(b, s->type, s->data, at + w.source * s->strides.s[2],
                   s->axes[2].mul * s->strides.s[2], s->strides.c, r->start + w.first, w.step,
                   w.count, j0, nc);
}

static void gather(const source *s, const run *runs, int n_runs, int64_t group, int64_t first,
                   int64_t count, const block *b)
{
    for (int64_t j = 0; j < count;) {
        int64_t tap = (first + j) / s->channels, c = (first + j) % s->channels;
        int64_t nc = s->channels - c < count - j ? s->channels - c : count - j;
        for (int i = 0; i < n_runs; i++) gather_run(s, &runs[i], tap, group, c, nc, b, j);
        j += nc;
    }
}

/* ---- tiles ---- */

typedef struct tiling {
    const mica_conv_job *job;
    source first, second;           /* second: wgrad only */
    long long grid[3];              /* pixels: of a (dgrad) or b */
    int64_t firsts, seconds, terms; /* sizes of the product */
    int64_t first_tiles, second_tiles;
    int64_t f_second, f_channel;      /* the filter's strides by second and by the sum's channel */
    bool lanes_first, wide, integers; /* wide: blocks of double */
} tiling;

static void filter_block(const tiling *t, int64_t group, int64_t u0, int64_t nu, int64_t z0,
                         int64_t nz, const block *b)
{
    const mica_conv_geometry *g = &t->job->g;
    int64_t channels = t->first.channels;
    for (int64_t j = 0; j < nz;) {
        int64_t tap = (z0 + j) / channels, c = (z0 + j) % channels;
        int64_t nc = channels - c < nz - j ? channels - c : nz - j;
        int64_t at = g->f_base + group * g->f.g + u0 * t->f_second + c * t->f_channel +
                     tap % g->tap[2] * g->f.s[2] + tap / g->tap[2] % g->tap[1] * g->f.s[1] +
                     tap / g->tap[2] / g->tap[1] * g->f.s[0];
        copy_block(b, t->job->types[2], t->job->data[2], at, t->f_second, t->f_channel, 0, 1, nu, j,
                   nc);
        j += nc;
    }
}

/* Places of a tile's side in the output: `len` of them from `start` on. */
typedef struct place {
    int64_t start, len, offset, step, residual, residual_step;
} place;

static const mica_conv_strides *out_strides(const mica_conv_job *job)
{
    const mica_conv_strides *all[] = {&job->g.a, &job->g.b, &job->g.f};
    return all[job->out];
}

static int pixel_places(const mica_conv_job *job, const run *runs, int n_runs, place *places)
{
    const mica_conv_strides *o = out_strides(job), *r = &job->g.residual;
    for (int i = 0; i < n_runs; i++) {
        place *p = &places[i];
        *p = (place){runs[i].start, runs[i].len,      runs[i].n * o->n,
                     o->s[2],       runs[i].n * r->n, r->s[2]};
        for (int d = 0; d < 3; d++) {
            p->offset += runs[i].at[d] * o->s[d];
            p->residual += runs[i].at[d] * r->s[d];
        }
    }
    return n_runs;
}

/* wgrad: pairs (tap, channel) */
static int pair_places(const mica_conv_job *job, int64_t first, int64_t count, place *places)
{
    const mica_conv_geometry *g = &job->g;
    int made = 0;
    for (int64_t j = 0; j < count; made++) {
        int64_t tap = (first + j) / g->c, c = (first + j) % g->c;
        int64_t nc = g->c - c < count - j ? g->c - c : count - j;
        places[made] = (place){.start = j,
                               .len = nc,
                               .offset = g->f_base + c * g->f.c + tap % g->tap[2] * g->f.s[2] +
                                         tap / g->tap[2] % g->tap[1] * g->f.s[1] +
                                         tap / g->tap[2] / g->tap[1] * g->f.s[0],
                               .step = g->f.c};
        j += nc;
    }
    return made;
}

static int channel_places(const mica_conv_job *job, int64_t first, int64_t count, place *places)
{
    const mica_conv_strides *o = out_strides(job), *r = &job->g.residual;
    int64_t step = job->out == 2 ? o->n : o->c;
    places[0] = (place){0, count, first * step, step, first * r->c, r->c};
    return 1;
}

static void store_tile(const tiling *t, int64_t group, int64_t u0, const place *rows, int n_rows,
                       const place *lanes, int n_lanes, void *c)
{
    const mica_conv_job *job = t->job;
    int64_t base = group * out_strides(job)->g, residual = group * job->g.residual.g;
    int64_t channel = group * job->channels + u0;
    for (int i = 0; i < n_rows; i++)
        for (int64_t r = 0; r < rows[i].len; r++)
            for (int j = 0; j < n_lanes; j++) {
                const place *p = &lanes[j];
                int64_t row = rows[i].start + r, at = row * LANES + p->start;
                mica_conv_line line = {.n = p->len,
                                       .offset =
                                           base + p->offset + rows[i].offset + r * rows[i].step,
                                       .step = p->step,
                                       .residual = residual + p->residual + rows[i].residual +
                                                   r * rows[i].residual_step,
                                       .residual_step = p->residual_step,
                                       .channel = channel + (t->lanes_first ? row : p->start),
                                       .channel_step = !t->lanes_first};
                if (job->wide)
                    mica_conv_cpu_epilogue_f64(job, &line, (double *)c + at);
                else
                    mica_conv_cpu_epilogue_f32(job, &line, (float *)c + at);
            }
}

/* Blocks of the two operands and the sums, in float or double. */
typedef struct scratch {
    MICA_ALIGNED double rows[ROWS * DEPTH], lanes[DEPTH * LANES], c[ROWS * LANES];
    double total[ROWS * LANES]; /* of integers */
} scratch;

static void multiply(const tiling *t, scratch *s, int64_t n_rows, int64_t n_lanes, int64_t depth)
{
    int m = (int)n_rows, n = (int)n_lanes, k = (int)depth;
    bool wide = mica_cpu_is_wide();
    if (t->wide)
        (wide ? product_f64_wide : product_f64_narrow)(s->rows, s->lanes, s->c, m, n, k);
    else
        (wide ? product_f32_wide : product_f32_narrow)(
            (const float *)s->rows, (const float *)s->lanes, (float *)s->c, m, n, k);
}

static void sum_tile(const tiling *t, scratch *s, int64_t group, int64_t i0, int64_t ni, int64_t u0,
                     int64_t nu, const run *pixels, int n_pixels)
{
    bool wgrad = t->job->kind == MICA_CONV_KIND_WGRAD, lf = t->lanes_first;
    /* (row, z) lies at row * DEPTH + z, (lane, z) at z * LANES + lane */
    block first = {lf ? s->lanes : s->rows, t->wide, lf ? 1 : DEPTH, lf ? LANES : 1};
    block second = {lf ? s->rows : s->lanes, t->wide, lf ? DEPTH : 1, lf ? 1 : LANES};
    for (int64_t z0 = 0; z0 < t->terms; z0 += DEPTH) {
        int64_t nz = t->terms - z0 < DEPTH ? t->terms - z0 : DEPTH;
        if (wgrad) {
            /* here pixels are z: the first index of a gather */
            run runs[DEPTH];
            block a = {first.data, t->wide, first.step_j, first.step_i};
            block b = {second.data, t->wide, second.step_j, second.step_i};
            int n_runs = make_runs(t->grid, z0, nz, runs);
            gather(&t->first, runs, n_runs, group, i0, ni, &a);
            gather(&t->second, runs, n_runs, group, u0, nu, &b);
        } else {
            gather(&t->first, pixels, n_pixels, group, z0, nz, &first);
            filter_block(t, group, u0, nu, z0, nz, &second);
        }
        multiply(t, s, lf ? nu : ni, lf ? ni : nu, nz);
        bool last = z0 + nz == t->terms;
        if (t->integers && (last || (z0 + nz) % EXACT == 0)) move_sums((float *)s->c, s->total);
    }
}

static void do_tile(const tiling *t, int64_t index)
{
    int64_t u0 = index % t->second_tiles * SIDE, rest = index / t->second_tiles;
    int64_t i0 = rest % t->first_tiles * SIDE, group = rest / t->first_tiles;
    int64_t ni = t->firsts - i0 < SIDE ? t->firsts - i0 : SIDE;
    int64_t nu = t->seconds - u0 < SIDE ? t->seconds - u0 : SIDE;
    bool wgrad = t->job->kind == MICA_CONV_KIND_WGRAD;
    /* Rows and lanes past the tile's edge are multiplied too, so they must be numbers. */
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    scratch *s = mica_scratch_take(sizeof *s);
    memset(s, 0, t->integers ? sizeof *s : offsetof(scratch, total));
    run *pixels = mica_scratch_take(SIDE * sizeof *pixels);
    place *firsts = mica_scratch_take(SIDE * sizeof *firsts);
    place seconds[1];
    int n_pixels = wgrad ? 0 : make_runs(t->grid, i0, ni, pixels);
    sum_tile(t, s, group, i0, ni, u0, nu, pixels, n_pixels);
    int n_firsts = wgrad ? pair_places(t->job, i0, ni, firsts)
                         : pixel_places(t->job, pixels, n_pixels, firsts);
    channel_places(t->job, u0, nu, seconds);
    void *sums = t->integers ? s->total : s->c;
    if (t->lanes_first)
        store_tile(t, group, u0, seconds, 1, firsts, n_firsts, sums);
    else
        store_tile(t, group, u0, firsts, n_firsts, seconds, 1, sums);
}

static source source_of(const mica_conv_job *job, int which, int64_t channels)
{
    const mica_conv_geometry *g = &job->g;
    source s = {.type = job->types[which],
                .data = job->data[which],
                .strides = which ? g->b : g->a,
                .tap = {g->tap[0], g->tap[1], g->tap[2]},
                .channels = channels};
    mica_conv_axes(g, job->kind, s.axes);
    return s;
}

/* b by its own pixels */
static source plain_source(const mica_conv_job *job)
{
    source s = source_of(job, 1, job->g.k);
    for (int i = 0; i < 3; i++) {
        s.tap[i] = 1;
        s.axes[i] = (mica_conv_axis){.mul = 1, .div = 1, .size = job->g.out[i]};
    }
    return s;
}

static void make_tiling(const mica_conv_job *job, tiling *t)
{
    const mica_conv_geometry *g = &job->g;
    bool dgrad = job->kind == MICA_CONV_KIND_DGRAD, wgrad = job->kind == MICA_CONV_KIND_WGRAD;
    int64_t taps = g->tap[0] * g->tap[1] * g->tap[2];
    *t = (tiling){.job = job, .integers = mica_dtype_is_integer(job->types[wgrad ? 0 : 2])};
    t->wide = job->wide && !t->integers;
    memcpy(t->grid, dgrad ? g->in : g->out, sizeof t->grid);
    int64_t pixels = g->n * t->grid[0] * t->grid[1] * t->grid[2];
    t->first = source_of(job, dgrad, dgrad ? g->k : g->c);
    if (wgrad) t->second = plain_source(job);
    t->firsts = wgrad ? taps * g->c : pixels;
    t->seconds = dgrad ? g->c : g->k;
    t->terms = wgrad ? pixels : taps * t->first.channels;
    t->f_second = dgrad ? g->f.c : g->f.n;
    t->f_channel = dgrad ? g->f.n : g->f.c;
    t->first_tiles = (t->firsts + SIDE - 1) / SIDE;
    t->second_tiles = (t->seconds + SIDE - 1) / SIDE;
    /* Channels along the lanes when they are neighbours in memory, or when there are more. */
    bool channels_last = out_strides(job)->c == 1 && !wgrad;
    t->lanes_first = channels_last && t->seconds >= 32 ? false : t->firsts >= t->seconds / 2;
}

void mica_conv_tiles(const mica_conv_job *job, int threads)
{
    tiling t;
    make_tiling(job, &t);
    int64_t tiles = job->g.groups * t.first_tiles * t.second_tiles;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t i = 0; i < tiles; i++) do_tile(&t, i);
}
