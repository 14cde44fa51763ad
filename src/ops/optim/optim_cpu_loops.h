/* SPDX-License-Identifier: Apache-2.0
 * The CPU engine in the arithmetic type `real`. optim_cpu_f32.c and optim_cpu_f64.c include it with
 *     real, real_type (its dtype), root, load_run, store_run
 * defined. Runs of `real` are stepped where they lie, others in a buffer. */
#include "ops/optim/optim_cpu.h"

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

typedef struct work {
    const optim_cpu_state *s;
    const optim_piece *piece;
    void *const *args;
} work;

static bool is_direct(const work *w, int arg)
{
    return w->s->types[arg] == real_type && w->piece->stride[arg] == 1;
}

/* Where argument `arg` can be worked on: NULL if there is none. */
static real *fetch(const work *w, int arg, real *buffer)
{
    if (w->s->at[arg] < 0) return NULL;
    const optim_piece *p = w->piece;
    if (is_direct(w, arg)) return (real *)w->args[arg] + p->at[arg];
    load_run(w->s->types[arg], w->args[arg], p->at[arg], p->stride[arg], buffer, p->n);
    return buffer;
}

static void put(const work *w, int arg, const real *values)
{
    if (w->s->at[arg] < 0 || is_direct(w, arg)) return;
    const optim_piece *p = w->piece;
    store_run(w->s->types[arg], w->args[arg], p->at[arg], p->stride[arg], values, p->n);
}

static void step_piece(const work *w, const mica_optim_numbers *n)
{
    const numbers k = {(real)n->grad_scale, (real)n->decay,   (real)n->keep_p,     (real)n->rate,
                       (real)n->keep_m,     (real)n->take_g,  (real)n->ahead_g,    (real)n->ahead_m,
                       (real)n->keep_v,     (real)n->take_g2, (real)n->root_scale, (real)n->eps};
    real buffers[4][OPTIM_PIECE];
    bool has_master = w->s->at[MICA_OPTIM_MASTER] >= 0;
    int stepped = has_master ? MICA_OPTIM_MASTER : MICA_OPTIM_P;
    real *p = fetch(w, stepped, buffers[0]), *grad = fetch(w, MICA_OPTIM_GRAD, buffers[1]);
    real *m = fetch(w, MICA_OPTIM_M, buffers[2]), *v = fetch(w, MICA_OPTIM_V, buffers[3]);
    if (w->s->adam)
        step_adam(&k, p, grad, m, v, w->piece->n);
    else if (m)
        step_momentum(&k, p, grad, m, w->piece->n);
    else
        step_plain(&k, p, grad, w->piece->n);
    put(w, MICA_OPTIM_M, m);
    put(w, MICA_OPTIM_V, v);
    put(w, stepped, p);
    if (!has_master) return;
    const optim_piece *at = w->piece;
    /* p is the rounding of what the master holds, also where that was rounded itself. */
    if (p == buffers[0])
        load_run(w->s->types[stepped], w->args[stepped], at->at[stepped], at->stride[stepped], p,
                 at->n);
    store_run(w->s->types[MICA_OPTIM_P], w->args[MICA_OPTIM_P], at->at[MICA_OPTIM_P],
              at->stride[MICA_OPTIM_P], p, at->n);
}
