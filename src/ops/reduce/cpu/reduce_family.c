/* SPDX-License-Identifier: Apache-2.0
 * The family `reduce` on the CPU: what is done with chunks and states. Sums of f32 and shorter
 * types are formed in f64. Memory-bound but for logsumexp. Engine "cpu": any types and strides, no
 * workspace. */
#include "ops/reduce/cpu/reduce_states.h"
#include "ops/reduce/map.h"
#include "ops/convert/cpu/convert.h"
#include "ops/reduce/cpu/rows.h"
#include "cpu/cpu.h"
#include "cpu/scratch.h"

#include <math.h>
#include <string.h>

static const mica_reduce_row *row_of(const mica_reduce_tile *t)
{
    return mica_reduce_row_of(t->desc);
}

/* Magnitudes and truths begin with 0, other maxima with the lowest there is. */
static bool begins_with_zero(const mica_reduce_row *row)
{
    return row->front == REDUCE_ABS || row->result == REDUCE_TRUTHS;
}

static void init(const mica_reduce_tile *t, void *state)
{
    const mica_reduce_row *row = row_of(t);
    const bool integers = t->walk->real == MICA_S64;
    mica_reduce_states *s = state;
    s->count = 0;
    if (row->by == REDUCE_EXP) {
        mica_slices_clear(&s->exp, t->tile.width);
        return;
    }
    for (int64_t c = 0; c < t->tile.width; c++) {
        const bool lowest =
            row->by == REDUCE_ARG || (row->by == REDUCE_MAX && !begins_with_zero(row));
        if (integers)
            s->a.s64[c] = row->by == REDUCE_PRODUCT ? 1 : lowest ? INT64_MIN : 0;
        else
            s->a.f64[c] = row->by == REDUCE_PRODUCT ? 1 : lowest ? -(double)INFINITY : 0;
        s->b.s64[c] = 0, s->index[c] = 0;
    }
}

/* ---- exponentials ---- */

/* About a maximum of infinity nothing can be formed: the sum is then 1, or NaN if one is there. */
static void settle(const mica_reduce_tile *t, const float *x, int64_t ld, int64_t n,
                   const double *before, mica_stats_of_slices *st)
{
    for (int64_t c = 0; c < t->tile.width; c++) {
        if (st->max[c] != INFINITY) continue;
        bool nan = isnan(before[c]);
        for (int64_t i = 0; i < n; i++) nan |= isnan(x[i * ld + c]) != 0;
        st->sum[c] = nan ? (double)NAN : 1;
    }
}

static void add_exponentials(const mica_reduce_tile *t, const mica_reduce_chunk *c,
                             mica_stats_of_slices *st)
{
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    float *e = mica_scratch_take(MICA_TILE_CHUNK * sizeof *e);
    double before[MICA_TILE_WIDTH];
    const int64_t width = t->tile.width;
    memcpy(before, st->sum, (size_t)width * sizeof *before);
    mica_slices_max(&t->tile, c->in[0], c->ld[0], c->n, st);
    mica_slices_exp(&t->tile, c->in[0], c->ld[0], c->from, c->n, st, e, width);
    settle(t, c->in[0], t->walk->tiling.width == 1 ? 1 : c->ld[0], c->n, before, st);
}

/* max: in b, with the sum in a. */
static void add_wide_exponentials(const mica_reduce_chunk *c, mica_reduce_states *s)
{
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    double *e = mica_scratch_take(MICA_TILE_CHUNK * sizeof *e);
    const double *x = c->wide, max = mica_row_max_f64(x, c->n);
    double *sum = s->a.f64, *top = s->b.f64;
    if (s->count == 0) *sum = 0, *top = -(double)INFINITY;
    s->count += c->n;
    if (max > *top) {
        if (*sum != 0) *sum *= exp(*top - max);
        *top = max;
    }
    if (isfinite(*top)) {
        *sum += mica_row_exp_sum_f64(x, *top, c->n, e);
        return;
    }
    bool nan = isnan(*sum);
    for (int64_t i = 0; i < c->n; i++) nan |= isnan(x[i]) != 0;
    *sum = nan ? (double)NAN : *top > 0;
}

/* ---- chunks and states ---- */

static void add(const mica_reduce_tile *t, const mica_reduce_chunk *c, void *state)
{
    const mica_reduce_row *row = row_of(t);
    const mica_reduce_walk *w = t->walk;
    mica_reduce_states *s = state;
    if (row->by == REDUCE_EXP && w->real == MICA_F32) {
        add_exponentials(t, c, &s->exp);
        return;
    }
    if (row->by == REDUCE_EXP) {
        add_wide_exponentials(c, s);
        return;
    }
    mica_reduce_values v = {
        .x = w->real == MICA_F32 ? c->in[0] : c->wide, .ld = c->ld[0], .n = c->n};
    if (row->by == REDUCE_ARG) {
        v.step = w->tiling.along[2];
        v.index = t->tile.offset[2] + c->from * v.step;
    }
    const mica_reduce_add by_type = w->real == MICA_F32   ? mica_reduce_add_f32
                                    : w->real == MICA_F64 ? mica_reduce_add_f64
                                                          : mica_reduce_add_s64;
    by_type(row, &v, t->tile.width, w->tiling.width == 1, s);
}

void mica_reduce_merge_moments(mica_reduce_states *to, const mica_reduce_states *from,
                               int64_t width)
{
    const double all = (double)(to->count + from->count);
    const double share = all > 0 ? (double)from->count / all : 0;
    for (int64_t c = 0; c < width; c++) {
        const double apart = from->a.f64[c] - to->a.f64[c];
        to->a.f64[c] += apart * share;
        to->b.f64[c] += from->b.f64[c] + apart * apart * share * (double)to->count;
    }
    to->count += from->count;
}

static bool wins(double v, double best)
{
    return v > best || (isnan(v) && !isnan(best));
}

static void merge_maxima(mica_reduce_states *to, const mica_reduce_states *from, int64_t width,
                         bool integers)
{
    for (int64_t c = 0; c < width; c++) {
        const bool better =
            integers ? from->a.s64[c] > to->a.s64[c] : wins(from->a.f64[c], to->a.f64[c]);
        const bool worse =
            integers ? to->a.s64[c] > from->a.s64[c] : wins(to->a.f64[c], from->a.f64[c]);
        if (better || (!worse && from->index[c] < to->index[c]))
            to->a.s64[c] = from->a.s64[c], to->index[c] = from->index[c];
    }
    to->count += from->count;
}

static void merge_wide_exponentials(mica_reduce_states *to, const mica_reduce_states *from)
{
    const double max = fmax(to->b.f64[0], from->b.f64[0]);
    double sum = 0;
    for (int k = 0; k < 2; k++) {
        const mica_reduce_states *s = k ? from : to;
        const double top = s->b.f64[0];
        sum += s->a.f64[0] * (top == max ? 1 : exp(top - max));
    }
    to->a.f64[0] = sum, to->b.f64[0] = max;
}

static void merge(const mica_reduce_tile *t, void *to_state, const void *from_state)
{
    mica_reduce_states *to = to_state;
    const mica_reduce_states *from = from_state;
    const int64_t width = t->tile.width;
    const bool integers = t->walk->real == MICA_S64;
    switch (row_of(t)->by) {
    case REDUCE_EXP:
        if (t->walk->real == MICA_F32)
            mica_slices_merge(&to->exp, &from->exp, width);
        else
            merge_wide_exponentials(to, from);
        break;
    case REDUCE_MOMENTS:
        mica_reduce_merge_moments(to, from, width);
        break;
    case REDUCE_MAX:
    case REDUCE_ARG:
        merge_maxima(to, from, width, integers);
        break;
    case REDUCE_PRODUCT:
        for (int64_t c = 0; c < width; c++)
            if (integers)
                to->a.u64[c] *= from->a.u64[c];
            else
                to->a.f64[c] *= from->a.f64[c];
        break;
    default:
        for (int64_t c = 0; c < width; c++)
            if (integers)
                to->a.u64[c] += from->a.u64[c];
            else
                to->a.f64[c] += from->a.f64[c];
    }
}

/* ---- results ---- */

static double behind(const mica_reduce_tile *t, const mica_reduce_states *s, int64_t c)
{
    const mica_reduce_desc *d = t->desc;
    const double a = s->a.f64[c], n = (double)t->walk->length;
    const double left = n > d->correction ? n - d->correction : 0;
    switch (row_of(t)->behind) {
    case REDUCE_BACK:
        return -a;
    case REDUCE_MEAN:
        return a / n;
    case REDUCE_ROOT:
        return sqrt(a);
    case REDUCE_NOT:
        return a == 0;
    case REDUCE_VARIANCE:
        return s->b.f64[c] / left;
    case REDUCE_DEVIATION:
        return sqrt(s->b.f64[c] / left);
    default:
        return a;
    }
}

static double log_of(const mica_reduce_tile *t, const mica_reduce_states *s, int64_t c)
{
    const bool narrow = t->walk->real == MICA_F32;
    const double max = narrow ? (double)s->exp.max[c] : s->b.f64[c];
    const double sum = narrow ? s->exp.sum[c] : s->a.f64[c];
    if (t->walk->length == 0) return -(double)INFINITY;
    return isnan(sum) || isfinite(max) ? max + log(sum) : max;
}

static void finish(const mica_reduce_tile *t, void *state)
{
    const mica_reduce_row *row = row_of(t);
    const mica_reduce_states *s = state;
    const mica_tile *m = &t->tile;
    const mica_dtype type = m->s->type[1];
    const bool integers = t->walk->real == MICA_S64, back = row->behind == REDUCE_BACK;
    double value[MICA_TILE_WIDTH];
    for (int64_t c = 0; c < m->width; c++) {
        int64_t whole = row->by == REDUCE_ARG ? s->index[c] : s->a.s64[c];
        if (integers && back) whole = ~whole;
        if (integers && row->behind == REDUCE_NOT) whole = !whole;
        if (row->by != REDUCE_ARG && !integers)
            value[c] = row->by == REDUCE_EXP ? log_of(t, s, c) : behind(t, s, c);
        else if (type == MICA_S64)
            ((int64_t *)m->data[1])[m->offset[1] + c * m->across[1]] = whole;
        else
            value[c] = (double)whole;
    }
    if (type == MICA_S64 && (integers || row->by == REDUCE_ARG)) return;
    mica_from_f64(type, m->data[1], m->offset[1], m->across[1], value, m->width);
}

const mica_reduce mica_reduce_family = {.operands = mica_reduce_operands,
                                        .real = mica_reduce_real,
                                        .init = init,
                                        .add = add,
                                        .merge = merge,
                                        .finish = finish,
                                        .asks = true,
                                        .map = mica_reduce_map_chunk};

/* ---- the engine ---- */

static mica_status build(mica_plan *plan)
{
    const bool mapped = mica_reduce_is_mapped(plan->desc);
    mica_reduce_walk *w;
    mica_expr_program *program;
    MICA_TRY(mica_plan_state(plan, sizeof *w + (mapped ? sizeof *program : 0), &w));
    program = (mica_expr_program *)(void *)(w + 1);
    mica_reduce_walk_make(w, &mica_reduce_family, plan->desc, mica_op_bytes(plan->op, plan->desc),
                          &plan->device);
    if (!mapped) return MICA_OK;
    mica_reduce_map_program(plan->desc, program);
    w->program = program;
    return MICA_OK;
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    void *data[MICA_REDUCE_OPERANDS];
    mica_reduce_bind(plan->state, r, data);
    mica_reduce_run(plan->state, plan->desc, NULL, data);
    return MICA_OK;
}

const mica_engine mica_reduce_cpu = {.name = "cpu",
                                     .reached = 0.7,
                                     .start_ms = 3e-4,
                                     .accepts = mica_reduce_accepts,
                                     .build = build,
                                     .run = run};
