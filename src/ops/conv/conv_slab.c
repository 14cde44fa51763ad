/* SPDX-License-Identifier: Apache-2.0
 * Engine "sm90_slab": bf16 and f16 with up to 64 channels on both sides, or groups of 4, 8, 16, 32
 * or 64, and taps in two dimensions at most, on Hopper's matrix units. The filter stays in shared
 * memory and each pixel comes there once, with the halo of its tile, instead of once for each tap:
 * at the tensor rate where sm90_im2col is bound by L2. Groups are multiplied 64 channels at a time,
 * with zeros between them: that wastes less than other ways to do them lose, and memory is the
 * limit where groups are small. Strides as far as shared memory goes, in dgrad 1. Statistics are
 * formed as y is stored. wgrad adds the blocks' partial sums in a fixed order. Pointers that are
 * not multiples of 16 bytes go to the generic engine, which the plan holds for them. */
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
enum { MOST_BOX = 256 }; /* the copy engine's */
/* For statistics of a row of a tile, while the other warpgroup multiplies. */
enum { COUNT_CYCLES = 50 };

enum { HEIGHT };
static const char *const knobs[] = {"height", NULL};
static const int heights[] = {8, 14, 16, 28, 32};

typedef struct state {
    mica_conv_sm90_shape shape;
    mica_tensor_map_spec image[MICA_CONV_SLAB_LATTICES], other, result; /* rank 0: none */
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

/* Pixels of a lattice along an axis, as in conv_slab.cuh, where `count` results are formed at once.
 */
static int64_t lattice_pixels(const mica_conv_sm90_shape *s, int axis, int lattice, int count)
{
    int64_t reach = -1;
    for (int64_t t = 0; t < s->g.tap[axis]; t++) {
        int64_t at = t * s->tap_step[axis];
        if (at % s->step[axis] == lattice) reach = at / s->step[axis];
    }
    return reach < 0 ? 0 : count + reach;
}

/* All that are read. */
static int64_t slab_pixels(const mica_conv_sm90_shape *s, int axis, int count)
{
    int64_t pixels = 0;
    for (int i = 0; i < s->step[axis]; i++) pixels += lattice_pixels(s, axis, i, count);
    return pixels;
}

/* Of the longest lattice, what is left out between them counted. */
static int64_t box_pixels(const mica_conv_sm90_shape *s, int axis, int count)
{
    return (count + (s->g.tap[axis] - 1) * s->tap_step[axis] / s->step[axis]) * s->step[axis];
}

static int64_t slot_bytes(const mica_conv_sm90_shape *s, int height)
{
    int64_t slab = slab_pixels(s, 1, height) * slab_pixels(s, 2, ACROSS);
    return (slab + (is_wgrad(s) ? ACROSS * height : 0)) * PIXEL;
}

/* Channels of a group; 64: one group, whatever it has of them. */
static int width_of(const mica_conv_sm90_shape *s)
{
    return s->g.groups > 1 ? (int)s->g.c : CHANNELS;
}

/* Channels of the image written, and of b. */
static int64_t all_channels(const mica_conv_sm90_shape *s)
{
    bool dgrad = s->roles.kind == MICA_CONV_KIND_DGRAD;
    return s->g.groups * (dgrad ? s->g.c : s->g.k);
}

static int64_t chunks_of(const mica_conv_sm90_shape *s)
{
    return (all_channels(s) + CHANNELS - 1) / CHANNELS;
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
    return box_pixels(s, 2, ACROSS) <= MOST_BOX && box_pixels(s, 1, height) <= MOST_BOX &&
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

static mica_status strides_ok(const mica_conv_sm90_shape *s, mica_why *why)
{
    const long long *stride = s->g.stride;
    if (s->roles.kind == MICA_CONV_KIND_DGRAD && (stride[1] != 1 || stride[2] != 1))
        return mica_refuse(why, "the stride is %lld x %lld, this engine's dgrad has 1", stride[1],
                           stride[2]);
    if (stride[1] * stride[2] > MICA_CONV_SLAB_LATTICES)
        return mica_refuse(why, "strides of %lld x %lld make more than %d lattices", stride[1],
                           stride[2], MICA_CONV_SLAB_LATTICES);
    return MICA_OK;
}

/* filter_mn: as the kernel copies what lies between the zeros of narrow groups. */
static mica_status groups_ok(const mica_conv_sm90_shape *s, mica_why *why)
{
    const mica_conv_geometry *g = &s->g;
    if (g->groups == 1) return MICA_OK;
    if (g->c != g->k || g->c % 4 || g->c == 0 || CHANNELS % g->c)
        return mica_refuse(why,
                           "groups of %lld to %lld channels, this engine takes as many on both "
                           "sides, 4, 8, 16, 32 or 64",
                           g->c, g->k);
    if (!is_wgrad(s) && s->filter_mn != (s->roles.kind == MICA_CONV_KIND_DGRAD))
        return mica_refuse(why, "the filter's channels do not lie side by side, as this engine "
                                "reads those of groups");
    return MICA_OK;
}

static mica_status shape_ok(const mica_conv_sm90_shape *s, const mica_device_info *device,
                            mica_why *why)
{
    MICA_TRY(strides_ok(s, why));
    MICA_TRY(groups_ok(s, why));
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
    MICA_TRY(mica_conv_sm90_shape_make(d, MICA_CONV_SM90_GROUPS, s, why));
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

/* Blocks that share out a chunk's tiles. */
static int64_t lines_of(const mica_conv_sm90_shape *s, const mica_device_info *device, int height)
{
    int64_t tiles = tiles_of(s, height), most = device->units / chunks_of(s);
    if (most < 1) most = 1;
    return tiles < most ? tiles : most;
}

/* Of one tile: products of few columns wait for the filter's rows, copies for the slot before where
 * there are only two. */
static double tile_cycles(const mica_conv_sm90_shape *s, const mica_device_info *device, int height)
{
    int taps = is_wgrad(s) ? (taps_of(s) + 2) / 3 * 3 : taps_of(s);
    double products = taps * 4 * (is_wgrad(s) ? 4.0 * height : fmax(4.0 * height, 36));
    /* the copy engine passes over the pixels that it leaves out */
    double skipped = s->step[2] > 1 ? 1.6 : 1,
           fill = skipped * (double)slot_bytes(s, height) / 34.6;
    if (slots_of(s, device, height) < 3) fill += 1500;
    if (s->stats) products = fmax(products, COUNT_CYCLES * height);
    return fmax(products, fill) * 1.05 + 200;
}

static double cycles_of(const mica_conv_sm90_shape *s, const mica_device_info *device, int height)
{
    int64_t lines = lines_of(s, device, height);
    double waves = ceil((double)(lines * chunks_of(s)) / device->units);
    double each = waves * ceil((double)tiles_of(s, height) / (double)lines);
    /* what a block stores in the end, or reads before */
    double sums = is_wgrad(s) ? 3000 + taps_of(s) * 1000.0 * width_of(s) / CHANNELS
                              : 1000 + taps_of(s) * 150.0;
    return each * tile_cycles(s, device, height) + sums + 4.0 * height;
}

/* Statistics: how many terms a thread adds up in f32. */
static bool counting_suits(const mica_conv_sm90_shape *s, const mica_device_info *device)
{
    double lines = (double)lines_of(s, device, heights[0]);
    double tiles = ceil((double)tiles_of(s, heights[0]) / lines / 2);
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
    const double hertz = 1.56e9, launch_ms = is_wgrad(&s) ? 3e-3 : 1.6e-3; /* a busy chip's clock */
    const double copying = 0.85, count_ms = s.stats ? 2e-3 : 0;            /* a second kernel */
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
    return second && tiles_of(&s, best) * chunks_of(&s) > device->units ? 2 : 1;
}

static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    const mica_conv_desc *d = desc;
    (void)config;
    c->truncates = true;
    c->k_inst = 16;
    c->spreads = d->groups > 1 && d->pass != MICA_CONV_WGRAD; /* zeros stand for other groups */
    if (d->pass == MICA_CONV_WGRAD) c->n_outer += 132;
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
    a->chunks = (int)chunks_of(h);
    a->narrow_strides[0] = d->w.strides[0];
    for (int i = 0; i < 2; i++) {
        int at = d->w.rank - 2 + i; /* one dimension has no way down */
        a->start[i] = c->start[i + 1];
        a->filter[i] = c->filter[i + 1];
        a->filter_step[i] = c->filter_step[i + 1];
        a->narrow_strides[i + 1] = at < 2 ? 0 : d->w.strides[at];
        a->size[i] = (int)size[i + 1];
    }
    a->channels = (int)all_channels(h);
    a->to = dgrad ? h->g.a : h->g.b;
    a->residual = h->g.residual;
    mica_conv_epilogue_args(d, &a->epilogue);
}

static void fill_maps(const mica_conv_desc *d, state *s, int height)
{
    const mica_conv_sm90_shape *h = &s->shape;
    bool dgrad = h->roles.kind == MICA_CONV_KIND_DGRAD;
    for (int i = 0; i < h->step[1] * h->step[2]; i++) {
        int64_t tall = lattice_pixels(h, 1, i / h->step[2], height),
                width = lattice_pixels(h, 2, i % h->step[2], ACROSS);
        if (tall && width)
            mica_conv_sm90_window_map(h, !dgrad, CHANNELS, (int)width, (int)tall, &s->image[i]);
    }
    if (is_wgrad(h)) {
        mica_conv_sm90_window_map(h, false, CHANNELS, ACROSS, height, &s->other);
        return;
    }
    if (width_of(h) == CHANNELS) mica_conv_sm90_filter_map(h, d, CHANNELS, CHANNELS, &s->other);
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
    mica_prologue_int(p, "STRIDE_DOWN", h->step[1]);
    mica_prologue_int(p, "STRIDE_ACROSS", h->step[2]);
    mica_prologue_int(p, "WIDTH", width_of(h));
    mica_prologue_int(p, "HEIGHT", plan->config.knob[HEIGHT]);
    mica_prologue_int(p, "SLOTS", slots);
    mica_prologue_type(p, "in_t", h->in);
    mica_prologue_wgmma(p, "mma", &mma);
}

static mica_status add_kernel(mica_plan *plan, state *s, mica_text *p)
{
    bool wgrad = is_wgrad(&s->shape);
    int height = plan->config.knob[HEIGHT], slots = slots_of(&s->shape, &plan->device, height);
    int64_t blocks = lines_of(&s->shape, &plan->device, height) * chunks_of(&s->shape);
    add_prologue(plan, s, slots, p);
    int64_t shared =
        slots * slot_bytes(&s->shape, height) + (wgrad ? 0 : taps_of(&s->shape) * TAP) + 1024;
    s->grid = (mica_grid){.grid = {(unsigned)blocks},
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
    int lines = (int)s->grid.grid[0] / s->args.chunks;
    if (is_wgrad(&s->shape))
        MICA_TRY(mica_conv_sm90_reduce_build(
            plan, &s->shape, lines, taps_of(&s->shape) * width_of(&s->shape), NULL, &s->reduce));
    if (s->shape.stats) MICA_TRY(conv_stats_build_parts(plan, 2 * lines, &s->stats));
    return conv_generic_build(plan, &s->generic);
}

/* ---- run ---- */

static mica_status run_slab(const mica_plan *plan, const state *s, const mica_run *r)
{
    bool wgrad = is_wgrad(&s->shape);
    void *const *args = r->args;
    mica_conv_slab_args a = s->args;
    for (int i = 0; i < MICA_CONV_SLAB_LATTICES; i++)
        if (s->image[i].rank)
            MICA_TRY(mica_tensor_map_encode(plan->cuda, &s->image[i], args[s->shape.image],
                                            &a.image[i]));
    if (s->other.rank)
        MICA_TRY(mica_tensor_map_encode(plan->cuda, &s->other, args[s->shape.other], &a.other));
    else
        a.narrow = args[s->shape.other];
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
