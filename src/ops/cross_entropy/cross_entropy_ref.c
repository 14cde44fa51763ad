/* SPDX-License-Identifier: Apache-2.0
 * Cross-entropy, the truth. Magnitudes: the logarithm of a sum of n terms carries the growth of
 * that sum; errors of x - max, of one unit of their size, do not grow with n and so enter divided
 * by it (see softmax_ref.c). */
#include "ops/cross_entropy/cross_entropy.h"
#include "cpu/cpu.h"

#include <math.h>

/* Partial sums of a mean or sum over rows, in a fixed order whatever the threads. */
enum { PARTS = 64 };

typedef struct value {
    double value, magnitude;
} value;

typedef struct row {
    const mica_cross_entropy_desc *d;
    const mica_view *x;
    int64_t at, stride, classes, label;
    bool ignored, in_range;
    double max, log_sum, spread; /* spread: sum of p |x - max| */
    double by;                   /* 1 / growth */
} row;

static double growth(int64_t n)
{
    return fmax(1, fmin((double)n, 4 * sqrt((double)n)));
}

/* Labels past 2^53 must not be rounded on their way. */
static int64_t label_at(const mica_view *labels, int64_t offset)
{
    return labels->t.dtype == MICA_S32 ? ((const int32_t *)labels->data)[offset]
                                       : ((const int64_t *)labels->data)[offset];
}

/* The tensor of one element per row; for x and dx without the class axis. */
static int64_t row_offset(const mica_tensor *t, bool has_classes, int64_t index)
{
    int64_t offset = 0;
    for (int i = t->rank - 1; i >= 0; i--) {
        if (has_classes && i == 1) continue;
        offset += index % t->dims[i] * t->strides[i];
        index /= t->dims[i];
    }
    return offset;
}

static double logit(const row *r, int64_t c)
{
    return mica_get(r->x, r->at + c * r->stride);
}

static row row_at(const mica_cross_entropy_desc *d, const mica_view *args, int64_t index)
{
    const mica_view *x = &args[MICA_CROSS_ENTROPY_X], *labels = &args[MICA_CROSS_ENTROPY_LABELS];
    row r = {.d = d, .x = x, .stride = x->t.strides[1], .classes = x->t.dims[1]};
    r.at = row_offset(&x->t, true, index);
    r.label = label_at(labels, row_offset(&labels->t, false, index));
    r.ignored = d->ignore && r.label == d->ignore_index;
    r.in_range = r.label >= 0 && r.label < r.classes;
    r.by = 1 / growth(r.classes);
    r.max = -INFINITY;
    for (int64_t c = 0; c < r.classes; c++) r.max = fmax(r.max, logit(&r, c));
    /* Of -inf alone, and of nothing, the logarithm of the sum is -inf. */
    double sum = 0, about = r.max == -INFINITY ? 0 : r.max;
    for (int64_t c = 0; c < r.classes; c++) {
        double v = logit(&r, c) - about, e = exp(v);
        sum += e;
        r.spread += e > 0 ? e * fabs(v) : 0;
    }
    r.spread /= sum;
    r.log_sum = log(sum);
    return r;
}

static value row_lse(const row *r)
{
    return (value){r->max + r->log_sum, 1 + (fabs(r->max) + r->log_sum + r->spread) * r->by};
}

static value row_loss(const row *r)
{
    if (r->ignored) return (value){0, 0};
    if (!r->in_range) return (value){NAN, 0};
    double s = r->d->smoothing;
    long double deviation = 0; /* the truth of f64 losses needs more than f64 */
    for (int64_t c = 0; s > 0 && c < r->classes; c++)
        deviation += (long double)r->max - (long double)logit(r, c);
    double below = (double)(deviation / (long double)r->classes);
    double v = logit(r, r->label) - r->max;
    double loss = r->log_sum - (1 - s) * v;
    if (s > 0) loss += s * below;
    double inner = r->log_sum + fabs(v) + r->spread;
    return (value){loss, 1 + inner * r->by + (s > 0 ? s * below : 0)};
}

/* ---- forward ---- */

/* Losses of rows [from, to) and what belongs to each row. */
static void forward_rows(const mica_cross_entropy_desc *d, const mica_view *args, int64_t from,
                         int64_t to, value *sum, int64_t *counted)
{
    const mica_view *loss = &args[MICA_CROSS_ENTROPY_LOSS], *lse = &args[MICA_CROSS_ENTROPY_LSE];
    *sum = (value){0, 0};
    *counted = 0;
    for (int64_t i = from; i < to; i++) {
        row r = row_at(d, args, i);
        value l = row_loss(&r), e = row_lse(&r);
        sum->value += l.value;
        /* The row's loss may be rounded before it is summed. */
        sum->magnitude += l.magnitude + fabs(l.value);
        *counted += !r.ignored;
        if (d->reduction == MICA_REDUCE_NONE)
            mica_put(loss, row_offset(&loss->t, false, i), l.value, l.magnitude);
        if (lse->data) mica_put(lse, row_offset(&lse->t, false, i), e.value, e.magnitude);
    }
}

static void forward(const mica_cross_entropy_desc *d, const mica_view *args, int64_t rows)
{
    value sum[PARTS], all = {0, 0};
    int64_t counted[PARTS], count = 0;
#pragma omp parallel for num_threads(mica_cpu_threads())
    for (int p = 0; p < PARTS; p++)
        forward_rows(d, args, rows * p / PARTS, rows * (p + 1) / PARTS, &sum[p], &counted[p]);
    if (d->reduction == MICA_REDUCE_NONE) return;
    for (int p = 0; p < PARTS; p++) {
        all.value += sum[p].value;
        all.magnitude += sum[p].magnitude;
        count += counted[p];
    }
    /* In f64 the sum over rows has no spare digits. */
    if (d->x.dtype == MICA_F64 && d->loss.dtype == MICA_F64) all.magnitude *= growth(rows);
    double by = d->reduction == MICA_REDUCE_MEAN ? (double)count : 1;
    mica_put(&args[MICA_CROSS_ENTROPY_LOSS], 0, all.value / by, all.magnitude / by);
}

/* ---- backward ---- */

static int64_t count_rows(const mica_cross_entropy_desc *d, const mica_view *labels, int64_t rows)
{
    int64_t count = 0;
    for (int64_t i = 0; i < rows; i++)
        count +=
            !d->ignore || label_at(labels, row_offset(&labels->t, false, i)) != d->ignore_index;
    return count;
}

static void backward_row(const mica_cross_entropy_desc *d, const mica_view *args, int64_t i,
                         double by)
{
    const mica_view *dloss = &args[MICA_CROSS_ENTROPY_DLOSS], *dx = &args[MICA_CROSS_ENTROPY_DX];
    row r = row_at(d, args, i);
    bool each = d->reduction == MICA_REDUCE_NONE;
    double g = by * mica_get(dloss, each ? row_offset(&dloss->t, false, i) : 0);
    int64_t to = row_offset(&dx->t, true, i), step = dx->t.strides[1];
    for (int64_t c = 0; c < r.classes; c++) {
        double v = logit(&r, c) - r.max, p = exp(v - r.log_sum);
        double t = d->smoothing / (double)r.classes + (c == r.label ? 1 - d->smoothing : 0);
        double m = p > 0 ? p * (1 + (fabs(v) + r.spread) * r.by) : 0;
        if (r.ignored)
            mica_put(dx, to + c * step, 0, 0);
        else if (!r.in_range)
            mica_put(dx, to + c * step, NAN, 0);
        else
            mica_put(dx, to + c * step, g * (p - t), fabs(g) * (m + t));
    }
}

void mica_cross_entropy_reference(const void *desc, const mica_view *args, const double *scalars)
{
    const mica_cross_entropy_desc *d = desc;
    const mica_view *labels = &args[MICA_CROSS_ENTROPY_LABELS];
    int64_t rows = mica_tensor_count(&labels->t);
    (void)scalars;
    if (d->pass == MICA_CROSS_ENTROPY_FWD) {
        forward(d, args, rows);
        return;
    }
    double by = 1;
    if (d->reduction == MICA_REDUCE_MEAN) by = 1 / (double)count_rows(d, labels, rows);
#pragma omp parallel for num_threads(mica_cpu_threads())
    for (int64_t i = 0; i < rows; i++) backward_row(d, args, i, by);
}
