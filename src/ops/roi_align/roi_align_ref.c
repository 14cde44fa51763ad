/* SPDX-License-Identifier: Apache-2.0
 * roi_align in plain loops over samples. Coordinates are rounded as the header says, so that
 * engines agree on which elements they name; weights and sums are in double precision. */
#include "ops/roi_align/roi_align.h"

#include <math.h>

typedef struct job {
    const mica_roi_align_desc *d;
    const mica_view *args;
    bool f64;
    int64_t n, c, h, w, k, bins_h, bins_w;
} job;

typedef struct axis {
    const job *j;
    int64_t size, bins;
    double start, bin;
    double samples; /* 0: nothing is read */
} axis;

/* Of an element: the sum of its weights, and their ends. */
typedef struct weights {
    bool read;
    double sum, most, least;
} weights;

static double r(const job *j, double v)
{
    return j->f64 ? v : (double)(float)v;
}

static double rounded(double v)
{
    return fmin(fmax(round(v), -1e15), 1e15);
}

static axis along(const job *j, double low, double high, int64_t bins, int64_t size)
{
    const mica_roi_align_desc *d = j->d;
    const double scale = r(j, d->scale), from = r(j, low * scale), to = r(j, high * scale);
    axis a = {.j = j, .size = size, .bins = bins, .samples = 1};
    double length;
    if (d->mode == MICA_ROI_ALIGN_POOL) {
        a.start = rounded(from);
        length = r(j, fmax(rounded(to) - rounded(from) + 1, 1));
        a.bin = r(j, length / r(j, (double)bins));
    } else {
        a.start = d->aligned ? r(j, from - 0.5) : from;
        length = r(j, (d->aligned ? r(j, to - 0.5) : to) - a.start);
        if (!d->aligned && length < 1) length = 1;
        a.bin = r(j, length / r(j, (double)bins));
        a.samples = d->sampling ? (double)d->sampling : ceil(a.bin);
        if (!(a.samples >= 1 && a.samples <= 0x1p30)) a.samples = 0;
    }
    if (size == 0 || !isfinite(from) || !isfinite(to)) a.samples = 0;
    return a;
}

static double sample(const axis *a, int64_t bin, double i)
{
    const job *j = a->j;
    const double b = r(j, r(j, (double)bin) * a->bin), step = r(j, a->bin / r(j, a->samples));
    const double part = r(j, r(j, r(j, i) + 0.5) * step);
    return r(j, r(j, a->start + b) + part);
}

static bool inside(const axis *a, double u)
{
    return u >= -1 && u <= r(a->j, (double)a->size);
}

/* The first sample of a bin that is not before x: as they are in order, none before it counts. */
static double first_sample(const axis *a, int64_t bin)
{
    double low = 0, high = a->samples;
    if (!(a->bin > 0)) return 0;
    while (low < high) {
        const double middle = floor((low + high) / 2);
        if (sample(a, bin, middle) < -1)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static weights weigh(const axis *a, int64_t bin, int64_t at)
{
    weights w = {0};
    for (double i = first_sample(a, bin); i < a->samples; i++) {
        double u = sample(a, bin, i);
        if (a->bin > 0 && u > (double)a->size + 2) break;
        if (!inside(a, u)) continue;
        if (u < 0) u = 0;
        const double f = floor(u);
        const bool last = f >= r(a->j, (double)(a->size - 1));
        const int64_t low = last ? a->size - 1 : (int64_t)f;
        if (at != low && (last || at != low + 1)) continue;
        const double over = last ? 0 : r(a->j, u - f), v = at == low ? r(a->j, 1 - over) : over;
        w.sum += v;
        w.most = w.read ? fmax(w.most, v) : v;
        w.least = w.read ? fmin(w.least, v) : v;
        w.read = true;
    }
    return w;
}

/* Elements of a bin of pool, or those that its samples might name. */
static void span(const axis *a, int64_t bin, int64_t *first, int64_t *end)
{
    double low, high;
    *first = *end = 0;
    if (a->samples == 0) return;
    if (a->j->d->mode == MICA_ROI_ALIGN_POOL) {
        low = floor(r(a->j, r(a->j, (double)bin) * a->bin)) + a->start;
        high = ceil(r(a->j, r(a->j, (double)(bin + 1)) * a->bin)) + a->start;
    } else {
        const double one = sample(a, bin, 0), other = sample(a, bin, a->samples - 1);
        low = floor(fmin(one, other)) - 1, high = fmax(one, other) + 2;
        /* What lies before x is the element 0, beside which 1 weighs nothing; what lies behind it
         * the last. */
        if (low >= (double)a->size - 1) low = (double)a->size - 1;
        if (high < 2) high = 2;
    }
    if (!(low < (double)a->size) || !(high > 0)) return;
    *first = low > 0 ? (int64_t)low : 0;
    *end = high < (double)a->size ? (int64_t)ceil(high) : a->size;
    if (*end < *first) *end = *first;
}

static bool beside(const axis *a, int64_t bin)
{
    return a->samples == 0 || !inside(a, sample(a, bin, 0)) ||
           !inside(a, sample(a, bin, a->samples - 1));
}

/* ---- regions ---- */

typedef struct region {
    int64_t n; /* -1: none */
    axis h, w;
    double count;
} region;

static region region_of(const job *j, int64_t k)
{
    const mica_view *rois = &j->args[MICA_ROI_ALIGN_ROIS], *batch = &j->args[MICA_ROI_ALIGN_BATCH];
    const int64_t row = k * rois->t.strides[0], step = rois->t.strides[1];
    const double n = batch->data ? mica_get(batch, k * batch->t.strides[0]) : mica_get(rois, row);
    double v[4];
    for (int i = 0; i < 4; i++) v[i] = mica_get(rois, row + (i + !batch->data) * step);
    region g = {.n = n >= 0 && n < (double)j->n ? (int64_t)n : -1,
                .h = along(j, v[1], v[3], j->bins_h, j->h),
                .w = along(j, v[0], v[2], j->bins_w, j->w)};
    if (g.h.samples == 0 || g.w.samples == 0) g.n = -1;
    g.count = fmax(r(j, g.h.samples * g.w.samples), 1);
    return g;
}

static int64_t offset(const mica_view *v, int64_t n, int64_t c, int64_t h, int64_t w)
{
    const int64_t *s = v->t.strides;
    return n * s[0] + c * s[1] + h * s[2] + w * s[3];
}

static bool greater(double v, double than)
{
    return v > than || (isnan(v) && !isnan(than));
}

static void forward_bin(const job *j, const region *g, int64_t k, int64_t c, int64_t ph, int64_t pw)
{
    const mica_view *x = &j->args[MICA_ROI_ALIGN_X], *y = &j->args[MICA_ROI_ALIGN_Y];
    const mica_view *argmax = &j->args[MICA_ROI_ALIGN_ARGMAX];
    const mica_roi_align_mode mode = j->d->mode;
    int64_t h = 0, h_end = 0, first = 0, end = 0, at = -1;
    double value = 0, magnitude = 0;
    if (g->n >= 0) span(&g->h, ph, &h, &h_end), span(&g->w, pw, &first, &end);
    if (mode == MICA_ROI_ALIGN_MAX && (g->n < 0 || beside(&g->h, ph) || beside(&g->w, pw))) at = 0;
    for (; h < h_end; h++) {
        weights wh = {.read = true}, ww = wh;
        if (mode != MICA_ROI_ALIGN_POOL) wh = weigh(&g->h, ph, h);
        for (int64_t w = first; w < end && wh.read; w++) {
            if (mode != MICA_ROI_ALIGN_POOL) ww = weigh(&g->w, pw, w);
            if (!ww.read) continue;
            double v = mica_get(x, offset(x, g->n, c, h, w));
            if (mode == MICA_ROI_ALIGN_AVG) {
                value += wh.sum * ww.sum * v, magnitude += fabs(wh.sum * ww.sum * v);
                continue;
            }
            if (mode == MICA_ROI_ALIGN_MAX) v *= v < 0 ? wh.least * ww.least : wh.most * ww.most;
            if (at < 0 || greater(v, value)) value = v, at = h * j->w + w;
            magnitude = fmax(magnitude, fabs(v));
        }
    }
    if (mode == MICA_ROI_ALIGN_AVG) value /= g->count, magnitude /= g->count;
    mica_put(y, offset(y, k, c, ph, pw), value, magnitude);
    if (argmax->data) mica_put(argmax, offset(argmax, k, c, ph, pw), (double)at, 0);
}

static void forward(const job *j)
{
    for (int64_t k = 0; k < j->k; k++) {
        const region g = region_of(j, k);
        for (int64_t c = 0; c < j->c; c++)
            for (int64_t ph = 0; ph < j->bins_h; ph++)
                for (int64_t pw = 0; pw < j->bins_w; pw++) forward_bin(j, &g, k, c, ph, pw);
    }
}

/* ---- the gradient, gathered: of rows of dx ---- */

typedef struct cell {
    int64_t n, c, h, w;
    double sum, magnitude;
} cell;

/* What a region adds. */
static void add_region(const job *j, const region *g, int64_t k, cell *to)
{
    const mica_view *dy = &j->args[MICA_ROI_ALIGN_DY], *argmax = &j->args[MICA_ROI_ALIGN_ARGMAX];
    const bool pool = j->d->mode == MICA_ROI_ALIGN_POOL;
    for (int64_t ph = 0; ph < j->bins_h; ph++) {
        int64_t first, end;
        weights wh = {.read = true, .sum = 1}, ww = wh;
        span(&g->h, ph, &first, &end);
        if (to->h < first || to->h >= end) continue;
        if (!pool) wh = weigh(&g->h, ph, to->h);
        for (int64_t pw = 0; pw < j->bins_w && wh.read; pw++) {
            span(&g->w, pw, &first, &end);
            if (to->w < first || to->w >= end) continue;
            if (!pool) ww = weigh(&g->w, pw, to->w);
            if (!ww.read) continue;
            if (pool && mica_get(argmax, offset(argmax, k, to->c, ph, pw)) !=
                            (double)(to->h * j->w + to->w))
                continue;
            const double v =
                wh.sum * ww.sum / g->count * mica_get(dy, offset(dy, k, to->c, ph, pw));
            to->sum += v, to->magnitude += fabs(v);
        }
    }
}

static void backward(const job *j)
{
    const mica_view *dx = &j->args[MICA_ROI_ALIGN_DX];
    for (int64_t i = 0; i < mica_tensor_count(&dx->t); i++) {
        cell to = {.w = i % j->w, .h = i / j->w % j->h, .c = i / j->w / j->h % j->c};
        to.n = i / j->w / j->h / j->c;
        for (int64_t k = 0; k < j->k; k++) {
            const region g = region_of(j, k);
            if (g.n == to.n) add_region(j, &g, k, &to);
        }
        mica_put(dx, offset(dx, to.n, to.c, to.h, to.w), to.sum, to.magnitude);
    }
}

void mica_roi_align_reference(const void *desc, const mica_view *args, const double *scalars)
{
    const mica_roi_align_desc *d = desc;
    const mica_tensor *x = mica_roi_align_image(d), *y = mica_roi_align_output(d);
    (void)scalars;
    const job j = {.d = d,
                   .args = args,
                   .f64 = mica_roi_align_real(d) == MICA_F64,
                   .n = x->dims[0],
                   .c = x->dims[1],
                   .h = x->dims[2],
                   .w = x->dims[3],
                   .k = y->dims[0],
                   .bins_h = y->dims[2],
                   .bins_w = y->dims[3]};
    if (mica_roi_align_is_forward(d))
        forward(&j);
    else
        backward(&j);
}
