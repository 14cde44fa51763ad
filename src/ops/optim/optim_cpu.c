/* SPDX-License-Identifier: Apache-2.0
 * Optimiser steps on the CPU: pieces of PIECE elements, in place where a tensor is packed f32, else
 * through buffers in the first-level cache; in f64 if a tensor is. Memory-bound. Any strides and
 * types, no workspace. */
#include "ops/optim/optim.h"
#include "ops/shared/convert.h"
#include "ops/shared/layout.h"
#include "cpu/cpu.h"

#include <math.h>
#include <string.h>

enum { PIECE = 1024, P = MICA_OPTIM_P, GRAD, M, V, MASTER };

typedef struct state {
    mica_layout layout;
    mica_dtype type[MICA_OPTIM_TENSORS];
    bool has[MICA_OPTIM_TENSORS];
    int stepped; /* MASTER if there is one, else P */
    bool sgd, nesterov, wide;
    int64_t pieces_per_row, pieces;
    double bytes;
} state;

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)desc, (void)device, (void)why;
    return MICA_OK;
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    (void)config;
    return 1.3 * mica_roofline_ms(&mica_op_optim, desc, device) + 3e-4;
}

static mica_status build(mica_plan *plan)
{
    const mica_optim_desc *d = plan->desc;
    const mica_tensor *tensors[MICA_OPTIM_TENSORS];
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    for (int i = 0; i < MICA_OPTIM_TENSORS; i++) {
        tensors[i] = mica_optim_tensor(d, i);
        s->type[i] = tensors[i]->dtype;
        s->has[i] = mica_optim_has(d, i);
    }
    mica_layout_make(&s->layout, tensors, MICA_OPTIM_TENSORS);
    s->stepped = s->has[MASTER] ? MASTER : P;
    s->sgd = d->rule == MICA_OPTIM_SGD;
    s->nesterov = d->nesterov;
    s->wide = mica_optim_is_wide(d);
    s->bytes = mica_op_bytes(plan->op, d);
    int64_t length = s->layout.rank ? s->layout.dims[s->layout.rank - 1] : 1;
    s->pieces_per_row = (length + PIECE - 1) / PIECE;
    s->pieces = s->layout.count ? s->layout.count / length * s->pieces_per_row : 0;
    return MICA_OK;
}

/* ---- f32 ---- */

#define ALWAYS_INLINE __attribute__((always_inline)) static inline

/* How sgd uses its buffer: not at all; the first step sets it; AHEAD is nesterov. */
typedef enum form { PLAIN, FIRST, LATER, FIRST_AHEAD, LATER_AHEAD } form;

/* form is a constant at each call: one loop without branches remains. */
ALWAYS_INLINE void sgd_loop(const mica_optim_factors *f, form form, float *p, const float *grad,
                            float *m, int64_t n)
{
    const float scale = (float)f->grad_scale, decay = (float)f->decay, lr = (float)f->lr;
    const float keep = (float)f->beta1, add = (float)f->add1;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float g = scale * grad[i] + decay * p[i], update = g;
        if (form == FIRST || form == FIRST_AHEAD) update = m[i] = g;
        if (form == LATER || form == LATER_AHEAD) update = m[i] = keep * m[i] + add * g;
        if (form == FIRST_AHEAD || form == LATER_AHEAD) update = g + keep * m[i];
        p[i] -= lr * update;
    }
}

MICA_CLONES static void sgd_f32(const mica_optim_factors *f, form form, float *p, const float *grad,
                                float *m, int64_t n)
{
    switch (form) {
    case PLAIN:
        sgd_loop(f, PLAIN, p, grad, m, n);
        return;
    case FIRST:
        sgd_loop(f, FIRST, p, grad, m, n);
        return;
    case LATER:
        sgd_loop(f, LATER, p, grad, m, n);
        return;
    case FIRST_AHEAD:
        sgd_loop(f, FIRST_AHEAD, p, grad, m, n);
        return;
    case LATER_AHEAD:
        sgd_loop(f, LATER_AHEAD, p, grad, m, n);
        return;
    }
}

MICA_CLONES static void adam_f32(const mica_optim_factors *f, float *p, const float *grad, float *m,
                                 float *v, int64_t n)
{
    const float scale = (float)f->grad_scale, decay = (float)f->decay, keep = (float)f->keep;
    const float lr = (float)f->lr, root = (float)f->root, eps = (float)f->eps;
    const float beta1 = (float)f->beta1, add1 = (float)f->add1;
    const float beta2 = (float)f->beta2, add2 = (float)f->add2;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float g = scale * grad[i] + decay * p[i];
        m[i] = beta1 * m[i] + add1 * g;
        v[i] = beta2 * v[i] + add2 * (g * g);
        p[i] = keep * p[i] - lr * (m[i] / (sqrtf(v[i]) * root + eps));
    }
}

/* ---- f64 ---- */

static void sgd_f64(const mica_optim_factors *f, form form, double *p, const double *grad,
                    double *m, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double g = f->grad_scale * grad[i] + f->decay * p[i], update = g;
        if (form == FIRST || form == FIRST_AHEAD) update = m[i] = g;
        if (form == LATER || form == LATER_AHEAD) update = m[i] = f->beta1 * m[i] + f->add1 * g;
        if (form == FIRST_AHEAD || form == LATER_AHEAD) update = g + f->beta1 * m[i];
        p[i] -= f->lr * update;
    }
}

static void adam_f64(const mica_optim_factors *f, double *p, const double *grad, double *m,
                     double *v, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double g = f->grad_scale * grad[i] + f->decay * p[i];
        m[i] = f->beta1 * m[i] + f->add1 * g;
        v[i] = f->beta2 * v[i] + f->add2 * (g * g);
        p[i] = f->keep * p[i] - f->lr * (m[i] / (sqrt(v[i]) * f->root + f->eps));
    }
}

/* ---- pieces ---- */

typedef struct piece {
    void *data[MICA_OPTIM_TENSORS];
    int64_t at[MICA_OPTIM_TENSORS], stride[MICA_OPTIM_TENSORS], n;
} piece;

static piece find_piece(const state *s, const mica_run *r, int64_t index)
{
    const mica_layout *l = &s->layout;
    int last = l->rank - 1;
    int64_t row = index / s->pieces_per_row, start = index % s->pieces_per_row * PIECE;
    int64_t length = l->rank ? l->dims[last] : 1;
    piece p = {.n = length - start < PIECE ? length - start : PIECE};
    for (int t = 0; t < MICA_OPTIM_TENSORS; t++) {
        p.data[t] = r->args[t];
        p.stride[t] = l->rank ? l->strides[t][last] : 1;
        p.at[t] = start * p.stride[t];
    }
    for (int d = last - 1; d >= 0; d--) {
        int64_t i = row % l->dims[d];
        row /= l->dims[d];
        for (int t = 0; t < MICA_OPTIM_TENSORS; t++) p.at[t] += i * l->strides[t][d];
    }
    return p;
}

static form form_of(const state *s, const mica_optim_factors *f)
{
    if (!s->has[M]) return PLAIN;
    if (s->nesterov) return f->first ? FIRST_AHEAD : LATER_AHEAD;
    return f->first ? FIRST : LATER;
}

static void run_f32(const state *s, const mica_optim_factors *f, const piece *p)
{
    float buffer[MICA_OPTIM_TENSORS][PIECE], *v[MICA_OPTIM_TENSORS];
    for (int t = 0; t < MICA_OPTIM_TENSORS; t++) {
        bool direct = s->type[t] == MICA_F32 && p->stride[t] == 1;
        v[t] = direct && s->has[t] ? (float *)p->data[t] + p->at[t] : buffer[t];
        bool read = s->has[t] && !direct && !(t == P && s->stepped == MASTER);
        if (read) mica_to_f32(s->type[t], p->data[t], p->at[t], p->stride[t], v[t], p->n);
    }
    if (s->sgd)
        sgd_f32(f, form_of(s, f), v[s->stepped], v[GRAD], v[M], p->n);
    else
        adam_f32(f, v[s->stepped], v[GRAD], v[M], v[V], p->n);
    if (s->stepped == MASTER)
        mica_from_f32(s->type[P], p->data[P], p->at[P], p->stride[P], v[MASTER], p->n);
    for (int t = 0; t < MICA_OPTIM_TENSORS; t++) {
        bool changed = s->has[t] && t != GRAD && !(t == P && s->stepped == MASTER);
        if (changed && v[t] == buffer[t])
            mica_from_f32(s->type[t], p->data[t], p->at[t], p->stride[t], v[t], p->n);
    }
}

static void run_f64(const state *s, const mica_optim_factors *f, const piece *p)
{
    double v[MICA_OPTIM_TENSORS][PIECE];
    for (int t = 0; t < MICA_OPTIM_TENSORS; t++)
        if (s->has[t]) mica_to_f64(s->type[t], p->data[t], p->at[t], p->stride[t], v[t], p->n);
    if (s->sgd)
        sgd_f64(f, form_of(s, f), v[s->stepped], v[GRAD], v[M], p->n);
    else
        adam_f64(f, v[s->stepped], v[GRAD], v[M], v[V], p->n);
    if (s->stepped == MASTER) memcpy(v[P], v[MASTER], sizeof v[P]);
    for (int t = 0; t < MICA_OPTIM_TENSORS; t++)
        if (s->has[t] && t != GRAD)
            mica_from_f64(s->type[t], p->data[t], p->at[t], p->stride[t], v[t], p->n);
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    mica_optim_factors f;
    MICA_TRY(mica_optim_run_factors(plan, r, &f));
    int threads = mica_cpu_threads_for(s->bytes);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t i = 0; i < s->pieces; i++) {
        piece p = find_piece(s, r, i);
        s->wide ? run_f64(s, &f, &p) : run_f32(s, &f, &p);
    }
    return MICA_OK;
}

const mica_engine mica_optim_cpu = {
    .name = "cpu", .accepts = accepts, .predict = predict, .build = build, .run = run};
