/* SPDX-License-Identifier: Apache-2.0
 * Optimiser steps, the truth: the formulas of the header, element by element. Each quantity carries
 * the sum of absolute values that it was made of, which is what its rounding scales with. */
#include "ops/optim/optim.h"
#include "cpu/cpu.h"

#include <math.h>

typedef struct quantity {
    double value, magnitude;
} quantity;

/* a x + b y */
static quantity combine(double a, quantity x, double b, quantity y)
{
    return (quantity){a * x.value + b * y.value, fabs(a) * x.magnitude + fabs(b) * y.magnitude};
}

static quantity read(const mica_view *view, int64_t i)
{
    double v = mica_get(view, mica_offset(&view->t, i));
    return (quantity){v, fabs(v)};
}

static void write(const mica_view *view, int64_t i, quantity q)
{
    mica_put(view, mica_offset(&view->t, i), q.value, q.magnitude);
}

static quantity sgd(const mica_optim_desc *d, const mica_view *args, const double *s, int64_t i,
                    quantity p, quantity g)
{
    const quantity none = {0, 0};
    double lr = s[MICA_OPTIM_LR];
    if (d->momentum == 0) return combine(1, p, -lr, g);
    /* The first step does not look at the buffer. */
    quantity m = g;
    if (s[MICA_OPTIM_STEP] != 1)
        m = combine(d->momentum, read(&args[MICA_OPTIM_M], i), 1 - d->dampening, g);
    write(&args[MICA_OPTIM_M], i, m);
    return combine(1, p, -lr, d->nesterov ? combine(1, g, d->momentum, m) : combine(1, m, 0, none));
}

static quantity adam(const mica_optim_desc *d, const mica_view *args, const double *s, int64_t i,
                     quantity p, quantity g)
{
    double lr = s[MICA_OPTIM_LR], step = s[MICA_OPTIM_STEP];
    quantity square = {g.value * g.value, g.magnitude * g.magnitude};
    quantity m = combine(d->beta1, read(&args[MICA_OPTIM_M], i), 1 - d->beta1, g);
    quantity v = combine(d->beta2, read(&args[MICA_OPTIM_V], i), 1 - d->beta2, square);
    write(&args[MICA_OPTIM_M], i, m);
    write(&args[MICA_OPTIM_V], i, v);
    double m_hat = m.value / (1 - pow(d->beta1, step));
    double v_hat = v.value / (1 - pow(d->beta2, step));
    double below = sqrt(v_hat) + d->eps;
    /* Below the smallest normal number m is rounded by a fixed amount, which the division by eps
     * enlarges. */
    double floor = mica_optim_is_wide(d) ? 0x1p-1021 : 0x1p-125;
    /* The root halves the relative error of v. */
    double spread = v.value > 0 ? 1 + v.magnitude / v.value : 1;
    quantity update = {m_hat / below,
                       (m.magnitude + floor) / (1 - pow(d->beta1, step)) / below * spread};
    double decay = d->rule == MICA_OPTIM_ADAMW ? lr * d->weight_decay : 0;
    quantity kept = {p.value - decay * p.value, p.magnitude + decay * p.magnitude};
    return combine(1, kept, -lr, update);
}

void mica_optim_reference(const void *desc, const mica_view *args, const double *scalars)
{
    const mica_optim_desc *d = desc;
    const mica_view *p = &args[MICA_OPTIM_P], *master = &args[MICA_OPTIM_MASTER];
    const mica_view *stepped = master->data ? master : p;
    int64_t count = mica_tensor_count(&p->t);
    double scale = (d->maximize ? -1 : 1) * scalars[MICA_OPTIM_GRAD_SCALE];
    double decay = d->rule == MICA_OPTIM_ADAMW ? 0 : d->weight_decay;
#pragma omp parallel for num_threads(mica_cpu_threads_for((double)count * 64))
    for (int64_t i = 0; i < count; i++) {
        quantity old = read(stepped, i);
        quantity g = combine(scale, read(&args[MICA_OPTIM_GRAD], i), decay, old);
        quantity next = d->rule == MICA_OPTIM_SGD ? sgd(d, args, scalars, i, old, g)
                                                  : adam(d, args, scalars, i, old, g);
        write(stepped, i, next);
        if (master->data) write(p, i, next);
    }
}
