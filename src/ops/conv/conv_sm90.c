/* SPDX-License-Identifier: Apache-2.0
 * Engine "sm90_im2col": bf16 and f16 on Hopper's matrix units, the image gathered by the copy
 * engine as each tap sees it. Channels last, multiples of 8 channels, one group; forward, dgrad
 * with any strides (one class of pixels for each remainder), wgrad with partial sums in workspace,
 * added in a fixed order. At the tensor rate from some 128 channels; below, the image is read from
 * L2 once for each tap and that is the limit. Pointers that are not multiples of 16 bytes go to the
 * generic engine, which the plan holds for them. */
#include "ops/conv/sm90_shape.h"

#include <math.h>
#include <string.h>

enum { THREADS = 384, MAX_STAGES = 8, MAX_CLUSTER = 8, PROLOGUE = 16384 };
/* Left of a block's shared memory for barriers and for placing the ring at a multiple of 1024. */
enum { SHARED_RESERVE = 2048 };

enum { ROWS, COLS, SPLITS, PIECES };
static const char *const knobs[] = {"rows", "cols", "splits", "pieces", NULL};

typedef struct state {
    mica_conv_sm90_shape shape;
    mica_tensor_map_spec image[MICA_CONV_CLASSES], other; /* other: filter, or grad */
    mica_kernel *kernel;
    mica_grid grid;
    mica_plan *generic; /* for misaligned pointers */
    size_t generic_at;
    mica_conv_sm90_reduce reduce;
    union {
        mica_conv_sm90_args direct;
        mica_conv_sm90_wgrad_args wgrad;
    } args;
} state;

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    mica_conv_sm90_shape s;
    if (device->arch != 90)
        return mica_refuse(why, "the device is sm_%d, this engine is for sm_90", device->arch);
    return mica_conv_sm90_shape_make(desc, true, &s, why);
}

/* ---- configs and their cost ---- */

static int64_t tiles_of(int64_t n, int64_t tile)
{
    return (n + tile - 1) / tile;
}

/* Cycles of one stage of a block: products, what only this block reads from L2 (34 bytes a cycle),
 * and all that fills its shared memory beside the products (45). */
static double stage_cycles(int rows, int cols)
{
    double products = rows * cols / 32.0, image = rows * 128 / 34.6,
           fill = (rows + cols) * 128 / 45.0;
    return fmax(products, fmax(image, fill));
}

static double milliseconds(double cycles)
{
    const double hertz = 1.56e9, launch_ms = 4e-3; /* the clock that a busy chip keeps */
    return cycles / hertz * 1e3 + launch_ms;
}

static int64_t steps_of(const mica_conv_sm90_shape *s, int class_index)
{
    bool dgrad = s->roles.kind == MICA_CONV_KIND_DGRAD;
    const int *taps = s->classes[class_index].taps;
    return taps[0] * taps[1] * taps[2] * tiles_of(dgrad ? s->g.k : s->g.c, MICA_CONV_BLOCK);
}

static int64_t columns_of(const mica_conv_sm90_shape *s)
{
    return s->roles.kind == MICA_CONV_KIND_DGRAD ? s->g.c : s->g.k;
}

static int64_t direct_tile_count(const mica_conv_sm90_shape *s, int rows, int cols)
{
    int64_t tiles = 0;
    for (int i = 0; i < s->class_count; i++) tiles += tiles_of(s->classes[i].pixels, rows);
    return tiles * tiles_of(columns_of(s), cols);
}

static double direct_cycles(const mica_conv_sm90_shape *s, int rows, int cols, int splits,
                            int units)
{
    double columns = (double)tiles_of(columns_of(s), cols), work = 0, longest = 0;
    for (int i = 0; i < s->class_count; i++) {
        double steps = (double)tiles_of(steps_of(s, i), splits);
        double tile = steps * stage_cycles(rows, cols) + 0.06 * rows * cols + 300;
        if (splits > 1) tile += 1500 + 0.06 * rows * cols;
        work += (double)tiles_of(s->classes[i].pixels, rows) * columns * splits * tile;
        longest = fmax(longest, tile);
    }
    /* whole waves of the longest tile, or the mean where tiles are many */
    return ceil(work / longest / units) * longest;
}

typedef struct wgrad_tiles {
    int64_t rows, cols, all, blocks; /* blocks of pixels */
} wgrad_tiles;

static wgrad_tiles wgrad_tiles_of(const mica_conv_sm90_shape *s, int rows, int cols)
{
    const long long *tap = s->g.tap;
    int64_t chunks = tap[0] * tap[1] * tap[2] * tiles_of(s->g.c, 64);
    wgrad_tiles t = {.rows = tiles_of(s->g.k, rows), .cols = tiles_of(chunks * 64, cols)};
    t.all = t.rows * t.cols;
    t.blocks = s->class_count ? tiles_of(s->classes[0].pixels, MICA_CONV_BLOCK) : 0;
    return t;
}

/* Of a stream: one piece for each multiprocessor. */
static int pieces_of(const wgrad_tiles *t, int units)
{
    return (int)(t->all * t->blocks < units ? t->all * t->blocks : units);
}

/* By parts of each tile or, if pieces is not 0, by a stream. */
static double wgrad_cycles(const mica_conv_sm90_shape *s, int rows, int cols, int splits,
                           int pieces, int units)
{
    wgrad_tiles t = wgrad_tiles_of(s, rows, cols);
    double stage = stage_cycles(rows, cols), store = 0.03 * rows * cols + 2500;
    double tile_bytes = rows * cols * 4.0, cycles, parts;
    if (pieces == 0) {
        double blocks = (double)tiles_of(t.blocks, splits);
        cycles = (double)tiles_of(t.all * splits, units) * (blocks * stage + store);
        parts = (double)(t.all * splits);
    } else {
        int64_t blocks = tiles_of(t.all * t.blocks, pieces);
        cycles = (double)blocks * stage + (double)(tiles_of(blocks, t.blocks) + 1) * store;
        parts = (double)(pieces + t.all);
    }
    /* partial sums: written by the blocks, read by the reduction */
    return cycles + parts * tile_bytes / 2000 + 4000;
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    mica_conv_sm90_shape s;
    mica_why why;
    if (mica_conv_sm90_shape_make(desc, true, &s, &why) != MICA_OK || s.class_count == 0) return 0;
    const int32_t *k = config->knob;
    double cycles = s.roles.kind == MICA_CONV_KIND_WGRAD
                        ? wgrad_cycles(&s, k[ROWS], k[COLS], k[SPLITS], k[PIECES], device->units)
                        : direct_cycles(&s, k[ROWS], k[COLS], k[SPLITS], device->units);
    return fmax(milliseconds(cycles), mica_roofline_ms(&mica_op_conv, desc, device));
}

static const int direct_tiles[][2] = {{128, 64},  {256, 64},  {128, 128},
                                      {256, 128}, {128, 192}, {128, 256}};
enum { WGRAD_CONFIGS = 3 };
static const int wgrad_tiles_tried[][2] = {{128, 128}, {128, 192}, {128, 256},
                                           {256, 128}, {256, 192}, {128, 384}};

/* Left out: tiles much wider than the result, and large ones where the smallest are no more than a
 * wave. */
static bool tile_suits(const mica_conv_sm90_shape *s, int rows, int cols, int units)
{
    int64_t columns = columns_of(s);
    int least = columns > 64 ? 128 : 64;
    bool few = direct_tile_count(s, 128, least) <= units;
    bool narrow = cols < least && !few, wide = cols > 64 && columns <= cols / 2;
    bool odd = cols == 192 && tiles_of(columns, 192) * 192 >= tiles_of(columns, 128) * 128;
    bool large = few && (rows > 128 || cols > least);
    return !narrow && !wide && !odd && !large;
}

/* Blocks of a cluster share a tile's steps where tiles alone leave multiprocessors idle. */
static bool splits_suit(const mica_conv_sm90_shape *s, int rows, int cols, int splits, int units)
{
    if (splits == 1) return true;
    int64_t tiles = direct_tile_count(s, rows, cols);
    return rows == 128 && cols <= 128 && tiles * splits / 2 < units && steps_of(s, 0) >= 2 * splits;
}

static int direct_configs(const mica_conv_sm90_shape *s, int units, mica_config *configs)
{
    int count = 0;
    for (size_t i = 0; s->class_count && i < sizeof direct_tiles / sizeof *direct_tiles; i++) {
        int rows = direct_tiles[i][0], cols = direct_tiles[i][1];
        if (!tile_suits(s, rows, cols, units)) continue;
        for (int splits = 1; splits <= MAX_CLUSTER; splits *= 2)
            if (splits_suit(s, rows, cols, splits, units))
                configs[count++] = (mica_config){{rows, cols, splits}};
    }
    if (!s->class_count) configs[count++] = (mica_config){{128, 128, 1}};
    return count;
}

/* The best way to share the pixels of these tiles out. */
static mica_config best_shares(const mica_conv_sm90_shape *s, int rows, int cols, int units,
                               double *cycles)
{
    wgrad_tiles t = wgrad_tiles_of(s, rows, cols);
    mica_config best = {{rows, cols, 1, pieces_of(&t, units)}};
    *cycles = wgrad_cycles(s, rows, cols, 1, best.knob[PIECES], units);
    for (int splits = 1; splits <= 2 * units && splits <= t.blocks; splits++) {
        double c = wgrad_cycles(s, rows, cols, splits, 0, units);
        if (c > *cycles) continue;
        *cycles = c;
        best = (mica_config){{rows, cols, splits, 0}};
    }
    return best;
}

/* The best tiles. */
static int wgrad_configs(const mica_conv_sm90_shape *s, int units, mica_config *configs)
{
    double cycles[WGRAD_CONFIGS];
    int count = 0;
    for (size_t i = 0; s->class_count && i < sizeof wgrad_tiles_tried / sizeof *wgrad_tiles_tried;
         i++) {
        int rows = wgrad_tiles_tried[i][0], cols = wgrad_tiles_tried[i][1];
        double c;
        if (rows > 128 && s->g.k <= 128) continue;
        mica_config config = best_shares(s, rows, cols, units, &c);
        int at = count < WGRAD_CONFIGS ? count++ : WGRAD_CONFIGS;
        for (; at > 0 && c < cycles[at - 1]; at--)
            if (at < WGRAD_CONFIGS) {
                cycles[at] = cycles[at - 1];
                configs[at] = configs[at - 1];
            }
        if (at == WGRAD_CONFIGS) continue;
        cycles[at] = c;
        configs[at] = config;
    }
    if (!s->class_count) configs[count++] = (mica_config){{128, 128, 1, 0}};
    return count;
}

static int make_configs(const void *desc, const mica_device_info *device, mica_config *configs)
{
    mica_conv_sm90_shape s;
    mica_why why;
    if (mica_conv_sm90_shape_make(desc, true, &s, &why) != MICA_OK) return 0;
    if (s.roles.kind == MICA_CONV_KIND_WGRAD) return wgrad_configs(&s, device->units, configs);
    return direct_configs(&s, device->units, configs);
}

/* Parts of the tile that the most pieces of a stream meet in. */
static int most_parts(const wgrad_tiles *t, int64_t pieces)
{
    int64_t most = 1, length = t->all * t->blocks;
    for (int64_t i = 0; i < t->all; i++) {
        int64_t first = (i * t->blocks + 1) * pieces - 1, last = (i + 1) * t->blocks * pieces - 1;
        int64_t parts = last / length - first / length + 1;
        if (parts > most) most = parts;
    }
    return (int)most;
}

static int parts_of(const mica_conv_sm90_shape *s, const mica_config *config)
{
    const int32_t *k = config->knob;
    if (k[PIECES] == 0) return k[SPLITS];
    wgrad_tiles t = wgrad_tiles_of(s, k[ROWS], k[COLS]);
    return most_parts(&t, k[PIECES]);
}

static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    mica_conv_sm90_shape s;
    mica_why why;
    c->truncates = true;
    c->k_inst = 16;
    if (mica_conv_sm90_shape_make(desc, true, &s, &why) != MICA_OK || s.class_count == 0) return;
    c->n_outer += parts_of(&s, config) - 1;
}

/* ---- build ---- */

/* other: bytes of shared memory beside the ring. */
static int stages_of(const mica_plan *plan, int stage_bytes, int other)
{
    int stages = (int)((plan->device.shared_bytes - SHARED_RESERVE - other) / stage_bytes);
    return stages < MAX_STAGES ? stages : MAX_STAGES;
}

static mica_status add_ring_kernel(mica_plan *plan, state *s, const char *file, const char *entry,
                                   mica_text *p, const mica_wgmma *mma, int other, int blocks)
{
    int stage_bytes = (plan->config.knob[ROWS] + plan->config.knob[COLS]) * 128;
    int stages = stages_of(plan, stage_bytes, other), units = plan->device.units;
    mica_prologue_int(p, "AXES", s->shape.axes);
    mica_prologue_int(p, "BM", plan->config.knob[ROWS]);
    mica_prologue_int(p, "BN", plan->config.knob[COLS]);
    mica_prologue_int(p, "STAGES", stages);
    mica_prologue_type(p, "in_t", s->shape.in);
    mica_prologue_wgmma(p, "mma", mma);
    int64_t shared = (int64_t)stages * stage_bytes + other + 1024;
    s->grid = (mica_grid){.grid = {(unsigned)(blocks < units ? blocks : units)},
                          .block = {THREADS},
                          .dynamic_shared = (unsigned)shared};
    mica_kernel_spec spec = {file, entry, p->data, shared};
    return mica_plan_add_kernel(plan, &spec, &s->kernel);
}

/* Results stored at once: 16 bytes of 16-bit ones, pairs of f32, where addresses allow it. */
static int store_width(const mica_conv_sm90_shape *s, const mica_conv_sm90_args *a)
{
    int width = s->out == MICA_F32 ? 2 : 8;
    bool whole = a->to.c == 1 && a->cols % width == 0 && a->to.n % width == 0;
    for (int i = 0; i < 3; i++) whole = whole && a->to.s[i] % width == 0;
    for (int i = 0; i < s->class_count; i++) whole = whole && s->classes[i].out % width == 0;
    return whole ? width : 1;
}

static void fill_direct(const mica_plan *plan, state *s)
{
    const mica_conv_desc *d = plan->desc;
    const mica_conv_sm90_shape *h = &s->shape;
    mica_conv_sm90_args *a = &s->args.direct;
    bool dgrad = h->roles.kind == MICA_CONV_KIND_DGRAD;
    a->terms = (int)(dgrad ? h->g.k : h->g.c);
    a->cols = (int)(dgrad ? h->g.c : h->g.k);
    a->to = dgrad ? h->g.a : h->g.b;
    a->residual = h->g.residual;
    for (int i = 0; i < 3; i++) {
        a->to.s[i] *= dgrad ? h->g.stride[i] : 1;
        a->residual.s[i] *= dgrad ? h->g.stride[i] : 1;
        a->step[i] = h->step[i];
        a->tap_step[i] = h->tap_step[i];
    }
    a->class_count = h->class_count;
    a->col_tiles = (int)tiles_of(a->cols, plan->config.knob[COLS]);
    for (int i = 0; i < h->class_count; i++) {
        a->classes[i] = h->classes[i];
        a->classes[i].first_tile = a->tiles;
        a->tiles += (int)tiles_of(h->classes[i].pixels, plan->config.knob[ROWS]) * a->col_tiles;
    }
    a->epilogue.act_a = d->act_a;
    a->epilogue.act_b = d->act_b;
    if (mica_tensor_given(&d->bias)) a->epilogue.bias_stride = d->bias.strides[0];
    if (mica_tensor_given(&d->scale)) a->epilogue.scale_stride = d->scale.strides[0];
    if (mica_tensor_given(&d->shift)) a->epilogue.shift_stride = d->shift.strides[0];
}

/* Columns of a result on their way through shared memory at once: long sums want it for the ring,
 * after short ones the time is that of the stores. */
static int slice_of(const mica_conv_sm90_shape *s, int cols)
{
    int64_t terms = s->roles.kind == MICA_CONV_KIND_DGRAD ? s->g.k : s->g.c, taps = 1;
    for (int i = 0; i < 3; i++) taps *= s->classes[0].taps[i];
    return taps * terms <= 8 * MICA_CONV_BLOCK && cols % 128 == 0 ? 128 : 64;
}

static bool has_taps(const mica_conv_class *c)
{
    return c->taps[0] > 0;
}

static mica_status build_direct(mica_plan *plan, state *s, mica_text *p)
{
    const mica_conv_desc *d = plan->desc;
    const int32_t *knob = plan->config.knob;
    mica_epilogue e = mica_conv_epilogue(d);
    fill_direct(plan, s);
    for (int i = 0; i < s->shape.class_count; i++)
        if (has_taps(&s->shape.classes[i]))
            mica_conv_sm90_image_map(&s->shape, i, knob[ROWS], &s->image[i]);
    mica_conv_sm90_filter_map(&s->shape, d, knob[COLS], &s->other);
    mica_prologue_epilogue(p, &e);
    mica_prologue_int(p, "FILTER_MN", s->shape.filter_mn);
    mica_prologue_int(p, "VECTOR", store_width(&s->shape, &s->args.direct));
    mica_prologue_int(p, "RESIDUAL", mica_tensor_given(&d->residual));
    mica_prologue_type(p, "out_t", s->shape.out);
    mica_wgmma mma = {
        .n = knob[COLS], .a = s->shape.in, .b = s->shape.in, .b_mn_major = s->shape.filter_mn};
    int slice = slice_of(&s->shape, knob[COLS]), staging = 8 * 16 * (slice * 2 + 16);
    mica_prologue_int(p, "SLICE", slice);
    mica_prologue_int(p, "SPLITS", knob[SPLITS]);
    MICA_TRY(add_ring_kernel(plan, s, "ops/conv/conv_sm90.cu", "conv_sm90", p, &mma, staging,
                             s->args.direct.tiles));
    if (knob[SPLITS] == 1) return MICA_OK;
    s->grid.grid[0] = (unsigned)(s->args.direct.tiles * knob[SPLITS]);
    s->grid.cluster = (unsigned)knob[SPLITS];
    return MICA_OK;
}

static void fill_wgrad(const mica_plan *plan, state *s)
{
    const mica_conv_sm90_shape *h = &s->shape;
    const mica_conv_class *c = &h->classes[0];
    const int32_t *knob = plan->config.knob;
    mica_conv_sm90_wgrad_args *a = &s->args.wgrad;
    for (int i = 0; i < 3; i++) {
        a->count[i] = c->count[i];
        a->start[i] = c->start[i];
        a->step[i] = h->step[i];
        a->tap_step[i] = h->tap_step[i];
        a->taps[i] = c->taps[i];
    }
    wgrad_tiles t = wgrad_tiles_of(h, knob[ROWS], knob[COLS]);
    a->channels = (int)h->g.c;
    a->rows = (int)h->g.k;
    a->blocks = (int)t.blocks;
    a->splits = knob[SPLITS];
    a->row_tiles = (int)t.rows;
    a->col_tiles = (int)t.cols;
}

static mica_status build_wgrad(mica_plan *plan, state *s, mica_text *p)
{
    const int32_t *knob = plan->config.knob;
    fill_wgrad(plan, s);
    const mica_conv_sm90_wgrad_args *a = &s->args.wgrad;
    mica_conv_sm90_image_map(&s->shape, 0, MICA_CONV_BLOCK, &s->image[0]);
    mica_conv_sm90_grad_map(&s->shape, MICA_CONV_BLOCK, &s->other);
    mica_wgmma mma = {.n = knob[COLS] > 256 ? knob[COLS] / 2 : knob[COLS],
                      .a = s->shape.in,
                      .b = s->shape.in,
                      .a_mn_major = true,
                      .b_mn_major = true};
    mica_prologue_int(p, "WIDTH", mma.n);
    mica_prologue_int(p, "STREAM", knob[PIECES] > 0);
    int tiles = a->row_tiles * a->col_tiles;
    mica_conv_stream stream = {.pieces = knob[PIECES],
                               .blocks = a->blocks,
                               .tile_rows = knob[ROWS],
                               .tile_cols = knob[COLS],
                               .col_tiles = a->col_tiles,
                               .length = (long long)tiles * a->blocks};
    MICA_TRY(add_ring_kernel(plan, s, "ops/conv/conv_sm90_wgrad.cu", "conv_sm90_wgrad", p, &mma, 0,
                             knob[PIECES] > 0 ? knob[PIECES] : tiles * a->splits));
    if (knob[PIECES] > 0) s->grid.grid[0] = (unsigned)knob[PIECES];
    return mica_conv_sm90_reduce_build(plan, &s->shape, parts_of(&s->shape, &plan->config),
                                       a->col_tiles * knob[COLS], &stream, &s->reduce);
}

static mica_status build(mica_plan *plan)
{
    const mica_conv_desc *d = plan->desc;
    state *s;
    mica_why why = {""};
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    if (mica_conv_sm90_shape_make(d, true, &s->shape, &why) != MICA_OK)
        return mica_fail(MICA_UNSUPPORTED, "%s", why.text);
    if (s->shape.class_count == 0) return MICA_OK;
    char buffer[PROLOGUE] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    bool wgrad = s->shape.roles.kind == MICA_CONV_KIND_WGRAD;
    MICA_TRY(wgrad ? build_wgrad(plan, s, &p) : build_direct(plan, s, &p));
    return mica_plan_child_create(plan, "conv", d, sizeof *d, "cuda", &s->generic, &s->generic_at);
}

/* ---- run ---- */

static mica_status run_direct(const mica_plan *plan, const state *s, const mica_run *r)
{
    mica_conv_sm90_args a = s->args.direct;
    for (int i = 0; i < a.class_count; i++)
        if (has_taps(&a.classes[i]))
            MICA_TRY(mica_tensor_map_encode(plan->cuda, &s->image[i], r->args[s->shape.image],
                                            &a.image[i]));
    MICA_TRY(mica_tensor_map_encode(plan->cuda, &s->other, r->args[s->shape.other], &a.filter));
    a.out = r->args[s->shape.roles.out];
    a.alpha = (float)mica_run_scalar(plan, r, MICA_CONV_ALPHA);
    a.beta = (float)mica_run_scalar(plan, r, MICA_CONV_BETA);
    a.epilogue.bias = r->args[MICA_CONV_BIAS];
    a.epilogue.scale = r->args[MICA_CONV_SCALE];
    a.epilogue.shift = r->args[MICA_CONV_SHIFT];
    a.epilogue.residual = r->args[MICA_CONV_RESIDUAL];
    return mica_kernel_launch(s->kernel, &s->grid, r->stream, &a);
}

static mica_status run_wgrad(const mica_plan *plan, const state *s, const mica_run *r)
{
    mica_conv_sm90_wgrad_args a = s->args.wgrad;
    MICA_TRY(mica_tensor_map_encode(plan->cuda, &s->image[0], r->args[s->shape.image], &a.image));
    MICA_TRY(mica_tensor_map_encode(plan->cuda, &s->other, r->args[s->shape.other], &a.grad));
    a.partial = mica_at(r, s->reduce.partial);
    MICA_TRY(mica_kernel_launch(s->kernel, &s->grid, r->stream, &a));
    return mica_conv_sm90_reduce_run(plan, &s->reduce, s->shape.roles.out, r);
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    if (!mica_conv_sm90_aligned(&s->shape, r)) {
        mica_run child = *r;
        child.workspace = mica_at(r, s->generic_at);
        return mica_plan_child_run(s->generic, &child);
    }
    return s->shape.roles.kind == MICA_CONV_KIND_WGRAD ? run_wgrad(plan, s, r)
                                                       : run_direct(plan, s, r);
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
