/* SPDX-License-Identifier: Apache-2.0
 * First layers: what is taken, and tiles with what they are expected to cost. */
#include "ops/conv/cuda/conv_ranking.h"
#include "ops/conv/stem/stem.h"

#include <math.h>
#include <stdlib.h>

enum { MOST_CHANNELS = 8, MOST_WORDS = 128, MOST_POSITION = 1 << 26, WARPS = 4 };

/* ---- what is taken ---- */

static mica_status sizes_ok(const conv_stem_shape *s, mica_why *why)
{
    const mica_conv_geometry *g = &s->g;
    if (g->groups != 1 || g->c > MOST_CHANNELS)
        return mica_refuse(why, "%lld groups of %lld channels, this engine is for 1 of up to %d",
                           g->groups, g->c, MOST_CHANNELS);
    if (g->k < 1 || g->c * g->tap[0] * g->tap[1] * g->tap[2] < 1)
        return mica_refuse(why,
                           "%lld filters of %lld x %lld x %lld x %lld terms: nothing to multiply",
                           g->k, g->c, g->tap[0], g->tap[1], g->tap[2]);
    for (int i = 1; i < 3; i++) {
        double reach = (double)(g->tap[i] - 1) * (double)g->dilation[i] + (double)llabs(g->pad[i]);
        double end = reach + (double)g->in[i] + (double)g->out[i] * (double)g->stride[i];
        if (end >= MOST_POSITION || g->k >= MOST_POSITION)
            return mica_refuse(why, "positions reach %.10g on axis %d, this engine counts to %d",
                               end, i, MOST_POSITION);
    }
    return MICA_OK;
}

mica_status conv_stem_words_ok(const conv_stem_shape *s, mica_why *why)
{
    const mica_conv_geometry *g = &s->g;
    if (g->dilation[2] != 1 && g->tap[2] > 1)
        return mica_refuse(why, "the dilation is %lld across, this engine's is 1", g->dilation[2]);
    if (s->words > MOST_WORDS)
        return mica_refuse(why,
                           "%lld x %lld taps of %d channels are %d pairs, this engine holds %d",
                           g->tap[1], g->tap[2], s->channels, s->words, MOST_WORDS);
    return MICA_OK;
}

/* Taps of a plane as pairs of terms: fwd and wgrad. */
static mica_status words_make(conv_stem_shape *s, mica_why *why)
{
    const mica_conv_geometry *g = &s->g;
    s->channels = (int)(g->stride[2] * g->c % 2 ? g->c + 1 : g->c);
    s->run = (int)(g->tap[2] * s->channels + 1) / 2;
    s->words = (int)g->tap[1] * s->run;
    return conv_stem_words_ok(s, why);
}

mica_status conv_stem_shape_begin(const mica_conv_desc *d, conv_stem_shape *s, mica_why *why)
{
    *s = (conv_stem_shape){.roles = mica_conv_roles_of(d)};
    mica_conv_geometry_make(d, &s->g);
    const mica_conv_geometry *g = &s->g;
    s->in = mica_conv_tensor(d, s->roles.image)->dtype;
    s->out = mica_conv_tensor(d, s->roles.out)->dtype;
    s->stats = conv_has_batch_stats(d);
    if (s->in != MICA_F16 && s->in != MICA_BF16)
        return mica_refuse(why, "inputs are %s, this engine takes f16 and bf16",
                           mica_dtype_name(s->in));
    if (g->c > MOST_CHANNELS || g->stride[2] > 64 || g->tap[1] * g->tap[2] > 2 * MOST_WORDS)
        return mica_refuse(why, "%lld channels, %lld x %lld taps, stride %lld: not a first layer",
                           g->c, g->tap[1], g->tap[2], g->stride[2]);
    if (s->roles.dgrad && s->stats)
        return mica_refuse(why, "statistics of a transposed convolution are left to others");
    s->channels = (int)g->c;
    s->flat = (g->a.c == 1 || g->c == 1) && (g->a.s[2] == g->c || g->in[2] == 1);
    return sizes_ok(s, why);
}

mica_status conv_stem_shape_make(const mica_conv_desc *d, conv_stem_shape *s, mica_why *why)
{
    MICA_TRY(conv_stem_shape_begin(d, s, why));
    const mica_conv_geometry *g = &s->g;
    if (g->in[0] != 1 || g->out[0] != 1 || g->tap[0] != 1 || g->pad[0] != 0)
        return mica_refuse(why, "%lld pixels and %lld taps in depth, this engine has two axes",
                           g->in[0], g->tap[0]);
    MICA_TRY(s->roles.dgrad ? conv_stem_cells_make(s, why) : words_make(s, why));
    s->flat = s->flat && s->channels == g->c;
    return MICA_OK;
}

/* ---- tiles ---- */

static double parts_of(double n, double by)
{
    return ceil(n / by);
}

static void choose_warps(const conv_stem_shape *s, conv_stem_layout *t)
{
    int filters = (int)s->g.k;
    if (!s->roles.wgrad) {
        t->chunks = (filters + 95) / 96;
        t->groups = (filters + 32 * t->chunks - 1) / (32 * t->chunks);
        t->chunks = (filters + 32 * t->groups - 1) / (32 * t->groups);
        t->warps = WARPS;
        t->lines = t->groups == 1 ? 3 : 2;
        return;
    }
    t->units = filters > 48 ? 4 : (filters + 15) / 16;
    /* each chunk copies the image again */
    if (filters > 64 && (filters + 95) / 96 * 96 <= (filters + 63) / 64 * 64) t->units = 6;
    t->chunks = (filters + 16 * t->units - 1) / (16 * t->units);
    int groups = (s->words + 7) / 8, least = 1000;
    for (int each = 1; each <= (t->units > 4 ? 2 : t->units > 2 ? 3 : 4); each++) {
        int all = (groups + each - 1) / each * each;
        if (all > least) continue;
        least = all;
        t->word_groups = each;
    }
    int warps_n = least / t->word_groups;
    t->warps_p = 8 / warps_n;
    if (warps_n > 8) t->warps_p = 1;
    t->warps = warps_n * t->warps_p;
}

static int registers_of(const conv_stem_shape *s, const conv_stem_layout *t)
{
    if (s->roles.wgrad) return t->units * t->word_groups * 8 + t->word_groups * 5 + 44;
    return 16 * t->groups * t->lines + 2 * ((s->words + 7) / 8) + 6 * t->lines + 56 +
           (s->stats ? 2 * t->groups + (s->flat ? 0 : 32) : 0);
}

static void count_cycles(const conv_stem_shape *s, int image_words, conv_stem_layout *t)
{
    const double product = 1.7; /* clocks of a multiprocessor for one 16 x 8 x 16 */
    double pixels = (double)t->tile_h * t->tile_w, slices = (s->words + 7) / 8;
    double copy = image_words * (s->flat ? 14.0 : 30.0) / 128 + 600, work;
    if (s->roles.wgrad) {
        double rounds = parts_of(pixels / 16, t->warps_p) * t->warps;
        copy += pixels * t->units * 2 * 16 / 128;
        double reads = 4.0 * t->units + 4.0 * t->word_groups; /* of shared memory */
        work = rounds * fmax(t->units * t->word_groups * 2 * product, reads) * 1.15;
    } else {
        double strips = parts_of(parts_of(pixels, 16 * t->lines), t->warps) * t->warps;
        double units = slices * t->groups * 4 * t->lines * product;
        double reads = slices * (4 * t->lines + 8 * t->groups); /* of shared memory */
        int store = s->stats ? 42 : 20;
        work = strips * (fmax(units, reads) * 1.15 + t->groups * t->lines * store);
    }
    /* only other blocks work while one copies */
    t->cycles = t->blocks > 1 ? fmax(work, copy) + 0.3 * fmin(work, copy) : work + copy;
    if (s->g.b.c != 1) t->cycles *= 3; /* filters of a pixel lie apart */
}

/* fwd and wgrad: tiles of pixels of b. */
static bool pixels_layout(const conv_stem_shape *s, const mica_device_info *device,
                          conv_stem_layout *t)
{
    if (s->roles.wgrad && t->tile_w % 16) return false;
    choose_warps(s, t);
    double high = (double)(t->tile_h - 1) * (double)s->g.stride[1] +
                  (double)(s->g.tap[1] - 1) * (double)s->g.dilation[1] + 1;
    double wide = (double)(t->tile_w - 1) * (double)s->g.stride[2] * s->channels / 2 + s->run;
    if (high * wide >= 1 << 16) return false;
    int words = (int)(high * wide);
    int slices = (s->words + 7) / 8, pixels = t->tile_h * t->tile_w;
    if (s->roles.wgrad) {
        int merge = t->warps / t->warps_p * 32 * t->units * t->word_groups * 8 * 4;
        t->shared = (words + 3) / 4 * 16 + pixels * (16 * t->units + 8) * 2;
        if (t->warps_p > 1 && t->shared < merge) t->shared = merge;
    } else {
        t->shared = (slices * t->groups * 256 + words) * 4;
    }
    if (t->shared > device->shared_bytes - CONV_STEM_TERMS) return false;
    int by_shared = (int)((device->shared_bytes + 1024) / (t->shared + 1024));
    int by_registers = 65536 / (32 * t->warps * ((registers_of(s, t) + 7) / 8 * 8));
    t->blocks = by_shared < by_registers ? by_shared : by_registers;
    if (t->blocks > 6) t->blocks = 6;
    if (t->blocks < 1) t->blocks = 1;
    t->setup = s->roles.wgrad ? 4000 : (double)(s->words * t->groups) * 60;
    t->down = parts_of((double)s->g.out[1], t->tile_h);
    t->across = parts_of((double)s->g.out[2], t->tile_w);
    t->tiles = (double)s->g.n * t->down * t->across;
    count_cycles(s, words, t);
    return true;
}

bool conv_stem_layout_make(const conv_stem_shape *s, const mica_device_info *device, int tile_h,
                           int tile_w, conv_stem_layout *t)
{
    *t = (conv_stem_layout){.tile_h = tile_h, .tile_w = tile_w};
    if (tile_h < 1 || tile_w < 1 || tile_h > 256 || tile_w > 256) return false;
    return s->roles.dgrad ? conv_stem_cells_layout(s, device, t) : pixels_layout(s, device, t);
}

bool conv_stem_layout_least(const conv_stem_shape *s, const mica_device_info *device,
                            conv_stem_layout *t)
{
    if (!s->roles.dgrad) return conv_stem_layout_make(s, device, 1, 16, t);
    return conv_stem_layout_make(s, device, 4, 16, t) || conv_stem_layout_make(s, device, 1, 64, t);
}

double conv_stem_milliseconds(const conv_stem_shape *s, const mica_device_info *device,
                              const conv_stem_layout *t, double parts)
{
    const double hertz = 1.6e9, busy = s->roles.dgrad ? 8 : 12; /* warps that hide a latency */
    double most = (double)device->units * t->blocks / t->chunks;
    if (parts == 0 || parts > most) parts = fmax(1, most);
    if (parts > t->tiles) parts = t->tiles;
    double resident = fmin(t->blocks, fmax(1, parts * t->chunks / device->units));
    double latency = resident * t->warps < busy ? sqrt(busy / (resident * t->warps)) : 1;
    double cycles = parts_of(t->tiles, parts) * t->cycles * latency + t->setup;
    return cycles * resident / hertz * 1e3;
}

static void enter(const conv_stem_shape *s, const mica_device_info *device, int tile_h, int tile_w,
                  conv_ranking *r)
{
    conv_stem_layout t;
    if (conv_stem_layout_make(s, device, tile_h, tile_w, &t))
        conv_rank(r, &t, conv_stem_milliseconds(s, device, &t, 0));
}

static void enter_pixels(const conv_stem_shape *s, const mica_device_info *device, conv_ranking *r)
{
    static const int heights[] = {1, 2, 3, 4, 6, 7, 8, 14, 16};
    int step = s->roles.wgrad ? 16 : 1;
    for (int part = 1; part <= 8; part++)
        for (size_t h = 0; h < sizeof heights / sizeof *heights; h++) {
            double width = parts_of(parts_of((double)s->g.out[2], part), step) * step;
            if (width > 256 || (h > 0 && heights[h - 1] >= s->g.out[1])) continue;
            enter(s, device, heights[h], (int)fmax(width, step), r);
        }
}

int conv_stem_choices(const conv_stem_shape *s, const mica_device_info *device,
                      conv_stem_layout *best)
{
    conv_ranking r = {.items = best, .size = sizeof *best, .most = CONV_STEM_CHOICES};
    if (s->roles.dgrad)
        for (int tile_w = 16; tile_w <= 64; tile_w *= 2)
            for (int tile_h = 1; tile_h <= 32; tile_h++) enter(s, device, tile_h, tile_w, &r);
    else
        enter_pixels(s, device, &r);
    return r.count ? r.count : conv_stem_layout_least(s, device, best);
}
