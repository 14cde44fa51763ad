/* SPDX-License-Identifier: Apache-2.0
 * Engine "cpu" of speculate: a sequence per thread. Its drafts are decided one by one; of the row
 * at which they end weights are summed by pieces, then once more up to the piece in which the token
 * is. Any strides. */
#include "cpu/cpu.h"
#include "ops/convert/cpu/convert.h"
#include "ops/speculate/speculate.h"
#include "ops/speculate/speculate_body.h"

enum { PIECE = 512 };

typedef struct state {
    mica_speculate_args a;
    double bytes;
} state;

/* A row from which a token is drawn. */
typedef struct work {
    const mica_speculate_desc *d;
    const mica_speculate_args *a;
    int64_t b, i;
    bool rejected; /* q is subtracted */
    float p[PIECE], q[PIECE];
    uint64_t weights[PIECE];
} work;

static mica_status build(mica_plan *plan)
{
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_speculate_args_make(plan->desc, &s->a);
    s->bytes = 16.0 * (double)s->a.batch * (double)s->a.columns;
    return MICA_OK;
}

static int64_t place(mica_speculate_operand o, int64_t b, int64_t i, int64_t c)
{
    return b * o.batch + i * o.position + c * o.column;
}

static float one(mica_dtype type, mica_speculate_operand o, int64_t at)
{
    float v;
    return speculate_probability(*mica_run_f32(type, o.at, at, 1, &v, 1));
}

static bool accepts(const mica_speculate_desc *d, const mica_speculate_args *a, int64_t b,
                    int64_t i)
{
    const int64_t token = speculate_integer(a->drafts, b, i);
    if (token < 0 || token >= a->columns) return false;
    const float p = one(d->p.dtype, a->p, place(a->p, b, i, token));
    const float q = a->q.at ? one(d->q.dtype, a->q, place(a->q, b, i, token)) : 1;
    return speculate_accepts(a, b, i, p, q);
}

MICA_CLONES static uint64_t weigh(const float *p, const float *q, uint64_t *weights, int n)
{
    uint64_t sum = 0;
    for (int k = 0; k < n; k++) {
        weights[k] = speculate_weight(speculate_probability(p[k]), speculate_probability(q[k]));
        sum += weights[k];
    }
    return sum;
}

/* Weights of a piece from column c on; their sum. */
static uint64_t weigh_piece(work *w, int64_t c, int n)
{
    const mica_speculate_args *a = w->a;
    const float *p =
        mica_run_f32(w->d->p.dtype, a->p.at, place(a->p, w->b, w->i, c), a->p.column, w->p, n);
    const float *q = w->q;
    if (w->rejected && a->q.at)
        q = mica_run_f32(w->d->q.dtype, a->q.at, place(a->q, w->b, w->i, c), a->q.column, w->q, n);
    else
        memset(w->q, 0, sizeof w->q);
    if (w->rejected && !a->q.at) {
        const int64_t token = speculate_integer(a->drafts, w->b, w->i);
        if (token >= c && token < c + n) w->q[token - c] = 1;
    }
    return weigh(p, q, w->weights, n);
}

static int piece_at(const work *w, int64_t c)
{
    return w->a->columns - c < PIECE ? (int)(w->a->columns - c) : PIECE;
}

/* -1 if all weights are 0. */
static int64_t draw(work *w)
{
    uint64_t sum = 0, before = 0;
    for (int64_t c = 0; c < w->a->columns; c += PIECE) sum += weigh_piece(w, c, piece_at(w, c));
    if (sum == 0) {
        if (!w->rejected) return -1;
        w->rejected = false;
        return draw(w);
    }
    const uint64_t target = speculate_target(w->a, w->b, w->i, sum);
    for (int64_t c = 0;; c += PIECE) {
        const uint64_t piece = weigh_piece(w, c, piece_at(w, c));
        if (before + piece < target) {
            before += piece;
            continue;
        }
        int k = 0;
        while ((before += w->weights[k]) < target) k++;
        return c + k;
    }
}

static void put(mica_speculate_operand o, int64_t b, int64_t i, int64_t v)
{
    const int64_t at = b * o.batch + i * o.position;
    if (o.wide)
        ((int64_t *)o.at)[at] = v;
    else
        ((int32_t *)o.at)[at] = (int32_t)v;
}

static void decide(const mica_speculate_desc *d, const mica_speculate_args *a, int64_t b)
{
    const int64_t length = speculate_length(a, b);
    int64_t n = 0, token;
    for (; n < length && accepts(d, a, b, n); n++)
        put(a->tokens, b, n, speculate_integer(a->drafts, b, n));
    if (n == length && a->bonus.at) {
        token = speculate_integer(a->bonus, b, 0);
    } else {
        work w = {.d = d, .a = a, .b = b, .i = n, .rejected = n < length};
        token = draw(&w);
    }
    put(a->tokens, b, n, token);
    for (int64_t i = n + 1; i <= a->drafts_most; i++) put(a->tokens, b, i, -1);
    put(a->accepted, b, 0, n);
}

static mica_status run(const mica_plan *plan, const mica_run *run)
{
    const state *s = plan->state;
    mica_speculate_args a = s->a;
    mica_speculate_args_point(plan->desc, run->args, run->scalars, &a);
    const int threads = mica_cpu_threads_for(s->bytes);
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t b = 0; b < a.batch; b++) decide(plan->desc, &a, b);
    return MICA_OK;
}

const mica_engine mica_speculate_cpu = {
    .name = "cpu", .reached = 0.1, .start_ms = 2e-4, .build = build, .run = run};
