/* SPDX-License-Identifier: Apache-2.0
 * Which depthwise problems there are, and the choice of their tiles by a model of what a
 * multiprocessor issues. */
#include "ops/conv/depthwise/depthwise.h"
#include "ops/conv/cuda/conv_ranking.h"

#include <math.h>
#include <stdlib.h>

enum { MOST_POSITION = 1 << 28, THREADS = 256, SHARED_RESERVE = 1024 };
enum { MOST_STRIDE = 4096, MOST_CODE = 1800, MOST_REGISTERS = 235 };

/* ---- problems ---- */

static mica_status types_ok(const conv_depthwise_shape *s, mica_why *why)
{
    if (s->in != MICA_F16 && s->in != MICA_BF16 && s->in != MICA_F32)
        return mica_refuse(why, "inputs are %s, this engine takes f16, bf16 and f32",
                           mica_dtype_name(s->in));
    return MICA_OK;
}

static mica_status sizes_ok(const conv_depthwise_shape *s, mica_why *why)
{
    const mica_conv_geometry *g = &s->g;
    int most = s->roles.wgrad ? CONV_DEPTHWISE_MOST_SUMS : CONV_DEPTHWISE_MOST_TAPS;
    if (g->c != 1)
        return mica_refuse(why, "groups have %lld channels, this engine is for depthwise ones: 1",
                           g->c);
    if (g->tap[1] > CONV_DEPTHWISE_MOST_TAPS || g->tap[2] > most)
        return mica_refuse(why, "%lld x %lld taps, this engine holds %d x %d", g->tap[1], g->tap[2],
                           CONV_DEPTHWISE_MOST_TAPS, most);
    for (int i = 0; i < 3; i++) {
        double reach = (double)(g->tap[i] - 1) * (double)g->dilation[i] + (double)llabs(g->pad[i]);
        double end = reach + (double)g->in[i] + (double)g->out[i] * (double)g->stride[i];
        if (end >= MOST_POSITION || g->groups >= MOST_POSITION || g->k >= MOST_POSITION)
            return mica_refuse(why, "positions reach %.10g on axis %d, this engine counts to %d",
                               end, i, MOST_POSITION);
        if (g->stride[i] > MOST_STRIDE)
            return mica_refuse(why, "the stride is %lld on axis %d, this engine goes up to %d",
                               g->stride[i], i, MOST_STRIDE);
    }
    return MICA_OK;
}

static conv_depthwise_strides strides_of(const mica_conv_strides *s)
{
    return (conv_depthwise_strides){s->n, s->g, s->c, {s->s[0], s->s[1], s->s[2]}};
}

int64_t conv_depthwise_steps(const conv_depthwise_shape *s, bool to)
{
    const conv_depthwise_strides *t = to ? &s->to : &s->from;
    return conv_pixel_steps(t->n, s->g.n, t->s, to ? s->size_to : s->size_from);
}

static int vector_of(const conv_depthwise_shape *s)
{
    int64_t steps = s->g.groups | conv_depthwise_steps(s, false);
    if (s->roles.wgrad) steps |= conv_depthwise_steps(s, true);
    if (s->roles.wgrad && s->to.c != 1) return 1;
    const int v = mica_access_along(s->in, s->from.c, steps);
    return v * s->bytes >= 4 ? v : 1;
}

mica_status conv_depthwise_shape_make(const mica_conv_desc *d, conv_depthwise_shape *s,
                                      mica_why *why)
{
    *s = (conv_depthwise_shape){.roles = mica_conv_roles_of(d)};
    mica_conv_geometry_make(d, &s->g);
    const mica_conv_geometry *g = &s->g;
    s->in = mica_conv_tensor(d, s->roles.image)->dtype;
    s->out = mica_conv_tensor(d, s->roles.out)->dtype;
    s->bytes = mica_dtype_bits(s->in) / 8;
    MICA_TRY(types_ok(s, why));
    MICA_TRY(sizes_ok(s, why));
    s->from = strides_of(s->roles.dgrad ? &g->b : &g->a);
    s->to = strides_of(s->roles.dgrad ? &g->a : &g->b);
    for (int i = 0; i < 3; i++) {
        s->size_from[i] = s->roles.dgrad ? g->out[i] : g->in[i];
        s->size_to[i] = s->roles.dgrad ? g->in[i] : g->out[i];
    }
    s->vector = vector_of(s);
    s->pixels_first = s->vector == 1 && llabs(s->from.s[2]) < llabs(s->from.c);
    s->staged = !s->roles.wgrad && s->to.c != 1 && llabs(s->to.s[2]) < llabs(s->to.c);
    s->paired = s->to.c == 1 && mica_access_fit(2, conv_depthwise_steps(s, true)) == 2;
    s->one_plane = g->tap[0] == 1 && (!s->roles.dgrad || g->k == 1);
    return MICA_OK;
}

/* ---- tiles ---- */

/* In dgrad tiles start at a pixel that tap 0 of some pixel of b falls on, so that every strip sees
 * the same taps. */
long long conv_depthwise_shift(const conv_depthwise_shape *s, int axis)
{
    long long pad = s->g.pad[axis], stride = s->g.stride[axis];
    return s->roles.dgrad ? (pad % stride + stride) % stride : 0;
}

long long conv_depthwise_origin(const conv_depthwise_shape *s, int axis)
{
    long long pad = s->g.pad[axis], stride = s->g.stride[axis];
    if (!s->roles.dgrad) return -pad;
    long long before = (s->g.tap[axis] - 1) * s->g.dilation[axis] / stride;
    return (pad - conv_depthwise_shift(s, axis)) / stride - before;
}

void conv_depthwise_write_taps(const conv_depthwise_shape *s, int64_t rows, mica_text *p)
{
    mica_prologue_int(p, "KIND", s->roles.kind);
    mica_prologue_int(p, "ROWS", rows);
    mica_prologue_int(p, "COLS", s->g.tap[2]);
    mica_prologue_int(p, "STRIDE_Y", s->g.stride[1]);
    mica_prologue_int(p, "STRIDE_X", s->g.stride[2]);
    mica_prologue_int(p, "DILATION_Y", s->g.dilation[1]);
    mica_prologue_int(p, "DILATION_X", s->g.dilation[2]);
}

/* As in depthwise.cuh. */
static int halo(const conv_depthwise_shape *s, int n, int taps, int axis)
{
    int stride = (int)s->g.stride[axis], dilation = (int)s->g.dilation[axis];
    if (s->roles.dgrad) return (n - 1) / stride + (taps - 1) * dilation / stride + 1;
    return (n - 1) * stride + (taps - 1) * dilation + 1;
}

/* Wavefronts of a warp that reads a pair of channels per thread. Asked for every tile that is
 * tried: it divides by powers of two alone. */
static int conflicts(const conv_depthwise_shape *s, const conv_depthwise_tile *t, int pitch)
{
    int used[32] = {0}, most = 1, pairs = t->channels / 2;
    int64_t last[32];
    int strips_x = t->tile_w / t->thread_w;
    unsigned words = s->bytes == 4 ? 2 : 1, banks = 32 / words;
    int step_x =
        s->roles.dgrad ? t->thread_w / (int)s->g.stride[2] : t->thread_w * (int)s->g.stride[2];
    int step_y =
        s->roles.dgrad ? t->thread_h / (int)s->g.stride[1] : t->thread_h * (int)s->g.stride[1];
    int64_t width = halo(s, t->tile_w, (int)s->g.tap[2], 2);
    int pair = 0, x = 0, y = 0; /* of the thread: its channels and its strip */
    for (unsigned i = 0; i < banks; i++) {
        uint64_t pixel = (uint64_t)(y * step_y * width + (int64_t)x * step_x);
        uint64_t word = pixel * (uint64_t)(pitch * s->bytes) / 4 + (unsigned)pair * words;
        unsigned bank = (unsigned)(word / words % banks);
        bool next = ++pair == pairs;
        if (next) pair = 0, x++;
        if (x == strips_x) x = 0, y++;
        if (used[bank] && last[bank] == (int64_t)word) continue;
        last[bank] = (int64_t)word;
        if (++used[bank] > most) most = used[bank];
    }
    return most;
}

static int choose_pitch(const conv_depthwise_shape *s, const conv_depthwise_tile *t)
{
    if (s->vector == 1) return t->channels + 2;
    int wide = t->channels + 16 / s->bytes;
    return conflicts(s, t, wide) < conflicts(s, t, t->channels) ? wide : t->channels;
}

static int shared_bytes(const conv_depthwise_shape *s, const conv_depthwise_tile *t)
{
    double halo_pixels =
        (double)halo(s, t->tile_h, t->rows, 1) * (double)halo(s, t->tile_w, (int)s->g.tap[2], 2);
    double pixels = (double)t->tile_h * t->tile_w, taps = (double)t->rows * (double)s->g.tap[2];
    double bytes = (halo_pixels * t->pitch + 8) * s->bytes;
    if (s->roles.wgrad) {
        double ends = (double)t->groups * (double)s->g.tap[2] * t->channels * 4;
        bytes = 2 * (bytes + (pixels * t->pitch + 8) * s->bytes);
        if (ends > bytes) bytes = ends;
    } else {
        bytes += taps * t->channels * (t->wide_weights ? 4 : s->bytes);
        if (s->staged) bytes += pixels * (t->channels + 1) * 4;
    }
    return bytes < 1e9 ? (int)bytes + 16 : 1000000000;
}

static int registers_of(const conv_depthwise_shape *s, const conv_depthwise_tile *t)
{
    int window = halo(s, t->thread_w, (int)s->g.tap[2], 2), all = t->thread_w * (int)s->g.tap[2];
    if (window > all) window = all;
    if (window > t->thread_w + 8) window = t->thread_w + 8; /* what is alive at a time */
    int sums = s->roles.wgrad ? t->rows * (int)s->g.tap[2] : 0;
    /* the compiler moves loads of later rows up */
    int ahead = s->roles.wgrad && t->thread_h > 1 ? 60 : 0;
    return 2 * (t->thread_h * t->thread_w + window + sums) + 44 + ahead;
}

/* Instructions of a thread for a strip, and wavefronts of shared memory. */
static void strip_cost(const conv_depthwise_shape *s, const conv_depthwise_tile *t, double *issue,
                       double *wavefronts)
{
    int cols = (int)s->g.tap[2], skip_y = s->roles.dgrad ? (int)s->g.stride[1] : 1;
    int skip = s->roles.dgrad ? skip_y * (int)s->g.stride[2] : 1, convert = s->bytes == 2 ? 2 : 0;
    double window = fmin(halo(s, t->thread_w, cols, 2), (double)t->thread_w * cols);
    double lines = t->unrolled ? fmin(halo(s, t->thread_h, t->rows, 1), t->thread_h * t->rows)
                               : (double)t->rows / skip_y;
    double loads = lines * window, pixels = (double)t->thread_h * t->thread_w;
    double weights = s->roles.wgrad ? 0 : (double)t->thread_h * t->rows / skip_y * cols;
    double products = pixels * t->rows * cols / skip * 2;
    double ends = s->roles.wgrad ? pixels * (1 + convert) : pixels * 12;
    *issue = loads * (1 + convert) + weights * (t->wide_weights ? 1 : 3) + products + ends + 20;
    double each = s->bytes / 2 * conflicts(s, t, t->pitch);
    *wavefronts =
        (loads + (s->roles.wgrad ? pixels : 0)) * each + weights * (t->wide_weights ? 2 : 1);
}

static double tile_cycles(const conv_depthwise_shape *s, const conv_depthwise_tile *t)
{
    double issue, wavefronts;
    strip_cost(s, t, &issue, &wavefronts);
    int strips = t->tile_h / t->thread_h * (t->tile_w / t->thread_w);
    int threads = t->channels / 2 * t->groups, rounds = (strips + t->groups - 1) / t->groups;
    double warps = (threads + 31) / 32 * (double)rounds;
    double pixels = (double)t->tile_h * t->tile_w;
    double read =
        (double)halo(s, t->tile_h, t->rows, 1) * (double)halo(s, t->tile_w, (int)s->g.tap[2], 2);
    if (s->roles.wgrad) read += pixels;
    double copies = read * t->channels / s->vector * (s->vector > 1 ? 14 : 20);
    if (!s->roles.wgrad) copies += (double)s->g.tap[1] * (double)s->g.tap[2] * t->channels * 10;
    if (s->staged) copies += pixels * t->channels * 24;
    double work = warps * fmax(issue / 4 / 0.85, wavefronts) + copies / 128 + 300;
    double resident = (double)t->blocks * threads / 32;
    if (resident < 12) work *= sqrt(12 / resident);
    /* pieces of less than 64 bytes cost memory as much as those */
    double piece = fmax(1, 64.0 / (t->channels * s->bytes)) * t->channels * s->bytes;
    double fill = (read + (s->roles.wgrad ? 0 : pixels)) * piece / 30;
    /* only other blocks work while one waits for its copies */
    return fmax(work, fill) + fmin(work, fill) / t->blocks;
}

static void choose_rows(const conv_depthwise_shape *s, conv_depthwise_tile *t)
{
    t->rows = (int)s->g.tap[1];
    if (!s->roles.wgrad) return;
    int most = CONV_DEPTHWISE_MOST_SUMS / (int)s->g.tap[2];
    int blocks = (t->rows + most - 1) / most;
    t->rows = (t->rows + blocks - 1) / blocks;
}

static bool is_regular(const conv_depthwise_shape *s, const conv_depthwise_tile *t)
{
    if (t->channels < 8 || t->channels % 8 || t->thread_h < 1 || t->thread_w < 1) return false;
    if (!t->slide && (t->tile_h < t->thread_h || t->tile_h % t->thread_h)) return false;
    if (t->tile_w < t->thread_w || t->tile_w % t->thread_w) return false;
    return !s->roles.dgrad ||
           (t->tile_h % s->g.stride[1] == 0 && t->thread_w % s->g.stride[2] == 0);
}

bool conv_depthwise_tile_complete(const conv_depthwise_shape *s, const mica_device_info *device,
                                  conv_depthwise_tile *t)
{
    if (!is_regular(s, t)) return false;
    if (t->slide) return conv_depthwise_slide_complete(s, device, t);
    bool phases = s->roles.dgrad && t->thread_h % s->g.stride[1] != 0;
    choose_rows(s, t);
    int skip = s->roles.dgrad ? (int)(s->g.stride[1] * s->g.stride[2]) : 1;
    int code = t->thread_h * t->thread_w * t->rows * (int)s->g.tap[2] * 2 / skip;
    t->unrolled = s->roles.wgrad || (code <= MOST_CODE && !phases);
    if (!t->unrolled && t->thread_h > 1) return false;
    if (code > 2 * MOST_CODE && s->roles.wgrad) return false;
    int registers = registers_of(s, t);
    if (registers > MOST_REGISTERS) return false;
    t->wide_weights = s->bytes == 4 || t->rows * s->g.tap[2] * t->channels <= 8192;
    t->pitch = choose_pitch(s, t);
    int pairs = t->channels / 2, strips = t->tile_h / t->thread_h * (t->tile_w / t->thread_w);
    int most = THREADS / pairs, rounds = (strips + most - 1) / most;
    if (!s->one_plane && !s->roles.wgrad && rounds > 1) return false;
    t->groups = (strips + rounds - 1) / rounds;
    t->shared = shared_bytes(s, t);
    int64_t room = device->shared_bytes + SHARED_RESERVE;
    if (t->shared > device->shared_bytes) return false;
    int threads = pairs * t->groups, whole = (threads + 31) / 32 * 32;
    int by_registers = 65536 / (whole * registers),
        by_shared = (int)(room / (t->shared + SHARED_RESERVE));
    t->blocks = by_registers < by_shared ? by_registers : by_shared;
    if (t->blocks > 1536 / whole) t->blocks = 1536 / whole;
    if (t->blocks > 16) t->blocks = 16;
    if (t->blocks < 1) t->blocks = 1;
    t->cycles = tile_cycles(s, t);
    return true;
}

bool conv_depthwise_tile_least(const conv_depthwise_shape *s, const mica_device_info *device,
                               conv_depthwise_tile *t)
{
    int64_t h = s->roles.dgrad ? s->g.stride[1] : 1, w = s->roles.dgrad ? s->g.stride[2] : 1;
    if (h > 64 || w > 64) return false;
    *t = (conv_depthwise_tile){
        .channels = 8, .tile_h = (int)h, .tile_w = (int)w, .thread_h = 1, .thread_w = (int)w};
    return conv_depthwise_tile_complete(s, device, t);
}

/* ---- counts and times ---- */

static double parts_of(double n, double by)
{
    return ceil(n / by);
}

double conv_depthwise_count(const conv_depthwise_shape *s, const conv_depthwise_tile *t)
{
    double tiles = (double)s->g.n * (double)s->size_to[0] *
                   parts_of((double)(s->size_to[1] + conv_depthwise_shift(s, 1)), t->tile_h) *
                   parts_of((double)(s->size_to[2] + conv_depthwise_shift(s, 2)), t->tile_w);
    if (s->roles.wgrad) return tiles;
    return tiles * parts_of((double)s->g.groups, t->channels) *
           (s->roles.dgrad ? 1 : (double)s->g.k);
}

double conv_depthwise_wgrad_blocks(const conv_depthwise_shape *s, const conv_depthwise_tile *t)
{
    return parts_of((double)s->g.groups, t->channels) * (double)s->g.k * (double)s->g.tap[0] *
           parts_of((double)s->g.tap[1], t->rows);
}

double conv_depthwise_ms(const conv_depthwise_shape *s, const mica_device_info *device,
                         const conv_depthwise_tile *t)
{
    const double hertz = 1.6e9;
    double count = conv_depthwise_count(s, t), slots = (double)device->units * t->blocks;
    if (s->roles.wgrad) count *= conv_depthwise_wgrad_blocks(s, t);
    double waves = count / slots, whole = waves < 6 ? ceil(waves) : waves + 0.5;
    double planes = s->one_plane ? 1 : (double)(s->g.tap[0] * (s->roles.dgrad ? s->g.k : 1));
    if (s->roles.wgrad) planes = 1;
    return whole * t->blocks * t->cycles * planes / hertz * 1e3;
}

/* ---- choice ---- */

static int most_useful(long long size, int step)
{
    long long n = (size + step - 1) / step;
    return n < 1 ? 1 : n > 16 ? 16 : (int)n;
}

/* All sizes of tiles for one size of strips. */
static void try_strips(const conv_depthwise_shape *s, const mica_device_info *device,
                       conv_depthwise_tile t, conv_ranking *best)
{
    static const int steps[] = {1, 2, 3, 4, 6, 7, 8, 12, 14, 16};
    int across = most_useful(s->size_to[2], t.thread_w),
        down = most_useful(s->size_to[1], t.thread_h);
    int last_x = 0;
    for (size_t i = 0; i < sizeof steps / sizeof *steps && last_x < across; i++) {
        last_x = steps[i] < across ? steps[i] : across;
        int last_y = 0;
        for (size_t k = 0; k < sizeof steps / sizeof *steps && last_y < down; k++) {
            last_y = steps[k] < down ? steps[k] : down;
            t.tile_w = last_x * t.thread_w;
            t.tile_h = last_y * t.thread_h;
            if (s->roles.dgrad && t.tile_h % s->g.stride[1])
                t.tile_h += (int)(s->g.stride[1] - t.tile_h % s->g.stride[1]);
            if (!conv_depthwise_tile_complete(s, device, &t)) continue;
            conv_rank(best, &t, conv_depthwise_ms(s, device, &t));
        }
    }
}

/* Channels of a block: few left over, many at once. */
static int channel_choices(long long channels, int choices[2])
{
    double best[2] = {1e30, 1e30};
    int count = 0;
    for (int c = 64; c >= 8; c -= 8) {
        double waste = ceil((double)channels / c) * c / (double)channels *
                       (c < 32   ? 1.2
                        : c < 48 ? 1.05
                                 : 1);
        int at = waste < best[0] ? 0 : waste < best[1] ? 1 : 2;
        if (at == 0) {
            best[1] = best[0];
            choices[1] = choices[0];
        }
        if (at == 2) continue;
        best[at] = waste;
        choices[at] = c;
        if (count < 2) count++;
    }
    return count;
}

int conv_depthwise_tiles(const conv_depthwise_shape *s, const mica_device_info *device,
                         conv_depthwise_tile *tiles, int most)
{
    static const int widths[] = {1, 2, 3, 4, 5, 6, 7, 8, 10, 14}, heights[] = {1, 2, 4};
    if (most > CONV_RANKING_MOST) most = CONV_RANKING_MOST;
    conv_ranking best = {.items = tiles, .size = sizeof *tiles, .most = most};
    int choices[2] = {8, 8}, channels = channel_choices(s->g.groups, choices);
    int step_y = s->roles.dgrad ? (int)s->g.stride[1] : 1,
        step_x = s->roles.dgrad ? (int)s->g.stride[2] : 1;
    bool large = s->g.tap[1] * s->g.tap[2] > 100;
    for (int c = 0; c < channels + large; c++)
        for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
            for (size_t h = 0; h < sizeof heights / sizeof *heights; h++) {
                /* large filters want room: fewer channels are tried last */
                conv_depthwise_tile t = {.channels = c < channels ? choices[c] : 16};
                t.thread_w = widths[w] * step_x;
                t.thread_h = heights[h] > 1 && step_y > 1 ? heights[h] / 2 * step_y : heights[h];
                if (w > 0 && t.thread_w > 16) continue;
                if (w > 0 && widths[w - 1] >= s->size_to[2]) continue;
                if (h > 0 && heights[h - 1] >= s->size_to[1]) continue;
                try_strips(s, device, t, &best);
            }
    if (best.count == 0 && most > 0) return conv_depthwise_tile_least(s, device, &tiles[0]);
    return best.count;
}
