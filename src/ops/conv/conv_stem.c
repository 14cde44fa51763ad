/* SPDX-License-Identifier: Apache-2.0
 * Engine "stem": first layers, f16 and bf16 with up to 8 channels in two dimensions, forward and
 * the filter's gradient, on the matrix units of sm_80 and later. A row of the image comes to shared
 * memory once, without padding its channels; near the memory floor where general engines gather
 * element by element. Statistics are formed as y is stored. wgrad splits the tiles of all images
 * into parts in workspace, added up in order; splits=1 needs none. The image's gradient is left to
 * others. */
#include "ops/conv/conv.h"
#include "ops/conv/conv_parts.h"
#include "ops/conv/conv_stats.h"
#include "ops/conv/conv_stem_args.h"

#include <math.h>
#include <stdlib.h>

enum { KNOB_TILE_H, KNOB_TILE_W, KNOB_SPLITS };
static const char *const knobs[] = {"tile_h", "tile_w", "splits", NULL};

enum { MOST_CHANNELS = 8, MOST_WORDS = 128, MOST_POSITION = 1 << 26, WARPS = 4, CHOICES = 2 };

typedef struct shape {
    mica_conv_geometry g;
    mica_conv_roles roles;
    mica_dtype in, out;
    int channels; /* in shared memory */
    int run, words;
    bool flat, stats;
} shape;

/* What a plan's kernel is made of. */
typedef struct layout {
    int tile_h, tile_w;
    int image_words, shared;
    int chunks;                      /* blocks of filters */
    int groups, lines;               /* fwd: of 32 filters, of 16 pixels */
    int units, word_groups, warps_p; /* wgrad */
    int warps, blocks;
    double tiles, cycles; /* in all; of a multiprocessor for one */
} layout;

typedef struct state {
    mica_kernel *kernel;
    mica_grid grid;
    shape shape;
    conv_parts parts;
    conv_stats stats;
    bool vector;
    conv_stem_args args;
} state;

static bool is_wgrad(const shape *s)
{
    return s->roles.kind == MICA_CONV_KIND_WGRAD;
}

/* ---- what is taken ---- */

static mica_status sizes_ok(const shape *s, mica_why *why)
{
    const mica_conv_geometry *g = &s->g;
    if (g->groups != 1 || g->c > MOST_CHANNELS)
        return mica_refuse(why, "%lld groups of %lld channels, this engine is for 1 of up to %d",
                           g->groups, g->c, MOST_CHANNELS);
    if (g->k < 1 || s->words < 1)
        return mica_refuse(why, "%lld filters of %lld x %lld x %lld terms: nothing to multiply",
                           g->k, g->c, g->tap[1], g->tap[2]);
    if (g->in[0] != 1 || g->out[0] != 1 || g->tap[0] != 1 || g->pad[0] != 0)
        return mica_refuse(why, "%lld pixels and %lld taps in depth, this engine has two axes",
                           g->in[0], g->tap[0]);
    if (g->dilation[2] != 1 && g->tap[2] > 1)
        return mica_refuse(why, "the dilation is %lld across, this engine's is 1", g->dilation[2]);
    if (s->words > MOST_WORDS)
        return mica_refuse(why,
                           "%lld x %lld taps of %d channels are %d pairs, this engine holds %d",
                           g->tap[1], g->tap[2], s->channels, s->words, MOST_WORDS);
    for (int i = 1; i < 3; i++) {
        double reach = (double)(g->tap[i] - 1) * (double)g->dilation[i] + (double)llabs(g->pad[i]);
        double end = reach + (double)g->in[i] + (double)g->out[i] * (double)g->stride[i];
        if (end >= MOST_POSITION || g->k >= MOST_POSITION)
            return mica_refuse(why, "positions reach %.0f on axis %d, this engine counts to %d",
                               end, i, MOST_POSITION);
    }
    return MICA_OK;
}

static mica_status make_shape(const mica_conv_desc *d, shape *s, mica_why *why)
{
    *s = (shape){.roles = mica_conv_roles_of(d)};
    mica_conv_geometry_make(d, &s->g);
    const mica_conv_geometry *g = &s->g;
    if (s->roles.kind == MICA_CONV_KIND_DGRAD)
        return mica_refuse(why, "the result is an image's gradient, this engine has none");
    s->in = mica_conv_tensor(d, s->roles.a)->dtype;
    s->out = mica_conv_tensor(d, s->roles.out)->dtype;
    if (s->in != MICA_F16 && s->in != MICA_BF16)
        return mica_refuse(why, "inputs are %s, this engine takes f16 and bf16",
                           mica_dtype_name(s->in));
    if (g->c > MOST_CHANNELS || g->stride[2] > 64 || g->tap[1] * g->tap[2] > 2 * MOST_WORDS)
        return mica_refuse(why, "%lld channels, %lld x %lld taps, stride %lld: not a first layer",
                           g->c, g->tap[1], g->tap[2], g->stride[2]);
    s->channels = (int)(g->stride[2] * g->c % 2 ? g->c + 1 : g->c);
    s->stats = conv_has_stats(d);
    s->run = (int)(g->tap[2] * s->channels + 1) / 2;
    s->words = (int)g->tap[1] * s->run;
    s->flat =
        s->channels == g->c && (g->a.c == 1 || g->c == 1) && (g->a.s[2] == g->c || g->in[2] == 1);
    return sizes_ok(s, why);
}

/* ---- tiles ---- */

static double parts_of(double n, double by)
{
    return ceil(n / by);
}

static void choose_warps(const shape *s, layout *t)
{
    int filters = (int)s->g.k;
    if (!is_wgrad(s)) {
        t->chunks = (filters + 95) / 96;
        t->groups = (filters + 32 * t->chunks - 1) / (32 * t->chunks);
        t->chunks = (filters + 32 * t->groups - 1) / (32 * t->groups);
        t->warps = WARPS;
        t->lines = t->groups == 1 ? 3 : 2;
        return;
    }
    t->units = filters > 48 ? 4 : (filters + 15) / 16;
    t->chunks = (filters + 16 * t->units - 1) / (16 * t->units);
    int groups = (s->words + 7) / 8, least = 1000;
    for (int each = 1; each <= (t->units > 2 ? 3 : 4); each++) {
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

static int registers_of(const shape *s, const layout *t)
{
    if (is_wgrad(s)) return t->units * t->word_groups * 8 + t->word_groups * 5 + 44;
    return 16 * t->groups * t->lines + 2 * ((s->words + 7) / 8) + 6 * t->lines + 56 +
           (s->stats ? 2 * t->groups + (s->flat ? 0 : 32) : 0);
}

static void count_cycles(const shape *s, layout *t)
{
    const double product = 1.7; /* clocks of a multiprocessor for one 16 x 8 x 16 */
    double pixels = (double)t->tile_h * t->tile_w, slices = (s->words + 7) / 8;
    double copy = t->image_words * (s->flat ? 14.0 : 30.0) / 128 + 600, work;
    if (is_wgrad(s)) {
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
    double across = parts_of((double)s->g.out[2], t->tile_w);
    t->tiles = (double)s->g.n * parts_of((double)s->g.out[1], t->tile_h) * across;
}

/* Fills the rest; false if the device cannot hold it. */
static bool complete(const shape *s, const mica_device_info *device, layout *t)
{
    if (t->tile_h < 1 || t->tile_w < 1 || t->tile_h > 256 || t->tile_w > 256) return false;
    if (is_wgrad(s) && t->tile_w % 16) return false;
    choose_warps(s, t);
    double high = (double)(t->tile_h - 1) * (double)s->g.stride[1] +
                  (double)(s->g.tap[1] - 1) * (double)s->g.dilation[1] + 1;
    double wide = (double)(t->tile_w - 1) * (double)s->g.stride[2] * s->channels / 2 + s->run;
    if (high * wide >= 1 << 16) return false;
    t->image_words = (int)(high * wide);
    int slices = (s->words + 7) / 8, pixels = t->tile_h * t->tile_w;
    if (is_wgrad(s)) {
        int merge = t->warps / t->warps_p * 32 * t->units * t->word_groups * 8 * 4;
        t->shared = (t->image_words + 3) / 4 * 16 + pixels * (16 * t->units + 8) * 2;
        if (t->warps_p > 1 && t->shared < merge) t->shared = merge;
    } else {
        t->shared = (slices * t->groups * 256 + t->image_words) * 4;
    }
    if (t->shared > device->shared_bytes) return false;
    int by_shared = (int)((device->shared_bytes + 1024) / (t->shared + 1024));
    int by_registers = 65536 / (32 * t->warps * ((registers_of(s, t) + 7) / 8 * 8));
    t->blocks = by_shared < by_registers ? by_shared : by_registers;
    if (t->blocks > 6) t->blocks = 6;
    if (t->blocks < 1) t->blocks = 1;
    count_cycles(s, t);
    return true;
}

/* Milliseconds without launches; parts: blocks that share out the tiles, 0: as many as there is
 * room for. */
static double milliseconds(const shape *s, const mica_device_info *device, const layout *t,
                           double parts)
{
    const double hertz = 1.6e9;
    double most = (double)device->units * t->blocks / t->chunks;
    if (parts == 0 || parts > most) parts = fmax(1, most);
    if (parts > t->tiles) parts = t->tiles;
    double resident = fmin(t->blocks, fmax(1, parts * t->chunks / device->units));
    double latency = resident * t->warps < 12 ? sqrt(12 / (resident * t->warps)) : 1;
    double setup = is_wgrad(s) ? 4000 : (double)(s->words * t->groups) * 10;
    return (parts_of(t->tiles, parts) * t->cycles * resident * latency + setup * resident) / hertz *
           1e3;
}

static int choices(const shape *s, const mica_device_info *device, layout *best)
{
    static const int heights[] = {1, 2, 3, 4, 6, 7, 8, 14, 16};
    int count = 0, step = is_wgrad(s) ? 16 : 1;
    double ms[CHOICES];
    for (int part = 1; part <= 8; part++)
        for (size_t h = 0; h < sizeof heights / sizeof *heights; h++) {
            layout t = {.tile_h = heights[h]};
            double width = parts_of(parts_of((double)s->g.out[2], part), step) * step;
            if (width > 256 || (h > 0 && heights[h - 1] >= s->g.out[1])) continue;
            t.tile_w = (int)fmax(width, step);
            if (!complete(s, device, &t)) continue;
            double time = milliseconds(s, device, &t, 0);
            int at = count < CHOICES ? count++ : CHOICES;
            for (; at > 0 && ms[at - 1] > time; at--)
                if (at < CHOICES) best[at] = best[at - 1], ms[at] = ms[at - 1];
            if (at < CHOICES) best[at] = t, ms[at] = time;
        }
    if (count == 0) {
        best[0] = (layout){.tile_h = 1, .tile_w = 16};
        count = complete(s, device, &best[0]);
    }
    return count;
}

/* A lane adds up its sums of f32 once in 16 pixels; a warp has the pixels that no other has. */
static mica_status stats_ok(const shape *s, const mica_device_info *device, mica_why *why)
{
    double pixels = (double)s->g.n * (double)s->g.out[1] * (double)s->g.out[2];
    if (pixels == 0)
        return mica_refuse(why, "y is empty: its statistics are left to other engines");
    if (!conv_stats_chain_ok(pixels / 16 / (WARPS * device->units), pixels))
        return mica_refuse(why, "%.0f pixels of a channel are too many for sums of f32", pixels);
    return MICA_OK;
}

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    shape s;
    MICA_TRY(conv_refuse_finish(desc, why));
    if (device->arch < 80)
        return mica_refuse(why, "the device is sm_%d, its matrix units are used from sm_80 on",
                           device->arch);
    MICA_TRY(make_shape(desc, &s, why));
    layout t = {.tile_h = 1, .tile_w = 16};
    if (!complete(&s, device, &t))
        return mica_refuse(why, "%lld x %lld taps at distance %lld do not fit shared memory",
                           s.g.tap[1], s.g.tap[2], s.g.dilation[1]);
    if (t.tiles > INT32_MAX)
        return mica_refuse(why, "%.0f tiles, this engine counts to %d", t.tiles, INT32_MAX);
    return s.stats ? stats_ok(&s, device, why) : MICA_OK;
}

static int configs(const void *desc, const mica_device_info *device, mica_config *out)
{
    shape s;
    mica_why why;
    layout best[CHOICES];
    if (make_shape(desc, &s, &why) != MICA_OK) return 0;
    int count = choices(&s, device, best), all = 0;
    bool parts = conv_parts_possible(desc);
    for (int i = 0; i < count; i++) {
        const layout *t = &best[i];
        int splits = 1;
        if (parts)
            splits = conv_parts_choose(t->chunks, (int64_t)device->units * t->blocks,
                                       (int64_t)t->tiles, 1);
        out[all++] = (mica_config){{t->tile_h, t->tile_w, splits}};
        if (splits > 1 && i == 0) out[all++] = (mica_config){{t->tile_h, t->tile_w, 1}};
    }
    return all;
}

static bool is_empty(const mica_conv_desc *d)
{
    return mica_tensor_count(mica_conv_tensor(d, mica_conv_roles_of(d).out)) == 0;
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    const double launch_ms = 3e-3, memory_share = 0.85;
    shape s;
    mica_why why;
    layout t = {.tile_h = config->knob[KNOB_TILE_H], .tile_w = config->knob[KNOB_TILE_W]};
    if (is_empty(desc)) return 0;
    if (make_shape(desc, &s, &why) != MICA_OK || !complete(&s, device, &t)) return HUGE_VAL;
    int splits = config->knob[KNOB_SPLITS];
    double work = milliseconds(&s, device, &t, is_wgrad(&s) ? splits : 0);
    double memory = mica_op_bytes(&mica_op_conv, desc) / (device->copy_gbps * 1e6) / memory_share;
    return fmax(work, memory) + launch_ms * (splits > 1 ? 3 : 1) + (s.stats ? 2e-3 : 0);
}

static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    (void)desc;
    c->truncates = true;
    c->k_inst = 8; /* on sm_80; sm_90 sums 16 */
    if (config->knob[KNOB_SPLITS] > 1) c->n_outer += config->knob[KNOB_SPLITS];
}

/* ---- plan ---- */

static void write_prologue(const mica_conv_desc *d, const state *s, const layout *t, mica_text *p)
{
    const shape *h = &s->shape;
    mica_prologue_int(p, "ROWS", h->g.tap[1]);
    mica_prologue_int(p, "COLS", h->g.tap[2]);
    mica_prologue_int(p, "STRIDE_Y", h->g.stride[1]);
    mica_prologue_int(p, "STRIDE_X", h->g.stride[2]);
    mica_prologue_int(p, "DILATION_Y", h->g.dilation[1]);
    mica_prologue_int(p, "REAL", h->g.c);
    mica_prologue_int(p, "CHANNELS", h->channels);
    mica_prologue_int(p, "TILE_H", t->tile_h);
    mica_prologue_int(p, "TILE_W", t->tile_w);
    mica_prologue_int(p, "WARPS", t->warps);
    mica_prologue_int(p, "FLAT", h->flat);
    mica_prologue_int(p, "BLOCKS", t->blocks);
    mica_prologue_type(p, "in_t", h->in);
    mica_prologue_type(p, "out_t", s->parts.kernel ? MICA_F32 : h->out);
    if (is_wgrad(h)) {
        mica_prologue_int(p, "UNITS", t->units);
        mica_prologue_int(p, "WORD_GROUPS", t->word_groups);
        mica_prologue_int(p, "WARPS_P", t->warps_p);
        return;
    }
    mica_prologue_int(p, "GROUPS", t->groups);
    mica_prologue_int(p, "LINES", t->lines);
    mica_prologue_int(p, "HAS_RESIDUAL", mica_tensor_given(&d->residual));
    mica_prologue_int(p, "STATS", h->stats);
    mica_epilogue e = mica_conv_epilogue(d);
    mica_prologue_epilogue(p, &e);
}

static conv_stem_strides strides_of(const mica_conv_strides *s)
{
    return (conv_stem_strides){s->n, s->c, {s->s[1], s->s[2]}};
}

/* Whether 8 filters of every pixel of b lie side by side at multiples of 16 bytes. */
static bool is_vector(const shape *s)
{
    int bytes = mica_dtype_bits(is_wgrad(s) ? s->in : s->out) / 8;
    const mica_conv_strides *b = &s->g.b;
    return b->c == 1 && b->s[1] * bytes % 16 == 0 && b->s[2] * bytes % 16 == 0 &&
           (s->g.n == 1 || b->n * bytes % 16 == 0);
}

static void fill_args(const mica_conv_desc *d, const layout *t, state *s)
{
    const mica_conv_geometry *g = &s->shape.g;
    conv_stem_args *a = &s->args;
    a->from = strides_of(&g->a);
    a->to = strides_of(&g->b);
    a->residual = strides_of(&g->residual);
    a->filter_n = g->f.n;
    a->filter_c = g->f.c;
    for (int i = 0; i < 2; i++) {
        a->filter_s[i] = g->f.s[i + 1];
        a->size_from[i] = (int)g->in[i + 1];
        a->size_to[i] = (int)g->out[i + 1];
        a->pad[i] = (int)g->pad[i + 1];
    }
    a->filters = (int)g->k;
    a->tiles = (int)t->tiles;
    a->across = mica_fastdiv_make((unsigned)parts_of((double)g->out[2], t->tile_w));
    a->down = mica_fastdiv_make((unsigned)parts_of((double)g->out[1], t->tile_h));
    a->chunks = mica_fastdiv_make((unsigned)t->chunks);
    a->epilogue.act_a = d->act_a;
    a->epilogue.act_b = d->act_b;
    if (mica_tensor_given(&d->bias)) a->epilogue.bias_stride = d->bias.strides[0];
    if (mica_tensor_given(&d->scale)) a->epilogue.scale_stride = d->scale.strides[0];
    if (mica_tensor_given(&d->shift)) a->epilogue.shift_stride = d->shift.strides[0];
    s->vector = is_vector(&s->shape);
}

static mica_status build(mica_plan *plan)
{
    const mica_conv_desc *d = plan->desc;
    state *s;
    mica_why why = {""};
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    if (make_shape(d, &s->shape, &why) != MICA_OK)
        return mica_fail(MICA_UNSUPPORTED, "%s", why.text);
    if (is_empty(d)) return MICA_OK;
    bool wgrad = is_wgrad(&s->shape);
    int splits = plan->config.knob[KNOB_SPLITS] > 1 ? plan->config.knob[KNOB_SPLITS] : 1;
    layout t = {.tile_h = plan->config.knob[KNOB_TILE_H], .tile_w = plan->config.knob[KNOB_TILE_W]};
    if (!complete(&s->shape, &plan->device, &t) || t.tiles > INT32_MAX)
        return mica_fail(MICA_UNSUPPORTED, "tiles of %d x %d pixels do not fit", t.tile_h,
                         t.tile_w);
    if (splits > 1) {
        MICA_TRY(conv_parts_build(plan, splits, MICA_F32, &s->parts));
        s->args.part = mica_tensor_count(&d->w);
    }
    if (!mica_tensor_count(mica_conv_tensor(d, s->shape.roles.b))) t.tiles = 0;
    fill_args(d, &t, s);
    double wanted =
        wgrad ? splits : fmin(t.tiles, fmax(1, plan->device.units * t.blocks / t.chunks));
    s->grid = (mica_grid){.grid = {(unsigned)(wanted * t.chunks)},
                          .block = {(unsigned)(32 * t.warps)},
                          .dynamic_shared = (unsigned)t.shared};
    char text[4096];
    mica_text p = {text, sizeof text, 0};
    write_prologue(d, s, &t, &p);
    mica_kernel_spec spec = {"ops/conv/conv_stem.cu", "conv_stem", text, t.shared};
    if (wgrad) {
        spec.file = "ops/conv/conv_stem_wgrad.cu";
        spec.entry = "conv_stem_wgrad";
    }
    MICA_TRY(mica_plan_add_kernel(plan, &spec, &s->kernel));
    return s->shape.stats ? conv_stats_build_parts(plan, (int64_t)wanted, &s->stats) : MICA_OK;
}

/* ---- run ---- */

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    if (!s->kernel) return MICA_OK;
    const shape *h = &s->shape;
    conv_stem_args a = s->args;
    a.image = r->args[h->roles.a];
    a.alpha = s->parts.kernel ? 1 : mica_run_scalar(plan, r, MICA_CONV_ALPHA);
    a.beta = s->parts.kernel ? 0 : mica_run_scalar(plan, r, MICA_CONV_BETA);
    if (is_wgrad(h)) {
        a.other = r->args[h->roles.b];
        char *out = s->parts.kernel ? conv_parts_base(&s->parts, r) : r->args[h->roles.out];
        a.out = out + h->g.f_base * (s->parts.kernel ? 4 : mica_dtype_bits(h->out) / 8);
    } else {
        a.other = (const char *)r->args[h->roles.f] + h->g.f_base * 2;
        a.out = r->args[h->roles.out];
    }
    a.to_aligned = s->vector && (uintptr_t)(is_wgrad(h) ? a.other : a.out) % 16 == 0;
    mica_epilogue_bind(&a.epilogue, r->args, MICA_CONV_BIAS);
    if (h->stats) a.sums = conv_stats_partial(&s->stats, r);
    MICA_TRY(mica_kernel_launch(s->kernel, &s->grid, r->stream, &a));
    MICA_TRY(conv_stats_run(&s->stats, r));
    return conv_parts_run(plan, &s->parts, r);
}

const mica_engine mica_conv_stem = {.name = "stem",
                                    .cuda = true,
                                    .knobs = knobs,
                                    .accepts = accepts,
                                    .configs = configs,
                                    .predict = predict,
                                    .contract = contract,
                                    .build = build,
                                    .run = run};
