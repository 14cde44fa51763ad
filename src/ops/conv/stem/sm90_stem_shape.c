/* SPDX-License-Identifier: Apache-2.0
 * First layers on Hopper: what is taken, and tiles with what they are expected to cost. */
#include "ops/conv/cuda/conv_ranking.h"
#include "ops/conv/stem/sm90_stem.h"

#include <math.h>

enum { MOST_BOX = 256, MOST_GROUPS = 4, MOST_COLUMNS = 128, MOST_BATCH = 7, MOST_WIDTH = 1024 };
enum { MOST_PLANES = 16, MOST_M_TILES = 4 };

typedef conv_sm90_stem_shape shape;
typedef conv_sm90_stem_layout layout;

/* ---- what is taken ---- */

static bool stride_ok(long long size, int64_t stride)
{
    return size <= 1 || (stride > 0 && stride * 2 % 16 == 0);
}

static mica_status image_ok(const shape *s, mica_why *why)
{
    const mica_conv_geometry *g = &s->stem.g;
    const mica_conv_strides *a = &g->a;
    if (!s->stem.flat)
        return mica_refuse(why,
                           "pixels of the image, %lld elements apart with channels %lld apart, do "
                           "not lie side by side",
                           (long long)a->s[2], (long long)a->c);
    if (g->in[2] * g->c * 2 % 16 || !stride_ok(g->in[1], a->s[1]) ||
        !stride_ok(g->in[0], a->s[0]) || !stride_ok(g->n, a->n))
        return mica_refuse(why,
                           "rows of %lld bytes lie %lld, planes %lld, images %lld elements apart: "
                           "TMA takes positive multiples of 16 bytes",
                           g->in[2] * g->c * 2, (long long)a->s[1], (long long)a->s[0],
                           (long long)a->n);
    if (g->tap[0] > MOST_PLANES || (g->tap[0] > 1 && g->dilation[0] != 1))
        return mica_refuse(why,
                           "%lld taps in depth %lld apart, this engine takes up to %d side by side",
                           g->tap[0], g->dilation[0], MOST_PLANES);
    return MICA_OK;
}

/* wgrad: the filters of y's pixels are loaded by TMA, too. */
static mica_status other_ok(const shape *s, mica_why *why)
{
    const mica_conv_geometry *g = &s->stem.g;
    const mica_conv_strides *b = &g->b;
    if (b->c != 1 && g->k > 1)
        return mica_refuse(why, "channels of y lie %lld apart, this engine loads them side by side",
                           (long long)b->c);
    if (!stride_ok(g->out[2], b->s[2]) || !stride_ok(g->out[1], b->s[1]) ||
        !stride_ok(g->n, b->n) || !stride_ok(g->out[0], b->s[0]))
        return mica_refuse(why,
                           "pixels of y lie %lld, rows %lld, images %lld elements apart: the copy "
                           "engine takes positive multiples of 16 bytes",
                           (long long)b->s[2], (long long)b->s[1], (long long)b->n);
    if (g->n > 1 && g->out[0] > 1 && b->n != g->out[0] * b->s[0])
        return mica_refuse(why,
                           "planes of y lie %lld, images %lld apart, this engine takes one run of "
                           "planes",
                           (long long)b->s[0], (long long)b->n);
    if (g->out[2] % s->pair)
        return mica_refuse(why, "rows of y have %lld pixels, this engine takes them in twos",
                           g->out[2]);
    return MICA_OK;
}

/* Taps of a plane as pairs of terms. */
static void words_make(shape *s)
{
    conv_stem_shape *m = &s->stem;
    const mica_conv_geometry *g = &m->g;
    int step = (int)(g->stride[2] * g->c);
    int before = (int)((8 - g->pad[2] * g->c % 8) % 8); /* past a multiple of 16 bytes */
    s->pair = step % 2 ? 2 : 1;
    s->step = s->pair * step / 2;
    s->lead = before % 2;
    s->shift = before / 2;
    m->run = (s->lead + (s->pair - 1) * step + (int)(g->tap[2] * g->c) + 1) / 2;
    m->words = (int)g->tap[1] * m->run;
}

mica_status conv_sm90_stem_shape_make(const mica_conv_desc *d, const mica_device_info *device,
                                      shape *s, mica_why *why)
{
    layout best[CONV_SM90_STEM_CHOICES];
    *s = (shape){0};
    if (device->arch != 90)
        return mica_refuse(why, "the device is sm_%d, this engine is for sm_90", device->arch);
    MICA_TRY(conv_refuse_quantised_epilogue(d, why));
    MICA_TRY(conv_refuse_empty(d, why));
    MICA_TRY(conv_stem_shape_begin(d, &s->stem, why));
    const mica_conv_geometry *g = &s->stem.g;
    if (s->stem.roles.dgrad)
        return mica_refuse(why, "an image's gradient, this engine forms y and gradients of w");
    MICA_TRY(image_ok(s, why));
    words_make(s);
    s->steps = mica_epilogue_count(mica_conv_epilogue(d).steps);
    MICA_TRY(conv_stem_words_ok(&s->stem, why));
    if (s->stem.roles.wgrad) MICA_TRY(other_ok(s, why));
    if (!conv_sm90_stem_choices(s, device, best))
        return mica_refuse(why, "%lld x %lld x %lld taps at distance %lld do not fit shared memory",
                           g->tap[0], g->tap[1], g->tap[2], g->dilation[1]);
    if (best[0].tiles.tiles > INT32_MAX)
        return mica_refuse(why, "%.10g tiles, this engine counts to %d", best[0].tiles.tiles,
                           INT32_MAX);
    return s->stem.stats ? conv_stem_stats_ok(&s->stem, device, best[0].tiles.warps, why) : MICA_OK;
}

/* ---- tiles ---- */

static double parts_of(double n, double by)
{
    return ceil(n / by);
}

static int slices_of(const shape *s)
{
    return (s->stem.words + 7) / 8;
}

/* In bytes, of a tile. */
static int64_t image_bytes(const shape *s, const layout *l)
{
    return (int64_t)s->stem.g.tap[0] * l->image_h * l->pitch * 4;
}

/* Groups of 32 columns, and as many threads as have room for sums and terms. */
static bool forward_layout(const shape *s, const mica_device_info *device, layout *l)
{
    conv_stem_layout *t = &l->tiles;
    int filters = (int)s->stem.g.k, most = MOST_GROUPS / s->pair, slices = slices_of(s);
    t->chunks = (filters + 32 * most - 1) / (32 * most);
    t->groups = (filters + 32 * t->chunks - 1) / (32 * t->chunks);
    t->chunks = (filters + 32 * t->groups - 1) / (32 * t->groups);
    t->groups *= s->pair;
    int registers = 16 * t->groups + 6 * slices + 36 + 8 * s->steps;
    if (s->stem.stats) registers += 2 * t->groups;
    if (s->stem.g.tap[0] > 1) registers += 24;
    t->warps = registers <= 128 || registers > 168 ? 8 : 12;
    t->blocks = registers <= 128 ? 2 : 1;
    l->stages = 2;
    int64_t image = (image_bytes(s, l) + 127) / 128 * 128, planes = s->stem.g.tap[0];
    int64_t shared = l->stages * image + planes * slices * t->groups * 1024;
    if (shared > device->shared_bytes - CONV_STEM_TERMS) return false;
    t->shared = (int)shared;
    if (2 * (shared + CONV_STEM_TERMS) > device->shared_bytes) t->blocks = 1;
    double strips = parts_of((double)t->tile_h * t->tile_w / s->pair, 64);
    double all = (double)planes * slices;
    double units = 16 * all * t->groups, reads = 16 * all; /* of a strip */
    double issue = 6 * all + 30.0 * t->groups + 60;
    t->cycles =
        parts_of(strips, t->warps / 4) * t->warps / 4 * (units + reads + issue) * 1.15 + 800;
    t->setup = 3000 + all * t->groups * 12;
    return true;
}

/* The largest number of slices at once, so that a row has whole batches and two of them fit the
 * registers beside the sums. */
static int batch_of(int slices, int warpgroups, int columns)
{
    int registers = 65536 / (128 * warpgroups + 32) / 8 * 8 - columns / 2 - 32;
    int batch = registers / 8 < MOST_BATCH ? registers / 8 : MOST_BATCH;
    while (slices % batch) batch--;
    return batch;
}

static bool wgrad_layout(const shape *s, const mica_device_info *device, layout *l)
{
    conv_stem_layout *t = &l->tiles;
    int filters = (int)s->stem.g.k, line = t->tile_w / s->pair;
    int words = (int)s->stem.g.tap[0] * s->stem.words, m_tiles = (words + 31) / 32;
    int m_chunks = (m_tiles + MOST_M_TILES - 1) / MOST_M_TILES;
    if (line % 16 || line > MOST_BOX || (m_chunks > 1 && s->pair > 1)) return false;
    l->m_tiles = (m_tiles + m_chunks - 1) / m_chunks;
    /* four warpgroups leave fewer registers to a thread's sums */
    int most = (l->m_tiles < MOST_M_TILES ? MOST_COLUMNS : MOST_COLUMNS / 2) / s->pair;
    l->filter_chunks = (filters + most - 1) / most;
    l->filters = (filters + 32 * l->filter_chunks - 1) / (32 * l->filter_chunks) * 32;
    l->box = l->filters % 64 ? 32 : 64;
    t->chunks = l->filter_chunks * m_chunks;
    l->shares = l->m_tiles == 1 ? 3 : 1;
    l->batch = batch_of(line / 16, l->m_tiles * l->shares, s->pair * l->filters);
    int steps = t->tile_h * (line / 16 / l->batch);
    while (steps % l->shares) l->shares--;
    t->warps = 4 * l->m_tiles * l->shares;
    t->blocks = 1;
    int64_t lines = (int64_t)t->tile_h * line, columns = (int64_t)l->filters * s->pair;
    int64_t other = (lines * columns * 2 + 1023) / 1024 * 1024;
    int64_t image = (image_bytes(s, l) + 1023) / 1024 * 1024;
    int64_t sums = l->m_tiles * 64 * (columns + 4) * 4, room = device->shared_bytes - 2048;
    int64_t stages = room / (other + image);
    l->stages = (int)(stages < 4 ? stages : 4);
    if (l->stages < 2 || sums > l->stages * (other + image)) return false;
    t->shared = (int)(l->stages * (other + image) + 1024);
    double slices = (double)lines / 16;
    double units = slices * l->m_tiles * (double)columns / 2;
    double issue = slices * l->m_tiles * 18;
    double arrival = (double)(other + image) / 30;
    t->cycles = fmax(units + issue, arrival) * 1.15 + 300;
    t->setup = 8000;
    return true;
}

bool conv_sm90_stem_layout_make(const shape *s, const mica_device_info *device, int tile_h,
                                int tile_w, layout *l)
{
    const mica_conv_geometry *g = &s->stem.g;
    *l = (layout){.tiles = {.tile_h = tile_h, .tile_w = tile_w}};
    conv_stem_layout *t = &l->tiles;
    if (tile_h < 1 || tile_w < 1 || tile_h > MOST_BOX || tile_w > MOST_WIDTH) return false;
    t->down = parts_of((double)g->out[1], tile_h);
    t->across = parts_of((double)g->out[2], tile_w);
    t->tiles = (double)g->n * (double)g->out[0] * t->down * t->across;
    /* every tile begins as the first does */
    if (tile_w % s->pair || (t->across > 1 && tile_w * g->stride[2] * g->c % 8)) return false;
    int64_t words = s->shift + (int64_t)(tile_w / s->pair - 1) * s->step + s->stem.run;
    int64_t rows = (tile_h - 1) * g->stride[1] + (g->tap[1] - 1) * g->dilation[1] + 1;
    if (words > 2 * MOST_BOX || rows > MOST_BOX) return false;
    l->pitch = (int)(words + 3) / 4 * 4;
    l->image_h = (int)rows;
    return s->stem.roles.wgrad ? wgrad_layout(s, device, l) : forward_layout(s, device, l);
}

int conv_sm90_stem_parts(const layout *l, const mica_device_info *device)
{
    const conv_stem_layout *t = &l->tiles;
    return (int)fmin(t->tiles, fmax(1, floor((double)device->units * t->blocks / t->chunks)));
}

double conv_sm90_stem_milliseconds(const mica_device_info *device, const layout *l, int parts)
{
    const double hertz = 1.6e9;
    const conv_stem_layout *t = &l->tiles;
    double resident = fmax(1, fmin(t->blocks, (double)parts * t->chunks / device->units));
    return (parts_of(t->tiles, parts) * t->cycles * resident + t->setup) / hertz * 1e3;
}

static void enter(const shape *s, const mica_device_info *device, int tile_h, int tile_w,
                  conv_ranking *r)
{
    layout l;
    if (!conv_sm90_stem_layout_make(s, device, tile_h, tile_w, &l)) return;
    conv_rank(r, &l, conv_sm90_stem_milliseconds(device, &l, conv_sm90_stem_parts(&l, device)));
}

int conv_sm90_stem_choices(const shape *s, const mica_device_info *device, layout *best)
{
    static const int heights[] = {1, 2, 3, 4, 6, 7, 8, 12, 14, 16};
    conv_ranking r = {.items = best, .size = sizeof *best, .most = CONV_SM90_STEM_CHOICES};
    bool wgrad = s->stem.roles.wgrad;
    for (int part = 1; part <= 8; part++) {
        int step = wgrad ? 16 * s->pair : part == 1 ? s->pair : 8;
        double width = parts_of(parts_of((double)s->stem.g.out[2], part), step) * step;
        for (size_t h = 0; h < sizeof heights / sizeof *heights; h++)
            if (width <= MOST_WIDTH && (h == 0 || heights[h - 1] < s->stem.g.out[1]))
                enter(s, device, heights[h], (int)width, &r);
    }
    return r.count;
}
