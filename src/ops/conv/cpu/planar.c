/* SPDX-License-Identifier: Apache-2.0
 * The CPU engine: depthwise convolutions whose pixels, not channels, are neighbours, forward and,
 * with a stride of 1, back. A band of rows of one channel is converted to float once, with its
 * padding, pixels sorted by their place within the stride; then each tap is one run of neighbours
 * for a row of results, which stays in registers while all taps are added to it. */
#include "ops/conv/cpu/conv_cpu.h"

#include "cpu/cpu.h"
#include "cpu/stream.h"
#include "cpu/scratch.h"
#include "ops/convert/cpu/convert.h"

#include <string.h>

enum {
    WIDTH = 256,  /* results of a row at once */
    SLACK = 32,   /* floats behind a run that may be read; results past the row's end are left */
    BAND = 16384, /* floats of rows */
    ROWS = 64,    /* of a band's sources, at most */
    TAPS = 1024,
    MOST_EVERY = 8, /* the stride along rows */
    FAR = 1 << 20   /* steps beyond which counts might not be numbers any more */
};

#define INLINE __attribute__((always_inline)) static inline

/* Eight floats, wherever floats may lie. */
typedef float lanes __attribute__((vector_size(32), aligned(4), may_alias));

/* A task: rows of results of one channel, and where their sources lie. */
typedef struct band {
    const mica_conv_job *job;
    mica_conv_axis axes[3];
    mica_conv_strides in, out;
    mica_dtype type;
    const void *data;
    long long grid[3];
    int64_t rows;              /* of results, of a task */
    int64_t reach, run, width; /* of a row: source pixels, floats of one place, results */
    int64_t lines;             /* of sources for each tap of the first axis */
} band;

/* Of a row's or a line's sources: where the first one lies beside tap 0's, and how far apart the
 * taps are. */
static int64_t nearest(const mica_conv_axis *x, int64_t taps)
{
    return x->per_tap > 0 ? -(taps - 1) * x->per_tap : 0;
}

static int64_t span_of(const mica_conv_axis *x, int64_t taps)
{
    int64_t per = x->per_tap < 0 ? -x->per_tap : x->per_tap;
    return (taps - 1) * per;
}

static int64_t source_of(const mica_conv_axis *x, int64_t pixel, int64_t tap)
{
    return pixel * x->mul + x->add - tap * x->per_tap;
}

static int64_t lines_of(const band *b, int64_t rows)
{
    return (rows - 1) * b->axes[1].mul + span_of(&b->axes[1], b->job->g.tap[1]) + 1;
}

/* False where the job is another's, or a band does not fit. */
static bool make_band(const mica_conv_job *job, band *b)
{
    const mica_conv_geometry *g = &job->g;
    bool dgrad = job->kind == MICA_CONV_KIND_DGRAD;
    if (job->kind == MICA_CONV_KIND_WGRAD || !mica_conv_is_depthwise(job)) return false;
    *b = (band){.job = job,
                .in = dgrad ? g->b : g->a,
                .out = dgrad ? g->a : g->b,
                .type = job->types[dgrad],
                .data = job->data[dgrad]};
    memcpy(b->grid, dgrad ? g->in : g->out, sizeof b->grid);
    mica_conv_axes(g, job->kind, b->axes);
    for (int d = 0; d < 3; d++) {
        const mica_conv_axis *x = &b->axes[d];
        if (x->div != 1 || x->mul > FAR || x->per_tap > FAR || x->per_tap < -FAR) return false;
    }
    if (b->grid[2] < 1 || g->tap[0] * g->tap[1] * g->tap[2] > TAPS) return false;
    int64_t every = b->axes[2].mul;
    if (every > MOST_EVERY || span_of(&b->axes[2], g->tap[2]) > TAPS - MOST_EVERY) return false;
    b->width = b->grid[2] < WIDTH ? b->grid[2] : WIDTH;
    b->reach = (b->width - 1) * every + span_of(&b->axes[2], g->tap[2]) + 1;
    b->run = (b->reach + every - 1) / every + SLACK;
    for (b->rows = b->grid[1] < ROWS ? b->grid[1] : ROWS; b->rows > 0;
         b->rows = b->rows > 16 ? 16 : b->rows - 1) {
        b->lines = lines_of(b, b->rows);
        if (g->tap[0] * b->lines <= ROWS && g->tap[0] * b->lines * b->run * every <= BAND) break;
    }
    return b->rows > 0;
}

/* n neighbours of the row as floats: in place where they are that already. With a stride there is
 * less to compute than to wait for. */
static const float *read_row(const band *b, int64_t at, int64_t n, float *buffer)
{
    int64_t bytes = mica_dtype_bits(b->type) / 8;
    if (b->in.s[2] == 1 && b->axes[2].mul > 1)
        mica_fetch_ahead((const char *)b->data + at * bytes + MICA_AHEAD,
                         n * bytes < MICA_AHEAD ? n * bytes : MICA_AHEAD);
    if (b->type == MICA_F32 && b->in.s[2] == 1) return (const float *)b->data + at;
    mica_to_f32(b->type, b->data, at, b->in.s[2], buffer, n);
    return buffer;
}

/* The same for all lines of a band: elements [from, end) of `reach` are there; the first `head` of
 * them come before `whole` times all places, of which the first is in column `at`. */
typedef struct span {
    int64_t first, from, end;
    int64_t head, at, whole;
    int64_t begin[MOST_EVERY], past[MOST_EVERY]; /* columns of a place that are there */
} span;

/* Elements below n that have place p. */
static int64_t count_of(int64_t n, int64_t p, int64_t every)
{
    return n > p ? (n - p + every - 1) / every : 0;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* From source position `first` on. */
static span make_span(const band *b, int64_t first)
{
    const int64_t every = b->axes[2].mul;
    span s = {.first = first, .from = least(first < 0 ? -first : 0, b->reach)};
    s.end = least(b->axes[2].size - first, b->reach);
    if (s.end < s.from) s.end = s.from;
    s.at = (s.from + every - 1) / every;
    s.head = least(s.at * every, s.end) - s.from;
    s.whole = (s.end - s.from - s.head) / every;
    for (int64_t p = 0; p < every; p++) {
        s.begin[p] = count_of(s.from, p, every);
        s.past[p] = count_of(s.end, p, every);
    }
    return s;
}

/* Elements to their places, with a stride of two or more. */
MICA_CLONES
static void sort_places(const float *restrict row, const span *s, int64_t every, float *restrict to,
                        int64_t run)
{
    const int64_t before = s->at * every - s->from; /* place 0 */
    for (int64_t i = 0; i < s->head; i++) to[(every - before + i) * run + s->at - 1] = row[i];
    row += s->head;
    to += s->at;
    if (every == 2)
        for (int64_t i = 0; i < s->whole; i++) to[i] = row[2 * i], to[run + i] = row[2 * i + 1];
    else
        for (int64_t i = 0; i < s->whole; i++)
            for (int64_t p = 0; p < every; p++) to[p * run + i] = row[i * every + p];
    const int64_t done = s->whole * every, rest = s->end - s->from - s->head - done;
    for (int64_t p = 0; p < rest; p++) to[p * run + s->whole] = row[done + p];
}

/* Zeros from element `from` on, up to `to`. */
static void clear(float *row, int64_t from, int64_t to)
{
    if (from < to) memset(row + from, 0, (size_t)(to - from) * sizeof *row);
}

/* One row of sources, zeros where there is none. */
static void make_line(const band *b, int64_t base, const span *s, float *to)
{
    const int64_t every = b->axes[2].mul, n = s->end - s->from;
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    float *buffer = mica_scratch_take((WIDTH * MOST_EVERY + TAPS) * sizeof *buffer);
    const float *row = read_row(b, base + (s->first + s->from) * b->in.s[2], n, buffer);
    if (every == 1)
        memcpy(to + s->from, row, (size_t)n * sizeof *to);
    else
        sort_places(row, s, every, to, b->run);
    for (int64_t p = 0; p < every; p++) {
        clear(to + p * b->run, 0, s->begin[p]);
        clear(to + p * b->run, s->past[p], b->run);
    }
}

/* Sums of so many vectors, in registers. */
INLINE void add_block(float *sum, const float *const *runs, const float *weights, int64_t taps,
                      int64_t at, int vectors)
{
    lanes a = {0}, b = {0}, c = {0}, d = {0};
    for (int64_t t = 0; t < taps; t++) {
        const lanes *v = (const lanes *)(runs[t] + at);
        const float w = weights[t];
        a += w * v[0];
        if (vectors > 1) b += w * v[1];
        if (vectors > 2) c += w * v[2], d += w * v[3];
    }
    lanes *to = (lanes *)(sum + at);
    to[0] = a;
    if (vectors > 1) to[1] = b;
    if (vectors > 2) to[2] = c, to[3] = d;
}

/* sum[i] = the taps' weights times their runs, for n results and some behind them. */
MICA_CLONES
static void add_taps(float *sum, const float *const *runs, const float *weights, int64_t taps,
                     int64_t n)
{
    for (int64_t i = 0; i < n; i += SLACK)
        if (n - i > 16)
            add_block(sum, runs, weights, taps, i, 4);
        else if (n - i > 8)
            add_block(sum, runs, weights, taps, i, 2);
        else
            add_block(sum, runs, weights, taps, i, 1);
}

static void finish_row(const band *b, int64_t image, int64_t channel, const int64_t at[3],
                       int64_t width, float *sum)
{
    const mica_conv_geometry *g = &b->job->g;
    for (int64_t w = 0; w < width; w += MICA_CONV_LINE) {
        mica_conv_line line = {.n = width - w < MICA_CONV_LINE ? width - w : MICA_CONV_LINE,
                               .step = b->out.s[2],
                               .residual_step = g->residual.s[2],
                               .channel = channel};
        line.offset = image * b->out.n + channel * b->out.g + at[0] * b->out.s[0] +
                      at[1] * b->out.s[1] + (at[2] + w) * b->out.s[2];
        line.residual = image * g->residual.n + channel * g->residual.g + at[0] * g->residual.s[0] +
                        at[1] * g->residual.s[1] + (at[2] + w) * g->residual.s[2];
        mica_conv_cpu_epilogue_f32(b->job, &line, sum + w);
    }
}

/* Rows [at[1], at[1] + rows) of results, columns [at[2], at[2] + width). */
static void do_band(const band *b, int64_t image, int64_t channel, const float *filter,
                    const int64_t at[3], int64_t rows, int64_t width)
{
    const mica_conv_geometry *g = &b->job->g;
    const int64_t every = b->axes[2].mul, taps1 = g->tap[1], taps2 = g->tap[2];
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    float *memory = mica_scratch_take(BAND * sizeof *memory);
    float *sum = mica_scratch_take((WIDTH + SLACK) * sizeof *sum);
    bool there[ROWS] = {false};
    const float **runs = mica_scratch_take(TAPS * sizeof *runs);
    float *weights = mica_scratch_take(TAPS * sizeof *weights);
    int64_t base = image * b->in.n + channel * b->in.g;
    int64_t low1 = at[1] * b->axes[1].mul + b->axes[1].add + nearest(&b->axes[1], taps1);
    int64_t low2 = at[2] * every + b->axes[2].add + nearest(&b->axes[2], taps2);
    const span s = make_span(b, low2);
    /* of a tap's run in a row of sources */
    int64_t *places = mica_scratch_take(TAPS * sizeof *places);
    for (int64_t t2 = 0; t2 < taps2; t2++) {
        int64_t o = b->axes[2].add + at[2] * every - t2 * b->axes[2].per_tap - low2;
        places[t2] = o % every * b->run + o / every;
    }
    for (int64_t r = 0; r < rows; r++) {
        int64_t count = 0;
        for (int64_t t0 = 0; t0 < g->tap[0]; t0++)
            for (int64_t t1 = 0; t1 < taps1; t1++) {
                int64_t s0 = source_of(&b->axes[0], at[0], t0);
                int64_t s1 = source_of(&b->axes[1], at[1] + r, t1);
                if (s0 < 0 || s0 >= b->axes[0].size || s1 < 0 || s1 >= b->axes[1].size) continue;
                int64_t line = t0 * b->lines + s1 - low1;
                float *row = memory + line * b->run * every;
                if (!there[line]) make_line(b, base + s0 * b->in.s[0] + s1 * b->in.s[1], &s, row);
                there[line] = true;
                const float *own = filter + (t0 * taps1 + t1) * taps2;
                for (int64_t t2 = 0; t2 < taps2; t2++) {
                    runs[count] = row + places[t2];
                    weights[count++] = own[t2];
                }
            }
        add_taps(sum, runs, weights, count, width);
        finish_row(b, image, channel, (const int64_t[]){at[0], at[1] + r, at[2]}, width, sum);
    }
}

static void do_task(const band *b, int64_t plane, int64_t r0, int64_t at0, int64_t w0)
{
    const mica_conv_geometry *g = &b->job->g;
    MICA_ALIGNED float filter[TAPS];
    int64_t channel = plane % g->groups, taps = g->tap[0] * g->tap[1] * g->tap[2];
    int64_t rows = b->grid[1] - r0 < b->rows ? b->grid[1] - r0 : b->rows;
    int64_t width = b->grid[2] - w0 < b->width ? b->grid[2] - w0 : b->width;
    for (int64_t t = 0; t < taps; t += g->tap[2])
        mica_to_f32(b->job->types[2], b->job->data[2], mica_conv_filter_at(g, channel, t),
                    g->f.s[2], filter + t, g->tap[2]);
    do_band(b, plane / g->groups, channel, filter, (const int64_t[]){at0, r0, w0}, rows, width);
}

/* Memory, products, and what a row of results costs besides; from times on two cores. */
double mica_conv_planar_ms(const mica_conv_job *job, double bytes, double flops,
                           const mica_device_info *device)
{
    const double start_ms = 1e-3, row_ms = 50e-6, tap_ms = 0.8e-6, efficiency = 0.45;
    const mica_conv_geometry *g = &job->g;
    band b;
    if (!make_band(job, &b)) return 0;
    double rows = (double)g->n * (double)g->groups * (double)b.grid[0] * (double)b.grid[1] *
                  (double)((b.grid[2] - 1) / b.width + 1);
    double taps = (double)(g->tap[0] * g->tap[1] * g->tap[2]);
    return start_ms + 1.2 * bytes / (device->copy_gbps * 1e6) +
           flops / (efficiency * device->f32_tflops * 1e9) +
           rows * (row_ms + taps * tap_ms) / device->units;
}

bool mica_conv_planar(const mica_conv_job *job, int threads)
{
    band b;
    if (!make_band(job, &b)) return false;
    int64_t chunks = (b.grid[1] + b.rows - 1) / b.rows;
    int64_t pieces = (b.grid[2] + b.width - 1) / b.width;
    int64_t each = chunks * pieces * b.grid[0];
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t task = 0; task < job->g.n * job->g.groups * each; task++) {
        int64_t inside = task % each;
        do_task(&b, task / each, inside % chunks * b.rows, inside / chunks / pieces,
                inside / chunks % pieces * b.width);
    }
    return true;
}
