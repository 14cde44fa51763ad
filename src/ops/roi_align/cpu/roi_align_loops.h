/* SPDX-License-Identifier: Apache-2.0
 * Loops of roi_align for one type of sums. The including file defines real, LOOPS (the name of the
 * table), F32 (1, or 0 for doubles), and the functions of roi_align_body.h. */
#include "ops/roi_align/cpu/roi_align_cpu.h"
#include "cpu/cpu.h"
#include "cpu/scratch.h"
#include "ops/convert/cpu/convert.h"

#define ROI static inline
#include "ops/roi_align/roi_align_body.h"

static void load(mica_dtype type, const void *data, int64_t at, int64_t step, real *v, int64_t n)
{
#if F32
    mica_to_f32(type, data, at, step, v, n);
#else
    mica_to_f64(type, data, at, step, v, n);
#endif
}

static void store(mica_dtype type, void *data, int64_t at, int64_t step, const real *v, int64_t n)
{
#if F32
    mica_from_f32(type, data, at, step, v, n);
#else
    mica_from_f64(type, data, at, step, v, n);
#endif
}

/* ---- regions ---- */

typedef struct region {
    int64_t n; /* -1: nothing is read */
    roi_axis h, w;
} region;

static real coordinate(const mica_roi_align_job *j, int64_t k, int i)
{
    real v;
    load(j->rois_type, j->args.rois, k * j->args.roi + i * j->args.roi_column, 1, &v, 1);
    return v;
}

static region region_of(const mica_roi_align_job *j, int64_t k)
{
    const mica_roi_align_args *a = &j->args;
    const int first = a->batch ? 0 : 1, mode = (int)j->mode;
    region r;
    if (a->batch) {
        int64_t n;
        mica_to_s64(j->batch_type, a->batch, k * a->batch_step, 1, &n, 1);
        r.n = n >= 0 && n < a->n ? n : -1;
    } else
        r.n = roi_picture(coordinate(j, k, 0), a->n);
    r.w = roi_along(mode, coordinate(j, k, first), coordinate(j, k, first + 2), (real)a->scale,
                    a->aligned, a->sampling, a->bins_w, a->w);
    r.h = roi_along(mode, coordinate(j, k, first + 1), coordinate(j, k, first + 3), (real)a->scale,
                    a->aligned, a->sampling, a->bins_h, a->h);
    if (r.w.samples == 0 || r.h.samples == 0) r.n = -1;
    return r;
}

/* ---- elements of a bin, some at a time ---- */

enum { SIDE = 64, TAPS = 256 };

typedef struct taps {
    int64_t h[SIDE], w[SIDE]; /* rows and columns that are read */
    roi_weights of_h[SIDE], of_w[SIDE];
    int rows, columns;
    int count;
    int64_t offset[TAPS], at[TAPS];
    real weight[TAPS], least[TAPS]; /* max: the products that count for v >= 0 and v < 0 */
    uint16_t bits[TAPS];
    real values[TAPS], sums[ROI_CHANNELS];
    int64_t best[ROI_CHANNELS];
} taps;

static int64_t least_of(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int list(const mica_roi_align_job *j, const roi_axis *a, int64_t bin, int64_t first,
                int64_t end, int64_t *at, roi_weights *weights)
{
    int n = 0;
    for (int64_t i = first; i < end; i++) {
        weights[n] = (roi_weights){1, 1, 1};
        if (j->mode == MICA_ROI_ALIGN_POOL || roi_weigh(a, bin, i, &weights[n])) at[n++] = i;
    }
    return n;
}

/* Rows from `row` on and columns of the list: as many as fit. Returns the row behind them. */
static int fill(const mica_roi_align_job *j, const mica_roi_align_strides *s, int row, taps *t)
{
    t->count = 0;
    for (; row < t->rows && t->count + t->columns <= TAPS; row++)
        for (int c = 0; c < t->columns; c++) {
            const int i = t->count++;
            t->offset[i] = t->h[row] * s->h + t->w[c] * s->w;
            t->at[i] = t->h[row] * j->args.w + t->w[c];
            t->weight[i] = mul_of(t->of_h[row].sum, t->of_w[c].sum);
            if (j->mode != MICA_ROI_ALIGN_MAX) continue;
            t->weight[i] = mul_of(t->of_h[row].most, t->of_w[c].most);
            t->least[i] = mul_of(t->of_h[row].least, t->of_w[c].least);
        }
    return row;
}

typedef void visitor(const mica_roi_align_job *j, taps *t, int64_t base, int64_t c, int64_t c_end,
                     void *sums);

/* All elements of a bin, row by row if they are no more than a list has. */
static void walk(const mica_roi_align_job *j, const mica_roi_align_strides *s, const region *r,
                 int64_t ph, int64_t pw, taps *t, visitor *visit, int64_t c, int64_t c_end,
                 void *sums)
{
    long long h, h_end, w, w_end;
    roi_span((int)j->mode, &r->h, ph, &h, &h_end);
    roi_span((int)j->mode, &r->w, pw, &w, &w_end);
    for (; h < h_end; h += SIDE) {
        t->rows = list(j, &r->h, ph, h, least_of(h + SIDE, h_end), t->h, t->of_h);
        for (int64_t from = w; from < w_end; from += SIDE) {
            t->columns = list(j, &r->w, pw, from, least_of(from + SIDE, w_end), t->w, t->of_w);
            for (int row = 0; row < t->rows && t->columns > 0;) {
                row = fill(j, s, row, t);
                visit(j, t, r->n * s->n, c, c_end, sums);
            }
        }
    }
}

/* ---- forward ---- */

/* Elements of one channel. */
static const real *gather(const mica_roi_align_job *j, int64_t at, taps *t)
{
    if (j->type == MICA_F64 || j->type == MICA_F32) {
        const real *from = (const real *)j->args.x + at;
        for (int i = 0; i < t->count; i++) t->values[i] = from[t->offset[i]];
        return t->values;
    }
    const uint16_t *from = (const uint16_t *)j->args.x + at;
    for (int i = 0; i < t->count; i++) t->bits[i] = from[t->offset[i]];
    load(j->type, t->bits, 0, 1, t->values, t->count);
    return t->values;
}

MICA_NARROW_CLONES
static void add_scaled(real *sums, real w, const real *v, int64_t n)
{
    for (int64_t i = 0; i < n; i++) sums[i] += w * v[i];
}

static void add_taps(const mica_roi_align_job *j, taps *t, int64_t base, int64_t c, int64_t c_end,
                     void *unused)
{
    const int64_t step = j->args.x_step.c;
    real run[ROI_CHANNELS];
    (void)unused;
    if (step == 1 && c_end - c > 3) {
        for (int i = 0; i < t->count; i++) {
            load(j->type, j->args.x, base + t->offset[i] + c, 1, run, c_end - c);
            add_scaled(t->sums, t->weight[i], run, c_end - c);
        }
        return;
    }
    for (int64_t e = c; e < c_end; e++) {
        const real *v = gather(j, base + e * step, t);
        real sum = t->sums[e - c];
        for (int i = 0; i < t->count; i++) sum += t->weight[i] * v[i];
        t->sums[e - c] = sum;
    }
}

/* Of max and pool. Pieces of a bin are not in the order of positions: of equal ones the first is.
 */
static void take_greatest(const mica_roi_align_job *j, taps *t, int64_t base, int64_t c,
                          int64_t c_end, void *unused)
{
    (void)unused;
    for (int64_t e = c; e < c_end; e++) {
        const real *v = gather(j, base + e * j->args.x_step.c, t);
        real best = t->sums[e - c];
        int64_t at = t->best[e - c];
        for (int i = 0; i < t->count; i++) {
            real found = v[i];
            if (j->mode == MICA_ROI_ALIGN_MAX) found *= found < 0 ? t->least[i] : t->weight[i];
            const bool as_good = found == best || (found != found && best != best);
            if (at < 0 || roi_greater(found, best) || (as_good && t->at[i] < at))
                best = found, at = t->at[i];
        }
        t->sums[e - c] = best, t->best[e - c] = at;
    }
}

static void forward_bin(const mica_roi_align_job *j, const region *r, int64_t k, int64_t ph,
                        int64_t pw, int64_t c, int64_t c_end, taps *t)
{
    const mica_roi_align_args *a = &j->args;
    const bool max = j->mode == MICA_ROI_ALIGN_MAX, avg = j->mode == MICA_ROI_ALIGN_AVG;
    const bool beside = max && (r->n < 0 || roi_beside(&r->h, ph) || roi_beside(&r->w, pw));
    for (int64_t e = 0; e < c_end - c; e++) t->sums[e] = 0, t->best[e] = beside ? 0 : -1;
    if (r->n >= 0)
        walk(j, &a->x_step, r, ph, pw, t, avg ? add_taps : take_greatest, c, c_end, NULL);
    const real count = roi_count(&r->h, &r->w);
    for (int64_t e = 0; avg && e < c_end - c; e++) t->sums[e] /= count;
    const mica_roi_align_strides *y = &a->y_step, *m = &a->argmax_step;
    store(j->type, a->y, k * y->n + c * y->c + ph * y->h + pw * y->w, y->c, t->sums, c_end - c);
    if (a->argmax)
        mica_from_s64(j->argmax_type, a->argmax, k * m->n + c * m->c + ph * m->h + pw * m->w, m->c,
                      t->best, c_end - c);
}

static void forward(const mica_roi_align_job *j, int64_t k, int64_t c, int64_t c_end)
{
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    taps *t = mica_scratch_take(sizeof *t);
    const region r = region_of(j, k);
    for (int64_t ph = 0; ph < j->args.bins_h; ph++)
        for (int64_t pw = 0; pw < j->args.bins_w; pw++) forward_bin(j, &r, k, ph, pw, c, c_end, t);
}

/* ---- gradient ---- */

/* values: dy of a bin. */
static void scatter(const mica_roi_align_job *j, taps *t, int64_t base, int64_t c, int64_t c_end,
                    void *data)
{
    real *sums = (real *)data + base;
    const int64_t step = j->sum_step.c;
    if (j->mode == MICA_ROI_ALIGN_POOL) {
        for (int64_t e = c; e < c_end; e++)
            for (int i = 0; i < t->count; i++)
                if (t->at[i] == t->best[e - c]) sums[t->offset[i] + e * step] += t->sums[e - c];
    } else if (step == 1) {
        for (int i = 0; i < t->count; i++)
            add_scaled(sums + t->offset[i] + c, t->weight[i], t->sums, c_end - c);
    } else {
        for (int64_t e = c; e < c_end; e++)
            for (int i = 0; i < t->count; i++)
                sums[t->offset[i] + e * step] += t->weight[i] * t->sums[e - c];
    }
}

static void backward_region(const mica_roi_align_job *j, const region *r, int64_t k, int64_t c,
                            int64_t c_end, taps *t, void *sums)
{
    const mica_roi_align_args *a = &j->args;
    const mica_roi_align_strides *y = &a->y_step, *m = &a->argmax_step;
    const real share = 1 / roi_count(&r->h, &r->w);
    for (int64_t ph = 0; ph < a->bins_h; ph++)
        for (int64_t pw = 0; pw < a->bins_w; pw++) {
            load(j->type, a->dy, k * y->n + c * y->c + ph * y->h + pw * y->w, y->c, t->sums,
                 c_end - c);
            for (int64_t e = 0; j->mode == MICA_ROI_ALIGN_AVG && e < c_end - c; e++)
                t->sums[e] *= share;
            if (a->argmax)
                mica_to_s64(j->argmax_type, a->argmax, k * m->n + c * m->c + ph * m->h + pw * m->w,
                            m->c, t->best, c_end - c);
            walk(j, &j->sum_step, r, ph, pw, t, scatter, c, c_end, sums);
        }
}

static void backward(const mica_roi_align_job *j, int64_t n, int64_t c, int64_t c_end, void *sums)
{
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    taps *t = mica_scratch_take(sizeof *t);
    for (int64_t k = 0; k < j->args.k; k++) {
        const region r = region_of(j, k);
        if (r.n == n) backward_region(j, &r, k, c, c_end, t, sums);
    }
}

const mica_roi_align_loops LOOPS = {forward, backward};
