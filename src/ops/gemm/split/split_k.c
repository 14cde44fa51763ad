/* SPDX-License-Identifier: Apache-2.0
 * gemm with few tiles and a long K, on any GPU from sm_80 on: K is split into parts, which are a
 * batch of products for another engine; their sums go to the workspace, and a kernel of its own
 * adds them up in order, with what K has beyond whole parts, and has the epilogue. The bits do not
 * depend on timing. Cost: that of the batch, and of reading its sums, which L2 mostly holds. */
#include "ops/gemm/split/split_k_args.h"
#include "ops/gemm/gemm_shape.h"
#include "ops/access/access.h"

#include <math.h>
#include <string.h>

enum { KNOB_PARTS, KNOB_ENGINE };
static const char *const knobs[] = {"parts", "engine", NULL};

/* Those that multiply, by the number that configs have; records keep it. */
static const mica_engine *const multipliers[] = {&gemm_sm90, &gemm_sm90_turned, &gemm_sm80,
                                                 &gemm_sm80_f32};
enum {
    MULTIPLIERS = sizeof multipliers / sizeof *multipliers,
    KEPT = 3,
    THREADS = 128,
    VECTOR = 4,
    MOST_PARTS = 128,
    TEAM = 8, /* warps that share parts where c is small */
    FEW_PARTS = 8,
    LEAST_BYTES = 1024, /* of K in a part */
    TILE = 64,          /* the smallest of those engines */
    MOST_INTEGER_TERMS = 65536
};
static const double MOST_WORKSPACE = 256e6;

typedef struct split {
    gemm_shape shape;
    mica_gemm_desc child; /* the batch of parts */
    bool swapped;         /* lines of partial sums are columns of c */
    long long lines, across, pitch, tail;
    int parts;
} split;

typedef struct state {
    gemm_split_args args; /* all but pointers and scalars */
    mica_plan *child;
    size_t child_at, partial_at;
    int c_bytes; /* of alignment that vectors of c need; 0: c has none */
    mica_kernel *kernel;
    mica_grid grid;
} state;

static mica_dtype sum_type(const mica_gemm_desc *d)
{
    return mica_dtype_is_integer(d->a.dtype) ? MICA_S32 : MICA_F32;
}

static mica_status check(const mica_gemm_desc *d, gemm_shape *s, mica_why *why)
{
    int bytes = mica_dtype_bits(d->a.dtype) / 8;
    MICA_TRY(gemm_refuse_full_epilogue(d, why));
    if (gemm_has_blocks(d)) return mica_refuse(why, "scales are of blocks, the rule is one a line");
    if (d->a.dtype == MICA_F64 || d->b.dtype == MICA_F64)
        return mica_refuse(why, "a is %s, sums of parts are f32 or s32",
                           mica_dtype_name(d->a.dtype));
    gemm_shape_make(d, s);
    if (s->batches != 1)
        return mica_refuse(why, "%lld products, the rule is one", (long long)s->batches);
    if (s->k * bytes < 2 * LEAST_BYTES)
        return mica_refuse(why, "K is %lld, two parts of it have %d elements", s->k,
                           2 * LEAST_BYTES / bytes);
    if (sum_type(d) == MICA_S32 && s->k > MOST_INTEGER_TERMS)
        return mica_refuse(why, "K is %lld, sums of %d products fit 32 bits", s->k,
                           MOST_INTEGER_TERMS);
    return MICA_OK;
}

/* Elements of which a part is a multiple: whole 16 bytes, where K is contiguous in lines that are
 * as far apart as that; then parts begin as the lines do. */
static long long unit_of(const mica_tensor *t, long long k_stride, long long line_stride)
{
    int bits = mica_dtype_bits(t->dtype);
    return k_stride == 1 && line_stride * bits / 8 % 16 == 0 ? 128 / bits : 1;
}

static mica_tensor matrices(mica_dtype dtype, long long items, long long rows, long long columns,
                            long long item, long long row, long long column)
{
    return (mica_tensor){
        .dtype = dtype, .rank = 3, .dims = {items, rows, columns}, .strides = {item, row, column}};
}

/* False: the parts would be too short. */
static bool make_split(const mica_gemm_desc *d, const gemm_shape *s, int parts, split *p)
{
    long long a_unit = unit_of(&d->a, s->a_k, s->a_m), b_unit = unit_of(&d->b, s->b_k, s->b_n);
    long long unit = a_unit > b_unit ? a_unit : b_unit, k = s->k / parts / unit * unit;
    int bytes = mica_dtype_bits(d->a.dtype) / 8;
    if (parts < 2 || parts > MOST_PARTS || k * bytes < LEAST_BYTES) return false;
    *p = (split){.shape = *s, .parts = parts, .tail = k * parts};
    bool columns = s->c_n != 1 || s->n == 1;
    p->swapped = columns && s->m > 1 && s->c_m == 1;
    p->lines = p->swapped ? s->n : s->m;
    p->across = p->swapped ? s->m : s->n;
    p->pitch = ceiling(p->across, VECTOR) * VECTOR;
    long long item = p->lines * p->pitch, pitch = p->pitch;
    p->child.a = matrices(d->a.dtype, parts, s->m, k, k * s->a_k, s->a_m, s->a_k);
    p->child.b = matrices(d->b.dtype, parts, k, s->n, k * s->b_k, s->b_k, s->b_n);
    p->child.c = matrices(sum_type(d), parts, s->m, s->n, item, p->swapped ? 1 : pitch,
                          p->swapped ? pitch : 1);
    p->child.compute = d->compute;
    return (double)item * parts * 4 <= MOST_WORKSPACE;
}

/* Whether that engine takes the batch. */
static bool is_taken(const split *p, int engine, const mica_device_info *device,
                     mica_gemm_desc *child)
{
    mica_why why;
    _Alignas(16) char resolved[MICA_MAX_DESC] = {0};
    if (mica_op_resolve_child("gemm", &p->child, resolved, &why) != MICA_OK) return false;
    memcpy(child, resolved, sizeof *child);
    return mica_engine_accepts(multipliers[engine], child, device, &why) == MICA_OK;
}

/* ---- which problems, and how many parts ---- */

static long long vectors_of(const split *p)
{
    return p->lines * ceiling(p->across, VECTOR);
}

/* Warps that share the parts of a vector. */
static int team_of(const split *p, const mica_device_info *device)
{
    return p->parts > FEW_PARTS && vectors_of(p) < 128LL * device->units ? TEAM : 1;
}

/* The sums, from L2 as a rule, in steps that each wait for it; and the products of the tail, which
 * wait for their operands: judged, not measured. */
static double reduce_ms(const split *p, const mica_device_info *device)
{
    const double launch_ms = 2e-3, step_ms = 0.5e-3, cached = 1.3, tail_ms = 0.1e-3;
    double sums = 4.0 * (double)p->lines * (double)p->pitch * p->parts;
    double steps = ceil((double)p->parts / (8 * team_of(p, device)));
    double tail = (double)(p->shape.k - p->tail);
    return launch_ms + fmax(sums / (cached * device->copy_gbps * 1e6), step_ms * steps) +
           tail_ms * tail;
}

/* What a multiprocessor draws from L2 for its tiles of the batch, at most (H200: 67 GB/s where all
 * draw different lines, 125 where neighbours draw the same ones). */
static double fill_ms(const split *p, const mica_gemm_desc *child, int engine,
                      const mica_device_info *device)
{
    const double start_ms = 3e-3, gbps = 90;
    mica_config c[MICA_MAX_CONFIGS] = {0};
    const mica_engine *e = multipliers[engine];
    double m = TILE, n = TILE, all_m = (double)p->shape.m, all_n = (double)p->shape.n;
    if (e->configs && e->configs(child, device, c) > 0) m = c[0].knob[0], n = c[0].knob[1];
    double tiles = fmin(ceil(all_m / m) * ceil(all_n / n), ceil(all_m / n) * ceil(all_n / m));
    double each = (fmin(m, all_m) + fmin(n, all_n)) * (double)(p->tail / p->parts);
    double rounds = ceil(tiles * p->parts / device->units);
    return start_ms + rounds * each * mica_dtype_bits(child->a.dtype) / 8 / (gbps * 1e6);
}

/* Of what each is predicted to take: 20 products on an H200. */
static double share_of(int engine, mica_dtype type)
{
    const double words = 0.8, others = 1.2, precise = 1.15;
    if (multipliers[engine] == &gemm_sm80) return type == MICA_F32 ? words : others;
    return multipliers[engine] == &gemm_sm80_f32 ? precise : 1;
}

/* Whether TMA reads the operand in boxes whose rows are short, which are as dear as whole ones. */
static bool has_short_rows(long long lines, long long k_stride, mica_dtype type)
{
    return k_stride != 1 && lines * mica_dtype_bits(type) / 8 < 128;
}

/* Both operands from memory (H200: 24 x 802816 by 802816 x 96 of bf16, contiguous across K, took 77
 * us, 0.6 of the bandwidth; 256 x 32768 by 32768 x 256 0.8). */
static double memory_ms(const split *p, const mica_gemm_desc *child, const mica_device_info *device)
{
    const double start_ms = 3e-3, whole = 0.8, rows = 0.6;
    const gemm_shape *s = &p->shape;
    mica_dtype type = child->a.dtype;
    bool is_short = has_short_rows(s->m, s->a_k, type) || has_short_rows(s->n, s->b_k, type);
    double bytes = (double)(s->m + s->n) * (double)s->k * mica_dtype_bits(type) / 8;
    return start_ms + bytes / ((is_short ? rows : whole) * device->copy_gbps * 1e6);
}

static double model(const split *p, int engine, const mica_device_info *device)
{
    mica_gemm_desc child;
    if (!is_taken(p, engine, device, &child)) return INFINITY;
    double batch = mica_engine_predict(multipliers[engine], &mica_op_gemm, &child, device);
    batch *= share_of(engine, child.a.dtype);
    batch = fmax(batch, memory_ms(p, &child, device));
    return fmax(batch, fill_ms(p, &child, engine, device)) + reduce_ms(p, device);
}

/* The best few: numbers of parts that give the multiprocessors something to do, and no more. */
static int configs(const void *desc, const mica_device_info *device, mica_config *out)
{
    static const int counts[] = {2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128};
    const mica_gemm_desc *d = desc;
    gemm_shape s;
    mica_why why;
    double ms[KEPT];
    int count = 0;
    if (check(d, &s, &why) != MICA_OK) return 0;
    double tiles = (double)ceiling(s.m, TILE) * (double)ceiling(s.n, TILE);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        split p;
        if (tiles * counts[i] > 4.0 * device->units && counts[i] > 2) continue;
        if (!make_split(d, &s, counts[i], &p)) continue;
        for (int engine = 0; engine < MULTIPLIERS; engine++) {
            mica_config c = {{counts[i], engine}};
            double t = model(&p, engine, device);
            if (t < INFINITY) count = mica_config_keep(out, ms, count, KEPT, &c, t);
        }
    }
    return count;
}

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    const mica_gemm_desc *d = desc;
    gemm_shape s;
    split p;
    mica_gemm_desc child;
    if (device->arch < 80)
        return mica_refuse(why, "the device is sm_%d, kernels start at sm_80", device->arch);
    MICA_TRY(check(d, &s, why));
    double tiles = (double)ceiling(s.m, 2 * TILE) * (double)ceiling(s.n, 2 * TILE);
    if (tiles > device->units)
        return mica_refuse(why,
                           "c is %lld x %lld: %.0f tiles of %d, more than the %d of the device",
                           s.m, s.n, tiles, 2 * TILE, device->units);
    if (!make_split(d, &s, 2, &p))
        return mica_refuse(why,
                           "two parts of K = %lld are shorter than %d bytes, or their sums "
                           "larger than %.0f",
                           s.k, LEAST_BYTES, MOST_WORKSPACE);
    for (int engine = 0; engine < MULTIPLIERS; engine++)
        if (is_taken(&p, engine, device, &child)) return MICA_OK;
    return mica_refuse(why, "no engine on tensor cores takes a as %s and b as %s",
                       mica_dtype_name(d->a.dtype), mica_dtype_name(d->b.dtype));
}

static bool from_config(const mica_gemm_desc *d, const mica_config *c, split *p)
{
    gemm_shape s;
    mica_why why;
    int engine = c->knob[KNOB_ENGINE];
    if (check(d, &s, &why) != MICA_OK || engine < 0 || engine >= MULTIPLIERS) return false;
    return make_split(d, &s, c->knob[KNOB_PARTS], p);
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *c)
{
    split p;
    return from_config(desc, c, &p) ? model(&p, c->knob[KNOB_ENGINE], device) : 0;
}

/* As the engine has it with all of K, and the additions of parts and tail: in f32, of which its
 * unit may be many. */
static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    split p;
    if (!from_config(desc, config, &p)) return;
    const mica_engine *e = multipliers[config->knob[KNOB_ENGINE]];
    if (e->contract) e->contract(desc, &(mica_config){0}, c);
    double additions = (double)(p.parts + (p.shape.k - p.tail));
    if (!mica_dtype_is_integer(((const mica_gemm_desc *)desc)->a.dtype))
        c->n_outer += (int64_t)ceil(additions * 0x1p-24 / c->unit);
}

/* ---- plans ---- */

static void write_prologue(const mica_gemm_desc *d, const split *p, int team, mica_text *text)
{
    mica_prologue_int(text, "TEAM", team);
    mica_prologue_int(text, "SWAPPED", p->swapped);
    mica_prologue_int(text, "HAS_SCALE_A", mica_tensor_given(&d->scale_a));
    mica_prologue_int(text, "HAS_SCALE_B", mica_tensor_given(&d->scale_b));
    mica_prologue_type(text, "a_t", d->a.dtype);
    mica_prologue_type(text, "b_t", d->b.dtype);
    mica_prologue_type(text, "c_t", d->c.dtype);
    mica_prologue_type(text, "sum_t", sum_type(d));
    mica_prologue_type(text, "out_t", gemm_epilogue_type(d));
    mica_epilogue e = gemm_epilogue(d);
    mica_prologue_epilogue(text, &e);
}

static void fill_args(const mica_gemm_desc *d, const split *p, state *s)
{
    gemm_split_args *a = &s->args;
    a->gemm.shape = p->shape;
    gemm_args_fill(d, &a->gemm);
    a->lines = p->lines;
    a->across = p->across;
    a->pitch = p->pitch;
    a->part = p->lines * p->pitch;
    a->tail = p->tail;
    a->parts = p->parts;
    long long near = p->swapped ? p->shape.c_m : p->shape.c_n;
    int64_t steps = mica_access_step(p->swapped ? p->shape.c_n : p->shape.c_m, p->lines);
    bool vectors = near == 1 && mica_access_fit(VECTOR, steps) == VECTOR;
    s->c_bytes = vectors ? mica_access_bytes(d->c.dtype, VECTOR) : 0;
}

static mica_status build(mica_plan *plan)
{
    state *s;
    split p;
    const mica_gemm_desc *d = plan->desc;
    if (!from_config(d, &plan->config, &p))
        return mica_fail(MICA_UNSUPPORTED, "K = %lld has no %d parts by engine %d",
                         (long long)d->a.dims[d->a.rank - 1], plan->config.knob[KNOB_PARTS],
                         plan->config.knob[KNOB_ENGINE]);
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    fill_args(d, &p, s);
    size_t bytes = (size_t)s->args.part * (size_t)p.parts * sizeof(float);
    MICA_TRY(mica_book(plan, "sums of the parts of K", bytes, &s->partial_at));
    int team = team_of(&p, &plan->device);
    long long each = team > 1 ? 32 : THREADS;
    s->grid = (mica_grid){.grid = {(unsigned)ceiling(vectors_of(&p), each)},
                          .block = {team > 1 ? 32 * (unsigned)team : THREADS}};
    char text[4096];
    mica_text prologue = {text, sizeof text, 0};
    write_prologue(d, &p, team, &prologue);
    MICA_TRY(mica_plan_add_kernel(plan,
                                  &(mica_kernel_spec){.file = "ops/gemm/split/split_k.cu",
                                                      .entry = "gemm_split_k",
                                                      .prologue = text},
                                  &s->kernel));
    return mica_plan_child_create(plan, "gemm", &p.child, sizeof p.child,
                                  multipliers[plan->config.knob[KNOB_ENGINE]]->name, &s->child,
                                  &s->child_at);
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    gemm_split_args args = s->args;
    mica_run child = {.workspace = mica_at(r, s->child_at), .stream = r->stream};
    child.args[MICA_GEMM_A] = r->args[MICA_GEMM_A];
    child.args[MICA_GEMM_B] = r->args[MICA_GEMM_B];
    child.args[MICA_GEMM_C] = mica_at(r, s->partial_at);
    MICA_TRY(mica_plan_child_run(s->child, &child));
    gemm_args_bind(plan, r, &args.gemm);
    args.partial = mica_at(r, s->partial_at);
    args.whole = s->c_bytes && mica_access_starts(args.gemm.c, s->c_bytes);
    return mica_kernel_launch(s->kernel, &s->grid, r->stream, &args);
}

const mica_engine gemm_split_k = {.name = "split_k",
                                  .cuda = true,
                                  .knobs = knobs,
                                  .accepts = accepts,
                                  .configs = configs,
                                  .predict = predict,
                                  .contract = contract,
                                  .build = build,
                                  .run = run};
