/* SPDX-License-Identifier: Apache-2.0
 * Engine "grouped": f16 and bf16 in groups of 2 to 32 channels, as many on both sides, two axes,
 * all passes, on the tensor cores of sm_80 and later. Products are of 16 channels (groups of 8 or
 * fewer: of two taps by 8), so little of them is wasted, and pixels come to shared memory once with
 * their halo: near the memory floor for groups of up to 16, half of mma.sync's rate for 32. dgrad
 * of stride s computes s^2 times too much. wgrad splits the tiles of all images into parts in
 * workspace, added up in order; splits=1 needs none. */
#include "ops/conv/conv.h"
#include "ops/conv/grouped/grouped_args.h"
#include "ops/conv/cuda/conv_parts.h"
#include "ops/conv/cuda/conv_ranking.h"

#include <math.h>
#include <stdlib.h>

enum { KNOB_TILE_H, KNOB_TILE_W, KNOB_SPLITS };
static const char *const knobs[] = {"tile_h", "tile_w", "splits", NULL};

enum { CHANNELS = 64, PITCH = 72, WARPS_P = 2, VECTOR = 8, CHOICES = 2 };
enum { MOST_FILTER = 104, MOST_TAPS_WGRAD = 16, MOST_POSITION = 1 << 26 };

typedef struct shape {
    mica_conv_geometry g;
    mica_conv_roles roles;
    mica_dtype in, out;
    int width, taps;
    int slices; /* of 16 terms, of a pixel */
    const mica_conv_strides *from, *to;
    const long long *size_from, *size_to;
} shape;

typedef struct layout {
    int tile_h, tile_w;
    int warps_p, threads, blocks, shared;
    double tiles, cycles; /* of all images and one block of channels; of a multiprocessor for one */
} layout;

typedef struct state {
    mica_kernel *kernel;
    mica_grid grid;
    shape shape;
    bool from_vector, to_vector;
    conv_parts parts;
    conv_grouped_args args;
} state;

/* ---- what is taken ---- */

static mica_status sizes_ok(const shape *s, mica_why *why)
{
    const mica_conv_geometry *g = &s->g;
    if (g->c != g->k || g->c < 2 || g->c > 32 || (g->c & (g->c - 1)))
        return mica_refuse(why,
                           "groups of %lld to %lld channels, this engine takes as many on both "
                           "sides, a power of two from 2 to 32",
                           g->c, g->k);
    if (g->in[0] != 1 || g->out[0] != 1 || g->tap[0] != 1 || g->pad[0] != 0)
        return mica_refuse(why, "%lld pixels and %lld taps in depth, this engine has two axes",
                           g->in[0], g->tap[0]);
    if (g->tap[1] > 64 || g->tap[2] > 64)
        return mica_refuse(why, "%lld x %lld taps, this engine counts to 64", g->tap[1], g->tap[2]);
    for (int i = 1; i < 3; i++) {
        double reach = (double)(g->tap[i] - 1) * (double)g->dilation[i] + (double)llabs(g->pad[i]);
        double end = reach + (double)g->in[i] + (double)g->out[i] * (double)g->stride[i];
        if (end >= MOST_POSITION || g->stride[i] > 64)
            return mica_refuse(why,
                               "positions reach %.10g on axis %d with stride %lld, this engine "
                               "counts to %d and 64",
                               end, i, g->stride[i], MOST_POSITION);
    }
    if ((double)g->groups * (double)g->c >= MOST_POSITION)
        return mica_refuse(why, "%lld groups of %lld channels, this engine counts to %d", g->groups,
                           g->c, MOST_POSITION);
    return MICA_OK;
}

static mica_status make_shape(const mica_conv_desc *d, shape *s, mica_why *why)
{
    *s = (shape){.roles = mica_conv_roles_of(d)};
    mica_conv_geometry_make(d, &s->g);
    mica_conv_geometry *g = &s->g;
    s->in = mica_conv_tensor(d, s->roles.image)->dtype;
    s->out = mica_conv_tensor(d, s->roles.out)->dtype;
    if (s->in != MICA_F16 && s->in != MICA_BF16)
        return mica_refuse(why, "inputs are %s, this engine takes f16 and bf16",
                           mica_dtype_name(s->in));
    MICA_TRY(sizes_ok(s, why));
    s->width = (int)g->c;
    s->taps = (int)(g->tap[1] * g->tap[2]);
    s->slices = s->width <= 8 ? (s->taps + 1) / 2 : s->taps * s->width / 16;
    s->from = s->roles.dgrad ? &g->b : &g->a;
    s->to = s->roles.dgrad ? &g->a : &g->b;
    s->size_from = s->roles.dgrad ? g->out : g->in;
    s->size_to = s->roles.dgrad ? g->in : g->out;
    if (!s->roles.wgrad && 4 * s->slices > MOST_FILTER)
        return mica_refuse(why, "%d taps of %d channels are %d registers, this engine holds %d",
                           s->taps, s->width, 4 * s->slices, MOST_FILTER);
    if (s->roles.wgrad && s->taps > MOST_TAPS_WGRAD)
        return mica_refuse(why, "%d taps, this engine's wgrad holds %d", s->taps, MOST_TAPS_WGRAD);
    return MICA_OK;
}

/* ---- tiles ---- */

static double parts_of(double n, double by)
{
    return ceil(n / by);
}

/* As in conv_halo.cuh. */
static double halo(const shape *s, int n, int axis)
{
    long long stride = s->g.stride[axis], reach = (s->g.tap[axis] - 1) * s->g.dilation[axis];
    if (s->roles.dgrad) return (double)((n - 1) / stride + reach / stride + 1);
    return (double)((n - 1) * stride + reach + 1);
}

static long long shift_of(const shape *s, int axis)
{
    long long stride = s->g.stride[axis];
    return s->roles.dgrad ? (s->g.pad[axis] % stride + stride) % stride : 0;
}

static void count_cycles(const shape *s, layout *t)
{
    const double product = 1.7; /* clocks of a multiprocessor for one 16 x 8 x 16 */
    double pixels = (double)t->tile_h * t->tile_w,
           read = halo(s, t->tile_h, 1) * halo(s, t->tile_w, 2);
    double work, copies = read * 8 * 14 / 128 + 500;
    if (s->roles.wgrad) {
        double jobs = s->width == 32 ? 8 : 4;
        work = pixels / 16 * jobs * (s->taps * 2 * fmax(product, 2) + 8);
        copies += pixels * 8 * 14 / 128;
    } else {
        double strips = parts_of(parts_of(pixels, 32), t->warps_p) * t->warps_p * 4;
        double wavefronts = s->slices * 2 * 4.0 * (s->width <= 8 ? 2 : 1);
        work = strips * (fmax(s->slices * 4 * product, wavefronts) + 60);
    }
    double fill = (read + pixels) * 128 / 30;
    t->cycles = fmax(work, fill) + copies * (t->blocks > 1 ? 0.5 : 1);
    t->tiles = (double)s->g.n * parts_of((double)(s->size_to[1] + shift_of(s, 1)), t->tile_h) *
               parts_of((double)(s->size_to[2] + shift_of(s, 2)), t->tile_w);
}

/* Fills the rest; false if the device cannot hold it. */
static bool complete(const shape *s, const mica_device_info *device, layout *t)
{
    if (t->tile_h < 1 || t->tile_w < 1 || t->tile_h > 256 || t->tile_w > 256) return false;
    double pixels = (double)t->tile_h * t->tile_w;
    if (s->roles.wgrad && (t->tile_h * t->tile_w) % 16) return false;
    if (s->roles.dgrad && (t->tile_h % s->g.stride[1] || t->tile_w % s->g.stride[2])) return false;
    int jobs = s->roles.wgrad && s->width == 32 ? 8 : 4;
    bool many = s->roles.wgrad ? jobs == 8 : s->width > 8; /* registers for filters */
    t->warps_p = many ? 1 : WARPS_P;
    t->threads = 32 * jobs * t->warps_p;
    double slot = halo(s, t->tile_h, 1) * halo(s, t->tile_w, 2) + (s->roles.wgrad ? pixels : 1);
    double shared = 2 * slot * PITCH * 2, merge = (double)jobs * s->taps * 1024;
    if (s->roles.wgrad && t->warps_p > 1) shared = fmax(shared, merge);
    if (shared > (double)device->shared_bytes) return false;
    t->shared = (int)shared;
    int registers =
        (s->roles.wgrad ? 8 * s->taps : 4 * s->slices) + (many && !s->roles.wgrad ? 112 : 88);
    int by_shared = (int)((device->shared_bytes + 1024) / (t->shared + 1024));
    int by_registers = 65536 / (t->threads * registers);
    t->blocks = by_shared < by_registers ? by_shared : by_registers;
    if (t->blocks > 4) t->blocks = 4;
    if (t->blocks < 1) t->blocks = 1;
    count_cycles(s, t);
    return true;
}

static double channel_blocks(const shape *s)
{
    return parts_of((double)s->g.groups * s->width, CHANNELS);
}

/* Blocks that divide the tiles of a block of channels. */
static double lines_of(const shape *s, const mica_device_info *device, const layout *t)
{
    double lines = floor((double)device->units * t->blocks / channel_blocks(s));
    return fmin(fmax(lines, 1), t->tiles);
}

static double milliseconds(const shape *s, const mica_device_info *device, const layout *t,
                           double lines)
{
    const double hertz = 1.6e9;
    double blocks = lines * channel_blocks(s);
    double resident = fmin(t->blocks, parts_of(blocks, device->units));
    double waves = parts_of(blocks, device->units * resident);
    double warps = resident * t->threads / 32, latency = warps < 12 ? sqrt(12 / warps) : 1;
    double setup = 1500 + s->slices * 60, measured = s->roles.wgrad ? 1.19 : 1.48;
    return measured * waves * resident * (parts_of(t->tiles, lines) * t->cycles * latency + setup) /
           hertz * 1e3;
}

static int choices(const shape *s, const mica_device_info *device, layout best[CHOICES])
{
    static const int heights[] = {1, 2, 4, 7, 8, 14, 16, 28};
    int step_y = s->roles.dgrad ? (int)s->g.stride[1] : 1;
    int step_x = s->roles.wgrad ? 8 : s->roles.dgrad ? (int)s->g.stride[2] : 1;
    conv_ranking ranking = {.items = best, .size = sizeof *best, .most = CHOICES};
    for (int part = 1; part <= 8; part++)
        for (size_t h = 0; h < sizeof heights / sizeof *heights; h++) {
            double width = parts_of(parts_of((double)s->size_to[2], part), step_x) * step_x;
            double height = parts_of(heights[h], step_y) * step_y;
            if (width > 256 || height > 256 || (h > 0 && heights[h - 1] >= s->size_to[1])) continue;
            layout t = {.tile_h = (int)height, .tile_w = (int)fmax(width, step_x)};
            if (!complete(s, device, &t)) continue;
            conv_rank(&ranking, &t, milliseconds(s, device, &t, lines_of(s, device, &t)));
        }
    return ranking.count;
}

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    shape s;
    layout best[CHOICES];
    MICA_TRY(conv_refuse_full_epilogue(desc, why));
    if (device->arch < 80)
        return mica_refuse(why, "the device is sm_%d, its tensor cores are used from sm_80 on",
                           device->arch);
    MICA_TRY(make_shape(desc, &s, why));
    if (!choices(&s, device, best))
        return mica_refuse(why, "%lld x %lld taps at distance %lld x %lld do not fit shared memory",
                           s.g.tap[1], s.g.tap[2], s.g.dilation[1], s.g.dilation[2]);
    if (best[0].tiles > INT32_MAX)
        return mica_refuse(why, "%.10g tiles, this engine counts to %d", best[0].tiles, INT32_MAX);
    return MICA_OK;
}

static int configs(const void *desc, const mica_device_info *device, mica_config *out)
{
    shape s;
    mica_why why;
    layout best[CHOICES];
    if (make_shape(desc, &s, &why) != MICA_OK) return 0;
    int count = choices(&s, device, best), all = 0;
    for (int i = 0; i < count; i++) {
        const layout *t = &best[i];
        int splits = 1;
        if (conv_parts_possible(desc))
            splits = conv_parts_choose((int64_t)channel_blocks(&s),
                                       (int64_t)device->units * t->blocks, (int64_t)t->tiles, 1);
        out[all++] = (mica_config){{t->tile_h, t->tile_w, splits}};
        if (splits > 1 && i == 0) out[all++] = (mica_config){{t->tile_h, t->tile_w, 1}};
    }
    return all;
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    const double launch_ms = 3e-3, memory_share = 0.8, gathered = 6, dense = 1.5;
    shape s;
    mica_why why;
    layout t = {.tile_h = config->knob[KNOB_TILE_H], .tile_w = config->knob[KNOB_TILE_W]};
    if (mica_conv_is_empty(desc)) return 0;
    if (make_shape(desc, &s, &why) != MICA_OK || !complete(&s, device, &t)) return HUGE_VAL;
    int splits = config->knob[KNOB_SPLITS] > 1 ? config->knob[KNOB_SPLITS] : 1;
    double lines = s.roles.wgrad ? splits : lines_of(&s, device, &t);
    double work = milliseconds(&s, device, &t, lines);
    if (s.from->c != 1 || s.to->c != 1) work *= gathered; /* element by element */
    if (s.g.groups == 1) work *= dense;                   /* measured engines first */
    double memory = mica_op_bytes(&mica_op_conv, desc) / (device->copy_gbps * 1e6) / memory_share;
    return fmax(work, memory) + launch_ms * (splits > 1 ? 3 : 1);
}

static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    (void)desc;
    c->truncates = true;
    c->spreads = true; /* zeros stand for other groups */
    c->k_inst = 8;     /* on sm_80; sm_90 sums 16 */
    if (config->knob[KNOB_SPLITS] > 1) c->n_outer += config->knob[KNOB_SPLITS];
    c->n_outer += WARPS_P;
}

/* ---- plan ---- */

static void write_prologue(const mica_conv_desc *d, const state *s, const layout *t, mica_text *p)
{
    const shape *h = &s->shape;
    mica_prologue_int(p, "KIND", h->roles.kind);
    mica_prologue_int(p, "ROWS", h->g.tap[1]);
    mica_prologue_int(p, "COLS", h->g.tap[2]);
    mica_prologue_int(p, "STRIDE_Y", h->g.stride[1]);
    mica_prologue_int(p, "STRIDE_X", h->g.stride[2]);
    mica_prologue_int(p, "DILATION_Y", h->g.dilation[1]);
    mica_prologue_int(p, "DILATION_X", h->g.dilation[2]);
    mica_prologue_int(p, "WIDTH", h->width);
    mica_prologue_int(p, "TILE_H", t->tile_h);
    mica_prologue_int(p, "TILE_W", t->tile_w);
    mica_prologue_int(p, "WARPS_P", t->warps_p);
    mica_prologue_int(p, "BLOCKS", t->blocks);
    mica_prologue_type(p, "in_t", h->in);
    mica_prologue_type(p, "out_t", s->parts.kernel ? MICA_F32 : h->out);
    if (h->roles.wgrad) return;
    mica_prologue_int(p, "HAS_RESIDUAL", mica_tensor_given(&d->residual));
    mica_epilogue e = mica_conv_epilogue(d);
    mica_prologue_epilogue(p, &e);
}

static conv_grouped_strides strides_of(const mica_conv_strides *s)
{
    return (conv_grouped_strides){s->n, s->c, {s->s[1], s->s[2]}};
}

/* Whether `of` channels of every pixel lie side by side at multiples of that many. */
static bool multiples(const shape *s, const mica_conv_strides *t, const long long *size, int of)
{
    const int64_t steps = conv_pixel_steps(t->n, s->g.n, t->s, size);
    return t->c == 1 && mica_access_fit(of, steps | s->g.groups * s->width) == of;
}

static void fill_args(const mica_conv_desc *d, const layout *t, state *s)
{
    const shape *h = &s->shape;
    const mica_conv_geometry *g = &h->g;
    conv_grouped_args *a = &s->args;
    a->from = strides_of(h->from);
    a->to = strides_of(h->to);
    a->residual = strides_of(&g->residual);
    a->filter_g = g->f.g;
    a->filter_to = h->roles.dgrad ? g->f.c : g->f.n;
    a->filter_from = h->roles.dgrad ? g->f.n : g->f.c;
    for (int i = 0; i < 2; i++) {
        long long stride = g->stride[i + 1], pad = g->pad[i + 1], shift = shift_of(h, i + 1);
        long long before = (g->tap[i + 1] - 1) * g->dilation[i + 1] / stride;
        a->filter_s[i] = g->f.s[i + 1];
        a->size_from[i] = (int)h->size_from[i + 1];
        a->size_to[i] = (int)h->size_to[i + 1];
        a->shift[i] = (int)shift;
        a->origin[i] = (int)(h->roles.dgrad ? (pad - shift) / stride - before : -pad);
    }
    a->channels = (int)g->groups * h->width;
    a->tiles = (int)t->tiles;
    a->across = mica_fastdiv_make((unsigned)parts_of(a->size_to[1] + a->shift[1], t->tile_w));
    a->down = mica_fastdiv_make((unsigned)parts_of(a->size_to[0] + a->shift[0], t->tile_h));
    a->channel_blocks = mica_fastdiv_make((unsigned)channel_blocks(h));
    mica_conv_epilogue_args(d, &a->epilogue);
    s->from_vector = multiples(h, h->from, h->size_from, VECTOR);
    s->to_vector = multiples(h, h->to, h->size_to, h->roles.wgrad ? VECTOR : 2);
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
    int splits = plan->config.knob[KNOB_SPLITS] > 1 ? plan->config.knob[KNOB_SPLITS] : 1;
    layout t = {.tile_h = plan->config.knob[KNOB_TILE_H], .tile_w = plan->config.knob[KNOB_TILE_W]};
    if (!complete(h, &plan->device, &t) || t.tiles > INT32_MAX)
        return mica_fail(MICA_UNSUPPORTED, "tiles of %d x %d pixels do not fit", t.tile_h,
                         t.tile_w);
    MICA_TRY(conv_parts_build(plan, splits, MICA_F32, &s->parts));
    s->args.part = s->parts.args.count;
    if (mica_tensor_count(mica_conv_tensor(d, h->roles.b)) == 0) t.tiles = 0;
    fill_args(d, &t, s);
    double lines = h->roles.wgrad ? splits : lines_of(h, &plan->device, &t);
    s->grid = (mica_grid){.grid = {(unsigned)(fmax(lines, 1) * channel_blocks(h))},
                          .block = {(unsigned)t.threads},
                          .dynamic_shared = (unsigned)t.shared};
    char text[4096];
    mica_text p = {text, sizeof text, 0};
    write_prologue(d, s, &t, &p);
    mica_kernel_spec spec = {"ops/conv/grouped/grouped.cu", "conv_grouped", text, t.shared};
    if (h->roles.wgrad) {
        spec.file = "ops/conv/grouped/grouped_wgrad.cu";
        spec.entry = "conv_grouped_wgrad";
    }
    return mica_plan_add_kernel(plan, &spec, &s->kernel);
}

/* ---- run ---- */

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    if (!s->kernel) return MICA_OK;
    const shape *h = &s->shape;
    conv_grouped_args a = s->args;
    conv_operands o = conv_parts_operands(plan, &s->parts, &h->roles, h->g.f_base, r);
    a.image = o.image, a.other = o.other, a.out = o.out;
    a.alpha = o.alpha, a.beta = o.beta;
    const int to_bytes = h->roles.wgrad ? 16 : mica_access_bytes(h->out, 2);
    const void *to = h->roles.wgrad ? a.other : a.out;
    a.from_aligned = s->from_vector && mica_access_starts(a.image, 16);
    a.to_aligned = s->to_vector && mica_access_starts(to, to_bytes);
    mica_epilogue_bind(&a.epilogue, r->args, MICA_CONV_BIAS);
    MICA_TRY(mica_kernel_launch(s->kernel, &s->grid, r->stream, &a));
    return conv_parts_run(plan, &s->parts, r);
}

const mica_engine mica_conv_grouped = {.name = "grouped",
                                       .cuda = true,
                                       .knobs = knobs,
                                       .accepts = accepts,
                                       .configs = configs,
                                       .predict = predict,
                                       .contract = contract,
                                       .build = build,
                                       .run = run};
