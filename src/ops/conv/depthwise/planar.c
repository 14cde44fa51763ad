/* SPDX-License-Identifier: Apache-2.0
 * Engine "planar": depthwise convolutions of planes that follow each other in memory (NCHW, NCW)
 * and their gradients, f16, bf16 and f32 with f32 sums, one or two axes, any stride and dilation,
 * filters up to some 13 x 13 (wgrad: 7 x 7). Blocks bring whole planes, or rows of a large one, to
 * shared memory as they lie, and threads form strips of them, every row of the image read once for
 * all taps; results leave through shared memory, too, where they are packed. Up to 3 x 3 taps
 * 1.2 to 1.4 of memory's time (H200), bound by what is issued beyond. wgrad splits the images into
 * parts in workspace, added up in order; splits=1 needs none. */
#include "ops/conv/depthwise/planar.h"
#include "ops/conv/cuda/conv_parts.h"
#include "ops/conv/depthwise/planar_args.h"

#include <math.h>

enum {
    KNOB_PLANES,
    KNOB_TILE_H,
    KNOB_THREAD_H,
    KNOB_THREAD_W,
    KNOB_STRIPS,
    KNOB_STAGED,
    KNOB_SPLITS
};
static const char *const knobs[] = {"planes", "tile_h", "thread_h", "thread_w",
                                    "strips", "staged", "splits",   NULL};

enum { CHOICES = 3, MOST_GRID = INT32_MAX };

typedef struct state {
    mica_kernel *kernel;
    mica_grid grid;
    conv_depthwise_shape shape;
    int to_align; /* bytes */
    conv_parts parts;
    conv_planar_args args;
} state;

static mica_status make_shape(const mica_conv_desc *d, conv_depthwise_shape *s, mica_why *why)
{
    MICA_TRY(conv_depthwise_shape_make(d, s, why));
    return conv_planar_fits(s, why);
}

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    conv_depthwise_shape s;
    conv_planar_tile t;
    MICA_TRY(conv_refuse_full_epilogue(desc, why));
    if (device->arch < 80)
        return mica_refuse(why, "the device is sm_%d, this engine is for sm_80 and later",
                           device->arch);
    MICA_TRY(make_shape(desc, &s, why));
    if (mica_conv_is_empty(desc) || s.g.n == 0 || s.size_from[1] == 0 || s.size_from[2] == 0)
        return mica_refuse(why, "a tensor is empty: it is left to other engines");
    if (conv_planar_tiles(&s, device, &t, 1) == 0)
        return mica_refuse(why,
                           "%lld x %lld taps in rows of %lld pixels fit neither lines, registers "
                           "nor shared memory of %lld bytes",
                           s.g.tap[1], s.g.tap[2], s.size_from[2], (long long)device->shared_bytes);
    if (conv_planar_count(&s, &t) > MOST_GRID)
        return mica_refuse(why, "%.10g tiles, this engine counts to %d", conv_planar_count(&s, &t),
                           MOST_GRID);
    return MICA_OK;
}

/* ---- configs ---- */

static conv_planar_tile tile_of(const mica_config *c)
{
    return (conv_planar_tile){.planes = c->knob[KNOB_PLANES],
                              .tile_h = c->knob[KNOB_TILE_H],
                              .thread_h = c->knob[KNOB_THREAD_H],
                              .thread_w = c->knob[KNOB_THREAD_W],
                              .strips = c->knob[KNOB_STRIPS],
                              .staged = c->knob[KNOB_STAGED]};
}

static int splits_for(const mica_conv_desc *d, const conv_depthwise_shape *s,
                      const mica_device_info *device, const conv_planar_tile *t)
{
    if (!s->roles.wgrad || !conv_parts_possible(d)) return 1;
    return conv_parts_choose((int64_t)conv_planar_wgrad_blocks(s, t),
                             (int64_t)device->units * t->blocks, (int64_t)conv_planar_count(s, t),
                             1);
}

static int configs(const void *desc, const mica_device_info *device, mica_config *out)
{
    conv_depthwise_shape s;
    mica_why why;
    conv_planar_tile tiles[CHOICES];
    if (make_shape(desc, &s, &why) != MICA_OK) return 0;
    int count = conv_planar_tiles(&s, device, tiles, CHOICES), all = 0;
    for (int i = 0; i < count; i++) {
        const conv_planar_tile *t = &tiles[i];
        int splits = splits_for(desc, &s, device, t);
        out[all++] = (mica_config){
            {t->planes, t->tile_h, t->thread_h, t->thread_w, t->strips, t->staged, splits}};
        if (splits == 1 || i > 0) continue;
        out[all] = out[all - 1];
        out[all++].knob[KNOB_SPLITS] = 1;
    }
    return all;
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    const double launch_ms = 3e-3;
    conv_depthwise_shape s;
    mica_why why;
    conv_planar_tile t = tile_of(config);
    if (make_shape(desc, &s, &why) != MICA_OK || !conv_planar_tile_complete(&s, device, &t))
        return HUGE_VAL;
    double splits = config->knob[KNOB_SPLITS] > 1 ? config->knob[KNOB_SPLITS] : 1;
    double blocks =
        s.roles.wgrad ? conv_planar_wgrad_blocks(&s, &t) * splits : conv_planar_count(&s, &t);
    double memory = mica_op_bytes(&mica_op_conv, desc) / (device->copy_gbps * 1e6);
    return launch_ms * (splits > 1 ? 2 : 1) + conv_planar_ms(&s, device, &t, blocks, memory);
}

/* ---- plan ---- */

static void write_planes(const conv_depthwise_shape *h, mica_text *p)
{
    mica_prologue_int(p, "FROM_H", h->size_from[1]);
    mica_prologue_int(p, "FROM_W", h->size_from[2]);
    mica_prologue_int(p, "TO_H", h->size_to[1]);
    mica_prologue_int(p, "TO_W", h->size_to[2]);
    mica_prologue_int(p, "ORIGIN_Y", conv_depthwise_origin(h, 1));
    mica_prologue_int(p, "ORIGIN_X", conv_depthwise_origin(h, 2));
    mica_prologue_int(p, "PHASE_Y", conv_depthwise_shift(h, 1));
    mica_prologue_int(p, "PHASE_X", conv_depthwise_shift(h, 2));
}

static void write_prologue(const mica_conv_desc *d, const state *s, const conv_planar_tile *t,
                           mica_text *p)
{
    const conv_depthwise_shape *h = &s->shape;
    conv_depthwise_write_taps(h, h->g.tap[1], p);
    write_planes(h, p);
    mica_prologue_int(p, "PLANES", t->planes);
    mica_prologue_int(p, "TILE_H", t->tile_h);
    mica_prologue_int(p, "TILE_W", t->tile_w);
    mica_prologue_int(p, "THREAD_H", t->thread_h);
    mica_prologue_int(p, "THREAD_W", t->thread_w);
    mica_prologue_int(p, "STRIP_THREADS", t->strip_threads);
    mica_prologue_int(p, "BLOCKS", t->blocks);
    mica_prologue_type(p, "in_t", h->in);
    mica_prologue_type(p, "out_t", s->parts.kernel ? MICA_F32 : h->out);
    if (h->roles.wgrad) return;
    mica_epilogue e = mica_conv_epilogue(d);
    mica_prologue_int(p, "TO_ACCESS", t->to_access);
    mica_prologue_int(p, "HELD", t->held);
    mica_prologue_int(p, "STAGED", t->staged);
    mica_prologue_int(p, "FILTER_PACKED", conv_planar_filter_packed(h));
    mica_prologue_int(p, "HAS_RESIDUAL", mica_tensor_given(&d->residual));
    mica_prologue_epilogue(p, &e);
}

static void fill_args(const mica_conv_desc *d, int splits, state *s)
{
    const conv_depthwise_shape *h = &s->shape;
    const mica_conv_geometry *g = &h->g;
    conv_planar_args *a = &s->args;
    a->to = (conv_planar_strides){h->to.n, h->to.c, h->to.s[1], h->to.s[2]};
    a->residual =
        (conv_planar_strides){g->residual.n, g->residual.g, g->residual.s[1], g->residual.s[2]};
    a->filter_c = g->f.g, a->filter_row = g->f.s[1], a->filter_col = g->f.s[2];
    a->part = s->parts.args.count;
    a->images = g->n;
    a->planes = g->n * g->groups;
    a->channels = (int)g->groups;
    a->parts = splits;
    a->by_channels = mica_fastdiv_make((unsigned)g->groups);
    mica_conv_epilogue_args(d, &a->epilogue);
}

static mica_status build(mica_plan *plan)
{
    const mica_conv_desc *d = plan->desc;
    state *s;
    mica_why why = {""};
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    conv_depthwise_shape *h = &s->shape;
    if (make_shape(d, h, &why) != MICA_OK) return mica_fail(MICA_UNSUPPORTED, "%s", why.text);
    conv_planar_tile t = tile_of(&plan->config);
    if (!conv_planar_tile_complete(h, &plan->device, &t))
        return mica_fail(MICA_UNSUPPORTED, "strips of %d x %d in %d rows of %d planes do not fit",
                         t.thread_h, t.thread_w, t.tile_h, t.planes);
    int splits = plan->config.knob[KNOB_SPLITS] > 1 ? plan->config.knob[KNOB_SPLITS] : 1;
    bool wgrad = h->roles.wgrad;
    double blocks = wgrad ? conv_planar_wgrad_blocks(h, &t) * splits : conv_planar_count(h, &t);
    if (fmax(blocks, conv_planar_count(h, &t)) > MOST_GRID)
        return mica_fail(MICA_UNSUPPORTED, "more than %d tiles or blocks", MOST_GRID);
    MICA_TRY(conv_parts_build(plan, splits, MICA_F32, &s->parts));
    fill_args(d, splits, s);
    s->to_align = wgrad || t.staged ? 16 : mica_access_bytes(h->out, t.to_access);
    s->grid = (mica_grid){.grid = {(unsigned)blocks},
                          .block = {(unsigned)(t.planes * t.strip_threads)},
                          .dynamic_shared = (unsigned)t.shared};
    char text[4096];
    mica_text p = {text, sizeof text, 0};
    write_prologue(d, s, &t, &p);
    mica_kernel_spec spec = {"ops/conv/depthwise/planar.cu", "conv_planar", text, t.shared};
    if (wgrad) {
        spec.file = "ops/conv/depthwise/planar_wgrad.cu";
        spec.entry = "conv_planar_wgrad";
    }
    return mica_plan_add_kernel(plan, &spec, &s->kernel);
}

/* ---- run ---- */

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    const conv_depthwise_shape *h = &s->shape;
    conv_planar_args a = s->args;
    conv_operands o = conv_parts_operands(plan, &s->parts, &h->roles, h->g.f_base, r);
    a.image = o.image, a.other = o.other, a.out = o.out;
    a.alpha = o.alpha, a.beta = o.beta;
    const void *to = h->roles.wgrad ? a.other : a.out;
    a.from_aligned = mica_access_starts(a.image, 16);
    a.to_aligned = mica_access_starts(to, s->to_align);
    mica_epilogue_bind(&a.epilogue, r->args, MICA_CONV_BIAS);
    MICA_TRY(mica_kernel_launch(s->kernel, &s->grid, r->stream, &a));
    return conv_parts_run(plan, &s->parts, r);
}

const mica_engine mica_conv_cuda_planar = {.name = "planar",
                                           .cuda = true,
                                           .knobs = knobs,
                                           .accepts = accepts,
                                           .configs = configs,
                                           .predict = predict,
                                           .build = build,
                                           .run = run};
