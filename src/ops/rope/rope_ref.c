/* SPDX-License-Identifier: Apache-2.0
 * Rotations and appends in plain loops. */
#include "ops/rope/rope.h"
#include "cpu/cpu.h"

#include <math.h>

/* What a rotation reads beside its operand: tables as views, the rest as memory. */
typedef struct truth {
    rope_angles a;
    rope_data data;
    const mica_view *cos, *sin;
} truth;

typedef struct turn {
    double c, s;
} turn;

/* The product of position and frequency is two doubles, of which libm takes one at a time. */
static turn turn_of(const truth *t, double position, int64_t i)
{
    const rope_angles *a = &t->a;
    turn r;
    if (mica_tensor_given(a->cos)) {
        int64_t row = rope_table_row(a, position);
        r.c = mica_get(t->cos, row * a->cos->strides[0] + i * a->cos->strides[1]);
        r.s = mica_get(t->sin, row * a->sin->strides[0] + i * a->sin->strides[1]);
    } else {
        double below = 0, f = mica_tensor_given(a->inv_freq)
                                  ? ((const float *)t->data.inv_freq)[i * a->inv_freq->strides[0]]
                                  : rope_frequency(a, i, &below);
        double high = position * f, low = fma(position, f, -high) + position * below;
        r.c = cos(high) * cos(low) - sin(high) * sin(low);
        r.s = sin(high) * cos(low) + cos(high) * sin(low);
    }
    r.c *= a->factor;
    r.s *= a->backward ? -a->factor : a->factor;
    return r;
}

/* Column c of a row that begins at `from`, after the rotation. */
static double column(const truth *t, const mica_view *x, int64_t from, double position, int64_t c,
                     double *magnitude)
{
    const rope_angles *a = &t->a;
    int64_t step = x->t.strides[3];
    double own = mica_get(x, from + c * step);
    *magnitude = fabs(own);
    if (c >= 2 * a->pairs) return own;
    int64_t i = a->interleaved ? c / 2 : c % a->pairs;
    bool second = a->interleaved ? c % 2 != 0 : c >= a->pairs;
    int64_t other = a->interleaved ? c ^ 1 : second ? c - a->pairs : c + a->pairs;
    double partner = mica_get(x, from + other * step);
    turn r = turn_of(t, position, i);
    *magnitude = fabs(own * r.c) + fabs(partner * r.s);
    return own * r.c + (second ? partner * r.s : -(partner * r.s));
}

static int64_t at(const mica_tensor *t, int64_t outer, int64_t head, int64_t row)
{
    return outer * t->strides[0] + head * t->strides[1] + row * t->strides[2];
}

/* ---- rope ---- */

static void rotate_row(const truth *t, const mica_view *x, const mica_view *y, int64_t b, int64_t s)
{
    rope_row row = rope_row_of(&t->a, &t->data, b, s);
    double position = rope_position(&t->a, &t->data, &row, b, s);
    for (int64_t h = 0; h < x->t.dims[1]; h++) {
        int64_t from = at(&x->t, b, h, s), to = at(&y->t, b, h, s);
        /* Both of a pair are read before either is written: y may be x. */
        for (int64_t c = 0; c < t->a.columns; c++) {
            bool paired = c < 2 * t->a.pairs,
                 first = t->a.interleaved ? c % 2 == 0 : c < t->a.pairs;
            if (paired && !first) continue;
            int64_t other = t->a.interleaved ? c + 1 : c + t->a.pairs;
            double m, m2 = 0, v2 = 0;
            double v = column(t, x, from, position, c, &m);
            if (paired) v2 = column(t, x, from, position, other, &m2);
            mica_put(y, to + c * y->t.strides[3], v, m);
            if (paired) mica_put(y, to + other * y->t.strides[3], v2, m2);
        }
    }
}

static truth truth_of(const rope_angles *a, rope_data data, const mica_view *cos_view,
                      const mica_view *sin_view)
{
    return (truth){*a, data, cos_view, sin_view};
}

void rope_reference(const void *desc, const mica_view *args, const double *scalars)
{
    (void)scalars;
    void *data[MICA_MAX_ARGS] = {0};
    rope_angles a;
    rope_angles_of(desc, &a);
    for (int i = 0; i < mica_op_rope.arg_count; i++) data[i] = args[i].data;
    truth t = truth_of(&a, rope_data_of(data), &args[MICA_ROPE_COS], &args[MICA_ROPE_SIN]);
    bool has_q = mica_tensor_count(&args[MICA_ROPE_Q].t) > 0;
    bool has_k = args[MICA_ROPE_K].data && mica_tensor_count(&args[MICA_ROPE_K].t) > 0;
    int64_t rows = has_q || has_k ? a.batches * a.rows : 0;
#pragma omp parallel for num_threads(mica_cpu_threads())
    for (int64_t r = 0; r < rows; r++) {
        int64_t b = r / a.rows, s = r % a.rows;
        if (has_q) rotate_row(&t, &args[MICA_ROPE_Q], &args[MICA_ROPE_Q_OUT], b, s);
        if (has_k) rotate_row(&t, &args[MICA_ROPE_K], &args[MICA_ROPE_K_OUT], b, s);
    }
}

/* ---- kv_append ---- */

/* e5m2 would overflow to infinity where the others saturate. */
static double saturate(mica_dtype type, double v)
{
    const double most = 57344;
    return type != MICA_E5M2 ? v : v > most ? most : v < -most ? -most : v;
}

static void append_row(const truth *t, const kv_shape *s, const mica_view *args, void *const *data,
                       int side, int64_t b, int64_t r, double position, kv_place place)
{
    const mica_view *x = &args[side ? MICA_KV_APPEND_V : MICA_KV_APPEND_K];
    const mica_view *y = &args[side ? MICA_KV_APPEND_V_CACHE : MICA_KV_APPEND_K_CACHE];
    truth plain = {.a = {.columns = x->t.dims[3]}};
    for (int64_t h = 0; h < s->heads; h++) {
        double scale = kv_scale_of(s, data, side, h);
        int64_t from = at(&x->t, b, h, r), to = at(&y->t, place.outer, h, place.row);
        for (int64_t c = 0; c < x->t.dims[3]; c++) {
            double m, v = column(side ? &plain : t, x, from, position, c, &m);
            v = saturate(s->to[side]->dtype, v / scale);
            mica_put(y, to + c * y->t.strides[3], v, m / fabs(scale));
        }
    }
}

void kv_append_reference(const void *desc, const mica_view *args, const double *scalars)
{
    (void)scalars;
    const mica_kv_append_desc *d = desc;
    void *data[MICA_MAX_ARGS] = {0};
    kv_shape s;
    kv_shape_of(d, &s);
    for (int i = 0; i < mica_op_kv_append.arg_count; i++) data[i] = args[i].data;
    truth t =
        truth_of(&s.angles, kv_data_of(data), &args[MICA_KV_APPEND_COS], &args[MICA_KV_APPEND_SIN]);
    for (int i = 0; i < MICA_KV_APPEND_V_CACHE + 1; i++)
        if (i >= MICA_KV_APPEND_K_CACHE && args[i].mag) {
            int64_t count = mica_tensor_count(&args[i].t);
            for (int64_t e = 0; e < count; e++) args[i].mag[e] = 0;
        }
    bool some[KV_SIDES] = {mica_tensor_count(&d->k) > 0, s.has_v && mica_tensor_count(&d->v) > 0};
    int64_t rows = some[0] || some[1] ? s.angles.batches * s.angles.rows : 0;
    for (int64_t r = 0; r < rows; r++) {
        int64_t b = r / s.angles.rows, i = r % s.angles.rows;
        rope_row row = rope_row_of(&s.angles, &t.data, b, i);
        kv_place place = kv_place_of(d, &s, data, &row);
        if (place.outer < 0) continue;
        double position = rope_position(&s.angles, &t.data, &row, b, i);
        for (int side = 0; side < KV_SIDES; side++)
            if (some[side]) append_row(&t, &s, args, data, side, b, i, position, place);
    }
}
