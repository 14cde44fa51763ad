/* SPDX-License-Identifier: Apache-2.0
 * Engine "cuda": every convolution on every GPU from sm_80 on, with plain multiply-adds: f64, f32
 * (IEEE), f16 and bf16 summed in f32, 8-bit integers in s32; any strides, 64-bit offsets, no
 * atomics. An implicit matrix product, some 30 % of the f32 rate where the channels fill its tiles;
 * dgrad of stride s computes s^axes times too much. Few channels in a group go to kernels with one
 * result per thread (wgrad: per block). A filter gradient has few blocks: its pixels are split into
 * parts in workspace, which are added up in order; splits=1 needs none. */
#include "ops/conv/cuda/conv_parts.h"

#include <math.h>

/* Tiles of 256 threads for many, some and few columns; f64 ones are smaller to fit 48 KiB. */
typedef struct tile {
    int bm, bn, bk, tm, tn;
} tile;
static const tile tiles[2][3] = {
    {{64, 64, 16, 4, 4}, {128, 32, 16, 4, 4}, {256, 16, 16, 4, 4}},
    {{64, 64, 8, 4, 4}, {128, 32, 8, 4, 4}, {128, 16, 16, 4, 2}},
};
static const tile wgrad_tile = {32, 32, 32, 2, 2};

enum { BLOCK = 256, WASTE = 8, MAX_GRID = 0x7fffffff, LEAST_TERMS = 512, WANTED_BLOCKS = 6 };

enum { KNOB_SPLITS };
static const char *const knobs[] = {"splits", NULL};

typedef struct state {
    mica_kernel *kernel;
    mica_conv_args args;
    mica_conv_roles roles;
    int left, right; /* run arguments */
    mica_grid grid;
    conv_parts parts;
} state;

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)device;
    MICA_TRY(conv_refuse_full_epilogue(desc, why));
    return MICA_OK;
}

static void fill_args(const mica_conv_desc *d, state *s)
{
    mica_conv_args *a = &s->args;
    mica_conv_geometry *g = &a->g;
    mica_conv_geometry_make(d, g);
    s->roles = mica_conv_roles_of(d);
    bool dgrad = s->roles.dgrad, wgrad = s->roles.wgrad;
    s->left = dgrad ? s->roles.b : s->roles.a;
    s->right = wgrad ? s->roles.b : s->roles.f;
    const long long *grid = dgrad ? g->in : g->out;
    int64_t pixels = g->n * grid[0] * grid[1] * grid[2], taps = g->tap[0] * g->tap[1] * g->tap[2];
    a->rows = wgrad ? taps * g->c : pixels;
    a->cols = dgrad ? g->c : g->k;
    a->terms = wgrad ? pixels : taps * (dgrad ? g->k : g->c);
    mica_conv_epilogue_args(d, &a->epilogue);
}

/* ---- configs ---- */

static bool wgrad_is_small(const mica_conv_args *a)
{
    return a->rows * a->cols * WASTE < wgrad_tile.bm * wgrad_tile.bn;
}

static bool has_few_columns(const state *s)
{
    return s->args.cols * WASTE < tiles[0][2].bn;
}

static int wgrad_channels(const mica_conv_args *a)
{
    return a->g.b.c == 1 ? 32 : 1;
}

static int64_t wgrad_blocks(const mica_conv_args *a)
{
    if (!wgrad_is_small(a))
        return a->g.groups * ((a->rows + wgrad_tile.bm - 1) / wgrad_tile.bm) *
               ((a->cols + wgrad_tile.bn - 1) / wgrad_tile.bn);
    int channels = wgrad_channels(a);
    return (a->cols * a->g.groups + channels - 1) / channels * a->rows;
}

/* The split first: where workspace is limited, the other is taken. */
static int configs(const void *desc, const mica_device_info *device, mica_config *out)
{
    state s = {0};
    fill_args(desc, &s);
    int count = 0, splits = 1;
    if (conv_parts_possible(desc))
        splits = conv_parts_choose(wgrad_blocks(&s.args), WANTED_BLOCKS * (int64_t)device->units,
                                   s.args.terms, LEAST_TERMS);
    if (splits > 1) out[count++].knob[KNOB_SPLITS] = splits;
    out[count++].knob[KNOB_SPLITS] = 1;
    return count;
}

static tile tile_of(const state *s, bool f64)
{
    int64_t cols = s->args.cols;
    return s->roles.wgrad ? wgrad_tile : tiles[f64][cols > 32 ? 0 : cols > 16 ? 1 : 2];
}

/* A block's tile by steps through its terms, of so many microseconds: memory answers, then
 * products. */
static double tiles_ms(const state *s, bool f64, double units, double splits)
{
    const double begin_us = 5, resident = 2;
    tile t = tile_of(s, f64);
    double step_us = s->roles.wgrad ? 3.8 : t.bm == 64 ? 4.5 : t.bm == 128 && !f64 ? 6 : 8;
    double blocks = (double)conv_ceil_div(s->args.rows, t.bm) *
                    (double)conv_ceil_div(s->args.cols, t.bn) * (double)s->args.g.groups * splits;
    double steps = ceil((double)s->args.terms / splits / t.bk);
    return 1e-3 * fmax(ceil(blocks / (units * resident)), 1) * (begin_us + step_us * steps);
}

/* A thread's result term by term: one that is waited for, or as many as there are. */
static double direct_ms(const state *s, double units)
{
    const double term_us = 0.06, result_us = 1.6e-3, each_us = 0.46e-3; /* of a multiprocessor */
    double results = (double)s->args.rows * (double)s->args.cols * (double)s->args.g.groups;
    double terms = (double)s->args.terms;
    return 1e-3 * fmax(term_us * terms, results * (result_us + each_us * terms) / units);
}

/* The same of a filter's results, of which a block has one or 32. */
static double few_filters_ms(const state *s, double units, double splits)
{
    const double begin_us = 4, term_us = 0.085, resident = 2;
    double blocks = (double)wgrad_blocks(&s->args) * splits;
    double each = begin_us + term_us * (double)s->args.terms / splits;
    return 1e-3 * fmax(blocks / (units * resident), 1) * each;
}

/* Times are those of random convolutions on an H200. Units of another are as much slower as their
 * rate of multiply-adds is. */
static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    const double launch_ms = 3e-3, measured_tflops = 59, measured_units = 132;
    state s = {0};
    fill_args(desc, &s);
    if (mica_conv_is_empty(desc)) return 0;
    bool f64 = mica_conv_tensor(desc, s.left)->dtype == MICA_F64;
    double splits = config->knob[KNOB_SPLITS] > 1 ? config->knob[KNOB_SPLITS] : 1;
    double units = device->units, work;
    if (s.roles.wgrad ? wgrad_is_small(&s.args) : has_few_columns(&s))
        work = s.roles.wgrad ? few_filters_ms(&s, units, splits) : direct_ms(&s, units);
    else
        work = tiles_ms(&s, f64, units, splits);
    work *= measured_tflops / measured_units * units / device->f32_tflops * (f64 ? 2 : 1);
    double memory = mica_op_bytes(&mica_op_conv, desc) / (0.5 * device->copy_gbps * 1e6);
    return launch_ms * (splits > 1 ? 2 : 1) + fmax(work, memory);
}

/* ---- plan ---- */

static void shared_prologue(mica_text *p, const mica_conv_desc *d, const state *s)
{
    mica_epilogue e = mica_conv_epilogue(d);
    mica_dtype left = mica_conv_tensor(d, s->left)->dtype;
    mica_dtype right = mica_conv_tensor(d, s->right)->dtype;
    mica_dtype sums = mica_dtype_accumulator(left);
    mica_prologue_epilogue(p, &e);
    mica_prologue_int(p, "KIND", s->roles.kind);
    mica_prologue_type(p, "left_t", left);
    mica_prologue_type(p, "right_t", right);
    mica_dtype out = mica_conv_tensor(d, s->roles.out)->dtype;
    mica_prologue_type(p, "out_t", s->parts.kernel ? sums : out);
    mica_prologue_type(p, "acc_t", sums);
    /* integer sums are exact in f64 */
    mica_prologue_type(p, "fin_t", sums == MICA_F32 ? MICA_F32 : MICA_F64);
    mica_prologue_type(p, "coord_t", mica_conv_positions_fit_s32(&s->args.g) ? MICA_S32 : MICA_S64);
    /* results and tiles are no more than rows x columns */
    const mica_conv_args *a = &s->args;
    double results = (double)a->rows * (double)a->cols * (double)a->g.groups;
    mica_prologue_int(p, "COUNT_64", results > INT32_MAX || a->terms > INT32_MAX);
}

static int splits_of(const mica_plan *plan)
{
    int splits = plan->config.knob[KNOB_SPLITS];
    return splits > 1 ? splits : 1;
}

/* Parts of whole slices. */
static mica_status split_terms(mica_plan *plan, state *s)
{
    int splits = splits_of(plan), slice = wgrad_tile.bk;
    mica_conv_args *a = &s->args;
    a->terms_each = ((a->terms + splits - 1) / splits + slice - 1) / slice * slice;
    mica_dtype left = mica_conv_tensor(plan->desc, s->left)->dtype;
    MICA_TRY(conv_parts_build(plan, splits, mica_dtype_accumulator(left), &s->parts));
    a->part = s->parts.args.count;
    return MICA_OK;
}

static mica_status add_kernel(mica_plan *plan, state *s, const char *file, const char *entry,
                              mica_text *p)
{
    mica_kernel_spec spec = {file, entry, p->data, 0};
    long long most = s->args.tiles < MAX_GRID ? s->args.tiles : MAX_GRID;
    s->grid = (mica_grid){.grid = {(unsigned)most}, .block = {BLOCK}};
    return mica_plan_add_kernel(plan, &spec, &s->kernel);
}

static mica_status build_tiles(mica_plan *plan, state *s, mica_text *p)
{
    const mica_conv_desc *d = plan->desc;
    mica_conv_args *a = &s->args;
    bool wgrad = s->roles.wgrad;
    bool dgrad = s->roles.dgrad;
    bool f64 = mica_conv_tensor(d, s->left)->dtype == MICA_F64;
    tile t = tile_of(s, f64);
    const mica_conv_strides *left = dgrad ? &a->g.b : &a->g.a;
    const mica_conv_strides *out = dgrad ? &a->g.a : &a->g.b;
    /* which of the two indices of each operand is the one with neighbours in memory */
    bool left_pairs = left->c == 1;
    bool right_terms = wgrad ? a->g.b.c != 1 : (dgrad ? a->g.f.n : a->g.f.c) == 1;
    bool out_rows = wgrad ? a->g.f.n != 1 : out->c != 1;
    mica_prologue_int(p, "BM", t.bm);
    mica_prologue_int(p, "BN", t.bn);
    mica_prologue_int(p, "BK", t.bk);
    mica_prologue_int(p, "TM", t.tm);
    mica_prologue_int(p, "TN", t.tn);
    mica_prologue_int(p, "LEFT_BY_TERM", left_pairs != wgrad);
    mica_prologue_int(p, "RIGHT_BY_TERM", right_terms);
    mica_prologue_int(p, "OUT_BY_ROW", out_rows);
    a->row_tiles = (a->rows + t.bm - 1) / t.bm;
    a->col_tiles = (a->cols + t.bn - 1) / t.bn;
    a->tiles = a->g.groups * a->row_tiles * a->col_tiles * splits_of(plan);
    return add_kernel(plan, s, "ops/conv/cuda/conv_cuda.cu", "conv", p);
}

static mica_status build_direct(mica_plan *plan, state *s, mica_text *p)
{
    mica_conv_args *a = &s->args;
    const mica_conv_strides *out = s->roles.dgrad ? &a->g.a : &a->g.b;
    mica_prologue_int(p, "BLOCK", BLOCK);
    mica_prologue_int(p, "CHANNEL_FAST", out->c == 1);
    a->tiles = (a->rows * a->cols * a->g.groups + BLOCK - 1) / BLOCK;
    if (a->tiles > MAX_GRID)
        return mica_fail(MICA_UNSUPPORTED, "%lld blocks of %d results: a grid holds %d", a->tiles,
                         BLOCK, MAX_GRID);
    return add_kernel(plan, s, "ops/conv/cuda/conv_cuda_direct.cu", "conv_direct", p);
}

static mica_status build_wgrad(mica_plan *plan, state *s, mica_text *p)
{
    mica_conv_args *a = &s->args;
    int channels = wgrad_channels(a);
    mica_prologue_int(p, "BLOCK", BLOCK);
    mica_prologue_int(p, "CHANNELS", channels);
    a->col_tiles = (a->cols * a->g.groups + channels - 1) / channels;
    a->tiles = a->col_tiles * a->rows * splits_of(plan);
    return add_kernel(plan, s, "ops/conv/cuda/conv_cuda_wgrad.cu", "conv_wgrad", p);
}

static mica_status build(mica_plan *plan)
{
    const mica_conv_desc *d = plan->desc;
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    fill_args(d, s);
    if (mica_conv_is_empty(d)) return MICA_OK;
    MICA_TRY(split_terms(plan, s));
    char buffer[4096] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    shared_prologue(&p, d, s);
    if (s->roles.wgrad) {
        return wgrad_is_small(&s->args) ? build_wgrad(plan, s, &p) : build_tiles(plan, s, &p);
    }
    return has_few_columns(s) ? build_direct(plan, s, &p) : build_tiles(plan, s, &p);
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    mica_conv_args args = s->args;
    args.left = r->args[s->left];
    args.right = r->args[s->right];
    args.out = r->args[s->roles.out];
    args.alpha = mica_run_scalar(plan, r, MICA_CONV_ALPHA);
    args.beta = mica_run_scalar(plan, r, MICA_CONV_BETA);
    if (s->parts.kernel) {
        args.out = conv_parts_base(&s->parts, r);
        args.alpha = 1, args.beta = 0; /* the last kernel applies them */
    }
    mica_epilogue_bind(&args.epilogue, r->args, MICA_CONV_BIAS);
    MICA_TRY(mica_kernel_launch(s->kernel, &s->grid, r->stream, &args));
    return conv_parts_run(plan, &s->parts, r);
}

const mica_engine mica_conv_cuda = {.name = "cuda",
                                    .cuda = true,
                                    .knobs = knobs,
                                    .accepts = accepts,
                                    .configs = configs,
                                    .predict = predict,
                                    .build = build,
                                    .run = run};
