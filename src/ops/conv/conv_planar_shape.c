/* SPDX-License-Identifier: Apache-2.0
 * Which depthwise problems lie in planes, and the choice of their tiles by a model of what a
 * multiprocessor issues. */
#include "ops/conv/conv_planar.h"
#include "ops/conv/conv_ranking.h"

#include <math.h>

enum {
    MOST_THREADS = 512,
    MOST_CODE = 2000, /* multiply-adds of a strip */
    MOST_REGISTERS = 168,
    MOST_HELD = 49,
    MOST_PLANES = INT32_MAX / 2, /* fast division counts them */
    SHARED_RESERVE = 1024
};

/* ---- problems ---- */

static bool follows(long long size, long long stride, long long inner)
{
    return size <= 1 || stride == inner;
}

static mica_status packed_ok(const conv_depthwise_shape *s, const conv_depthwise_strides *at,
                             const long long size[3], const char *name, mica_why *why)
{
    long long row = size[2], plane = row * size[1];
    if (follows(size[2], at->s[2], 1) && follows(size[1], at->s[1], row) &&
        follows(s->g.groups, at->c, plane) && follows(s->g.n, at->n, plane * s->g.groups))
        return MICA_OK;
    return mica_refuse(why,
                       "%s has strides of %lld, %lld, %lld and %lld for its images, channels, rows "
                       "and pixels, this engine takes planes packed as %lld, %lld, %lld and 1",
                       name, at->n, at->c, at->s[1], at->s[2], plane * s->g.groups, plane, row);
}

mica_status conv_planar_fits(const conv_depthwise_shape *s, mica_why *why)
{
    const mica_conv_geometry *g = &s->g;
    if (g->k != 1)
        return mica_refuse(why, "groups form %lld channels, this engine is for one", g->k);
    if (g->in[0] != 1 || g->out[0] != 1 || g->tap[0] != 1 || g->pad[0] != 0)
        return mica_refuse(why, "%lld pixels and %lld taps in depth, this engine has two axes",
                           g->in[0], g->tap[0]);
    if ((double)g->n * (double)g->groups > MOST_PLANES)
        return mica_refuse(why, "%.0f planes, this engine counts to %d",
                           (double)g->n * (double)g->groups, MOST_PLANES);
    if (g->groups == 1)
        return mica_refuse(why, "there is one channel: it lies side by side as well");
    MICA_TRY(
        packed_ok(s, &s->from, s->size_from, s->roles.dgrad ? "the gradient" : "the image", why));
    if (!s->roles.wgrad) return MICA_OK;
    return packed_ok(s, &s->to, s->size_to, "the gradient", why);
}

/* ---- tiles ---- */

/* As in conv_halo.cuh and conv_planar.cuh. */
static int halo(const conv_depthwise_shape *s, int n, int axis)
{
    int stride = (int)s->g.stride[axis], reach = (int)((s->g.tap[axis] - 1) * s->g.dilation[axis]);
    if (s->roles.dgrad) return (n - 1) / stride + reach / stride + 1;
    return (n - 1) * stride + reach + 1;
}

static int access_of(int most, long long width, long long step)
{
    while (width % most || step % most) most /= 2;
    return most;
}

/* Elements of a run of rows of each plane, with what is copied before it. */
static double run_bytes(const conv_planar_tile *t, double rows, double cols, int bytes)
{
    return ceil(t->planes * rows * cols * bytes / 16) * 16 + 16;
}

static int rows_read(const conv_depthwise_shape *s, const conv_planar_tile *t)
{
    int rows = halo(s, t->tile_h, 1);
    return t->tiles == 1 || rows > s->size_from[1] ? (int)s->size_from[1] : rows;
}

static double shared_bytes(const conv_depthwise_shape *s, const conv_planar_tile *t)
{
    double taps = (double)(s->g.tap[1] * s->g.tap[2]);
    double bytes = ceil((double)s->size_from[2] * s->bytes / 16) * 16 +
                   run_bytes(t, rows_read(s, t), (double)s->size_from[2], s->bytes);
    if (!s->roles.wgrad) return bytes + t->planes * taps * 4;
    double rows = t->tiles == 1 ? (double)s->size_to[1] : t->tile_h;
    double sums = (double)t->planes * t->strip_threads * (double)s->g.tap[2] * 4;
    return fmax(sums, bytes + run_bytes(t, rows, (double)s->size_to[2], s->bytes));
}

static int access_to(const conv_depthwise_shape *s, const conv_planar_tile *t)
{
    const conv_depthwise_strides *to = &s->to;
    if (conv_depthwise_shift(s, 2) || (s->size_to[2] > 1 && to->s[2] != 1)) return 1;
    int n = access_of(16 * 8 / mica_dtype_bits(s->out), s->size_to[2], t->thread_w);
    while (n > 1 && (to->s[1] % n || to->c % n || to->n % n)) n /= 2;
    return n;
}

static int registers_of(const conv_depthwise_shape *s, const conv_planar_tile *t)
{
    int taps = (int)(s->g.tap[1] * s->g.tap[2]);
    return 46 + t->thread_h * t->thread_w + halo(s, t->thread_w, 2) +
           (s->roles.wgrad || t->held ? taps : 8);
}

/* Instructions of a thread for a strip. */
static double strip_issue(const conv_depthwise_shape *s, const conv_planar_tile *t)
{
    int skip = s->roles.dgrad ? (int)(s->g.stride[1] * s->g.stride[2]) : 1;
    int step =
        s->roles.dgrad ? t->thread_w / (int)s->g.stride[2] : t->thread_w * (int)s->g.stride[2];
    int access = access_of(16 / s->bytes, s->size_from[2], step), window = halo(s, t->thread_w, 2);
    double pixels = (double)t->thread_h * t->thread_w, convert = s->bytes == 2 ? 1 : 0;
    double taps = (double)(s->g.tap[1] * s->g.tap[2]);
    int wide = access > 1 ? window / access * access : 0;
    double line = (wide ? (double)wide / access : 0) + (window - wide) * 1.5 + window * convert + 5;
    double issue = halo(s, t->thread_h, 1) * line + pixels * taps / skip + 40;
    if (s->roles.wgrad) return issue + pixels * 1.5;
    issue += pixels * 2.5 + pixels / t->to_access * 4;
    return t->held ? issue : issue + t->thread_h * taps;
}

static bool is_regular(const conv_depthwise_shape *s, const conv_planar_tile *t)
{
    int64_t rows = s->size_to[1], cols = s->size_to[2];
    if (t->planes < 1 || t->thread_h < 1 || t->thread_w < 1 || t->tile_h < t->thread_h)
        return false;
    if (t->tile_h % t->thread_h) return false;
    if (s->roles.wgrad && (rows % t->thread_h || cols % t->thread_w)) return false;
    return !s->roles.dgrad ||
           (t->thread_h % s->g.stride[1] == 0 && t->thread_w % s->g.stride[2] == 0);
}

bool conv_planar_tile_complete(const conv_depthwise_shape *s, const mica_device_info *device,
                               conv_planar_tile *t)
{
    const double latency = 1500, copy_issue = 8, reached = 0.75;
    if (!is_regular(s, t)) return false;
    double rows = (double)(s->size_to[1] + conv_depthwise_shift(s, 1));
    double cols = (double)(s->size_to[2] + conv_depthwise_shift(s, 2));
    double strips_x = ceil(cols / t->thread_w), strips = strips_x * (t->tile_h / t->thread_h);
    int taps = (int)(s->g.tap[1] * s->g.tap[2]);
    if (strips_x * t->thread_w > INT16_MAX || strips > INT16_MAX) return false;
    if (t->thread_h * t->thread_w * taps > MOST_CODE) return false;
    t->tile_w = (int)strips_x * t->thread_w;
    t->tiles = (int)ceil(rows / t->tile_h);
    if (t->planes > MOST_THREADS || (t->planes > 1 && t->tiles > 1)) return false;
    double rounds = ceil(strips / (MOST_THREADS / t->planes));
    t->strip_threads = (int)ceil(strips / rounds);
    t->to_access = access_to(s, t);
    t->held = taps <= MOST_HELD;
    int registers = registers_of(s, t), threads = t->planes * t->strip_threads;
    double shared = shared_bytes(s, t), room = (double)device->shared_bytes + SHARED_RESERVE;
    if (registers > MOST_REGISTERS || shared > (double)device->shared_bytes) return false;
    t->shared = (int)shared;
    int whole = (threads + 31) / 32 * 32;
    double blocks = fmin(65536 / (whole * registers), floor(room / (shared + SHARED_RESERVE)));
    t->blocks = (int)fmin(fmin(blocks, 2048 / whole), 16);
    if (t->blocks < 1) return false;
    double copied = shared / 16 / 32 * copy_issue;
    t->cycles = (whole / 32 * rounds * strip_issue(s, t) + copied) / 4 / reached;
    t->latency = latency;
    return true;
}

/* ---- counts and times ---- */

double conv_planar_count(const conv_depthwise_shape *s, const conv_planar_tile *t)
{
    double images = (double)s->g.n, channels = (double)s->g.groups;
    if (s->roles.wgrad) return images * t->tiles;
    return ceil(images * channels / t->planes) * t->tiles;
}

double conv_planar_wgrad_blocks(const conv_depthwise_shape *s, const conv_planar_tile *t)
{
    return ceil((double)s->g.groups / t->planes);
}

double conv_planar_ms(const conv_depthwise_shape *s, const mica_device_info *device,
                      const conv_planar_tile *t, double blocks)
{
    const double hertz = 1.6e9;
    double count = conv_planar_count(s, t);
    if (s->roles.wgrad) count *= conv_planar_wgrad_blocks(s, t);
    double slots = fmin(blocks, (double)device->units * t->blocks);
    double resident = fmax(1, slots / device->units);
    double rounds = count / fmax(1, slots), whole = rounds < 4 ? ceil(rounds) : rounds + 0.5;
    return whole * fmax(resident * t->cycles, t->cycles + t->latency) / hertz * 1e3;
}

/* ---- choice ---- */

/* Rows of a block's tile: all, where they fit some room, or as many as do. */
static int rows_for(const conv_depthwise_shape *s, conv_planar_tile t)
{
    const double room = 48 << 10;
    int rows = (int)s->size_to[1] + (int)conv_depthwise_shift(s, 1);
    int all = (rows + t.thread_h - 1) / t.thread_h * t.thread_h;
    double line = (double)s->size_from[2] * s->bytes, to = s->roles.wgrad ? 1 : 0;
    for (int h = all; h > t.thread_h; h -= t.thread_h) {
        double read = h == all ? (double)s->size_from[1] : halo(s, h, 1);
        if (read * line + to * h * (double)s->size_to[2] * s->bytes <= room) return h;
    }
    return t.thread_h;
}

int conv_planar_tiles(const conv_depthwise_shape *s, const mica_device_info *device,
                      conv_planar_tile *tiles, int most)
{
    static const int widths[] = {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16};
    static const int heights[] = {1, 2, 3, 4, 5, 6, 7, 8, 10, 14, 16, 28};
    static const int planes[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128};
    if (most > CONV_RANKING_MOST) most = CONV_RANKING_MOST;
    conv_ranking best = {.items = tiles, .size = sizeof *tiles, .most = most};
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
        for (size_t h = 0; h < sizeof heights / sizeof *heights; h++) {
            conv_planar_tile t = {.thread_w = widths[w], .thread_h = heights[h]};
            if (widths[w] > s->size_to[2] + 1 || heights[h] > s->size_to[1] + 1) continue;
            t.tile_h = rows_for(s, t);
            for (size_t p = 0; p < sizeof planes / sizeof *planes; p++) {
                t.planes = planes[p];
                if (!conv_planar_tile_complete(s, device, &t)) continue;
                double blocks =
                    s->roles.wgrad ? (double)device->units * t.blocks : conv_planar_count(s, &t);
                conv_rank(&best, &t, conv_planar_ms(s, device, &t, blocks));
            }
        }
    return best.count;
}
