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
} block;

CLONES static void plain_units(block *k, int relu)
{
    for (int64_t j = 0; j < BLOCK; j++) k->made[j] = rnn_plain(relu, k->x[0][j] + k->r[0][j]);
}

CLONES static void lstm_units(block *k)
{
    for (int64_t j = 0; j < BLOCK; j++) {
        const real x[] = {k->x[0][j], k->x[1][j], k->x[2][j], k->x[3][j]};
        const real r[] = {k->r[0][j], k->r[1][j], k->r[2][j], k->r[3][j]};
        real gates[MOST_GATES];
        k->made[j] = rnn_lstm(x, r, &k->state[j], gates);
        for (int g = 0; g < MOST_GATES; g++) k->gates[g][j] = gates[g];
    }
}

CLONES static void gru_units(block *k)
{
    for (int64_t j = 0; j < BLOCK; j++) {
        const real x[] = {k->x[0][j], k->x[1][j], k->x[2][j]};
        const real r[] = {k->r[0][j], k->r[1][j], k->r[2][j]};
        real gates[MOST_GATES];
        k->made[j] = k->state[j] = rnn_gru(x, r, k->state[j], gates);
        for (int g = 0; g < MOST_GATES; g++) k->gates[g][j] = gates[g];
    }
}

/* made = r h; z takes the place of its product. */
CLONES static void gru_gates(block *k)
{
    for (int64_t j = 0; j < BLOCK; j++) {
        k->made[j] = sigmoid_of(k->x[0][j] + k->r[0][j]) * k->state[j];
        k->r[1][j] = sigmoid_of(k->x[1][j] + k->r[1][j]);
    }
}

/* r[1] is z */
CLONES static void gru_new(block *k)
{
    for (int64_t j = 0; j < BLOCK; j++) {
        const real n = tanh_of(k->x[2][j] + k->r[2][j]);
        k->made[j] = k->state[j] = n + k->r[1][j] * (k->state[j] - n);
    }
}

/* ---- rows ---- */

typedef struct row {
    const mica_rnn_desc *d;
    const mica_rnn_args *a;
    int64_t side, b, time;
    real *state, *rec; /* of the row */
    const real *x, *rec_new;
} row;

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

static void compute(const row *q, int phase, int64_t unit, block *k)
{
    const bool lstm = q->d->cell == MICA_RNN_CELL_LSTM, gru = q->d->cell == MICA_RNN_CELL_GRU;
    const int gates = (int)mica_rnn_gates(q->d->cell);
    if (lstm || gru) {
        memset(k->state, 0, sizeof k->state);
        memcpy(k->state, q->state + unit, (size_t)k->n * sizeof(real));
    }
    gather(q, phase == RNN_NEW ? 2 : 0, phase == RNN_GATES ? 2 : gates, unit, k);
    if (phase == RNN_GATES) {
        gru_gates(k);
        memcpy(q->rec + q->a->units + unit, k->r[1], (size_t)k->n * sizeof(real));
        return;
    }
    if (phase == RNN_NEW) {
        memcpy(k->r[1], q->rec + q->a->units + unit, (size_t)k->n * sizeof(real));
        gru_new(k);
    } else if (lstm) {
        lstm_units(k);
    } else if (gru) {
        gru_units(k);
    } else {
        plain_units(k, q->d->cell == MICA_RNN_CELL_RELU);
    }
    if (lstm || gru) memcpy(q->state + unit, k->state, (size_t)k->n * sizeof(real));
}

/* Whether sequence b has the step. */
static bool is_live(const mica_rnn_desc *d, const void *lengths, int64_t at, int64_t time)
{
    return !lengths || time < (d->lengths.dtype == MICA_S64 ? ((const int64_t *)lengths)[at]
                                                            : ((const int32_t *)lengths)[at]);
}

/* What is kept of n units for gradients; `before`: it is what stood before the first step. */
static void save(const row *q, int64_t unit, const block *k, bool before)
{
    const mica_rnn_args *a = q->a;
    const int64_t each = a->batch * a->units, place = q->b * a->units + unit;
    const int64_t step = q->side ? q->time + before : q->time + !before;
    const int64_t at = (q->side * (a->steps + 1) + step) * each + place;
    if (before && a->step > 0) return;
    mica_move((const char *)a->low +
                  (q->side * each + place) * (mica_dtype_bits(q->d->x.dtype) / 8),
              1, (char *)a->states + at * (mica_dtype_bits(q->d->x.dtype) / 8), 1,
              mica_dtype_bits(q->d->x.dtype) / 8, k->n);
    if (a->cells) memcpy((real *)a->cells + at, q->state + unit, (size_t)k->n * sizeof(real));
    if (!a->gates || before) return;
    real *to = (real *)a->gates + ((q->side * a->steps + q->time) * a->batch + q->b) * 4 * a->units;
    for (int g = 0; g < MOST_GATES; g++)
        memcpy(to + g * a->units + unit, k->gates[g], (size_t)k->n * sizeof(real));
}

static void do_row(const row *q, int phase)
{
    const mica_rnn_args *a = q->a;
    const mica_dtype type = q->d->x.dtype;
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    block *k = mica_scratch_zeroed(sizeof *k);
    const bool live = is_live(q->d, a->lengths, q->b * a->length_stride, q->time);
    for (int64_t unit = 0; unit < a->units; unit += BLOCK) {
        k->n = a->units - unit < BLOCK ? a->units - unit : BLOCK;
        const int64_t at = (q->side * a->batch + q->b) * a->units + unit;
        if (a->states) save(q, unit, k, true);
        memset(k->gates, 0, sizeof k->gates);
        if (live)
            compute(q, phase, unit, k);
        else
            memset(k->made, 0, sizeof k->made);
        if (phase == RNN_GATES) {
            real_store(type, a->low_made, at, 1, k->made, k->n);
            continue;
        }
        if (live) real_store(type, a->low, at, 1, k->made, k->n);
        if (a->states) save(q, unit, k, false);
        real_store(type, a->y,
                   q->side * a->y_side + q->time * a->y_time + q->b * a->y_batch + unit * a->y_unit,
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
        q.rec = (real *)a->rec + i * rec * a->units;
        q.rec_new = phase == RNN_NEW ? (const real *)a->rec_new + i * a->units : NULL;
        q.state = (real *)a->state + i * a->units;
        do_row(&q, phase);
    }
}

/* ---- gradients ---- */

/* n units: what forward left, gradients of h and c, and what of that of h passes by the product. */
typedef struct slope_block {
    real gates[MOST_GATES][BLOCK], dz[MOST_GATES][BLOCK];
    real before[BLOCK], after[BLOCK], dh[BLOCK], dc[BLOCK], direct[BLOCK];
} slope_block;

CLONES static void lstm_slopes(slope_block *k)
{
    for (int64_t j = 0; j < BLOCK; j++) {
        const real gates[] = {k->gates[0][j], k->gates[1][j], k->gates[2][j], k->gates[3][j]};
        real dz[MOST_GATES];
        rnn_lstm_slopes(gates, k->after[j], k->before[j], k->dh[j], &k->dc[j], dz);
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

CLONES static void plain_slopes(slope_block *k, int relu)
{
    for (int64_t j = 0; j < BLOCK; j++) k->dz[0][j] = rnn_plain_slope(relu, k->after[j], k->dh[j]);
}

/* A block of a row that has the step. */
static void slopes_of(const mica_rnn_desc *d, const mica_rnn_slope_args *a, int64_t i, int64_t time,
                      int64_t unit, int64_t n, slope_block *k)
{
    const bool lstm = d->cell == MICA_RNN_CELL_LSTM, gru = d->cell == MICA_RNN_CELL_GRU;
    const int64_t side = i / a->batch, b = i % a->batch, each = a->batch * a->units;
    const int64_t first = side * (a->steps + 1) + time, place = b * a->units + unit;
    const int64_t before = (first + side) * each + place, after = (first + 1 - side) * each + place;
    const void *around = lstm ? a->cells : a->states;
    const int64_t row = ((side * a->steps + time) * a->batch + b) * 4 * a->units + unit;
    for (int g = 0; g < MOST_GATES && (lstm || gru); g++)
        memcpy(k->gates[g], (const real *)a->gates + row + g * a->units, (size_t)n * sizeof(real));
    real_load(lstm ? REAL_TYPE : d->x.dtype, around, before, 1, k->before, n);
    real_load(lstm ? REAL_TYPE : d->x.dtype, around, after, 1, k->after, n);
    real_load(d->x.dtype, a->y,
              side * a->y_side + time * a->y_time + b * a->y_batch + unit * a->y_unit, a->y_unit,
              k->direct, n);
    add_run(k->dh, k->direct, n);
    memset(k->direct, 0, sizeof k->direct);
    if (lstm) {
        real *dc = (real *)a->dc + i * a->units + unit;
        memcpy(k->dc, dc, (size_t)n * sizeof(real));
        lstm_slopes(k);
        memcpy(dc, k->dc, (size_t)n * sizeof(real));
    } else if (gru) {
        gru_slopes(k);
    } else {
        plain_slopes(k, d->cell == MICA_RNN_CELL_RELU);
    }
}

static void do_slopes(const mica_rnn_desc *d, int phase, const mica_rnn_slope_args *a, int64_t i)
{
    const int64_t side = i / a->batch, b = i % a->batch,
                  time = side ? a->steps - 1 - a->step : a->step;
    const int gates = (int)mica_rnn_gates(d->cell), all = (int)rnn_slopes(d);
    const bool live = is_live(d, a->lengths, b * a->length_stride, time);
    /* Of a step behind the end nothing comes: 0, but for weights that are no numbers. */
    const bool came =
        !a->first && is_live(d, a->lengths, b * a->length_stride, side ? time - 1 : time + 1);
    const mica_dtype type = d->x.dtype;
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    slope_block *k = mica_scratch_take(sizeof *k);
    for (int64_t unit = 0; unit < a->units; unit += BLOCK) {
        const int64_t n = a->units - unit < BLOCK ? a->units - unit : BLOCK;
        real *direct = (real *)a->direct + i * a->units + unit;
        memset(k, 0, sizeof *k);
        memcpy(k->dh, direct, (size_t)n * sizeof(real));
        if (came) add_run(k->dh, (const real *)a->rec + i * a->units + unit, n);
        if (phase == RNN_SLOPES && live)
            slopes_of(d, a, i, time, unit, n, k);
        else
            memcpy(k->direct, k->dh, sizeof k->direct);
        memcpy(direct, k->direct, (size_t)n * sizeof(real));
        if (phase == RNN_INITIAL) continue;
        const int64_t at = ((side * a->steps + time) * a->batch + b) * all * a->units + unit;
        for (int g = 0; g < all; g++) real_store(type, a->dz, at + g * a->units, 1, k->dz[g], n);
        for (int g = 0; g < gates; g++)
            real_store(type, a->low, (i * gates + g) * a->units + unit, 1,
                       k->dz[all > gates && g == 2 ? 3 : g], n);
    }
}

void SLOPE_STEP(const mica_rnn_desc *d, int phase, const mica_rnn_slope_args *a)
{
    const int64_t count = a->sides * a->batch;
    const double bytes =
        (double)count * (double)a->units * (double)rnn_slopes(d) * 4 * sizeof(real);
#pragma omp parallel for num_threads(mica_cpu_threads_for(bytes * 2))
    for (int64_t i = 0; i < count; i++) do_slopes(d, phase, a, i);
}
