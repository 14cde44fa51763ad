/* SPDX-License-Identifier: Apache-2.0
 * Gradients of recurrent nets, the truth: plain loops in double precision, by what forward left. */
#include "base/memory.h"
#include "cpu/cpu.h"
#include "cpu/scratch.h"
#include "ops/rnn/rnn_truth.h"

typedef struct sequence {
    const truth *t;
    int64_t layer, side, b;
    mica_rnn_matrix r, last;
    /* of h behind the step, of c, of the h before by what is no product; of what is projected */
    number *dh, *dc, *direct, *wide;
    number *dz; /* of all directions, steps and sequences of the layer */
} sequence;

static number subtract(const truth *t, number a, number b)
{
    b.v = -b.v;
    return add(t, a, b);
}

static number got(const truth *t, int arg, int64_t at)
{
    return t->v[arg].data ? exactly(mica_get(&t->v[arg], at)) : exactly(0);
}

/* units: of a row, H or P. */
static int64_t state_at(const sequence *q, int64_t units, int64_t step, int after, int64_t j)
{
    const rnn_sizes *s = &q->t->s;
    const int64_t k = q->side ? step + 1 - after : step + after;
    return (((q->layer * s->sides + q->side) * (s->steps + 1) + k) * s->batch + q->b) * units + j;
}

static int64_t row_at(const truth *t, int64_t layer, int64_t side, int64_t step, int64_t b)
{
    return ((layer * t->s.sides + side) * t->s.steps + step) * t->s.batch + b;
}

static number *dz_at(const truth *t, number *dz, int64_t side, int64_t step, int64_t b)
{
    return dz + row_at(t, 0, side, step, b) * rnn_slope_row(t->d);
}

static number product(const truth *t, int count, const number *factors)
{
    number n = factors[0];
    for (int i = 1; i < count; i++) n = multiply(t, n, factors[i]);
    return n;
}
#define PRODUCT(...)                                                                               \
    product(t, (int)(sizeof(number[]){__VA_ARGS__} / sizeof(number)), (const number[]){__VA_ARGS__})

/* 1 - v, 1 - v^2 */
static number rest(const truth *t, number v)
{
    return subtract(t, exactly(1), v);
}

static number rest_of_square(const truth *t, number v)
{
    return subtract(t, exactly(1), multiply(t, v, v));
}

static number cosine(const truth *t, number c) /* 1 - tanh(c)^2, and tanh(c) known to 4 units */
{
    const number h = {tanh(c.v), 4 * fabs(tanh(c.v))};
    return rest_of_square(t, h);
}

static int64_t peephole_at(const truth *t, int64_t layer, int64_t side, int p, int64_t j)
{
    return ((layer * t->s.sides + side) * 3 + p) * t->s.hidden + j;
}

/* What a gradient of a gate hands to the c that it sees; p: 0 i, 1 o, 2 f. */
static number with_seen(const sequence *q, number dc, int p, int64_t j, number dz)
{
    const truth *t = q->t;
    if (!t->v[MICA_RNN_PEEPHOLES].data) return dc;
    const int64_t at = peephole_at(t, q->layer, q->side, p, j);
    return add(t, dc, multiply(t, got(t, MICA_RNN_PEEPHOLES, at), dz));
}

static void lstm_unit(sequence *q, int64_t step, int64_t j, number *dz)
{
    const truth *t = q->t;
    const int64_t n = t->s.hidden, row = row_at(t, q->layer, q->side, step, q->b) * 4;
    number g[4];
    for (int k = 0; k < 4; k++) g[k] = got(t, MICA_RNN_GATES, (row + k) * n + j);
    const number c = got(t, MICA_RNN_CELLS, state_at(q, n, step, 1, j));
    const number before = got(t, MICA_RNN_CELLS, state_at(q, n, step, 0, j));
    const number tanh_c = {tanh(c.v), 4 * fabs(tanh(c.v))}, dh = q->wide[j];
    dz[3 * n + j] = PRODUCT(dh, tanh_c, g[3], rest(t, g[3]));
    number all = add(t, q->dc[j], PRODUCT(dh, g[3], cosine(t, c)));
    all = with_seen(q, all, 1, j, dz[3 * n + j]);
    if (t->d->clip == MICA_RNN_CLIP_CELLS && (c.v <= t->low || c.v >= t->high)) all = exactly(0);
    dz[j] = PRODUCT(all, g[2], g[0], rest(t, g[0]));
    dz[n + j] = PRODUCT(all, before, g[1], rest(t, g[1]));
    dz[2 * n + j] = PRODUCT(all, g[0], rest_of_square(t, g[2]));
    q->dc[j] = with_seen(q, multiply(t, all, g[1]), 0, j, dz[j]);
    q->dc[j] = with_seen(q, q->dc[j], 2, j, dz[n + j]);
}

static void gru_unit(sequence *q, int64_t step, int64_t j, number *dz)
{
    const truth *t = q->t;
    const int64_t n = t->s.hidden, row = row_at(t, q->layer, q->side, step, q->b) * 4;
    number g[4];
    for (int k = 0; k < 4; k++) g[k] = got(t, MICA_RNN_GATES, (row + k) * n + j);
    const number h = got(t, MICA_RNN_STATES, state_at(q, n, step, 0, j)), dh = q->dh[j];
    const number dn = PRODUCT(dh, rest(t, g[1]), rest_of_square(t, g[2]));
    if (!t->d->reset_before) dz[j] = PRODUCT(dn, g[3], g[0], rest(t, g[0]));
    dz[n + j] = PRODUCT(dh, subtract(t, h, g[2]), g[1], rest(t, g[1]));
    dz[2 * n + j] = dn;
    if (!t->d->reset_before) dz[3 * n + j] = multiply(t, dn, g[0]);
    q->direct[j] = multiply(t, dh, g[1]);
}

/* With reset_before dz of r comes of that of n through R. */
static void reset_units(sequence *q, int64_t step, number *dz)
{
    const truth *t = q->t;
    const int64_t n = t->s.hidden, row = row_at(t, q->layer, q->side, step, q->b) * 4;
    for (int64_t j = 0; j < n; j++) {
        sum s = {0};
        for (int64_t i = 0; i < n; i++)
            add_product(t, &s, rounded(t, dz[2 * n + i]),
                        got(t, MICA_RNN_W, q->r.offset + (2 * n + i) * n + j));
        const number reset = got(t, MICA_RNN_GATES, row * n + j), all = total(t, &s);
        const number h = got(t, MICA_RNN_STATES, state_at(q, n, step, 0, j));
        dz[j] = PRODUCT(all, h, reset, rest(t, reset));
        q->direct[j] = add(t, q->direct[j], multiply(t, all, reset));
    }
}

static void plain_unit(sequence *q, int64_t step, int64_t j, number *dz)
{
    const truth *t = q->t;
    const number h = got(t, MICA_RNN_STATES, state_at(q, t->s.hidden, step, 1, j));
    if (t->d->cell == MICA_RNN_CELL_RELU)
        dz[j] = h.v > 0 ? q->dh[j] : exactly(0);
    else
        dz[j] = multiply(t, q->dh[j], rest_of_square(t, h));
}

/* The gradient of the h before the step: dz R, and what passes by. */
static void go_back(sequence *q, const number *dz)
{
    const truth *t = q->t;
    const int64_t n = t->s.hidden, p = t->s.out;
    const bool gru = t->d->cell == MICA_RNN_CELL_GRU;
    const int64_t rows = (t->d->reset_before ? 2 : t->s.gates) * n;
    for (int64_t j = 0; j < p; j++) {
        sum s = {0};
        for (int64_t row = 0; row < rows; row++)
            add_product(t, &s, dz[gru && row >= 2 * n ? row + n : row],
                        got(t, MICA_RNN_W, q->r.offset + row * p + j));
        q->dh[j] = add(t, total(t, &s), gru ? q->direct[j] : exactly(0));
    }
}

/* Through the projection; dz: of h. */
static void go_inside(sequence *q, number *dz)
{
    const truth *t = q->t;
    const int64_t n = t->s.hidden;
    for (int64_t p = 0; p < t->d->projection; p++) dz[p] = q->dh[p];
    for (int64_t j = 0; j < n; j++) {
        sum s = {0};
        for (int64_t p = 0; p < t->d->projection; p++)
            add_product(t, &s, rounded(t, dz[p]), got(t, MICA_RNN_W, q->last.offset + p * n + j));
        q->wide[j] = t->d->projection ? total(t, &s) : q->dh[j];
    }
}

static void do_step(sequence *q, int64_t step, const number *dy)
{
    const truth *t = q->t;
    const int64_t n = t->s.hidden, p = t->s.out, width = rnn_slope_row(t->d);
    number *dz = dz_at(t, q->dz, q->side, step, q->b);
    for (int64_t j = 0; j < p; j++) {
        const int64_t at = q->side * p + j, *s = t->v[MICA_RNN_Y].t.strides;
        const number more = dy ? dy[(step * t->s.batch + q->b) * t->s.sides * p + at]
                               : got(t, MICA_RNN_Y, step * s[0] + q->b * s[1] + at * s[2]);
        q->dh[j] = add(t, q->dh[j], more);
    }
    go_inside(q, dz + rnn_slopes(t->d) * n);
    for (int64_t j = 0; j < n; j++) {
        if (t->d->cell == MICA_RNN_CELL_LSTM)
            lstm_unit(q, step, j, dz);
        else if (t->d->cell == MICA_RNN_CELL_GRU)
            gru_unit(q, step, j, dz);
        else
            plain_unit(q, step, j, dz);
    }
    if (t->d->reset_before) reset_units(q, step, dz);
    for (int64_t i = 0; i < width; i++) {
        const int64_t row = row_at(t, q->layer, q->side, step, q->b);
        show(t, MICA_RNN_DZ, row * width + i, dz[i]);
        dz[i] = rounded(t, dz[i]);
    }
    go_back(q, dz);
}

static int64_t outer_at(const sequence *q, int arg, int64_t j)
{
    const int64_t *s = q->t->v[arg].t.strides;
    return (q->layer * q->t->s.sides + q->side) * s[0] + q->b * s[1] + j * s[2];
}

static void do_sequence(sequence *q, const number *dy)
{
    const truth *t = q->t;
    const mica_view *lengths = &t->v[MICA_RNN_LENGTHS];
    const int64_t n = t->s.hidden, p = t->s.out, width = rnn_slope_row(t->d);
    double length = (double)t->s.steps;
    if (lengths->data)
        length = fmin(fmax(mica_get(lengths, q->b * lengths->t.strides[0]), 0), length);
    for (int64_t j = 0; j < p; j++) q->dh[j] = got(t, MICA_RNN_HY, outer_at(q, MICA_RNN_HY, j));
    for (int64_t j = 0; j < n; j++) q->dc[j] = got(t, MICA_RNN_CY, outer_at(q, MICA_RNN_CY, j));
    for (int64_t step = (int64_t)length; step < t->s.steps; step++)
        for (int64_t i = 0; i < width; i++) {
            dz_at(t, q->dz, q->side, step, q->b)[i] = exactly(0);
            show(t, MICA_RNN_DZ, row_at(t, q->layer, q->side, step, q->b) * width + i, exactly(0));
        }
    for (int64_t k = 0; k < (int64_t)length; k++)
        do_step(q, q->side ? k : (int64_t)length - 1 - k, dy);
    for (int64_t j = 0; t->v[MICA_RNN_HX].data && j < p; j++)
        show(t, MICA_RNN_HX, outer_at(q, MICA_RNN_HX, j), q->dh[j]);
    for (int64_t j = 0; t->v[MICA_RNN_CX].data && j < n; j++)
        show(t, MICA_RNN_CX, outer_at(q, MICA_RNN_CX, j), q->dc[j]);
}

static number skipped(const truth *t, int64_t step, int64_t b, int64_t i, number *dz)
{
    sum s = {0};
    for (int64_t side = 0; side < t->s.sides; side++)
        for (int64_t g = 0; g < t->s.gates; g++)
            add_product(t, &s, dz_at(t, dz, side, step, b)[g * t->s.hidden + i], exactly(1));
    return total(t, &s);
}

/* The gradient of an input of a step: dz W of all directions. */
static number input(const truth *t, int64_t layer, int64_t step, int64_t b, int64_t i, number *dz)
{
    number all = exactly(0);
    if (!layer && t->d->skip_input) return skipped(t, step, b, i, dz);
    for (int64_t side = 0; side < t->s.sides; side++) {
        const mica_rnn_matrix w = mica_rnn_weight(t->d, layer, side, MICA_RNN_PART_W);
        const number *row = dz_at(t, dz, side, step, b);
        sum s = {0};
        for (int64_t k = 0; k < w.rows; k++)
            add_product(t, &s, row[k], got(t, MICA_RNN_W, w.offset + k * w.cols + i));
        all = side ? add(t, all, total(t, &s)) : total(t, &s);
    }
    return all;
}

static void do_inputs(const truth *t, int64_t layer, number *dz, number *dx)
{
    const int64_t rows = t->s.steps * t->s.batch, *by = t->v[MICA_RNN_X].t.strides;
    const int64_t cols = layer ? t->s.sides * t->s.out : t->s.inputs;
#pragma omp parallel for num_threads(mica_cpu_threads())
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < cols; i++) {
            const int64_t step = row / t->s.batch, b = row % t->s.batch;
            const number n = input(t, layer, step, b, i, dz);
            if (layer)
                dx[row * cols + i] = rnn_dropped(t, layer - 1, row * cols + i, rounded(t, n));
            else
                show(t, MICA_RNN_X, step * by[0] + b * by[1] + i * by[2], n);
        }
}

void rnn_reference_slopes(truth *t)
{
    const int64_t rows = t->s.sides * t->s.batch, steps = rows * t->s.steps;
    const int64_t most = t->s.out > t->s.hidden ? t->s.out : t->s.hidden;
    const int64_t slopes = steps * rnn_slope_row(t->d), inputs = steps * t->s.out;
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    number *owned, *memory = rnn_take(t, slopes + inputs + 4 * rows * most, &owned);
    if (!memory) return;
    number *dz = memory, *dx = dz + slopes, *own = dx + inputs;
    for (int64_t layer = t->s.layers - 1; layer >= 0; layer--) {
        const number *dy = layer == t->s.layers - 1 ? NULL : dx;
#pragma omp parallel for num_threads(mica_cpu_threads())
        for (int64_t i = 0; i < rows; i++) {
            number *m = own + 4 * most * i;
            sequence q = {.t = t, .layer = layer, .side = i / t->s.batch, .b = i % t->s.batch};
            q.r = mica_rnn_weight(t->d, layer, q.side, MICA_RNN_PART_R);
            q.last = mica_rnn_weight(t->d, layer, q.side, MICA_RNN_PART_S);
            q.dh = m, q.dc = m + most, q.direct = m + 2 * most, q.wide = m + 3 * most, q.dz = dz;
            do_sequence(&q, dy);
        }
        do_inputs(t, layer, dz, dx);
    }
    mica_release(owned);
}

/* ---- weights ---- */

/* What column i of row `row` of a part is multiplied by in a step. */
static number factor(const truth *t, int64_t layer, int64_t side, mica_rnn_part part, int64_t row,
                     int64_t step, int64_t b, int64_t i)
{
    const int64_t *by = t->v[MICA_RNN_X].t.strides, n = t->s.hidden, p = t->s.out;
    const bool inner =
        part == MICA_RNN_PART_S || (part == MICA_RNN_PART_R && t->d->reset_before && row >= 2 * n);
    if (part == MICA_RNN_PART_B || part == MICA_RNN_PART_BR) return exactly(1);
    if (inner) return got(t, MICA_RNN_INNER, row_at(t, layer, side, step, b) * n + i);
    if (part == MICA_RNN_PART_W && layer == 0)
        return got(t, MICA_RNN_X, step * by[0] + b * by[1] + i * by[2]);
    sequence q = {.t = t, .layer = layer, .side = side, .b = b};
    if (part == MICA_RNN_PART_R) return got(t, MICA_RNN_STATES, state_at(&q, p, step, 0, i));
    q.layer--, q.side = i / p;
    return rnn_dropped(t, layer - 1, (step * t->s.batch + b) * t->s.sides * p + i,
                       got(t, MICA_RNN_STATES, state_at(&q, p, step, 1, i % p)));
}

/* The column of dz that belongs to a row of a part. */
static int64_t column(const truth *t, mica_rnn_part part, int64_t row)
{
    const int64_t n = t->s.hidden;
    const bool state = part == MICA_RNN_PART_R || part == MICA_RNN_PART_BR;
    if (part == MICA_RNN_PART_S) return rnn_slopes(t->d) * n + row;
    return state && row >= 2 * n && rnn_slopes(t->d) > t->s.gates ? row + n : row;
}

static void show_gradient(const truth *t, int arg, int64_t to, const sum *s)
{
    number n = total(t, s);
    if (t->beta != 0) {
        const double old = t->beta * mica_get(&t->v[arg], to);
        n = (number){n.v + old, n.error + t->growth * fabs(old)};
    }
    show(t, arg, to, n);
}

static void do_part(const truth *t, int64_t layer, int64_t side, mica_rnn_part part)
{
    const mica_rnn_matrix m = mica_rnn_weight(t->d, layer, side, part);
    const int64_t width = rnn_slope_row(t->d);
#pragma omp parallel for num_threads(mica_cpu_threads())
    for (int64_t row = 0; row < m.rows; row++)
        for (int64_t i = 0; i < m.cols; i++) {
            sum s = {0};
            for (int64_t k = 0; k < t->s.steps * t->s.batch; k++) {
                const int64_t step = k / t->s.batch, b = k % t->s.batch;
                const int64_t at = row_at(t, layer, side, step, b) * width + column(t, part, row);
                add_product(t, &s, got(t, MICA_RNN_DZ, at),
                            factor(t, layer, side, part, row, step, b, i));
            }
            show_gradient(t, MICA_RNN_W, m.offset + row * m.cols + i, &s);
        }
}

/* Sums of dz of i, o and f times the c that they see. */
static void do_peepholes(const truth *t, int64_t layer, int64_t side)
{
    static const int gates[] = {0, 3, 1};
    const int64_t n = t->s.hidden, width = rnn_slope_row(t->d);
    if (!t->v[MICA_RNN_PEEPHOLES].data) return;
    for (int p = 0; p < 3; p++)
        for (int64_t j = 0; j < n; j++) {
            sum s = {0};
            for (int64_t k = 0; k < t->s.steps * t->s.batch; k++) {
                const sequence q = {.t = t, .layer = layer, .side = side, .b = k % t->s.batch};
                const int64_t step = k / t->s.batch;
                const int64_t row = row_at(t, layer, side, step, q.b);
                add_product(t, &s, got(t, MICA_RNN_DZ, row * width + gates[p] * n + j),
                            got(t, MICA_RNN_CELLS, state_at(&q, n, step, p == 1, j)));
            }
            show_gradient(t, MICA_RNN_PEEPHOLES, peephole_at(t, layer, side, p, j), &s);
        }
}

void rnn_reference_weights(truth *t)
{
    for (int64_t layer = 0; layer < t->s.layers; layer++)
        for (int64_t side = 0; side < t->s.sides; side++) {
            for (int part = MICA_RNN_PART_W; part <= MICA_RNN_PART_S; part++)
                do_part(t, layer, side, (mica_rnn_part)part);
            do_peepholes(t, layer, side);
        }
}
