/* SPDX-License-Identifier: Apache-2.0
 * The CPU engine: the epilogue, and where pixels lie. */
#include "ops/conv/cpu/conv_cpu.h"

#include "cpu/cpu.h"
#include "ops/convert/cpu/convert.h"
#include "ops/epilogue/cpu/activation_runs.h"

/* ---- the epilogue ---- */

static const mica_tensor *vector_of(const mica_conv_job *job, int step)
{
    const mica_epilogue *e = &job->epilogue;
    const mica_tensor *all[] = {[MICA_STEP_BIAS] = e->bias,
                                [MICA_STEP_SCALE] = e->scale,
                                [MICA_STEP_SHIFT] = e->shift,
                                [MICA_STEP_RESIDUAL] = e->residual};
    return all[step];
}

static void load_f32(mica_dtype type, const void *data, int64_t at, int64_t stride, float *out,
                     int64_t n)
{
    if (type == MICA_F64)
        for (int64_t i = 0; i < n; i++) out[i] = (float)((const double *)data)[at + i * stride];
    else
        mica_to_f32(type, data, at, stride, out, n);
}

static void step_f32(const mica_conv_job *job, const mica_conv_line *l, int step, float *v)
{
    MICA_ALIGNED float other[MICA_CONV_LINE];
    if (step < MICA_STEP_ACT) {
        const mica_tensor *t = vector_of(job, step);
        if (step == MICA_STEP_RESIDUAL)
            load_f32(t->dtype, job->vectors[step], l->residual, l->residual_step, other, l->n);
        else
            load_f32(t->dtype, job->vectors[step], l->channel * t->strides[0],
                     l->channel_step * t->strides[0], other, l->n);
        if (step == MICA_STEP_SCALE)
            for (int64_t i = 0; i < l->n; i++) v[i] *= other[i];
        else
            for (int64_t i = 0; i < l->n; i++) v[i] += other[i];
        return;
    }
    mica_act act = (mica_act)(step - MICA_STEP_ACT);
    double a = *job->epilogue.act_a, b = *job->epilogue.act_b;
    if (act == MICA_ACT_RELU)
        for (int64_t i = 0; i < l->n; i++) v[i] = v[i] < 0 ? 0 : v[i];
    else
        mica_act_values_f32(act, v, v, l->n, (float)a, (float)b);
}

void mica_conv_cpu_epilogue_f32(const mica_conv_job *job, const mica_conv_line *l, float *v)
{
    float alpha = (float)job->alpha, beta = (float)job->beta, old[MICA_CONV_LINE];
    mica_dtype type = job->types[job->out];
    void *out = job->data[job->out];
    if (alpha != 1)
        for (int64_t i = 0; i < l->n; i++) v[i] *= alpha;
    if (beta != 0) {
        mica_to_f32(type, out, l->offset, l->step, old, l->n);
        for (int64_t i = 0; i < l->n; i++) v[i] += beta * old[i];
    }
    for (int s = 0; s < MICA_MAX_STEPS && job->epilogue.steps[s]; s++)
        step_f32(job, l, job->epilogue.steps[s], v);
    mica_from_f32(type, out, l->offset, l->step, v, l->n);
}

static double step_f64(const mica_conv_job *job, const mica_conv_line *l, int step, int64_t i,
                       double v)
{
    if (step >= MICA_STEP_ACT)
        return mica_act_value((mica_act)(step - MICA_STEP_ACT), v, *job->epilogue.act_a,
                              *job->epilogue.act_b);
    const mica_tensor *t = vector_of(job, step);
    int64_t at = step == MICA_STEP_RESIDUAL ? l->residual + i * l->residual_step
                                            : (l->channel + i * l->channel_step) * t->strides[0];
    double other = mica_dtype_load(t->dtype)(job->vectors[step], at);
    return step == MICA_STEP_SCALE ? v * other : v + other;
}

void mica_conv_cpu_epilogue_f64(const mica_conv_job *job, const mica_conv_line *l, double *v)
{
    mica_dtype type = job->types[job->out];
    mica_load_fn load = mica_dtype_load(type);
    mica_store_fn store = mica_dtype_store(type);
    void *out = job->data[job->out];
    for (int64_t i = 0; i < l->n; i++) {
        int64_t at = l->offset + i * l->step;
        double r = job->alpha * v[i];
        if (job->beta != 0) r += job->beta * load(out, at);
        for (int s = 0; s < MICA_MAX_STEPS && job->epilogue.steps[s]; s++)
            r = step_f64(job, l, job->epilogue.steps[s], i, r);
        store(out, at, r);
    }
}

/* ---- where pixels lie ---- */

void mica_conv_axes(const mica_conv_geometry *g, int kind, mica_conv_axis axes[3])
{
    for (int i = 0; i < 3; i++) {
        if (kind == MICA_CONV_KIND_DGRAD)
            axes[i] = (mica_conv_axis){.mul = 1,
                                       .add = g->pad[i],
                                       .per_tap = g->dilation[i],
                                       .div = g->stride[i],
                                       .size = g->out[i]};
        else
            axes[i] = (mica_conv_axis){.mul = g->stride[i],
                                       .add = -g->pad[i],
                                       .per_tap = -g->dilation[i],
                                       .div = 1,
                                       .size = g->in[i]};
    }
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return a > 0 ? (a + b - 1) / b : -(-a / b);
}

mica_conv_window mica_conv_window_of(const mica_conv_axis *x, int64_t at, int64_t len, int64_t tap)
{
    mica_conv_window w = {.step = x->div};
    int64_t base = at * x->mul + x->add - tap * x->per_tap;
    /* mul or div is 1: the first position that divides */
    int64_t skip = x->div == 1 ? 0 : (x->div - base % x->div) % x->div;
    w.first = skip;
    w.source = (base + skip) / x->div;
    if (w.source < 0) {
        int64_t more = ceil_div(-w.source, x->mul);
        w.first += more * w.step;
        w.source += more * x->mul;
    }
    int64_t by_len = w.first < len ? (len - 1 - w.first) / w.step + 1 : 0;
    int64_t by_size = w.source < x->size ? (x->size - 1 - w.source) / x->mul + 1 : 0;
    w.count = by_len < by_size ? by_len : by_size;
    return w;
}
