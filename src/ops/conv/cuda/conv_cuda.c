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

/* How much slower than tiles without waste: dgrad takes all taps for each pixel; tiles may be wider
 * than the result; threads with a result each read what tiles would share. */
static double wasted(const state *s)
{
    const mica_conv_geometry *g = &s->args.g;
    if (s->roles.wgrad) return 1;
    double narrow = tiles[0][2].bn, columns = (double)s->args.cols;
    double times = has_few_columns(s) ? 5 : columns < narrow ? narrow / columns : 1;
    for (int i = 0; i < 3 && s->roles.dgrad; i++) times *= (double)g->stride[i];
    return times;
}

/* A tenth of the roofline at best, and a step through the terms cannot be quicker than memory
 * answers (2.8 us on an H200): few pixels with many terms take their time. */
static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    state s = {0};
    fill_args(desc, &s);
    int splits = config->knob[KNOB_SPLITS] > 1 ? config->knob[KNOB_SPLITS] : 1;
    double steps = (double)s.args.terms / splits / (s.roles.wgrad ? wgrad_tile.bk : tiles[0][0].bk);
    double best = 10 * mica_roofline_ms(&mica_op_conv, desc, device) + 1e-4, flops, bytes;
    mica_op_conv.cost(desc, &flops, &bytes);
    best = fmax(best, 4 * wasted(&s) * flops / (device->f32_tflops * 1e9)); /* no tensor cores */
    double answers = 2.8e-3 * steps + 4e-3;
    return best > answers ? best : answers;
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
    tile t = wgrad ? wgrad_tile : tiles[f64][a->cols > 32 ? 0 : a->cols > 16 ? 1 : 2];
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
