/* SPDX-License-Identifier: Apache-2.0
 * Engine "depthwise_mma": convolutions of one channel per group and both gradients, f16 and bf16,
 * channels side by side, stride 1, filters of up to 9 columns, on the tensor cores of sm_80 and
 * later. A channel's row of taps is a band of a matrix, 16 rows of images at a time are the other
 * factor: the units waste most of what they compute, and an element still costs fewer instructions
 * than its multiply-adds from 5 x 5 taps on: a third to two thirds of the speed of memory, less
 * for wgrad of small images. wgrad splits the tiles of all images into parts in workspace, added up
 * in order; splits=1 needs none. */
#include "ops/conv/depthwise/depthwise.h"
#include "ops/conv/depthwise/depthwise_mma_args.h"
#include "ops/conv/cuda/conv_parts.h"
#include "ops/conv/cuda/conv_ranking.h"

#include <math.h>
#include <stdlib.h>

enum {
    KNOB_WARPS,
    KNOB_EACH,
    KNOB_WINDOWS,
    KNOB_TILE_W,
    KNOB_STRIP_H,
    KNOB_STEP_ROWS,
    KNOB_SPLITS
};
static const char *const knobs[] = {"warps",   "each",      "windows", "tile_w",
                                    "strip_h", "step_rows", "splits",  NULL};

enum { STREAMS = 16, WINDOW = 8, CHUNK = 8, WARP = 32, DEPTH = 3, CHOICES = 4, MOST_STRIP = 256 };
enum { MOST_REGISTERS = 224, MOST_PRODUCTS = 1200, PLACES = 16 * STREAMS };

typedef conv_depthwise_shape shape;

typedef struct layout {
    int warps, each, windows, tile_w, strip_h, step_rows; /* see depthwise_mma.cuh */
    int needed, held, rows, span;
    int registers, shared, blocks;
    double tiles, channel_blocks;
    double work, bytes; /* of a warp for a row; of a block's tile */
} layout;

typedef struct state {
    mica_kernel *kernel;
    mica_grid grid;
    shape shape;
    bool to_vector;
    conv_parts parts;
    conv_depthwise_mma_args args;
} state;

/* ---- what is taken ---- */

static int reach(const shape *s, int axis)
{
    return (int)((s->g.tap[axis] - 1) * s->g.dilation[axis]);
}

static mica_status types_ok(const shape *s, mica_why *why)
{
    if (s->in != MICA_F16 && s->in != MICA_BF16)
        return mica_refuse(why, "inputs are %s, this engine takes f16 and bf16",
                           mica_dtype_name(s->in));
    if (!s->roles.wgrad && s->out != MICA_F16 && s->out != MICA_BF16)
        return mica_refuse(why, "the result is %s, this engine writes f16 and bf16",
                           mica_dtype_name(s->out));
    if (s->vector != CHUNK || s->to.c != 1)
        return mica_refuse(why,
                           "%lld channels, %d of them side by side at multiples of as many; this "
                           "engine reads %d and writes channels side by side",
                           s->g.groups, s->vector, CHUNK);
    return MICA_OK;
}

static mica_status sizes_ok(const shape *s, mica_why *why)
{
    const mica_conv_geometry *g = &s->g;
    if (g->k != 1)
        return mica_refuse(why, "%lld results for a channel, this engine forms one", g->k);
    if (g->tap[0] != 1 || g->in[0] != 1 || g->out[0] != 1 || g->pad[0] != 0)
        return mica_refuse(why, "%lld pixels and %lld taps in depth, this engine has two axes",
                           g->in[0], g->tap[0]);
    if (g->stride[1] != 1 || g->stride[2] != 1)
        return mica_refuse(why, "the stride is %lld x %lld, this engine is for 1", g->stride[1],
                           g->stride[2]);
    double across = (double)(g->tap[2] - 1) * (double)g->dilation[2];
    if (across > WINDOW)
        return mica_refuse(why, "a row of taps spans %.10g columns, this engine takes up to %d",
                           across + 1, WINDOW + 1);
    if ((double)g->n * (double)s->size_to[1] >= INT32_MAX)
        return mica_refuse(why, "%lld images of %lld rows, this engine counts to %d rows", g->n,
                           s->size_to[1], INT32_MAX);
    return MICA_OK;
}

static mica_status make_shape(const mica_conv_desc *d, shape *s, mica_why *why)
{
    MICA_TRY(conv_depthwise_shape_make(d, s, why));
    MICA_TRY(types_ok(s, why));
    return sizes_ok(s, why);
}

/* ---- tiles ---- */

static double parts_of(double n, double by)
{
    return ceil(n / by);
}

static bool is_whole(const shape *s)
{
    return s->size_from[2] <= WINDOW && s->size_to[2] <= WINDOW;
}

/* As in depthwise_mma.cuh: bytes of planes, and of a row that is in flight. */
static int planes(int lines, int words, int bytes, const layout *t)
{
    int step = lines == STREAMS ? 4 : 8, pitch = words / step % 2 ? words : words + step;
    int channels = t->warps * t->each;
    return channels * (lines * pitch + (channels == 2 * CHUNK && bytes == 4 ? 2 : 1)) * bytes;
}

static int items(int lines, int words, const layout *t)
{
    int all = lines * words * (t->warps * t->each / CHUNK), threads = WARP * t->warps;
    return (all + threads - 1) / threads;
}

static int staged(int lines, int words, const layout *t)
{
    return DEPTH * lines * words * (t->warps * t->each / CHUNK) * 2 * 16;
}

static void count_room(const shape *s, layout *t)
{
    int lines = s->roles.wgrad ? STREAMS / 2 : STREAMS,
        words = s->roles.wgrad ? WINDOW : WINDOW / 2;
    int read = (t->windows + t->span - 1) * words, write = t->windows * words;
    int rows = (int)s->g.tap[1], windows = t->windows + t->span - 1;
    t->shared = staged(lines, read, t) + 2 * planes(lines, read, 4, t) +
                2 * planes(lines, write, s->roles.wgrad ? 4 : 8, t);
    if (s->roles.wgrad) t->shared += staged(lines, write, t);
    t->shared *= t->step_rows;
    if (s->roles.wgrad) {
        int all = items(lines, read, t) + items(lines, write, t);
        t->registers = t->each * (2 * t->windows * t->held + 4 * rows) + 2 * windows + 8 * all + 48;
    } else {
        t->registers =
            t->each * 2 * (windows * t->held + rows) + 8 + 6 * items(lines, read, t) + 48;
    }
}

/* What a warp does for a row, in instructions of which a scheduler issues IPC in a clock. */
static void count_work(const shape *s, layout *t)
{
    const double copied = 8, stored = 20, step = 20;
    int rows = (int)s->g.tap[1], windows = t->windows + t->span - 1;
    int lines = s->roles.wgrad ? STREAMS / 2 : STREAMS,
        words = s->roles.wgrad ? WINDOW : WINDOW / 2;
    double chunks = t->each / 4.0 / WARP * lines * words; /* CHUNK channels of a warp's threads */
    double read = chunks * windows / 2, write = chunks * t->windows / 2;
    if (s->roles.wgrad)
        t->work = t->each * t->windows * (6.0 + rows) + (read + write) * copied;
    else
        t->work = t->each * (2.0 * windows + t->windows * (rows * t->span + 2.0)) + read * copied +
                  write * stored;
    t->work += step / t->step_rows;
    double share = t->warps * t->each * 2.0;
    double read_cols = fmin((double)(t->tile_w + reach(s, 2)), (double)s->size_from[2]);
    double write_cols = fmin((double)t->tile_w, (double)s->size_to[2]);
    double rows_read = fmin((double)t->rows, (double)s->size_from[1]);
    t->bytes = STREAMS * share * (read_cols * rows_read + write_cols * t->strip_h);
}

/* Clocks of a multiprocessor for a row of each of `resident` blocks: fitted to 277 configs of 22
 * problems on an H200, 6 per cent off in the mean. */
static double row_cycles(const layout *t, double resident)
{
    const double ipc = 0.173, latency = 12.5, barrier = 78, bytes_each_cycle = 18.5;
    double issue = resident * t->warps / 4 * t->work / ipc;
    double wait = barrier / t->step_rows + latency * t->work;
    double fill = t->bytes / t->rows * resident / bytes_each_cycle;
    return pow(pow(issue, 4) + pow(wait, 4) + pow(fill, 4), 0.25);
}

/* Fills the rest; false if the device cannot hold it. */
static bool complete(const shape *s, const mica_device_info *device, layout *t)
{
    bool whole = is_whole(s);
    if (t->warps < 1 || t->warps > 16 || t->each < 1 || t->each > 8 || t->windows < 1 ||
        t->windows > 8)
        return false;
    if (t->warps * t->each % CHUNK || t->strip_h < 1 || t->strip_h > MOST_STRIP) return false;
    if (t->tile_w < 1 || t->tile_w > t->windows * WINDOW || (whole && t->windows > 1)) return false;
    if (s->g.tap[1] > 32 || reach(s, 1) > 64) return false;
    if (t->step_rows < 1 || t->step_rows > 2) return false;
    t->needed = reach(s, 1) + 1;
    t->held = (t->needed + t->step_rows - 1) / t->step_rows * t->step_rows;
    t->rows = t->strip_h + t->needed - 1;
    t->span = whole || reach(s, 2) == 0 ? 1 : 2;
    if (t->held * (int)s->g.tap[1] * t->windows * t->each > MOST_PRODUCTS) return false;
    count_room(s, t);
    if (t->registers > MOST_REGISTERS || t->shared + PLACES > device->shared_bytes) return false;
    int threads = WARP * t->warps, by_registers = 65536 / (threads * ((t->registers + 7) / 8 * 8));
    int by_shared = (int)((device->shared_bytes + 1024) / (t->shared + PLACES + 1024));
    t->blocks = by_registers < by_shared ? by_registers : by_shared;
    if (t->blocks < 1) return false;
    if (t->blocks > 2048 / threads) t->blocks = 2048 / threads;
    if (t->blocks > 8) t->blocks = 8;
    double strips = parts_of((double)s->size_to[1], t->strip_h);
    t->tiles = parts_of((double)s->g.n * strips, STREAMS) *
               parts_of((double)s->size_to[2], whole ? WINDOW : t->tile_w);
    t->channel_blocks = parts_of((double)s->g.groups, t->warps * t->each);
    count_work(s, t);
    return true;
}

static int splits_for(const mica_conv_desc *d, const shape *s, const mica_device_info *device,
                      const layout *t)
{
    if (!s->roles.wgrad || !conv_parts_possible(d) || t->tiles > INT32_MAX) return 1;
    return conv_parts_choose((int64_t)t->channel_blocks, (int64_t)device->units * t->blocks,
                             (int64_t)t->tiles, 1);
}

static double milliseconds(const shape *s, const mica_device_info *device, const layout *t,
                           double splits)
{
    const double hertz = 1.7e9, start = 2100;
    double blocks = t->tiles * t->channel_blocks, each = 1;
    if (s->roles.wgrad) {
        blocks = splits * t->channel_blocks;
        each = parts_of(t->tiles, splits);
    }
    double waves = blocks / ((double)device->units * t->blocks), whole = floor(waves);
    double left = waves - whole, cycles = whole * (t->rows * row_cycles(t, t->blocks) + start);
    if (left > 0) cycles += t->rows * row_cycles(t, ceil(left * t->blocks)) + start;
    return cycles * each / hertz * 1e3;
}

typedef struct choice {
    layout t;
    int splits;
} choice;

static void try_strips(const mica_conv_desc *d, const shape *s, const mica_device_info *device,
                       layout t, conv_ranking *best)
{
    static const int strips[] = {1, 2, 3, 4, 6, 8, 12, 16};
    int last = 0;
    for (size_t i = 0; i < sizeof strips / sizeof *strips; i++) {
        double rows = fmax(parts_of((double)s->size_to[1], strips[i]), 1);
        t.strip_h = rows > MOST_STRIP ? MOST_STRIP : (int)rows;
        if (t.strip_h == last) continue;
        last = t.strip_h;
        for (t.step_rows = 1; t.step_rows <= 2; t.step_rows++) {
            if (!complete(s, device, &t)) continue;
            choice c = {t, splits_for(d, s, device, &t)};
            conv_rank(best, &c, milliseconds(s, device, &t, c.splits));
        }
    }
}

static int choices(const mica_conv_desc *d, const shape *s, const mica_device_info *device,
                   choice best[CHOICES])
{
    static const int warps[] = {4, 8, 16}, each[] = {1, 2, 4};
    conv_ranking ranking = {.items = best, .size = sizeof *best, .most = CHOICES};
    for (size_t i = 0; i < sizeof warps / sizeof *warps; i++)
        for (size_t k = 0; k < sizeof each / sizeof *each; k++)
            for (int parts = 1; parts <= 8; parts++) {
                int channels = warps[i] * each[k];
                /* pieces of memory of less than 32 bytes cost as much as those */
                if (channels < 16 || channels > 32) continue;
                double width = fmax(parts_of((double)s->size_to[2], parts), 1);
                layout t = {.warps = warps[i], .each = each[k]};
                t.tile_w = (int)fmin(width, 64);
                t.windows = (t.tile_w + WINDOW - 1) / WINDOW;
                if (parts > 1 && width < WINDOW) continue;
                try_strips(d, s, device, t, &ranking);
            }
    return ranking.count;
}

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    shape s;
    choice best[CHOICES];
    MICA_TRY(conv_refuse_full_epilogue(desc, why));
    if (device->arch < 80)
        return mica_refuse(why, "the device is sm_%d, its tensor cores are used from sm_80 on",
                           device->arch);
    MICA_TRY(make_shape(desc, &s, why));
    if (mica_conv_is_empty(desc)) return MICA_OK;
    if (!choices(desc, &s, device, best))
        return mica_refuse(why, "%lld x %lld taps at distance %lld x %lld do not fit registers",
                           s.g.tap[1], s.g.tap[2], s.g.dilation[1], s.g.dilation[2]);
    if (best[0].t.tiles * best[0].t.channel_blocks > INT32_MAX)
        return mica_refuse(why, "%.10g tiles, this engine counts to %d",
                           best[0].t.tiles * best[0].t.channel_blocks, INT32_MAX);
    return MICA_OK;
}

static mica_config config_of(const layout *t, int splits)
{
    return (mica_config){
        {t->warps, t->each, t->windows, t->tile_w, t->strip_h, t->step_rows, splits}};
}

static layout layout_of(const mica_config *c)
{
    return (layout){.warps = c->knob[KNOB_WARPS],
                    .each = c->knob[KNOB_EACH],
                    .windows = c->knob[KNOB_WINDOWS],
                    .tile_w = c->knob[KNOB_TILE_W],
                    .strip_h = c->knob[KNOB_STRIP_H],
                    .step_rows = c->knob[KNOB_STEP_ROWS]};
}

static int configs(const void *desc, const mica_device_info *device, mica_config *out)
{
    shape s;
    mica_why why;
    choice best[CHOICES];
    if (make_shape(desc, &s, &why) != MICA_OK) return 0;
    if (mica_conv_is_empty(desc)) return out[0] = (mica_config){{0}}, 1;
    int count = choices(desc, &s, device, best), all = 0;
    for (int i = 0; i < count; i++) {
        if (best[i].t.tiles * best[i].t.channel_blocks > INT32_MAX) continue;
        out[all++] = config_of(&best[i].t, best[i].splits);
        if (best[i].splits > 1 && i == 0) out[all++] = config_of(&best[i].t, 1);
    }
    return all;
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    const double launch_ms = 2.25e-3, memory_share = 0.9;
    shape s;
    mica_why why;
    layout t = layout_of(config);
    if (mica_conv_is_empty(desc)) return 0;
    if (make_shape(desc, &s, &why) != MICA_OK || !complete(&s, device, &t)) return HUGE_VAL;
    double splits = config->knob[KNOB_SPLITS] > 1 ? config->knob[KNOB_SPLITS] : 1;
    double work = milliseconds(&s, device, &t, splits);
    double memory = mica_op_bytes(&mica_op_conv, desc) / (device->copy_gbps * 1e6) / memory_share;
    return fmax(work, memory) + launch_ms * (splits > 1 ? 2 : 1);
}

static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    const mica_conv_desc *d = desc;
    c->truncates = true;
    /* pixels beside b's meet zeros; of an image, sums that are not finite are formed again */
    c->spreads = mica_conv_roles_of(d).wgrad;
    c->k_inst = 8; /* on sm_80; sm_90 sums 16 */
    /* sums along a diagonal, and of parts */
    c->n_outer += WINDOW;
    if (config->knob[KNOB_SPLITS] > 1) c->n_outer += config->knob[KNOB_SPLITS];
}

/* ---- plan ---- */

static void write_prologue(const mica_conv_desc *d, const state *s, const layout *t, mica_text *p)
{
    const shape *h = &s->shape;
    mica_prologue_int(p, "KIND", h->roles.kind);
    mica_prologue_int(p, "ROWS", h->g.tap[1]);
    mica_prologue_int(p, "COLS", h->g.tap[2]);
    mica_prologue_int(p, "DILATION_Y", h->g.dilation[1]);
    mica_prologue_int(p, "DILATION_X", h->g.dilation[2]);
    mica_prologue_int(p, "WARPS", t->warps);
    mica_prologue_int(p, "EACH", t->each);
    mica_prologue_int(p, "WINDOWS", t->windows);
    mica_prologue_int(p, "TILE_W", t->tile_w);
    mica_prologue_int(p, "STRIP_H", t->strip_h);
    mica_prologue_int(p, "STEP_ROWS", t->step_rows);
    mica_prologue_int(p, "WHOLE", is_whole(h));
    mica_prologue_int(p, "DEPTH", DEPTH);
    mica_prologue_int(p, "BLOCKS", t->blocks);
    mica_prologue_type(p, "in_t", h->in);
    mica_prologue_type(p, "out_t", s->parts.kernel ? MICA_F32 : h->out);
    if (h->roles.wgrad) return;
    mica_prologue_int(p, "HAS_RESIDUAL", mica_tensor_given(&d->residual));
    mica_epilogue e = mica_conv_epilogue(d);
    mica_prologue_epilogue(p, &e);
}

static void fill_args(const mica_conv_desc *d, const layout *t, state *s)
{
    const shape *h = &s->shape;
    const mica_conv_geometry *g = &h->g;
    conv_depthwise_mma_args *a = &s->args;
    a->from.n = h->from.n;
    a->to.n = h->to.n;
    a->residual.n = g->residual.n;
    a->residual_c = g->residual.g;
    a->filter_c = g->f.g;
    for (int i = 0; i < 2; i++) {
        a->from.s[i] = h->from.s[i + 1];
        a->to.s[i] = h->to.s[i + 1];
        a->residual.s[i] = g->residual.s[i + 1];
        a->filter_s[i] = g->f.s[i + 1];
        a->size_from[i] = (int)h->size_from[i + 1];
        a->size_to[i] = (int)h->size_to[i + 1];
        a->origin[i] = (int)(h->roles.dgrad ? g->pad[i + 1] - reach(h, i + 1) : -g->pad[i + 1]);
    }
    a->images = (int)g->n;
    a->channels = (int)g->groups;
    a->tiles = (unsigned)t->tiles;
    a->strips = mica_fastdiv_make((unsigned)parts_of(a->size_to[0], t->strip_h));
    a->across = mica_fastdiv_make(
        (unsigned)parts_of(a->size_to[1], is_whole(h) ? (double)WINDOW : t->tile_w));
    a->channel_blocks = mica_fastdiv_make((unsigned)t->channel_blocks);
    mica_conv_epilogue_args(d, &a->epilogue);
    s->to_vector = mica_access_fit(CHUNK, conv_depthwise_steps(h, true)) == CHUNK;
}

static mica_status build(mica_plan *plan)
{
    const mica_conv_desc *d = plan->desc;
    state *s;
    mica_why why = {""};
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    if (make_shape(d, &s->shape, &why) != MICA_OK)
        return mica_fail(MICA_UNSUPPORTED, "%s", why.text);
    shape *h = &s->shape;
    if (mica_conv_is_empty(d)) return MICA_OK;
    layout t = layout_of(&plan->config);
    int splits = plan->config.knob[KNOB_SPLITS] > 1 ? plan->config.knob[KNOB_SPLITS] : 1;
    if (!complete(h, &plan->device, &t) || t.tiles * t.channel_blocks > INT32_MAX ||
        splits * t.channel_blocks > INT32_MAX)
        return mica_fail(MICA_UNSUPPORTED, "tiles of %d channels, %d x %d pixels do not fit",
                         t.warps * t.each, t.strip_h, t.tile_w);
    MICA_TRY(conv_parts_build(plan, splits, MICA_F32, &s->parts));
    s->args.part = s->parts.args.count;
    fill_args(d, &t, s);
    double blocks = h->roles.wgrad ? splits * t.channel_blocks : t.tiles * t.channel_blocks;
    s->grid = (mica_grid){.grid = {(unsigned)blocks},
                          .block = {(unsigned)(WARP * t.warps)},
                          .dynamic_shared = (unsigned)t.shared};
    char text[4096];
    mica_text p = {text, sizeof text, 0};
    write_prologue(d, s, &t, &p);
    mica_kernel_spec spec = {"ops/conv/depthwise/depthwise_mma.cu", "conv_depthwise_mma", text,
                             t.shared};
    if (h->roles.wgrad) {
        spec.file = "ops/conv/depthwise/depthwise_mma_wgrad.cu";
        spec.entry = "conv_depthwise_mma_wgrad";
    }
    return mica_plan_add_kernel(plan, &spec, &s->kernel);
}

/* ---- run ---- */

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    if (!s->kernel) return MICA_OK;
    const shape *h = &s->shape;
    conv_depthwise_mma_args a = s->args;
    conv_operands o = conv_parts_operands(plan, &s->parts, &h->roles, h->g.f_base, r);
    a.image = o.image, a.other = o.other, a.out = o.out;
    a.alpha = o.alpha, a.beta = o.beta;
    const void *to = h->roles.wgrad ? a.other : a.out;
    a.from_aligned = mica_access_starts(a.image, 16);
    a.to_aligned = s->to_vector && mica_access_starts(to, 16);
    mica_epilogue_bind(&a.epilogue, r->args, MICA_CONV_BIAS);
    MICA_TRY(mica_kernel_launch(s->kernel, &s->grid, r->stream, &a));
    return conv_parts_run(plan, &s->parts, r);
}

const mica_engine mica_conv_depthwise_mma = {.name = "depthwise_mma",
                                             .cuda = true,
                                             .knobs = knobs,
                                             .accepts = accepts,
                                             .configs = configs,
                                             .predict = predict,
                                             .contract = contract,
                                             .build = build,
                                             .run = run};
