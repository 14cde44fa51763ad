/* SPDX-License-Identifier: Apache-2.0
 * Gradients of x, offsets and mask: the gradient of columns is a product of the filter and that of
 * y, by a child plan, images at a time. x adds up what read its elements: on a GPU by lists of
 * taps (ops/taps), on the CPU in the order of taps and pixels. Offsets and masks have a kernel
 * whose warps share out the channels. A filter or gradient whose dimensions cannot be merged goes
 * by way of a copy, as does dx on a GPU where it has several offset groups and is not N C H W.
 * Cost: the product; N C R S P Q elements written once, and read four times for x, once for
 * offsets and masks. */
#include "ops/deform_conv/deform_conv.h"
#include "mica/gemm.h"
#include "ops/taps/taps.h"
#include "cpu/cpu.h"

enum { CORNERS = 4, WARP = 32 };

typedef struct state {
    mica_deform_conv_args args, taps_args; /* taps_args: of the kernel that lists taps */
    mica_kernel *slopes, *emit;
    mica_grid slopes_grid, emit_grid;
    mica_taps taps;
    mica_deform_conv_child product, copy_w, copy_dy, copy_dx;
    mica_tensor dx; /* of some images, or their sums */
    size_t columns, w, dy, sums;
    int64_t images; /* at a time */
} state;

static mica_status add_product(mica_plan *plan, state *s)
{
    const mica_deform_conv_desc *d = plan->desc;
    const mica_deform_conv_args *a = &s->args;
    const int64_t groups = d->groups, rows = d->w.dims[0] / groups, pixels = a->pixels;
    const int64_t terms = d->w.dims[1] * a->taps;
    const mica_dtype type = d->x.dtype;
    mica_tensor w = d->w, dy = d->dy;
    if (!mica_deform_conv_is_merged(&w, 1)) {
        w = mica_tensor_packed(type, 4, d->w.dims);
        MICA_TRY(mica_deform_conv_book(plan, "filter", &w, &s->w));
        MICA_TRY(mica_deform_conv_add_copy(plan, &s->copy_w, &d->w, &w));
    }
    if (!mica_deform_conv_is_merged(&dy, 2)) {
        dy = mica_tensor_packed(type, 4, d->dy.dims);
        MICA_TRY(mica_deform_conv_book(plan, "gradient of y", &dy, &s->dy));
        MICA_TRY(mica_deform_conv_add_copy(plan, &s->copy_dy, &d->dy, &dy));
    }
    const int64_t k = w.strides[0], n = dy.strides[0], c = dy.strides[1];
    const mica_gemm_desc g = {
        .a = mica_deform_conv_matrices(
            type, (int64_t[]){1, groups, terms, rows},
            (int64_t[]){0, rows * k, mica_deform_conv_merged_stride(&w, 1), k}),
        .b = mica_deform_conv_matrices(
            type, (int64_t[]){s->images, groups, rows, pixels},
            (int64_t[]){n, rows * c, c, mica_deform_conv_merged_stride(&dy, 2)}),
        .c = mica_deform_conv_matrices(
            type, (int64_t[]){s->images, groups, terms, pixels},
            (int64_t[]){groups * terms * pixels, terms * pixels, pixels, 1})};
    return mica_plan_child_create(plan, "gemm", &g, sizeof g, NULL, &s->product.plan,
                                  &s->product.at);
}

static mica_status add_slopes(mica_plan *plan, state *s)
{
    const mica_deform_conv_desc *d = plan->desc;
    char buffer[256] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    if (s->args.count == 0) return MICA_OK;
    s->slopes_grid = (mica_grid){.grid = {(unsigned)((s->args.count + WARP - 1) / WARP)},
                                 .block = {MICA_DEFORM_CONV_BLOCK}};
    mica_deform_conv_prologue(d, &p);
    mica_prologue_int(&p, "DOFFSET", mica_tensor_given(&d->doffset));
    mica_prologue_int(&p, "DMASK", mica_tensor_given(&d->dmask));
    mica_prologue_type(&p, "real", mica_dtype_accumulator(d->x.dtype));
    const mica_kernel_spec spec = {"ops/deform_conv/deform_conv_slopes.cu", "deform_slopes", buffer,
                                   0};
    return mica_plan_add_kernel(plan, &spec, &s->slopes);
}

/* Images and offset groups as images, all taps of a channel as one row of pixels. */
static mica_status add_taps(mica_plan *plan, state *s)
{
    const mica_deform_conv_desc *d = plan->desc;
    const mica_deform_conv_args *a = &s->args;
    char buffer[256] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    const int64_t planes = a->images * a->offset_groups, *step = s->dx.strides;
    const mica_tensor from =
        mica_tensor_packed(d->x.dtype, 4, (int64_t[]){planes, a->of_group, a->taps, a->pixels});
    const mica_tensor to = mica_deform_conv_matrices(
        d->x.dtype, (int64_t[]){planes, a->of_group, a->axis[0].in, a->axis[1].in},
        (int64_t[]){a->offset_groups > 1 ? a->of_group * step[1] : step[0], step[1], step[2],
                    step[3]});
    const mica_dtype real = mica_dtype_accumulator(d->x.dtype);
    MICA_TRY(mica_taps_build(plan, &s->taps, &from, &to, CORNERS, real));
    if (!s->taps.sum || a->count == 0) return MICA_OK;
    s->emit_grid = (mica_grid){
        .grid = {(unsigned)((a->count + MICA_DEFORM_CONV_BLOCK - 1) / MICA_DEFORM_CONV_BLOCK)},
        .block = {MICA_DEFORM_CONV_BLOCK}};
    mica_deform_conv_prologue(d, &p);
    mica_taps_prologue(&s->taps, real, &p);
    const mica_kernel_spec spec = {"ops/deform_conv/deform_conv_emit.cu", "deform_emit", buffer, 0};
    return mica_plan_add_kernel(plan, &spec, &s->emit);
}

/* Whether images and offset groups of dx lie equally far apart, each after the other. */
static bool is_dx_merged(const state *s, const mica_tensor *dx)
{
    const mica_deform_conv_args *a = &s->args;
    return a->offset_groups == 1 || s->images == 1 ||
           dx->strides[0] == a->channels * dx->strides[1];
}

static mica_status add_dx(mica_plan *plan, state *s)
{
    const mica_deform_conv_desc *d = plan->desc;
    mica_tensor out = d->dx;
    out.dims[0] = s->images;
    s->dx = mica_tensor_packed(d->x.dtype, 4, out.dims);
    if (!plan->cuda) {
        mica_tensor sums = s->dx;
        sums.dtype = mica_dtype_accumulator(d->x.dtype);
        s->dx = out;
        return mica_deform_conv_book(plan, "sums of dx", &sums, &s->sums);
    }
    if (is_dx_merged(s, &d->dx)) {
        s->dx = out;
    } else {
        MICA_TRY(mica_deform_conv_book(plan, "gradient of x", &s->dx, &s->sums));
        MICA_TRY(mica_deform_conv_add_copy(plan, &s->copy_dx, &s->dx, &out));
    }
    return add_taps(plan, s);
}

mica_status mica_deform_conv_build_dgrad(mica_plan *plan)
{
    const mica_deform_conv_desc *d = plan->desc;
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_deform_conv_args *a = &s->args;
    mica_deform_conv_args_make(d, a);
    if (a->images == 0) return MICA_OK;
    s->images = a->images = mica_deform_conv_images(a, d->x.dtype);
    a->count = a->images * a->offset_groups * a->taps * a->pixels;
    const int64_t bytes = a->images * a->column_image * (mica_dtype_bits(d->x.dtype) / 8);
    MICA_TRY(mica_book(plan, "gradient of columns", (size_t)bytes, &s->columns));
    MICA_TRY(add_product(plan, s));
    if (mica_tensor_given(&d->dx)) MICA_TRY(add_dx(plan, s));
    if (!plan->cuda || (!mica_tensor_given(&d->doffset) && !mica_tensor_given(&d->dmask)))
        return MICA_OK;
    return add_slopes(plan, s);
}

/* ---- runs ---- */

static double bytes_of(const state *s, const mica_deform_conv_desc *d)
{
    const mica_deform_conv_args *a = &s->args;
    return 4.0 * (double)a->images * (double)a->column_image * (mica_dtype_bits(d->x.dtype) / 8);
}

static mica_status run_dx(const mica_plan *plan, const mica_run *run, mica_deform_conv_args *a,
                          void *to)
{
    const mica_deform_conv_desc *d = plan->desc;
    const state *s = plan->state;
    void *const copy[] = {mica_at(run, s->sums), to};
    if (!plan->cuda) {
        const mica_deform_conv_loops *loops = mica_deform_conv_loops_of(d->x.dtype);
        const int64_t shares = (a->of_group + MICA_DEFORM_CONV_SHARE - 1) / MICA_DEFORM_CONV_SHARE;
#pragma omp parallel for num_threads(mica_cpu_threads_for(bytes_of(s, d))) schedule(dynamic)
        for (int64_t i = 0; i < a->images * a->offset_groups * shares; i++)
            loops->sum(a, &s->dx, i, copy[0], to);
        return MICA_OK;
    }
    MICA_TRY(mica_taps_begin(plan, &s->taps, run, &a->lists));
    if (s->emit) MICA_TRY(mica_kernel_launch(s->emit, &s->emit_grid, run->stream, a));
    MICA_TRY(mica_taps_end(&s->taps, run, &a->lists, a->columns, s->copy_dx.plan ? copy[0] : to));
    return s->copy_dx.plan ? mica_deform_conv_run_child(&s->copy_dx, run, copy, 2, NULL) : MICA_OK;
}

static mica_status run_slopes(const mica_plan *plan, const mica_run *run,
                              const mica_deform_conv_args *a)
{
    const mica_deform_conv_desc *d = plan->desc;
    const state *s = plan->state;
    if (s->slopes) return mica_kernel_launch(s->slopes, &s->slopes_grid, run->stream, a);
    const mica_deform_conv_loops *loops = mica_deform_conv_loops_of(d->x.dtype);
    if (plan->cuda) return MICA_OK;
#pragma omp parallel for num_threads(mica_cpu_threads_for(bytes_of(s, d))) schedule(static)
    for (int64_t r = 0; r < mica_deform_conv_rows(a); r++) loops->slopes(a, d->x.dtype, r);
    return MICA_OK;
}

static mica_status run_images(const mica_plan *plan, const mica_run *run, int64_t n, void *w,
                              void *dy, const mica_tensor *dy_shape)
{
    const mica_deform_conv_desc *d = plan->desc;
    const state *s = plan->state;
    mica_deform_conv_args a = s->args;
    a.columns = mica_at(run, s->columns);
    void *args[MICA_GEMM_C + 1] = {0};
    args[MICA_GEMM_A] = w;
    args[MICA_GEMM_B] = mica_deform_conv_image(dy, dy_shape, n);
    args[MICA_GEMM_C] = a.columns;
    MICA_TRY(mica_deform_conv_run_child(&s->product, run, args, MICA_GEMM_C + 1, NULL));
    a.x = mica_deform_conv_image(run->args[MICA_DEFORM_CONV_X], &d->x, n);
    a.offset = mica_deform_conv_image(run->args[MICA_DEFORM_CONV_OFFSET], &d->offset, n);
    if (mica_tensor_given(&d->mask))
        a.mask = mica_deform_conv_image(run->args[MICA_DEFORM_CONV_MASK], &d->mask, n);
    if (mica_tensor_given(&d->doffset))
        a.doffset = mica_deform_conv_image(run->args[MICA_DEFORM_CONV_DOFFSET], &d->doffset, n);
    if (mica_tensor_given(&d->dmask))
        a.dmask = mica_deform_conv_image(run->args[MICA_DEFORM_CONV_DMASK], &d->dmask, n);
    if (a.doffset || a.dmask) MICA_TRY(run_slopes(plan, run, &a));
    if (!mica_tensor_given(&d->dx)) return MICA_OK;
    return run_dx(plan, run, &a, mica_deform_conv_image(run->args[MICA_DEFORM_CONV_DX], &d->dx, n));
}

mica_status mica_deform_conv_run_dgrad(const mica_plan *plan, const mica_run *run)
{
    const mica_deform_conv_desc *d = plan->desc;
    const state *s = plan->state;
    void *w = run->args[MICA_DEFORM_CONV_W], *dy = run->args[MICA_DEFORM_CONV_DY];
    mica_tensor dy_shape = d->dy;
    if (!s->product.plan) return MICA_OK;
    if (s->copy_w.plan) {
        void *const copy[] = {w, mica_at(run, s->w)};
        MICA_TRY(mica_deform_conv_run_child(&s->copy_w, run, copy, 2, NULL));
        w = copy[1];
    }
    if (s->copy_dy.plan) {
        void *const copy[] = {dy, mica_at(run, s->dy)};
        MICA_TRY(mica_deform_conv_run_child(&s->copy_dy, run, copy, 2, NULL));
        dy = copy[1];
        dy_shape = mica_tensor_packed(d->dy.dtype, 4, d->dy.dims);
    }
    for (int64_t n = 0; n < d->x.dims[0]; n += s->images)
        MICA_TRY(run_images(plan, run, n, w, dy, &dy_shape));
    return MICA_OK;
}
