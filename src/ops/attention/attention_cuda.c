/* SPDX-License-Identifier: Apache-2.0
 * Attention on any NVIDIA GPU from sm_80 on: every type, every feature, any strides, both passes;
 * sums by plain multiply-adds in f32 (f64 for f64). Good for f32 and f64 in full precision, and for
 * whatever the engines on matrix units refuse. Few rows see their keys in splits, for more blocks
 * than rows. Cost: the products at 0.1 to 0.4 of the multiply-add rate; backward forms scores
 * twice, and once more for dbias. */
#include "ops/attention/attention.h"
#include "ops/attention/attention_cuda_args.h"

#include <math.h>
#include <stdlib.h>

/* delta: bwd keeps the sums of dout out in the workspace, else every tile forms them. */
enum { KNOB_ROWS, KNOB_SPLITS, KNOB_DELTA };
static const char *const knobs[] = {"rows", "splits", "delta", NULL};

enum {
    CHUNK = 64,        /* columns */
    FEW = 4,           /* rows of a block for few queries: 4 warps of one row */
    MOST_SPLITS = 256, /* a merge reads them one after the other */
    LAUNCHES = 8,      /* at most, of one pass */
    MOST_BLOCKS = 0x7fffffff,
};
static const int64_t WIDEST = (int64_t)1 << 50; /* a window as good as none */

typedef struct launch {
    mica_kernel *kernel;
    mica_grid grid;
    int64_t tiles; /* of a sequence's lines */
    int clears;    /* argument, -1: none */
    attention_clear_args clear;
} launch;

typedef struct state {
    attention_cuda_args args; /* all but pointers and tiles */
    size_t partial, partial_stats, delta;
    launch launches[LAUNCHES];
    int count;
} state;

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)desc;
    if (device->arch >= 80) return MICA_OK;
    return mica_refuse(why, "the device is sm_%d, kernels start at sm_80", device->arch);
}

/* ---- tiles ---- */

static bool is_wide(const mica_attention_desc *d)
{
    return d->q.dtype == MICA_F64;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Rows of the largest tile whose lines fit the shared memory of every device (99 KiB) and whose
 * sums fit registers. */
static int32_t most_rows(const mica_attention_desc *d)
{
    int64_t columns = larger(d->q.dims[3], d->v.dims[3]);
    bool wide = is_wide(d);
    if (d->pass == MICA_ATTENTION_FWD) {
        if (columns <= 128) return wide ? 32 : 64;
        if (columns <= 256) return wide ? 16 : 32;
        return wide ? FEW : 16;
    }
    if (columns <= (wide ? 64 : 128)) return 32;
    return columns <= (wide ? 256 : 512) ? 16 : FEW;
}

static int other_lines(const mica_attention_desc *d)
{
    return is_wide(d) ? 32 : 64;
}

/* Tiles of `rows` lines: of all sequences in a key head, as many as there can be. */
static int64_t tiles_of(const mica_tensor *cu, int64_t lines, int64_t sequences, int64_t rows)
{
    if (mica_tensor_given(cu)) return ceil_div(lines, rows) + sequences;
    return ceil_div(lines, rows) * sequences;
}

static int64_t query_tiles(const mica_attention_desc *d, const attention_shape *s, int64_t rows)
{
    return tiles_of(&d->cu_q, s->rows * s->group, s->sequences, rows) * s->kv_heads;
}

static int64_t expected_rows(const mica_attention_desc *d, const attention_shape *s)
{
    int64_t rows = d->max_q && d->max_q < s->rows ? d->max_q : s->rows;
    if (!d->max_q && mica_tensor_given(&d->cu_q)) rows = ceil_div(rows, larger(s->sequences, 1));
    return rows * s->group;
}

/* Enough for every multiprocessor to be busy; 1 if there are. */
static int32_t choose_splits(const mica_attention_desc *d, const attention_shape *s, int64_t rows,
                             const mica_device_info *device)
{
    int64_t keys = d->max_k && d->max_k < s->keys ? d->max_k : s->keys;
    int64_t blocks = larger(query_tiles(d, s, rows), 1);
    int64_t wanted = (rows == FEW ? 8 : 2) * (int64_t)device->units / blocks;
    int64_t most = ceil_div(keys, 2 * other_lines(d));
    if (wanted > most) wanted = most;
    if (wanted > MOST_SPLITS) wanted = MOST_SPLITS;
    return (int32_t)larger(wanted, 1);
}

/* The fewest rows that hold a sequence's, and smaller tiles while there is a multiprocessor without
 * one. */
static int32_t choose_rows(const mica_attention_desc *d, const attention_shape *s,
                           const mica_device_info *device)
{
    int32_t rows = most_rows(d);
    int64_t expected = expected_rows(d, s);
    if (d->pass == MICA_ATTENTION_BWD) return rows;
    if (expected <= FEW) return FEW;
    while (rows > 16 && (expected <= rows / 2 || query_tiles(d, s, rows) < device->units))
        rows /= 2;
    return rows;
}

static int configs(const void *desc, const mica_device_info *device, mica_config *out)
{
    const mica_attention_desc *d = desc;
    attention_shape s;
    attention_shape_make(d, &s);
    int32_t rows = choose_rows(d, &s, device);
    if (d->pass == MICA_ATTENTION_BWD) {
        out[0] = (mica_config){{rows, 1, 1}};
        out[1] = (mica_config){{rows, 1, 0}};
        return 2;
    }
    int32_t splits = choose_splits(d, &s, rows, device);
    out[0] = (mica_config){{rows, 1}};
    out[1] = (mica_config){{rows, splits}};
    return splits > 1 ? 2 : 1;
}

/* Blocks are dealt to the multiprocessors in rounds. */
static double predict(const void *desc, const mica_device_info *device, const mica_config *c)
{
    const mica_attention_desc *d = desc;
    const double launch_ms = 3e-3;
    attention_shape s;
    attention_shape_make(d, &s);
    int64_t rows = c->knob[KNOB_ROWS], splits = c->knob[KNOB_SPLITS];
    double flops, bytes = 0, units = device->units;
    mica_op_attention.cost(desc, &flops, &bytes);
    if (d->pass == MICA_ATTENTION_BWD) flops *= 1.4;
    double expected = (double)larger(expected_rows(d, &s), 1);
    double padded = ceil(expected / (double)rows) * (double)rows / expected;
    double efficiency = rows >= 64 ? 0.4 : rows == 32 ? 0.3 : rows == 16 ? 0.2 : 0.15;
    double rate = device->f32_tflops * 1e9 / units * efficiency / (is_wide(d) ? 2 : 1);
    double blocks = (double)larger(query_tiles(d, &s, rows) * splits, 1);
    double rounds = ceil(blocks / units);
    double compute = rounds * flops * padded / blocks / rate;
    double memory = mica_op_bytes(&mica_op_attention, desc) / (device->copy_gbps * 1e6);
    double busy = blocks < units ? blocks / units : 1;
    double time = launch_ms + fmax(compute, memory / busy);
    if (d->pass == MICA_ATTENTION_BWD && !c->knob[KNOB_DELTA]) time *= 1.2;
    return splits > 1 ? time + launch_ms : time;
}

/* ---- arguments ---- */

static int type_of(mica_dtype t)
{
    static const int types[MICA_DTYPE_COUNT] = {
        [MICA_F64] = ATTENTION_F64,   [MICA_F32] = ATTENTION_F32,   [MICA_F16] = ATTENTION_F16,
        [MICA_BF16] = ATTENTION_BF16, [MICA_E4M3] = ATTENTION_E4M3, [MICA_E5M2] = ATTENTION_E5M2};
    return types[t];
}

static attention_operand operand_of(const mica_tensor *t, bool broadcast)
{
    attention_operand o = {.type = type_of(t->dtype), .dim = {1, 1, 1, 1}};
    for (int i = 0; i < t->rank && i < 4; i++) {
        o.dim[i] = t->dims[i];
        o.stride[i] = broadcast && t->dims[i] == 1 ? 0 : t->strides[i];
    }
    return o;
}

/* The arguments that kernels get as operands. */
static const struct {
    int arg;
    size_t operand; /* offset in attention_cuda_args */
    bool broadcast;
} bindings[] = {
    {MICA_ATTENTION_Q, offsetof(attention_cuda_args, q), false},
    {MICA_ATTENTION_K, offsetof(attention_cuda_args, k), false},
    {MICA_ATTENTION_V, offsetof(attention_cuda_args, v), false},
    {MICA_ATTENTION_OUT, offsetof(attention_cuda_args, out), false},
    {MICA_ATTENTION_LSE, offsetof(attention_cuda_args, lse), false},
    {MICA_ATTENTION_DOUT, offsetof(attention_cuda_args, dout), false},
    {MICA_ATTENTION_DQ, offsetof(attention_cuda_args, d_q), false},
    {MICA_ATTENTION_DK, offsetof(attention_cuda_args, d_k), false},
    {MICA_ATTENTION_DV, offsetof(attention_cuda_args, d_v), false},
    {MICA_ATTENTION_DBIAS, offsetof(attention_cuda_args, dbias), false},
    {MICA_ATTENTION_DSINKS, offsetof(attention_cuda_args, dsinks), false},
    {MICA_ATTENTION_SCALE_Q, offsetof(attention_cuda_args, scale_q), true},
    {MICA_ATTENTION_SCALE_K, offsetof(attention_cuda_args, scale_k), true},
    {MICA_ATTENTION_SCALE_V, offsetof(attention_cuda_args, scale_v), true},
    {MICA_ATTENTION_SLOPES, offsetof(attention_cuda_args, slopes), false},
    {MICA_ATTENTION_BIAS, offsetof(attention_cuda_args, bias), true},
    {MICA_ATTENTION_MASK, offsetof(attention_cuda_args, mask), true},
    {MICA_ATTENTION_SINKS, offsetof(attention_cuda_args, sinks), false},
    {MICA_ATTENTION_RNG, offsetof(attention_cuda_args, rng), false},
    {MICA_ATTENTION_CU_Q, offsetof(attention_cuda_args, cu_q), false},
    {MICA_ATTENTION_CU_K, offsetof(attention_cuda_args, cu_k), false},
    {MICA_ATTENTION_SEQ_Q, offsetof(attention_cuda_args, seq_q), false},
    {MICA_ATTENTION_SEQ_K, offsetof(attention_cuda_args, seq_k), false},
    {MICA_ATTENTION_PAGES, offsetof(attention_cuda_args, pages), false},
};
enum { BINDINGS = sizeof bindings / sizeof *bindings };

static attention_operand *bound(attention_cuda_args *a, int i)
{
    return (attention_operand *)(void *)((char *)a + bindings[i].operand);
}

/* Neighbouring lines lie closer than the elements of one. */
static int is_across(const mica_tensor *t)
{
    if (!mica_tensor_given(t) || t->dims[3] == 1) return 0;
    return t->dims[2] > 1 && llabs(t->strides[2]) < llabs(t->strides[3]);
}

static int64_t window_of(int64_t window)
{
    return window == 0 || window > WIDEST ? WIDEST : window;
}

static void fill_args(const mica_attention_desc *d, const attention_shape *s, const mica_config *c,
                      attention_cuda_args *a)
{
    *a = (attention_cuda_args){.sequences = s->sequences,
                               .heads = s->heads,
                               .kv_heads = s->kv_heads,
                               .group = s->group,
                               .rows = s->rows,
                               .keys = s->keys,
                               .d = s->d,
                               .dv = s->dv,
                               .left = window_of(d->window_left),
                               .right = window_of(d->window_right),
                               .bottom_right = d->align == MICA_ATTENTION_ALIGN_BOTTOM_RIGHT,
                               .k_across = is_across(&d->k),
                               .v_across = is_across(&d->v),
                               .q_across = is_across(&d->q),
                               .dout_across = is_across(&d->dout),
                               .scale = d->scale,
                               .soft_cap = d->soft_cap,
                               .threshold = (unsigned)(d->dropout * 0x1p32),
                               .keep_scale = 1 / (1 - d->dropout),
                               .splits = c->knob[KNOB_SPLITS]};
    if (d->causal != MICA_ATTENTION_NOT_CAUSAL) a->right = 1;
    for (int i = 0; i < BINDINGS; i++) {
        const mica_tensor *t = mica_op_tensor(&mica_op_attention, d, bindings[i].arg);
        if (mica_tensor_given(t)) *bound(a, i) = operand_of(t, bindings[i].broadcast);
    }
}

/* ---- kernels ---- */

/* How the threads of a block lie over a tile, and what its sums have. */
typedef struct layout {
    int tx, ty, rows, other;
    int64_t columns; /* of sums */
    bool plain;      /* no scores */
} layout;

static layout layout_of(const mica_attention_desc *d, int32_t rows, int64_t columns)
{
    layout l = {.tx = 16, .ty = 16, .rows = rows / 16, .other = other_lines(d), .columns = columns};
    if (rows == FEW) l.tx = 32, l.ty = FEW, l.rows = 1;
    return l;
}

/* A warp per row. */
static const layout warps = {
    .tx = 32, .ty = 8, .rows = 1, .other = 32, .columns = CHUNK, .plain = true};

static int chunks_of(int64_t columns)
{
    int chunks = 1;
    while (chunks * CHUNK < columns) chunks *= 2;
    return chunks;
}

static void add_prologue(const mica_attention_desc *d, const layout *l, mica_text *p)
{
    bool bias = !l->plain && mica_tensor_given(&d->bias);
    mica_prologue_int(p, "TX", l->tx);
    mica_prologue_int(p, "TY", l->ty);
    mica_prologue_int(p, "ROWS", l->rows);
    mica_prologue_int(p, "OTHER", l->other);
    mica_prologue_int(p, "CHUNKS", chunks_of(l->columns));
    mica_prologue_int(p, "CAP", !l->plain && d->soft_cap > 0);
    mica_prologue_int(p, "ALIBI", !l->plain && mica_tensor_given(&d->slopes));
    mica_prologue_int(p, "BIAS", bias);
    mica_prologue_int(p, "MASK", !l->plain && mica_tensor_given(&d->mask));
    mica_prologue_int(p, "DROPOUT", !l->plain && d->dropout > 0);
    mica_dtype acc = is_wide(d) ? MICA_F64 : MICA_F32;
    mica_prologue_type(p, "acc_t", acc);
    mica_prologue_type(p, "bias_t", bias ? d->bias.dtype : acc);
}

/* Bytes of tiles: own lines of each of the given widths, a stage of others, weights. */
static int64_t shared_bytes(const mica_attention_desc *d, const layout *l, int64_t width0,
                            int64_t width1)
{
    int64_t bytes = is_wide(d) ? 8 : 4, pad = 16 / bytes, own = l->ty * l->rows;
    int64_t lines = own * (ceil_div(width0, 4) * 4 + pad);
    if (width1 >= 0) lines += own * (ceil_div(width1, 4) * 4 + pad);
    int64_t tiles = lines + l->other * (CHUNK + pad) + own * (l->other + pad);
    /* Results pass through it. */
    return bytes * larger(tiles, own * (chunks_of(l->columns) * CHUNK + pad));
}

typedef struct kernel_plan {
    const char *file, *entry;
    layout layout;
    mica_dtype k_type, v_type; /* types of the lines that travel; MICA_NONE: none do */
    const char *k_name, *v_name;
    int64_t lines; /* of a sequence, that are tiled */
    int64_t blocks, shared;
} kernel_plan;

static mica_status add_launch(mica_plan *plan, const kernel_plan *k)
{
    state *s = plan->state;
    char text[1024] = "";
    mica_text p = {text, sizeof text, 0};
    add_prologue(plan->desc, &k->layout, &p);
    if (k->k_name) mica_prologue_type(&p, k->k_name, k->k_type);
    if (k->v_name) mica_prologue_type(&p, k->v_name, k->v_type);
    launch *l = &s->launches[s->count];
    mica_kernel_spec spec = {k->file, k->entry, text, k->shared};
    MICA_TRY(mica_plan_add_kernel(plan, &spec, &l->kernel));
    l->grid = (mica_grid){.grid = {(unsigned)(k->blocks < MOST_BLOCKS ? k->blocks : MOST_BLOCKS)},
                          .block = {(unsigned)(k->layout.tx * k->layout.ty)},
                          .dynamic_shared = (unsigned)k->shared};
    l->tiles = ceil_div(k->lines, k->layout.ty * k->layout.rows);
    l->clears = -1;
    s->count++;
    return MICA_OK;
}

/* What rows of no sequence keep. */
static mica_status add_clear(mica_plan *plan, int arg, double value)
{
    enum { THREADS = 256 };
    state *s = plan->state;
    const mica_tensor *t = mica_op_tensor(plan->op, plan->desc, arg);
    int64_t count = mica_tensor_given(t) ? mica_tensor_count(t) : 0,
            blocks = ceil_div(count, THREADS);
    if (count == 0) return MICA_OK;
    char text[256] = "";
    mica_text p = {text, sizeof text, 0};
    mica_prologue_type(&p, "to_t", t->dtype);
    launch *l = &s->launches[s->count];
    mica_kernel_spec spec = {"ops/attention/attention_cuda_clear.cu", "attention_clear", text, 0};
    MICA_TRY(mica_plan_add_kernel(plan, &spec, &l->kernel));
    l->grid = (mica_grid){.grid = {(unsigned)(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS)},
                          .block = {THREADS}};
    l->clears = arg;
    l->clear = (attention_clear_args){operand_of(t, false), count, value};
    s->count++;
    return MICA_OK;
}

/* ---- forward ---- */

static bool ragged_queries(const mica_attention_desc *d)
{
    return mica_tensor_given(&d->cu_q) || mica_tensor_given(&d->seq_q);
}

static mica_status build_forward(mica_plan *plan, const attention_shape *shape)
{
    const mica_attention_desc *d = plan->desc;
    state *s = plan->state;
    if (ragged_queries(d)) {
        MICA_TRY(add_clear(plan, MICA_ATTENTION_OUT, 0));
        MICA_TRY(add_clear(plan, MICA_ATTENTION_LSE, -(double)INFINITY));
    }
    int32_t rows = plan->config.knob[KNOB_ROWS];
    int64_t splits = plan->config.knob[KNOB_SPLITS], tiles = query_tiles(d, shape, rows);
    bool lse = mica_tensor_given(&d->lse) && mica_tensor_count(&d->lse) > 0;
    if (tiles == 0 || (mica_tensor_count(&d->out) == 0 && !lse)) return MICA_OK;
    kernel_plan k = {.file = "ops/attention/attention_cuda_fwd.cu",
                     .entry = "attention_fwd",
                     .lines = shape->rows * shape->group,
                     .layout = layout_of(d, rows, shape->dv),
                     .k_type = d->k.dtype,
                     .v_type = d->v.dtype,
                     .k_name = "k_t",
                     .v_name = "v_t",
                     .blocks = tiles * splits};
    k.shared = shared_bytes(d, &k.layout, shape->d, -1);
    MICA_TRY(add_launch(plan, &k));
    if (splits == 1) return MICA_OK;
    size_t element = is_wide(d) ? 8 : 4;
    size_t lines = (size_t)(d->q.dims[0] * d->q.dims[1] * d->q.dims[2] * splits);
    MICA_TRY(mica_book(plan, "splits", lines * (size_t)shape->dv * element, &s->partial));
    MICA_TRY(mica_book(plan, "split sums", lines * 2 * element, &s->partial_stats));
    kernel_plan m = {.file = "ops/attention/attention_cuda_merge.cu",
                     .entry = "attention_merge",
                     .lines = shape->rows * shape->group,
                     .layout = warps,
                     .blocks = query_tiles(d, shape, warps.ty)};
    return add_launch(plan, &m);
}

/* ---- backward ---- */

static mica_status add_dq(mica_plan *plan, const attention_shape *shape, int32_t rows)
{
    const mica_attention_desc *d = plan->desc;
    kernel_plan k = {.file = "ops/attention/attention_cuda_dq.cu",
                     .entry = "attention_dq",
                     .lines = shape->rows * shape->group,
                     .layout = layout_of(d, rows, shape->d),
                     .k_type = d->k.dtype,
                     .k_name = "x_t",
                     .blocks = query_tiles(d, shape, rows)};
    k.shared = shared_bytes(d, &k.layout, shape->d, shape->dv);
    return k.blocks == 0 || mica_tensor_count(&d->dq) == 0 ? MICA_OK : add_launch(plan, &k);
}

static mica_status add_dkv(mica_plan *plan, const attention_shape *shape, int32_t rows)
{
    const mica_attention_desc *d = plan->desc;
    kernel_plan k = {.file = "ops/attention/attention_cuda_dkv.cu",
                     .entry = "attention_dkv",
                     .lines = shape->keys,
                     .layout = layout_of(d, rows, larger(shape->d, shape->dv)),
                     .k_type = d->q.dtype,
                     .v_type = d->dout.dtype,
                     .k_name = "x_t",
                     .v_name = "dout_t",
                     .blocks =
                         tiles_of(&d->cu_k, shape->keys, shape->sequences, rows) * shape->kv_heads};
    k.shared = shared_bytes(d, &k.layout, shape->d, shape->dv);
    bool none = mica_tensor_count(&d->dk) == 0 && mica_tensor_count(&d->dv) == 0;
    if (k.blocks == 0 || none) return MICA_OK;
    return add_launch(plan, &k);
}

static mica_status add_dbias(mica_plan *plan, const attention_shape *shape, int32_t rows)
{
    const mica_attention_desc *d = plan->desc;
    if (!mica_tensor_given(&d->dbias) || mica_tensor_count(&d->dbias) == 0) return MICA_OK;
    const int64_t *dims = d->dbias.dims;
    kernel_plan k = {.file = "ops/attention/attention_cuda_dbias.cu",
                     .entry = "attention_dbias",
                     .layout = layout_of(d, rows, CHUNK),
                     .k_type = d->k.dtype,
                     .k_name = "x_t"};
    k.blocks = dims[0] * dims[1] * ceil_div(dims[2], rows) * ceil_div(dims[3], k.layout.other);
    k.shared = shared_bytes(d, &k.layout, shape->d, shape->dv);
    return add_launch(plan, &k);
}

static mica_status add_dsinks(mica_plan *plan, const attention_shape *shape)
{
    const mica_attention_desc *d = plan->desc;
    if (!mica_tensor_given(&d->dsinks) || shape->heads == 0) return MICA_OK;
    kernel_plan k = {.file = "ops/attention/attention_cuda_dsinks.cu",
                     .entry = "attention_dsinks",
                     .layout = warps,
                     .blocks = shape->heads};
    return add_launch(plan, &k);
}

static mica_status build_backward(mica_plan *plan, const attention_shape *shape)
{
    const mica_attention_desc *d = plan->desc;
    state *s = plan->state;
    int32_t rows = plan->config.knob[KNOB_ROWS];
    if (ragged_queries(d)) MICA_TRY(add_clear(plan, MICA_ATTENTION_DQ, 0));
    if (mica_tensor_given(&d->cu_k) || mica_tensor_given(&d->seq_k)) {
        MICA_TRY(add_clear(plan, MICA_ATTENTION_DK, 0));
        MICA_TRY(add_clear(plan, MICA_ATTENTION_DV, 0));
    }
    int64_t lines = d->q.dims[0] * d->q.dims[1] * d->q.dims[2];
    if (lines > 0 && plan->config.knob[KNOB_DELTA]) {
        MICA_TRY(mica_book(plan, "dout out", (size_t)lines * (is_wide(d) ? 8 : 4), &s->delta));
        kernel_plan k = {.file = "ops/attention/attention_cuda_delta.cu",
                         .entry = "attention_delta",
                         .layout = warps,
                         .blocks = ceil_div(lines, warps.ty)};
        MICA_TRY(add_launch(plan, &k));
    }
    MICA_TRY(add_dq(plan, shape, rows));
    MICA_TRY(add_dkv(plan, shape, rows));
    MICA_TRY(add_dbias(plan, shape, rows));
    return add_dsinks(plan, shape);
}

/* ---- plans and runs ---- */

static mica_status build(mica_plan *plan)
{
    const mica_attention_desc *d = plan->desc;
    attention_shape shape;
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    attention_shape_make(d, &shape);
    fill_args(d, &shape, &plan->config, &s->args);
    return d->pass == MICA_ATTENTION_FWD ? build_forward(plan, &shape)
                                         : build_backward(plan, &shape);
}

static mica_status run_one(const state *s, int i, attention_cuda_args *a, const mica_run *r)
{
    const launch *l = &s->launches[i];
    if (l->clears >= 0) {
        attention_clear_args clear = l->clear;
        clear.to.data = r->args[l->clears];
        return mica_kernel_launch(l->kernel, &l->grid, r->stream, &clear);
    }
    a->tiles = l->tiles;
    return mica_kernel_launch(l->kernel, &l->grid, r->stream, a);
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    attention_cuda_args a = s->args;
    for (int i = 0; i < BINDINGS; i++) bound(&a, i)->data = r->args[bindings[i].arg];
    if (r->workspace) {
        a.partial = mica_at(r, s->partial);
        a.partial_stats = mica_at(r, s->partial_stats);
        if (plan->config.knob[KNOB_DELTA]) a.delta = mica_at(r, s->delta);
    }
    for (int i = 0; i < s->count; i++) MICA_TRY(run_one(s, i, &a, r));
    return MICA_OK;
}

const mica_engine mica_attention_cuda = {.name = "cuda",
                                         .cuda = true,
                                         .knobs = knobs,
                                         .accepts = accepts,
                                         .configs = configs,
                                         .predict = predict,
                                         .build = build,
                                         .run = run};
