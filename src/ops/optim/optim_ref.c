/* SPDX-License-Identifier: Apache-2.0
 * Optimiser steps in plain loops. */
#include "ops/optim/optim.h"
#include "cpu/cpu.h"

#include <float.h>
#include <math.h>

typedef struct job {
    const mica_optim_desc *d;
    const mica_view *args;
    double lr, step, grad_scale;
    double least;      /* smallest normal number of the arithmetic: below, roundings are absolute */
    double least_root; /* what the square root makes of a lost subnormal, in units of roundoff */
} job;

/* A value and the sum of the magnitudes that its roundings scale with. */
typedef struct sum {
    double value, mag;
} sum;

static sum gradient(const job *j, double p, int64_t i)
{
    const mica_view *grad = &j->args[MICA_OPTIM_GRAD];
    double g = j->grad_scale * mica_get(grad, mica_offset(&grad->t, i));
    double decay = j->d->rule == MICA_OPTIM_ADAMW ? 0 : j->d->weight_decay;
    if (j->d->maximize) g = -g;
    return (sum){g + decay * p, fabs(g) + fabs(decay * p) + j->least};
}

/* m = keep m + take g, stored. */
static sum moment(const job *j, sum g, double keep, double take, int64_t i)
{
    const mica_view *m = &j->args[MICA_OPTIM_M];
    int64_t at = mica_offset(&m->t, i);
    double old = keep != 0 ? keep * mica_get(m, at) : 0;
    sum r = {old + take * g.value, fabs(old) + fabs(take) * g.mag + j->least};
    mica_put(m, at, r.value, r.mag);
    return r;
}

static sum sgd(const job *j, sum g, int64_t i)
{
    const mica_optim_desc *d = j->d;
    if (d->momentum == 0) return g;
    bool first = j->step == 1;
    sum m = moment(j, g, first ? 0 : d->momentum, first ? 1 : 1 - d->dampening, i);
    if (!d->nesterov) return m;
    return (sum){g.value + d->momentum * m.value, g.mag + d->momentum * m.mag};
}

/* sqrt(v) is the length of (sqrt(beta2 v), sqrt(1 - beta2) g): an error of g moves it by no more
 * than sqrt(1 - beta2) times that, even where g is a small difference of large terms. */
static sum adam(const job *j, sum g, int64_t i)
{
    const mica_optim_desc *d = j->d;
    const mica_view *view = &j->args[MICA_OPTIM_V];
    int64_t at = mica_offset(&view->t, i);
    double old = d->beta2 * mica_get(view, at);
    sum v = {old + (1 - d->beta2) * g.value * g.value,
             fabs(old) + (1 - d->beta2) * g.mag * g.mag + j->least};
    mica_put(view, at, v.value, v.mag);
    sum m = moment(j, g, d->beta1, 1 - d->beta1, i);
    /* 1 - beta^step, of which beta near 1 would leave few digits */
    double m_scale = 1 / -expm1(j->step * log(d->beta1));
    double v_scale = 1 / -expm1(j->step * log(d->beta2));
    double divisor = sqrt(v.value * v_scale) + d->eps;
    double divisor_mag = divisor + (sqrt(1 - d->beta2) * g.mag + j->least_root) * sqrt(v_scale);
    double direction = m.value * m_scale / divisor;
    return (sum){direction, m.mag * m_scale / divisor + fabs(direction) * (divisor_mag / divisor)};
}

static void element(const job *j, int64_t i)
{
    const mica_optim_desc *d = j->d;
    const mica_view *p = &j->args[MICA_OPTIM_P], *master = &j->args[MICA_OPTIM_MASTER];
    const mica_view *stepped = master->data ? master : p;
    int64_t at = mica_offset(&stepped->t, i);
    double old = mica_get(stepped, at);
    sum g = gradient(j, old, i);
    sum direction = d->rule == MICA_OPTIM_SGD ? sgd(j, g, i) : adam(j, g, i);
    double decay = d->rule == MICA_OPTIM_ADAMW ? j->lr * d->weight_decay * old : 0;
    double mag = fabs(old) + fabs(decay) + fabs(j->lr) * direction.mag;
    mica_put(stepped, at, old - decay - j->lr * direction.value, mag);
    if (master->data) mica_put(p, mica_offset(&p->t, i), mica_get(master, at), mag);
}

void mica_optim_reference(const void *desc, const mica_view *args, const double *scalars)
{
    job j = {.d = desc,
             .args = args,
             .lr = scalars[MICA_OPTIM_LR],
             .step = scalars[MICA_OPTIM_STEP],
             .grad_scale = scalars[MICA_OPTIM_GRAD_SCALE]};
    mica_pointwise_set set;
    mica_pointwise_operands(&mica_op_optim, desc, &set);
    bool f64 = mica_pointwise_real(&set) == MICA_F64;
    j.least = f64 ? DBL_MIN : (double)FLT_MIN;
    j.least_root = f64 ? sqrt(0x1p-1074) * 0x1p53 : sqrt(0x1p-149) * 0x1p24;
    int64_t count = mica_tensor_count(&args[MICA_OPTIM_P].t);
#pragma omp parallel for num_threads(mica_cpu_threads_for((double)count * 64))
    for (int64_t i = 0; i < count; i++) element(&j, i);
}
