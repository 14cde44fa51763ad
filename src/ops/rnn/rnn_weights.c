/* SPDX-License-Identifier: Apache-2.0
 * Gradients of weights: products of dz with what W and R were multiplied by, over all steps and
 * sequences at once, and sums of dz for the biases, which are products with a row of ones; for
 * peepholes sums of dz times c. */
#include "mica/reduce.h"
#include "ops/compose/compose.h"
#include "ops/rnn/rnn_parts.h"

typedef struct weights {
    const mica_rnn_desc *d;
    rnn_sizes s;
    int64_t rows, row; /* of dz: how many, and their distance */
    mica_memory x, ones;
    mica_tensor x_rows; /* as a matrix */
    mica_compose list;
} weights;

static int64_t bytes_at(const weights *w, int64_t elements)
{
    return elements * (mica_dtype_bits(w->s.type) / 8);
}

static mica_memory inside(const weights *w, int arg, int64_t elements)
{
    mica_memory m = mica_compose_arg(arg);
    m.at = bytes_at(w, elements);
    return m;
}

/* Into the gradient: to what was there where the run says so. */
static void product(weights *w, const mica_gemm_desc *g, mica_memory a, mica_memory b,
                    mica_memory c)
{
    mica_compose_step(&w->list, "gemm", g, sizeof *g, NULL);
    mica_compose_bind(&w->list, MICA_GEMM_A, a);
    mica_compose_bind(&w->list, MICA_GEMM_B, b);
    mica_compose_bind(&w->list, MICA_GEMM_C, c);
    if (c.arg == MICA_RNN_W) mica_compose_scale(&w->list);
}

/* Columns of dz of a direction of a layer, counted from `column` on. */
static mica_memory dz_of(const weights *w, int64_t index, int64_t column)
{
    return inside(w, MICA_RNN_DZ, index * w->rows * w->row + column);
}

/* To rows of a matrix of the gradient, `columns` of its `cols` from `to` on: dz^T b. */
static void add_matrix(weights *w, mica_memory dz, int64_t count, const mica_tensor *b,
                       mica_memory from, int64_t to, int64_t cols)
{
    const mica_gemm_desc g = {.a = matrix(w->s.type, count, w->rows, 1, w->row),
                              .b = *b,
                              .c = matrix(w->s.type, count, b->dims[1], cols, 1),
                              .compute = w->d->compute};
    if (count > 0 && b->dims[1] > 0) product(w, &g, dz, from, inside(w, MICA_RNN_W, to));
}

static void add_bias(weights *w, mica_memory dz, int64_t count, int64_t to)
{
    const mica_gemm_desc g = {.a = matrix(w->s.type, 1, w->rows, w->rows, 1),
                              .b = matrix(w->s.type, w->rows, count, w->row, 1),
                              .c = matrix(w->s.type, 1, count, count, 1)};
    product(w, &g, w->ones, dz, inside(w, MICA_RNN_W, to));
}

/* States of layer and direction, before (0) or after (1) each step. */
static mica_memory states_at(const weights *w, int64_t index, int64_t side, int after)
{
    const int64_t each = w->s.batch * w->s.out, first = side ? 1 - after : after;
    return inside(w, MICA_RNN_STATES, (index * (w->s.steps + 1) + first) * each);
}

/* Rows of R from `row` on, by columns of dz from `column` on: all but n's of a gru, and those,
 * which lie behind n where the reset is behind the product. */
static void add_rows(weights *w, int64_t layer, int64_t side, int64_t row, int64_t rows,
                     int64_t column, mica_memory factor)
{
    const int64_t p = w->s.out, index = layer * w->s.sides + side;
    const mica_rnn_matrix r = mica_rnn_weight(w->d, layer, side, MICA_RNN_PART_R);
    const mica_rnn_matrix bias = mica_rnn_weight(w->d, layer, side, MICA_RNN_PART_BR);
    const mica_tensor b = matrix(w->s.type, w->rows, p, p, 1);
    add_matrix(w, dz_of(w, index, column), rows, &b, factor, r.offset + row * p, p);
    if (bias.rows) add_bias(w, dz_of(w, index, column), rows, bias.offset + row);
}

static void add_states(weights *w, int64_t layer, int64_t side)
{
    const int64_t h = w->s.hidden, index = layer * w->s.sides + side;
    const bool gru = w->d->cell == MICA_RNN_CELL_GRU;
    const mica_memory before = states_at(w, index, side, 0);
    const mica_memory inner = inside(w, MICA_RNN_INNER, index * w->rows * h);
    add_rows(w, layer, side, 0, (gru ? 2 : w->s.gates) * h, 0, before);
    if (gru)
        add_rows(w, layer, side, 2 * h, h, (rnn_slopes(w->d) - 1) * h,
                 w->d->reset_before ? inner : before);
    if (!w->d->projection) return;
    const mica_rnn_matrix last = mica_rnn_weight(w->d, layer, side, MICA_RNN_PART_S);
    const mica_tensor b = matrix(w->s.type, w->rows, h, h, 1);
    add_matrix(w, dz_of(w, index, rnn_slopes(w->d) * h), last.rows, &b, inner, last.offset, h);
}

/* What the next layer took of a direction. */
static mica_memory taken(weights *w, int64_t layer, int64_t side)
{
    const int64_t p = w->s.out;
    const mica_memory states = states_at(w, layer * w->s.sides + side, side, 1);
    if (!rnn_drops(w->d) || w->rows == 0) return states;
    const mica_dropout_desc t = rnn_dropout(w->d, layer, side * p, p, false);
    const mica_memory dropped = mica_compose_temporary(&w->list, bytes_of(w->s.type, w->rows * p));
    mica_compose_step(&w->list, "dropout", &t, sizeof t, NULL);
    mica_compose_bind(&w->list, MICA_DROPOUT_X, states);
    mica_compose_bind(&w->list, MICA_DROPOUT_Y, dropped);
    mica_compose_bind(&w->list, MICA_DROPOUT_RNG, mica_compose_arg(MICA_RNN_RNG));
    return dropped;
}

static void add_inputs(weights *w, int64_t layer, int64_t side)
{
    const int64_t p = w->s.out, sides = w->s.sides, index = layer * sides + side;
    const mica_rnn_matrix m = mica_rnn_weight(w->d, layer, side, MICA_RNN_PART_W);
    const mica_rnn_matrix bias = mica_rnn_weight(w->d, layer, side, MICA_RNN_PART_B);
    const mica_tensor b = matrix(w->s.type, w->rows, p, p, 1);
    if (bias.rows) add_bias(w, dz_of(w, index, 0), m.rows, bias.offset);
    if (layer == 0 && !w->d->skip_input)
        add_matrix(w, dz_of(w, index, 0), m.rows, &w->x_rows, w->x, m.offset, m.cols);
    for (int64_t below = 0; layer > 0 && below < sides; below++)
        add_matrix(w, dz_of(w, index, 0), m.rows, &b, taken(w, layer - 1, below),
                   m.offset + below * p, m.cols);
}

/* A row of ones: nothing summed up, and clipped to from 1 to 1. */
static void make_ones(weights *w)
{
    w->ones = mica_compose_temporary(&w->list, bytes_of(w->s.type, w->rows));
    if (w->rows == 0) return;
    const mica_gemm_desc g = {.a = matrix(w->s.type, 1, 0, 1, 1),
                              .b = matrix(w->s.type, 0, w->rows, w->rows, 1),
                              .c = matrix(w->s.type, 1, w->rows, w->rows, 1),
                              .epilogue = {MICA_STEP_ACT + MICA_ACT_CLIP},
                              .act_a = 1,
                              .act_b = 1};
    product(w, &g, w->ones, w->ones, w->ones);
}

/* x as the rows of a matrix in the order of dz; a copy where it lies otherwise. */
static void find_rows(weights *w)
{
    const mica_tensor *x = &w->d->x;
    const int64_t *by = x->strides;
    const bool fit = w->s.batch == 1 || w->s.steps == 1 || by[0] == w->s.batch * by[1];
    w->x = mica_compose_arg(MICA_RNN_X);
    w->x_rows = matrix(w->s.type, w->rows, w->s.inputs, w->s.batch == 1 ? by[0] : by[1], by[2]);
    if (fit || mica_tensor_count(x) == 0 || w->d->skip_input) return;
    const mica_transform_desc t = {.x = *x, .y = mica_tensor_packed(x->dtype, 3, x->dims)};
    w->x = mica_compose_temporary(&w->list, bytes_of(x->dtype, mica_tensor_count(x)));
    w->x_rows = matrix(w->s.type, w->rows, w->s.inputs, w->s.inputs, 1);
    mica_compose_step(&w->list, "transform", &t, sizeof t, NULL);
    mica_compose_bind(&w->list, MICA_TRANSFORM_X, mica_compose_arg(MICA_RNN_X));
    mica_compose_bind(&w->list, MICA_TRANSFORM_Y, w->x);
}

/* dz of i, o and f times the c that they see, summed up over steps and sequences; then all of them
 * into the gradient, to what was there where the run says so. */
static void add_peepholes(weights *w)
{
    static const int gates[] = {0, 3, 1};
    const int64_t h = w->s.hidden, sides = w->s.sides, each = w->s.batch * h;
    const mica_tensor sums = mica_tensor_packed(w->s.acc, 3, w->d->peepholes.dims);
    const mica_memory to =
        mica_compose_temporary(&w->list, bytes_of(w->s.acc, mica_tensor_count(&sums)));
    for (int64_t i = 0; i < 3 * sides * w->s.layers; i++) {
        const int64_t index = i / 3, p = i % 3;
        const mica_reduce_desc t = {.map = "x0*x1",
                                    .x = matrix(w->s.type, w->rows, h, w->row, 1),
                                    .x1 = matrix(w->s.acc, w->rows, h, h, 1),
                                    .y = mica_tensor_packed(w->s.acc, 1, &h),
                                    .axes = {MICA_REDUCE_AXIS(0)}};
        const int64_t after = p == 1, first = index % sides ? 1 - after : after;
        mica_memory cells = mica_compose_arg(MICA_RNN_CELLS), y = to;
        cells.at = (int64_t)bytes_of(w->s.acc, (index * (w->s.steps + 1) + first) * each);
        y.at = (int64_t)bytes_of(w->s.acc, i * h);
        mica_compose_step(&w->list, "reduce", &t, sizeof t, NULL);
        mica_compose_bind(&w->list, MICA_REDUCE_X, dz_of(w, index, gates[p] * h));
        mica_compose_bind(&w->list, MICA_REDUCE_X1, cells);
        mica_compose_bind(&w->list, MICA_REDUCE_Y, y);
    }
    const mica_transform_desc t = {.x = sums, .y = w->d->peepholes};
    mica_compose_step(&w->list, "transform", &t, sizeof t, NULL);
    mica_compose_bind(&w->list, MICA_TRANSFORM_X, to);
    mica_compose_bind(&w->list, MICA_TRANSFORM_Y, mica_compose_arg(MICA_RNN_PEEPHOLES));
    mica_compose_scale(&w->list);
}

mica_status rnn_build_weights(mica_plan *plan)
{
    const mica_rnn_desc *d = plan->desc;
    weights w = {.d = d, .s = rnn_sizes_of(d)};
    w.rows = w.s.steps * w.s.batch, w.row = rnn_slope_row(d);
    find_rows(&w);
    if (d->bias != MICA_RNN_BIAS_NONE) make_ones(&w);
    for (int64_t layer = 0; layer < w.s.layers; layer++)
        for (int64_t side = 0; side < w.s.sides; side++) {
            add_inputs(&w, layer, side);
            add_states(&w, layer, side);
        }
    if (mica_tensor_given(&d->peepholes)) add_peepholes(&w);
    return mica_compose_build(plan, &w.list);
}
