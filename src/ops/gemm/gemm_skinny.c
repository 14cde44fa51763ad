/* SPDX-License-Identifier: Apache-2.0
 * gemm where c has few rows or few columns (decoding, classifiers, matrix times vector): f32, bf16,
 * f16, 8-bit floats and integers, on any GPU from sm_80 on (8-bit floats from sm_89). Good for up
 * to 16 lines; no workspace. Cost: the wide operand at the bandwidth of memory, as long as there
 * are blocks for all multiprocessors: few lines of it are shared out along K over clusters (sm_90).
 */
#include "ops/gemm/gemm_shape.h"
#include "ops/gemm/gemm_skinny_args.h"

#include <math.h>

enum { KNOB_GROUPS, KNOB_SPLIT, KNOB_CHUNKS, KNOB_WARPS };
static const char *const knobs[] = {"groups", "split", "chunks", "warps", NULL};

enum {
    VECTOR_BYTES = 16,
    FEW_MATRIX = 32,
    FEW_PLAIN = 16,
    STATIC_SHARED = 48 << 10,
    HELD_BYTES = 128,
    KEPT = 3
};

/* The wide operand and the other one. */
typedef struct operand {
    const char *name;
    mica_dtype dtype;
    long long lines, line_stride, k_stride;
    const long long *batch;
} operand;

typedef struct geometry {
    gemm_shape shape;
    operand wide, few;
    bool swapped, k_major, few_k_major, matrix;
    int few_held; /* lines of the other one that a block has room for */
} geometry;

typedef struct state {
    gemm_skinny_args args; /* all but pointers and scalars */
    bool few_k_major;
    mica_kernel *kernel;
    mica_grid grid;
} state;

static int bytes_of(mica_dtype t)
{
    return mica_dtype_bits(t) / 8;
}

static int vector_of(const geometry *g)
{
    return VECTOR_BYTES / bytes_of(g->wide.dtype);
}

static bool is_float8(mica_dtype t)
{
    return t == MICA_E4M3 || t == MICA_E5M2;
}

static void make_geometry(const mica_gemm_desc *d, geometry *g)
{
    gemm_shape_make(d, &g->shape);
    const gemm_shape *s = &g->shape;
    operand a = {"a", d->a.dtype, s->m, s->a_m, s->a_k, s->a_batch};
    operand b = {"b", d->b.dtype, s->n, s->b_n, s->b_k, s->b_batch};
    g->swapped = s->n < s->m;
    g->wide = g->swapped ? a : b;
    g->few = g->swapped ? b : a;
    g->k_major = g->wide.k_stride == 1 || s->k == 1;
    g->few_k_major = g->few.k_stride == 1 || s->k == 1;
    g->matrix = d->a.dtype != MICA_F32;
    g->few_held = g->matrix ? 8 : 1;
    while (g->few_held < g->few.lines && g->few_held < FEW_MATRIX) g->few_held *= 2;
}

/* ---- what the kernel takes ---- */

static mica_status check_types(const mica_gemm_desc *d, const mica_device_info *device,
                               mica_why *why)
{
    mica_dtype a = d->a.dtype, b = d->b.dtype;
    bool floats = a == b && (a == MICA_F32 || a == MICA_BF16 || a == MICA_F16);
    bool bytes = is_float8(a) && is_float8(b);
    if (device->arch < 80)
        return mica_refuse(why, "the device is sm_%d, kernels start at sm_80", device->arch);
    if (bytes && device->arch < 89)
        return mica_refuse(why, "a is %s and the device sm_%d, which has no 8-bit floats",
                           mica_dtype_name(a), device->arch);
    if (floats || bytes || mica_dtype_is_integer(a)) return MICA_OK;
    return mica_refuse(why,
                       "a is %s, b %s; taken are f32, bf16, f16 with their own, and 8-bit types",
                       mica_dtype_name(a), mica_dtype_name(b));
}

static mica_status check_stride(const operand *o, const char *what, long long dim, long long stride,
                                mica_why *why)
{
    long long bytes = stride * bytes_of(o->dtype);
    if (dim == 1 || bytes % VECTOR_BYTES == 0) return MICA_OK;
    return mica_refuse(why, "%s of %s are %lld bytes apart, the rule is a multiple of %d", what,
                       o->name, bytes, VECTOR_BYTES);
}

static mica_status check_strides(const geometry *g, mica_why *why)
{
    const operand *w = &g->wide, *f = &g->few;
    const gemm_shape *s = &g->shape;
    if (!g->k_major && w->line_stride != 1 && w->lines != 1)
        return mica_refuse(why, "%s has strides %lld and %lld, one must be 1", w->name,
                           w->line_stride, w->k_stride);
    if (g->k_major)
        MICA_TRY(check_stride(w, "lines", w->lines, w->line_stride, why));
    else
        MICA_TRY(check_stride(w, "lines along K", s->k, w->k_stride, why));
    if (g->few_k_major) MICA_TRY(check_stride(f, "lines", f->lines, f->line_stride, why));
    for (int i = 0; i < s->batch_rank; i++) {
        MICA_TRY(check_stride(w, "batch items", s->batch[i], w->batch[i], why));
        if (g->few_k_major) MICA_TRY(check_stride(f, "batch items", s->batch[i], f->batch[i], why));
    }
    return MICA_OK;
}

static mica_status plan_geometry(const mica_gemm_desc *d, const mica_device_info *device,
                                 geometry *g, mica_why *why)
{
    MICA_TRY(check_types(d, device, why));
    if (gemm_has_blocks(d)) return mica_refuse(why, "scales are of blocks, the rule is one a line");
    make_geometry(d, g);
    const gemm_shape *s = &g->shape;
    bool bytes_across = !g->k_major && vector_of(g) == 16;
    int most = g->matrix && !bytes_across ? FEW_MATRIX : FEW_PLAIN;
    if (s->k == 0 || s->batches == 0) return mica_refuse(why, "the product is empty");
    if (g->few.lines > most)
        return mica_refuse(why, "c is %lld x %lld, one of them must be at most %d", s->m, s->n,
                           most);
    if (mica_dtype_is_integer(d->a.dtype) && s->k > 65536)
        return mica_refuse(why, "K is %lld, sums of 65536 products fit 32 bits", s->k);
    return check_strides(g, why);
}

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    geometry g;
    MICA_TRY(gemm_refuse_extra(desc, why));
    return plan_geometry(desc, device, &g, why);
}

/* ---- configs and model ---- */

static int lines_of(const geometry *g, const mica_config *c)
{
    return c->knob[KNOB_GROUPS] * (g->k_major ? 16 : 8 * vector_of(g));
}

static int reads_of(const geometry *g)
{
    return g->k_major ? 2 : vector_of(g);
}

/* What a lane reads at once. */
static int held_bytes(const geometry *g, const mica_config *c)
{
    return c->knob[KNOB_CHUNKS] * c->knob[KNOB_GROUPS] * reads_of(g) * VECTOR_BYTES;
}

static double tiles_of(const geometry *g, const mica_config *c)
{
    long long lines = lines_of(g, c);
    return (double)((g->wide.lines + lines - 1) / lines) * (double)g->shape.batches;
}

/* Registers of a lane for what it reads and for its sums, and shared memory for all sums. */
static bool fits(const geometry *g, const mica_config *c)
{
    int chunks = c->knob[KNOB_CHUNKS], lines = lines_of(g, c), few = g->few_held;
    int reads = chunks * 4 * (c->knob[KNOB_GROUPS] * reads_of(g) + (g->matrix ? few / 8 : few));
    int sums = lines * few / 32 * (g->matrix ? 1 : 4);
    return reads + sums <= 160 && c->knob[KNOB_WARPS] * few * (lines + 1) * 4 <= STATIC_SHARED;
}

/* The wide operand at the bandwidth of memory, as far as blocks are dealt evenly and enough is
 * under way; the few lines come from L2, once for each block; clusters start and end slowly. */
static double model(const mica_gemm_desc *d, const geometry *g, const mica_device_info *device,
                    const mica_config *c)
{
    const double start_ms = 6e-3, cluster_ms = 1.2e-3, reading = 0.94, latency_ms = 0.7e-3;
    const int32_t *knob = c->knob;
    double tiles = tiles_of(g, c), blocks = tiles * knob[KNOB_SPLIT], units = device->units;
    double rounds = ceil(blocks / units), resident = rounds < 3 ? rounds : 3;
    double busy = rounds > 3 ? 1 : pow(blocks / (rounds * units), 0.6);
    double rate = reading * device->copy_gbps * 1e6 * busy;
    double active = rounds > 1 ? resident * units : blocks;
    double held = active * 32 * knob[KNOB_WARPS] * held_bytes(g, c);
    if (rate > held / latency_ms) rate = held / latency_ms;
    double memory = mica_op_bytes(&mica_op_gemm, d) / rate;
    double few = (double)(g->few.lines * g->shape.k * bytes_of(g->few.dtype)) * tiles;
    double cache = few / (2 * device->copy_gbps * 1e6);
    double meeting = knob[KNOB_SPLIT] > 1 ? cluster_ms * knob[KNOB_SPLIT] : 0;
    return start_ms + memory + 0.5 * cache + meeting;
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *c)
{
    geometry g;
    mica_why why;
    if (plan_geometry(desc, device, &g, &why) != MICA_OK) return 0;
    return model(desc, &g, device, c);
}

/* Lines and share of K of a block; false: there is no room for it, or no need. A block that has its
 * multiprocessor to itself reads twice as far ahead. */
static bool make_config(const geometry *g, const mica_device_info *device, int groups, int split,
                        mica_config *c)
{
    *c = (mica_config){{groups, split, 1, 8}};
    double blocks = tiles_of(g, c) * split;
    int bytes = blocks <= device->units ? 2 * HELD_BYTES : HELD_BYTES;
    if (bytes > held_bytes(g, c)) c->knob[KNOB_CHUNKS] = bytes / held_bytes(g, c);
    if (!fits(g, c)) c->knob[KNOB_CHUNKS] = 1;
    if (!fits(g, c)) c->knob[KNOB_WARPS] = 4;
    return fits(g, c) && (split == 1 || blocks <= 6.0 * device->units);
}

/* The best few of the model: others would only be compiled and timed for nothing. */
static int configs(const void *desc, const mica_device_info *device, mica_config *out)
{
    geometry g;
    mica_why why;
    if (plan_geometry(desc, device, &g, &why) != MICA_OK) return 0;
    double ms[KEPT];
    int count = 0, most = device->arch >= 90 ? 8 : 1;
    for (int groups = 1; groups <= (g.k_major ? 2 : 1); groups++)
        for (int split = 1; split <= most; split *= 2) {
            mica_config c;
            if (!make_config(&g, device, groups, split, &c)) continue;
            double t = model(desc, &g, device, &c);
            count = mica_config_keep(out, ms, count, KEPT, &c, t);
        }
    return count;
}

static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    const mica_gemm_desc *d = desc;
    (void)config;
    if (mica_dtype_is_integer(d->a.dtype) || d->a.dtype == MICA_F32) return;
    c->truncates = true;
    c->k_inst = 8; /* on sm_80; sm_90 sums 16 */
}

/* ---- plans ---- */

static void write_prologue(const mica_gemm_desc *d, const geometry *g, const mica_config *c,
                           mica_text *p)
{
    bool whole = mica_dtype_is_integer(d->a.dtype);
    mica_prologue_int(p, "WARPS", c->knob[KNOB_WARPS]);
    mica_prologue_int(p, "GROUPS", c->knob[KNOB_GROUPS]);
    mica_prologue_int(p, "SPLIT", c->knob[KNOB_SPLIT]);
    mica_prologue_int(p, "CHUNKS", c->knob[KNOB_CHUNKS]);
    mica_prologue_int(p, "MATRIX", g->matrix);
    mica_prologue_int(p, "FEW", g->few_held);
    mica_prologue_int(p, "K_MAJOR", g->k_major);
    mica_prologue_int(p, "FEW_K_MAJOR", g->few_k_major);
    mica_prologue_int(p, "SWAPPED", g->swapped);
    mica_prologue_int(p, "HAS_SCALE_A", mica_tensor_given(&d->scale_a));
    mica_prologue_int(p, "HAS_SCALE_B", mica_tensor_given(&d->scale_b));
    mica_prologue_type(p, "wide_t", g->wide.dtype);
    mica_prologue_type(p, "few_t", g->few.dtype);
    mica_prologue_type(p, "c_t", d->c.dtype);
    mica_prologue_type(p, "sum_t", whole ? MICA_S32 : MICA_F32);
    mica_prologue_type(p, "out_t", whole ? MICA_F64 : MICA_F32);
    mica_epilogue e = gemm_epilogue(d);
    mica_prologue_epilogue(p, &e);
}

static void fill_args(const mica_gemm_desc *d, const geometry *g, gemm_skinny_args *args)
{
    gemm_args *a = &args->gemm;
    a->shape = g->shape;
    if (mica_tensor_given(&d->scale_a)) a->scale_a_stride = gemm_scale_stride(&d->scale_a);
    if (mica_tensor_given(&d->scale_b)) a->scale_b_stride = gemm_scale_stride(&d->scale_b);
    a->epilogue.bias_stride = d->bias.strides[0];
    a->epilogue.scale_stride = d->scale.strides[0];
    a->epilogue.shift_stride = d->shift.strides[0];
    a->epilogue.act_a = d->act_a;
    a->epilogue.act_b = d->act_b;
    args->wide = g->wide.lines;
    args->few = g->few.lines;
    args->wide_line = g->wide.line_stride;
    args->wide_k = g->wide.k_stride;
    args->few_line = g->few.line_stride;
    args->few_k = g->few.k_stride;
}

static mica_status build(mica_plan *plan)
{
    state *s;
    geometry g;
    mica_why why;
    const mica_gemm_desc *d = plan->desc;
    const mica_config *c = &plan->config;
    MICA_TRY(plan_geometry(d, &plan->device, &g, &why));
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    fill_args(d, &g, &s->args);
    s->few_k_major = g.few_k_major;
    int split = c->knob[KNOB_SPLIT];
    double tiles = tiles_of(&g, c), most = INT32_MAX / split;
    s->grid = (mica_grid){.grid = {(unsigned)(tiles < most ? tiles : most) * (unsigned)split},
                          .block = {32 * (unsigned)c->knob[KNOB_WARPS]},
                          .cluster = split > 1 ? (unsigned)split : 0};
    char text[4096];
    mica_text prologue = {text, sizeof text, 0};
    write_prologue(d, &g, c, &prologue);
    return mica_plan_add_kernel(plan,
                                &(mica_kernel_spec){.file = "ops/gemm/gemm_skinny.cu",
                                                    .entry = "gemm_skinny",
                                                    .prologue = text},
                                &s->kernel);
}

static bool is_aligned(const void *p)
{
    return (uintptr_t)p % VECTOR_BYTES == 0;
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    gemm_skinny_args args = s->args;
    gemm_args *a = &args.gemm;
    gemm_args_bind(plan, r, a);
    args.whole = is_aligned(a->a) && is_aligned(a->b);
    return mica_kernel_launch(s->kernel, &s->grid, r->stream, &args);
}

const mica_engine gemm_skinny = {.name = "skinny",
                                 .cuda = true,
                                 .knobs = knobs,
                                 .accepts = accepts,
                                 .configs = configs,
                                 .predict = predict,
                                 .contract = contract,
                                 .build = build,
                                 .run = run};
