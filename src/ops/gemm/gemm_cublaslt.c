/* SPDX-License-Identifier: Apache-2.0
 * Engine "peer/cublaslt": NVIDIA's library where it is found, to measure against in one process.
 * Taken only when asked for by name. The library counts columns first, so it is given the transpose
 * of the whole problem: c' = b' a'. Configs are its own candidates, best first by its heuristic. */
#include "ops/gemm/gemm_shape.h"

#include "cuda/cublaslt.h"

enum { RANKS = 5 };
static const int64_t WORKSPACE = 64 << 20; /* what NVIDIA's documentation advises is half of it */

static const char *const knobs[] = {"rank", NULL};

typedef struct state {
    mica_cublaslt *product;
    size_t workspace;
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
    if (d->epilogue[i] == MICA_STEP_BIAS && d->bias.strides[0] == 1) {
        spec->bias = d->bias.dtype;
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
    if (device->offline) return mica_refuse(why, "cuBLASLt needs a device, this one is imagined");
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

/* Its kernels add in the matrix units' way and may split K; nothing more is known of them. */
static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    (void)desc, (void)config;
    c->truncates = true;
}

static mica_status build(mica_plan *plan)
{
    state *s;
    mica_cublaslt_spec spec;
    mica_why why = {""};
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    if (make_spec(plan->desc, &spec, &why) != MICA_OK)
        return mica_fail(MICA_UNSUPPORTED, "%s", why.text);
    MICA_TRY(mica_cublaslt_create(plan->cuda, &spec, plan->config.knob[0], WORKSPACE, &s->product));
    size_t bytes = mica_cublaslt_workspace(s->product);
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
    return mica_cublaslt_run(s->product, &args);
}

static void destroy(mica_plan *plan)
{
    state *s = plan->state;
    if (s) mica_cublaslt_destroy(s->product);
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
