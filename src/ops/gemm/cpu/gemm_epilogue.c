/* SPDX-License-Identifier: Apache-2.0
 * The end of a gemm on the CPU, a piece of a row at a time, in double precision: the steps are the
 * reference's own, in its order, so integer outputs are rounded from the same numbers. */
#include "ops/gemm/cpu/gemm_epilogue.h"
#include "ops/convert/cpu/convert.h"

/* Columns of the product: `count` from `first`, `step` apart. */
typedef struct columns {
    int64_t first, step;
    int count;
} columns;

/* Elements of a vector over the columns of the product. */
static void add_vector(const mica_tensor *t, const void *data, columns c, double *v)
{
    mica_epilogue_add(t, data, c.first * t->strides[0], c.step * t->strides[0], c.count, v);
}

static void scale_vector(const mica_tensor *t, const void *data, columns c, int64_t stride,
                         double *v)
{
    mica_epilogue_scale(t, data, c.first * stride, c.step * stride, c.count, v);
}

static void apply_step(const gemm_cpu_epilogue *f, int step, int64_t r_at, columns c, double *v)
{
    const mica_gemm_desc *d = f->desc;
    switch (step) {
    case MICA_STEP_BIAS:
        add_vector(&d->bias, f->args[MICA_GEMM_BIAS], c, v);
        break;
    case MICA_STEP_SCALE:
        scale_vector(&d->scale, f->args[MICA_GEMM_SCALE], c, d->scale.strides[0], v);
        break;
    case MICA_STEP_SHIFT:
        add_vector(&d->shift, f->args[MICA_GEMM_SHIFT], c, v);
        break;
    case MICA_STEP_RESIDUAL:
        mica_epilogue_add(&d->residual, f->args[MICA_GEMM_RESIDUAL], r_at, f->shape->r_n, c.count,
                          v);
        break;
    default:
        /* In double only where doubles are asked for: for f64 and for what is rounded from
         * integers. */
        mica_epilogue_activate((mica_act)(step - MICA_STEP_ACT), d->act_a, d->act_b,
                               mica_dtype_accumulator(d->a.dtype) == MICA_F32, c.count, v);
    }
}

static void apply_scales(const gemm_cpu_epilogue *f, int64_t row, columns c, double *v)
{
    const mica_tensor *a = &f->desc->scale_a, *b = &f->desc->scale_b;
    if (gemm_has_blocks(f->desc)) return; /* they are in the sums */
    if (mica_tensor_given(a))
        mica_epilogue_scale(a, f->args[MICA_GEMM_SCALE_A], row * gemm_scale_stride(a), 0, c.count,
                            v);
    if (mica_tensor_given(b))
        scale_vector(b, f->args[MICA_GEMM_SCALE_B], c, gemm_scale_stride(b), v);
}

static void add_old(const gemm_cpu_epilogue *f, int64_t c_at, int count, double *v)
{
    double old[GEMM_EPILOGUE_RUN];
    if (f->beta == 0) return;
    mica_to_f64(f->desc->c.dtype, f->args[MICA_GEMM_C], c_at, f->shape->c_n, old, count);
    for (int j = 0; j < count; j++) old[j] *= f->beta;
    for (int j = 0; j < count; j++) v[j] += old[j];
}

static void store_aux(const gemm_cpu_epilogue *f, const gemm_offsets *at, int64_t row, columns c,
                      const double *v)
{
    const gemm_full_epilogue *e = f->extra;
    if (!mica_tensor_given(&f->desc->aux)) return;
    mica_from_f64(f->desc->aux.dtype, f->args[MICA_GEMM_AUX],
                  at->x + row * e->x_m + c.first * e->x_n, c.step * e->x_n, v, c.count);
}

void gemm_cpu_epilogue_row(const gemm_cpu_epilogue *f, const gemm_offsets *at, int64_t row,
                           int64_t col, int count, double *v, double *partner)
{
    const mica_gemm_desc *d = f->desc;
    const gemm_shape *s = f->shape;
    int64_t c_at = at->c + row * s->c_m + col * s->c_n;
    int64_t r_at = at->r + row * s->r_m + col * s->r_n;
    int act = mica_epilogue_act(d->epilogue), steps = mica_epilogue_count(d->epilogue);
    columns gates = {col, 1, count};
    if (partner) gates.first *= f->extra->channel_step, gates.step = f->extra->channel_step;
    for (double *t = v; t; t = t == v ? partner : NULL) {
        columns c = gates;
        if (t == partner) c.first += f->extra->channel_partner;
        if (f->alpha != 1)
            for (int j = 0; j < count; j++) t[j] *= f->alpha;
        apply_scales(f, row, c, t);
        if (!partner) add_old(f, c_at, count, t);
        for (int i = 0; i < act; i++) apply_step(f, d->epilogue[i], r_at, c, t);
        store_aux(f, at, row, c, t);
    }
    if (act < steps) apply_step(f, d->epilogue[act], r_at, gates, v);
    if (partner) {
        for (int j = 0; j < count; j++) v[j] *= partner[j];
        add_old(f, c_at, count, v);
    }
    for (int i = act + 1; i < steps; i++) apply_step(f, d->epilogue[i], r_at, gates, v);
    if (f->amax) mica_amax_keep(f->amax, count, v);
    mica_epilogue_quantise(d->c.dtype, f->args[MICA_GEMM_SCALE_C], count, v);
    mica_from_f64(d->c.dtype, f->args[MICA_GEMM_C], c_at, s->c_n, v, count);
}

void gemm_cpu_epilogue_end(const gemm_cpu_epilogue *f)
{
    if (f->amax) mica_amax_store(f->amax, f->desc->amax.dtype, f->args[MICA_GEMM_AMAX]);
}
