/* SPDX-License-Identifier: Apache-2.0
 * Tiles of depthwise_slide.cu, where a thread goes down a strip of columns of two channels:
 * which problems have them, and their choice. They win where the multiply-adds leave room beside
 * memory, up to 5 x 5 taps: an element costs one conversion, and nothing passes through shared
 * memory. */
#include "ops/conv/depthwise/depthwise.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_STEP = 1 << 20,
    MOST_THREADS = 256,
    MOST_CODE = 2500,
    MOST_ROWS = 64,
    MOST_REGISTERS = 184,
    MOST_HELD = 25,
    MOST_WITH_HELD = 168
};

bool conv_depthwise_slides(const conv_depthwise_shape *s)
{
    return !s->roles.wgrad && s->one_plane && s->g.k == 1 && s->to.c == 1 && s->vector % 2 == 0 &&
           s->paired && s->size_from[1] > 0 && s->size_from[2] > 0 &&
           llabs(s->from.s[2]) < MOST_STEP && llabs(s->to.s[2]) < MOST_STEP;
}

/* ---- strips ---- */

/* As in the kernel: rows that a step finishes, lines that it reads, steps at a time, columns of a
 * strip. */
typedef struct strip {
    int step_rows, step_lines, live, window;
} strip;

static int before(const conv_depthwise_shape *s, int axis)
{
    return (int)((s->g.tap[axis] - 1) * s->g.dilation[axis] / s->g.stride[axis]);
}

static strip strip_of(const conv_depthwise_shape *s, const conv_depthwise_tile *t)
{
    int stride = (int)s->g.stride[1], across = (int)s->g.stride[2];
    strip p = {.live = before(s, 1) + 1};
    p.step_rows = s->roles.dgrad ? stride : 1;
    p.step_lines = s->roles.dgrad ? 1 : stride;
    p.window = s->roles.dgrad
                   ? (t->thread_w - 1) / across + before(s, 2) + 1
                   : (t->thread_w - 1) * across + (int)((s->g.tap[2] - 1) * s->g.dilation[2]) + 1;
    return p;
}

static int clamped(long long n, int most)
{
    return n < 0 ? 0 : n > most ? most : (int)n;
}

/* Of `count` columns that start at `first` in the first strip, at `last` in the last one: those
 * inside an image of `size` in all strips, and in any. */
static void columns_inside(long long first, long long last, int count, long long size, int sure[2],
                           int ever[2])
{
    sure[0] = clamped(-first, count);
    sure[1] = clamped(size - last, count);
    if (sure[1] < sure[0]) sure[1] = sure[0];
    ever[0] = clamped(-last, count);
    ever[1] = clamped(size - first, count);
}

conv_depthwise_columns conv_depthwise_slide_columns(const conv_depthwise_shape *s,
                                                    const conv_depthwise_tile *t)
{
    conv_depthwise_columns c;
    int ever[2], stride = (int)s->g.stride[2];
    long long shift = conv_depthwise_shift(s, 2), origin = conv_depthwise_origin(s, 2);
    long long last = (s->size_to[2] + shift - 1) / t->thread_w * t->thread_w;
    long long from = s->roles.dgrad ? last / stride : last * stride;
    columns_inside(origin, origin + from, strip_of(s, t).window, s->size_from[2], c.read_sure,
                   c.read_ever);
    columns_inside(-shift, last - shift, t->thread_w, s->size_to[2], c.write_sure, ever);
    return c;
}

/* Products of a strip's row with a row of taps that are not with zeros. */
static int products(const conv_depthwise_shape *s, const conv_depthwise_tile *t)
{
    conv_depthwise_columns c = conv_depthwise_slide_columns(s, t);
    int stride = (int)s->g.stride[2], dilation = (int)s->g.dilation[2], count = 0;
    for (int o = 0; o < t->thread_w; o++)
        for (int i = 0; i < s->g.tap[2]; i++) {
            int at = o * stride + i * dilation, u = o - i * dilation + before(s, 2) * stride;
            if (s->roles.dgrad && u % stride) continue;
            if (s->roles.dgrad) at = u / stride;
            count += at >= c.read_ever[0] && at < c.read_ever[1];
        }
    return count;
}

/* ---- tiles ---- */

/* Lines are in registers as they were read, the one at hand and the next; weights in shared memory
 * are loaded ahead. */
static int registers_of(const conv_depthwise_shape *s, const conv_depthwise_tile *t, const strip *p,
                        bool held)
{
    int sums = p->live * p->step_rows * t->thread_w * 2, lines = p->window * s->bytes;
    int weights = 2 * t->rows * (int)s->g.tap[2], ahead = 32 / p->step_rows;
    if (!held && weights > ahead) weights = ahead;
    return sums + lines + weights + 42;
}

/* Blocks of a multiprocessor. The compiler divides registers among warps by fours. */
static int blocks_by_registers(int threads, int registers)
{
    int blocks = 16;
    while (blocks > 1 && (blocks * threads + 127) / 128 * 128 * ((registers + 7) / 8 * 8) > 65536)
        blocks--;
    return blocks;
}

/* Instructions of a thread from a block's start to its end. */
static double thread_issue(const conv_depthwise_shape *s, const conv_depthwise_tile *t,
                           const strip *p)
{
    conv_depthwise_columns c = conv_depthwise_slide_columns(s, t);
    int convert = s->bytes == 2 ? 2 : 0, read = c.read_ever[1] - c.read_ever[0];
    int unsure = read - (c.read_sure[1] - c.read_sure[0]);
    double rows = (double)t->rows / p->step_lines; /* of taps, for one line */
    double line = read * (1 + convert) + 2 * unsure + rows * products(s, t) * 2 + 20;
    if (!t->held) line += rows * (double)s->g.tap[2];
    double step = p->step_rows * (t->thread_w * 4 + 14);
    int turn = t->thread_h / p->step_rows;
    /* sums and the line at hand change registers */
    if (turn % p->live) step += (p->live * p->step_rows * t->thread_w * 2.0 + p->window) / turn;
    double steps = (double)t->tile_h / p->step_rows + p->live - 1;
    double lines = steps * p->step_lines, runs = ceil((double)s->size_to[1] / t->tile_h);
    if (lines > (double)s->size_from[1] / runs + p->live * p->step_lines)
        lines = (double)s->size_from[1] / runs + p->live * p->step_lines;
    /* the lines above and below the image */
    lines = fmax(lines - 2 * (double)s->g.pad[1] / runs, 1);
    double filter = t->rows * (double)s->g.tap[2];
    int threads = t->channels / 2 * t->groups;
    return lines * line + steps * step + filter * (t->channels * 12.0 / threads + 1) + 120;
}

static double tile_cycles(const conv_depthwise_shape *s, const conv_depthwise_tile *t,
                          const strip *p)
{
    const double latency = 900, bytes_each_cycle = 20;
    int warps = (t->channels / 2 * t->groups + 31) / 32;
    double lines = ((double)t->tile_h / p->step_rows + p->live - 1) * p->step_lines;
    double issue = thread_issue(s, t, p) * warps / 4 / 0.85;
    /* a warp has one line on its way */
    double wait = (lines + 2) * latency / t->blocks;
    double across =
        (double)t->tile_w / (s->roles.dgrad ? (double)s->g.stride[2] : 1 / (double)s->g.stride[2]);
    double fill = (across * lines + (double)t->tile_w * t->tile_h) * t->channels * s->bytes /
                  bytes_each_cycle;
    double work = sqrt(issue * issue + wait * wait);
    return fmax(work, fill) + 0.15 * fmin(work, fill);
}

bool conv_depthwise_slide_complete(const conv_depthwise_shape *s, const mica_device_info *device,
                                   conv_depthwise_tile *t)
{
    if (!conv_depthwise_slides(s)) return false;
    t->rows = (int)s->g.tap[1];
    strip p = strip_of(s, t);
    int taps = t->rows * (int)s->g.tap[2], pairs = t->channels / 2;
    if (t->thread_h % p.step_rows || t->tile_h % p.step_rows) return false;
    t->groups = t->tile_w / t->thread_w;
    int threads = pairs * t->groups, whole = (threads + 31) / 32 * 32;
    if (threads > MOST_THREADS) return false;
    int code = t->thread_h / p.step_rows * t->rows * products(s, t) * 2;
    if (code > MOST_CODE) return false;
    t->held = taps <= MOST_HELD && registers_of(s, t, &p, true) <= MOST_WITH_HELD;
    int registers = registers_of(s, t, &p, t->held);
    if (registers > MOST_REGISTERS) return false;
    t->shared = taps * t->channels * 4;
    if (t->shared > device->shared_bytes) return false;
    int by_registers = blocks_by_registers(whole, registers);
    int by_shared = (int)(device->shared_bytes / (t->shared + 1024));
    t->blocks = by_registers < by_shared ? by_registers : by_shared;
    if (t->blocks > 1536 / whole) t->blocks = 1536 / whole;
    if (t->blocks > 16) t->blocks = 16;
    if (t->blocks < 1) t->blocks = 1;
    t->cycles = tile_cycles(s, t, &p);
    return true;
}

/* ---- choice ---- */

typedef struct choice {
    const conv_depthwise_shape *shape;
    const mica_device_info *device;
    conv_depthwise_tile *tiles;
    double *ms;
    int count, most;
    bool longest; /* only as few runs of rows as there can be */
} choice;

/* Keeps the best of each width and length of strips: what a measurement should tell apart. */
static void keep(choice *c, const conv_depthwise_tile *t)
{
    double time = conv_depthwise_ms(c->shape, c->device, t);
    int at = 0;
    while (at < c->count &&
           (c->tiles[at].thread_w != t->thread_w || c->tiles[at].tile_h != t->tile_h))
        at++;
    if (at < c->count && c->ms[at] <= time) return;
    if (at == c->count) {
        if (c->count == c->most && c->ms[at - 1] <= time) return;
        if (c->count < c->most) c->count++;
        at = c->count - 1;
    }
    for (; at > 0 && c->ms[at - 1] > time; at--) {
        c->tiles[at] = c->tiles[at - 1];
        c->ms[at] = c->ms[at - 1];
    }
    c->tiles[at] = *t;
    c->ms[at] = time;
}

/* All heights of a run, for one width of blocks. */
static void try_runs(choice *c, conv_depthwise_tile t, int step_rows)
{
    const conv_depthwise_shape *s = c->shape;
    static const int runs[] = {1, 2, 3, 4, 6, 7, 8, 12, 16};
    int last = 0;
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        long long rows = (s->size_to[1] + runs[i] - 1) / runs[i];
        if (rows > MOST_ROWS) rows = MOST_ROWS;
        t.tile_h = (int)(rows + step_rows - 1) / step_rows * step_rows;
        if (t.tile_h == last) continue;
        last = t.tile_h;
        if (!conv_depthwise_tile_complete(s, c->device, &t)) continue;
        keep(c, &t);
        if (c->longest) return;
    }
}

static void try_strips(choice *c, conv_depthwise_tile t)
{
    const conv_depthwise_shape *s = c->shape;
    strip p = strip_of(s, &t);
    long long strips = (s->size_to[2] + conv_depthwise_shift(s, 2) + t.thread_w - 1) / t.thread_w;
    int pairs = t.channels / 2;
    /* strips of a block: each number that sharing them out evenly leads to, once */
    long long most = MOST_THREADS / pairs;
    for (long long each = most < strips ? most : strips; each > 0; each--) {
        long long parts = conv_ceil_div(strips, each);
        if (conv_ceil_div(strips, parts) < each) continue;
        if (each * pairs < 48 && parts > 1) break;
        t.tile_w = (int)each * t.thread_w;
        /* as many steps as are unfinished, and sums stay where they are; one, where that is too
         * long */
        t.thread_h = p.live * p.step_rows;
        try_runs(c, t, p.step_rows);
        t.thread_h = p.step_rows;
        if (c->count == 0) try_runs(c, t, p.step_rows);
    }
}

static void choose(choice *c)
{
    static const int widths[] = {4, 5, 6, 7, 8};
    const conv_depthwise_shape *s = c->shape;
    int step = s->roles.dgrad ? (int)s->g.stride[2] : 1;
    /* pieces of less than 64 bytes cost memory as much as those */
    int least = 64 / s->bytes;
    for (int channels = 128; channels >= least; channels -= 8) {
        double groups = (double)s->g.groups, waste = ceil(groups / channels) * channels / groups;
        if (waste > 1.1 && channels > least) continue;
        for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
            int width = (widths[i] + step - 1) / step * step;
            if (i > 0 && widths[i - 1] >= s->size_to[2]) break;
            try_strips(
                c, (conv_depthwise_tile){.channels = channels, .thread_w = width, .slide = true});
        }
    }
}

/* The best ones; the last with the longest runs, which read the fewest lines twice. */
int conv_depthwise_slide_tiles(const conv_depthwise_shape *s, const mica_device_info *device,
                               conv_depthwise_tile *tiles, int most)
{
    double ms[CONV_DEPTHWISE_MOST_SLIDES];
    /* one row has nothing to slide over */
    if (!conv_depthwise_slides(s) || s->size_to[1] < 4 || most < 2) return 0;
    choice best = {s, device, tiles, ms, 0, most - 1, false};
    choose(&best);
    conv_depthwise_tile *last = &tiles[best.count];
    choice longest = {s, device, last, ms, 0, 1, true};
    choose(&longest);
    for (int i = 0; i < best.count; i++)
        if (memcmp(&tiles[i], last, sizeof *last) == 0) return best.count;
    return best.count + longest.count;
}
