/* SPDX-License-Identifier: Apache-2.0
 * Engine "sm90_slab": bf16 and f16 with up to 64 channels on both sides, or groups of 4, 8, 16, 32
 * or 64, and taps in two dimensions at most, on Hopper's tensor cores. The filter stays in shared
 * memory and each pixel comes there once, with the halo of its tile, instead of once for each tap:
 * at the tensor rate where sm90_im2col is bound by L2. Groups are multiplied 64 channels at a time,
 * with zeros between them: that wastes less than other ways to do them lose, and memory is the
 * limit where groups are small. Strides as far as shared memory goes, in dgrad 1. Statistics are
 * formed as y is stored. wgrad adds the blocks' partial sums in a fixed order. Pointers that are
 * not multiples of 16 bytes go to the generic engine, which the plan holds for them. */
#include "ops/conv/slab/slab_tile.h"

#include <math.h>

enum { CHANNELS = CONV_SLAB_CHANNELS, PROLOGUE = 16384 };
enum { WGRAD_TAPS = 9, WGRAD_THREADS = 512, DIRECT_THREADS = 384, MAX_SLOTS = 8 };
/* Two warpgroups that each hold a slab until their next one is there, in places of their own. */
enum { DIRECT_SLOTS = 4, WGRAD_SLOTS = 2 };
/* For statistics of 8 positions, while the other warpgroup multiplies. */
enum { COUNT_CYCLES = 50 };

static const char *const knobs[] = {"height", "flat", NULL};
static const int heights[] = {8, 14, 16, 28, 32, 0};

/* ---- sizes ---- */

static conv_slab_tile tile_of(const mica_conv_sm90_shape *s, const mica_config *config)
{
    conv_slab_tile t;
    conv_slab_tile_make(s, config, &t);
    return t;
}

static int64_t slot_bytes(const mica_conv_sm90_shape *s, const conv_slab_tile *t)
{
    return t->slab + t->zeros + (s->roles.wgrad ? 8 * t->eights * CONV_SLAB_PIXEL : 0);
}

/* Channels of a group; 64: one group, whatever it has of them. */
static int width_of(const mica_conv_sm90_shape *s)
{
    return s->g.groups > 1 ? (int)s->g.c : CHANNELS;
}

/* Channels of the image written, and of b. */
static int64_t all_channels(const mica_conv_sm90_shape *s)
{
    return s->g.groups * mica_conv_sm90_columns(s);
}

static int64_t chunks_of(const mica_conv_sm90_shape *s)
{
    return conv_ceil_div(all_channels(s), CHANNELS);
}

/* Slabs at once. In ping-pong a warpgroup finds its own slabs in the places of its own: copies need
 * not arrive in order, and one that came to a place of which the other still waits for the slab
 * before would take that for its own. */
static int slots_of(const mica_conv_sm90_shape *s, const mica_device_info *device,
                    const conv_slab_tile *t)
{
    int64_t room = device->shared_bytes - CONV_SLAB_RESERVE -
                   (s->roles.wgrad ? 0 : mica_conv_sm90_taps(s) * (int64_t)CONV_SLAB_TAP);
    int64_t slots = room < 0 ? 0 : room / slot_bytes(s, t);
    if (slots > MAX_SLOTS) slots = MAX_SLOTS;
    return (int)(s->roles.wgrad ? slots : slots / 2 * 2);
}

static bool fits(const mica_conv_sm90_shape *s, const mica_device_info *device,
                 const mica_config *config)
{
    conv_slab_tile t;
    return conv_slab_tile_make(s, config, &t) &&
           slots_of(s, device, &t) >= (s->roles.wgrad ? WGRAD_SLOTS : DIRECT_SLOTS);
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
static mica_status take_two_axes(mica_conv_sm90_shape *s, mica_why *why)
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
    if (s->roles.dgrad && (stride[1] != 1 || stride[2] != 1))
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
    if (!s->roles.wgrad && s->filter_mn != (s->roles.dgrad))
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
    if (s->roles.wgrad && mica_conv_sm90_taps(s) > WGRAD_TAPS)
        return mica_refuse(why, "%lld x %lld taps, this engine's wgrad holds %d", s->g.tap[1],
                           s->g.tap[2], WGRAD_TAPS);
    if (!fits(s, device, &(mica_config){{heights[0]}}))
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
    MICA_TRY(take_two_axes(s, why));
    MICA_TRY(shape_ok(s, device, why));
    return s->roles.wgrad ? MICA_OK : mica_conv_sm90_result_ok(s, d, why);
}

/* ---- configs and their cost ---- */

/* Blocks that divide a chunk's tiles. */
static int64_t lines_of(const mica_conv_sm90_shape *s, const mica_device_info *device,
                        const conv_slab_tile *t)
{
    int64_t tiles = conv_slab_tiles(s, t), most = device->units / chunks_of(s);
    if (tiles < most) most = tiles;
    return most < 1 ? 1 : most; /* of an empty result, too */
}

/* Of one tile: products of few columns wait for the filter's rows, copies for the slot before where
 * there are only two. */
static double tile_cycles(const mica_conv_sm90_shape *s, const mica_device_info *device,
                          const conv_slab_tile *t)
{
    int taps = s->roles.wgrad ? (mica_conv_sm90_taps(s) + 2) / 3 * 3 : mica_conv_sm90_taps(s);
    double products = taps * 4 * (s->roles.wgrad ? 4.0 * t->eights : fmax(4.0 * t->eights, 36));
    /* TMA passes over the pixels that it leaves out */
    double skipped = s->step[2] == 1 ? 1 : 1.6;
    if (s->roles.wgrad && s->step[2] > 1) skipped = 1.25;
    double fill = skipped * (double)slot_bytes(s, t) / 34.6;
    if (slots_of(s, device, t) < 3) fill += 1500;
    if (s->stats) products = fmax(products, COUNT_CYCLES * t->eights);
    return fmax(products, fill) * 1.05 + 200;
}

static double cycles_of(const mica_conv_sm90_shape *s, const mica_device_info *device,
                        const mica_config *config)
{
    if (!fits(s, device, config)) return INFINITY;
    conv_slab_tile t = tile_of(s, config);
    int64_t lines = lines_of(s, device, &t);
    double waves = ceil((double)(lines * chunks_of(s)) / device->units);
    double each = waves * ceil((double)conv_slab_tiles(s, &t) / (double)lines);
    /* what a block stores in the end, or reads before */
    double sums = s->roles.wgrad ? 3000 + mica_conv_sm90_taps(s) * 1000.0 * width_of(s) / CHANNELS
                                 : 1000 + mica_conv_sm90_taps(s) * 150.0;
    return each * tile_cycles(s, device, &t) + sums + 4.0 * t.eights;
}

/* Statistics: how many terms a thread adds up in f32. */
static bool counting_suits(const mica_conv_sm90_shape *s, const mica_device_info *device)
{
    conv_slab_tile t = tile_of(s, &(mica_config){{heights[0]}});
    double tiles = ceil((double)conv_slab_tiles(s, &t) / (double)lines_of(s, device, &t) / 2);
    const long long *size = mica_conv_sm90_size(s);
    return conv_stats_chain_ok(64 + tiles, (double)s->g.n * (double)size[1] * (double)size[2]);
}

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    mica_conv_sm90_shape s;
    MICA_TRY(conv_refuse_quantised_epilogue(desc, why));
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
    const double hertz = 1.56e9,
                 launch_ms = s.roles.wgrad ? 3e-3 : 1.6e-3;     /* a busy chip's clock */
    const double copying = 0.85, count_ms = s.stats ? 2e-3 : 0; /* a second kernel */
    return count_ms + launch_ms + mica_conv_sm90_residual_ms(&s, device) +
           fmax(cycles_of(&s, device, config) / hertz * 1e3,
                mica_roofline_ms(&mica_op_conv, desc, device) / copying);
}

/* The best tile; and the next, where there are tiles enough for it to matter. */
static int make_configs(const void *desc, const mica_device_info *device, mica_config *configs)
{
    mica_conv_sm90_shape s;
    mica_why why;
    if (make_shape(desc, device, &s, &why) != MICA_OK) return 0;
    int count = conv_slab_configs(&s, device, heights, cycles_of, configs);
    conv_slab_tile t = tile_of(&s, &configs[0]);
    return count > 1 && conv_slab_tiles(&s, &t) * chunks_of(&s) > device->units ? 2 : 1;
}

static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    const mica_conv_desc *d = desc;
    (void)config;
    c->truncates = true;
    c->k_inst = 16;
    bool wgrad = d->pass == MICA_CONV_WGRAD;
    /* zeros stand for other groups, and for pixels past the last of b */
    c->spreads = d->groups > 1 || wgrad;
    if (wgrad) c->n_outer += 132;
}

/* ---- build ---- */

static void fill(const mica_conv_desc *d, conv_slab_plan *s)
{
    const mica_conv_sm90_shape *h = &s->sm90.shape;
    const conv_slab_tile *t = &s->tile;
    mica_conv_slab_args *a = &s->args;
    conv_slab_tile_args(d, h, t, a);
    a->chunks = (int)chunks_of(h);
    a->narrow_strides[0] = d->w.strides[0];
    for (int i = 0; i < 2; i++) {
        int at = d->w.rank - 2 + i; /* one dimension has no way down */
        a->narrow_strides[i + 1] = at < 2 ? 0 : d->w.strides[at];
    }
    for (int i = 0; i < h->step[1] * h->step[2]; i++)
        conv_slab_image_map(h, t, i, &s->sm90.image[i]);
    if (h->roles.wgrad) {
        mica_conv_sm90_window_map(h, false, CHANNELS, t->wide, t->tall, &s->sm90.other);
        return;
    }
    if (width_of(h) == CHANNELS)
        mica_conv_sm90_filter_map(h, d, CHANNELS, CHANNELS, &s->sm90.other);
    mica_conv_sm90_window_map(h, h->roles.dgrad, CHANNELS, t->wide, t->tall, &s->sm90.result);
    mica_conv_sm90_residual_map(h, d, &s->sm90.result, &s->sm90.residual);
}

static void add_prologue(const conv_slab_plan *s, int slots, mica_text *p)
{
    const mica_conv_sm90_shape *h = &s->sm90.shape;
    mica_wgmma mma = {.n = h->roles.wgrad ? CHANNELS : 8 * s->tile.eights,
                      .a = h->in,
                      .b = h->in,
                      .a_mn_major = h->roles.wgrad || h->filter_mn,
                      .b_mn_major = h->roles.wgrad};
    conv_slab_tile_prologue(h, &s->tile, p);
    mica_prologue_int(p, "WIDTH", width_of(h));
    mica_prologue_int(p, "SLOTS", slots);
    mica_prologue_wgmma(p, "mma", &mma);
}

static mica_status add_kernel(mica_plan *plan, conv_slab_plan *s, mica_text *p)
{
    const mica_conv_sm90_shape *h = &s->sm90.shape;
    bool wgrad = h->roles.wgrad;
    int slots = slots_of(h, &plan->device, &s->tile);
    int64_t blocks = lines_of(h, &plan->device, &s->tile) * chunks_of(h);
    add_prologue(s, slots, p);
    int64_t shared = slots * slot_bytes(h, &s->tile) +
                     (wgrad ? 0 : mica_conv_sm90_taps(h) * (int64_t)CONV_SLAB_TAP) + 1024;
    s->sm90.grid = (mica_grid){.grid = {(unsigned)blocks},
                               .block = {wgrad ? WGRAD_THREADS : DIRECT_THREADS},
                               .dynamic_shared = (unsigned)shared};
    mica_kernel_spec spec = {wgrad ? "ops/conv/slab/slab_wgrad.cu" : "ops/conv/slab/slab.cu",
                             wgrad ? "conv_slab_wgrad" : "conv_slab", p->data, shared};
    return mica_plan_add_kernel(plan, &spec, &s->sm90.kernel);
}

static mica_status build(mica_plan *plan)
{
    const mica_conv_desc *d = plan->desc;
    conv_slab_plan *s;
    mica_why why = {""};
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    const mica_conv_sm90_shape *h = &s->sm90.shape;
    if (make_shape(d, &plan->device, &s->sm90.shape, &why) != MICA_OK)
        return mica_fail(MICA_UNSUPPORTED, "%s", why.text);
    if (h->class_count == 0) return MICA_OK;
    char buffer[PROLOGUE] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    s->tile = tile_of(h, &plan->config);
    fill(d, s);
    if (!h->roles.wgrad) {
        mica_epilogue e = mica_conv_epilogue(d);
        mica_prologue_epilogue(&p, &e);
        mica_prologue_int(&p, "FILTER_MN", h->filter_mn);
        mica_prologue_int(&p, "RESIDUAL", mica_tensor_given(&d->residual));
        mica_prologue_int(&p, "RESIDUAL_MAP", s->sm90.residual.rank > 0);
        mica_prologue_int(&p, "STATS", h->stats);
    }
    MICA_TRY(add_kernel(plan, s, &p));
    int lines = (int)s->sm90.grid.grid[0] / s->args.chunks;
    if (h->roles.wgrad)
        MICA_TRY(mica_conv_sm90_reduce_build(plan, h, lines, mica_conv_sm90_taps(h) * width_of(h),
                                             width_of(h), NULL, &s->sm90.reduce));
    if (h->stats) MICA_TRY(conv_stats_build_parts(plan, 2 * lines, &s->sm90.stats));
    return conv_generic_build(plan, &s->sm90.generic);
}

const mica_engine mica_conv_slab = {.name = "sm90_slab",
                                    .compile_ms = 1700,
                                    .cuda = true,
                                    .knobs = knobs,
                                    .accepts = accepts,
                                    .configs = make_configs,
                                    .predict = predict,
                                    .contract = contract,
                                    .build = build,
                                    .run = conv_slab_run};
