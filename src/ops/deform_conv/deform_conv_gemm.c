/* SPDX-License-Identifier: Apache-2.0
 * Engines "gemm" of deform_conv: what taps read is written as a matrix, images at a time, and
 * multiplied with the filter by a child plan, which takes whatever engine is best for it; a filter
 * or result whose dimensions cannot be merged goes by way of a copy. Any types and strides. Cost:
 * the product, and N C R S P Q elements written and read. Workspace: that matrix of as many images
 * as 256 MiB hold, of one at least. */
#include "ops/deform_conv/deform_conv.h"
#include "mica/gemm.h"
#include "mica/transform.h"
#include "cpu/cpu.h"

#include <string.h>

enum { BLOCK = 256, MOST_BYTES = 256 << 20, EACH = 8 };

typedef struct child {
    mica_plan *plan; /* NULL: not needed */
    size_t at;
} child;

typedef struct state {
    mica_deform_conv_args args;
    mica_kernel *kernel;
    mica_grid grid;
    child product, copy_w, copy_y;
    size_t columns, w, y; /* copies, where there are some */
    int64_t images;       /* at a time */
    double bytes;
} state;

static mica_status add_copy(mica_plan *plan, child *c, const mica_tensor *from,
                            const mica_tensor *to, const char *name, size_t *at)
{
    const mica_transform_desc t = {.x = *from, .y = *to};
    MICA_TRY(mica_book(plan, name,
                       (size_t)(mica_tensor_count(from) * (mica_dtype_bits(from->dtype) / 8)), at));
    return mica_plan_child_create(plan, "transform", &t, sizeof t, NULL, &c->plan, &c->at);
}

/* Whether the dimensions from the first to the last are as one, whose stride is the last's. */
static bool is_merged(const mica_tensor *t, int first)
{
    int64_t next = t->strides[3];
    for (int i = 3; i >= first; i--) {
        if (t->dims[i] != 1 && t->strides[i] != next) return false;
        next = t->dims[i] == 1 ? next : t->strides[i] * t->dims[i];
    }
    return true;
}

/* That stride, which is not the last's where that has one element. */
static int64_t merged_stride(const mica_tensor *t, int first)
{
    for (int i = 3; i >= first; i--)
        if (t->dims[i] != 1) return t->strides[i];
    return 1;
}

/* images x groups x rows x columns, packed but for the strides given. */
static mica_tensor matrices(mica_dtype type, const int64_t dims[4], const int64_t strides[4])
{
    mica_tensor t = mica_tensor_packed(type, 4, dims);
    memcpy(t.strides, strides, 4 * sizeof *strides);
    return t;
}

static mica_status add_product(mica_plan *plan, state *s)
{
    const mica_deform_conv_desc *d = plan->desc;
    const mica_deform_conv_args *a = &s->args;
    const int64_t groups = d->groups, rows = d->w.dims[0] / groups, pixels = a->pixels;
    const int64_t terms = d->w.dims[1] * a->taps;
    mica_tensor w = d->w, y = d->y;
    const mica_dtype type = d->x.dtype;
    if (!is_merged(&w, 1)) {
        w = mica_tensor_packed(type, 4, d->w.dims);
        MICA_TRY(add_copy(plan, &s->copy_w, &d->w, &w, "filter", &s->w));
    }
    if (!is_merged(&y, 2)) {
        y = mica_tensor_packed(type, 4, d->y.dims);
        MICA_TRY(add_copy(plan, &s->copy_y, &y, &d->y, "result", &s->y));
    }
    const int64_t k = w.strides[0], n = y.strides[0], c = y.strides[1], b = d->bias.strides[0];
    mica_gemm_desc g = {
        .a = matrices(type, (int64_t[]){1, groups, rows, terms},
                      (int64_t[]){0, rows * k, k, merged_stride(&w, 1)}),
        .b = matrices(type, (int64_t[]){s->images, groups, terms, pixels},
                      (int64_t[]){groups * terms * pixels, terms * pixels, pixels, 1}),
        .c = matrices(type, (int64_t[]){s->images, groups, rows, pixels},
                      (int64_t[]){n, rows * c, c, merged_stride(&y, 2)})};
    if (mica_tensor_given(&d->bias)) {
        g.epilogue[0] = MICA_STEP_RESIDUAL;
        g.residual = matrices(d->bias.dtype, g.c.dims, (int64_t[]){0, rows * b, b, 0});
    }
    return mica_plan_child_create(plan, "gemm", &g, sizeof g, NULL, &s->product.plan,
                                  &s->product.at);
}

static mica_status add_kernel(mica_plan *plan, state *s)
{
    const mica_deform_conv_desc *d = plan->desc;
    mica_deform_conv_args *a = &s->args;
    char buffer[256] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    a->each = a->of_group < EACH ? a->of_group : EACH;
    a->parts = (a->of_group + a->each - 1) / a->each;
    a->count = a->images * a->offset_groups * a->taps * a->parts * a->pixels;
    s->grid = (mica_grid){.grid = {(unsigned)((a->count + BLOCK - 1) / BLOCK)}, .block = {BLOCK}};
    mica_prologue_int(&p, "BLOCK", BLOCK);
    mica_prologue_int(&p, "MASK", mica_tensor_given(&d->mask));
    mica_prologue_type(&p, "x_t", d->x.dtype);
    mica_prologue_type(&p, "real", mica_dtype_accumulator(d->x.dtype));
    const mica_kernel_spec spec = {"ops/deform_conv/deform_conv.cu", "deform_columns", buffer, 0};
    return mica_plan_add_kernel(plan, &spec, &s->kernel);
}

/* A part of all images, the same each time: whose matrices fit, or one. */
static int64_t images_at_a_time(int64_t images, double bytes)
{
    const double most = bytes > 0 ? MOST_BYTES / bytes : (double)images;
    int64_t n = most < (double)images ? (int64_t)most : images;
    while (n > 1 && images % n) n--;
    return n > 1 ? n : 1;
}

static mica_status build(mica_plan *plan)
{
    const mica_deform_conv_desc *d = plan->desc;
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_deform_conv_args *a = &s->args;
    mica_deform_conv_args_make(d, a);
    if (mica_tensor_count(&d->y) == 0) return MICA_OK;
    const int64_t element = mica_dtype_bits(d->x.dtype) / 8;
    const double image =
        (double)a->channels * (double)a->taps * (double)a->pixels * (double)element;
    s->images = images_at_a_time(a->images, image);
    a->images = s->images;
    s->bytes = 4 * image * (double)s->images;
    MICA_TRY(mica_book(plan, "columns", (size_t)(image * (double)s->images), &s->columns));
    if (plan->cuda && a->channels > 0) MICA_TRY(add_kernel(plan, s));
    return add_product(plan, s);
}

/* ---- runs ---- */

static mica_status run_child(const child *c, const mica_run *run, void *const *args, int count)
{
    mica_run r = {.workspace = mica_at(run, c->at), .stream = run->stream};
    memcpy(r.args, args, (size_t)count * sizeof *args);
    return mica_plan_child_run(c->plan, &r);
}

static mica_status write_columns(const mica_plan *plan, const state *s,
                                 const mica_deform_conv_args *a, void *stream)
{
    const mica_deform_conv_desc *d = plan->desc;
    if (s->kernel) return mica_kernel_launch(s->kernel, &s->grid, stream, a);
    const bool wide = d->x.dtype == MICA_F64;
    const int64_t rows = a->images * a->offset_groups * a->taps * a->axis[0].out;
    if (plan->cuda || a->channels == 0) return MICA_OK;
#pragma omp parallel for num_threads(mica_cpu_threads_for(s->bytes)) schedule(static)
    for (int64_t r = 0; r < rows; r++)
        (wide ? mica_deform_conv_columns_f64 : mica_deform_conv_columns_f32)(a, d->x.dtype, r);
    return MICA_OK;
}

static const void *from_image(const void *data, const mica_tensor *t, int64_t n)
{
    return (const char *)data + n * t->strides[0] * (mica_dtype_bits(t->dtype) / 8);
}

static mica_status run(const mica_plan *plan, const mica_run *run)
{
    const mica_deform_conv_desc *d = plan->desc;
    const state *s = plan->state;
    mica_deform_conv_args a = s->args;
    if (!s->product.plan) return MICA_OK;
    void *w = run->args[MICA_DEFORM_CONV_W], *y = run->args[MICA_DEFORM_CONV_Y];
    mica_tensor result = d->y;
    if (s->copy_w.plan) {
        void *const copy[] = {w, mica_at(run, s->w)};
        MICA_TRY(run_child(&s->copy_w, run, copy, 2));
        w = copy[1];
    }
    if (s->copy_y.plan) {
        y = mica_at(run, s->y);
        result = mica_tensor_packed(d->y.dtype, 4, d->y.dims);
    }
    a.columns = mica_at(run, s->columns);
    for (int64_t n = 0; n < d->x.dims[0]; n += s->images) {
        a.x = from_image(run->args[MICA_DEFORM_CONV_X], &d->x, n);
        a.offset = from_image(run->args[MICA_DEFORM_CONV_OFFSET], &d->offset, n);
        if (mica_tensor_given(&d->mask))
            a.mask = from_image(run->args[MICA_DEFORM_CONV_MASK], &d->mask, n);
        MICA_TRY(write_columns(plan, s, &a, run->stream));
        void *args[MICA_GEMM_RESIDUAL + 1] = {0};
        args[MICA_GEMM_A] = w;
        args[MICA_GEMM_B] = a.columns;
        args[MICA_GEMM_C] = (char *)y + n * result.strides[0] * (mica_dtype_bits(result.dtype) / 8);
        if (mica_tensor_given(&d->bias))
            args[MICA_GEMM_RESIDUAL] = run->args[MICA_DEFORM_CONV_BIAS];
        MICA_TRY(run_child(&s->product, run, args, MICA_GEMM_RESIDUAL + 1));
    }
    if (!s->copy_y.plan) return MICA_OK;
    void *const copy[] = {y, run->args[MICA_DEFORM_CONV_Y]};
    return run_child(&s->copy_y, run, copy, 2);
}

const mica_engine mica_deform_conv_cpu = {
    .name = "gemm", .reached = 0.2, .start_ms = 2e-3, .build = build, .run = run};
const mica_engine mica_deform_conv_cuda = {
    .name = "gemm", .cuda = true, .reached = 0.3, .start_ms = 1e-2, .build = build, .run = run};
