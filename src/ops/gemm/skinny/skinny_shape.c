/* SPDX-License-Identifier: Apache-2.0
 * What the engines for few rows or columns of c can read. */
#include "ops/gemm/skinny/skinny.h"
#include "ops/access/access.h"

static bool is_float8(mica_dtype t)
{
    return t == MICA_E4M3 || t == MICA_E5M2;
}

int skinny_vector(const skinny_geometry *g)
{
    return mica_access_of(g->wide.dtype);
}

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

static mica_status check_stride(const skinny_operand *o, const char *what, long long dim,
                                long long stride, mica_why *why)
{
    long long bytes = stride * (mica_dtype_bits(o->dtype) / 8);
    if (dim == 1 || bytes % MICA_ACCESS_BYTES == 0) return MICA_OK;
    return mica_refuse(why, "%s of %s are %lld bytes apart, the rule is a multiple of %d", what,
                       o->name, bytes, MICA_ACCESS_BYTES);
}

static mica_status check_strides(const skinny_geometry *g, mica_why *why)
{
    const skinny_operand *w = &g->wide;
    if (!g->k_major && w->line_stride != 1 && w->lines != 1)
        return mica_refuse(why, "%s has strides %lld and %lld, one must be 1", w->name,
                           w->line_stride, w->k_stride);
    return MICA_OK;
}

mica_status skinny_check_aligned(const skinny_geometry *g, mica_why *why)
{
    const skinny_operand *w = &g->wide, *f = &g->few;
    const gemm_shape *s = &g->shape;
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

static void find_operands(const mica_gemm_desc *d, skinny_geometry *g)
{
    gemm_shape_make(d, &g->shape);
    const gemm_shape *s = &g->shape;
    skinny_operand a = {"a", d->a.dtype, s->m, s->a_m, s->a_k, s->a_batch};
    skinny_operand b = {"b", d->b.dtype, s->n, s->b_n, s->b_k, s->b_batch};
    g->swapped = s->n < s->m;
    g->wide = g->swapped ? a : b;
    g->few = g->swapped ? b : a;
    g->k_major = g->wide.k_stride == 1 || s->k == 1;
    g->few_k_major = g->few.k_stride == 1 || s->k == 1;
}

mica_status skinny_geometry_make(const mica_gemm_desc *d, const mica_device_info *device,
                                 skinny_geometry *g, mica_why *why)
{
    MICA_TRY(check_types(d, device, why));
    if (gemm_has_blocks(d)) return mica_refuse(why, "scales are of blocks, the rule is one a line");
    find_operands(d, g);
    const gemm_shape *s = &g->shape;
    if (s->k == 0 || s->batches == 0) return mica_refuse(why, "the product is empty");
    if (mica_dtype_is_integer(d->a.dtype) && s->k > 65536)
        return mica_refuse(why, "K is %lld, sums of 65536 products fit 32 bits", s->k);
    MICA_TRY(check_strides(g, why));
    mica_why unaligned;
    g->shifted = skinny_check_aligned(g, &unaligned) != MICA_OK;
    return MICA_OK;
}

void skinny_args_fill(const mica_gemm_desc *d, const skinny_geometry *g, gemm_skinny_args *args)
{
    args->gemm.shape = g->shape;
    gemm_args_fill(d, &args->gemm);
    args->wide = g->wide.lines;
    args->few = g->few.lines;
    args->wide_line = g->wide.line_stride;
    args->wide_k = g->wide.k_stride;
    args->few_line = g->few.line_stride;
    args->few_k = g->few.k_stride;
}

void skinny_state_fill(const mica_gemm_desc *d, const skinny_geometry *g, skinny_state *s)
{
    skinny_args_fill(d, g, &s->args);
    s->wide_span = mica_tensor_span(g->swapped ? &d->a : &d->b, &s->wide_first);
    s->few_span = mica_tensor_span(g->swapped ? &d->b : &d->a, &s->few_first);
    s->swapped = g->swapped;
}

mica_status skinny_run(const mica_plan *plan, const mica_run *r)
{
    const skinny_state *s = plan->state;
    gemm_skinny_args args = s->args;
    gemm_args_bind(plan, r, &args.gemm);
    args.whole = mica_access_starts(args.gemm.a, MICA_ACCESS_BYTES) &&
                 mica_access_starts(args.gemm.b, MICA_ACCESS_BYTES);
    const char *a = args.gemm.a, *b = args.gemm.b;
    args.wide_low = (s->swapped ? a : b) + s->wide_first;
    args.wide_high = args.wide_low + s->wide_span;
    args.few_low = (s->swapped ? b : a) + s->few_first;
    args.few_high = args.few_low + s->few_span;
    return mica_kernel_launch(s->kernel, &s->grid, r->stream, &args);
}

void skinny_prologue(const mica_gemm_desc *d, const skinny_geometry *g, mica_text *p)
{
    bool whole = mica_dtype_is_integer(d->a.dtype);
    mica_prologue_int(p, "SWAPPED", g->swapped);
    mica_prologue_int(p, "HAS_SCALE_A", mica_tensor_given(&d->scale_a));
    mica_prologue_int(p, "HAS_SCALE_B", mica_tensor_given(&d->scale_b));
    mica_prologue_type(p, "wide_t", g->wide.dtype);
    mica_prologue_type(p, "few_t", g->few.dtype);
    mica_prologue_type(p, "c_t", d->c.dtype);
    mica_prologue_type(p, "sum_t", whole ? MICA_S32 : MICA_F32);
    mica_prologue_type(p, "out_t", gemm_epilogue_type(d));
    mica_epilogue e = gemm_epilogue(d);
    mica_prologue_epilogue(p, &e);
}
