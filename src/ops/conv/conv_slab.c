/* SPDX-License-Identifier: Apache-2.0
 * Engine "sm90_slab": bf16 and f16 with up to 64 channels on both sides, stride 1 and taps in two
 * dimensions at most, on Hopper's matrix units. The filter stays in shared memory and each pixel
 * comes there once, with the halo of its tile, instead of once for each tap: at the tensor rate
 * where sm90_im2col is bound by L2. Statistics are formed as y is stored. wgrad adds the blocks'
 * partial sums in a fixed order. Pointers that are not multiples of 16 bytes go to the generic
 * engine, which the plan holds for them. */
#include "ops/conv/conv_slab_args.h"
#include "ops/conv/conv_stats.h"
#include "ops/conv/sm90_shape.h"

#include <math.h>

enum { CHANNELS = 64, PIXEL = 128, TAP = 64 * PIXEL, ACROSS = 8, PROLOGUE = 16384 };
enum { WGRAD_TAPS = 9, WGRAD_THREADS = 512, DIRECT_THREADS = 384, MAX_SLOTS = 8 };
/* Two warpgroups that each hold a slab until their next one is there, in places of their own. */
enum { DIRECT_SLOTS = 4, WGRAD_SLOTS = 2 };
/* Left of a block's shared memory for barriers and for placing the slots at a multiple of 1024. */
enum { SHARED_RESERVE = 2048 };
/* For statistics of a row of a tile, while the other warpgroup multiplies. */
enum { COUNT_CYCLES = 50 };

enum { HEIGHT };
static const char *const knobs[] = {"height", NULL};
static const int heights[] = {8, 14, 16, 28, 32};

typedef struct state {
    mica_conv_sm90_shape shape;
    mica_tensor_map_spec image, other, result;
    mica_kernel *kernel;
    mica_grid grid;
    conv_generic generic; /* for misaligned pointers */
    conv_stats stats;
    mica_conv_sm90_reduce reduce;
    mica_conv_slab_args args;
} state;

/* ---- sizes ---- */

static bool is_wgrad(const mica_conv_sm90_shape *s)
{
    return s->roles.kind == MICA_CONV_KIND_WGRAD;
}

static int taps_of(const mica_conv_sm90_shape *s)
{
    return (int)(s->g.tap[1] * s->g.tap[2]);
}

static int64_t slab_width(const mica_conv_sm90_shape *s)
{
    return ACROSS + (s->g.tap[2] - 1) * s->tap_step[2];
}

static int64_t slab_height(const mica_conv_sm90_shape *s, int height)
{
    return height + (s->g.tap[1] - 1) * s->tap_step[1];
}

static int64_t slot_bytes(const mica_conv_sm90_shape *s, int height)
{
    return (slab_width(s) * slab_height(s, height) + (is_wgrad(s) ? ACROSS * height : 0)) * PIXEL;
}

/* Slabs at once. In turns a warpgroup finds its own slabs in the places of its own: copies need not
 * arrive in order, and one that came to a place of which the other still waits for the slab before
 * would take that for its own. */
static int slots_of(const mica_conv_sm90_shape *s, const mica_device_info *device, int height)
{
    int64_t room = device->shared_bytes - SHARED_RESERVE - (is_wgrad(s) ? 0 : taps_of(s) * TAP);
    int64_t slots = room < 0 ? 0 : room / slot_bytes(s, height);
    if (slots > MAX_SLOTS) slots = MAX_SLOTS;
    return (int)(is_wgrad(s) ? slots : slots / 2 * 2);
}

static bool fits(const mica_conv_sm90_shape *s, const mica_device_info *device, int height)
{
    return slab_width(s) <= 256 && slab_height(s, height) <= 256 &&
           slots_of(s, device, height) >= (is_wgrad(s) ? WGRAD_SLOTS : DIRECT_SLOTS);
}

/* ---- which problems ---- */

static mica_status join_planes(mica_conv_geometry *g, mica_why *why)
{
    mica_conv_strides *const tensors[] = {&g->a, &g->b, &g->residual};
    if (g->tap[0] != 1 || g->stride[0] != 1 || g->pad[0] != 0 || g->in[0] != g->out[0])
        return mica_refuse(why, "taps, strides or padding in 3 dimensions, this engine has 2");
    for (int i = 0; i < 3 && g->in[0] > 1; i++) {
        mica_conv_strides *t = tensors[i];
        if (g->n > 1 && t->n != t->s[0] * g->in[0])
            return mica_refuse(why,
                               "images are %lld elements apart, their %lld planes %lld: this "
                               "engine takes planes at one distance",
                               t->n, g->in[0], t->s[0]);
        t->n = t->s[0];
    }
    g->n *= g->in[0];
    g->in[0] = g->out[0] = 1;
    return MICA_OK;
}

/* Images of one dimension are the rows of one image, planes that no tap joins are images. */
static mica_status make_flat(mica_conv_sm90_shape *s, mica_why *why)
{
    mica_conv_geometry *g = &s->g;
    if (s->axes == 3) MICA_TRY(join_planes(g, why));
    if (s->axes == 1) {
        g->in[1] = g->out[1] = g->n;
        g->a.s[1] = g->a.n, g->b.s[1] = g->b.n, g->residual.s[1] = g->residual.n;
        g->n = 1;
    }
    s->axes = 2;
    return MICA_OK;
}

static mica_status shape_ok(const mica_conv_sm90_shape *s, const mica_device_info *device,
                            mica_why *why)
{
    if (s->g.stride[1] != 1 || s->g.stride[2] != 1)
        return mica_refuse(why, "the stride is %lld x %lld, this engine's is 1", s->g.stride[1],
                           s->g.stride[2]);
    if (s->g.c > CHANNELS || s->g.k > CHANNELS)
        return mica_refuse(why, "%lld and %lld channels, this engine holds %d", s->g.c, s->g.k,
                           CHANNELS);
    if (is_wgrad(s) && taps_of(s) > WGRAD_TAPS)
        return mica_refuse(why, "%lld x %lld taps, this engine's wgrad holds %d", s->g.tap[1],
                           s->g.tap[2], WGRAD_TAPS);
    if (!fits(s, device, heights[0]))
        return mica_refuse(why, "%lld x %lld taps at distance %d x %d do not fit shared memory",
                           s->g.tap[1], s->g.tap[2], s->tap_step[1], s->tap_step[2]);
    return MICA_OK;
}

static mica_status make_shape(const mica_conv_desc *d, const mica_device_info *device,
                              mica_conv_sm90_shape *s, mica_why *why)
{
    if (device->arch != 90)
        return mica_refuse(why, "the device is sm_%d, this engine is for sm_90", device->arch);
    MICA_TRY(mica_conv_sm90_shape_make(d, false, s, why));
    MICA_TRY(make_flat(s, why));
    MICA_TRY(shape_ok(s, device, why));
    return is_wgrad(s) ? MICA_OK : mica_conv_sm90_result_ok(s, d, why);
}

/* ---- configs and their cost ---- */

static int64_t tiles_of(const mica_conv_sm90_shape *s, int height)
{
    const long long *size = s->roles.kind == MICA_CONV_KIND_DGRAD ? s->g.in : s->g.out;
    return s->g.n * ((size[2] + ACROSS - 1) / ACROSS) * ((size[1] + height - 1) / height);
}

static double cycles_of(const mica_conv_sm90_shape *s, const mica_device_info *device, int height)
{
    double each = ceil((double)tiles_of(s, height) / device->units);
    int taps = is_wgrad(s) ? (taps_of(s) + 2) / 3 * 3 : taps_of(s);
    double products = taps * 16.0 * height, fill = (double)slot_bytes(s, height) / 34.6;
    double sums = is_wgrad(s) ? 3000 + taps * 1000.0 : 1000 + taps * 150.0;
    if (s->stats) products = fmax(products, COUNT_CYCLES * height);
    return each * (fmax(products, fill) * 1.05 + 200) + sums + 4.0 * height;
}

/* Statistics: how many terms a thread adds up in f32. */
static bool counting_suits(const mica_conv_sm90_shape *s, const mica_device_info *device)
{
    double tiles = ceil((double)tiles_of(s, heights[0]) / device->units / 2);
    const long long *size = s->roles.kind == MICA_CONV_KIND_DGRAD ? s->g.in : s->g.out;
    return conv_stats_chain_ok(64 + tiles, (double)s->g.n * (double)size[1] * (double)size[2]);
}

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    mica_conv_sm90_shape s;
    MICA_TRY(conv_refuse_finish(desc, why));
    MICA_TRY(make_shape(desc, device, &s, why));
    if (s.stats && s.class_count == 0)
        return mica_refuse(why, "y is empty: its statistics are left to other engines");
    if (s.stats && !counting_suits(&s, device))
        return mica_refuse(why, "%lld images have too many pixels for sums of f32", s.g.n);
    return MICA_OK;
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    mica_conv_sm90_shape s;
    mica_why why;
    if (make_shape(desc, device, &s, &why) != MICA_OK) return 0;
    const double hertz = 1.56e9, launch_ms = 4e-3; /* the clock that a busy chip keeps */
    const double copying = 0.85, count_ms = s.stats ? 2e-3 : 0; /* a second kernel */
    return count_ms + launch_ms +
           fmax(cycles_of(&s, device, config->knob[HEIGHT]) / hertz * 1e3,
                mica_roofline_ms(&mica_op_conv, desc, device) / copying);
}

/* The best height; and the next, where there are tiles enough for it to matter. */
static int make_configs(const void *desc, const mica_device_info *device, mica_config *configs)
{
    mica_conv_sm90_shape s;
    mica_why why;
    if (make_shape(desc, device, &s, &why) != MICA_OK) return 0;
    int best = 0, second = 0;
    for (size_t i = 0; i < sizeof heights / sizeof *heights; i++) {
        int h = heights[i];
        if (!fits(&s, device, h)) continue;
        if (!best || cycles_of(&s, device, h) < cycles_of(&s, device, best)) {
            second = best;
            best = h;
        } else if (!second || cycles_of(&s, device, h) < cycles_of(&s, device, second)) {
            second = h;
        }
    }
    configs[0] = (mica_config){{best}};
    configs[1] = (mica_config){{second}};
    return second && tiles_of(&s, best) > device->units ? 2 : 1;
}

static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    (void)config;
    c->truncates = true;
    c->k_inst = 16;
    if (((const mica_conv_desc *)desc)->pass == MICA_CONV_WGRAD) c->n_outer += 132;
}

/* ---- build ---- */

static void fill_args(const mica_conv_desc *d, state *s, int height)
{
    const mica_conv_sm90_shape *h = &s->shape;
    const mica_conv_class *c = &h->classes[0];
    mica_conv_slab_args *a = &s->args;
    bool dgrad = h->roles.kind == MICA_CONV_KIND_DGRAD;
    const long long *size = dgrad ? h->g.in : h->g.out;
    a->across = (int)((size[2] + ACROSS - 1) / ACROSS);
    a->down = (int)((size[1] + height - 1) / height);
    a->tiles = (int)tiles_of(h, height);
    for (int i = 0; i < 2; i++) {
        a->start[i] = c->start[i + 1];
        a->filter[i] = c->filter[i + 1];
        a->filter_step[i] = c->filter_step[i + 1];
        a->size[i] = (int)size[i + 1];
    }
    a->channels = (int)(dgrad ? h->g.c : h->g.k);
    a->to = dgrad ? h->g.a : h->g.b;
    a->residual = h->g.residual;
    mica_conv_epilogue_args(d, &a->epilogue);
}

static void fill_maps(const mica_conv_desc *d, state *s, int height)
{
    const mica_conv_sm90_shape *h = &s->shape;
    bool dgrad = h->roles.kind == MICA_CONV_KIND_DGRAD;
    int width = (int)slab_width(h), tall = (int)slab_height(h, height);
    mica_conv_sm90_window_map(h, !dgrad, CHANNELS, width, tall, &s->image);
    if (is_wgrad(h)) {
        mica_conv_sm90_window_map(h, false, CHANNELS, ACROSS, height, &s->other);
        return;
    }
    mica_conv_sm90_filter_map(h, d, CHANNELS, CHANNELS, &s->other);
    mica_conv_sm90_window_map(h, dgrad, CHANNELS, ACROSS, height, &s->result);
}

static void add_prologue(const mica_plan *plan, const state *s, int slots, mica_text *p)
{
    const mica_conv_sm90_shape *h = &s->shape;
    mica_wgmma mma = {.n = is_wgrad(h) ? CHANNELS : ACROSS * plan->config.knob[HEIGHT],
                      .a = h->in,
                      .b = h->in,
                      .a_mn_major = is_wgrad(h) || h->filter_mn,
                      .b_mn_major = is_wgrad(h)};
    mica_prologue_int(p, "TAPS_DOWN", h->g.tap[1]);
    mica_prologue_int(p, "TAPS_ACROSS", h->g.tap[2]);
    mica_prologue_int(p, "STEP_DOWN", h->tap_step[1]);
    mica_prologue_int(p, "STEP_ACROSS", h->tap_step[2]);
    mica_prologue_int(p, "HEIGHT", plan->config.knob[HEIGHT]);
    mica_prologue_int(p, "SLOTS", slots);
    mica_prologue_type(p, "in_t", h->in);
    mica_prologue_wgmma(p, "mma", &mma);
}

static mica_status add_kernel(mica_plan *plan, state *s, mica_text *p)
{
    bool wgrad = is_wgrad(&s->shape);
    int height = plan->config.knob[HEIGHT], slots = slots_of(&s->shape, &plan->device, height);
    int units = plan->device.units;
    add_prologue(plan, s, slots, p);
    int64_t shared =
        slots * slot_bytes(&s->shape, height) + (wgrad ? 0 : taps_of(&s->shape) * TAP) + 1024;
    s->grid = (mica_grid){.grid = {(unsigned)(s->args.tiles < units ? s->args.tiles : units)},
                          .block = {wgrad ? WGRAD_THREADS : DIRECT_THREADS},
                          .dynamic_shared = (unsigned)shared};
    mica_kernel_spec spec = {wgrad ? "ops/conv/conv_slab_wgrad.cu" : "ops/conv/conv_slab.cu",
                             wgrad ? "conv_slab_wgrad" : "conv_slab", p->data, shared};
    return mica_plan_add_kernel(plan, &spec, &s->kernel);
}

static mica_status build(mica_plan *plan)
{
    const mica_conv_desc *d = plan->desc;
    state *s;
    mica_why why = {""};
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    if (make_shape(d, &plan->device, &s->shape, &why) != MICA_OK)
        return mica_fail(MICA_UNSUPPORTED, "%s", why.text);
    if (s->shape.class_count == 0) return MICA_OK;
    char buffer[PROLOGUE] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    fill_args(d, s, plan->config.knob[HEIGHT]);
    fill_maps(d, s, plan->config.knob[HEIGHT]);
    if (!is_wgrad(&s->shape)) {
        mica_epilogue e = mica_conv_epilogue(d);
        mica_prologue_epilogue(&p, &e);
        mica_prologue_int(&p, "FILTER_MN", s->shape.filter_mn);
        mica_prologue_int(&p, "RESIDUAL", mica_tensor_given(&d->residual));
        mica_prologue_int(&p, "STATS", s->shape.stats);
    }
    MICA_TRY(add_kernel(plan, s, &p));
    if (is_wgrad(&s->shape))
        MICA_TRY(mica_conv_sm90_reduce_build(plan, &s->shape, (int)s->grid.grid[0],
                                             taps_of(&s->shape) * CHANNELS, NULL, &s->reduce));
    if (s->shape.stats)
        MICA_TRY(conv_stats_build_parts(plan, 2 * (int64_t)s->grid.grid[0], &s->stats));
    return conv_generic_build(plan, &s->generic);
}

/* ---- run ---- */

static mica_status run_slab(const mica_plan *plan, const state *s, const mica_run *r)
{
    bool wgrad = is_wgrad(&s->shape);
    void *const *args = r->args;
    mica_conv_slab_args a = s->args;
    MICA_TRY(mica_tensor_map_encode(plan->cuda, &s->image, args[s->shape.image], &a.image));
    MICA_TRY(mica_tensor_map_encode(plan->cuda, &s->other, args[s->shape.other], &a.other));
    a.out = args[s->shape.roles.out];
    if (wgrad)
        a.partial = mica_at(r, s->reduce.partial);
    else
        MICA_TRY(mica_tensor_map_encode(plan->cuda, &s->result, a.out, &a.result));
    a.alpha = (float)mica_run_scalar(plan, r, MICA_CONV_ALPHA);
    a.beta = (float)mica_run_scalar(plan, r, MICA_CONV_BETA);
    mica_epilogue_bind(&a.epilogue, args, MICA_CONV_BIAS);
    if (s->shape.stats) a.sums = conv_stats_partial(&s->stats, r);
    MICA_TRY(mica_kernel_launch(s->kernel, &s->grid, r->stream, &a));
    MICA_TRY(conv_stats_run(&s->stats, r));
    return wgrad ? mica_conv_sm90_reduce_run(plan, &s->reduce, s->shape.roles.out, r) : MICA_OK;
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    return mica_conv_sm90_aligned(&s->shape, r) ? run_slab(plan, s, r)
                                                : conv_generic_run(&s->generic, r);
}

const mica_engine mica_conv_slab = {.name = "sm90_slab",
                                    .cuda = true,
                                    .knobs = knobs,
                                    .accepts = accepts,
                                    .configs = make_configs,
                                    .predict = predict,
                                    .contract = contract,
                                    .build = build,
                                    .run = run};
