/* SPDX-License-Identifier: Apache-2.0
 * Cross-entropy on the CPU: rows of logits are slices of ops/reduce, in f32, or one by one in
 * double if an f64 tensor takes part. The forward pass reads the logits once. So does the backward
 * pass where the exponentials of a tile stay in the second-level cache; of a longer row they are
 * formed twice. Sums over rows are formed in double, in PARTS pieces that do not depend on the
 * number of threads. No workspace. Cost: memory's, or some 14 cycles per vector for exp, in short
 * types the more. */
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
enum { X, LABELS, THIRD, FOURTH };

typedef struct partial {
    double sum;
    int64_t counted;
} partial;

typedef struct state {
    mica_reduce_walk walk;
    mica_load_fn load_x, load_third;
    mica_store_fn store_third, store_fourth;
    double smoothing;
    mica_reduction reduction;
    int64_t ignore_index;
    bool forward, ignore, has_lse;
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
    int64_t n = s->walk.tiling.n;
    if (is_ignored(s, label)) return 0;
    if (label < 0 || label >= n) return NAN;
    double loss = r->log_sum - (1 - s->smoothing) * (r->picked - r->max);
    if (s->smoothing > 0) loss -= s->smoothing * (r->below / (double)n / (double)MICA_DEVIATION);
    return loss;
}

/* ---- forward ---- */

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

/* What is gathered of rows chunk by chunk. */
typedef struct gathered {
    mica_stats_of_slices st;
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
static void lower(const mica_tile *t, int64_t seen, gathered *g)
{
    for (int64_t c = 0; c < t->width; c++) {
        const float max = g->st.max[c] == -INFINITY ? 0 : g->st.max[c];
        const double by = (double)g->about[c] - (double)max;
        if (seen > 0 && by != 0) g->below[c] += (double)seen * by * (double)MICA_DEVIATION;
        g->about[c] = max;
    }
}

/* step: from position to position. */
static void gather(const state *s, const mica_tile *t, const float *x, int64_t step, int64_t from,
                   int64_t n, gathered *g)
{
    for (int64_t c = 0; c < t->width; c++) {
        int64_t at = g->label[c] - from;
        if (at >= 0 && at < n) g->picked[c] = x[at * step + c];
    }
    if (!(s->smoothing > 0)) return;
    lower(t, from, g);
    if (t->s->width == 1) {
        g->below[0] += (double)mica_row_deviation(x, g->about[0], n);
        return;
    }
    MICA_ALIGNED float sum[MICA_TILE_WIDTH] = {0};
    for (int64_t i = 0; i < n; i++) mica_cols_deviation(x + i * step, g->about, t->width, sum);
    for (int64_t c = 0; c < t->width; c++) g->below[c] += (double)sum[c];
}

static void forward_init(const mica_reduce_tile *t, void *state)
{
    gathered *g = state;
    for (int64_t c = 0; c < t->tile.width; c++) g->picked[c] = 0, g->below[c] = 0;
    find_labels(&t->tile, g->label);
    mica_slices_clear(&g->st, t->tile.width);
}

static void forward_add(const mica_reduce_tile *t, const mica_reduce_chunk *c, void *state)
{
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    float *e = mica_scratch_take(MICA_TILE_CHUNK * sizeof *e);
    gathered *g = state;
    const int64_t step = t->walk->tiling.width == 1 ? 1 : c->ld[X];
    mica_slices_max(&t->tile, c->in[X], c->ld[X], c->n, &g->st);
    mica_slices_exp(&t->tile, c->in[X], c->ld[X], c->from, c->n, &g->st, e, t->tile.width);
    gather(run_of(t)->s, &t->tile, c->in[X], step, c->from, c->n, g);
}

static void forward_finish(const mica_reduce_tile *t, void *state)
{
    MICA_ALIGNED float log_sum[MICA_TILE_WIDTH];
    const gathered *g = state;
    mica_logs(g->st.sum, t->tile.width, log_sum);
    for (int64_t c = 0; c < t->tile.width; c++) {
        row r = {(double)g->st.max[c], (double)log_sum[c], g->below[c], (double)g->picked[c]};
        forward_row(run_of(t)->s, &t->tile, c, g->label[c], &r, run_of(t)->sum);
    }
}

/* ---- backward ---- */

/* The gradient's parts by column: it is scale * exp(x - max) / sum + bias, and for the label's
 * class shift on top. */
typedef struct factors {
    mica_stats_of_slices st;
    float by_sum[MICA_TILE_WIDTH]; /* scale / sum */
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

static void backward_init(const mica_reduce_tile *t, void *state)
{
    factors *f = state;
    make_factors(run_of(t)->s, &t->tile, run_of(t)->by, f);
    mica_slices_clear(&f->st, t->tile.width);
}

/* Each exponential is formed once, about the maximum at the time. */
static void backward_keep(const mica_reduce_tile *t, const mica_reduce_chunk *c, void *state,
                          float *e, int64_t ld, float *about)
{
    factors *f = state;
    mica_slices_max(&t->tile, c->in[X], c->ld[X], c->n, &f->st);
    memcpy(about, f->st.max, (size_t)t->tile.width * sizeof *about);
    mica_slices_exp(&t->tile, c->in[X], c->ld[X], c->from, c->n, &f->st, e, ld);
}

static void backward_rescale(const mica_reduce_tile *t, const mica_reduce_chunk *c,
                             const void *state, const float *about, float *e, int64_t ld)
{
    MICA_ALIGNED float factor[MICA_TILE_WIDTH];
    const factors *f = state;
    const int64_t width = t->tile.width;
    const bool one = t->walk->tiling.width == 1;
    mica_cols_factors(f->st.sum, f->st.max, about, f->scale, width, factor);
    if (one) mica_row_scale_add(e, factor[0], f->bias[0], c->n, e);
    for (int64_t k = 0; !one && k < c->n; k++)
        mica_cols_scale_add(e + k * ld, factor, f->bias, width, e + k * ld);
    add_labels(&t->tile, f, c->from, c->n, e, one ? 1 : ld);
}

static void backward_add(const mica_reduce_tile *t, const mica_reduce_chunk *c, void *state)
{
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    float *e = mica_scratch_take(MICA_TILE_CHUNK * sizeof *e);
    float about[MICA_TILE_WIDTH];
    backward_keep(t, c, state, e, t->tile.width, about);
}

static void backward_finish(const mica_reduce_tile *t, void *state)
{
    factors *f = state;
    mica_cols_factors(f->st.sum, f->st.max, f->st.max, f->scale, t->tile.width, f->by_sum);
}

static void backward_write(const mica_reduce_tile *t, const mica_reduce_chunk *c, const void *state,
                           float *dx, int64_t ld)
{
    const factors *f = state;
    const float *x = c->in[X], *max = f->st.max;
    const bool one = t->walk->tiling.width == 1;
    if (one) mica_row_exp(x, max[0], f->by_sum[0], f->bias[0], c->n, dx);
    for (int64_t i = 0; !one && i < c->n; i++)
        mica_cols_exp(x + i * c->ld[X], max, f->by_sum, f->bias, t->tile.width, dx + i * ld);
    add_labels(&t->tile, f, c->from, c->n, dx, one ? 1 : ld);
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

static void backward_of_row(const state *s, const mica_tile *t, double by)
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

static bool wide_forward(const mica_reduce_tile *t)
{
    const of_run *run = run_of(t);
    if (t->walk->real != MICA_F64) return false;
    const row r = wide_row(run->s, &t->tile);
    forward_row(run->s, &t->tile, 0, label_of(&t->tile, 0), &r, run->sum);
    return true;
}

static bool wide_backward(const mica_reduce_tile *t)
{
    if (t->walk->real != MICA_F64) return false;
    backward_of_row(run_of(t)->s, &t->tile, run_of(t)->by);
    return true;
}

/* ---- planning ---- */

static void operands(const void *desc, mica_reduce_set *set)
{
    const mica_cross_entropy_desc *d = desc;
    const unsigned classes = 2;
    const bool fwd = d->pass == MICA_CROSS_ENTROPY_FWD, each = d->reduction == MICA_REDUCE_NONE;
    const bool has_lse = mica_tensor_given(&d->lse);
    const mica_tensor *loss = fwd ? &d->loss : &d->dloss;
    /* One element for all rows, or none. */
    mica_tensor shared = d->x;
    memset(shared.strides, 0, sizeof shared.strides);
    shared.dtype = loss->dtype;
    set->at[X] = (mica_reduce_operand){d->x, MICA_CROSS_ENTROPY_X};
    set->at[LABELS] = (mica_reduce_operand){mica_reduce_of_slices(&d->labels, &d->x, classes),
                                            MICA_CROSS_ENTROPY_LABELS};
    set->at[THIRD] =
        (mica_reduce_operand){each ? mica_reduce_of_slices(loss, &d->x, classes) : shared,
                              fwd ? MICA_CROSS_ENTROPY_LOSS : MICA_CROSS_ENTROPY_DLOSS};
    set->at[FOURTH] =
        (mica_reduce_operand){shared, fwd ? MICA_CROSS_ENTROPY_LSE : MICA_CROSS_ENTROPY_DX};
    if (fwd && has_lse) set->at[FOURTH].tensor = mica_reduce_of_slices(&d->lse, &d->x, classes);
    if (!fwd) set->at[FOURTH].tensor = d->dx;
    set->count = 4;
    set->axes = classes;
    set->first = set->again = 1u << X;
    set->out = fwd ? -1 : FOURTH;
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
                                     .whole = wide_backward,
                                     .keep = backward_keep,
                                     .rescale = backward_rescale};

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)device;
    if (mica_cross_entropy_is_plain(desc)) return MICA_OK;
    return mica_refuse(why, "weights, log-probabilities and probabilities are what targets is for");
}

static mica_status build(mica_plan *plan)
{
    const mica_cross_entropy_desc *d = plan->desc;
    state *s;
    _Static_assert(sizeof(factors) <= MICA_REDUCE_STATE && sizeof(gathered) <= MICA_REDUCE_STATE,
                   "states have room");
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    s->forward = d->pass == MICA_CROSS_ENTROPY_FWD;
    mica_reduce_walk_make(&s->walk, s->forward ? &forward : &backward, d,
                          mica_op_bytes(plan->op, d), &plan->device);
    const mica_dtype *type = s->walk.tiling.type;
    s->load_x = mica_dtype_load(type[X]);
    s->load_third = mica_dtype_load(type[THIRD]);
    s->store_third = mica_dtype_store(type[THIRD]);
    s->store_fourth = mica_dtype_store(type[FOURTH]);
    s->has_lse = mica_tensor_given(&d->lse);
    s->smoothing = d->smoothing;
    s->reduction = d->reduction;
    s->ignore = d->ignore;
    s->ignore_index = d->ignore_index;
    return MICA_OK;
}

/* ---- running ---- */

static void forward_part(const state *s, const void *desc, void *const *data, int64_t part,
                         partial *p)
{
    int64_t tiles = s->walk.tiling.tiles, each = tiles / PARTS, rest = tiles % PARTS;
    int64_t from = part * each + (part < rest ? part : rest), to = from + each + (part < rest);
    const of_run run = {.s = s, .sum = p};
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
    for (int p = 0; p < PARTS; p++) {
        all.sum += part[p].sum;
        all.counted += part[p].counted;
    }
    if (s->reduction == MICA_REDUCE_MEAN) all.sum /= (double)all.counted;
    s->store_third(data[THIRD], 0, all.sum);
}

static int64_t count_rows(const state *s, void *const *data, int threads)
{
    const mica_tiling *m = &s->walk.tiling;
    if (!s->ignore) return m->outer.count;
    int64_t count = 0;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(+ : count) if (threads > 1)
    for (int64_t i = 0; i < m->tiles; i++) {
        mica_tile t = mica_tile_at(m, data, i);
        for (int64_t c = 0; c < t.width; c++) count += label_of(&t, c) != s->ignore_index;
    }
    return count;
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
    if (s->reduction == MICA_REDUCE_MEAN) run.by = 1 / (double)count_rows(s, data, threads);
    mica_reduce_run(&s->walk, plan->desc, &run, data);
    return MICA_OK;
}

const mica_engine mica_cross_entropy_cpu = {.name = "cpu",
                                            .reached = 1 / 1.5,
                                            .start_ms = 3e-4,
                                            .accepts = accepts,
                                            .build = build,
                                            .run = run};
