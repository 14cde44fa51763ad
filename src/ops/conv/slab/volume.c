/* SPDX-License-Identifier: Apache-2.0
 * Engine "sm90_volume": bf16 and f16 with up to 32 channels on both sides in three dimensions,
 * stride 1, on Hopper's tensor cores: the outer layers of networks that segment volumes. As in
 * sm90_slab the filter stays in shared memory and a plane of the image comes there once for all
 * taps across and down; two planes of results, or of the incoming gradient, share the planes of the
 * image that both need. wgrad adds the blocks' partial sums in a fixed order. Pointers that are not
 * multiples of 16 bytes go to the generic engine, which the plan holds for them. */
#include "ops/conv/slab/volume_args.h"
#include "ops/conv/im2col/im2col_run.h"

#include <math.h>

enum { CHANNELS = 32, PIXEL = 64, BLOCK = CHANNELS * PIXEL, ACROSS = 8, PLANES = 2 };
enum { DIRECT_THREADS = 384, WGRAD_THREADS = 512, PROLOGUE = 16384 };
/* A warpgroup's share: two slabs that it stores from, and one that comes. */
enum { DIRECT_SLOTS = 6, WGRAD_SLOTS = 2, MOST_SLOTS = 12 };
/* wgrad: warpgroups, each of which has a tap down; accumulators of a thread. */
enum { WGRAD_TAPS_DOWN = 3, WGRAD_SUMS = 112 };
/* Left of a block's shared memory for barriers and for placing the slots at a multiple of 1024. */
enum { SHARED_RESERVE = 2048 };

enum { HEIGHT };
static const char *const knobs[] = {"height", NULL};
static const int heights[] = {8, 16, 24, 32};

typedef struct state {
    conv_sm90_plan sm90;
    conv_volume_args args;
} state;

/* ---- sizes ---- */

/* wgrad: products that a plane of b takes part in, of up to two taps each. */
static int sets_of(const mica_conv_sm90_shape *s)
{
    return (int)(s->g.tap[0] + 1) / 2;
}

static int64_t filter_bytes(const mica_conv_sm90_shape *s)
{
    return mica_conv_sm90_taps(s) * (s->g.tap[0] + 2) * BLOCK;
}

static int64_t slab_width(const mica_conv_sm90_shape *s)
{
    return ACROSS + (s->g.tap[2] - 1) * s->tap_step[2];
}

static int64_t slab_height(const mica_conv_sm90_shape *s, int height)
{
    return height + (s->g.tap[1] - 1) * s->tap_step[1];
}

/* wgrad: a slab for each set, and two planes of b. */
static int64_t slot_bytes(const mica_conv_sm90_shape *s, int height)
{
    int64_t slab = (slab_width(s) * slab_height(s, height) * PIXEL + 1023) / 1024 * 1024;
    return s->roles.wgrad ? sets_of(s) * slab + 2 * ACROSS * height * PIXEL : slab;
}

/* Half of them for each warpgroup; wgrad: for all. */
static int slots_of(const mica_conv_sm90_shape *s, const mica_device_info *device, int height)
{
    int64_t room = device->shared_bytes - SHARED_RESERVE - (s->roles.wgrad ? 0 : filter_bytes(s));
    int64_t slots = room < 0 ? 0 : room / slot_bytes(s, height);
    if (slots > MOST_SLOTS) slots = MOST_SLOTS;
    return (int)(s->roles.wgrad ? slots : slots / 2 * 2);
}

static bool fits(const mica_conv_sm90_shape *s, const mica_device_info *device, int height)
{
    return slab_width(s) <= 256 && slab_height(s, height) <= 256 &&
           slots_of(s, device, height) >= (s->roles.wgrad ? WGRAD_SLOTS : DIRECT_SLOTS);
}

/* ---- which problems ---- */

static mica_status shape_ok(const mica_conv_sm90_shape *s, const mica_device_info *device,
                            mica_why *why)
{
    const mica_conv_geometry *g = &s->g;
    if (s->axes != 3) return mica_refuse(why, "%d spatial dimensions, this engine has 3", s->axes);
    if (g->stride[0] != 1 || g->stride[1] != 1 || g->stride[2] != 1)
        return mica_refuse(why, "the stride is %lld x %lld x %lld, this engine's is 1",
                           g->stride[0], g->stride[1], g->stride[2]);
    if (g->c > CHANNELS || g->k > CHANNELS)
        return mica_refuse(why, "%lld and %lld channels, this engine holds %d", g->c, g->k,
                           CHANNELS);
    if (g->tap[0] > 1 && s->tap_step[0] != 1)
        return mica_refuse(why, "a dilation of %d between planes, this engine's is 1",
                           s->tap_step[0]);
    if (s->roles.wgrad &&
        (g->tap[1] > WGRAD_TAPS_DOWN || sets_of(s) * g->tap[2] * CHANNELS / 2 > WGRAD_SUMS))
        return mica_refuse(why,
                           "%lld x %lld x %lld taps, this engine's wgrad holds %d down and %d sums "
                           "of a thread",
                           g->tap[0], g->tap[1], g->tap[2], WGRAD_TAPS_DOWN, WGRAD_SUMS);
    if (!fits(s, device, heights[0]))
        return mica_refuse(why,
                           "%lld x %lld x %lld taps at distance %d x %d do not fit shared memory",
                           g->tap[0], g->tap[1], g->tap[2], s->tap_step[1], s->tap_step[2]);
    return MICA_OK;
}

static mica_status make_shape(const mica_conv_desc *d, const mica_device_info *device,
                              mica_conv_sm90_shape *s, mica_why *why)
{
    if (device->arch != 90)
        return mica_refuse(why, "the device is sm_%d, this engine is for sm_90", device->arch);
    MICA_TRY(mica_conv_sm90_shape_make(d, 0, s, why));
    MICA_TRY(shape_ok(s, device, why));
    return s->roles.wgrad ? MICA_OK : mica_conv_sm90_result_ok(s, d, why);
}

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    mica_conv_sm90_shape s;
    MICA_TRY(conv_refuse_full_epilogue(desc, why));
    return make_shape(desc, device, &s, why);
}

/* ---- configs and their cost ---- */

/* Of planes. wgrad: of a plane of b and the next; the first of them has none. */
static int64_t deep_of(const mica_conv_sm90_shape *s)
{
    return s->roles.wgrad ? s->g.out[0] + (s->g.tap[0] > 1)
                          : conv_ceil_div(mica_conv_sm90_size(s)[0], PLANES);
}

static int64_t tiles_of(const mica_conv_sm90_shape *s, int height)
{
    const long long *size = mica_conv_sm90_size(s);
    return s->g.n * deep_of(s) * conv_ceil_div(size[1], height) * conv_ceil_div(size[2], ACROSS);
}

/* Terms of a tap, by 16. */
static int steps_of(const mica_conv_sm90_shape *s)
{
    return (int)conv_ceil_div(mica_conv_sm90_terms(s), 16);
}

static double cycles_of(const mica_conv_sm90_shape *s, const mica_device_info *device, int height)
{
    double planes = (double)s->g.tap[0] + PLANES - 1;
    double each = ceil((double)tiles_of(s, height) / device->units);
    double products = planes * mica_conv_sm90_taps(s) * steps_of(s) * 4.0 * height;
    double fill = planes * (double)slot_bytes(s, height) / 34.6;
    double filter = 1000 + (double)filter_bytes(s) / 34.6;
    return each * (fmax(products, fill) * 1.05 + 200 + planes * 60) + filter + 8.0 * height;
}

static double wgrad_cycles_of(const mica_conv_sm90_shape *s, const mica_device_info *device,
                              int height)
{
    double each = ceil((double)tiles_of(s, height) / device->units);
    double products = (double)(sets_of(s) * mica_conv_sm90_taps(s)) * 8.0 * height;
    double fill = (double)slot_bytes(s, height) / 34.6;
    double sums = 8000 + (double)(s->g.tap[0] * mica_conv_sm90_taps(s)) * 500;
    return each * (fmax(products, fill) * 1.05 + 200) + sums;
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    mica_conv_sm90_shape s;
    mica_why why;
    if (make_shape(desc, device, &s, &why) != MICA_OK) return 0;
    const double hertz = 1.56e9, launch_ms = 4e-3; /* the clock that a busy chip keeps */
    const double copying = 0.85;
    int height = config->knob[HEIGHT];
    double cycles =
        s.roles.wgrad ? wgrad_cycles_of(&s, device, height) : cycles_of(&s, device, height);
    return launch_ms + mica_conv_sm90_residual_ms(&s, device) +
           fmax(cycles / hertz * 1e3, mica_roofline_ms(&mica_op_conv, desc, device) / copying);
}

static int make_configs(const void *desc, const mica_device_info *device, mica_config *configs)
{
    mica_conv_sm90_shape s;
    mica_why why;
    int count = 0;
    if (make_shape(desc, device, &s, &why) != MICA_OK) return 0;
    for (size_t i = 0; i < sizeof heights / sizeof *heights; i++)
        if (fits(&s, device, heights[i])) configs[count++] = (mica_config){{heights[i]}};
    return count;
}

static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    (void)config;
    c->truncates = true;
    c->k_inst = 16;
    if (((const mica_conv_desc *)desc)->pass != MICA_CONV_WGRAD) return;
    c->n_outer += 132;
    c->spreads = true; /* planes and pixels past b's end are zeros that are multiplied */
}

/* ---- build ---- */

static void fill_args(const mica_conv_desc *d, state *s, int height)
{
    const mica_conv_sm90_shape *h = &s->sm90.shape;
    const mica_conv_class *c = &h->classes[0];
    const long long *size = mica_conv_sm90_size(h);
    conv_volume_args *a = &s->args;
    a->across = (int)conv_ceil_div(size[2], ACROSS);
    a->down = (int)conv_ceil_div(size[1], height);
    a->deep = (int)deep_of(h);
    a->tiles = (int)tiles_of(h, height);
    for (int i = 0; i < 3; i++) {
        a->start[i] = c->start[i];
        a->tap[i] = c->filter[i];
        a->tap_step[i] = c->filter_step[i];
        a->size[i] = (int)size[i];
    }
    a->channels = (int)mica_conv_sm90_columns(h);
    a->to = *mica_conv_sm90_strides(h);
    a->residual = h->g.residual;
    mica_conv_epilogue_args(d, &a->epilogue);
}

static void fill_maps(const mica_conv_desc *d, state *s, int height)
{
    const mica_conv_sm90_shape *h = &s->sm90.shape;
    int tall = (int)slab_height(h, height);
    mica_conv_sm90_window_map(h, !h->roles.dgrad, CHANNELS, (int)slab_width(h), tall,
                              &s->sm90.image[0]);
    if (h->roles.wgrad) {
        mica_conv_sm90_window_map(h, false, CHANNELS, ACROSS, height, &s->sm90.other);
        s->sm90.other.box[3] = PLANES;
        return;
    }
    mica_conv_sm90_window_map(h, h->roles.dgrad, CHANNELS, ACROSS, height, &s->sm90.result);
    mica_conv_sm90_residual_map(h, d, &s->sm90.result, &s->sm90.residual);
    mica_conv_sm90_filter_map(h, d, CHANNELS, CHANNELS, &s->sm90.other);
}

static void write_prologue(const mica_conv_desc *d, const state *s, int height, int slots,
                           mica_text *p)
{
    const mica_conv_sm90_shape *h = &s->sm90.shape;
    bool wgrad = h->roles.wgrad;
    mica_wgmma mma = {.n = wgrad ? CHANNELS * (int)h->g.tap[2] : ACROSS * height,
                      .a = h->in,
                      .b = h->in,
                      .a_mn_major = wgrad || h->filter_mn,
                      .b_mn_major = wgrad};
    if (!wgrad) {
        mica_epilogue e = mica_conv_epilogue(d);
        mica_prologue_epilogue(p, &e);
        mica_prologue_int(p, "FILTER_MN", h->filter_mn);
        mica_prologue_int(p, "RESIDUAL", mica_tensor_given(&d->residual));
        mica_prologue_int(p, "RESIDUAL_MAP", s->sm90.residual.rank > 0);
        mica_prologue_int(p, "STEPS", steps_of(h));
    }
    mica_prologue_int(p, "TAPS_DEEP", h->g.tap[0]);
    mica_prologue_int(p, "TAPS_DOWN", h->g.tap[1]);
    mica_prologue_int(p, "TAPS_ACROSS", h->g.tap[2]);
    mica_prologue_int(p, "STEP_DOWN", h->tap_step[1]);
    mica_prologue_int(p, "STEP_ACROSS", h->tap_step[2]);
    mica_prologue_int(p, "HEIGHT", height);
    mica_prologue_int(p, "SLOTS", slots);
    mica_prologue_type(p, "in_t", h->in);
    mica_prologue_wgmma(p, "mma", &mma);
}

static mica_status add_kernel(mica_plan *plan, state *s)
{
    const mica_conv_sm90_shape *h = &s->sm90.shape;
    bool wgrad = h->roles.wgrad;
    char buffer[PROLOGUE] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    int height = plan->config.knob[HEIGHT], slots = slots_of(h, &plan->device, height);
    int units = plan->device.units;
    write_prologue(plan->desc, s, height, slots, &p);
    int64_t shared = slots * slot_bytes(h, height) + (wgrad ? 0 : filter_bytes(h)) + 1024;
    s->sm90.grid = (mica_grid){.grid = {(unsigned)(s->args.tiles < units ? s->args.tiles : units)},
                               .block = {wgrad ? WGRAD_THREADS : DIRECT_THREADS},
                               .dynamic_shared = (unsigned)shared};
    mica_kernel_spec spec = {wgrad ? "ops/conv/slab/volume_wgrad.cu" : "ops/conv/slab/volume.cu",
                             wgrad ? "conv_volume_wgrad" : "conv_volume", p.data, shared};
    return mica_plan_add_kernel(plan, &spec, &s->sm90.kernel);
}

static mica_status build(mica_plan *plan)
{
    const mica_conv_desc *d = plan->desc;
    state *s;
    mica_why why = {""};
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    const mica_conv_sm90_shape *h = &s->sm90.shape;
    if (make_shape(d, &plan->device, &s->sm90.shape, &why) != MICA_OK)
        return mica_fail(MICA_UNSUPPORTED, "%s", why.text);
    fill_args(d, s, plan->config.knob[HEIGHT]);
    fill_maps(d, s, plan->config.knob[HEIGHT]);
    MICA_TRY(add_kernel(plan, s));
    if (h->roles.wgrad)
        MICA_TRY(
            mica_conv_sm90_reduce_build(plan, h, (int)s->sm90.grid.grid[0],
                                        (int)h->g.tap[0] * mica_conv_sm90_taps(h) * MICA_CONV_BLOCK,
                                        MICA_CONV_BLOCK, NULL, &s->sm90.reduce));
    return conv_generic_build(plan, &s->sm90.generic);
}

/* ---- run ---- */

static mica_status run_volume(const mica_plan *plan, const state *s, const mica_run *r)
{
    const conv_sm90_plan *p = &s->sm90;
    const mica_conv_roles *roles = &p->shape.roles;
    conv_volume_args a = s->args;
    MICA_TRY(conv_sm90_encode(plan, p, r, &a.image, &a.other, &a.result));
    MICA_TRY(conv_sm90_encode_residual(plan, p, r, &a.residual_map, &a.wide));
    a.out = r->args[roles->out];
    a.alpha = (float)mica_run_scalar(plan, r, MICA_CONV_ALPHA);
    a.beta = (float)mica_run_scalar(plan, r, MICA_CONV_BETA);
    mica_epilogue_bind(&a.epilogue, r->args, MICA_CONV_BIAS);
    if (roles->wgrad) a.partial = mica_at(r, p->reduce.partial);
    return conv_sm90_launch(plan, p, r, &a);
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    return conv_sm90_aligned(&s->sm90, r) ? run_volume(plan, s, r)
                                          : conv_generic_run(&s->sm90.generic, r);
}

const mica_engine mica_conv_volume = {.name = "sm90_volume",
                                      .cuda = true,
                                      .knobs = knobs,
                                      .accepts = accepts,
                                      .configs = make_configs,
                                      .predict = predict,
                                      .contract = contract,
                                      .build = build,
                                      .run = run};
