/* SPDX-License-Identifier: Apache-2.0
 * Cross-entropy of a linear layer, the truth: logits in double, each with the sum of magnitudes
 * behind it, by which its exponential moves. Gradients of logits are rounded to x's type once on
 * the way. */
#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "ops/convert/cpu/convert.h"
#include "cpu/cpu.h"
#include "cpu/scratch.h"

#include <float.h>
#include <math.h>

typedef struct truth {
    const mica_linear_cross_entropy_desc *d;
    const mica_view *x, *w, *labels;
    int64_t rows, width, classes;
    double step; /* of x's type, in units of roundoff of the sums' */
} truth;

static int64_t label_at(const truth *t, int64_t i)
{
    const int64_t at = i * t->labels->t.strides[0];
    return t->labels->t.dtype == MICA_S32 ? ((const int32_t *)t->labels->data)[at]
                                          : ((const int64_t *)t->labels->data)[at];
}

static double at2(const mica_view *v, int64_t i, int64_t k)
{
    return mica_get(v, i * v->t.strides[0] + k * v->t.strides[1]);
}

static double growth(int64_t n)
{
    return fmax(1, fmin((double)n, 4 * sqrt((double)n)));
}

/* A row's logits and their magnitudes; log(sum(exp)), and by what it may be off. */
static double find_logits(const truth *t, int64_t i, double *logits, double *mag, double *off)
{
    double max = -INFINITY, worst = 0;
    long double sum = 0;
    bool poisoned = false;
    for (int64_t c = 0; c < t->classes; c++) {
        long double v = 0, m = 0;
        for (int64_t k = 0; k < t->width; k++) {
            const long double term = (long double)at2(t->x, i, k) * (long double)at2(t->w, c, k);
            v += term, m += fabsl(term);
        }
        logits[c] = (double)v, mag[c] = (double)m;
        /* Sums that pass the end of f32 on the way may be infinite or NaN. */
        if (t->d->x.dtype != MICA_F64 && m >= (long double)FLT_MAX) mag[c] = INFINITY;
        max = fmax(max, logits[c]), worst = fmax(worst, mag[c]);
        poisoned |= isnan(logits[c]);
    }
    for (int64_t c = 0; c < t->classes; c++) sum += expl((long double)(logits[c] - max));
    *off = worst + fabs(max) + 4;
    if (isinf(max)) return poisoned ? (double)NAN : max; /* as logsumexp has it */
    return (double)((long double)max + logl(sum));
}

typedef struct outcome {
    double loss, off, divisor;
} outcome;

static outcome loss_of(const truth *t, int64_t i, const double *logits, const double *mag,
                       double lse, double off)
{
    const mica_linear_cross_entropy_desc *d = t->d;
    const int64_t label = label_at(t, i);
    const double s = d->smoothing, v = (double)t->classes;
    if (d->ignore && label == d->ignore_index) return (outcome){0, 0, 0};
    if (label < 0 || label >= t->classes) return (outcome){NAN, 0, 1};
    double all = 0, of_all = 0;
    for (int64_t c = 0; c < t->classes; c++) all += logits[c], of_all += fabs(logits[c]) + mag[c];
    const double loss = lse - (1 - s) * logits[label] - s / v * all;
    return (outcome){loss, off + mag[label] + 2 * fabs(logits[label]) + s / v * of_all, 1};
}

/* Of the sum of losses. */
static double gradient_of(const truth *t, int64_t label, int64_t c, double logit, double lse)
{
    const mica_linear_cross_entropy_desc *d = t->d;
    if (d->ignore && label == d->ignore_index) return 0;
    if (label < 0 || label >= t->classes) return NAN;
    return exp(logit - lse) - d->smoothing / (double)t->classes -
           (c == label ? 1 - d->smoothing : 0);
}

/* Of a gradient's magnitude, of n terms. */
static long double share_of(const truth *t, const double *g, const double *error, int64_t i,
                            int64_t c, int64_t n, double factor)
{
    const int64_t at = i * t->classes + c;
    if (isinf(error[at])) return (long double)INFINITY; /* though the factor be 0 */
    return (long double)((fabs(g[at]) + error[at] / growth(n)) * fabs(factor));
}

void mica_linear_cross_entropy_reference(const void *desc, const mica_view *args,
                                         const double *scalars)
{
    const mica_linear_cross_entropy_desc *d = desc;
    const mica_view *loss = &args[MICA_LINEAR_CROSS_ENTROPY_LOSS];
    const mica_view *dx = &args[MICA_LINEAR_CROSS_ENTROPY_DX];
    const mica_view *dw = &args[MICA_LINEAR_CROSS_ENTROPY_DW];
    truth t = {d,
               &args[MICA_LINEAR_CROSS_ENTROPY_X],
               &args[MICA_LINEAR_CROSS_ENTROPY_W],
               &args[MICA_LINEAR_CROSS_ENTROPY_LABELS],
               d->x.dims[0],
               d->x.dims[1],
               d->w.dims[0],
               1};
    (void)scalars;
    if (d->x.dtype == MICA_BF16) t.step = 65536;
    if (d->x.dtype == MICA_F16) t.step = 8192;
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    const size_t bytes = (size_t)(t.rows * t.classes) * sizeof(double);
    double *g = mica_scratch_zeroed(bytes), *error = mica_scratch_zeroed(bytes);
    double *mag = mica_scratch_take((size_t)t.classes * sizeof *mag);
    long double sum = 0, off = 0, count = 0;
    for (int64_t i = 0; i < t.rows; i++) {
        double *logits = g + i * t.classes, lse_off;
        const double lse = find_logits(&t, i, logits, mag, &lse_off);
        const outcome o = loss_of(&t, i, logits, mag, lse, lse_off);
        if (mica_tensor_given(&d->lse))
            mica_put(&args[MICA_LINEAR_CROSS_ENTROPY_LSE],
                     i * args[MICA_LINEAR_CROSS_ENTROPY_LSE].t.strides[0], lse, lse_off);
        if (d->reduction == MICA_REDUCE_NONE) mica_put(loss, i * loss->t.strides[0], o.loss, o.off);
        sum += (long double)o.loss, off += (long double)o.off, count += (long double)o.divisor;
        const int64_t label = label_at(&t, i);
        for (int64_t c = 0; c < t.classes; c++) {
            const double p = exp(logits[c] - lse), v = gradient_of(&t, label, c, logits[c], lse);
            /* An exponential moves by its argument's error, and anywhere up to 1 where that is no
             * small number; then the type's own rounding. */
            const double units = mag[c] + lse_off,
                         unit = d->x.dtype == MICA_F64 ? 0x1p-53 : 0x1p-24;
            const double moved = isinf(units)           ? INFINITY
                                 : units * unit > 0.125 ? 1 / unit
                                                        : p * units;
            const bool exact = v == 0 && (o.divisor == 0 || isfinite(moved));
            error[i * t.classes + c] = exact ? 0 : moved + 4 + fabs(v) * t.step;
            logits[c] = v;
        }
    }
    const bool mean = d->reduction == MICA_REDUCE_MEAN;
    if (d->reduction != MICA_REDUCE_NONE)
        mica_put(loss, 0, (double)(mean ? sum / count : sum), (double)(mean ? off / count : off));
    const double share = mean ? count > 0 ? (double)(1 / count) : 0 : 1;
    for (int64_t i = 0; mica_tensor_given(&d->dx) && i < t.rows; i++)
        for (int64_t k = 0; k < t.width; k++) {
            long double v = 0, m = 0;
            for (int64_t c = 0; c < t.classes; c++) {
                const double w = at2(t.w, c, k);
                v += (long double)(g[i * t.classes + c] * w);
                m += share_of(&t, g, error, i, c, t.classes, w);
            }
            mica_put(dx, i * dx->t.strides[0] + k * dx->t.strides[1], (double)v * share,
                     (double)m * share);
        }
    for (int64_t c = 0; mica_tensor_given(&d->dw) && c < t.classes; c++)
        for (int64_t k = 0; k < t.width; k++) {
            long double v = 0, m = 0;
            for (int64_t i = 0; i < t.rows; i++) {
                const double x = at2(t.x, i, k);
                v += (long double)(g[i * t.classes + c] * x);
                m += share_of(&t, g, error, i, c, t.rows, x);
            }
            mica_put(dw, c * dw->t.strides[0] + k * dw->t.strides[1], (double)v * share,
                     (double)m * share);
        }
}
