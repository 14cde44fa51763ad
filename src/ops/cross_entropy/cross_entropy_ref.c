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
    const mica_view *x, *target, *weight; /* data NULL: there is none */
    int64_t at, stride, classes, label, target_at;
    bool ignored, in_range;
    /* Of log-probabilities all are 0. */
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

static double weight_of(const row *r, int64_t c)
{
    return r->weight->data ? mica_get(r->weight, c * r->weight->t.strides[0]) : 1;
}

/* The target but for the label's share. */
static double spread_target(const row *r, int64_t c)
{
    double s = r->d->smoothing, t = s / (double)r->classes;
    if (r->target->data)
        t += (1 - s) * mica_get(r->target, r->target_at + c * r->target->t.strides[1]);
    return weight_of(r, c) * t;
}

/* What the label's class has on top. */
static double label_target(const row *r)
{
    return r->target->data ? 0 : (1 - r->d->smoothing) * weight_of(r, r->label);
}

static bool is_spread(const row *r)
{
    return r->d->smoothing > 0 || r->target->data;
}

static void find_statistics(row *r)
{
    r->max = -INFINITY;
    for (int64_t c = 0; c < r->classes; c++) r->max = fmax(r->max, logit(r, c));
    /* Of -inf alone, and of nothing, the logarithm of the sum is -inf. */
    double sum = 0, about = r->max == -INFINITY ? 0 : r->max;
    for (int64_t c = 0; c < r->classes; c++) {
        double v = logit(r, c) - about, e = exp(v);
        sum += e;
        r->spread += e > 0 ? e * fabs(v) : 0;
    }
    r->spread /= sum;
    r->log_sum = log(sum);
}

static row row_at(const mica_cross_entropy_desc *d, const mica_view *args, int64_t index)
{
    const mica_view *x = &args[MICA_CROSS_ENTROPY_X], *labels = &args[MICA_CROSS_ENTROPY_LABELS];
    row r = {.d = d, .x = x, .stride = x->t.strides[1], .classes = x->t.dims[1]};
    r.target = &args[MICA_CROSS_ENTROPY_TARGET];
    r.weight = &args[MICA_CROSS_ENTROPY_WEIGHT];
    r.at = row_offset(&x->t, true, index);
    r.in_range = true;
    if (r.target->data) {
        r.label = -1;
        r.target_at = row_offset(&r.target->t, true, index);
    } else {
        r.label = label_at(labels, row_offset(&labels->t, false, index));
        r.ignored = d->ignore && r.label == d->ignore_index;
        r.in_range = r.label >= 0 && r.label < r.classes;
    }
    r.by = 1 / growth(r.classes);
    if (d->input == MICA_CROSS_ENTROPY_LOGITS) find_statistics(&r);
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
    const double alone = label_target(r);
    long double below = 0, total = alone; /* the truth of f64 losses needs more than f64 */
    double size = 0;
    for (int64_t c = 0; is_spread(r) && c < r->classes; c++) {
        const double t = spread_target(r, c);
        const long double v = (long double)t * ((long double)r->max - (long double)logit(r, c));
        below += v, total += (long double)t;
        size += (double)fabsl(v);
    }
    const double v = r->label >= 0 ? logit(r, r->label) - r->max : 0, sum = fabs((double)total);
    const double loss =
        (r->d->input == MICA_CROSS_ENTROPY_LOGITS ? (double)total * r->log_sum : 0) - alone * v +
        (double)below;
    const double inner = sum * (r->log_sum + r->spread) + fabs(alone * v);
    return (value){loss, sum + inner * r->by + size};
}

/* What a row adds to the divisor of a mean. */
static double counts(const row *r)
{
    if (r->target->data) return 1;
    return r->ignored ? 0 : !r->weight->data ? 1 : r->in_range ? weight_of(r, r->label) : 0;
}

/* ---- forward ---- */

/* Losses of rows [from, to) and what belongs to each row. */
static void forward_rows(const mica_cross_entropy_desc *d, const mica_view *args, int64_t from,
                         int64_t to, value *sum, double *counted)
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
        *counted += counts(&r);
        if (d->reduction == MICA_REDUCE_NONE)
            mica_put(loss, row_offset(&loss->t, false, i), l.value, l.magnitude);
        if (lse->data) mica_put(lse, row_offset(&lse->t, false, i), e.value, e.magnitude);
    }
}

static void forward(const mica_cross_entropy_desc *d, const mica_view *args, int64_t rows)
{
    value sum[PARTS], all = {0, 0};
    double counted[PARTS], count = 0;
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
    double by = d->reduction == MICA_REDUCE_MEAN ? count : 1;
    mica_put(&args[MICA_CROSS_ENTROPY_LOSS], 0, all.value / by, all.magnitude / by);
}

/* ---- backward ---- */

static double count_rows(const mica_cross_entropy_desc *d, const mica_view *args, int64_t rows)
{
    double count = 0;
    mica_cross_entropy_desc looked_at = *d;
    looked_at.input = MICA_CROSS_ENTROPY_LOG_PROBS; /* no statistics */
    for (int64_t i = 0; i < rows; i++) {
        const row r = row_at(&looked_at, args, i);
        count += counts(&r);
    }
    return count;
}

static void target_gradient(const row *r, int64_t c, double g, const mica_view *dtarget, int64_t to)
{
    const double v = logit(r, c) - r->max, share = g * (1 - r->d->smoothing) * weight_of(r, c);
    const double size = r->d->input == MICA_CROSS_ENTROPY_LOG_PROBS
                            ? fabs(v)
                            : 1 + (fabs(v) + r->log_sum + r->spread) * r->by;
    mica_put(dtarget, to, -share * (v - r->log_sum), fabs(share) * size);
}

static void backward_row(const mica_cross_entropy_desc *d, const mica_view *args, int64_t i,
                         double by)
{
    const mica_view *dloss = &args[MICA_CROSS_ENTROPY_DLOSS], *dx = &args[MICA_CROSS_ENTROPY_DX];
    const mica_view *dtarget = &args[MICA_CROSS_ENTROPY_DTARGET];
    row r = row_at(d, args, i);
    bool each = d->reduction == MICA_REDUCE_NONE, logits = d->input == MICA_CROSS_ENTROPY_LOGITS;
    double g = by * mica_get(dloss, each ? row_offset(&dloss->t, false, i) : 0);
    int64_t to = row_offset(&dx->t, true, i), step = dx->t.strides[1];
    const bool good = r.in_range && !r.ignored;
    const double alone = good ? label_target(&r) : 0;
    double total = alone;
    for (int64_t c = 0; is_spread(&r) && c < r.classes; c++) total += spread_target(&r, c);
    for (int64_t c = 0; c < r.classes; c++) {
        double v = logit(&r, c) - r.max, p = logits ? exp(v - r.log_sum) : 0;
        double t = (is_spread(&r) ? spread_target(&r, c) : 0) + (c == r.label ? alone : 0);
        double m = p > 0 ? p * (1 + (fabs(v) + r.spread) * r.by) : 0;
        if (r.ignored)
            mica_put(dx, to + c * step, 0, 0);
        else if (!r.in_range)
            mica_put(dx, to + c * step, NAN, 0);
        else if (!logits && t == 0)
            mica_put(dx, to + c * step, 0, 0);
        else
            mica_put(dx, to + c * step, g * (total * p - t), fabs(g) * (fabs(total) * m + fabs(t)));
        if (dtarget->data)
            target_gradient(&r, c, g, dtarget,
                            row_offset(&dtarget->t, true, i) + c * dtarget->t.strides[1]);
    }
}

void mica_cross_entropy_reference(const void *desc, const mica_view *args, const double *scalars)
{
    const mica_cross_entropy_desc *d = desc;
    const mica_tensor each = mica_cross_entropy_without_classes(&d->x);
    const int64_t rows = mica_tensor_count(&each);
    (void)scalars;
    if (d->pass == MICA_CROSS_ENTROPY_FWD) {
        forward(d, args, rows);
        return;
    }
    double by = 1;
    if (d->reduction == MICA_REDUCE_MEAN) by = 1 / count_rows(d, args, rows);
#pragma omp parallel for num_threads(mica_cpu_threads())
    for (int64_t i = 0; i < rows; i++) backward_row(d, args, i, by);
}
