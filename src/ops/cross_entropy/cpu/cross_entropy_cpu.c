/* SPDX-License-Identifier: Apache-2.0
 * Cross-entropy on the CPU: tiles of rows (ops/shared/cpu/tile.h) in f32, rows one by one in double
 * if an f64 tensor takes part. The forward pass reads the logits once. So does the backward pass
 * where the exponentials of a tile stay in the second-level cache; of a longer row they are formed
 * twice. Sums over rows are formed in double, in PARTS pieces that do not depend on the number of
 * threads. No workspace. Cost: memory's, or some 14 cycles per vector for exp, in short types the
 * more. */
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/shared/cpu/rows.h"
#include "ops/shared/cpu/tile.h"
#include "cpu/cpu.h"
#include "cpu/stream.h"

#include <math.h>
#include <string.h>

enum { PARTS = 64, WIDE_PIECE = 64 };
/* Operands of the tiling; THIRD is loss or dloss, FOURTH lse or dx. */
enum { X, LABELS, THIRD, FOURTH };

typedef struct state {
    mica_tiling tiling;
    int arg[4];
    mica_load_fn load_x, load_third;
    mica_store_fn store_third, store_fourth;
    double bytes, smoothing;
    mica_reduction reduction;
    int64_t ignore_index;
    bool forward, ignore, wide, has_lse, kept;
} state;

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)desc, (void)device, (void)why;
    return MICA_OK;
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    (void)config;
    return 1.5 * mica_roofline_ms(&mica_op_cross_entropy, desc, device) + 3e-4;
}

static mica_status build(mica_plan *plan)
{
    const mica_cross_entropy_desc *d = plan->desc;
    mica_cross_entropy_rows rows;
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_cross_entropy_rows_make(&rows, d);
    s->forward = d->pass == MICA_CROSS_ENTROPY_FWD;
    s->has_lse = mica_tensor_given(&d->lse);
    const mica_tensor *third = s->forward ? &d->loss : &d->dloss;
    const mica_tensor *fourth = !s->forward ? &d->dx : s->has_lse ? &d->lse : &d->loss;
    s->arg[X] = MICA_CROSS_ENTROPY_X;
    s->arg[LABELS] = MICA_CROSS_ENTROPY_LABELS;
    s->arg[THIRD] = s->forward ? MICA_CROSS_ENTROPY_LOSS : MICA_CROSS_ENTROPY_DLOSS;
    s->arg[FOURTH] = s->forward ? MICA_CROSS_ENTROPY_LSE : MICA_CROSS_ENTROPY_DX;
    mica_tiling *t = &s->tiling;
    t->outer = rows.layout;
    t->n = rows.classes;
    t->type[X] = d->x.dtype;
    t->type[LABELS] = d->labels.dtype;
    t->type[THIRD] = third->dtype;
    t->type[FOURTH] = fourth->dtype;
    t->along[X] = rows.x_stride;
    t->along[FOURTH] = rows.dx_stride;
    s->load_x = mica_dtype_load(d->x.dtype);
    s->load_third = mica_dtype_load(third->dtype);
    s->store_third = mica_dtype_store(third->dtype);
    s->store_fourth = mica_dtype_store(fourth->dtype);
    s->bytes = mica_op_bytes(plan->op, d);
    s->smoothing = d->smoothing;
    s->reduction = d->reduction;
    s->ignore = d->ignore;
    s->ignore_index = d->ignore_index;
    s->wide = mica_cross_entropy_is_wide(d);
    bool contiguous = rows.x_stride == 1 && (s->forward || rows.dx_stride == 1);
    t->past_cache = mica_stream_pays(s->bytes, plan->device.cache_bytes);
    mica_tiling_make(t, contiguous, s->wide);
    s->kept = mica_tiling_is_kept(t, s->forward ? X : FOURTH);
    return MICA_OK;
}

/* ---- rows ---- */

static int64_t label_of(const mica_tile *t, int64_t c)
{
    int64_t at = t->offset[LABELS] + c * t->across[LABELS];
    const void *labels = t->data[LABELS];
    return t->s->type[LABELS] == MICA_S32 ? ((const int32_t *)labels)[at]
                                          : ((const int64_t *)labels)[at];
}

static bool is_ignored(const state *s, int64_t label)
{
    return s->ignore && label == s->ignore_index;
}

/* What the first pass over a row leaves. */
typedef struct row {
    double max, log_sum, below; /* below: sum of x - max times MICA_DEVIATION, with smoothing */
    double picked;              /* the label's logit */
} row;

static double loss_of(const state *s, int64_t label, const row *r)
{
    int64_t n = s->tiling.n;
    if (is_ignored(s, label)) return 0;
    if (label < 0 || label >= n) return NAN;
    double loss = r->log_sum - (1 - s->smoothing) * (r->picked - r->max);
    if (s->smoothing > 0) loss -= s->smoothing * (r->below / (double)n / (double)MICA_DEVIATION);
    return loss;
}

/* ---- forward ---- */

typedef struct partial {
    double sum;
    int64_t counted;
} partial;

static void forward_row(const state *s, const mica_tile *t, int64_t c, int64_t label, const row *r,
                        partial *p)
{
    double loss = loss_of(s, label, r);
    p->sum += loss;
    p->counted += !is_ignored(s, label);
    if (s->reduction == MICA_REDUCE_NONE)
        s->store_third(t->data[THIRD], t->offset[THIRD] + c * t->across[THIRD], loss);
    if (s->has_lse)
        s->store_fourth(t->data[FOURTH], t->offset[FOURTH] + c * t->across[FOURTH],
                        r->max + r->log_sum);
}

/* Of a tile's rows, what is gathered chunk by chunk. */
typedef struct gathered {
    int64_t label[MICA_TILE_WIDTH];
    float picked[MICA_TILE_WIDTH];
    /* Sums of x - about, times MICA_DEVIATION: about the maximum so far. Sums of x itself would
     * lose what logits differ by, or overflow. */
    float about[MICA_TILE_WIDTH];
    double below[MICA_TILE_WIDTH];
} gathered;

static void find_labels(const mica_tile *t, int64_t *label)
{
    for (int64_t c = 0; c < t->width; c++) label[c] = label_of(t, c);
}

/* Sums of `seen` positions, from now on about the maxima. Of -inf alone they are -inf. */
static void lower(const mica_tile *t, const mica_stats_of_slices *st, int64_t seen, gathered *g)
{
    for (int64_t c = 0; c < t->width; c++) {
        const float max = st->max[c] == -INFINITY ? 0 : st->max[c];
        const double by = (double)g->about[c] - (double)max;
        if (seen > 0 && by != 0) g->below[c] += (double)seen * by * (double)MICA_DEVIATION;
        g->about[c] = max;
    }
}

/* step: from position to position. */
static void gather(const state *s, const mica_tile *t, const float *x, int64_t step, int64_t from,
                   int64_t n, const mica_stats_of_slices *st, gathered *g)
{
    for (int64_t c = 0; c < t->width; c++) {
        int64_t at = g->label[c] - from;
        if (at >= 0 && at < n) g->picked[c] = x[at * step + c];
    }
    if (!(s->smoothing > 0)) return;
    lower(t, st, from, g);
    if (t->s->width == 1) {
        g->below[0] += (double)mica_row_deviation(x, g->about[0], n);
        return;
    }
    MICA_ALIGNED float sum[MICA_TILE_WIDTH] = {0};
    for (int64_t i = 0; i < n; i++) mica_cols_deviation(x + i * step, g->about, t->width, sum);
    for (int64_t c = 0; c < t->width; c++) g->below[c] += (double)sum[c];
}

static void forward_tile(const state *s, const mica_tile *t, partial *p)
{
    MICA_ALIGNED float x[MICA_TILE_CHUNK], e[MICA_TILE_CHUNK], log_sum[MICA_TILE_WIDTH];
    mica_stats_of_slices st;
    gathered g;
    int64_t ld;
    for (int64_t c = 0; c < t->width; c++) g.picked[c] = 0, g.below[c] = 0;
    find_labels(t, g.label);
    mica_slices_clear(&st, t->width);
    for (int64_t a = 0; a < t->s->n; a += t->s->chunk) {
        int64_t n = t->s->n - a < t->s->chunk ? t->s->n - a : t->s->chunk;
        const float *in = mica_tile_fetch(t, X, a, n, x, &ld);
        mica_slices_max(t, in, ld, n, &st);
        mica_slices_exp(t, in, ld, a, n, &st, e, t->width);
        gather(s, t, in, t->s->width == 1 ? 1 : ld, a, n, &st, &g);
    }
    mica_logs(st.sum, t->width, log_sum);
    for (int64_t c = 0; c < t->width; c++) {
        row r = {(double)st.max[c], (double)log_sum[c], g.below[c], (double)g.picked[c]};
        forward_row(s, t, c, g.label[c], &r, p);
    }
}

/* ---- backward ---- */

/* The gradient's parts by column: it is scale * exp(x - max) / sum + bias, and for the label's
 * class shift on top. */
typedef struct factors {
    double scale[MICA_TILE_WIDTH];
    float bias[MICA_TILE_WIDTH], shift[MICA_TILE_WIDTH];
    int64_t label[MICA_TILE_WIDTH];
    bool any_ignored, ignored[MICA_TILE_WIDTH];
} factors;

static double gradient(const state *s, const mica_tile *t, int64_t c, double by)
{
    return by * s->load_third(t->data[THIRD], t->offset[THIRD] + c * t->across[THIRD]);
}

static void make_factors(const state *s, const mica_tile *t, double by, factors *f)
{
    double one = s->reduction == MICA_REDUCE_NONE ? 0 : gradient(s, t, 0, by);
    find_labels(t, f->label);
    f->any_ignored = false;
    for (int64_t c = 0; c < t->width; c++) {
        int64_t label = f->label[c];
        bool ignored = f->ignored[c] = is_ignored(s, label);
        double g = s->reduction == MICA_REDUCE_NONE ? gradient(s, t, c, by) : one;
        if (!ignored && (label < 0 || label >= t->s->n)) g = NAN;
        f->any_ignored |= ignored;
        f->scale[c] = g;
        f->bias[c] = (float)(-g * s->smoothing / (double)t->s->n);
        f->shift[c] = (float)(-g * (1 - s->smoothing));
    }
}

/* What is particular to the labels in n positions of the gradient, `step` apart. */
static void add_labels(const mica_tile *t, const factors *f, int64_t from, int64_t n, float *dx,
                       int64_t step)
{
    for (int64_t c = 0; c < t->width; c++) {
        if (f->label[c] < from || f->label[c] - from >= n) continue;
        dx[(f->label[c] - from) * step + c] += f->shift[c];
    }
    /* Not a product with zero: what is ignored may hold NaN. */
    for (int64_t c = 0; f->any_ignored && c < t->width; c++)
        for (int64_t i = 0; f->ignored[c] && i < n; i++) dx[i * step + c] = 0;
}

/* Tiles that are kept: each exponential is formed once, about the maximum at the time, and waits
 * where the gradient will be, if that is memory of floats. */
static void backward_kept(const mica_tile *t, const factors *f)
{
    MICA_ALIGNED float x[MICA_TILE_CHUNK], buffer[MICA_TILE_KEPT];
    MICA_ALIGNED float shift[MICA_TILE_SHIFTS], factor[MICA_TILE_WIDTH];
    mica_stats_of_slices st;
    int64_t width = t->width, ld, eld;
    mica_slices_clear(&st, width);
    for (int64_t i = 0, a = 0; a < t->s->n; i++, a += t->s->chunk) {
        int64_t n = t->s->n - a < t->s->chunk ? t->s->n - a : t->s->chunk;
        const float *in = mica_tile_fetch(t, X, a, n, x, &ld);
        float *e = mica_tile_place(t, FOURTH, a, buffer, &eld);
        if (e == buffer) e += a * width;
        mica_slices_max(t, in, ld, n, &st);
        memcpy(shift + i * width, st.max, (size_t)width * sizeof *st.max);
        mica_slices_exp(t, in, ld, a, n, &st, e, eld);
    }
    for (int64_t i = 0, a = 0; a < t->s->n; i++, a += t->s->chunk) {
        int64_t n = t->s->n - a < t->s->chunk ? t->s->n - a : t->s->chunk;
        float *e = mica_tile_place(t, FOURTH, a, buffer, &eld);
        bool buffered = e == buffer;
        if (buffered) e += a * width;
        mica_cols_factors(st.sum, st.max, shift + i * width, f->scale, width, factor);
        if (t->s->width == 1) mica_row_scale_add(e, factor[0], f->bias[0], n, e);
        for (int64_t k = 0; t->s->width > 1 && k < n; k++)
            mica_cols_scale_add(e + k * eld, factor, f->bias, width, e + k * eld);
        add_labels(t, f, a, n, e, t->s->width == 1 ? 1 : eld);
        if (buffered) mica_tile_put(t, FOURTH, a, n, e);
    }
}

static void backward_twice(const mica_tile *t, const factors *f)
{
    MICA_ALIGNED float x[MICA_TILE_CHUNK], e[MICA_TILE_CHUNK], factor[MICA_TILE_WIDTH];
    mica_stats_of_slices st;
    int64_t ld, dxld;
    mica_slices_clear(&st, t->width);
    for (int64_t a = 0; a < t->s->n; a += t->s->chunk) {
        int64_t n = t->s->n - a < t->s->chunk ? t->s->n - a : t->s->chunk;
        const float *in = mica_tile_fetch(t, X, a, n, x, &ld);
        mica_slices_max(t, in, ld, n, &st);
        mica_slices_exp(t, in, ld, a, n, &st, e, t->width);
    }
    mica_cols_factors(st.sum, st.max, st.max, f->scale, t->width, factor);
    for (int64_t a = 0; a < t->s->n; a += t->s->chunk) {
        int64_t n = t->s->n - a < t->s->chunk ? t->s->n - a : t->s->chunk;
        const float *in = mica_tile_fetch(t, X, a, n, x, &ld);
        float *dx = mica_tile_place(t, FOURTH, a, e, &dxld);
        if (t->s->width == 1) mica_row_exp(in, st.max[0], factor[0], f->bias[0], n, dx);
        for (int64_t i = 0; t->s->width > 1 && i < n; i++)
            mica_cols_exp(in + i * ld, st.max, factor, f->bias, t->width, dx + i * dxld);
        add_labels(t, f, a, n, dx, t->s->width == 1 ? 1 : dxld);
        if (dx == e) mica_tile_put(t, FOURTH, a, n, e);
    }
}

static void backward_tile(const state *s, const mica_tile *t, double by)
{
    factors f;
    make_factors(s, t, by, &f);
    s->kept ? backward_kept(t, &f) : backward_twice(t, &f);
}

/* ---- f64 ---- */

static row wide_row(const state *s, const mica_tile *t)
{
    int64_t n = t->s->n, at = t->offset[X], step = t->s->along[X];
    row r = {.max = -INFINITY};
    double sum = 0;
    for (int64_t c = 0; c < n; c++) r.max = fmax(r.max, s->load_x(t->data[X], at + c * step));
    double about = r.max == -INFINITY ? 0 : r.max;
    /* In pieces: terms that are equal are all rounded in one direction. */
    for (int64_t a = 0; a < n; a += WIDE_PIECE) {
        double piece = 0;
        for (int64_t c = a; c < n && c < a + WIDE_PIECE; c++) {
            double v = s->load_x(t->data[X], at + c * step);
            sum += exp(v - about);
            piece += v * (double)MICA_DEVIATION - about * (double)MICA_DEVIATION;
        }
        r.below += piece;
    }
    r.log_sum = log(sum);
    int64_t label = label_of(t, 0);
    if (label >= 0 && label < n) r.picked = s->load_x(t->data[X], at + label * step);
    return r;
}

static void wide_backward(const state *s, const mica_tile *t, double by)
{
    row r = wide_row(s, t);
    int64_t n = t->s->n, label = label_of(t, 0);
    double g = gradient(s, t, 0, by);
    bool ignored = is_ignored(s, label);
    if (!ignored && (label < 0 || label >= n)) g = NAN;
    for (int64_t c = 0; c < n; c++) {
        double v = s->load_x(t->data[X], t->offset[X] + c * t->s->along[X]);
        double target = s->smoothing / (double)n + (c == label ? 1 - s->smoothing : 0);
        double dx = ignored ? 0 : g * (exp(v - r.max - r.log_sum) - target);
        s->store_fourth(t->data[FOURTH], t->offset[FOURTH] + c * t->s->along[FOURTH], dx);
    }
}

/* ---- running ---- */

static void forward_part(const state *s, void *const *data, int64_t part, partial *p)
{
    int64_t tiles = s->tiling.tiles, each = tiles / PARTS, rest = tiles % PARTS;
    int64_t from = part * each + (part < rest ? part : rest), to = from + each + (part < rest);
    *p = (partial){0, 0};
    for (int64_t i = from; i < to; i++) {
        mica_tile t = mica_tile_at(&s->tiling, data, i);
        if (s->wide) {
            row r = wide_row(s, &t);
            forward_row(s, &t, 0, label_of(&t, 0), &r, p);
        } else {
            forward_tile(s, &t, p);
        }
    }
}

static void run_forward(const state *s, void *const *data, int threads)
{
    partial part[PARTS], all = {0, 0};
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t p = 0; p < PARTS; p++) forward_part(s, data, p, &part[p]);
    if (s->reduction == MICA_REDUCE_NONE) return;
    for (int p = 0; p < PARTS; p++) {
        all.sum += part[p].sum;
        all.counted += part[p].counted;
    }
    if (s->reduction == MICA_REDUCE_MEAN) all.sum /= (double)all.counted;
    s->store_third(data[THIRD], 0, all.sum);
}

static int64_t count_rows(const state *s, void *const *data, int threads)
{
    if (!s->ignore) return s->tiling.outer.count;
    int64_t count = 0;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(+ : count) if (threads > 1)
    for (int64_t i = 0; i < s->tiling.tiles; i++) {
        mica_tile t = mica_tile_at(&s->tiling, data, i);
        for (int64_t c = 0; c < t.width; c++) count += label_of(&t, c) != s->ignore_index;
    }
    return count;
}

static void run_backward(const state *s, void *const *data, int threads)
{
    double by = s->reduction == MICA_REDUCE_MEAN ? 1 / (double)count_rows(s, data, threads) : 1;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
#pragma omp for schedule(static)
        for (int64_t i = 0; i < s->tiling.tiles; i++) {
            mica_tile t = mica_tile_at(&s->tiling, data, i);
            s->wide ? wide_backward(s, &t, by) : backward_tile(s, &t, by);
        }
        mica_stream_end();
    }
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    int threads = mica_cpu_threads_for(s->bytes);
    void *data[4];
    for (int k = 0; k < 4; k++) data[k] = r->args[s->arg[k]];
    if (s->forward)
        run_forward(s, data, threads);
    else
        run_backward(s, data, threads);
    return MICA_OK;
}

const mica_engine mica_cross_entropy_cpu = {
    .name = "cpu", .accepts = accepts, .predict = predict, .build = build, .run = run};
