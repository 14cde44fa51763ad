/* SPDX-License-Identifier: Apache-2.0
 * The CPU engine in the arithmetic type `real`. optim_cpu_f32.c and optim_cpu_f64.c include it with
 *     real, real_type (its dtype), root, load_run, store_run
 * defined. Runs of `real` are stepped where they lie, others in a buffer. */
#include "ops/optim/cpu/optim_cpu.h"

#include "cpu/stream.h"

typedef struct numbers {
    real grad_scale, decay, keep_p, rate, keep_m, take_g, ahead_g, ahead_m;
    real keep_v, take_g2, root_scale, eps;
} numbers;

MICA_CLONES
static void step_plain(const numbers *k, real *restrict p, const real *restrict grad, int64_t n)
{
    const numbers c = *k; /* a copy: stores to p cannot change it */
    for (int64_t i = 0; i < n; i++)
        p[i] = c.keep_p * p[i] - c.rate * (c.grad_scale * grad[i] + c.decay * p[i]);
}

MICA_CLONES
static void step_momentum(const numbers *k, real *restrict p, const real *restrict grad,
                          real *restrict m, int64_t n)
{
    const numbers c = *k;
    for (int64_t i = 0; i < n; i++) {
        real g = c.grad_scale * grad[i] + c.decay * p[i];
        /* What lies in m before the first step may be NaN. */
        real old = c.keep_m != 0 ? c.keep_m * m[i] : 0;
        real moment = old + c.take_g * g;
        m[i] = moment;
        p[i] = c.keep_p * p[i] - c.rate * (c.ahead_g * g + c.ahead_m * moment);
    }
}

MICA_CLONES
static void step_adam(const numbers *k, real *restrict p, const real *restrict grad,
                      real *restrict m, real *restrict v, int64_t n)
{
    const numbers c = *k;
    for (int64_t i = 0; i < n; i++) {
        real g = c.grad_scale * grad[i] + c.decay * p[i];
        real moment = c.keep_m * m[i] + c.take_g * g;
        real square = c.keep_v * v[i] + c.take_g2 * (g * g);
        m[i] = moment;
        v[i] = square;
        p[i] = c.keep_p * p[i] - c.rate * (moment / (root(square) * c.root_scale + c.eps));
    }
}

/* What stands upright, with its neighbours in a column of the piece and not in a row, passes
 * through a tile: it is read and written as it lies. */
enum { STEPPED, GRAD, M, V, OPERANDS };

typedef struct work {
    const optim_cpu_state *s;
    const optim_piece *piece;
    void *const *args;
    real *tiles[OPERANDS]; /* NULL: not upright */
} work;

static bool has_master(const work *w)
{
    return w->s->at[MICA_OPTIM_MASTER] >= 0;
}

static int arg_of(const work *w, int operand)
{
    const int args[] = {has_master(w) ? MICA_OPTIM_MASTER : MICA_OPTIM_P, MICA_OPTIM_GRAD,
                        MICA_OPTIM_M, MICA_OPTIM_V};
    return args[operand];
}

/* ---- rows ---- */

static bool is_direct(const work *w, int arg)
{
    return w->s->types[arg] == real_type && w->piece->stride[arg] == 1;
}

static int64_t row_at(const work *w, int arg, int64_t row)
{
    return w->piece->at[arg] + row * w->piece->row_step[arg];
}

/* Where a row of an operand can be worked on: NULL if there is none. */
static real *fetch(const work *w, int operand, int64_t row, real *buffer)
{
    int arg = arg_of(w, operand);
    const optim_piece *p = w->piece;
    if (w->s->at[arg] < 0) return NULL;
    if (w->tiles[operand]) return w->tiles[operand] + row * p->n;
    int64_t at = row_at(w, arg, row);
    if (is_direct(w, arg)) return (real *)w->args[arg] + at;
    if (w->s->tiled < 0 && p->stride[arg] == 1) {
        int64_t bytes = mica_dtype_bits(w->s->types[arg]) / 8;
        mica_fetch_ahead((const char *)w->args[arg] + at * bytes + MICA_AHEAD, p->n * bytes);
    }
    load_run(w->s->types[arg], w->args[arg], at, p->stride[arg], buffer, p->n);
    return buffer;
}

static void put(const work *w, int operand, int64_t row, const real *values)
{
    int arg = arg_of(w, operand);
    const optim_piece *p = w->piece;
    if (w->s->at[arg] < 0 || w->tiles[operand] || is_direct(w, arg)) return;
    store_run(w->s->types[arg], w->args[arg], row_at(w, arg, row), p->stride[arg], values, p->n);
}

/* p is the rounding of what the master holds, also where that was rounded itself. */
static void put_p(const work *w, int64_t row, const real *master)
{
    MICA_ALIGNED real rounded[OPTIM_PIECE], held[OPTIM_PIECE];
    mica_dtype type = w->s->types[MICA_OPTIM_MASTER];
    int64_t n = w->piece->n;
    if (type != real_type) {
        store_run(type, held, 0, 1, master, n);
        load_run(type, held, 0, 1, rounded, n);
        master = rounded;
    }
    store_run(w->s->types[MICA_OPTIM_P], w->args[MICA_OPTIM_P], row_at(w, MICA_OPTIM_P, row),
              w->piece->stride[MICA_OPTIM_P], master, n);
}

static void step_row(const work *w, const numbers *k, int64_t row)
{
    MICA_ALIGNED real buffers[OPERANDS][OPTIM_PIECE];
    int64_t n = w->piece->n;
    real *p = fetch(w, STEPPED, row, buffers[STEPPED]), *grad = fetch(w, GRAD, row, buffers[GRAD]);
    real *m = fetch(w, M, row, buffers[M]), *v = fetch(w, V, row, buffers[V]);
    if (w->s->adam)
        step_adam(k, p, grad, m, v, n);
    else if (m)
        step_momentum(k, p, grad, m, n);
    else
        step_plain(k, p, grad, n);
    put(w, M, row, m);
    put(w, V, row, v);
    put(w, STEPPED, row, p);
    if (has_master(w)) put_p(w, row, p);
}

/* ---- tiles ---- */

static void read_columns(const work *w, int arg, real *tile)
{
    const optim_piece *p = w->piece;
    MICA_ALIGNED real column[OPTIM_ROWS];
    int64_t bytes = mica_dtype_bits(w->s->types[arg]) / 8;
    for (int64_t c = 0; c < p->n; c++)
        mica_fetch_ahead((const char *)w->args[arg] + (p->at[arg] + c * p->stride[arg]) * bytes,
                         p->rows * bytes);
    for (int64_t c = 0; c < p->n; c++) {
        load_run(w->s->types[arg], w->args[arg], p->at[arg] + c * p->stride[arg], 1, column,
                 p->rows);
        for (int64_t r = 0; r < p->rows; r++) tile[r * p->n + c] = column[r];
    }
}

static void write_columns(const work *w, int arg, const real *tile)
{
    const optim_piece *p = w->piece;
    MICA_ALIGNED real column[OPTIM_ROWS];
    for (int64_t c = 0; c < p->n; c++) {
        for (int64_t r = 0; r < p->rows; r++) column[r] = tile[r * p->n + c];
        store_run(w->s->types[arg], w->args[arg], p->at[arg] + c * p->stride[arg], 1, column,
                  p->rows);
    }
}

static void fetch_row_ahead(const work *w, int64_t row)
{
    for (int i = 0; i < OPERANDS; i++) {
        int arg = arg_of(w, i), bytes = mica_dtype_bits(w->s->types[arg]) / 8;
        if (w->s->at[arg] < 0 || w->piece->stride[arg] != 1) continue;
        mica_fetch_ahead((const char *)w->args[arg] + row_at(w, arg, row) * bytes,
                         w->piece->n * bytes);
    }
}

static void step_tile(work *w, const numbers *k)
{
    MICA_ALIGNED real tiles[OPERANDS][OPTIM_ROWS * OPTIM_COLS];
    const optim_piece *p = w->piece;
    for (int i = 0; i < OPERANDS; i++) {
        int arg = arg_of(w, i);
        if (w->s->at[arg] < 0 || p->row_step[arg] != 1 || p->stride[arg] == 1) continue;
        w->tiles[i] = tiles[i];
        read_columns(w, arg, tiles[i]);
    }
    for (int64_t row = 0; row < p->rows; row++) {
        if (row + 1 < p->rows) fetch_row_ahead(w, row + 1);
        step_row(w, k, row);
    }
    for (int i = 0; i < OPERANDS; i++)
        if (w->tiles[i] && i != GRAD) write_columns(w, arg_of(w, i), tiles[i]);
}

static void step_piece(const optim_cpu_state *s, const optim_piece *piece, void *const *args,
                       const mica_optim_numbers *n)
{
    const numbers k = {(real)n->grad_scale, (real)n->decay,   (real)n->keep_p,     (real)n->rate,
                       (real)n->keep_m,     (real)n->take_g,  (real)n->ahead_g,    (real)n->ahead_m,
                       (real)n->keep_v,     (real)n->take_g2, (real)n->root_scale, (real)n->eps};
    work w = {.s = s, .piece = piece, .args = args};
    if (s->tiled >= 0)
        step_tile(&w, &k);
    else
        step_row(&w, &k, 0);
}
