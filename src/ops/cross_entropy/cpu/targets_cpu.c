/* SPDX-License-Identifier: Apache-2.0
 * Engine "targets", CPU: cross-entropy with class weights, of log-probabilities, and against
 * probabilities. Rows are slices of ops/reduce, in f32, or one by one in double if an f64 tensor
 * takes part. The target of a chunk is put together in a buffer of the first-level cache: of a row,
 * or of neighbouring ones. The forward pass reads x and the target once, the backward pass twice;
 * of log-probabilities and labels alone only the label's element. Sums over rows are formed in
 * double, in PARTS pieces that do not depend on the number of threads. No workspace. Cost:
 * memory's, or some 20 cycles per vector. */
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/reduce/reduce.h"
#include "ops/reduce/cpu/rows.h"
#include "cpu/cpu.h"
#include "cpu/scratch.h"
#include "cpu/stream.h"

#include <math.h>
#include <string.h>

enum { PARTS = 64, WIDE_PIECE = 64 };
/* Operands; THIRD is loss or dloss, FOURTH lse or dx. */
enum { X, LABELS, THIRD, FOURTH, TARGET, WEIGHT, DTARGET };

typedef struct partial {
    double sum, counted;
} partial;

typedef struct state {
    mica_reduce_walk walk, target_walk; /* target_walk: of dtarget, if it is wanted */
    mica_load_fn load[DTARGET];
    mica_store_fn store[DTARGET + 1];
    double smoothing, uniform; /* uniform: of each class, smoothing / C */
    mica_reduction reduction;
    int64_t ignore_index;
    bool forward, ignore, has_lse, logits, probabilities, weighted, spread, has_dtarget;
} state;

/* Of a run, or forward of one of its PARTS. */
typedef struct of_run {
    const state *s;
    double by; /* what gradients of losses are multiplied with */
    partial *sum;
} of_run;

static const of_run *run_of(const mica_reduce_tile *t)
{
    return t->run;
}

/* ---- rows ---- */

static double element(const state *s, const mica_tile *t, int k, int64_t c, int64_t position)
{
    return s->load[k](t->data[k], t->offset[k] + c * t->across[k] + position * t->s->along[k]);
}

static double weight_of(const state *s, const mica_tile *t, int64_t position)
{
    return s->weighted ? element(s, t, WEIGHT, 0, position) : 1;
}

/* A row's label, and what its class has in the target beyond what all have. */
typedef struct labelled {
    int64_t label; /* -1: there is none */
    bool ignored, bad;
    double weight, share; /* weight: in the divisor of a mean */
} labelled;

static labelled labelled_at(const state *s, const mica_tile *t, int64_t c)
{
    if (s->probabilities) return (labelled){.label = -1, .weight = 1};
    const int64_t at = t->offset[LABELS] + c * t->across[LABELS];
    const void *labels = t->data[LABELS];
    labelled l = {.label = t->s->type[LABELS] == MICA_S32 ? ((const int32_t *)labels)[at]
                                                          : ((const int64_t *)labels)[at]};
    l.ignored = s->ignore && l.label == s->ignore_index;
    l.bad = !l.ignored && (l.label < 0 || l.label >= t->s->n);
    if (l.ignored || l.bad) {
        l.weight = l.bad && !s->weighted;
        return l;
    }
    l.weight = weight_of(s, t, l.label);
    l.share = (1 - s->smoothing) * l.weight;
    return l;
}

/* What the first pass over a row leaves: max and log_sum of logits, and of the target that all
 * classes have its sum, and that of its products with x - max. */
typedef struct row {
    double max, log_sum, total, dot;
} row;

static double loss_of(const state *s, const mica_tile *t, int64_t c, const labelled *l,
                      const row *r)
{
    if (l->ignored) return 0;
    if (l->bad) return NAN;
    double loss = s->logits ? (r->total + l->share) * r->log_sum : 0;
    if (l->label >= 0) loss -= l->share * (element(s, t, X, c, l->label) - r->max);
    return s->spread ? loss - r->dot : loss;
}

static void forward_row(const state *s, const mica_tile *t, int64_t c, const row *r, partial *p)
{
    const labelled l = labelled_at(s, t, c);
    const double loss = loss_of(s, t, c, &l, r);
    p->sum += loss;
    p->counted += l.weight;
    if (s->reduction == MICA_REDUCE_NONE)
        s->store[THIRD](t->data[THIRD], t->offset[THIRD] + c * t->across[THIRD], loss);
    if (s->has_lse)
        s->store[FOURTH](t->data[FOURTH], t->offset[FOURTH] + c * t->across[FOURTH],
                         r->max + r->log_sum);
}

static double gradient(const state *s, const mica_tile *t, int64_t c, double by)
{
    return by * s->load[THIRD](t->data[THIRD], t->offset[THIRD] + c * t->across[THIRD]);
}

/* ---- chunks ---- */

/* The target that all classes have, of n positions: rows of the tile's width. */
static void make_target(const state *s, const mica_tile *t, int64_t from, int64_t n, float *to)
{
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    float *buffer = mica_scratch_take(MICA_TILE_CHUNK * sizeof *buffer);
    const float by = (float)(1 - s->smoothing), uniform = (float)s->uniform;
    const bool one = t->s->width == 1;
    const int64_t width = one ? n : t->width, rows = one ? 1 : n;
    int64_t ld = width;
    const float *p = s->probabilities ? mica_tile_fetch(t, TARGET, from, n, buffer, &ld) : NULL;
    for (int64_t i = 0; i < rows; i++) {
        const float w = one ? 1 : (float)weight_of(s, t, from + i);
        for (int64_t c = 0; p && c < width; c++)
            to[i * width + c] = w * (by * p[i * ld + c] + uniform);
        for (int64_t c = 0; !p && c < width; c++) to[i * width + c] = w * uniform;
    }
    if (!one || !s->weighted) return;
    const float *w = mica_tile_fetch(t, WEIGHT, from, n, buffer, &ld);
    for (int64_t c = 0; c < n; c++) to[c] *= w[c];
}

static void add_sums(const float *target, int64_t n, int64_t width, bool one, double *total)
{
    MICA_ALIGNED float sum[MICA_TILE_WIDTH] = {0};
    if (one) {
        total[0] += (double)mica_row_sum(target, n);
        return;
    }
    for (int64_t i = 0; i < n; i++) mica_cols_sum(target + i * width, width, sum);
    for (int64_t c = 0; c < width; c++) total[c] += (double)sum[c];
}

/* ---- forward ---- */

typedef struct gathered {
    mica_stats_of_slices st;
    float about[MICA_TILE_WIDTH]; /* the maximum that dot is about */
    double total[MICA_TILE_WIDTH], dot[MICA_TILE_WIDTH];
} gathered;

static void forward_init(const mica_reduce_tile *t, void *state)
{
    gathered *g = state;
    mica_slices_clear(&g->st, t->tile.width);
    for (int64_t c = 0; c < t->tile.width; c++) g->about[c] = 0, g->total[c] = g->dot[c] = 0;
}

/* Products from now on about the maxima. Of -inf alone they are with x itself. */
static void lower(const mica_tile *t, gathered *g)
{
    for (int64_t c = 0; c < t->width; c++) {
        const float max = g->st.max[c] == -INFINITY ? 0 : g->st.max[c];
        if (g->total[c] != 0) g->dot[c] += g->total[c] * ((double)g->about[c] - (double)max);
        g->about[c] = max;
    }
}

static void add_dots(const mica_reduce_tile *t, const float *target, const mica_reduce_chunk *c,
                     gathered *g)
{
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    MICA_ALIGNED float sum[MICA_TILE_WIDTH] = {0}, none[MICA_TILE_WIDTH] = {0};
    float *x = mica_scratch_take(MICA_TILE_CHUNK * sizeof *x);
    const int64_t width = t->tile.width;
    if (t->walk->tiling.width == 1) {
        mica_row_subtract(c->in[X], g->about[0], 0, c->n, x);
        g->dot[0] += (double)mica_row_dot(target, x, c->n);
        return;
    }
    for (int64_t i = 0; i < c->n; i++) {
        mica_cols_subtract(c->in[X] + i * c->ld[X], g->about, none, width, x);
        mica_cols_dot(target + i * width, x, width, sum);
    }
    for (int64_t k = 0; k < width; k++) g->dot[k] += (double)sum[k];
}

static void add_statistics(const mica_reduce_tile *t, const mica_reduce_chunk *c,
                           mica_stats_of_slices *st)
{
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    float *e = mica_scratch_take(MICA_TILE_CHUNK * sizeof *e);
    mica_slices_max(&t->tile, c->in[X], c->ld[X], c->n, st);
    mica_slices_exp(&t->tile, c->in[X], c->ld[X], c->from, c->n, st, e, t->tile.width);
}

static void forward_add(const mica_reduce_tile *t, const mica_reduce_chunk *c, void *state)
{
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    const struct state *s = run_of(t)->s;
    gathered *g = state;
    if (s->logits) add_statistics(t, c, &g->st);
    if (!s->spread) return;
    float *target = mica_scratch_take(MICA_TILE_CHUNK * sizeof *target);
    make_target(s, &t->tile, c->from, c->n, target);
    if (s->logits) lower(&t->tile, g);
    add_dots(t, target, c, g);
    add_sums(target, c->n, t->tile.width, t->walk->tiling.width == 1, g->total);
}

static void forward_finish(const mica_reduce_tile *t, void *state)
{
    MICA_ALIGNED float log_sum[MICA_TILE_WIDTH] = {0};
    const struct state *s = run_of(t)->s;
    const gathered *g = state;
    if (s->logits) mica_logs(g->st.sum, t->tile.width, log_sum);
    for (int64_t c = 0; c < t->tile.width; c++) {
        const row r = {s->logits ? (double)g->st.max[c] : 0, (double)log_sum[c], g->total[c],
                       g->dot[c]};
        forward_row(s, &t->tile, c, &r, run_of(t)->sum);
    }
}

/* ---- backward ---- */

/* The gradient is by_sum exp(x - max) - scale target, less shift at the label. */
typedef struct factors {
    mica_stats_of_slices st;
    float by_sum[MICA_TILE_WIDTH], scale[MICA_TILE_WIDTH], log_sum[MICA_TILE_WIDTH];
    double total[MICA_TILE_WIDTH];
} factors;

static void backward_init(const mica_reduce_tile *t, void *state)
{
    factors *f = state;
    mica_slices_clear(&f->st, t->tile.width);
    for (int64_t c = 0; c < t->tile.width; c++) f->total[c] = 0, f->log_sum[c] = 0;
}

static void backward_add(const mica_reduce_tile *t, const mica_reduce_chunk *c, void *state)
{
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    const struct state *s = run_of(t)->s;
    factors *f = state;
    if (!s->logits) return;
    add_statistics(t, c, &f->st);
    if (!s->spread) return;
    float *target = mica_scratch_take(MICA_TILE_CHUNK * sizeof *target);
    make_target(s, &t->tile, c->from, c->n, target);
    add_sums(target, c->n, t->tile.width, t->walk->tiling.width == 1, f->total);
}

static void backward_finish(const mica_reduce_tile *t, void *state)
{
    double scale[MICA_TILE_WIDTH];
    const struct state *s = run_of(t)->s;
    factors *f = state;
    for (int64_t c = 0; c < t->tile.width; c++) {
        const labelled l = labelled_at(s, &t->tile, c);
        const double g = l.bad ? NAN : gradient(s, &t->tile, c, run_of(t)->by);
        f->scale[c] = (float)g;
        scale[c] = g * (f->total[c] + l.share);
    }
    if (s->logits)
        mica_cols_factors(f->st.sum, f->st.max, f->st.max, scale, t->tile.width, f->by_sum);
}

static void subtract_target(const mica_reduce_tile *t, const mica_reduce_chunk *c, const factors *f,
                            float *dx, int64_t ld)
{
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    float *target = mica_scratch_take(MICA_TILE_CHUNK * sizeof *target);
    const bool one = t->walk->tiling.width == 1;
    const int64_t width = one ? c->n : t->tile.width, rows = one ? 1 : c->n;
    make_target(run_of(t)->s, &t->tile, c->from, c->n, target);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0; k < width; k++)
            dx[i * ld + k] -= f->scale[one ? 0 : k] * target[i * width + k];
}

/* What is particular to the labels in n positions of the gradient, `step` apart. */
static void add_labels(const mica_reduce_tile *t, const mica_reduce_chunk *c, const factors *f,
                       float *dx, int64_t step)
{
    for (int64_t k = 0; k < t->tile.width; k++) {
        const labelled l = labelled_at(run_of(t)->s, &t->tile, k);
        if (l.ignored || l.bad)
            for (int64_t i = 0; i < c->n; i++) dx[i * step + k] = l.bad ? NAN : 0;
        else if (l.label >= c->from && l.label - c->from < c->n)
            dx[(l.label - c->from) * step + k] -= (float)((double)f->scale[k] * l.share);
    }
}

static void backward_write(const mica_reduce_tile *t, const mica_reduce_chunk *c, const void *state,
                           float *dx, int64_t ld)
{
    MICA_ALIGNED float none[MICA_TILE_WIDTH] = {0};
    const struct state *s = run_of(t)->s;
    const factors *f = state;
    const bool one = t->walk->tiling.width == 1;
    const int64_t width = t->tile.width;
    if (s->logits && one) mica_row_exp(c->in[X], f->st.max[0], f->by_sum[0], 0, c->n, dx);
    for (int64_t i = 0; s->logits && !one && i < c->n; i++)
        mica_cols_exp(c->in[X] + i * c->ld[X], f->st.max, f->by_sum, none, width, dx + i * ld);
    if (!s->logits && one) memset(dx, 0, (size_t)c->n * sizeof *dx);
    for (int64_t i = 0; !s->logits && !one && i < c->n; i++)
        memset(dx + i * ld, 0, (size_t)width * sizeof *dx);
    if (s->spread) subtract_target(t, c, f, dx, ld);
    if (!s->probabilities) add_labels(t, c, f, dx, one ? 1 : ld);
}

/* ---- gradient of the target ---- */

static void target_add(const mica_reduce_tile *t, const mica_reduce_chunk *c, void *state)
{
    factors *f = state;
    if (run_of(t)->s->logits) add_statistics(t, c, &f->st);
}

static void target_finish(const mica_reduce_tile *t, void *state)
{
    const struct state *s = run_of(t)->s;
    factors *f = state;
    if (s->logits) mica_logs(f->st.sum, t->tile.width, f->log_sum);
    for (int64_t c = 0; c < t->tile.width; c++) {
        if (!s->logits) f->st.max[c] = 0;
        f->scale[c] = (float)((s->smoothing - 1) * gradient(s, &t->tile, c, run_of(t)->by));
    }
}

static void target_write(const mica_reduce_tile *t, const mica_reduce_chunk *c, const void *state,
                         float *dtarget, int64_t ld)
{
    const struct state *s = run_of(t)->s;
    const factors *f = state;
    const bool one = t->walk->tiling.width == 1;
    const int64_t width = t->tile.width;
    if (one) mica_row_subtract(c->in[X], f->st.max[0], f->log_sum[0], c->n, dtarget);
    for (int64_t k = 0; one && k < c->n; k++)
        dtarget[k] *= f->scale[0] * (float)weight_of(s, &t->tile, c->from + k);
    for (int64_t i = 0; !one && i < c->n; i++) {
        const float w = (float)weight_of(s, &t->tile, c->from + i);
        float *to = dtarget + i * ld;
        mica_cols_subtract(c->in[X] + i * c->ld[X], f->st.max, f->log_sum, width, to);
        for (int64_t k = 0; k < width; k++) to[k] *= w * f->scale[k];
    }
}

/* ---- rows in double ---- */

/* Of the target that all classes have. */
static double target_at(const state *s, const mica_tile *t, int64_t c, int64_t position)
{
    double p = s->uniform;
    if (s->probabilities) p += (1 - s->smoothing) * element(s, t, TARGET, c, position);
    return weight_of(s, t, position) * p;
}

static void wide_statistics(const state *s, const mica_tile *t, int64_t c, row *r)
{
    double sum = 0;
    r->max = -INFINITY;
    for (int64_t i = 0; i < t->s->n; i++) r->max = fmax(r->max, element(s, t, X, c, i));
    const double about = r->max == -INFINITY ? 0 : r->max;
    for (int64_t i = 0; i < t->s->n; i++) sum += exp(element(s, t, X, c, i) - about);
    r->log_sum = log(sum);
}

static row wide_row(const state *s, const mica_tile *t, int64_t c)
{
    row r = {0, 0, 0, 0};
    if (s->logits) wide_statistics(s, t, c, &r);
    const double about = r.max == -INFINITY ? 0 : r.max;
    /* In pieces: terms that are equal are all rounded in one direction. */
    for (int64_t a = 0; s->spread && a < t->s->n; a += WIDE_PIECE) {
        double total = 0, dot = 0;
        for (int64_t i = a; i < t->s->n && i < a + WIDE_PIECE; i++) {
            const double p = target_at(s, t, c, i);
            total += p, dot += p * (element(s, t, X, c, i) - about);
        }
        r.total += total, r.dot += dot;
    }
    return r;
}

/* In double, or of the labels' elements alone. */
static bool wide_forward(const mica_reduce_tile *t)
{
    const state *s = run_of(t)->s;
    if (t->walk->real != MICA_F64 && (s->logits || s->spread)) return false;
    for (int64_t c = 0; c < t->tile.width; c++) {
        const row r = wide_row(s, &t->tile, c);
        forward_row(s, &t->tile, c, &r, run_of(t)->sum);
    }
    return true;
}

static bool wide_backward(const mica_reduce_tile *t)
{
    const state *s = run_of(t)->s;
    const mica_tile *m = &t->tile;
    if (t->walk->real != MICA_F64) return false;
    const row r = wide_row(s, m, 0);
    const labelled l = labelled_at(s, m, 0);
    const double g = gradient(s, m, 0, run_of(t)->by), all = r.total + l.share;
    for (int64_t i = 0; i < m->s->n; i++) {
        const double share = s->spread ? target_at(s, m, 0, i) : 0;
        const double p = share + (i == l.label ? l.share : 0);
        double dx = s->logits ? all * exp(element(s, m, X, 0, i) - r.max - r.log_sum) - p : -p;
        dx = p == 0 && !s->logits ? 0 : g * dx;
        if (l.ignored || l.bad) dx = l.bad ? NAN : 0;
        s->store[FOURTH](m->data[FOURTH], m->offset[FOURTH] + i * m->s->along[FOURTH], dx);
    }
    return true;
}

static bool wide_target(const mica_reduce_tile *t)
{
    const state *s = run_of(t)->s;
    const mica_tile *m = &t->tile;
    if (t->walk->real != MICA_F64) return false;
    row r = {0, 0, 0, 0};
    if (s->logits) wide_statistics(s, m, 0, &r);
    const double g = (s->smoothing - 1) * gradient(s, m, 0, run_of(t)->by);
    for (int64_t i = 0; i < m->s->n; i++) {
        const double v = element(s, m, X, 0, i) - r.max - r.log_sum;
        s->store[DTARGET](m->data[DTARGET], m->offset[DTARGET] + i * m->s->along[DTARGET],
                          g * weight_of(s, m, i) * v);
    }
    return true;
}

/* ---- planning ---- */

static const unsigned classes = 2; /* the axis, as a set */

/* Over the dimensions of x, without a stride. */
static mica_tensor shared_by_all(const mica_cross_entropy_desc *d, mica_dtype type)
{
    mica_tensor t = d->x;
    memset(t.strides, 0, sizeof t.strides);
    t.dtype = type;
    return t;
}

static void operands(const void *desc, mica_reduce_set *set)
{
    const mica_cross_entropy_desc *d = desc;
    const bool fwd = d->pass == MICA_CROSS_ENTROPY_FWD, each = d->reduction == MICA_REDUCE_NONE;
    const mica_tensor *loss = fwd ? &d->loss : &d->dloss;
    const mica_tensor none = shared_by_all(d, d->x.dtype);
    for (int k = 0; k <= DTARGET; k++) set->at[k] = (mica_reduce_operand){none, -1};
    set->at[X] = (mica_reduce_operand){d->x, MICA_CROSS_ENTROPY_X};
    if (d->targets == MICA_CROSS_ENTROPY_CLASSES)
        set->at[LABELS] = (mica_reduce_operand){mica_reduce_of_slices(&d->labels, &d->x, classes),
                                                MICA_CROSS_ENTROPY_LABELS};
    else
        set->at[TARGET] = (mica_reduce_operand){d->target, MICA_CROSS_ENTROPY_TARGET};
    set->at[THIRD] = (mica_reduce_operand){
        each ? mica_reduce_of_slices(loss, &d->x, classes) : shared_by_all(d, loss->dtype),
        fwd ? MICA_CROSS_ENTROPY_LOSS : MICA_CROSS_ENTROPY_DLOSS};
    if (!fwd)
        set->at[FOURTH] = (mica_reduce_operand){d->dx, MICA_CROSS_ENTROPY_DX};
    else if (mica_tensor_given(&d->lse))
        set->at[FOURTH] = (mica_reduce_operand){mica_reduce_of_slices(&d->lse, &d->x, classes),
                                                MICA_CROSS_ENTROPY_LSE};
    if (mica_tensor_given(&d->weight)) {
        set->at[WEIGHT] =
            (mica_reduce_operand){shared_by_all(d, d->weight.dtype), MICA_CROSS_ENTROPY_WEIGHT};
        set->at[WEIGHT].tensor.strides[1] = d->weight.strides[0];
    }
    if (mica_tensor_given(&d->dtarget))
        set->at[DTARGET] = (mica_reduce_operand){d->dtarget, MICA_CROSS_ENTROPY_DTARGET};
    set->count = DTARGET + 1;
    set->axes = classes;
    /* The gradient of log-probabilities does not depend on them. */
    set->first = set->again = fwd || d->input == MICA_CROSS_ENTROPY_LOGITS ? 1u << X : 0;
    set->out = fwd ? -1 : FOURTH;
}

static void target_operands(const void *desc, mica_reduce_set *set)
{
    operands(desc, set);
    set->first = set->again = 1u << X;
    set->out = DTARGET;
}

static mica_dtype real(const void *desc)
{
    return mica_cross_entropy_is_wide(desc) ? MICA_F64 : MICA_F32;
}

static const mica_reduce forward = {.operands = operands,
                                    .real = real,
                                    .init = forward_init,
                                    .add = forward_add,
                                    .finish = forward_finish,
                                    .whole = wide_forward};
static const mica_reduce backward = {.operands = operands,
                                     .real = real,
                                     .init = backward_init,
                                     .add = backward_add,
                                     .finish = backward_finish,
                                     .write = backward_write,
                                     .whole = wide_backward};
static const mica_reduce of_target = {.operands = target_operands,
                                      .real = real,
                                      .init = backward_init,
                                      .add = target_add,
                                      .finish = target_finish,
                                      .write = target_write,
                                      .whole = wide_target};

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)device;
    if (!mica_cross_entropy_is_plain(desc)) return MICA_OK;
    return mica_refuse(why, "logits and labels without weights are what cpu is for");
}

static mica_status build(mica_plan *plan)
{
    const mica_cross_entropy_desc *d = plan->desc;
    const double bytes = mica_op_bytes(plan->op, d);
    state *s;
    _Static_assert(sizeof(factors) <= MICA_REDUCE_STATE && sizeof(gathered) <= MICA_REDUCE_STATE,
                   "states have room");
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    s->forward = d->pass == MICA_CROSS_ENTROPY_FWD;
    s->has_dtarget = mica_tensor_given(&d->dtarget);
    mica_reduce_walk_make(&s->walk, s->forward ? &forward : &backward, d, bytes, &plan->device);
    if (s->has_dtarget) mica_reduce_walk_make(&s->target_walk, &of_target, d, bytes, &plan->device);
    const mica_dtype *type = s->walk.tiling.type;
    for (int k = 0; k <= DTARGET; k++) {
        if (k < DTARGET) s->load[k] = mica_dtype_load(type[k]);
        s->store[k] = mica_dtype_store(type[k]);
    }
    s->has_lse = mica_tensor_given(&d->lse);
    s->logits = d->input == MICA_CROSS_ENTROPY_LOGITS;
    s->probabilities = d->targets == MICA_CROSS_ENTROPY_PROBABILITIES;
    s->weighted = mica_tensor_given(&d->weight);
    s->spread = s->probabilities || d->smoothing > 0;
    s->smoothing = d->smoothing;
    s->uniform = d->smoothing > 0 ? d->smoothing / (double)d->x.dims[1] : 0;
    s->reduction = d->reduction;
    s->ignore = d->ignore;
    s->ignore_index = d->ignore_index;
    return MICA_OK;
}

/* ---- running ---- */

/* Tiles [*from, *to) of a part. */
static void part_of(const state *s, int64_t part, int64_t *from, int64_t *to)
{
    const int64_t tiles = s->walk.tiling.tiles, each = tiles / PARTS, rest = tiles % PARTS;
    *from = part * each + (part < rest ? part : rest);
    *to = *from + each + (part < rest);
}

static void forward_part(const state *s, const void *desc, void *const *data, int64_t part,
                         partial *p)
{
    const of_run run = {.s = s, .sum = p};
    int64_t from, to;
    part_of(s, part, &from, &to);
    *p = (partial){0, 0};
    for (int64_t i = from; i < to; i++)
        mica_reduce_do_tile(
            &(mica_reduce_tile){&s->walk, desc, &run, mica_tile_at(&s->walk.tiling, data, i)});
}

static void run_forward(const state *s, const void *desc, void *const *data, int threads)
{
    partial part[PARTS], all = {0, 0};
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t p = 0; p < PARTS; p++) forward_part(s, desc, data, p, &part[p]);
    if (s->reduction == MICA_REDUCE_NONE) return;
    for (int p = 0; p < PARTS; p++) all.sum += part[p].sum, all.counted += part[p].counted;
    if (s->reduction == MICA_REDUCE_MEAN) all.sum /= all.counted;
    s->store[THIRD](data[THIRD], 0, all.sum);
}

/* The divisor of a mean. */
static double count_rows(const state *s, void *const *data, int threads)
{
    double part[PARTS], all = 0;
    if (s->probabilities || (!s->ignore && !s->weighted)) return (double)s->walk.tiling.outer.count;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t p = 0; p < PARTS; p++) {
        int64_t from, to;
        part_of(s, p, &from, &to);
        part[p] = 0;
        for (int64_t i = from; i < to; i++) {
            const mica_tile t = mica_tile_at(&s->walk.tiling, data, i);
            for (int64_t c = 0; c < t.width; c++) part[p] += labelled_at(s, &t, c).weight;
        }
    }
    for (int p = 0; p < PARTS; p++) all += part[p];
    return all;
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    int threads = mica_cpu_threads_for(s->walk.bytes);
    void *data[MICA_REDUCE_OPERANDS];
    mica_reduce_bind(&s->walk, r, data);
    if (s->forward) {
        run_forward(s, plan->desc, data, threads);
        return MICA_OK;
    }
    of_run run = {.s = s, .by = 1};
    if (s->reduction == MICA_REDUCE_MEAN) run.by = 1 / count_rows(s, data, threads);
    /* dx may lie on x. */
    if (s->has_dtarget) mica_reduce_run(&s->target_walk, plan->desc, &run, data);
    mica_reduce_run(&s->walk, plan->desc, &run, data);
    return MICA_OK;
}

const mica_engine mica_cross_entropy_targets_cpu = {.name = "targets",
                                                    .reached = 1 / 2.5,
                                                    .start_ms = 3e-4,
                                                    .accepts = accepts,
                                                    .build = build,
                                                    .run = run};
