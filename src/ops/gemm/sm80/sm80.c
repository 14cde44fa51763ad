/* SPDX-License-Identifier: Apache-2.0
 * gemm on the tensor cores of sm_80 and later: f16, bf16, f32 as tf32, s8 and u8 (sums in s32); any
 * strides, no workspace. Good for all that the engines of later generations refuse (unaligned
 * lines, odd strides) and for every GPU without them. Cost: 2MNK at about 0.8 of the rate of
 * mma.sync where lines allow 16-byte accesses, 0.3 where elements are read one by one. Gates, aux
 * and quantised results come from a kernel of their own.
 *
 * Engine "sm80_f32" is the same for f32 in full precision: three products of tf32 numbers for one,
 * and their errors near those of plain multiply-adds (ops/mma/mma_tile.c has the account). Good
 * where the tensor cores are more than some four times as fast in tf32 as plain f32 is: sm_80,
 * sm_90; not sm_89. */
#include "ops/gemm/sm80/sm80.h"
#include "ops/gemm/sm80/sm80_args.h"
#include "ops/gemm/sm80/sm80_full_args.h"
#include "ops/access/access.h"

#include <stdlib.h>

enum { KNOB_TILE_M, KNOB_TILE_N };
static const char *const knobs[] = {"tile_m", "tile_n", NULL};

enum {
    MOST_INTEGER_TERMS = 65536, /* products of u8 and s8 stay inside 31 bits */
    LEAST_LINES = 48            /* fewer leave most of a tile empty, three times over */
};

typedef struct state {
    gemm_sm80_full_args args; /* all but pointers and scalars */
    bool extra;               /* else the plain kernel gets what it knows of them */
    mica_mma_tile tile;
    int residual_vector;                      /* elements of one access; 0: there are none */
    int64_t a_first, a_span, b_first, b_span; /* bytes of the operands' memory */
    mica_kernel *kernel;
    mica_grid grid;
} state;

static bool is_precise(const mica_gemm_desc *d)
{
    return d->a.dtype == MICA_F32 && d->compute != MICA_COMPUTE_TF32;
}

static mica_status accepts_arch(const mica_device_info *device, mica_why *why)
{
    if (device->arch >= 80) return MICA_OK;
    return mica_refuse(why, "the device is sm_%d, its tensor cores are used from sm_80 on",
                       device->arch);
}

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    const mica_gemm_desc *d = desc;
    mica_dtype a = d->a.dtype, b = d->b.dtype;
    long long k = d->a.dims[d->a.rank - 1];
    MICA_TRY(accepts_arch(device, why));
    if (a == MICA_S8 || a == MICA_U8) {
        if (k <= MOST_INTEGER_TERMS) return MICA_OK;
        return mica_refuse(why, "k is %lld, sums of 8-bit integers hold %d products in s32", k,
                           MOST_INTEGER_TERMS);
    }
    if (a != b)
        return mica_refuse(why, "a is %s and b is %s, tensor cores take one type",
                           mica_dtype_name(a), mica_dtype_name(b));
    if (is_precise(d))
        return mica_refuse(why, "f32 without compute=tf32: this engine would round the inputs");
    if (a == MICA_F32 || a == MICA_F16 || a == MICA_BF16) return MICA_OK;
    return mica_refuse(why, "a is %s, these kernels take f16, bf16, s8, u8, and f32 as tf32",
                       mica_dtype_name(a));
}

/* ---- shapes ---- */

bool gemm_sm80_is_faster(long long x_stride, long long x, long long y_stride, long long y)
{
    return y == 1 || (x != 1 && llabs(x_stride) <= llabs(y_stride));
}

int gemm_sm80_vector(mica_dtype dtype, const gemm_shape *s, long long fast, long long slow,
                     bool slow_counts, const long long *batch)
{
    int64_t steps = slow_counts ? slow : 0;
    for (int i = 0; i < s->batch_rank; i++) steps |= batch[i];
    return mica_access_along(dtype, fast, steps);
}

mica_mma_operand gemm_sm80_operand(mica_dtype dtype, const gemm_shape *s, long long line_stride,
                                   long long lines, long long k_stride, const long long *batch)
{
    mica_mma_operand o = {.dtype = dtype,
                          .k_fast = gemm_sm80_is_faster(k_stride, s->k, line_stride, lines)};
    if (o.k_fast)
        o.vector = gemm_sm80_vector(dtype, s, k_stride, line_stride, lines > 1, batch);
    else
        o.vector = gemm_sm80_vector(dtype, s, line_stride, k_stride, s->k > 1, batch);
    /* bytes are transposed as they are stored to shared memory */
    if (!o.k_fast && mica_dtype_bits(dtype) == 8) o.vector = 1;
    return o;
}

/* The product's own: with a gate all its columns. Neighbours need no partner. */
static void make_shape(const mica_gemm_desc *d, gemm_shape *s, gemm_full_epilogue *e)
{
    gemm_shape_make_full_epilogue(d, s, e);
    if (d->gate) s->n *= 2;
    if (d->gate == MICA_GEMM_GATE_PAIRS) s->b_n /= 2;
}

/* Whether what lies side by side, `stride` apart, is read in 16 bytes all the same. */
static bool is_shifted(const mica_mma_operand *o, long long stride)
{
    bool across = !o->k_fast && mica_dtype_bits(o->dtype) == 8;
    return stride == 1 && !across && mica_mma_is_staged(o);
}

static void fill_tile(const mica_gemm_desc *d, const gemm_shape *s, const gemm_full_epilogue *e,
                      const mica_config *c, mica_mma_tile *t)
{
    t->tile_m = c->knob[KNOB_TILE_M];
    t->tile_n = c->knob[KNOB_TILE_N];
    t->a = gemm_sm80_operand(d->a.dtype, s, s->a_m, s->m, s->a_k, s->a_batch);
    t->b = gemm_sm80_operand(d->b.dtype, s, s->b_n, s->n, s->b_k, s->b_batch);
    if (!gemm_has_full_epilogue(d)) {
        t->a.shifted = is_shifted(&t->a, t->a.k_fast ? s->a_k : s->a_m);
        t->b.shifted = is_shifted(&t->b, t->b.k_fast ? s->b_k : s->b_n);
    }
    if (d->gate == MICA_GEMM_GATE_HALVES) t->b.vector = mica_access_fit(t->b.vector, e->partner);
    t->c = d->c.dtype;
    t->precise = is_precise(d);
    t->c_n_fast = gemm_sm80_is_faster(s->c_n, s->n, s->c_m, s->m);
    t->c_vector = t->c_n_fast ? gemm_sm80_vector(t->c, s, s->c_n, s->c_m, s->m > 1, s->c_batch)
                              : gemm_sm80_vector(t->c, s, s->c_m, s->c_n, s->n > 1, s->c_batch);
    if (t->c_vector > 8) t->c_vector = 8;
}

/* The residual beside what is stored at once, if its strides allow one access. */
static int residual_vector(const mica_gemm_desc *d, const gemm_shape *s, const mica_mma_tile *t)
{
    mica_dtype type = d->residual.dtype;
    if (!mica_tensor_given(&d->residual)) return 0;
    int most = mica_access_of(type), wanted = t->c_vector < most ? t->c_vector : most;
    int vector = t->c_n_fast ? gemm_sm80_vector(type, s, s->r_n, s->r_m, s->m > 1, s->r_batch)
                             : gemm_sm80_vector(type, s, s->r_m, s->r_n, s->n > 1, s->r_batch);
    return vector >= wanted ? wanted : 0;
}

static mica_status accepts_f32(const void *desc, const mica_device_info *device, mica_why *why)
{
    const mica_gemm_desc *d = desc;
    gemm_shape s;
    MICA_TRY(accepts_arch(device, why));
    if (d->a.dtype != MICA_F32 || d->b.dtype != MICA_F32)
        return mica_refuse(why, "a is %s and b is %s, these kernels take f32",
                           mica_dtype_name(d->a.dtype), mica_dtype_name(d->b.dtype));
    if (!is_precise(d)) return mica_refuse(why, "compute=tf32, this engine is for full precision");
    MICA_TRY(gemm_refuse_full_epilogue(d, why));
    gemm_shape_make(d, &s);
    if (s.m > LEAST_LINES && s.n > LEAST_LINES) return MICA_OK;
    return mica_refuse(why, "c is %lld x %lld: tiles of 64 would be empty but for %d lines or less",
                       s.m, s.n, LEAST_LINES);
}

static int64_t tiles_of(const gemm_shape *s, const mica_mma_tile *t)
{
    return (s->m + t->tile_m - 1) / t->tile_m * ((s->n + t->tile_n - 1) / t->tile_n) * s->batches;
}

static int configs(const void *desc, const mica_device_info *device, mica_config *out)
{
    (void)device;
    gemm_shape s;
    gemm_full_epilogue e;
    mica_mma_tile t;
    make_shape(desc, &s, &e);
    fill_tile(desc, &s, &e, &(mica_config){0}, &t);
    return mica_mma_configs(&t, s.m, s.n, out);
}

static bool is_narrow(const mica_mma_operand *o)
{
    return !o->shifted && o->vector * mica_dtype_bits(o->dtype) / 8 == 4;
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *c)
{
    const double launch_ms = 3e-3, words = 1.5; /* pieces of four bytes */
    gemm_shape s;
    gemm_full_epilogue e;
    mica_mma_tile t;
    make_shape(desc, &s, &e);
    if (s.batches == 0) return 0;
    fill_tile(desc, &s, &e, c, &t);
    double reached = s.m <= 32 || s.n <= 32 ? 0.6 : 0.7; /* of the bandwidth */
    double compute = mica_mma_predict(device, &t, (double)tiles_of(&s, &t), (double)s.k);
    if (s.k >= 256 && (is_narrow(&t.a) || is_narrow(&t.b))) compute *= words;
    double memory = mica_op_bytes(&mica_op_gemm, desc) / (reached * device->copy_gbps * 1e6);
    return launch_ms + (compute > memory ? compute : memory);
}

static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    (void)config;
    if (is_precise(desc))
        mica_mma_precise_contract(c);
    else
        mica_mma_contract(((const mica_gemm_desc *)desc)->a.dtype, c);
}

/* ---- plan ---- */

static void write_prologue(const mica_gemm_desc *d, const mica_mma_tile *t, mica_text *p)
{
    mica_mma_prologue(p, t);
    mica_prologue_int(p, "HAS_SCALE_A", mica_tensor_given(&d->scale_a));
    mica_prologue_int(p, "HAS_SCALE_B", mica_tensor_given(&d->scale_b));
    mica_prologue_type(p, "out_t", gemm_epilogue_type(d));
    mica_epilogue e = gemm_epilogue(d);
    mica_prologue_epilogue(p, &e);
}

static mica_status build(mica_plan *plan)
{
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    const mica_gemm_desc *d = plan->desc;
    gemm_full_args *a = &s->args.x;
    gemm_full_fill(d, a);
    make_shape(d, &a->gemm.shape, &a->extra);
    s->extra = gemm_has_full_epilogue(d);
    fill_tile(d, &a->gemm.shape, &a->extra, &plan->config, &s->tile);
    s->a_span = mica_tensor_span(&d->a, &s->a_first);
    s->b_span = mica_tensor_span(&d->b, &s->b_first);
    s->residual_vector = residual_vector(d, &a->gemm.shape, &s->tile);
    int64_t tiles = tiles_of(&a->gemm.shape, &s->tile);
    if (tiles == 0) return MICA_OK;
    int shared = mica_mma_shared_bytes(&s->tile);
    s->grid = (mica_grid){.grid = {tiles < INT32_MAX ? (unsigned)tiles : INT32_MAX},
                          .block = {(unsigned)mica_mma_threads(&s->tile)},
                          .dynamic_shared = (unsigned)shared};
    char text[4096];
    mica_text prologue = {text, sizeof text, 0};
    write_prologue(d, &s->tile, &prologue);
    mica_kernel_spec spec = {.file = "ops/gemm/sm80/sm80.cu",
                             .entry = "gemm_sm80",
                             .prologue = text,
                             .dynamic_shared = shared};
    if (s->extra) {
        gemm_full_prologue(d, &prologue);
        mica_prologue_int(&prologue, "HALVES", d->gate == MICA_GEMM_GATE_HALVES);
        spec.file = "ops/gemm/sm80/sm80_full.cu";
        spec.entry = "gemm_sm80_full";
    }
    return mica_plan_add_kernel(plan, &spec, &s->kernel);
}

bool gemm_sm80_is_aligned(const void *pointer, mica_dtype dtype, int vector)
{
    return mica_access_starts(pointer, mica_access_bytes(dtype, vector));
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const mica_gemm_desc *d = plan->desc;
    const state *s = plan->state;
    if (s->extra) MICA_TRY(gemm_full_begin(plan, r));
    if (!s->kernel) return MICA_OK;
    gemm_sm80_full_args a = s->args;
    gemm_full_bind(plan, r, &a.x);
    const gemm_args *g = &a.x.gemm;
    a.a_aligned = gemm_sm80_is_aligned(g->a, s->tile.a.dtype, s->tile.a.vector);
    a.b_aligned = gemm_sm80_is_aligned(g->b, s->tile.b.dtype, s->tile.b.vector);
    a.c_aligned = gemm_sm80_is_aligned(g->c, s->tile.c, s->tile.c_vector);
    if (s->extra) return mica_kernel_launch(s->kernel, &s->grid, r->stream, &a);
    const char *a_low = (const char *)g->a + s->a_first, *b_low = (const char *)g->b + s->b_first;
    gemm_sm80_args plain = {
        *g,
        a.a_aligned,
        a.b_aligned,
        a.c_aligned,
        s->residual_vector &&
            gemm_sm80_is_aligned(g->epilogue.residual, d->residual.dtype, s->residual_vector),
        a_low,
        a_low + s->a_span,
        b_low,
        b_low + s->b_span};
    return mica_kernel_launch(s->kernel, &s->grid, r->stream, &plain);
}

const mica_engine gemm_sm80 = {.name = "sm80",
                               .cuda = true,
                               .knobs = knobs,
                               .accepts = accepts,
                               .configs = configs,
                               .predict = predict,
                               .contract = contract,
                               .build = build,
                               .run = run};

const mica_engine gemm_sm80_f32 = {.name = "sm80_f32",
                                   .cuda = true,
                                   .knobs = knobs,
                                   .accepts = accepts_f32,
                                   .configs = configs,
                                   .predict = predict,
                                   .contract = contract,
                                   .build = build,
                                   .run = run};
