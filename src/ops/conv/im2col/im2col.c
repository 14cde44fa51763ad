/* SPDX-License-Identifier: Apache-2.0
 * Engine "sm90_im2col": bf16 and f16 on Hopper's tensor cores, the image gathered by TMA
 * as each tap sees it. Channels last, multiples of 8 channels, one group; forward, dgrad
 * with any strides (one class of pixels for each remainder), wgrad with partial sums in workspace,
 * or in the shared memory of a cluster, added in a fixed order; wgrad also by groups and, of 1x1
 * filters, with each channel's pixels side by side. Warpgroups share a tile or ping-pong;
 * where these are few the blocks of a cluster share the sum; after 1x1 filters the filter stays in
 * shared memory and images are one row of pixels. At the tensor rate from some 128 channels; below,
 * the image is read from L2 once for each tap and that is the limit. Statistics are formed as y is
 * stored, each block's own in workspace; sums shared by a cluster have none. Pointers that are not
 * multiples of 16 bytes go to the generic engine, which the plan holds for them. */
#include "ops/conv/im2col/im2col_cost.h"
#include "ops/conv/im2col/im2col_run.h"

#include <string.h>

enum { THREADS = 384, MAX_STAGES = 8, PROLOGUE = 16384 };

static const char *const knobs[] = {"rows",  "cols", "splits",  "pieces",
                                    "turns", "held", "cluster", NULL};

typedef struct state {
    conv_sm90_plan sm90; /* image: by class */
    union {
        mica_conv_sm90_args direct;
        mica_conv_sm90_wgrad_args wgrad;
    } args;
} state;

/* From pixel to pixel of a class of the result. */
static mica_conv_strides result_strides(const mica_conv_sm90_shape *s)
{
    mica_conv_strides to = *mica_conv_sm90_strides(s);
    for (int i = 0; i < 3; i++) to.s[i] *= s->roles.dgrad ? s->g.stride[i] : 1;
    return to;
}

/* Results stored at once: 16 bytes of 16-bit ones, pairs of f32, where addresses allow it. */
static int store_width(const mica_conv_sm90_shape *s)
{
    int width = s->out == MICA_F32 ? 2 : 8;
    mica_conv_strides to = result_strides(s);
    int64_t steps = mica_conv_sm90_columns(s) | to.n | to.s[0] | to.s[1] | to.s[2];
    for (int i = 0; i < s->class_count; i++) steps |= s->classes[i].out;
    return to.c == 1 && mica_access_fit(width, steps) == width ? width : 1;
}

/* Whether the residual may be read as results are stored. */
static bool reads_wide(const mica_conv_sm90_shape *s)
{
    return s->residual_wide && store_width(s) == 8;
}

/* TMA starts at multiples of 16 bytes of a pixel. */
static mica_status groups_ok(const mica_conv_geometry *g, mica_why *why)
{
    if (g->groups == 1 || (g->c % 8 == 0 && g->k % 8 == 0)) return MICA_OK;
    return mica_refuse(why, "groups of %lld to %lld channels, this engine takes multiples of 8",
                       (long long)g->c, (long long)g->k);
}

static mica_status make_shape(const mica_conv_desc *d, mica_conv_sm90_shape *s, mica_why *why)
{
    int takes = MICA_CONV_SM90_MERGED;
    if (mica_conv_roles_of(d).wgrad) takes |= MICA_CONV_SM90_PLANES | MICA_CONV_SM90_GROUPS;
    MICA_TRY(mica_conv_sm90_shape_make(d, takes, s, why));
    return groups_ok(&s->g, why);
}

static mica_status stats_ok(const mica_conv_sm90_shape *s, const mica_device_info *device,
                            mica_why *why)
{
    if (s->class_count == 0)
        return mica_refuse(why, "y is empty: its statistics are left to other engines");
    mica_config configs[MICA_MAX_CONFIGS];
    if (mica_conv_sm90_configs(s, device, configs) == 0)
        return mica_refuse(why, "%lld channels, too many pixels of each for sums of f32",
                           (long long)mica_conv_sm90_columns(s));
    return MICA_OK;
}

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    mica_conv_sm90_shape s;
    MICA_TRY(conv_refuse_quantised_epilogue(desc, why));
    if (device->arch != 90)
        return mica_refuse(why, "the device is sm_%d, this engine is for sm_90", device->arch);
    MICA_TRY(make_shape(desc, &s, why));
    return s.stats ? stats_ok(&s, device, why) : MICA_OK;
}

/* ---- configs and their cost: im2col_cost.c ---- */

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    mica_conv_sm90_shape s;
    mica_why why;
    if (make_shape(desc, &s, &why) != MICA_OK || s.class_count == 0) return 0;
    return mica_conv_sm90_predict(&s, device, config);
}

static int make_configs(const void *desc, const mica_device_info *device, mica_config *configs)
{
    mica_conv_sm90_shape s;
    mica_why why;
    if (make_shape(desc, &s, &why) != MICA_OK) return 0;
    return mica_conv_sm90_configs(&s, device, configs);
}

static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    mica_conv_sm90_shape s;
    mica_why why;
    c->truncates = true;
    c->k_inst = 16;
    if (make_shape(desc, &s, &why) != MICA_OK || s.class_count == 0) return;
    c->n_outer += mica_conv_sm90_parts(&s, config) - 1;
}

/* ---- build ---- */

/* A kernel with as many stages as fit beside `other` bytes of shared memory. */
static mica_status add_ring_kernel(mica_plan *plan, state *s, const char *file, const char *entry,
                                   mica_text *p, const mica_wgmma *mma, int stage_bytes, int other)
{
    const int32_t *knob = plan->config.knob;
    int stages = (int)(plan->device.shared_bytes - MICA_CONV_RESERVE - other) / stage_bytes;
    if (stages > MAX_STAGES) stages = MAX_STAGES;
    mica_prologue_int(p, "AXES", s->sm90.shape.axes);
    mica_prologue_int(p, "BM", knob[MICA_CONV_ROWS]);
    mica_prologue_int(p, "BN", knob[MICA_CONV_COLS]);
    mica_prologue_int(p, "STAGES", stages);
    mica_prologue_type(p, "in_t", s->sm90.shape.in);
    mica_prologue_wgmma(p, "mma", mma);
    int64_t shared = (int64_t)stages * stage_bytes + other + 1024;
    s->sm90.grid = (mica_grid){.block = {THREADS}, .dynamic_shared = (unsigned)shared};
    mica_kernel_spec spec = {file, entry, p->data, shared};
    return mica_plan_add_kernel(plan, &spec, &s->sm90.kernel);
}

static unsigned at_most(int n, int limit)
{
    return (unsigned)(n < limit ? n : limit);
}

static mica_status build_stats(mica_plan *plan, state *s)
{
    if (!s->sm90.shape.stats) return MICA_OK;
    unsigned parts = s->sm90.grid.grid[0] / (unsigned)s->args.direct.col_tiles;
    return conv_stats_build_parts(plan, parts, &s->sm90.stats);
}

static void fill_direct(const mica_plan *plan, state *s)
{
    const mica_conv_desc *d = plan->desc;
    const mica_conv_sm90_shape *h = &s->sm90.shape;
    mica_conv_sm90_args *a = &s->args.direct;
    a->terms = (int)mica_conv_sm90_terms(h);
    a->cols = (int)mica_conv_sm90_columns(h);
    a->to = result_strides(h);
    a->residual = h->g.residual;
    for (int i = 0; i < 3; i++) {
        a->residual.s[i] *= h->roles.dgrad ? h->g.stride[i] : 1;
        a->step[i] = h->step[i];
        a->tap_step[i] = h->tap_step[i];
    }
    a->class_count = h->class_count;
    a->col_tiles = (int)conv_ceil_div(a->cols, plan->config.knob[MICA_CONV_COLS]);
    for (int i = 0; i < h->class_count; i++) {
        a->classes[i] = h->classes[i];
        a->classes[i].first_tile = a->tiles;
        a->tiles += (int)conv_ceil_div(h->classes[i].pixels, plan->config.knob[MICA_CONV_ROWS]) *
                    a->col_tiles;
    }
    mica_conv_epilogue_args(d, &a->epilogue);
}

static bool has_taps(const mica_conv_class *c)
{
    return c->taps[0] > 0;
}

static mica_status add_direct_kernel(mica_plan *plan, state *s, mica_text *p, const mica_wgmma *mma,
                                     int slice)
{
    const int32_t *knob = plan->config.knob;
    int stage = (knob[MICA_CONV_ROWS] + knob[MICA_CONV_COLS]) * MICA_CONV_ROW;
    int tiles = s->args.direct.tiles, splits = knob[MICA_CONV_SPLITS];
    mica_prologue_int(p, "SPLITS", splits);
    mica_prologue_int(p, "TURNS", knob[MICA_CONV_PINGPONG]);
    MICA_TRY(add_ring_kernel(plan, s, "ops/conv/im2col/im2col.cu", "conv_sm90", p, mma, stage,
                             mica_conv_sm90_staging(slice)));
    int most = mica_conv_sm90_blocks(&s->sm90.shape, knob[MICA_CONV_COLS], plan->device.units);
    s->sm90.grid.grid[0] = splits > 1 ? (unsigned)(tiles * splits) : at_most(tiles, most);
    s->sm90.grid.cluster = splits > 1 ? (unsigned)splits : 0;
    return MICA_OK;
}

static mica_status add_short_kernel(mica_plan *plan, state *s, mica_text *p, const mica_wgmma *mma,
                                    int slice)
{
    const int32_t *knob = plan->config.knob;
    int cols = s->args.direct.col_tiles, rows = s->args.direct.tiles / cols;
    int steps = (int)mica_conv_sm90_steps(&s->sm90.shape, 0);
    mica_prologue_int(p, "STEPS", steps);
    MICA_TRY(add_ring_kernel(plan, s, "ops/conv/im2col/im2col_short.cu", "conv_sm90_short", p, mma,
                             knob[MICA_CONV_ROWS] * MICA_CONV_ROW,
                             steps * knob[MICA_CONV_COLS] * MICA_CONV_ROW +
                                 mica_conv_sm90_staging(slice)));
    s->sm90.grid.grid[0] = at_most(rows, plan->device.units / cols) * (unsigned)cols;
    return MICA_OK;
}

static mica_status build_direct(mica_plan *plan, state *s, mica_text *p)
{
    const mica_conv_sm90_shape *h = &s->sm90.shape;
    const mica_conv_desc *d = plan->desc;
    const int32_t *knob = plan->config.knob;
    mica_epilogue e = mica_conv_epilogue(d);
    fill_direct(plan, s);
    for (int i = 0; i < h->class_count; i++)
        if (has_taps(&h->classes[i]))
            mica_conv_sm90_image_map(h, i, knob[MICA_CONV_ROWS], &s->sm90.image[i]);
    mica_conv_sm90_filter_map(h, d, MICA_CONV_BLOCK, knob[MICA_CONV_COLS], &s->sm90.other);
    mica_prologue_epilogue(p, &e);
    mica_prologue_int(p, "PACKED_VECTORS", mica_epilogue_is_packed(&e));
    mica_prologue_int(p, "FILTER_MN", h->filter_mn);
    mica_prologue_int(p, "VECTOR", store_width(h));
    mica_prologue_int(p, "STATS", h->stats);
    mica_prologue_int(p, "RESIDUAL", h->residual);
    mica_prologue_int(p, "RESIDUAL_WIDE", reads_wide(h));
    mica_prologue_type(p, "out_t", h->out);
    mica_wgmma mma = {
        .n = knob[MICA_CONV_COLS], .a = h->in, .b = h->in, .b_mn_major = h->filter_mn};
    int slice = mica_conv_sm90_slice(h, &plan->config);
    mica_prologue_int(p, "SLICE", slice);
    MICA_TRY(knob[MICA_CONV_HELD] ? add_short_kernel(plan, s, p, &mma, slice)
                                  : add_direct_kernel(plan, s, p, &mma, slice));
    return build_stats(plan, s);
}

static void fill_wgrad(const mica_plan *plan, state *s)
{
    const mica_conv_sm90_shape *h = &s->sm90.shape;
    const mica_conv_class *c = &h->classes[0];
    const int32_t *knob = plan->config.knob;
    mica_conv_sm90_wgrad_args *a = &s->args.wgrad;
    for (int i = 0; i < 3; i++) {
        a->count[i] = c->count[i];
        a->start[i] = c->start[i];
        a->step[i] = h->step[i];
        a->tap_step[i] = h->tap_step[i];
    }
    mica_conv_sm90_tiles t =
        mica_conv_sm90_wgrad_tiles(h, knob[MICA_CONV_ROWS], knob[MICA_CONV_COLS]);
    if (h->planes) a->count[2] = (int)conv_ceil_div(h->g.out[2], MICA_CONV_BLOCK) * MICA_CONV_BLOCK;
    a->rows = (int)h->g.k;
    a->blocks = (int)t.blocks;
    a->splits = knob[MICA_CONV_SPLITS];
    a->row_tiles = (int)t.rows;
    a->group_tiles = (int)(t.rows / h->g.groups);
    a->col_tiles = (int)t.cols;
    a->filter = mica_conv_sm90_filter_of(&h->g);
}

/* Whether blocks of the reduction may come while others still store their sums: 5 to 7 % less, but
 * with several taps of a large image up to 6 % more, for a reason that was not found. */
static bool reduces_early(const mica_conv_sm90_shape *s, int blocks)
{
    enum { SMALL_BLOCKS = 64 };
    const int *taps = s->classes[0].taps;
    return taps[0] * taps[1] * taps[2] == 1 || blocks <= SMALL_BLOCKS;
}

static mica_status build_wgrad(mica_plan *plan, state *s, mica_text *p)
{
    const mica_conv_sm90_shape *h = &s->sm90.shape;
    const int32_t *knob = plan->config.knob;
    fill_wgrad(plan, s);
    const mica_conv_sm90_wgrad_args *a = &s->args.wgrad;
    mica_conv_sm90_image_map(h, 0, MICA_CONV_BLOCK, &s->sm90.image[0]);
    mica_conv_sm90_grad_map(h, MICA_CONV_BLOCK, &s->sm90.other);
    mica_wgmma mma = {.n = knob[MICA_CONV_COLS] > 256 ? knob[MICA_CONV_COLS] / 2
                                                      : knob[MICA_CONV_COLS],
                      .a = h->in,
                      .b = h->in,
                      .a_mn_major = !h->planes,
                      .b_mn_major = !h->planes};
    mica_prologue_int(p, "GROUPS", h->g.groups > 1);
    mica_prologue_int(p, "PLANES", h->planes);
    mica_prologue_int(p, "WIDTH", mma.n);
    mica_prologue_int(p, "STREAM", knob[MICA_CONV_PIECES] > 0);
    mica_prologue_int(p, "CLUSTER", knob[MICA_CONV_CLUSTER] ? a->splits : 0);
    mica_prologue_int(p, "EARLY", reduces_early(h, a->blocks));
    mica_conv_sm90_filter_prologue(h, p);
    int tiles = a->row_tiles * a->col_tiles;
    mica_conv_stream stream = {.pieces = knob[MICA_CONV_PIECES],
                               .blocks = a->blocks,
                               .tile_rows = knob[MICA_CONV_ROWS],
                               .tile_cols = knob[MICA_CONV_COLS],
                               .col_tiles = a->col_tiles,
                               .group_rows = a->rows,
                               .group_tiles = a->group_tiles,
                               .length = (long long)tiles * a->blocks};
    MICA_TRY(add_ring_kernel(plan, s, "ops/conv/im2col/im2col_wgrad.cu", "conv_sm90_wgrad", p, &mma,
                             (knob[MICA_CONV_ROWS] + knob[MICA_CONV_COLS]) * MICA_CONV_ROW, 0));
    if (knob[MICA_CONV_CLUSTER]) {
        s->sm90.grid.grid[0] = (unsigned)(tiles * a->splits);
        s->sm90.grid.cluster = a->splits > 1 ? (unsigned)a->splits : 0;
        return MICA_OK;
    }
    s->sm90.grid.grid[0] = knob[MICA_CONV_PIECES] > 0
                               ? (unsigned)knob[MICA_CONV_PIECES]
                               : at_most(tiles * a->splits, plan->device.units);
    int pitch = (int)conv_ceil_div(h->g.c, MICA_CONV_BLOCK) * MICA_CONV_BLOCK;
    return mica_conv_sm90_reduce_build(plan, h, mica_conv_sm90_parts(h, &plan->config),
                                       a->col_tiles * knob[MICA_CONV_COLS], pitch, &stream,
                                       &s->sm90.reduce);
}

static mica_status build(mica_plan *plan)
{
    const mica_conv_desc *d = plan->desc;
    state *s;
    mica_why why = {""};
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    const mica_conv_sm90_shape *h = &s->sm90.shape;
    if (make_shape(d, &s->sm90.shape, &why) != MICA_OK)
        return mica_fail(MICA_UNSUPPORTED, "%s", why.text);
    if (h->class_count == 0) return MICA_OK;
    char buffer[PROLOGUE] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    MICA_TRY(h->roles.wgrad ? build_wgrad(plan, s, &p) : build_direct(plan, s, &p));
    return conv_generic_build(plan, &s->sm90.generic);
}

/* ---- run ---- */

static mica_status run_direct(const mica_plan *plan, const state *s, const mica_run *r)
{
    const conv_sm90_plan *p = &s->sm90;
    mica_conv_sm90_args a = s->args.direct;
    MICA_TRY(conv_sm90_encode(plan, p, r, a.image, &a.filter, NULL));
    a.out = r->args[p->shape.roles.out];
    a.alpha = (float)mica_run_scalar(plan, r, MICA_CONV_ALPHA);
    a.beta = (float)mica_run_scalar(plan, r, MICA_CONV_BETA);
    mica_epilogue_bind(&a.epilogue, r->args, MICA_CONV_BIAS);
    a.wide = reads_wide(&p->shape) && a.beta == 0 && mica_access_starts(a.epilogue.residual, 16);
    if (p->shape.stats) a.partial = conv_stats_partial(&p->stats, r);
    return conv_sm90_launch(plan, p, r, &a);
}

static mica_status run_wgrad(const mica_plan *plan, const state *s, const mica_run *r)
{
    const conv_sm90_plan *p = &s->sm90;
    mica_conv_sm90_wgrad_args a = s->args.wgrad;
    MICA_TRY(conv_sm90_encode(plan, p, r, &a.image, &a.grad, NULL));
    if (plan->config.knob[MICA_CONV_CLUSTER])
        mica_conv_sm90_filter_bind(plan, r, p->shape.roles.out, &a.filter);
    else
        a.partial = mica_at(r, p->reduce.partial);
    return conv_sm90_launch(plan, p, r, &a);
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    if (!conv_sm90_aligned(&s->sm90, r)) return conv_generic_run(&s->sm90.generic, r);
    return s->sm90.shape.roles.wgrad ? run_wgrad(plan, s, r) : run_direct(plan, s, r);
}

const mica_engine mica_conv_sm90 = {.name = "sm90_im2col",
                                    .cuda = true,
                                    .knobs = knobs,
                                    .accepts = accepts,
                                    .configs = make_configs,
                                    .predict = predict,
                                    .contract = contract,
                                    .build = build,
                                    .run = run};
