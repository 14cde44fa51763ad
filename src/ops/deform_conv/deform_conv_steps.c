/* SPDX-License-Identifier: Apache-2.0
 * Steps that passes of deform_conv share: columns, copies, products. */
#include "ops/deform_conv/deform_conv.h"
#include "mica/transform.h"
#include "cpu/cpu.h"

#include <string.h>

enum { MOST_BYTES = 256 << 20, EACH = 8 };

/* ---- tensors ---- */

bool mica_deform_conv_is_merged(const mica_tensor *t, int first)
{
    int64_t next = t->strides[3];
    for (int i = 3; i >= first; i--) {
        if (t->dims[i] != 1 && t->strides[i] != next) return false;
        next = t->dims[i] == 1 ? next : t->strides[i] * t->dims[i];
    }
    return true;
}

/* Not the last's where that has one element. */
int64_t mica_deform_conv_merged_stride(const mica_tensor *t, int first)
{
    for (int i = 3; i >= first; i--)
        if (t->dims[i] != 1) return t->strides[i];
    return 1;
}

mica_tensor mica_deform_conv_matrices(mica_dtype type, const int64_t dims[4],
                                      const int64_t strides[4])
{
    mica_tensor t = mica_tensor_packed(type, 4, dims);
    memcpy(t.strides, strides, 4 * sizeof *strides);
    return t;
}

void *mica_deform_conv_image(void *data, const mica_tensor *t, int64_t n)
{
    return data ? (char *)data + n * t->strides[0] * (mica_dtype_bits(t->dtype) / 8) : NULL;
}

int64_t mica_deform_conv_images(const mica_deform_conv_args *a, mica_dtype type)
{
    const double bytes = (double)a->channels * (double)a->taps * (double)a->pixels *
                         (double)(mica_dtype_bits(type) / 8);
    const double most = bytes > 0 ? MOST_BYTES / bytes : (double)a->images;
    int64_t n = most < (double)a->images ? (int64_t)most : a->images;
    while (n > 1 && a->images % n) n--;
    return n > 1 ? n : 1;
}

/* ---- children ---- */

mica_status mica_deform_conv_book(mica_plan *plan, const char *name, const mica_tensor *packed,
                                  size_t *at)
{
    const int64_t bytes = mica_tensor_count(packed) * (mica_dtype_bits(packed->dtype) / 8);
    return mica_book(plan, name, (size_t)bytes, at);
}

mica_status mica_deform_conv_add_copy(mica_plan *plan, mica_deform_conv_child *c,
                                      const mica_tensor *from, const mica_tensor *to)
{
    const mica_transform_desc t = {.x = *from, .y = *to};
    return mica_plan_child_create(plan, "transform", &t, sizeof t, NULL, &c->plan, &c->at);
}

mica_status mica_deform_conv_run_child(const mica_deform_conv_child *c, const mica_run *run,
                                       void *const *args, int count, const double *scalars)
{
    mica_run r = {.workspace = mica_at(run, c->at), .stream = run->stream, .scalars = scalars};
    memcpy(r.args, args, (size_t)count * sizeof *args);
    return mica_plan_child_run(c->plan, &r);
}

/* ---- columns ---- */

void mica_deform_conv_prologue(const mica_deform_conv_desc *d, mica_text *text)
{
    mica_prologue_int(text, "BLOCK", MICA_DEFORM_CONV_BLOCK);
    mica_prologue_int(text, "MASK", mica_tensor_given(&d->mask));
    mica_prologue_type(text, "x_t", d->x.dtype);
}

mica_status mica_deform_conv_add_columns(mica_plan *plan, mica_deform_conv_args *a,
                                         mica_kernel **kernel, mica_grid *grid)
{
    const mica_deform_conv_desc *d = plan->desc;
    char buffer[256] = "";
    mica_text p = {buffer, sizeof buffer, 0};
    a->each = a->of_group < EACH ? a->of_group : EACH;
    if (a->each == 0) return MICA_OK;
    a->parts = (a->of_group + a->each - 1) / a->each;
    a->count = a->images * a->offset_groups * a->taps * a->parts * a->pixels;
    if (!plan->cuda || a->count == 0) return MICA_OK;
    *grid = (mica_grid){
        .grid = {(unsigned)((a->count + MICA_DEFORM_CONV_BLOCK - 1) / MICA_DEFORM_CONV_BLOCK)},
        .block = {MICA_DEFORM_CONV_BLOCK}};
    mica_deform_conv_prologue(d, &p);
    mica_prologue_type(&p, "real", mica_dtype_accumulator(d->x.dtype));
    const mica_kernel_spec spec = {"ops/deform_conv/deform_conv.cu", "deform_columns", buffer, 0};
    return mica_plan_add_kernel(plan, &spec, kernel);
}

mica_status mica_deform_conv_write_columns(const mica_plan *plan, const mica_kernel *kernel,
                                           const mica_grid *grid, const mica_deform_conv_args *a,
                                           void *stream)
{
    const mica_deform_conv_desc *d = plan->desc;
    const mica_deform_conv_loops *loops = mica_deform_conv_loops_of(d->x.dtype);
    const double bytes =
        4.0 * (double)a->count * (double)(a->each * mica_dtype_bits(d->x.dtype) / 8);
    if (kernel) return mica_kernel_launch(kernel, grid, stream, a);
    if (plan->cuda || a->channels == 0) return MICA_OK;
#pragma omp parallel for num_threads(mica_cpu_threads_for(bytes)) schedule(static)
    for (int64_t r = 0; r < mica_deform_conv_rows(a); r++) loops->columns(a, d->x.dtype, r);
    return MICA_OK;
}
