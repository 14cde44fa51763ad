/* SPDX-License-Identifier: Apache-2.0
 * Engines "gemm" of deform_conv: what taps read is written as a matrix, images at a time, and
 * multiplied with the filter by a child plan, which takes whatever engine is best for it; a filter
 * or result whose dimensions cannot be merged goes by way of a copy. Any types and strides. Cost:
 * the product, and N C R S P Q elements written and read. Workspace: that matrix of as many images
 * as 256 MiB hold, of one at least. */
#include "ops/deform_conv/deform_conv.h"
#include "mica/gemm.h"

typedef struct state {
    mica_deform_conv_args args;
    mica_kernel *kernel;
    mica_grid grid;
    mica_deform_conv_child product, copy_w, copy_y;
    size_t columns, w, y; /* copies, where there are some */
    int64_t images;       /* at a time */
} state;

static mica_status add_product(mica_plan *plan, state *s)
{
    const mica_deform_conv_desc *d = plan->desc;
    const mica_deform_conv_args *a = &s->args;
    const int64_t groups = d->groups, rows = d->w.dims[0] / groups, pixels = a->pixels;
    const int64_t terms = d->w.dims[1] * a->taps;
    mica_tensor w = d->w, y = d->y;
    const mica_dtype type = d->x.dtype;
    if (!mica_deform_conv_is_merged(&w, 1)) {
        w = mica_tensor_packed(type, 4, d->w.dims);
        MICA_TRY(mica_deform_conv_book(plan, "filter", &w, &s->w));
        MICA_TRY(mica_deform_conv_add_copy(plan, &s->copy_w, &d->w, &w));
    }
    if (!mica_deform_conv_is_merged(&y, 2)) {
        y = mica_tensor_packed(type, 4, d->y.dims);
        MICA_TRY(mica_deform_conv_book(plan, "result", &y, &s->y));
        MICA_TRY(mica_deform_conv_add_copy(plan, &s->copy_y, &y, &d->y));
    }
    const int64_t k = w.strides[0], n = y.strides[0], c = y.strides[1], b = d->bias.strides[0];
    mica_gemm_desc g = {.a = mica_deform_conv_matrices(
                            type, (int64_t[]){1, groups, rows, terms},
                            (int64_t[]){0, rows * k, k, mica_deform_conv_merged_stride(&w, 1)}),
                        .b = mica_deform_conv_matrices(
                            type, (int64_t[]){s->images, groups, terms, pixels},
                            (int64_t[]){groups * terms * pixels, terms * pixels, pixels, 1}),
                        .c = mica_deform_conv_matrices(
                            type, (int64_t[]){s->images, groups, rows, pixels},
                            (int64_t[]){n, rows * c, c, mica_deform_conv_merged_stride(&y, 2)})};
    if (mica_tensor_given(&d->bias)) {
        g.epilogue[0] = MICA_STEP_RESIDUAL;
        g.residual =
            mica_deform_conv_matrices(d->bias.dtype, g.c.dims, (int64_t[]){0, rows * b, b, 0});
    }
    return mica_plan_child_create(plan, "gemm", &g, sizeof g, NULL, &s->product.plan,
                                  &s->product.at);
}

static mica_status build(mica_plan *plan)
{
    const mica_deform_conv_desc *d = plan->desc;
    if (d->pass == MICA_DEFORM_CONV_DGRAD) return mica_deform_conv_build_dgrad(plan);
    if (d->pass == MICA_DEFORM_CONV_WGRAD) return mica_deform_conv_build_wgrad(plan);
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_deform_conv_args *a = &s->args;
    mica_deform_conv_args_make(d, a);
    if (mica_tensor_count(&d->y) == 0) return MICA_OK;
    s->images = a->images = mica_deform_conv_images(a, d->x.dtype);
    const int64_t bytes = a->images * a->column_image * (mica_dtype_bits(d->x.dtype) / 8);
    MICA_TRY(mica_book(plan, "columns", (size_t)bytes, &s->columns));
    MICA_TRY(mica_deform_conv_add_columns(plan, a, &s->kernel, &s->grid));
    return add_product(plan, s);
}

/* ---- runs ---- */

static mica_status run(const mica_plan *plan, const mica_run *run)
{
    const mica_deform_conv_desc *d = plan->desc;
    if (d->pass == MICA_DEFORM_CONV_DGRAD) return mica_deform_conv_run_dgrad(plan, run);
    if (d->pass == MICA_DEFORM_CONV_WGRAD) return mica_deform_conv_run_wgrad(plan, run);
    const state *s = plan->state;
    mica_deform_conv_args a = s->args;
    if (!s->product.plan) return MICA_OK;
    void *w = run->args[MICA_DEFORM_CONV_W], *y = run->args[MICA_DEFORM_CONV_Y];
    mica_tensor result = d->y;
    if (s->copy_w.plan) {
        void *const copy[] = {w, mica_at(run, s->w)};
        MICA_TRY(mica_deform_conv_run_child(&s->copy_w, run, copy, 2, NULL));
        w = copy[1];
    }
    if (s->copy_y.plan) {
        y = mica_at(run, s->y);
        result = mica_tensor_packed(d->y.dtype, 4, d->y.dims);
    }
    a.columns = mica_at(run, s->columns);
    for (int64_t n = 0; n < d->x.dims[0]; n += s->images) {
        a.x = mica_deform_conv_image(run->args[MICA_DEFORM_CONV_X], &d->x, n);
        a.offset = mica_deform_conv_image(run->args[MICA_DEFORM_CONV_OFFSET], &d->offset, n);
        if (mica_tensor_given(&d->mask))
            a.mask = mica_deform_conv_image(run->args[MICA_DEFORM_CONV_MASK], &d->mask, n);
        MICA_TRY(mica_deform_conv_write_columns(plan, s->kernel, &s->grid, &a, run->stream));
        void *args[MICA_GEMM_RESIDUAL + 1] = {0};
        args[MICA_GEMM_A] = w;
        args[MICA_GEMM_B] = a.columns;
        args[MICA_GEMM_C] = mica_deform_conv_image(y, &result, n);
        if (mica_tensor_given(&d->bias))
            args[MICA_GEMM_RESIDUAL] = run->args[MICA_DEFORM_CONV_BIAS];
        MICA_TRY(mica_deform_conv_run_child(&s->product, run, args, MICA_GEMM_RESIDUAL + 1, NULL));
    }
    if (!s->copy_y.plan) return MICA_OK;
    void *const copy[] = {y, run->args[MICA_DEFORM_CONV_Y]};
    return mica_deform_conv_run_child(&s->copy_y, run, copy, 2, NULL);
}

const mica_engine mica_deform_conv_cpu = {
    .name = "gemm", .reached = 0.2, .start_ms = 2e-3, .build = build, .run = run};
const mica_engine mica_deform_conv_cuda = {
    .name = "gemm", .cuda = true, .reached = 0.3, .start_ms = 1e-2, .build = build, .run = run};
