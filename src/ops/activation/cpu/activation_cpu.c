/* SPDX-License-Identifier: Apache-2.0
 * Engine "cpu": pieces of a row through f32 (f64 for f64) buffers that stay in the first-level
 * cache, rows shared out to threads. Any strides and types, no workspace. Memory-bound: pieces are
 * so short that the memory works on the next ones while exp, tanh or erf of this one are formed. */
#include "ops/activation/activation.h"
#include "ops/shared/cpu/activation_f32.h"
#include "ops/shared/cpu/convert.h"
#include "ops/shared/layout.h"
#include "cpu/cpu.h"
#include "cpu/stream.h"

#include <omp.h>
#include <string.h>

enum { PIECE = 256 };

typedef struct state {
    mica_layout layout; /* of x, y (bwd: dy), dx */
    int64_t gate[3];
    int args[3];
    mica_dtype types[3];
    double act_a, act_b;
    mica_act act;
    bool backward, gated, f64, past_cache;
    bool clipped; /* forward, relu of 16-bit floats of one type */
    int64_t length, pieces_per_row, pieces;
    double bytes;
} state;

/* ---- pieces ---- */

typedef struct piece {
    int64_t at[3], stride[3], n; /* offsets and strides in elements */
    int64_t left;                /* elements of the row from its first on */
} piece;

MICA_CLONES
static void multiply(const float *v, const float *by, float *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++) out[i] = v[i] * by[i];
}

MICA_CLONES
static void scale_and_add(float *v, float alpha, const float *old, float beta, int64_t n)
{
    for (int64_t i = 0; i < n; i++) v[i] = alpha * v[i] + beta * old[i];
}

/* out = alpha v + beta out */
static void put(const state *s, int t, void *out, int64_t at, int64_t stride, float *v, int64_t n,
                float alpha, float beta)
{
    MICA_ALIGNED float old[PIECE];
    if (beta != 0)
        mica_to_f32(s->types[t], out, at, stride, old, n);
    else if (alpha != 1)
        memset(old, 0, (size_t)n * sizeof *old);
    if (alpha != 1 || beta != 0) scale_and_add(v, alpha, old, beta, n);
    if (s->past_cache && stride == 1)
        mica_stream_f32(s->types[t], out, at, v, n);
    else
        mica_from_f32(s->types[t], out, at, stride, v, n);
}

static const float *fetch(const state *s, int t, const void *data, const piece *p, int64_t more,
                          float *buffer)
{
    int64_t bytes = mica_dtype_bits(s->types[t]) / 8;
    const char *here = (const char *)data + (p->at[t] + more) * bytes;
    if (p->stride[t] == 1) mica_fetch_ahead(here + MICA_AHEAD, p->n * bytes);
    return mica_run_f32(s->types[t], data, p->at[t] + more, p->stride[t], buffer, p->n);
}

/* Negative numbers become zero; numbers, for NaN has a sign, too: up to infinity's bits. */
MICA_CLONES
static void clip_negative(const uint16_t *restrict x, uint16_t *restrict y, int64_t n,
                          uint16_t infinity)
{
    for (int64_t i = 0; i < n; i++) {
        uint16_t v = x[i];
        y[i] = v > 0x8000 && v <= (0x8000 | infinity) ? 0 : v;
    }
}

/* relu of bf16 or f16, whose results need no rounding: on the bits. */
static void clip_piece(const state *s, const piece *p, void *const *data)
{
    MICA_ALIGNED uint16_t block[PIECE];
    const uint16_t *x = (const uint16_t *)data[0] + p->at[0];
    uint16_t *y = (uint16_t *)data[1] + p->at[1];
    mica_fetch_ahead((const char *)x + MICA_AHEAD, p->n * (int64_t)sizeof *x);
    clip_negative(x, block, p->n, s->types[0] == MICA_BF16 ? 0x7f80 : 0x7c00);
    if (s->past_cache)
        mica_stream_copy(y, block, (size_t)p->n * sizeof *y);
    else
        memcpy(y, block, (size_t)p->n * sizeof *y);
}

static void forward_f32(const state *s, const piece *p, void *const *data, float alpha, float beta)
{
    MICA_ALIGNED float buffer[PIECE], y[PIECE];
    const float *v = fetch(s, 0, data[0], p, 0, buffer);
    mica_act_values_f32(s->act, v, y, p->n, (float)s->act_a, (float)s->act_b);
    if (s->gated) multiply(y, fetch(s, 0, data[0], p, s->gate[0], buffer), y, p->n);
    put(s, 1, data[1], p->at[1], p->stride[1], y, p->n, alpha, beta);
}

static void backward_f32(const state *s, const piece *p, void *const *data, float alpha, float beta)
{
    MICA_ALIGNED float buffers[3][PIECE], out[PIECE], other[PIECE];
    float a = (float)s->act_a, b = (float)s->act_b;
    const float *v = fetch(s, 0, data[0], p, 0, buffers[0]);
    const float *g = fetch(s, 1, data[1], p, 0, buffers[1]);
    mica_act_slopes_f32(s->act, v, out, p->n, a, b);
    multiply(out, g, out, p->n);
    if (s->gated) {
        multiply(out, fetch(s, 0, data[0], p, s->gate[0], buffers[2]), out, p->n);
        mica_act_values_f32(s->act, v, other, p->n, a, b);
        multiply(other, g, other, p->n);
        put(s, 2, data[2], p->at[2] + s->gate[2], p->stride[2], other, p->n, alpha, beta);
    }
    put(s, 2, data[2], p->at[2], p->stride[2], out, p->n, alpha, beta);
}

/* Anything with an f64 in it: element by element in double. */
static void piece_f64(const state *s, const piece *p, void *const *data, double alpha, double beta)
{
    int to = s->backward ? 2 : 1;
    mica_load_fn load_x = mica_dtype_load(s->types[0]), load_old = mica_dtype_load(s->types[to]);
    mica_load_fn load_g = mica_dtype_load(s->types[1]);
    mica_store_fn store = mica_dtype_store(s->types[to]);
    for (int64_t i = 0; i < p->n; i++) {
        int64_t x = p->at[0] + i * p->stride[0], out = p->at[to] + i * p->stride[to];
        double v = load_x(data[0], x), gate = s->gated ? load_x(data[0], x + s->gate[0]) : 1;
        double g = s->backward ? load_g(data[1], p->at[1] + i * p->stride[1]) : 1;
        double f = s->backward ? mica_act_slope(s->act, v, s->act_a, s->act_b)
                               : mica_act_value(s->act, v, s->act_a, s->act_b);
        double old = beta != 0 ? beta * load_old(data[to], out) : 0;
        store(data[to], out, alpha * g * gate * f + old);
        if (!s->backward || !s->gated) continue;
        out += s->gate[2];
        old = beta != 0 ? beta * load_old(data[to], out) : 0;
        store(data[to], out, alpha * g * mica_act_value(s->act, v, s->act_a, s->act_b) + old);
    }
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static piece find_piece(const state *s, int64_t index)
{
    const mica_layout *l = &s->layout;
    int last = l->rank - 1;
    int64_t row = index / s->pieces_per_row, start = index % s->pieces_per_row * PIECE;
    piece p = {.left = s->length - start};
    p.n = least(p.left, PIECE);
    for (int t = 0; t < 3; t++) {
        p.stride[t] = l->rank ? l->strides[t][last] : 1;
        p.at[t] = start * p.stride[t];
    }
    for (int d = last - 1; d >= 0; d--) {
        int64_t i = row % l->dims[d];
        row /= l->dims[d];
        for (int t = 0; t < 3; t++) p.at[t] += i * l->strides[t][d];
    }
    return p;
}

static void do_piece(const state *s, const piece *p, void *const *data, double alpha, double beta)
{
    if (s->f64)
        piece_f64(s, p, data, alpha, beta);
    else if (s->clipped && alpha == 1 && beta == 0 && p->stride[0] == 1 && p->stride[1] == 1)
        clip_piece(s, p, data);
    else if (s->backward)
        backward_f32(s, p, data, (float)alpha, (float)beta);
    else
        forward_f32(s, p, data, (float)alpha, (float)beta);
}

/* Pieces from `from` to `to`, with divisions once a row. */
static void do_pieces(const state *s, int64_t from, int64_t to, void *const *data, double alpha,
                      double beta)
{
    piece p = {0};
    for (int64_t i = from; i < to; i++) {
        if (p.left == 0) p = find_piece(s, i);
        do_piece(s, &p, data, alpha, beta);
        for (int t = 0; t < 3; t++) p.at[t] += p.n * p.stride[t];
        p.left -= p.n;
        p.n = least(p.left, PIECE);
    }
}

/* ---- engine ---- */

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)desc, (void)device, (void)why;
    return MICA_OK;
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    (void)config;
    return 1.5 * mica_roofline_ms(&mica_op_activation, desc, device) + 2e-4;
}

static mica_status build(mica_plan *plan)
{
    const mica_activation_desc *d = plan->desc;
    mica_activation_parts parts;
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    mica_activation_split(d, &parts);
    const mica_tensor *tensors[] = {&parts.tensors[0], &parts.tensors[1], &parts.tensors[2]};
    mica_layout_make(&s->layout, tensors, parts.count);
    for (int i = 0; i < parts.count; i++) {
        s->gate[i] = parts.gate[i];
        s->args[i] = parts.args[i];
        s->types[i] = parts.tensors[i].dtype;
        s->f64 |= s->types[i] == MICA_F64;
    }
    s->act = d->act;
    s->act_a = d->act_a;
    s->act_b = d->act_b;
    s->backward = parts.count == 3;
    s->gated = d->gated;
    s->clipped = !s->backward && !s->gated && s->act == MICA_ACT_RELU &&
                 s->types[0] == s->types[1] &&
                 (s->types[0] == MICA_BF16 || s->types[0] == MICA_F16);
    s->bytes = mica_op_bytes(plan->op, d);
    s->past_cache = mica_stream_pays(s->bytes, plan->device.cache_bytes);
    s->length = s->layout.rank ? s->layout.dims[s->layout.rank - 1] : 1;
    s->pieces_per_row = (s->length + PIECE - 1) / PIECE;
    s->pieces = s->length ? s->layout.count / s->length * s->pieces_per_row : 0;
    return MICA_OK;
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    double alpha = mica_run_scalar(plan, r, MICA_ACTIVATION_ALPHA);
    double beta = mica_run_scalar(plan, r, MICA_ACTIVATION_BETA);
    void *data[] = {r->args[s->args[0]], r->args[s->args[1]],
                    s->backward ? r->args[s->args[2]] : NULL};
#pragma omp parallel num_threads(mica_cpu_threads_for(s->bytes))
    {
        int64_t threads = omp_get_num_threads(), t = omp_get_thread_num();
        int64_t each = s->pieces / threads, rest = s->pieces % threads;
        int64_t from = t * each + least(t, rest);
        do_pieces(s, from, from + each + (t < rest), data, alpha, beta);
        mica_stream_end();
    }
    return MICA_OK;
}

const mica_engine mica_activation_cpu = {
    .name = "cpu", .accepts = accepts, .predict = predict, .build = build, .run = run};
