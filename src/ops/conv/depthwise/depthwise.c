/* SPDX-License-Identifier: Apache-2.0
 * Engine "depthwise": convolutions of one channel per group (or several on the side of the result)
 * and their gradients, f16, bf16 and f32 with f32 sums, 1 to 3 axes, any strides, filters up to 64
 * x 64 (wgrad: 50 across). Two kernels for images: one has tiles in shared memory, transposed
 * there if pixels lie side by side; the other (slide=1, channels side by side, one plane) goes down
 * strips of columns with all sums in registers, some 15 instructions for a result of 3 x 3 taps.
 * From 7 x 7 taps on multiply-adds are the bound, of which the tiles reach some 70 %. wgrad splits
 * the tiles of all images into parts in workspace, added up in order; splits=1 needs none. */
#include "ops/conv/depthwise/depthwise.h"
#include "ops/conv/cuda/conv_parts.h"

#include <math.h>
#include <stdlib.h>

enum {
    KNOB_CHANNELS,
    KNOB_TILE_H,
    KNOB_TILE_W,
    KNOB_THREAD_H,
    KNOB_THREAD_W,
    KNOB_SPLITS,
    KNOB_SLIDE
};
static const char *const knobs[] = {"channels", "tile_h", "tile_w", "thread_h",
                                    "thread_w", "splits", "slide",  NULL};

enum { CHOICES = 2, MOST_GRID = INT32_MAX };

typedef struct state {
    mica_kernel *kernel;
    mica_grid grid;
    conv_depthwise_shape shape;
    bool from_vector, to_vector;
    int from_align, to_align; /* bytes */
    conv_parts parts;
    conv_depthwise_args args;
} state;

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    conv_depthwise_shape s;
    conv_depthwise_tile t;
    MICA_TRY(conv_refuse_full_epilogue(desc, why));
    if (device->arch < 80)
        return mica_refuse(why, "the device is sm_%d, this engine is for sm_80 and later",
                           device->arch);
    MICA_TRY(conv_depthwise_shape_make(desc, &s, why));
    if (!conv_depthwise_tile_least(&s, device, &t))
        return mica_refuse(why,
                           "%lld x %lld taps at distance %lld x %lld and stride %lld x %lld do not "
                           "fit shared memory of %lld bytes",
                           s.g.tap[1], s.g.tap[2], s.g.dilation[1], s.g.dilation[2], s.g.stride[1],
                           s.g.stride[2], (long long)device->shared_bytes);
    double count = conv_depthwise_count(&s, &t);
    if (count > MOST_GRID)
        return mica_refuse(why, "%.10g tiles, this engine counts to %d", count, MOST_GRID);
    return MICA_OK;
}

/* ---- configs ---- */

static conv_depthwise_tile tile_of(const mica_config *c)
{
    return (conv_depthwise_tile){.channels = c->knob[KNOB_CHANNELS],
                                 .tile_h = c->knob[KNOB_TILE_H],
                                 .tile_w = c->knob[KNOB_TILE_W],
                                 .thread_h = c->knob[KNOB_THREAD_H],
                                 .thread_w = c->knob[KNOB_THREAD_W],
                                 .slide = c->knob[KNOB_SLIDE] != 0};
}

static int splits_for(const mica_conv_desc *d, const conv_depthwise_shape *s,
                      const mica_device_info *device, const conv_depthwise_tile *t)
{
    if (!s->roles.wgrad || !conv_parts_possible(d)) return 1;
    double blocks = conv_depthwise_wgrad_blocks(s, t), tiles = conv_depthwise_count(s, t);
    if (blocks > MOST_GRID || tiles > MOST_GRID) return 1;
    return conv_parts_choose((int64_t)blocks, (int64_t)device->units * t->blocks, (int64_t)tiles,
                             1);
}

static int configs(const void *desc, const mica_device_info *device, mica_config *out)
{
    conv_depthwise_shape s;
    mica_why why;
    if (conv_depthwise_shape_make(desc, &s, &why) != MICA_OK) return 0;
    conv_depthwise_tile tiles[CHOICES];
    int count = conv_depthwise_tiles(&s, device, tiles, CHOICES), all = 0;
    for (int i = 0; i < count; i++) {
        const conv_depthwise_tile *t = &tiles[i];
        int splits = splits_for(desc, &s, device, t);
        out[all++] =
            (mica_config){{t->channels, t->tile_h, t->tile_w, t->thread_h, t->thread_w, splits}};
        if (splits > 1 && i == 0) {
            out[all] = out[all - 1];
            out[all++].knob[KNOB_SPLITS] = 1;
        }
    }
    conv_depthwise_tile slides[CONV_DEPTHWISE_MOST_SLIDES];
    count = conv_depthwise_slide_tiles(&s, device, slides, CONV_DEPTHWISE_MOST_SLIDES);
    for (int i = 0; i < count; i++) {
        const conv_depthwise_tile *t = &slides[i];
        if (conv_depthwise_count(&s, t) > MOST_GRID) continue;
        out[all++] = (mica_config){
            {t->channels, t->tile_h, t->tile_w, t->thread_h, t->thread_w, 1, t->slide}};
    }
    return all;
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    /* 22 lines took 0.85 to 1.8 times what the rest says, 1.17 in the mean */
    const double launch_ms = 3e-3, memory_share = 0.9, late = 1.17;
    conv_depthwise_shape s;
    mica_why why;
    conv_depthwise_tile t = tile_of(config);
    if (mica_conv_is_empty(desc)) return 0;
    if (conv_depthwise_shape_make(desc, &s, &why) != MICA_OK ||
        !conv_depthwise_tile_complete(&s, device, &t))
        return HUGE_VAL;
    /* eight layers took 1.44 to 1.68 times what the tiles' model says on an H200 */
    double slowness = t.slide || s.roles.wgrad ? 1 : 1.5;
    double work = slowness * conv_depthwise_ms(&s, device, &t);
    double memory = mica_op_bytes(&mica_op_conv, desc) / (device->copy_gbps * 1e6) / memory_share;
    if (s.roles.wgrad) {
        double splits = config->knob[KNOB_SPLITS] > 1 ? config->knob[KNOB_SPLITS] : 1;
        double blocks = conv_depthwise_wgrad_blocks(&s, &t) * splits;
        double slots = (double)device->units * t.blocks;
        if (blocks < slots) work *= slots / blocks, memory *= fmax(1, device->units / blocks);
        if (splits > 1) work += launch_ms;
    }
    return launch_ms + late * fmax(work, memory);
}

/* ---- plan ---- */

static void write_taps(const conv_depthwise_shape *h, const conv_depthwise_tile *t, mica_text *p)
{
    conv_depthwise_write_taps(h, t->rows, p);
    mica_prologue_int(p, "CHANNELS", t->channels);
}

static void write_tile(const conv_depthwise_tile *t, mica_text *p)
{
    mica_prologue_int(p, "TILE_H", t->tile_h);
    mica_prologue_int(p, "TILE_W", t->tile_w);
    mica_prologue_int(p, "THREAD_H", t->thread_h);
    mica_prologue_int(p, "THREAD_W", t->thread_w);
}

static void write_epilogue(const mica_conv_desc *d, mica_text *p)
{
    mica_epilogue e = mica_conv_epilogue(d);
    mica_prologue_epilogue(p, &e);
}

static void write_prologue(const mica_plan *plan, const state *s, const conv_depthwise_tile *t,
                           mica_text *p)
{
    const mica_conv_desc *d = plan->desc;
    const conv_depthwise_shape *h = &s->shape;
    write_taps(h, t, p);
    mica_prologue_int(p, "PITCH", t->pitch);
    write_tile(t, p);
    mica_prologue_int(p, "GROUPS", t->groups);
    mica_prologue_int(p, "VECTOR", h->vector);
    mica_prologue_int(p, "PIXELS_FIRST", h->pixels_first);
    mica_prologue_int(p, "BLOCKS", t->blocks);
    mica_prologue_type(p, "in_t", h->in);
    mica_prologue_type(p, "out_t", s->parts.kernel ? MICA_F32 : h->out);
    if (h->roles.wgrad) return;
    mica_prologue_int(p, "UNROLLED", t->unrolled);
    mica_prologue_int(p, "ONE_PLANE", h->one_plane);
    mica_prologue_int(p, "PAIR_STORES", h->to.c == 1);
    mica_prologue_int(p, "STAGED", h->staged);
    mica_prologue_int(p, "HAS_RESIDUAL", mica_tensor_given(&d->residual));
    mica_prologue_type(p, "weight_t", t->wide_weights ? MICA_F32 : h->in);
    write_epilogue(d, p);
}

/* Steps between pixels and what is known of borders are compiled in: a thread issues some 15
 * instructions for a result, addresses and comparisons would be as many again. */
static void write_slide_prologue(const mica_conv_desc *d, const conv_depthwise_shape *h,
                                 const conv_depthwise_tile *t, mica_text *p)
{
    conv_depthwise_columns c = conv_depthwise_slide_columns(h, t);
    write_taps(h, t, p);
    write_tile(t, p);
    mica_prologue_int(p, "BLOCKS", t->blocks);
    mica_prologue_int(p, "FROM_STEP", h->from.s[2]);
    mica_prologue_int(p, "TO_STEP", h->to.s[2]);
    mica_prologue_int(p, "READ_SURE", c.read_sure[0]);
    mica_prologue_int(p, "READ_SURE_END", c.read_sure[1]);
    mica_prologue_int(p, "READ_EVER", c.read_ever[0]);
    mica_prologue_int(p, "READ_EVER_END", c.read_ever[1]);
    mica_prologue_int(p, "WRITE_SURE", c.write_sure[0]);
    mica_prologue_int(p, "WRITE_SURE_END", c.write_sure[1]);
    mica_prologue_int(p, "HELD", t->held);
    mica_prologue_int(p, "HAS_RESIDUAL", mica_tensor_given(&d->residual));
    mica_prologue_type(p, "in_t", h->in);
    mica_prologue_type(p, "out_t", h->out);
    write_epilogue(d, p);
}

static mica_fastdiv divisor(double n)
{
    return mica_fastdiv_make(n < 1 ? 1 : (unsigned)n);
}

static void fill_strides(const mica_conv_desc *d, state *s)
{
    const conv_depthwise_shape *h = &s->shape;
    const mica_conv_geometry *g = &h->g;
    conv_depthwise_args *a = &s->args;
    a->from = h->from;
    a->to = h->to;
    a->residual = (conv_depthwise_strides){g->residual.n, g->residual.g, g->residual.c, {0, 0, 0}};
    a->taps = (conv_depthwise_strides){0, g->f.g, g->f.n, {0, 0, 0}};
    for (int i = 0; i < 3; i++) {
        a->residual.s[i] = g->residual.s[i];
        a->taps.s[i] = g->f.s[i];
        a->size_from[i] = (int)h->size_from[i];
        a->size_to[i] = (int)h->size_to[i];
    }
    a->channels = (int)g->groups;
    a->multiplier = (int)g->k;
    a->depth_taps = (int)g->tap[0];
    a->depth_stride = (int)g->stride[0];
    a->depth_dilation = (int)g->dilation[0];
    a->depth_pad = (int)g->pad[0];
    a->filter_rows = (int)g->tap[1];
    mica_conv_epilogue_args(d, &a->epilogue);
}

static void fill_origins(state *s)
{
    for (int i = 0; i < 2; i++) {
        s->args.origin[i] = (int)conv_depthwise_origin(&s->shape, i + 1);
        s->args.shift[i] = (int)conv_depthwise_shift(&s->shape, i + 1);
    }
}

static void fill_grid(state *s, const conv_depthwise_tile *t, int splits)
{
    const conv_depthwise_shape *h = &s->shape;
    conv_depthwise_args *a = &s->args;
    double channel_blocks = ceil((double)a->channels / t->channels);
    double count = conv_depthwise_count(h, t);
    a->channel_blocks = divisor(channel_blocks);
    a->multipliers = divisor(h->roles.dgrad ? 1 : (double)a->multiplier);
    a->across = divisor(ceil((double)(a->size_to[2] + a->shift[1]) / t->tile_w));
    a->down = divisor(ceil((double)(a->size_to[1] + a->shift[0]) / t->tile_h));
    a->depth = divisor((double)a->size_to[0]);
    a->taps_deep = divisor((double)a->depth_taps);
    a->row_blocks = divisor(ceil((double)a->filter_rows / t->rows));
    a->parts = splits;
    a->tiles = (unsigned)count;
    double blocks = h->roles.wgrad ? conv_depthwise_wgrad_blocks(h, t) * splits : count;
    s->grid = (mica_grid){.grid = {(unsigned)blocks},
                          .block = {(unsigned)(t->channels / 2 * t->groups)},
                          .dynamic_shared = (unsigned)t->shared};
}

static void fill_alignment(state *s, const conv_depthwise_tile *t)
{
    const conv_depthwise_shape *h = &s->shape;
    int vector = (t->slide ? 2 : h->vector) * h->bytes;
    s->from_align = vector;
    s->from_vector = h->vector > 1;
    s->to_align = h->roles.wgrad ? vector : 2 * mica_dtype_bits(h->out) / 8;
    s->to_vector = h->roles.wgrad ? h->vector > 1 : h->paired;
}

static mica_status build(mica_plan *plan)
{
    const mica_conv_desc *d = plan->desc;
    state *s;
    mica_why why = {""};
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    if (conv_depthwise_shape_make(d, &s->shape, &why) != MICA_OK)
        return mica_fail(MICA_UNSUPPORTED, "%s", why.text);
    conv_depthwise_shape *h = &s->shape;
    if (mica_conv_is_empty(d)) return MICA_OK;
    conv_depthwise_tile t = tile_of(&plan->config);
    if (!conv_depthwise_tile_complete(h, &plan->device, &t))
        return mica_fail(MICA_UNSUPPORTED, "a tile of %d channels, %d x %d pixels does not fit",
                         t.channels, t.tile_h, t.tile_w);
    int splits = plan->config.knob[KNOB_SPLITS] > 1 ? plan->config.knob[KNOB_SPLITS] : 1;
    double most = h->roles.wgrad ? conv_depthwise_wgrad_blocks(h, &t) * splits : 0;
    if (fmax(most, conv_depthwise_count(h, &t)) > MOST_GRID)
        return mica_fail(MICA_UNSUPPORTED, "more than %d tiles or blocks", MOST_GRID);
    MICA_TRY(conv_parts_build(plan, splits, MICA_F32, &s->parts));
    s->args.part = s->parts.args.count;
    fill_strides(d, s);
    fill_origins(s);
    fill_grid(s, &t, splits);
    fill_alignment(s, &t);
    char text[4096];
    mica_text p = {text, sizeof text, 0};
    if (t.slide)
        write_slide_prologue(d, h, &t, &p);
    else
        write_prologue(plan, s, &t, &p);
    mica_kernel_spec spec = {"ops/conv/depthwise/depthwise.cu", "conv_depthwise", text, t.shared};
    if (t.slide) {
        spec.file = "ops/conv/depthwise/depthwise_slide.cu";
        spec.entry = "conv_depthwise_slide";
    }
    if (h->roles.wgrad) {
        spec.file = "ops/conv/depthwise/depthwise_wgrad.cu";
        spec.entry = "conv_depthwise_wgrad";
    }
    return mica_plan_add_kernel(plan, &spec, &s->kernel);
}

/* ---- run ---- */

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    const conv_depthwise_shape *h = &s->shape;
    if (!s->kernel) return MICA_OK;
    conv_depthwise_args a = s->args;
    conv_operands o = conv_parts_operands(plan, &s->parts, &h->roles, h->g.f_base, r);
    a.image = o.image, a.filter = o.other, a.out = o.out;
    a.alpha = o.alpha, a.beta = o.beta;
    const void *to = h->roles.wgrad ? a.filter : a.out;
    a.from_aligned = s->from_vector && mica_access_starts(a.image, s->from_align);
    a.to_aligned = s->to_vector && mica_access_starts(to, s->to_align);
    mica_epilogue_bind(&a.epilogue, r->args, MICA_CONV_BIAS);
    MICA_TRY(mica_kernel_launch(s->kernel, &s->grid, r->stream, &a));
    return conv_parts_run(plan, &s->parts, r);
}

const mica_engine mica_conv_cuda_depthwise = {.name = "depthwise",
                                              .cuda = true,
                                              .knobs = knobs,
                                              .accepts = accepts,
                                              .configs = configs,
                                              .predict = predict,
                                              .build = build,
                                              .run = run};
