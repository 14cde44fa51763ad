/* SPDX-License-Identifier: Apache-2.0
 * Engine "stem": first layers, f16 and bf16 with up to 8 channels in two dimensions, all passes, on
 * the tensor cores of sm_80 and later. A row of the image comes to shared memory once, without
 * padding its channels; near the memory floor where general engines gather element by element.
 * Statistics are formed as y is stored. wgrad splits the tiles of all images into parts in
 * workspace, added up in order; splits=1 needs none. dgrad computes the stride x stride pixels that
 * lie around the same pixels of dy together, as columns of one product. */
#include "ops/conv/cuda/conv_parts.h"
#include "ops/conv/lowered/stats.h"
#include "ops/conv/stem/stem.h"
#include "ops/conv/stem/stem_args.h"

#include <math.h>

enum { KNOB_TILE_H, KNOB_TILE_W, KNOB_SPLITS };
static const char *const knobs[] = {"tile_h", "tile_w", "splits", NULL};

typedef conv_stem_shape shape;
typedef conv_stem_layout layout;

typedef struct state {
    mica_kernel *kernel;
    mica_grid grid;
    shape shape;
    conv_parts parts;
    conv_stats stats;
    conv_stem_args args;
} state;

/* ---- what is taken ---- */

/* A lane adds up its sums of f32 once in 16 pixels; a warp has the pixels that no other has. */
mica_status conv_stem_stats_ok(const shape *s, const mica_device_info *device, int warps,
                               mica_why *why)
{
    double planes = (double)s->g.n * (double)s->g.out[0];
    double pixels = planes * (double)s->g.out[1] * (double)s->g.out[2];
    if (pixels == 0)
        return mica_refuse(why, "y is empty: its statistics are left to other engines");
    if (!conv_stats_chain_ok(pixels / 16 / (warps * device->units), pixels))
        return mica_refuse(why, "%.10g pixels of a channel are too many for sums of f32", pixels);
    return MICA_OK;
}

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    shape s;
    MICA_TRY(conv_refuse_quantised_epilogue(desc, why));
    if (device->arch < 80)
        return mica_refuse(why, "the device is sm_%d, its tensor cores are used from sm_80 on",
                           device->arch);
    MICA_TRY(conv_stem_shape_make(desc, &s, why));
    layout t;
    if (!conv_stem_layout_least(&s, device, &t))
        return mica_refuse(why,
                           "%lld x %lld taps at distance %lld, %lld filters do not fit shared "
                           "memory",
                           s.g.tap[1], s.g.tap[2], s.g.dilation[1], s.g.k);
    if (t.tiles > INT32_MAX)
        return mica_refuse(why, "%.10g tiles, this engine counts to %d", t.tiles, INT32_MAX);
    return s.stats ? conv_stem_stats_ok(&s, device, t.warps, why) : MICA_OK;
}

static int configs(const void *desc, const mica_device_info *device, mica_config *out)
{
    shape s;
    mica_why why;
    layout best[CONV_STEM_CHOICES];
    if (conv_stem_shape_make(desc, &s, &why) != MICA_OK) return 0;
    int count = conv_stem_choices(&s, device, best), all = 0;
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

static bool configured(const shape *s, const mica_device_info *device, const mica_config *config,
                       layout *t)
{
    const int32_t *knob = config->knob;
    return conv_stem_layout_make(s, device, knob[KNOB_TILE_H], knob[KNOB_TILE_W], t);
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    const double launch_ms = 3e-3, memory_share = 0.85;
    shape s;
    mica_why why;
    layout t;
    if (mica_conv_is_empty(desc)) return 0;
    if (conv_stem_shape_make(desc, &s, &why) != MICA_OK || !configured(&s, device, config, &t))
        return HUGE_VAL;
    int splits = config->knob[KNOB_SPLITS];
    /* a gradient of the image, and a single tap, took 2.2 to 4 times as long on an H200 */
    double slowness = s.roles.dgrad || mica_conv_terms(desc) < 8 ? 2.5 : 1;
    double work = slowness * conv_stem_milliseconds(&s, device, &t, s.roles.wgrad ? splits : 0);
    double memory = mica_op_bytes(&mica_op_conv, desc) / (device->copy_gbps * 1e6) / memory_share;
    return fmax(work, memory) + launch_ms * (splits > 1 ? 3 : 1) + (s.stats ? 2e-3 : 0);
}

static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    mica_conv_geometry g;
    mica_conv_geometry_make(desc, &g);
    c->truncates = true;
    c->spreads = true; /* products are filled up with taps that count for nothing */
    c->k_inst = 8;     /* on sm_80; sm_90 sums 16 */
    /* sums over the filters of one tap after the other */
    if (mica_conv_roles_of(desc).dgrad) c->k_inst = (int)(g.k / ((g.k + 7) / 8));
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
    if (h->roles.wgrad) {
        mica_prologue_int(p, "UNITS", t->units);
        mica_prologue_int(p, "WORD_GROUPS", t->word_groups);
        mica_prologue_int(p, "WARPS_P", t->warps_p);
        return;
    }
    if (h->roles.dgrad) {
        conv_stem_cells_prologue(h, p);
    } else {
        mica_prologue_int(p, "GROUPS", t->groups);
        mica_prologue_int(p, "LINES", t->lines);
    }
    mica_prologue_int(p, "HAS_RESIDUAL", mica_tensor_given(&d->residual));
    mica_prologue_int(p, "STATS", h->stats);
    mica_epilogue e = mica_conv_epilogue(d);
    mica_prologue_epilogue(p, &e);
}

static conv_stem_strides strides_of(const mica_conv_strides *s)
{
    return (conv_stem_strides){s->n, s->c, {s->s[1], s->s[2]}};
}

/* Whether lines of elements side by side start at multiples of 16 bytes. */
static bool is_vector(const mica_conv_strides *s, long long step, long long images, mica_dtype type)
{
    const int all = mica_access_of(type);
    return mica_access_fit(all, s->s[1] | step | mica_access_step(s->n, images)) == all;
}

void conv_stem_args_fill(const mica_conv_desc *d, const conv_stem_shape *s,
                         const conv_stem_layout *t, conv_stem_args *a)
{
    const mica_conv_geometry *g = &s->g;
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
    a->across = mica_fastdiv_make((unsigned)t->across);
    a->down = mica_fastdiv_make((unsigned)t->down);
    a->chunks = mica_fastdiv_make((unsigned)t->chunks);
    mica_conv_epilogue_args(d, &a->epilogue);
    mica_dtype b = mica_conv_tensor(d, s->roles.b)->dtype;
    a->to_aligned = g->b.c == 1 && is_vector(&g->b, g->b.s[2], g->n, b);
    a->from_aligned = s->flat && is_vector(&g->a, 0, g->n, s->out);
}

static mica_status build(mica_plan *plan)
{
    const mica_conv_desc *d = plan->desc;
    state *s;
    mica_why why = {""};
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    if (conv_stem_shape_make(d, &s->shape, &why) != MICA_OK)
        return mica_fail(MICA_UNSUPPORTED, "%s", why.text);
    if (mica_conv_is_empty(d)) return MICA_OK;
    bool wgrad = s->shape.roles.wgrad;
    int splits = plan->config.knob[KNOB_SPLITS] > 1 ? plan->config.knob[KNOB_SPLITS] : 1;
    layout t;
    if (!configured(&s->shape, &plan->device, &plan->config, &t) || t.tiles > INT32_MAX)
        return mica_fail(MICA_UNSUPPORTED, "tiles of %d x %d pixels do not fit",
                         plan->config.knob[KNOB_TILE_H], plan->config.knob[KNOB_TILE_W]);
    MICA_TRY(conv_parts_build(plan, splits, MICA_F32, &s->parts));
    s->args.part = s->parts.args.count;
    if (wgrad && !mica_tensor_count(mica_conv_tensor(d, s->shape.roles.b))) t.tiles = 0;
    conv_stem_args_fill(d, &s->shape, &t, &s->args);
    double wanted =
        wgrad ? splits : fmin(t.tiles, fmax(1, plan->device.units * t.blocks / t.chunks));
    s->grid = (mica_grid){.grid = {(unsigned)(wanted * t.chunks)},
                          .block = {(unsigned)(32 * t.warps)},
                          .dynamic_shared = (unsigned)t.shared};
    char text[4096];
    mica_text p = {text, sizeof text, 0};
    write_prologue(d, s, &t, &p);
    mica_kernel_spec spec = {"ops/conv/stem/stem.cu", "conv_stem", text, t.shared};
    if (wgrad) {
        spec.file = "ops/conv/stem/stem_wgrad.cu";
        spec.entry = "conv_stem_wgrad";
    } else if (s->shape.roles.dgrad) {
        spec.file = "ops/conv/stem/stem_dgrad.cu";
        spec.entry = "conv_stem_dgrad";
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
    conv_operands o = conv_parts_operands(plan, &s->parts, &h->roles, h->g.f_base, r);
    a.image = o.image, a.other = o.other, a.out = o.out;
    a.alpha = (float)o.alpha, a.beta = (float)o.beta;
    a.to_aligned = a.to_aligned && mica_access_starts(r->args[h->roles.b], 16);
    a.from_aligned = a.from_aligned && mica_access_starts(r->args[h->roles.a], 16);
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
