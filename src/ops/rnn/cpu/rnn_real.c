/* SPDX-License-Identifier: Apache-2.0
 * Steps of recurrent cells on the CPU: units of a row in blocks, which the compiler vectorises. */
#include "ops/convert/cpu/functions_f64.h"
#include "ops/convert/cpu/real.h"
#include "cpu/scratch.h"
#include "ops/rnn/rnn.h"

#include <string.h>

enum { BLOCK = 128, MOST_GATES = 4 };

#define RNN MICA_INLINE
#if REAL_F64
#define sigmoid_of mica_sigmoid_f64
#define tanh_of    mica_tanh_f64
#define CELL_STEP  rnn_cell_f64
#define SLOPE_STEP rnn_slopes_f64
#else
#define sigmoid_of mica_sigmoid_f32
#define tanh_of    mica_tanh_f32
#define CELL_STEP  rnn_cell_f32
#define SLOPE_STEP rnn_slopes_f32
#endif
#include "ops/rnn/rnn_body.h"

/* n units of a row: gates from the input and from the state (with its bias), states, what comes of
 * them. */
typedef struct block {
    int64_t n;
    real x[MOST_GATES][BLOCK], r[MOST_GATES][BLOCK];
    real state[BLOCK], made[BLOCK];
    real gates[MOST_GATES][BLOCK]; /* for gradients */
    real peepholes[3][BLOCK];
} block;

MICA_INLINE void plain_block(block *k, int relu, rnn_clip clip)
{
    for (int64_t j = 0; j < BLOCK; j++) k->made[j] = rnn_plain(relu, clip, k->x[0][j] + k->r[0][j]);
}

MICA_INLINE void lstm_block(block *k, rnn_clip clip)
{
    for (int64_t j = 0; j < BLOCK; j++) {
        const real x[] = {k->x[0][j], k->x[1][j], k->x[2][j], k->x[3][j]};
        const real r[] = {k->r[0][j], k->r[1][j], k->r[2][j], k->r[3][j]};
        real gates[MOST_GATES];
        k->made[j] = rnn_lstm(x, r, clip, &k->state[j], gates);
        for (int g = 0; g < MOST_GATES; g++) k->gates[g][j] = gates[g];
    }
}

CLONES static void peeping_units(block *k, rnn_clip clip)
{
    for (int64_t j = 0; j < BLOCK; j++) {
        const real x[] = {k->x[0][j], k->x[1][j], k->x[2][j], k->x[3][j]};
        const real r[] = {k->r[0][j], k->r[1][j], k->r[2][j], k->r[3][j]};
        const real p[] = {k->peepholes[0][j], k->peepholes[1][j], k->peepholes[2][j]};
        real gates[MOST_GATES];
        k->made[j] = rnn_lstm_peeping(x, r, p, clip, &k->state[j], gates);
        for (int g = 0; g < MOST_GATES; g++) k->gates[g][j] = gates[g];
    }
}

MICA_INLINE void gru_block(block *k, rnn_clip clip)
{
    for (int64_t j = 0; j < BLOCK; j++) {
        const real x[] = {k->x[0][j], k->x[1][j], k->x[2][j]};
        const real r[] = {k->r[0][j], k->r[1][j], k->r[2][j]};
        real gates[MOST_GATES];
        k->made[j] = k->state[j] = rnn_gru(x, r, clip, k->state[j], gates);
        for (int g = 0; g < MOST_GATES; g++) k->gates[g][j] = gates[g];
    }
}

/* made = r h; z takes the place of its product. */
MICA_INLINE void gru_first(block *k, rnn_clip clip)
{
    for (int64_t j = 0; j < BLOCK; j++) {
        const real reset = sigmoid_of(rnn_gate(k->x[0][j] + k->r[0][j], clip));
        k->made[j] = reset * k->state[j];
        k->gates[0][j] = reset;
        k->gates[1][j] = k->r[1][j] = sigmoid_of(rnn_gate(k->x[1][j] + k->r[1][j], clip));
    }
}

/* r[1] is z */
MICA_INLINE void gru_second(block *k, rnn_clip clip)
{
    for (int64_t j = 0; j < BLOCK; j++) {
        const real n = tanh_of(rnn_gate(k->x[2][j] + k->r[2][j], clip));
        k->made[j] = k->state[j] = n + k->r[1][j] * (k->state[j] - n);
        k->gates[2][j] = n, k->gates[3][j] = k->r[2][j];
    }
}

enum { PLAIN_TANH, PLAIN_RELU, LSTM_WHOLE, GRU_WHOLE, GRU_FIRST, GRU_SECOND };

/* One text for units that are clipped and for those that are not. */
MICA_INLINE void units(block *k, int kind, rnn_clip clip)
{
    if (kind == LSTM_WHOLE)
        lstm_block(k, clip);
    else if (kind == GRU_WHOLE)
        gru_block(k, clip);
    else if (kind == GRU_FIRST)
        gru_first(k, clip);
    else if (kind == GRU_SECOND)
        gru_second(k, clip);
    else
        plain_block(k, kind == PLAIN_RELU, clip);
}

CLONES static void units_as_they_are(block *k, int kind)
{
    units(k, kind, (rnn_clip){.kind = RNN_CLIP_NONE});
}

CLONES static void clipped_units(block *k, int kind, rnn_clip clip)
{
    if (clip.kind == RNN_CLIP_CELLS)
        lstm_block(k, clip);
    else
        units(k, kind, clip);
}

/* ---- rows ---- */

typedef struct row {
    const mica_rnn_desc *d;
    const mica_rnn_args *a;
    int64_t side, b, time;
    real *state, *rec; /* of the row */
    const real *x, *rec_new;
    rnn_clip clip;
} row;

static rnn_clip clip_of(const mica_rnn_desc *d, mica_rnn_bounds b)
{
    return (rnn_clip){.kind = (int)d->clip, .nan = b.nan, .low = (real)b.low, .high = (real)b.high};
}

CLONES static void add_run(real *to, const real *more, int64_t n)
{
    for (int64_t j = 0; j < n; j++) to[j] += more[j];
}

/* Gates [first, last) of units from `unit` on. What is behind the row is 0. */
static void gather(const row *q, int first, int last, int64_t unit, block *k)
{
    const mica_rnn_args *a = q->a;
    for (int g = first; g < last; g++) {
        const int64_t at = g * a->units + unit;
        const real *rec = q->rec_new && g == 2 ? q->rec_new + unit : q->rec + at;
        memset(k->x[g] + k->n, 0, (size_t)(BLOCK - k->n) * sizeof(real));
        memset(k->r[g], 0, BLOCK * sizeof(real));
        memcpy(k->x[g], q->x + at, (size_t)k->n * sizeof(real));
        if (a->bias)
            real_load(q->d->x.dtype, a->bias, q->side * a->bias_side + at, 1, k->r[g], k->n);
        add_run(k->r[g], rec, k->n);
    }
}

/* Those of n units from `unit` on. */
static void load_peepholes(mica_dtype type, const void *from, int64_t side, int64_t units,
                           int64_t unit, int64_t n, real to[3][BLOCK])
{
    for (int p = 0; from && p < 3; p++)
        real_load(type, from, (side * 3 + p) * units + unit, 1, to[p], n);
}

static void compute(const row *q, int phase, int64_t unit, block *k)
{
    const bool lstm = q->d->cell == MICA_RNN_CELL_LSTM, gru = q->d->cell == MICA_RNN_CELL_GRU;
    const int gates = (int)mica_rnn_gates(q->d->cell);
    const bool first = gru && phase == RNN_FIRST, second = gru && phase == RNN_SECOND;
    if (lstm || gru) {
        memset(k->state, 0, sizeof k->state);
        memcpy(k->state, q->state + unit, (size_t)k->n * sizeof(real));
    }
    gather(q, second ? 2 : 0, first ? 2 : gates, unit, k);
    load_peepholes(q->d->x.dtype, q->a->peepholes, q->side, q->a->units, unit, k->n, k->peepholes);
    real *z = q->rec + q->a->units + unit; /* where a gru keeps it from FIRST to SECOND */
    if (second) memcpy(k->r[1], z, (size_t)k->n * sizeof(real));
    const int plain = q->d->cell == MICA_RNN_CELL_RELU ? PLAIN_RELU : PLAIN_TANH;
    const int kind = lstm     ? LSTM_WHOLE
                     : first  ? GRU_FIRST
                     : second ? GRU_SECOND
                     : gru    ? GRU_WHOLE
                              : plain;
    if (q->a->peepholes)
        peeping_units(k, q->clip);
    else if (q->clip.kind)
        clipped_units(k, kind, q->clip);
    else
        units_as_they_are(k, kind);
    if (first)
        memcpy(z, k->r[1], (size_t)k->n * sizeof(real));
    else if (lstm || gru)
        memcpy(q->state + unit, k->state, (size_t)k->n * sizeof(real));
}

/* Whether sequence b has the step. */
static bool is_live(const mica_rnn_desc *d, const void *lengths, int64_t at, int64_t time)
{
    return !lengths || time < (d->lengths.dtype == MICA_S64 ? ((const int64_t *)lengths)[at]
                                                            : ((const int32_t *)lengths)[at]);
}

/* What a phase makes: h; gates [first, last) of it, and c. */
typedef struct parts {
    bool h, c;
    int first, last;
} parts;

static parts parts_of(const mica_rnn_desc *d, int phase)
{
    const bool lstm = d->cell == MICA_RNN_CELL_LSTM, gru = d->cell == MICA_RNN_CELL_GRU;
    const bool first = phase == RNN_FIRST, second = phase == RNN_SECOND;
    return (parts){.h = !first,
                   .c = lstm && !second,
                   .first = second ? 2 : 0,
                   .last = (lstm && second) || !(lstm || gru) ? 0
                           : gru && first                     ? 2
                                                              : MOST_GATES};
}

/* What is kept of n units for gradients; `before`: it is what stood before the first step. */
static void save(const row *q, parts p, int64_t unit, const block *k, bool before)
{
    const mica_rnn_args *a = q->a;
    const int64_t each = a->batch * a->units, place = q->b * a->units + unit;
    const int64_t step = q->side ? q->time + before : q->time + !before;
    const int64_t at = (q->side * (a->steps + 1) + step) * each + place;
    const int bytes = mica_dtype_bits(q->d->x.dtype) / 8;
    if (before && a->step > 0) return;
    if (p.h)
        mica_move((const char *)a->low + (q->side * each + place) * bytes, 1,
                  (char *)a->states + at * bytes, 1, bytes, k->n);
    if (p.c) memcpy((real *)a->cells + at, q->state + unit, (size_t)k->n * sizeof(real));
    if (before) return;
    const int64_t now = q->side * a->steps + q->time;
    if (!p.h) real_store(q->d->x.dtype, a->inner, now * each + place, 1, k->made, k->n);
    for (int g = p.first; g < p.last; g++)
        memcpy((real *)a->gates + ((now * a->batch + q->b) * 4 + g) * a->units + unit, k->gates[g],
               (size_t)k->n * sizeof(real));
}

static void do_row(const row *q, int phase)
{
    const mica_rnn_args *a = q->a;
    const mica_dtype type = q->d->x.dtype;
    const parts p = parts_of(q->d, phase);
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    block *k = mica_scratch_zeroed(sizeof *k);
    const bool live = is_live(q->d, a->lengths, q->b * a->length_stride, q->time);
    const bool projects = phase == RNN_SECOND && q->d->cell == MICA_RNN_CELL_LSTM;
    for (int64_t unit = 0; unit < a->units; unit += BLOCK) {
        k->n = a->units - unit < BLOCK ? a->units - unit : BLOCK;
        const int64_t at = (q->side * a->batch + q->b) * a->units + unit;
        if (a->states) save(q, p, unit, k, true);
        memset(k->gates, 0, sizeof k->gates);
        if (live && projects)
            memcpy(k->made, q->rec_new + unit, (size_t)k->n * sizeof(real));
        else if (live)
            compute(q, phase, unit, k);
        else
            memset(k->made, 0, sizeof k->made);
        if (!p.h)
            real_store(type, a->low_made, at, 1, k->made, k->n);
        else if (live)
            real_store(type, a->low, at, 1, k->made, k->n);
        if (a->states) save(q, p, unit, k, false);
        if (p.h)
            real_store(type, a->y,
                       q->side * a->y_side + q->time * a->y_time + q->b * a->y_batch +
                           unit * a->y_unit,
                       a->y_unit, k->made, k->n);
    }
}

void CELL_STEP(const mica_rnn_desc *d, int phase, const mica_rnn_args *a)
{
    const int64_t gates = mica_rnn_gates(d->cell), count = a->sides * a->batch;
    const int64_t rec = d->reset_before ? 2 : gates;
    const double bytes = (double)count * (double)a->units * (double)gates * 2 * sizeof(real);
#pragma omp parallel for num_threads(mica_cpu_threads_for(bytes * 4))
    for (int64_t i = 0; i < count; i++) {
        row q = {.d = d, .a = a, .side = i / a->batch, .b = i % a->batch};
        q.time = q.side ? a->steps - 1 - a->step : a->step;
        q.x = (const real *)a->z + q.side * a->z_side + q.time * a->z_time + q.b * a->z_batch;
        q.rec = (real *)a->rec + i * rec * d->hidden;
        q.rec_new = phase == RNN_SECOND ? (const real *)a->rec_new + i * a->units : NULL;
        q.state = (real *)a->state + i * d->hidden;
        q.clip = clip_of(d, a->bounds);
        do_row(&q, phase);
    }
}

/* ---- gradients ---- */

/* n units: what forward left, gradients of h and c, and what of that of h passes by the product. */
typedef struct slope_block {
    real gates[MOST_GATES][BLOCK], dz[MOST_GATES][BLOCK];
    real before[BLOCK], after[BLOCK], dh[BLOCK], dc[BLOCK], direct[BLOCK];
    real peepholes[3][BLOCK];
} slope_block;

CLONES static void lstm_slopes(slope_block *k, rnn_clip clip)
{
    for (int64_t j = 0; j < BLOCK; j++) {
        const real gates[] = {k->gates[0][j], k->gates[1][j], k->gates[2][j], k->gates[3][j]};
        real dz[MOST_GATES];
        rnn_lstm_slopes(gates, clip, k->after[j], k->before[j], k->dh[j], &k->dc[j], dz);
        for (int g = 0; g < MOST_GATES; g++) k->dz[g][j] = dz[g];
    }
}

CLONES static void peeping_slopes(slope_block *k, rnn_clip clip)
{
    for (int64_t j = 0; j < BLOCK; j++) {
        const real gates[] = {k->gates[0][j], k->gates[1][j], k->gates[2][j], k->gates[3][j]};
        const real p[] = {k->peepholes[0][j], k->peepholes[1][j], k->peepholes[2][j]};
        real dz[MOST_GATES];
        rnn_lstm_peeping_slopes(gates, p, clip, k->after[j], k->before[j], k->dh[j], &k->dc[j], dz);
        for (int g = 0; g < MOST_GATES; g++) k->dz[g][j] = dz[g];
    }
}

CLONES static void gru_slopes(slope_block *k)
{
    for (int64_t j = 0; j < BLOCK; j++) {
        const real gates[] = {k->gates[0][j], k->gates[1][j], k->gates[2][j], k->gates[3][j]};
        real dz[MOST_GATES];
        k->direct[j] = rnn_gru_slopes(gates, k->before[j], k->dh[j], dz);
        for (int g = 0; g < MOST_GATES; g++) k->dz[g][j] = dz[g];
    }
}

CLONES static void gru_before(slope_block *k)
{
    for (int64_t j = 0; j < BLOCK; j++) {
        const real gates[] = {k->gates[0][j], k->gates[1][j], k->gates[2][j]};
        real dz[MOST_GATES];
        k->direct[j] = rnn_gru_before(gates, k->before[j], k->dh[j], dz);
        k->dz[1][j] = dz[1], k->dz[2][j] = dz[2];
    }
}

/* dh: of r h; direct becomes what is added to the gradient of h. */
CLONES static void gru_behind(slope_block *k)
{
    for (int64_t j = 0; j < BLOCK; j++) {
        real dz;
        k->direct[j] = rnn_gru_reset(k->gates[0][j], k->before[j], k->dh[j], &dz);
        k->dz[0][j] = dz;
    }
}

CLONES static void plain_slopes(slope_block *k, int relu)
{
    for (int64_t j = 0; j < BLOCK; j++) k->dz[0][j] = rnn_plain_slope(relu, k->after[j], k->dh[j]);
}

/* A direction and a sequence. */
typedef struct slope_row {
    const mica_rnn_desc *d;
    const mica_rnn_slope_args *a;
    int64_t i, side, b, time;
    bool live, came; /* it has the step; something came through the product of the one behind it */
} slope_row;

static int64_t y_at(const slope_row *q, int64_t unit)
{
    const mica_rnn_slope_args *a = q->a;
    return q->side * a->y_side + q->time * a->y_time + q->b * a->y_batch + unit * a->y_unit;
}

static int64_t dz_at(const slope_row *q, int64_t unit)
{
    const mica_rnn_slope_args *a = q->a;
    return ((q->side * a->steps + q->time) * a->batch + q->b) * a->dz_row + unit;
}

/* Gates, and c (of others than lstm h) before and after the step. */
static void load_reserve(const slope_row *q, int64_t unit, int64_t n, slope_block *k)
{
    const mica_rnn_slope_args *a = q->a;
    const bool lstm = q->d->cell == MICA_RNN_CELL_LSTM, gru = q->d->cell == MICA_RNN_CELL_GRU;
    const int64_t side = q->side, each = a->batch * a->units, place = q->b * a->units + unit;
    const int64_t first = side * (a->steps + 1) + q->time;
    const int64_t before = (first + side) * each + place, after = (first + 1 - side) * each + place;
    const void *around = lstm ? a->cells : a->states;
    const int64_t row = ((side * a->steps + q->time) * a->batch + q->b) * 4 * a->units + unit;
    for (int g = 0; g < MOST_GATES && (lstm || gru); g++)
        memcpy(k->gates[g], (const real *)a->gates + row + g * a->units, (size_t)n * sizeof(real));
    real_load(lstm ? REAL_TYPE : q->d->x.dtype, around, before, 1, k->before, n);
    real_load(lstm ? REAL_TYPE : q->d->x.dtype, around, after, 1, k->after, n);
}

/* A block of a row that has the step. */
static void slopes_of(const slope_row *q, int64_t unit, int64_t n, slope_block *k)
{
    const mica_rnn_desc *d = q->d;
    const mica_rnn_slope_args *a = q->a;
    const bool lstm = d->cell == MICA_RNN_CELL_LSTM, gru = d->cell == MICA_RNN_CELL_GRU;
    load_reserve(q, unit, n, k);
    if (!d->projection) {
        real_load(d->x.dtype, a->y, y_at(q, unit), a->y_unit, k->direct, n);
        add_run(k->dh, k->direct, n);
    }
    memset(k->direct, 0, sizeof k->direct);
    if (lstm) {
        real *dc = (real *)a->dc + q->i * a->units + unit;
        memcpy(k->dc, dc, (size_t)n * sizeof(real));
        load_peepholes(d->x.dtype, a->peepholes, q->side, a->units, unit, n, k->peepholes);
        if (a->peepholes)
            peeping_slopes(k, clip_of(d, a->bounds));
        else
            lstm_slopes(k, clip_of(d, a->bounds));
        memcpy(dc, k->dc, (size_t)n * sizeof(real));
    } else if (gru && d->reset_before) {
        gru_before(k);
    } else if (gru) {
        gru_slopes(k);
    } else {
        plain_slopes(k, d->cell == MICA_RNN_CELL_RELU);
    }
}

/* The gradient of n units of h in front of a step, of projection before that; behind the last step
 * that is all. */
static void to_states(const slope_row *q, int phase, int64_t unit, int64_t n, slope_block *k)
{
    const mica_rnn_slope_args *a = q->a;
    const mica_dtype type = q->d->x.dtype;
    real *direct = (real *)a->direct + q->i * a->units + unit;
    memcpy(k->dh, direct, (size_t)n * sizeof(real));
    if (q->came) add_run(k->dh, (const real *)a->rec + q->i * a->units + unit, n);
    if (phase == RNN_SLOPES) return;
    memcpy(direct, k->dh, (size_t)n * sizeof(real));
    if (phase == RNN_INITIAL) return;
    if (q->live) {
        memset(direct, 0, (size_t)n * sizeof(real));
        real_load(type, a->y, y_at(q, unit), a->y_unit, k->direct, n);
        add_run(k->dh, k->direct, n);
    } else {
        memset(k->dh, 0, sizeof k->dh);
    }
    real_store(type, a->low_new, q->i * a->units + unit, 1, k->dh, n);
    real_store(type, a->dz, dz_at(q, unit), 1, k->dh, n);
}

/* Of a gru that resets before its product. */
static void behind(const slope_row *q, int64_t unit, int64_t n, slope_block *k)
{
    const mica_rnn_slope_args *a = q->a;
    const mica_dtype type = q->d->x.dtype;
    if (q->live) {
        load_reserve(q, unit, n, k);
        memcpy(k->dh, (const real *)a->rec_new + q->i * a->units + unit, (size_t)n * sizeof(real));
        gru_behind(k);
        add_run((real *)a->direct + q->i * a->units + unit, k->direct, n);
    }
    real_store(type, a->dz, dz_at(q, unit), 1, k->dz[0], n);
    real_store(type, a->low, q->i * 2 * a->units + unit, 1, k->dz[0], n);
}

static void store_slopes(const slope_row *q, int64_t unit, int64_t n, const slope_block *k)
{
    const mica_rnn_slope_args *a = q->a;
    const mica_dtype type = q->d->x.dtype;
    const bool resets = q->d->reset_before;
    const int gates = resets ? 2 : (int)mica_rnn_gates(q->d->cell), all = (int)rnn_slopes(q->d);
    const int64_t at = dz_at(q, unit);
    for (int g = resets; g < all; g++) real_store(type, a->dz, at + g * a->units, 1, k->dz[g], n);
    for (int g = resets; g < gates; g++)
        real_store(type, a->low, (q->i * gates + g) * a->units + unit, 1,
                   k->dz[all > gates && g == 2 ? 3 : g], n);
    if (resets) real_store(type, a->low_new, q->i * a->units + unit, 1, k->dz[2], n);
}

static void do_slopes(const slope_row *q, int phase)
{
    const mica_rnn_slope_args *a = q->a;
    const bool projected = q->d->projection > 0;
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    slope_block *k = mica_scratch_take(sizeof *k);
    for (int64_t unit = 0; unit < a->units; unit += BLOCK) {
        const int64_t n = a->units - unit < BLOCK ? a->units - unit : BLOCK;
        memset(k, 0, sizeof *k);
        if (phase == RNN_BEHIND) {
            behind(q, unit, n, k);
            continue;
        }
        if (phase == RNN_SLOPES && projected)
            memcpy(k->dh, (const real *)a->rec_new + q->i * a->units + unit,
                   (size_t)n * sizeof(real));
        else
            to_states(q, phase, unit, n, k);
        if (phase != RNN_SLOPES) continue;
        if (q->live)
            slopes_of(q, unit, n, k);
        else
            memcpy(k->direct, k->dh, sizeof k->direct);
        if (!projected)
            memcpy((real *)a->direct + q->i * a->units + unit, k->direct, (size_t)n * sizeof(real));
        store_slopes(q, unit, n, k);
    }
}

void SLOPE_STEP(const mica_rnn_desc *d, int phase, const mica_rnn_slope_args *a)
{
    const int64_t count = a->sides * a->batch;
    const double bytes =
        (double)count * (double)a->units * (double)rnn_slopes(d) * 4 * sizeof(real);
#pragma omp parallel for num_threads(mica_cpu_threads_for(bytes * 2))
    for (int64_t i = 0; i < count; i++) {
        slope_row q = {.d = d, .a = a, .i = i, .side = i / a->batch, .b = i % a->batch};
        q.time = q.side ? a->steps - 1 - a->step : a->step;
        const int64_t length = q.b * a->length_stride, behind = q.side ? q.time - 1 : q.time + 1;
        q.live = is_live(d, a->lengths, length, q.time);
        /* Of a step behind the end nothing comes: 0, but for weights that are no numbers. */
        q.came = !a->first && is_live(d, a->lengths, length, behind);
        do_slopes(&q, phase);
    }
}
