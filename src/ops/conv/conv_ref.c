/* SPDX-License-Identifier: Apache-2.0
 * Convolution, the truth: plain loops in double precision over any strides and types. */
#include "ops/conv/conv.h"

#include "cpu/cpu.h"
#include "ops/shared/integer.h"

#include <math.h>

typedef struct sums {
    double value, magnitude;
} sums;

/* Offset of the image along one axis, or false outside of it. */
static bool image_at(int64_t size, int64_t stride, int64_t at, int64_t *offset)
{
    *offset += at * stride;
    return at >= 0 && at < size;
}

static void add(sums *s, double p, double q)
{
    s->value += p * q;
    s->magnitude += fabs(p * q);
}

/* Which pixel of b feeds pixel `at` of a through a tap: the inverse of q * stride - pad + t *
 * dilation. */
static bool pixel_of(const mica_conv_geometry *g, int axis, int64_t at, int64_t tap, int64_t *q)
{
    int64_t v = at + g->pad[axis] - tap * g->dilation[axis];
    *q = v / g->stride[axis];
    return v >= 0 && v % g->stride[axis] == 0;
}

/* i counts n, channel (over all groups), and the three axes, the last fastest. */
static void split(int64_t i, const long long size[3], int64_t channels, int64_t at[5])
{
    for (int d = 2; d >= 0; d--) at[d + 2] = i % size[d], i /= size[d];
    at[1] = i % channels, at[0] = i / channels;
}

/* In the three sums below, whether a tap (or an output pixel) counts is found once for all channels
 * (or images). */
static sums fwd_at(const mica_conv_geometry *g, const mica_view *a, const mica_view *f,
                   const int64_t at[5])
{
    sums s = {0, 0};
    int64_t group = at[1] / g->k, k = at[1] % g->k;
    for (int64_t t0 = 0; t0 < g->tap[0]; t0++)
        for (int64_t t1 = 0; t1 < g->tap[1]; t1++)
            for (int64_t t2 = 0; t2 < g->tap[2]; t2++) {
                int64_t t[3] = {t0, t1, t2}, ao = at[0] * g->a.n + group * g->a.g;
                int64_t fo = g->f_base + group * g->f.g + k * g->f.n;
                bool inside = true;
                for (int d = 0; d < 3; d++) {
                    int64_t h = at[d + 2] * g->stride[d] - g->pad[d] + t[d] * g->dilation[d];
                    inside = image_at(g->in[d], g->a.s[d], h, &ao) && inside;
                    fo += t[d] * g->f.s[d];
                }
                for (int64_t c = 0; inside && c < g->c; c++)
                    add(&s, mica_get(a, ao + c * g->a.c), mica_get(f, fo + c * g->f.c));
            }
    return s;
}

static sums dgrad_at(const mica_conv_geometry *g, const mica_view *b, const mica_view *f,
                     const int64_t at[5])
{
    sums s = {0, 0};
    int64_t group = at[1] / g->c, c = at[1] % g->c;
    for (int64_t t0 = 0; t0 < g->tap[0]; t0++)
        for (int64_t t1 = 0; t1 < g->tap[1]; t1++)
            for (int64_t t2 = 0; t2 < g->tap[2]; t2++) {
                int64_t t[3] = {t0, t1, t2}, bo = at[0] * g->b.n + group * g->b.g;
                int64_t fo = g->f_base + group * g->f.g + c * g->f.c;
                bool inside = true;
                for (int d = 0; d < 3 && inside; d++) {
                    int64_t q;
                    inside = pixel_of(g, d, at[d + 2], t[d], &q);
                    inside = image_at(g->out[d], g->b.s[d], q, &bo) && inside;
                    fo += t[d] * g->f.s[d];
                }
                for (int64_t k = 0; inside && k < g->k; k++)
                    add(&s, mica_get(b, bo + k * g->b.c), mica_get(f, fo + k * g->f.n));
            }
    return s;
}

/* at: k (over all groups), c, and the three taps. */
static sums wgrad_at(const mica_conv_geometry *g, const mica_view *a, const mica_view *b,
                     const int64_t at[5])
{
    sums s = {0, 0};
    int64_t group = at[0] / g->k, k = at[0] % g->k;
    for (int64_t q0 = 0; q0 < g->out[0]; q0++)
        for (int64_t q1 = 0; q1 < g->out[1]; q1++)
            for (int64_t q2 = 0; q2 < g->out[2]; q2++) {
                int64_t q[3] = {q0, q1, q2};
                int64_t ao = group * g->a.g + at[1] * g->a.c, bo = group * g->b.g + k * g->b.c;
                bool inside = true;
                for (int d = 0; d < 3; d++) {
                    int64_t h = q[d] * g->stride[d] - g->pad[d] + at[d + 2] * g->dilation[d];
                    inside = image_at(g->in[d], g->a.s[d], h, &ao) && inside;
                    bo += q[d] * g->b.s[d];
                }
                for (int64_t n = 0; inside && n < g->n; n++)
                    add(&s, mica_get(a, ao + n * g->a.n), mica_get(b, bo + n * g->b.n));
            }
    return s;
}

/* Offset in the output, and in the residual, of the element that `at` names. */
static int64_t out_offset(int kind, const mica_conv_geometry *g, const mica_conv_strides *s,
                          const int64_t at[5])
{
    /* channels of all groups follow one another: group * g.g + channel * g.c = channel * s.c */
    int64_t o = kind == MICA_CONV_KIND_WGRAD ? g->f_base + at[1] * s->c : at[1] * s->c;
    o += at[0] * s->n;
    for (int d = 0; d < 3; d++) o += at[d + 2] * s->s[d];
    return o;
}

static void merge_max(sums *most, sums s)
{
    if (isnan(s.value) || fabs(s.value) > most->value) most->value = fabs(s.value);
    if (!(s.magnitude <= most->magnitude)) most->magnitude = s.magnitude;
}

/* From alpha * sum + beta * old to y. */
static void finish(const mica_conv_desc *d, const mica_view *args, int64_t i, int64_t channel,
                   int64_t offset, int64_t residual, sums s, sums *most)
{
    mica_epilogue e = mica_conv_epilogue(d);
    const mica_view *scale_y = &args[MICA_CONV_SCALE_Y], *aux = &args[MICA_CONV_AUX];
    int act = mica_epilogue_act(d->epilogue), from[] = {0, act}, to[] = {act, MICA_MAX_STEPS};
    for (int part = 0; part < 2; part++) {
        mica_epilogue_apply_some(&e, from[part], to[part], &args[MICA_CONV_BIAS],
                                 &args[MICA_CONV_SCALE], &args[MICA_CONV_SHIFT],
                                 &args[MICA_CONV_RESIDUAL], channel, residual, &s.value,
                                 &s.magnitude);
        if (part == 0 && aux->data) mica_put(aux, mica_offset(&aux->t, i), s.value, s.magnitude);
    }
    merge_max(most, s);
    if (scale_y->data) {
        double f = mica_get(scale_y, 0);
        s.value *= f;
        s.magnitude *= fabs(f);
    }
    mica_put(&args[MICA_CONV_Y], offset, mica_saturate_e5m2(d->y.dtype, s.value), s.magnitude);
}

/* What y holds where this value is put. */
static double stored(mica_dtype d, double v)
{
    char cell[16];
    mica_dtype_store(d)(cell, 0, v);
    return mica_dtype_load(d)(cell, 0);
}

/* What the sums of a channel may be off by, as multiples of phi, beside the errors of the values: a
 * few values that are rounded to the other neighbour, and the additions, which may be of f32. */
typedef struct slack {
    double flip, additions;
} slack;

static slack slack_of(const mica_conv_desc *d, int64_t count)
{
    mica_contract c;
    mica_op_contract(&mica_op_conv, d, &c);
    double phi = mica_contract_phi(&c), root = 4 * sqrt((double)count);
    double most = (double)count < root ? (double)count : root;
    return (slack){3 * 2 * mica_dtype_unit(d->y.dtype) / phi, most * c.unit / phi};
}

static void channel_stats(const mica_conv_desc *d, const mica_view *args, int64_t channel)
{
    const mica_view *y = &args[MICA_CONV_Y];
    int64_t channels = y->t.dims[1], count = mica_tensor_count(&y->t) / channels;
    int64_t inner = y->t.dims[0] > 0 ? count / y->t.dims[0] : 0;
    sums sum = {0, 0}, square = {0, 0};
    double most = 0, total = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t o = mica_offset(&y->t, (i / inner * channels + channel) * inner + i % inner);
        double v = stored(d->y.dtype, mica_get(y, o)), m = y->mag ? y->mag[o] : 0;
        sum.value += v;
        sum.magnitude += m;
        square.value += v * v;
        square.magnitude += (2 * fabs(v) + 0x1p-8 * m) * m;
        total += fabs(v);
        most = fmax(most, fabs(v));
    }
    slack s = slack_of(d, count);
    sum.magnitude += s.flip * most + s.additions * total;
    square.magnitude += 2 * s.flip * most * most + s.additions * square.value;
    const mica_view *to[] = {&args[MICA_CONV_STAT_SUM], &args[MICA_CONV_STAT_SQUARE]};
    if (to[0]->data) mica_put(to[0], channel * to[0]->t.strides[0], sum.value, sum.magnitude);
    if (to[1]->data) mica_put(to[1], channel * to[1]->t.strides[0], square.value, square.magnitude);
}

void mica_conv_reference(const void *desc, const mica_view *args, const double *scalars)
{
    mica_conv_desc d = *(const mica_conv_desc *)desc;
    /* the views' strides count: results may be packed doubles */
    d.x = args[MICA_CONV_X].t;
    d.w = args[MICA_CONV_W].t;
    d.y = args[MICA_CONV_Y].t;
    if (args[MICA_CONV_RESIDUAL].data) d.residual = args[MICA_CONV_RESIDUAL].t;
    mica_conv_geometry g;
    mica_conv_geometry_make(&d, &g);
    mica_conv_roles r = mica_conv_roles_of(&d);
    const mica_view *a = &args[r.a], *b = &args[r.b], *f = &args[r.f], *out = &args[r.out];
    const mica_conv_strides *os[] = {&g.b, &g.a, &g.f};
    const long long *size = r.kind == MICA_CONV_KIND_FWD     ? g.out
                            : r.kind == MICA_CONV_KIND_DGRAD ? g.in
                                                             : g.tap;
    int64_t channels = out->t.dims[1], count = mica_tensor_count(&out->t);
    double alpha = scalars[MICA_CONV_ALPHA], beta = scalars[MICA_CONV_BETA];
    sums most = {0, 0};
#pragma omp parallel for schedule(dynamic, 16) num_threads(mica_cpu_threads())
    for (int64_t i = 0; i < count; i++) {
        int64_t at[5];
        split(i, size, channels, at);
        sums s = r.kind == MICA_CONV_KIND_FWD     ? fwd_at(&g, a, f, at)
                 : r.kind == MICA_CONV_KIND_DGRAD ? dgrad_at(&g, b, f, at)
                                                  : wgrad_at(&g, a, b, at);
        int64_t o = out_offset(r.kind, &g, os[r.kind], at);
        double v = alpha * s.value, m = fabs(alpha) * s.magnitude;
        if (beta != 0) {
            double old = beta * mica_get(out, o);
            v += old, m += fabs(old);
        }
        if (r.out != MICA_CONV_Y) {
            mica_put(out, o, v, m);
            continue;
        }
        sums mine = {0, 0};
        finish(desc, args, i, at[1], o, out_offset(r.kind, &g, &g.residual, at), (sums){v, m},
               &mine);
        if (!args[MICA_CONV_AMAX].data) continue;
#pragma omp critical
        merge_max(&most, mine);
    }
    const mica_view *amax = &args[MICA_CONV_AMAX];
    if (amax->data) mica_put(amax, 0, most.value, most.magnitude);
    if (!conv_has_stats(desc)) return;
#pragma omp parallel for schedule(static) num_threads(mica_cpu_threads())
    for (int64_t k = 0; k < args[MICA_CONV_Y].t.dims[1]; k++) channel_stats(desc, args, k);
}
