/* SPDX-License-Identifier: Apache-2.0
 * Gradients of filter and bias: columns as in the forward pass, but for each of their rows all
 * images at a time in a row, so that one product has sums over images and pixels; dbias is a
 * reduction of dy. Where the memory of columns is not for all images, products are added in the
 * type of sums. dy goes by way of a copy where images and pixels cannot be merged. */
#include "ops/deform_conv/deform_conv.h"
#include "mica/gemm.h"
#include "mica/reduce.h"

#include <string.h>

typedef struct state {
    mica_deform_conv_args args;
    mica_kernel *kernel;
    mica_grid grid;
    mica_deform_conv_child product, copy_dy, copy_dw, bias;
    mica_tensor dy; /* K x images x spatial, as N x K x spatial, of some images */
    size_t columns, dy_at, dw_at;
    int64_t images; /* at a time */
} state;

static bool are_images_merged(const mica_tensor *dy, int64_t images)
{
    const int64_t pixels = dy->dims[2] * dy->dims[3];
    return mica_deform_conv_is_merged(dy, 2) &&
           (images == 1 || pixels == 1 ||
            dy->strides[0] == pixels * mica_deform_conv_merged_stride(dy, 2));
}

static mica_status add_dy(mica_plan *plan, state *s)
{
    const mica_deform_conv_desc *d = plan->desc;
    const int64_t pixels = s->args.pixels, images = s->images;
    s->dy = d->dy;
    s->dy.dims[0] = d->dy.dims[0] ? images : 0;
    if (are_images_merged(&s->dy, images)) return MICA_OK;
    const mica_tensor from = s->dy;
    const int64_t steps[] = {pixels, images * pixels, s->dy.dims[3], 1};
    memcpy(s->dy.strides, steps, sizeof steps);
    MICA_TRY(mica_deform_conv_book(plan, "gradient of y", &s->dy, &s->dy_at));
    return mica_deform_conv_add_copy(plan, &s->copy_dy, &from, &s->dy);
}

static mica_status add_product(mica_plan *plan, state *s)
{
    const mica_deform_conv_desc *d = plan->desc;
    const mica_deform_conv_args *a = &s->args;
    const int64_t groups = d->groups, rows = d->dw.dims[0] / groups, step = s->images * a->pixels;
    const int64_t terms = d->dw.dims[1] * a->taps, sums = d->x.dims[0] ? step : 0;
    const mica_dtype type = d->x.dtype;
    mica_tensor dw = d->dw;
    if (!mica_deform_conv_is_merged(&dw, 1) || s->images < d->x.dims[0]) {
        dw = mica_tensor_packed(mica_dtype_accumulator(type), 4, d->dw.dims);
        MICA_TRY(mica_deform_conv_book(plan, "gradient of the filter", &dw, &s->dw_at));
        MICA_TRY(mica_deform_conv_add_copy(plan, &s->copy_dw, &dw, &d->dw));
    }
    const int64_t k = dw.strides[0], c = s->dy.strides[1];
    /* Of images in a row, or of one pixel each. */
    const int64_t pixel =
        a->pixels == 1 ? s->dy.strides[0] : mica_deform_conv_merged_stride(&s->dy, 2);
    const mica_gemm_desc g = {
        .a = mica_deform_conv_matrices(type, (int64_t[]){1, groups, rows, sums},
                                       (int64_t[]){0, rows * c, c, pixel}),
        .b = mica_deform_conv_matrices(type, (int64_t[]){1, groups, sums, terms},
                                       (int64_t[]){0, terms * step, 1, step}),
        .c = mica_deform_conv_matrices(
            dw.dtype, (int64_t[]){1, groups, rows, terms},
            (int64_t[]){0, rows * k, k, mica_deform_conv_merged_stride(&dw, 1)})};
    return mica_plan_child_create(plan, "gemm", &g, sizeof g, NULL, &s->product.plan,
                                  &s->product.at);
}

mica_status mica_deform_conv_build_wgrad(mica_plan *plan)
{
    const mica_deform_conv_desc *d = plan->desc;
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_deform_conv_args *a = &s->args;
    mica_deform_conv_args_make(d, a);
    s->images = mica_deform_conv_images(a, d->x.dtype);
    if (a->images) a->images = s->images;
    a->column_row = s->images * a->pixels, a->column_image = a->pixels;
    const int64_t bytes = a->channels * a->taps * a->column_row * (mica_dtype_bits(d->x.dtype) / 8);
    MICA_TRY(mica_book(plan, "columns", (size_t)bytes, &s->columns));
    MICA_TRY(mica_deform_conv_add_columns(plan, a, &s->kernel, &s->grid));
    MICA_TRY(add_dy(plan, s));
    MICA_TRY(add_product(plan, s));
    if (!mica_tensor_given(&d->dbias)) return MICA_OK;
    const mica_reduce_desc r = {
        .x = d->dy,
        .y = d->dbias,
        .axes = {MICA_REDUCE_AXIS(0), MICA_REDUCE_AXIS(2), MICA_REDUCE_AXIS(3)}};
    return mica_plan_child_create(plan, "reduce", &r, sizeof r, NULL, &s->bias.plan, &s->bias.at);
}

static mica_status run_images(const mica_plan *plan, const mica_run *run, int64_t n, void *dw)
{
    const mica_deform_conv_desc *d = plan->desc;
    const state *s = plan->state;
    mica_deform_conv_args a = s->args;
    a.columns = mica_at(run, s->columns);
    a.x = mica_deform_conv_image(run->args[MICA_DEFORM_CONV_X], &d->x, n);
    a.offset = mica_deform_conv_image(run->args[MICA_DEFORM_CONV_OFFSET], &d->offset, n);
    if (mica_tensor_given(&d->mask))
        a.mask = mica_deform_conv_image(run->args[MICA_DEFORM_CONV_MASK], &d->mask, n);
    MICA_TRY(mica_deform_conv_write_columns(plan, s->kernel, &s->grid, &a, run->stream));
    void *dy = mica_deform_conv_image(run->args[MICA_DEFORM_CONV_DY], &d->dy, n);
    if (s->copy_dy.plan) {
        void *const copy[] = {dy, mica_at(run, s->dy_at)};
        MICA_TRY(mica_deform_conv_run_child(&s->copy_dy, run, copy, 2, NULL));
        dy = copy[1];
    }
    void *args[MICA_GEMM_C + 1] = {0};
    args[MICA_GEMM_A] = dy;
    args[MICA_GEMM_B] = a.columns;
    args[MICA_GEMM_C] = dw;
    const double scalars[] = {[MICA_GEMM_ALPHA] = 1, [MICA_GEMM_BETA] = n > 0};
    return mica_deform_conv_run_child(&s->product, run, args, MICA_GEMM_C + 1, scalars);
}

mica_status mica_deform_conv_run_wgrad(const mica_plan *plan, const mica_run *run)
{
    const mica_deform_conv_desc *d = plan->desc;
    const state *s = plan->state;
    void *result = run->args[MICA_DEFORM_CONV_DW];
    void *dw = s->copy_dw.plan ? mica_at(run, s->dw_at) : result;
    int64_t n = 0;
    do { /* of no image the sum of nothing */
        MICA_TRY(run_images(plan, run, n, dw));
        n += s->images;
    } while (n < d->x.dims[0]);
    if (s->copy_dw.plan) {
        void *const copy[] = {dw, result};
        MICA_TRY(mica_deform_conv_run_child(&s->copy_dw, run, copy, 2, NULL));
    }
    if (!s->bias.plan) return MICA_OK;
    void *const bias[] = {run->args[MICA_DEFORM_CONV_DY], run->args[MICA_DEFORM_CONV_DBIAS]};
    return mica_deform_conv_run_child(&s->bias, run, bias, 2, NULL);
}
