/* SPDX-License-Identifier: Apache-2.0
 * Engine "peer/cublaslt": NVIDIA's library where it is found, to measure against in one process.
 * Taken only when asked for by name. The library counts columns first, so it is given the transpose
 * of the whole problem: c' = b' a'. Configs are its own candidates, best first by its heuristic;
 * another product stands by for pointers that are not aligned. */
#include "ops/gemm/gemm_shape.h"
#include "ops/mma/mma_tile.h"

#include "peers/cublaslt.h"

#include <math.h>

enum { RANKS = 8, ALIGNMENT = 256 }; /* what the library's search assumes and cudaMalloc gives */
static const int64_t WORKSPACE = 64 << 20; /* what NVIDIA's documentation advises is half of it */

static const char *const knobs[] = {"rank", NULL};

typedef struct state {
    mica_cublaslt *product, *unaligned; /* unaligned NULL: the library has none */
    size_t workspace;
    double step; /* alpha and beta are multiples of it; 0: any */
} state;

/* A rows x cols matrix with the given strides, one of which must be 1. */
static mica_status describe(const char *name, mica_dtype dtype, int64_t rows, int64_t row_stride,
                            int64_t cols, int64_t col_stride, int64_t batch_stride,
                            mica_cublaslt_matrix *m, mica_why *why)
{
    bool plain = row_stride == 1 || rows == 1;
    int64_t least = plain ? rows : cols, ld = plain ? col_stride : row_stride;
    if (!plain && col_stride != 1 && cols != 1)
        return mica_refuse(why, "%s has strides %lld and %lld: cuBLASLt wants one to be 1", name,
                           (long long)row_stride, (long long)col_stride);
    if ((plain ? cols : rows) == 1) ld = least;
    if (ld < least)
        return mica_refuse(why, "%s has stride %lld, less than its %lld elements", name,
                           (long long)ld, (long long)least);
    *m = (mica_cublaslt_matrix){.dtype = dtype,
                                .transposed = !plain,
                                .rows = plain ? rows : cols,
                                .cols = plain ? cols : rows,
                                .ld = ld,
                                .batch_stride = batch_stride};
    return MICA_OK;
}

static mica_status add_epilogue(const mica_gemm_desc *d, mica_cublaslt_spec *spec, mica_why *why)
{
    int i = 0;
    mica_dtype c = d->c.dtype,
               bias = mica_dtype_bits(d->a.dtype) == 8 && c == MICA_F32 ? MICA_BF16 : c;
    if (d->epilogue[0] && mica_dtype_is_integer(d->a.dtype))
        return mica_refuse(why, "epilogue: cuBLASLt has none for sums in s32");
    if (d->epilogue[i] == MICA_STEP_BIAS) {
        if (d->bias.dtype != bias || (d->bias.strides[0] != 1 && d->bias.dims[0] > 1))
            return mica_refuse(why,
                               "bias is %s with stride %lld: cuBLASLt wants %s and 1 where c is %s",
                               mica_dtype_name(d->bias.dtype), (long long)d->bias.strides[0],
                               mica_dtype_name(bias), mica_dtype_name(c));
        spec->bias = bias;
        i++;
    }
    if (d->epilogue[i] == MICA_STEP_ACT + MICA_ACT_RELU) {
        spec->relu = true;
        i++;
    }
    if (d->epilogue[i])
        return mica_refuse(why, "epilogue: cuBLASLt has bias and relu, not %s here",
                           mica_step_spellings[d->epilogue[i]]);
    return MICA_OK;
}

static mica_status check_numbers(const mica_gemm_desc *d, const gemm_shape *s, mica_why *why)
{
    if (s->m == 0 || s->n == 0 || s->k == 0 || s->batches == 0)
        return mica_refuse(why, "a matrix without elements");
    if (s->batch_rank > 1)
        return mica_refuse(why, "%d batch dimensions: cuBLASLt has one", s->batch_rank);
    bool fp8 = mica_dtype_bits(d->a.dtype) == 8 && d->a.dtype != MICA_S8;
    if (d->a.dtype == MICA_U8 || (d->a.dtype != d->b.dtype && !fp8))
        return mica_refuse(why, "%s by %s: cuBLASLt multiplies equal types",
                           mica_dtype_name(d->a.dtype), mica_dtype_name(d->b.dtype));
    if (d->a.dtype == MICA_S8 && d->c.dtype != MICA_S32)
        return mica_refuse(why, "c is %s: cuBLASLt is asked for s32 where a is s8",
                           mica_dtype_name(d->c.dtype));
    if (!fp8 && (mica_tensor_given(&d->scale_a) || mica_tensor_given(&d->scale_b)))
        return mica_refuse(why, "scales: cuBLASLt has them for e4m3 and e5m2, a is %s",
                           mica_dtype_name(d->a.dtype));
    if (mica_tensor_count(&d->scale_a) > 1 || mica_tensor_count(&d->scale_b) > 1)
        return mica_refuse(why, "scales per row or column: cuBLASLt takes one of each here");
    return MICA_OK;
}

static mica_status make_spec(const mica_gemm_desc *d, mica_cublaslt_spec *spec, mica_why *why)
{
    gemm_shape s;
    gemm_shape_make(d, &s);
    MICA_TRY(check_numbers(d, &s, why));
    bool batched = s.batch_rank == 1;
    *spec = (mica_cublaslt_spec){.batches = s.batches,
                                 .tf32 = d->compute == MICA_COMPUTE_TF32,
                                 .alignment = ALIGNMENT,
                                 .scale_a = mica_tensor_given(&d->scale_b),
                                 .scale_b = mica_tensor_given(&d->scale_a)};
    MICA_TRY(describe("b", d->b.dtype, s.n, s.b_n, s.k, s.b_k, batched ? s.b_batch[0] : 0, &spec->a,
                      why));
    MICA_TRY(describe("a", d->a.dtype, s.k, s.a_k, s.m, s.a_m, batched ? s.a_batch[0] : 0, &spec->b,
                      why));
    MICA_TRY(describe("c", d->c.dtype, s.n, s.c_n, s.m, s.c_m, batched ? s.c_batch[0] : 0, &spec->d,
                      why));
    if (spec->d.transposed) return mica_refuse(why, "c is stored column by column");
    return add_epilogue(d, spec, why);
}

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    mica_cublaslt_spec spec;
    MICA_TRY(gemm_refuse_full_epilogue(desc, why));
    if (device->offline) return mica_refuse(why, "cuBLASLt needs a device, this one is offline");
    MICA_TRY(make_spec(desc, &spec, why));
    if (mica_cublaslt_load() != MICA_OK) return mica_refuse(why, "%s", mica_error());
    return MICA_OK;
}

static int configs(const void *desc, const mica_device_info *device, mica_config *list)
{
    (void)desc, (void)device;
    for (int i = 0; i < RANKS; i++) list[i].knob[0] = i;
    return RANKS;
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    return mica_roofline_ms(&mica_op_gemm, desc, device) * (1.2 + 1e-3 * config->knob[0]) + 3e-3;
}

/* Its kernels add in the tensor cores' way and may split K; nothing more is known of them. 8-bit
 * floats keep 13 bits behind the point for a slice, as ours do. */
static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    (void)config;
    const mica_gemm_desc *d = desc;
    mica_dtype in = d->a.dtype;
    int64_t k = d->a.dims[d->a.rank - 1];
    if (in == MICA_F64 || (in == MICA_F32 && d->compute != MICA_COMPUTE_TF32)) return;
    mica_mma_contract(in, c);
    if (mica_dtype_bits(in) > 8 || in == MICA_S8) return;
    c->unit = 0x1p-14;
    c->k_inst = 16;
    c->n_seq = (k < 128 ? k : 128) + 16;
}

static unsigned least_alignment(const mica_cublaslt_spec *spec)
{
    const mica_dtype all[] = {spec->a.dtype, spec->b.dtype, spec->d.dtype};
    unsigned least = ALIGNMENT;
    for (int i = 0; i < 3; i++) {
        unsigned bytes = (unsigned)mica_dtype_bits(all[i]) / 8;
        if (bytes < least) least = bytes;
    }
    return least;
}

static mica_status build(mica_plan *plan)
{
    state *s;
    mica_cublaslt_spec spec;
    mica_why why = {""};
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    if (make_spec(plan->desc, &spec, &why) != MICA_OK)
        return mica_fail(MICA_UNSUPPORTED, "%s", why.text);
    if (((const mica_gemm_desc *)plan->desc)->a.dtype == MICA_S8) s->step = 1;
    MICA_TRY(mica_cublaslt_create(plan->cuda, &spec, plan->config.knob[0], WORKSPACE, &s->product));
    size_t bytes = mica_cublaslt_workspace(s->product), other = 0;
    spec.alignment = least_alignment(&spec);
    if (mica_cublaslt_create(plan->cuda, &spec, 0, WORKSPACE, &s->unaligned) == MICA_OK)
        other = mica_cublaslt_workspace(s->unaligned);
    if (other > bytes) bytes = other;
    return bytes ? mica_book(plan, "cublaslt", bytes, &s->workspace) : MICA_OK;
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    mica_cublaslt_args args = {.a = r->args[MICA_GEMM_B],
                               .b = r->args[MICA_GEMM_A],
                               .d = r->args[MICA_GEMM_C],
                               .bias = r->args[MICA_GEMM_BIAS],
                               .scale_a = r->args[MICA_GEMM_SCALE_B],
                               .scale_b = r->args[MICA_GEMM_SCALE_A],
                               .workspace = plan->workspace ? mica_at(r, s->workspace) : NULL,
                               .stream = r->stream,
                               .alpha = mica_run_scalar(plan, r, MICA_GEMM_ALPHA),
                               .beta = mica_run_scalar(plan, r, MICA_GEMM_BETA)};
    if (s->step != 0 && (fmod(args.alpha, s->step) != 0 || fmod(args.beta, s->step) != 0))
        return mica_fail(MICA_UNSUPPORTED, "alpha is %g and beta %g: cuBLASLt takes them as s32",
                         args.alpha, args.beta);
    const void *const pointers[] = {args.a, args.b, args.d, args.bias};
    uintptr_t bits = 0;
    for (int i = 0; i < 4; i++) bits |= (uintptr_t)pointers[i];
    bool aligned = bits % ALIGNMENT == 0;
    if (!aligned && !s->unaligned)
        return mica_fail(MICA_UNSUPPORTED,
                         "pointers are multiples of %lld bytes, cuBLASLt has no kernel for that",
                         (long long)(bits & -bits));
    return mica_cublaslt_run(aligned ? s->product : s->unaligned, &args);
}

static void destroy(mica_plan *plan)
{
    state *s = plan->state;
    if (!s) return;
    mica_cublaslt_destroy(s->product);
    mica_cublaslt_destroy(s->unaligned);
}

const mica_engine gemm_cublaslt = {.name = "peer/cublaslt",
                                   .cuda = true,
                                   .peer = true,
                                   .knobs = knobs,
                                   .accepts = accepts,
                                   .configs = configs,
                                   .predict = predict,
                                   .contract = contract,
                                   .build = build,
                                   .run = run,
                                   .destroy = destroy};
