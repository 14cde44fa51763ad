/* SPDX-License-Identifier: Apache-2.0
 * Activations in plain loops. */
#include "ops/activation/activation.h"
#include "cpu/cpu.h"

#include <math.h>

typedef struct job {
    const mica_activation_desc *d;
    mica_activation_parts parts;
    const mica_view *args;
    double alpha, beta;
} job;

/* alpha v + beta old; the old value is not read when beta is 0. */
static void put(const job *j, const mica_view *out, int64_t offset, double v, double magnitude)
{
    double old = j->beta != 0 ? mica_get(out, offset) : 0;
    mica_put(out, offset, j->alpha * v + j->beta * old,
             fabs(j->alpha) * magnitude + fabs(j->beta * old));
}

/* Inner cancellation (1 + erf(v), v/6 + 1/2) loses units of v, not of the result: so |v| counts. */
static void forward(const job *j, const mica_view *x, const mica_view *y, int64_t i)
{
    const mica_activation_desc *d = j->d;
    int64_t at = mica_offset(&j->parts.tensors[0], i), to = mica_offset(&y->t, i);
    double v = mica_get(x, at), value = mica_act_value(d->act, v, d->act_a, d->act_b);
    double gate = d->gated ? mica_get(x, at + j->parts.gate[0]) : 1;
    put(j, y, to, value * gate, (fabs(value) + fabs(v)) * fabs(gate));
}

static void backward(const job *j, const mica_view *x, const mica_view *dy, const mica_view *dx,
                     int64_t i)
{
    const mica_activation_desc *d = j->d;
    int64_t at = mica_offset(&j->parts.tensors[0], i), to = mica_offset(&j->parts.tensors[2], i);
    double v = mica_get(x, at), g = mica_get(dy, mica_offset(&dy->t, i));
    double slope = mica_act_slope(d->act, v, d->act_a, d->act_b);
    double gate = d->gated ? mica_get(x, at + j->parts.gate[0]) : 1;
    put(j, dx, to, g * gate * slope, fabs(g * gate) * (fabs(slope) + 1));
    if (!d->gated) return;
    double value = mica_act_value(d->act, v, d->act_a, d->act_b);
    put(j, dx, to + j->parts.gate[2], g * value, fabs(g) * (fabs(value) + fabs(v)));
}

void mica_activation_reference(const void *desc, const mica_view *args, const double *scalars)
{
    job j = {.d = desc,
             .args = args,
             .alpha = scalars[MICA_ACTIVATION_ALPHA],
             .beta = scalars[MICA_ACTIVATION_BETA]};
    bool fwd = j.d->pass == MICA_ACTIVATION_FWD;
    mica_activation_split(j.d, &j.parts);
    /* The views may be packed copies: their own strides hold, not the descriptor's. */
    for (int i = 0; i < j.parts.count; i++) {
        const mica_tensor *t = &args[j.parts.args[i]].t;
        for (int k = 0; k < t->rank; k++) j.parts.tensors[i].strides[k] = t->strides[k];
        if (j.d->gated && i != 1)
            j.parts.gate[i] = j.parts.tensors[i].dims[j.d->axis] * t->strides[j.d->axis];
    }
    int64_t count = mica_tensor_count(&j.parts.tensors[0]);
#pragma omp parallel for num_threads(mica_cpu_threads_for((double)count * 64))
    for (int64_t i = 0; i < count; i++) {
        if (fwd)
            forward(&j, &args[MICA_ACTIVATION_X], &args[MICA_ACTIVATION_Y], i);
        else
            backward(&j, &args[MICA_ACTIVATION_X], &args[MICA_ACTIVATION_DY],
                     &args[MICA_ACTIVATION_DX], i);
    }
}
