/* SPDX-License-Identifier: Apache-2.0
 * Which depthwise problems lie in planes, and the choice of their tiles by a model of what a
 * multiprocessor issues. */
#include "ops/conv/depthwise/planar.h"
#include "ops/conv/cuda/conv_ranking.h"

#include <math.h>

enum {
    MOST_THREADS = 512,
    MOST_CODE = 2000, /* multiply-adds of a strip */
    MOST_REGISTERS = 150,
    MOST_HELD = 49,
    MOST_TAPS = 169,             /* more take too many registers where all are unrolled */
    MOST_LINES = 160,            /* of a strip's window: each is a template */
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
        return mica_refuse(why, "%.10g planes, this engine counts to %d",
                           (double)g->n * (double)g->groups, MOST_PLANES);
    if (g->tap[1] * g->tap[2] > MOST_TAPS)
        return mica_refuse(why, "%lld x %lld taps, this engine unrolls %d", g->tap[1], g->tap[2],
                           MOST_TAPS);
    if (g->groups == 1)
        return mica_refuse(why, "there is one channel: it lies side by side as well");
    MICA_TRY(
        packed_ok(s, &s->from, s->size_from, s->roles.dgrad ? "the gradient" : "the image", why));
    if (!s->roles.wgrad) return MICA_OK;
    return packed_ok(s, &s->to, s->size_to, "the gradient", why);
}

bool conv_planar_stages(const conv_depthwise_shape *s)
{
    mica_why why;
    return !s->roles.wgrad && packed_ok(s, &s->to, s->size_to, "the result", &why) == MICA_OK;
}

bool conv_planar_filter_packed(const conv_depthwise_shape *s)
{
    const mica_conv_geometry *g = &s->g;
    return follows(g->tap[2], g->f.s[2], 1) && follows(g->tap[1], g->f.s[1], g->tap[2]) &&
           g->f.g == g->tap[1] * g->tap[2];
}

/* ---- tiles ---- */

/* As in conv_halo.cuh and planar.cuh, with what a strip begins behind a pixel that tap 0 falls
 * on. */
static int halo(const conv_depthwise_shape *s, int n, int axis)
{
    int stride = (int)s->g.stride[axis], reach = (int)((s->g.tap[axis] - 1) * s->g.dilation[axis]);
    if (!s->roles.dgrad) return (n - 1) * stride + reach + 1;
    return (n + (int)conv_depthwise_shift(s, axis) - 1) / stride + reach / stride + 1;
}

/* Whether pixel i of the halo is what a tap of one of n pixels needs. */
static bool is_needed(const conv_depthwise_shape *s, int i, int tap, int n, int axis)
{
    int stride = (int)s->g.stride[axis], dilation = (int)s->g.dilation[axis];
    if (!s->roles.dgrad) {
        int from = i - tap * dilation;
        return from >= 0 && from % stride == 0 && from / stride < n;
    }
    int before = (int)(s->g.tap[axis] - 1) * dilation / stride * stride;
    int o = i * stride - (int)conv_depthwise_shift(s, axis) + tap * dilation - before;
    return o >= 0 && o < n;
}

/* Pixels of the image from strip to strip. */
static int strip_step(const conv_depthwise_shape *s, int n, int axis)
{
    return s->roles.dgrad ? n / (int)s->g.stride[axis] : n * (int)s->g.stride[axis];
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

static int rows_written(const conv_depthwise_shape *s, const conv_planar_tile *t)
{
    return t->tiles == 1 ? (int)s->size_to[1] : t->tile_h;
}

static double from_bytes(const conv_depthwise_shape *s, const conv_planar_tile *t)
{
    return run_bytes(t, rows_read(s, t), (double)s->size_from[2], s->bytes);
}

/* wgrad: of b. */
static double to_bytes(const conv_depthwise_shape *s, const conv_planar_tile *t)
{
    int bytes = s->roles.wgrad ? s->bytes : mica_dtype_bits(s->out) / 8;
    return run_bytes(t, rows_written(s, t), (double)s->size_to[2], bytes);
}

static double shared_bytes(const conv_depthwise_shape *s, const conv_planar_tile *t)
{
    double taps = (double)(s->g.tap[1] * s->g.tap[2]);
    double zeros = fmax((double)s->size_from[2], halo(s, t->thread_w, 2));
    double bytes = ceil(zeros * s->bytes / 16) * 16 + from_bytes(s, t);
    if (!s->roles.wgrad) return bytes + (t->staged ? to_bytes(s, t) : 0) + t->planes * taps * 4;
    double sums = (double)t->planes * t->strip_threads * (double)s->g.tap[2] * 4;
    return fmax(sums, bytes + to_bytes(s, t));
}

static int access_to(const conv_depthwise_shape *s, const conv_planar_tile *t)
{
    const conv_depthwise_strides *to = &s->to;
    const mica_dtype type = s->roles.wgrad ? s->in : s->out;
    const int n = mica_access_fit(mica_access_of(type), s->size_to[2] | t->thread_w);
    if (t->staged || s->roles.wgrad) return n;
    if (s->size_to[2] > 1 && to->s[2] != 1) return 1;
    return mica_access_fit(n, mica_access_step(to->s[1], s->size_to[1]) |
                                  mica_access_step(to->c, s->g.groups * s->g.k) |
                                  mica_access_step(to->n, s->g.n));
}

/* Within some ten of what 280 kernels for sm_90a take. */
static int registers_of(const conv_depthwise_shape *s, const conv_planar_tile *t)
{
    double pixels = t->thread_h * t->thread_w, window = halo(s, t->thread_w, 2);
    double taps = (double)(s->g.tap[1] * s->g.tap[2]);
    if (s->roles.wgrad) return (int)(31 + pixels * 0.6 + window * 1.8 + taps * 1.08);
    return (int)(34 + pixels * 1.5 + window * 0.6 + (t->held ? taps * 1.08 : 8));
}

static bool is_regular(const conv_depthwise_shape *s, const conv_planar_tile *t)
{
    int64_t rows = s->size_to[1], cols = s->size_to[2];
    if (t->planes < 1 || t->thread_h < 1 || t->thread_w < 1 || t->tile_h < t->thread_h ||
        t->strips < 1)
        return false;
    if (t->tile_h % t->thread_h) return false;
    if (s->roles.wgrad) return rows % t->thread_h == 0 && cols % t->thread_w == 0 && !t->staged;
    if (t->staged && !conv_planar_stages(s)) return false;
    return !s->roles.dgrad ||
           (t->thread_h % s->g.stride[1] == 0 && t->thread_w % s->g.stride[2] == 0);
}

/* ---- what a tile costs ---- */

/* Pairs of a pixel of a strip and a tap, and the pixels of the image they need, along an axis; what
 * is outside in every strip is left out. */
typedef struct reached {
    int pairs, pixels;
} reached;

static reached reach_of(const conv_depthwise_shape *s, int n, int strips, int axis)
{
    reached r = {0, 0};
    long long origin = conv_depthwise_origin(s, axis),
              last = (strips - 1) * (long long)strip_step(s, n, axis);
    for (int i = 0; i < halo(s, n, axis); i++) {
        if (origin + i + last < 0 || origin + i >= s->size_from[axis]) continue;
        int found = 0;
        for (int tap = 0; tap < s->g.tap[axis]; tap++) found += is_needed(s, i, tap, n, axis);
        r.pairs += found, r.pixels += found > 0;
    }
    return r;
}

/* Accesses of one line: of several elements, of single ones that are known to exist, of others. */
typedef struct line_loads {
    int access, wide, sure, other;
} line_loads;

static line_loads loads_of(const conv_depthwise_shape *s, const conv_planar_tile *t)
{
    int step = strip_step(s, t->thread_w, 2), window = halo(s, t->thread_w, 2);
    long long origin = conv_depthwise_origin(s, 2),
              last = (long long)(t->tile_w / t->thread_w - 1) * step;
    line_loads l = {mica_access_fit(mica_access_of(s->in), s->size_from[2] | step), 0, 0, 0};
    for (int i = 0; i < window; i++) {
        int start = i - (int)(((origin + i) % l.access + l.access) % l.access);
        bool whole = l.access > 1 && start >= 0 && start + l.access <= window &&
                     origin + start >= 0 && origin + start + l.access - 1 + last < s->size_from[2];
        if (whole)
            l.wide += start == i;
        else if (origin + i + last < 0 || origin + i >= s->size_from[2])
            continue;
        else if (origin + i >= 0 && origin + i + last < s->size_from[2])
            l.sure++;
        else
            l.other++;
    }
    return l;
}

/* Where the strips of a warp's threads lie: bytes from one strip to the next in a row, from one row
 * of strips to the next, from plane to plane. */
typedef struct spread {
    int64_t x, y, plane;
} spread;

static void place_lanes(const conv_planar_tile *t, const spread *at, int64_t lanes[32])
{
    int across = t->tile_w / t->thread_w;
    for (int i = 0; i < 32; i++) {
        int strip = i % t->strip_threads;
        lanes[i] =
            i / t->strip_threads * at->plane + strip / across * at->y + strip % across * at->x;
    }
}

/* Wavefronts of an access to shared memory of `bytes` a thread. */
static int wavefronts(const int64_t lanes[32], int bytes)
{
    int each = bytes > 4 ? 32 * 4 / bytes : 32, words = bytes > 4 ? bytes / 4 : 1, sum = 0;
    for (int first = 0; first < 32; first += each) {
        int used[32] = {0}, most = 1;
        int64_t last[32];
        for (int i = first; i < first + each; i++)
            for (int k = 0; k < words; k++) {
                int64_t word = lanes[i] / 4 + k;
                int bank = (int)(word % 32);
                if (used[bank] && last[bank] == word) continue;
                last[bank] = word;
                if (++used[bank] > most) most = used[bank];
            }
        sum += most;
    }
    return sum;
}

/* Sectors of 32 bytes that a warp's accesses touch. */
static int sectors(const int64_t lanes[32], int bytes)
{
    int64_t count = 0, last = -1;
    for (int i = 0; i < 32; i++) {
        int64_t first = lanes[i] / 32, end = (lanes[i] + bytes - 1) / 32;
        count += end - first + (first != last);
        last = end;
    }
    return (int)count;
}

/* Instructions of a thread for a strip. */
static double strip_issue(const conv_depthwise_shape *s, const conv_planar_tile *t,
                          const line_loads *l, const reached *down, const reached *across)
{
    const double row = 4, once = 40; /* where a row stands; a strip, and its results */
    double pixels = (double)t->thread_h * t->thread_w, convert = s->bytes == 2 ? 1 : 0;
    double read = (double)l->wide * l->access + l->sure + l->other;
    double line = l->wide + l->sure + 2 * l->other + read * convert + row;
    double issue = down->pixels * line + (double)down->pairs * across->pairs + once;
    if (s->roles.wgrad) return issue + pixels * convert + pixels / t->to_access;
    if (!t->held) issue += down->pairs * (double)s->g.tap[2];
    return issue + pixels * 2 + pixels / t->to_access * (t->staged ? 1 : 4);
}

/* Wavefronts of a warp that reads one line of its strips. */
static double line_fronts(const conv_depthwise_shape *s, const conv_planar_tile *t,
                          const line_loads *l)
{
    int64_t width = s->size_from[2] * s->bytes, lanes[32];
    spread at = {(int64_t)strip_step(s, t->thread_w, 2) * s->bytes,
                 strip_step(s, t->thread_h, 1) * width, rows_read(s, t) * width};
    place_lanes(t, &at, lanes);
    return (double)l->wide * wavefronts(lanes, l->access * s->bytes) +
           (double)(l->sure + l->other) * wavefronts(lanes, s->bytes);
}

/* Where a warp's strips of the result (wgrad: of b) lie. */
static void place_results(const conv_depthwise_shape *s, const conv_planar_tile *t, int bytes,
                          int64_t lanes[32])
{
    int64_t width = s->size_to[2] * bytes;
    spread at = {(int64_t)t->thread_w * bytes, t->thread_h * width, rows_written(s, t) * width};
    if (!s->roles.wgrad && !t->staged)
        at = (spread){t->thread_w * s->to.s[2] * bytes, t->thread_h * s->to.s[1] * bytes,
                      s->to.c * bytes};
    place_lanes(t, &at, lanes);
}

/* Lines and pixels of a strip that exist, and what is read of a line. */
typedef struct strip_reads {
    reached down, across;
    line_loads loads;
} strip_reads;

static strip_reads reads_of(const conv_depthwise_shape *s, const conv_planar_tile *t)
{
    int strips_y = t->tiles > 1 ? INT16_MAX : t->tile_h / t->thread_h;
    return (strip_reads){.down = reach_of(s, t->thread_h, strips_y, 1),
                         .across = reach_of(s, t->thread_w, t->tile_w / t->thread_w, 2),
                         .loads = loads_of(s, t)};
}

static double strips_of(const conv_planar_tile *t)
{
    return ceil(t->planes * t->strip_threads / 32.0) * t->strips;
}

/* Instructions of a block's tile. */
static void count_issue(const conv_depthwise_shape *s, conv_planar_tile *t)
{
    const double copy = 12, take = 8; /* instructions for 512 bytes: copied, stored */
    const double weight = 30;         /* for 32 of them */
    const double begin = s->roles.wgrad ? 270 : 100; /* of a warp before and after its strips */
    strip_reads r = reads_of(s, t);
    double warps = ceil(t->planes * t->strip_threads / 32.0);
    double taps = (double)(s->g.tap[1] * s->g.tap[2]);
    t->issue = strips_of(t) * strip_issue(s, t, &r.loads, &r.down, &r.across) +
               from_bytes(s, t) / 512 * copy + warps * begin;
    if (s->roles.wgrad || t->staged) t->issue += to_bytes(s, t) / 512 * (t->staged ? take : copy);
    if (!s->roles.wgrad) t->issue += t->planes * taps / 32 * weight;
    t->fronts = t->sectors = 0;
}

/* Its wavefronts and sectors. */
static void count_fronts(const conv_depthwise_shape *s, conv_planar_tile *t)
{
    strip_reads r = reads_of(s, t);
    int bytes = s->roles.wgrad ? s->bytes : mica_dtype_bits(s->out) / 8;
    int64_t results[32];
    place_results(s, t, bytes, results);
    double strips = strips_of(t), warps = ceil(t->planes * t->strip_threads / 32.0);
    double to = to_bytes(s, t), taps = (double)(s->g.tap[1] * s->g.tap[2]);
    double accesses = strips * t->thread_h * t->thread_w / t->to_access;
    t->fronts = strips * r.down.pixels * line_fronts(s, t, &r.loads) + from_bytes(s, t) / 128;
    if (s->roles.wgrad || t->staged)
        t->fronts += accesses * wavefronts(results, t->to_access * bytes) + to / 128;
    if (s->roles.wgrad) return;
    if (t->held) t->fronts += warps * taps;
    /* assumed: whole lines cost half of what sectors do that lie apart */
    t->sectors = t->staged ? to / 64 : accesses * sectors(results, t->to_access * bytes);
}

/* All of a tile but its wavefronts and sectors. */
static bool begin_tile(const conv_depthwise_shape *s, const mica_device_info *device,
                       conv_planar_tile *t)
{
    if (!is_regular(s, t)) return false;
    double strips_x = ceil((double)s->size_to[2] / t->thread_w);
    double strips = strips_x * (t->tile_h / t->thread_h);
    int taps = (int)(s->g.tap[1] * s->g.tap[2]);
    if (strips_x * t->thread_w > INT16_MAX || strips > INT16_MAX) return false;
    if (t->thread_h * t->thread_w * taps > MOST_CODE) return false;
    if (halo(s, t->thread_h, 1) > MOST_LINES) return false;
    t->tile_w = (int)strips_x * t->thread_w;
    t->tiles = (int)ceil((double)s->size_to[1] / t->tile_h);
    if (t->planes > MOST_THREADS || (t->planes > 1 && t->tiles > 1)) return false;
    t->strip_threads = (int)ceil(strips / t->strips);
    if (t->planes * t->strip_threads > MOST_THREADS) return false;
    t->to_access = access_to(s, t);
    t->held = taps <= MOST_HELD;
    int registers = registers_of(s, t), threads = t->planes * t->strip_threads;
    double shared = shared_bytes(s, t), room = (double)device->shared_bytes + SHARED_RESERVE;
    if (registers > MOST_REGISTERS || shared > (double)device->shared_bytes) return false;
    t->shared = (int)shared;
    int whole = (threads + 127) / 128 * 128; /* registers are given out to four warps */
    double blocks = fmin(65536 / (whole * registers), floor(room / (shared + SHARED_RESERVE)));
    t->blocks = (int)fmin(fmin(blocks, 2048 / ((threads + 31) / 32 * 32)), 16);
    if (t->blocks < 1) return false;
    count_issue(s, t);
    return true;
}

bool conv_planar_tile_complete(const conv_depthwise_shape *s, const mica_device_info *device,
                               conv_planar_tile *t)
{
    if (!begin_tile(s, device, t)) return false;
    count_fronts(s, t);
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

/* What a multiprocessor issues, its wavefronts, memory, and what only other blocks hide, which
 * overlap for the most part. Constants are chosen for 134 tiles of 13 problems (bf16, fwd and
 * wgrad, 3 x 3 to 7 x 7 taps, planes of 7 x 7 to 112 x 112, H200) that store results directly, one
 * strip a thread: mean error 12 %. Staged results, dgrad with strides and several strips are
 * extrapolated: 24 choices among them took 0.8 to 1.4 times what is told. */
double conv_planar_ms(const conv_depthwise_shape *s, const mica_device_info *device,
                      const conv_planar_tile *t, double blocks, double memory_ms)
{
    const double cycles = 1.755e6;                 /* of a millisecond */
    const double issued = 4 * 0.93, sector = 1.86; /* instructions of a cycle; cycles of a sector */
    const double each = 2.3; /* cycles of an instruction of a warp that is alone */
    const double latency = 700, arriving = 0.4; /* of the first bytes; share of memory's time */
    double count = conv_planar_count(s, t);
    if (s->roles.wgrad) count *= conv_planar_wgrad_blocks(s, t);
    double slots = fmin(blocks, (double)device->units * t->blocks);
    double resident = fmax(1, slots / device->units), rounds = count / fmax(1, slots);
    if (rounds < 4) rounds = ceil(rounds);
    double issue = t->issue / issued, fronts = t->fronts + t->sectors * sector;
    double warps = ceil(t->planes * t->strip_threads / 32.0);
    double moved = memory_ms * cycles * device->units / count; /* cycles of memory for a tile */
    double alone = latency + arriving * moved + fmax(t->issue / warps * each, fmax(issue, fronts));
    double of_all = pow(issue * resident, 3) + pow(fronts * resident, 3) + pow(alone, 3);
    return cbrt(pow(rounds / cycles, 3) * of_all + pow(memory_ms, 3));
}

/* What has to pass through memory. */
static double memory_ms(const conv_depthwise_shape *s, const mica_device_info *device)
{
    double planes = (double)s->g.n * (double)s->g.groups;
    double from = (double)(s->size_from[1] * s->size_from[2]) * s->bytes;
    double to = (double)(s->size_to[1] * s->size_to[2]) *
                (s->roles.wgrad ? s->bytes : mica_dtype_bits(s->out) / 8.0);
    return planes * (from + to) / (device->copy_gbps * 1e6);
}

/* ---- choice ---- */

/* Rows of a block's tile: all, where they fit some room, or as many as do. */
static int rows_for(const conv_depthwise_shape *s, const conv_planar_tile *t, double room)
{
    int all = (int)(s->size_to[1] + t->thread_h - 1) / t->thread_h;
    double line = (double)s->size_from[2] * s->bytes, to = (double)s->size_to[2];
    to *= s->roles.wgrad ? s->bytes : t->staged ? mica_dtype_bits(s->out) / 8.0 : 0;
    if ((double)s->size_from[1] * line + (double)all * t->thread_h * to <= room)
        return all * t->thread_h;
    int strips = 1; /* at least */
    for (int most = all - 1; strips < most;) {
        int some = most - (most - strips) / 2;
        if (halo(s, some * t->thread_h, 1) * line + some * t->thread_h * to <= room)
            strips = some;
        else
            most = some - 1;
    }
    return strips * t->thread_h;
}

/* A few numbers of strips for each thread, from what is needed on. */
static void try_threads(const conv_depthwise_shape *s, const mica_device_info *device,
                        conv_planar_tile t, double memory, conv_ranking *best)
{
    const int most = 4;
    double strips = ceil((double)s->size_to[2] / t.thread_w) * (t.tile_h / t.thread_h);
    int least = (int)ceil(strips / (MOST_THREADS / t.planes));
    for (t.strips = least; t.strips == least || t.strips <= most; t.strips++) {
        double threads = t.planes * ceil(strips / t.strips);
        if (t.strips > least && (threads < 64 || strips < t.strips)) return;
        if (!begin_tile(s, device, &t)) continue;
        double blocks =
            s->roles.wgrad ? (double)device->units * t.blocks : conv_planar_count(s, &t);
        /* wavefronts take time to count, and only make it longer */
        if (best->count == best->most &&
            conv_planar_ms(s, device, &t, blocks, memory) >= best->ms[best->most - 1])
            continue;
        count_fronts(s, &t);
        conv_rank(best, &t, conv_planar_ms(s, device, &t, blocks, memory));
    }
}

/* All numbers of planes, or of rows of one, for one size of strips. */
static void try_strips(const conv_depthwise_shape *s, const mica_device_info *device,
                       conv_planar_tile t, conv_ranking *best)
{
    static const int planes[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128};
    static const double rooms[] = {48 << 10, 24 << 10, 12 << 10};
    double memory = memory_ms(s, device);
    for (size_t r = 0; r < sizeof rooms / sizeof *rooms; r++) {
        int rows = rows_for(s, &t, rooms[r]);
        if (rows == t.tile_h) continue;
        t.tile_h = rows;
        for (size_t p = 0; p < sizeof planes / sizeof *planes; p++) {
            t.planes = planes[p];
            if (t.planes > 1 && rows < s->size_to[1]) break;
            try_threads(s, device, t, memory, best);
        }
    }
}

int conv_planar_tiles(const conv_depthwise_shape *s, const mica_device_info *device,
                      conv_planar_tile *tiles, int most)
{
    static const int widths[] = {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 28};
    static const int heights[] = {1, 2, 3, 4, 5, 6, 7, 8, 10, 14, 16, 28};
    if (most > CONV_RANKING_MOST) most = CONV_RANKING_MOST;
    conv_ranking best = {.items = tiles, .size = sizeof *tiles, .most = most};
    bool stages = conv_planar_stages(s);
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
        for (size_t h = 0; h < sizeof heights / sizeof *heights; h++) {
            conv_planar_tile t = {.thread_w = widths[w], .thread_h = heights[h]};
            if (widths[w] > s->size_to[2] + 1 || heights[h] > s->size_to[1] + 1) continue;
            try_strips(s, device, t, &best);
            t.staged = true;
            if (stages) try_strips(s, device, t, &best);
        }
    return best.count;
}
