/* SPDX-License-Identifier: Apache-2.0
 * Engine "sm90_stream": bf16 and f16 with stride 1 in two and three dimensions, any number of
 * channels, forward and dgrad, on Hopper's tensor cores. Slabs as in sm90_slab, 64 channels of one
 * plane at a time, while the filter passes through a ring: each pixel comes to shared memory once
 * for all taps of a plane, each tap of the filter once for a tile of 64 channels by up to 256
 * pixels, at 24 bytes a cycle where sm90_im2col needs 40 and more. For filters too large to stay
 * and channels that fill no wide tile: 64 in three dimensions, 96, 320. What it computes in vain
 * are the pixels that round a row up to 8, or a flat tile's zeros, and a column to the tile's rows.
 * Pointers that are not multiples of 16 bytes go to the generic engine, which the plan holds for
 * them. */
#include "ops/conv/slab/slab_tile.h"

#include <math.h>

enum { CHANNELS = CONV_SLAB_CHANNELS, TAP = CONV_SLAB_TAP, PROLOGUE = 16384, THREADS = 384 };
enum { SLOTS = 3, LEAST_STAGES = 4, MOST_STAGES = 16, MOST_TAPS = 25, MOST_ITEMS = 1 << 30 };

static const char *const knobs[] = {"height", "flat", NULL};
static const int heights[] = {8, 14, 16, 20, 24, 28, 32, 0};

/* ---- sizes ---- */

static int64_t slab_room(const conv_slab_tile *t)
{
    return t->slab + t->zeros;
}

static int stages_of(const mica_device_info *device, const conv_slab_tile *t)
{
    int64_t room = device->shared_bytes - CONV_SLAB_RESERVE - SLOTS * slab_room(t);
    int64_t stages = room < 0 ? 0 : room / TAP;
    return (int)(stages < MOST_STAGES ? stages : MOST_STAGES);
}

/* Whether it fits, and the tile if so. */
static bool make_tile(const mica_conv_sm90_shape *s, const mica_device_info *device,
                      const mica_config *config, conv_slab_tile *t)
{
    return conv_slab_tile_make(s, config, t) && stages_of(device, t) >= LEAST_STAGES;
}

/* Tiles of 64 channels. */
static int64_t items_of(const mica_conv_sm90_shape *s, const conv_slab_tile *t)
{
    return conv_slab_tiles(s, t) * conv_ceil_div(mica_conv_sm90_columns(s), CHANNELS);
}

/* ---- which problems ---- */

static mica_status shape_ok(const mica_conv_sm90_shape *s, const mica_device_info *device,
                            mica_why *why)
{
    const mica_conv_geometry *g = &s->g;
    if (s->roles.wgrad) return mica_refuse(why, "a filter's gradient, this engine forms images");
    if (s->axes == 1) return mica_refuse(why, "1 spatial dimension, this engine has 2 and 3");
    if (g->stride[0] != 1 || g->stride[1] != 1 || g->stride[2] != 1)
        return mica_refuse(why, "the stride is %lld x %lld x %lld, this engine's is 1",
                           g->stride[0], g->stride[1], g->stride[2]);
    if (mica_conv_sm90_taps(s) < 2 || mica_conv_sm90_taps(s) > MOST_TAPS)
        return mica_refuse(why, "%lld x %lld taps, this engine takes 2 to %d of a plane", g->tap[1],
                           g->tap[2], MOST_TAPS);
    conv_slab_tile t;
    if (!make_tile(s, device, &(mica_config){{heights[0]}}, &t))
        return mica_refuse(why, "%lld x %lld taps at distance %d x %d do not fit shared memory",
                           g->tap[1], g->tap[2], s->tap_step[1], s->tap_step[2]);
    if (items_of(s, &t) > MOST_ITEMS)
        return mica_refuse(why, "%lld tiles of 64 channels, this engine counts to %d",
                           (long long)items_of(s, &t), MOST_ITEMS);
    return MICA_OK;
}

static mica_status make_shape(const mica_conv_desc *d, const mica_device_info *device,
                              mica_conv_sm90_shape *s, mica_why *why)
{
    if (device->arch != 90)
        return mica_refuse(why, "the device is sm_%d, this engine is for sm_90", device->arch);
    MICA_TRY(mica_conv_sm90_shape_make(d, 0, s, why));
    MICA_TRY(shape_ok(s, device, why));
    return mica_conv_sm90_result_ok(s, d, why);
}

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    mica_conv_sm90_shape s;
    MICA_TRY(conv_refuse_full_epilogue(desc, why));
    return make_shape(desc, device, &s, why);
}

/* ---- configs and their cost ---- */

static long long planes_read(const mica_conv_sm90_shape *s)
{
    return s->roles.dgrad ? s->g.out[0] : s->g.in[0];
}

/* That a tile reads in the mean: those outside the image are left out. */
static double planes_of(const mica_conv_sm90_shape *s)
{
    double all = (double)mica_conv_sm90_size(s)[0], sum = 0;
    for (int64_t t = 0; t < s->g.tap[0]; t++) {
        double from = (double)(s->classes[0].start[0] + t * s->tap_step[0]);
        sum += fmax(0, fmin(all, (double)planes_read(s) - from) - fmax(0, -from));
    }
    return fmax(1, sum / all);
}

/* Of one tile of 64 channels; the constants are fitted to 31 problems timed on an H200. For few
 * pixels shared memory gives the filter no faster. */
static double item_cycles(const mica_conv_sm90_shape *s, const conv_slab_tile *t)
{
    double slabs = planes_of(s) * (double)conv_ceil_div(mica_conv_sm90_terms(s), CHANNELS);
    double steps = planes_of(s) * (double)conv_ceil_div(mica_conv_sm90_terms(s), 16);
    double products = steps * mica_conv_sm90_taps(s) * fmax(4.0 * t->eights, 38);
    double fill = slabs * (double)(slab_room(t) + mica_conv_sm90_taps(s) * TAP) / 60;
    return fmax(products, fill) + 1450;
}

static double cycles_of(const mica_conv_sm90_shape *s, const mica_device_info *device,
                        const mica_config *config)
{
    conv_slab_tile t;
    if (!make_tile(s, device, config, &t)) return INFINITY;
    return ceil((double)items_of(s, &t) / device->units) * item_cycles(s, &t);
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    mica_conv_sm90_shape s;
    mica_why why;
    if (make_shape(desc, device, &s, &why) != MICA_OK || s.class_count == 0) return 0;
    const double hertz = 1.56e9, launch_ms = 1.6e-3; /* the clock that a busy chip keeps */
    const double copying = 0.85;
    return launch_ms + mica_conv_sm90_residual_ms(&s, device) +
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
    conv_slab_tile t;
    make_tile(&s, device, &configs[0], &t);
    return count > 1 && items_of(&s, &t) > device->units ? 2 : 1;
}

static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    (void)desc;
    (void)config;
    c->truncates = true;
    c->k_inst = 16;
}

/* ---- build ---- */

static void fill(const mica_conv_desc *d, conv_slab_plan *s)
{
    const mica_conv_sm90_shape *h = &s->sm90.shape;
    const mica_conv_class *c = &h->classes[0];
    mica_conv_slab_args *a = &s->args;
    conv_slab_tile_args(d, h, &s->tile, a);
    a->chunks = (int)conv_ceil_div(mica_conv_sm90_columns(h), CHANNELS);
    a->blocks = (int)conv_ceil_div(mica_conv_sm90_terms(h), CHANNELS);
    a->planes = (int)mica_conv_sm90_size(h)[0];
    a->planes_read = (int)planes_read(h);
    a->plane_taps = (int)h->g.tap[0];
    a->plane_start = c->start[0];
    a->plane_step = h->tap_step[0];
    a->plane_filter = c->filter[0];
    a->plane_filter_step = c->filter_step[0];
    conv_slab_image_map(h, &s->tile, 0, &s->sm90.image[0]);
    mica_conv_sm90_filter_map(h, d, CHANNELS, CHANNELS, &s->sm90.other);
    mica_conv_sm90_window_map(h, h->roles.dgrad, CHANNELS, s->tile.wide, s->tile.tall,
                              &s->sm90.result);
    mica_conv_sm90_residual_map(h, d, &s->sm90.result, &s->sm90.residual);
}

static void add_prologue(const mica_plan *plan, const conv_slab_plan *s, int stages, mica_text *p)
{
    const mica_conv_desc *d = plan->desc;
    const mica_conv_sm90_shape *h = &s->sm90.shape;
    int last = (int)(mica_conv_sm90_terms(h) % CHANNELS);
    mica_wgmma mma = {.n = 8 * s->tile.eights, .a = h->in, .b = h->in, .a_mn_major = h->filter_mn};
    mica_epilogue e = mica_conv_epilogue(d);
    mica_prologue_epilogue(p, &e);
    mica_prologue_int(p, "FILTER_MN", h->filter_mn);
    mica_prologue_int(p, "RESIDUAL", mica_tensor_given(&d->residual));
    mica_prologue_int(p, "RESIDUAL_MAP", s->sm90.residual.rank > 0);
    mica_prologue_int(p, "STATS", 0);
    mica_prologue_int(p, "AXES", h->axes);
    conv_slab_tile_prologue(h, &s->tile, p);
    mica_prologue_int(p, "WIDTH", CHANNELS);
    mica_prologue_int(p, "SLOTS", SLOTS);
    mica_prologue_int(p, "STAGES", stages);
    mica_prologue_int(p, "LAST", last ? (last + 15) / 16 : CHANNELS / 16);
    mica_prologue_wgmma(p, "mma", &mma);
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
    make_tile(h, &plan->device, &plan->config, &s->tile);
    fill(d, s);
    char buffer[PROLOGUE] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    int stages = stages_of(&plan->device, &s->tile);
    add_prologue(plan, s, stages, &p);
    int64_t shared = SLOTS * slab_room(&s->tile) + stages * TAP + 1024;
    int64_t items = items_of(h, &s->tile);
    s->sm90.grid =
        (mica_grid){.grid = {(unsigned)(items < plan->device.units ? items : plan->device.units)},
                    .block = {THREADS},
                    .dynamic_shared = (unsigned)shared};
    mica_kernel_spec spec = {"ops/conv/slab/slab_stream.cu", "conv_slab_stream", p.data, shared};
    MICA_TRY(mica_plan_add_kernel(plan, &spec, &s->sm90.kernel));
    return conv_generic_build(plan, &s->sm90.generic);
}

const mica_engine mica_conv_slab_stream = {.name = "sm90_stream",
                                           .compile_ms = 2200,
                                           .cuda = true,
                                           .knobs = knobs,
                                           .accepts = accepts,
                                           .configs = make_configs,
                                           .predict = predict,
                                           .contract = contract,
                                           .build = build,
                                           .run = conv_slab_run};
