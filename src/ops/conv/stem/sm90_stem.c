/* SPDX-License-Identifier: Apache-2.0
 * Engine "sm90_stem": first layers, f16 and bf16 with up to 8 channels in two and three dimensions,
 * forward and wgrad, on Hopper's tensor cores. TMA brings rows of the image as they
 * are, zeros around it; windows overlap in shared memory and reach the units through registers, so
 * that channels are not padded and any step of whole words is taken; where a pixel's step is an odd
 * number of elements a row of the product has two pixels. Statistics are formed as y is stored.
 * wgrad splits the tiles of all images into parts in workspace, added up in order; splits=1 needs
 * none. Rows of the image are multiples of 16 bytes, with nothing between pixels; pointers that are
 * not go to the generic engine, which the plan holds for them.
 */
#include "ops/conv/cuda/conv_parts.h"
#include "ops/conv/stem/sm90_stem.h"
#include "ops/conv/stem/sm90_stem_args.h"
#include "ops/conv/lowered/stats.h"

#include <math.h>

enum { KNOB_TILE_H, KNOB_TILE_W, KNOB_SPLITS, PROLOGUE = 8192 };
static const char *const knobs[] = {"tile_h", "tile_w", "splits", NULL};

typedef conv_sm90_stem_shape shape;
typedef conv_sm90_stem_layout layout;

typedef struct state {
    mica_kernel *kernel;
    mica_grid grid;
    shape shape;
    mica_tensor_map_spec image, other; /* rank 0: none */
    conv_generic generic;
    conv_parts parts;
    conv_stats stats;
    conv_sm90_stem_args args;
} state;

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    shape s;
    return conv_sm90_stem_shape_make(desc, device, &s, why);
}

/* ---- configs and their cost ---- */

static int configs(const void *desc, const mica_device_info *device, mica_config *out)
{
    shape s;
    mica_why why;
    layout best[CONV_SM90_STEM_CHOICES];
    if (conv_sm90_stem_shape_make(desc, device, &s, &why) != MICA_OK) return 0;
    int count = conv_sm90_stem_choices(&s, device, best), all = 0;
    bool parts = s.stem.roles.wgrad && conv_parts_possible(desc);
    for (int i = 0; i < count; i++) {
        const conv_stem_layout *t = &best[i].tiles;
        int splits = parts ? conv_sm90_stem_parts(&best[i], device) : 1;
        out[all++] = (mica_config){{t->tile_h, t->tile_w, splits}};
        if (splits > 1 && i == 0) out[all++] = (mica_config){{t->tile_h, t->tile_w, 1}};
    }
    return all;
}

static bool configured(const shape *s, const mica_device_info *device, const mica_config *config,
                       layout *l)
{
    return conv_sm90_stem_layout_make(s, device, config->knob[KNOB_TILE_H],
                                      config->knob[KNOB_TILE_W], l);
}

/* Blocks that divide the tiles. */
static int blocks_of(const shape *s, const mica_device_info *device, const mica_config *config,
                     const layout *l)
{
    int splits = config->knob[KNOB_SPLITS];
    if (s->stem.roles.wgrad) return splits > 1 ? splits : 1;
    return conv_sm90_stem_parts(l, device);
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    const double launch_ms = 3e-3, memory_share = 0.85;
    shape s;
    mica_why why;
    layout l;
    if (conv_sm90_stem_shape_make(desc, device, &s, &why) != MICA_OK ||
        !configured(&s, device, config, &l))
        return HUGE_VAL;
    int parts = blocks_of(&s, device, config, &l);
    double memory = mica_op_bytes(&mica_op_conv, desc) / (device->copy_gbps * 1e6) / memory_share;
    double launches = s.stem.roles.wgrad && parts > 1 ? 2 : 1;
    return fmax(conv_sm90_stem_milliseconds(device, &l, parts), memory) + launch_ms * launches +
           (s.stem.stats ? 2e-3 : 0);
}

static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    c->truncates = true;
    c->spreads = true; /* products are filled up with taps that count for nothing */
    c->k_inst = 16;
    if (mica_conv_roles_of(desc).wgrad) {
        int splits = config->knob[KNOB_SPLITS];
        c->n_outer += 4 + (splits > 1 ? splits : 0); /* two pixels of up to 3 shares */
    }
}

/* ---- plan ---- */

static void write_prologue(const mica_conv_desc *d, const state *s, const layout *l, mica_text *p)
{
    const conv_stem_shape *m = &s->shape.stem;
    const conv_stem_layout *t = &l->tiles;
    mica_wgmma mma = {.a = m->in, .b = m->in, .a_in_registers = true};
    mica_prologue_int(p, "DEPTH", m->g.tap[0]);
    mica_prologue_int(p, "ROWS", m->g.tap[1]);
    mica_prologue_int(p, "COLS", m->g.tap[2]);
    mica_prologue_int(p, "STRIDE_Y", m->g.stride[1]);
    mica_prologue_int(p, "STRIDE_X", m->g.stride[2]);
    mica_prologue_int(p, "DILATION_Y", m->g.dilation[1]);
    mica_prologue_int(p, "CHANNELS", m->g.c);
    mica_prologue_int(p, "PAIR", s->shape.pair);
    mica_prologue_int(p, "LEAD", s->shape.lead);
    mica_prologue_int(p, "SHIFT", s->shape.shift);
    mica_prologue_int(p, "PITCH", l->pitch);
    mica_prologue_int(p, "TILE_H", t->tile_h);
    mica_prologue_int(p, "TILE_W", t->tile_w);
    mica_prologue_int(p, "WARPS", t->warps);
    mica_prologue_int(p, "STAGES", l->stages);
    mica_prologue_type(p, "in_t", m->in);
    mica_prologue_type(p, "out_t", s->parts.kernel ? MICA_F32 : m->out);
    if (m->roles.wgrad) {
        mica_prologue_int(p, "FILTERS", l->filters);
        mica_prologue_int(p, "FILTER_CHUNKS", l->filter_chunks);
        mica_prologue_int(p, "BOX", l->box);
        mica_prologue_int(p, "M_TILES", l->m_tiles);
        mica_prologue_int(p, "SHARES", l->shares);
        mica_prologue_int(p, "BATCH", l->batch);
        mma.n = s->shape.pair * l->filters;
        mma.b_mn_major = true;
    } else {
        mica_epilogue e = mica_conv_epilogue(d);
        mica_prologue_int(p, "BLOCKS", t->blocks);
        mica_prologue_int(p, "GROUPS", t->groups);
        mica_prologue_int(p, "HAS_RESIDUAL", mica_tensor_given(&d->residual));
        mica_prologue_int(p, "STATS", m->stats);
        mica_prologue_epilogue(p, &e);
        mma.n = 32 * t->groups;
    }
    mica_prologue_wgmma(p, "mma", &mma);
}

/* In bytes; of a dimension of size 1 any will do. */
static int64_t step_of(long long size, int64_t stride)
{
    return size > 1 ? stride * 2 : 16;
}

static mica_tensor_map_spec image_map(const shape *s, const layout *l)
{
    const mica_conv_geometry *g = &s->stem.g;
    return (mica_tensor_map_spec){
        .dtype = MICA_S64, /* 8 bytes of any kind: a box counts to 256 */
        .rank = 4,
        .dims = {g->in[2] * g->c / 4, g->in[1], g->in[0], g->n},
        .stride_bytes = {0, step_of(g->in[1], g->a.s[1]), step_of(g->in[0], g->a.s[0]),
                         step_of(g->n, g->a.n)},
        .box = {(uint32_t)l->pitch / 2, (uint32_t)l->image_h, (uint32_t)g->tap[0], 1}};
}

static mica_tensor_map_spec other_map(const shape *s, const layout *l)
{
    const mica_conv_geometry *g = &s->stem.g;
    int64_t pixel = step_of(g->out[2], g->b.s[2]), row = step_of(g->out[1], g->b.s[1]);
    int64_t plane = g->out[0] > 1 ? g->b.s[0] * 2 : step_of(g->n, g->b.n);
    int64_t planes = g->n * g->out[0];
    uint32_t box = (uint32_t)l->box, wide = (uint32_t)(l->tiles.tile_w / s->pair);
    uint32_t tall = (uint32_t)l->tiles.tile_h;
    if (s->pair == 1)
        return (mica_tensor_map_spec){.dtype = s->stem.in,
                                      .rank = 4,
                                      .dims = {g->k, g->out[2], g->out[1], planes},
                                      .stride_bytes = {0, pixel, row, plane},
                                      .box = {box, wide, tall, 1},
                                      .swizzle_bytes = 2 * l->box};
    return (mica_tensor_map_spec){.dtype = s->stem.in,
                                  .rank = 5,
                                  .dims = {g->k, 2, g->out[2] / 2, g->out[1], planes},
                                  .stride_bytes = {0, pixel, 2 * pixel, row, plane},
                                  .box = {box, 1, wide, tall, 1},
                                  .swizzle_bytes = 2 * l->box};
}

static void fill_args(const mica_conv_desc *d, const conv_stem_shape *m, const conv_stem_layout *t,
                      conv_sm90_stem_args *a)
{
    const mica_conv_geometry *g = &m->g;
    conv_stem_args_fill(d, m, t, &a->stem);
    a->to_n = g->b.n;
    a->to_z = g->b.s[0];
    a->residual_n = g->residual.n;
    a->residual_z = g->residual.s[0];
    a->filter_z = g->f.s[0];
    a->planes = mica_fastdiv_make((unsigned)g->out[0]);
    a->stride_z = (int)g->stride[0];
    a->pad_z = (int)g->pad[0];
}

static mica_status build(mica_plan *plan)
{
    const mica_conv_desc *d = plan->desc;
    state *s;
    mica_why why = {""};
    layout l;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    if (conv_sm90_stem_shape_make(d, &plan->device, &s->shape, &why) != MICA_OK)
        return mica_fail(MICA_UNSUPPORTED, "%s", why.text);
    if (!configured(&s->shape, &plan->device, &plan->config, &l) || l.tiles.tiles > INT32_MAX)
        return mica_fail(MICA_UNSUPPORTED, "tiles of %d x %d pixels do not fit",
                         plan->config.knob[KNOB_TILE_H], plan->config.knob[KNOB_TILE_W]);
    const conv_stem_shape *m = &s->shape.stem;
    bool wgrad = m->roles.wgrad;
    int parts = blocks_of(&s->shape, &plan->device, &plan->config, &l);
    MICA_TRY(conv_parts_build(plan, wgrad ? parts : 1, MICA_F32, &s->parts));
    fill_args(d, m, &l.tiles, &s->args);
    s->args.stem.part = s->parts.args.count;
    s->image = image_map(&s->shape, &l);
    if (wgrad) s->other = other_map(&s->shape, &l);
    s->grid = (mica_grid){.grid = {(unsigned)(parts * l.tiles.chunks)},
                          .block = {(unsigned)(32 * (l.tiles.warps + wgrad))},
                          .dynamic_shared = (unsigned)l.tiles.shared};
    char text[PROLOGUE];
    mica_text p = {text, sizeof text, 0};
    write_prologue(d, s, &l, &p);
    mica_kernel_spec spec = {"ops/conv/stem/sm90_stem.cu", "conv_sm90_stem", text, l.tiles.shared};
    if (wgrad) {
        spec.file = "ops/conv/stem/sm90_stem_wgrad.cu";
        spec.entry = "conv_sm90_stem_wgrad";
    }
    MICA_TRY(mica_plan_add_kernel(plan, &spec, &s->kernel));
    if (m->stats) MICA_TRY(conv_stats_build_parts(plan, parts, &s->stats));
    return conv_generic_build(plan, &s->generic);
}

/* ---- run ---- */

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    const mica_conv_roles *roles = &s->shape.stem.roles;
    void *image = r->args[roles->image], *other = r->args[roles->other];
    if (!mica_access_starts(image, 16) || (s->other.rank && !mica_access_starts(other, 16)))
        return conv_generic_run(&s->generic, r);
    conv_sm90_stem_args a = s->args;
    conv_operands o = conv_parts_operands(plan, &s->parts, roles, s->shape.stem.g.f_base, r);
    a.stem.other = o.other, a.stem.out = o.out;
    a.stem.alpha = (float)o.alpha, a.stem.beta = (float)o.beta;
    a.stem.to_aligned = a.stem.to_aligned && mica_access_starts(r->args[roles->b], 16);
    mica_epilogue_bind(&a.stem.epilogue, r->args, MICA_CONV_BIAS);
    if (s->shape.stem.stats) a.stem.sums = conv_stats_partial(&s->stats, r);
    MICA_TRY(mica_tensor_map_encode(plan->cuda, &s->image, image, &a.image));
    if (s->other.rank) MICA_TRY(mica_tensor_map_encode(plan->cuda, &s->other, other, &a.other));
    MICA_TRY(mica_kernel_launch(s->kernel, &s->grid, r->stream, &a));
    MICA_TRY(conv_stats_run(&s->stats, r));
    return conv_parts_run(plan, &s->parts, r);
}

const mica_engine mica_conv_sm90_stem = {.name = "sm90_stem",
                                         .cuda = true,
                                         .knobs = knobs,
                                         .accepts = accepts,
                                         .configs = configs,
                                         .predict = predict,
                                         .contract = contract,
                                         .build = build,
                                         .run = run};
