/* SPDX-License-Identifier: Apache-2.0
 * The end of a gemm on the CPU, a piece of a row at a time, in double precision: the steps are the
 * reference's own, in its order, so integer outputs are rounded from the same numbers. */
#include "ops/gemm/gemm_finish.h"
#include "ops/shared/activation_f32.h"
#include "ops/shared/convert.h"

static void scale_line(const mica_tensor *t, const void *data, int64_t at, int64_t stride,
                       int count, double *v)
{
    double line[GEMM_FINISH_MAX];
    mica_to_f64(t->dtype, data, at, stride, line, count);
    for (int j = 0; j < count; j++) v[j] *= line[j];
}

static void add_line(const mica_tensor *t, const void *data, int64_t at, int64_t stride, int count,
                     double *v)
{
    double line[GEMM_FINISH_MAX];
    mica_to_f64(t->dtype, data, at, stride, line, count);
    for (int j = 0; j < count; j++) v[j] += line[j];
}

/* In double only where doubles are asked for: for f64 and for what is rounded from integers. */
static void activate(mica_act act, const mica_gemm_desc *d, int count, double *v)
{
    if (act == MICA_ACT_RELU) {
        for (int j = 0; j < count; j++) v[j] = v[j] < 0 ? 0 : v[j];
        return;
    }
    if (mica_dtype_accumulator(d->a.dtype) != MICA_F32) {
        for (int j = 0; j < count; j++) v[j] = mica_act_value(act, v[j], d->act_a, d->act_b);
        return;
    }
    float line[GEMM_FINISH_MAX];
    for (int j = 0; j < count; j++) line[j] = (float)v[j];
    mica_act_values_f32(act, line, line, count, (float)d->act_a, (float)d->act_b);
    for (int j = 0; j < count; j++) v[j] = (double)line[j];
}

static void apply_step(const gemm_finish *f, int step, int64_t r_at, int64_t col, int count,
                       double *v)
{
    const mica_gemm_desc *d = f->desc;
    switch (step) {
    case MICA_STEP_BIAS:
        add_line(&d->bias, f->args[MICA_GEMM_BIAS], col * d->bias.strides[0], d->bias.strides[0],
                 count, v);
        break;
    case MICA_STEP_SCALE:
        scale_line(&d->scale, f->args[MICA_GEMM_SCALE], col * d->scale.strides[0],
                   d->scale.strides[0], count, v);
        break;
    case MICA_STEP_SHIFT:
        add_line(&d->shift, f->args[MICA_GEMM_SHIFT], col * d->shift.strides[0],
                 d->shift.strides[0], count, v);
        break;
    case MICA_STEP_RESIDUAL:
        add_line(&d->residual, f->args[MICA_GEMM_RESIDUAL], r_at, f->shape->r_n, count, v);
        break;
    default:
        activate((mica_act)(step - MICA_STEP_ACT), d, count, v);
    }
}

static void apply_scales(const gemm_finish *f, int64_t row, int64_t col, int count, double *v)
{
    const mica_tensor *a = &f->desc->scale_a, *b = &f->desc->scale_b;
    if (gemm_has_blocks(f->desc)) return; /* they are in the sums */
    if (mica_tensor_given(a))
        scale_line(a, f->args[MICA_GEMM_SCALE_A], row * gemm_scale_stride(a), 0, count, v);
    if (mica_tensor_given(b))
        scale_line(b, f->args[MICA_GEMM_SCALE_B], col * gemm_scale_stride(b), gemm_scale_stride(b),
                   count, v);
}

static void add_old(const gemm_finish *f, int64_t c_at, int count, double *v)
{
    double old[GEMM_FINISH_MAX];
    mica_to_f64(f->desc->c.dtype, f->args[MICA_GEMM_C], c_at, f->shape->c_n, old, count);
    for (int j = 0; j < count; j++) old[j] *= f->beta;
    for (int j = 0; j < count; j++) v[j] += old[j];
}

void gemm_finish_row(const gemm_finish *f, const gemm_offsets *at, int64_t row, int64_t col,
                     int count, double *v)
{
    const mica_gemm_desc *d = f->desc;
    const gemm_shape *s = f->shape;
    int64_t c_at = at->c + row * s->c_m + col * s->c_n;
    int64_t r_at = at->r + row * s->r_m + col * s->r_n;
    if (f->alpha != 1)
        for (int j = 0; j < count; j++) v[j] *= f->alpha;
    apply_scales(f, row, col, count, v);
    if (f->beta != 0) add_old(f, c_at, count, v);
    for (int i = 0; i < MICA_MAX_STEPS && d->epilogue[i]; i++)
        apply_step(f, d->epilogue[i], r_at, col, count, v);
    mica_from_f64(d->c.dtype, f->args[MICA_GEMM_C], c_at, s->c_n, v, count);
}
