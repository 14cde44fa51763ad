/* SPDX-License-Identifier: Apache-2.0
 * Convolution, the truth: plain loops in double precision over any strides and types. */
#include "ops/conv/conv.h"

#include "cpu/cpu.h"

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

static sums fwd_at(const mica_conv_geometry *g, const mica_view *a, const mica_view *f,
                   const int64_t at[5])
{
    sums s = {0, 0};
    int64_t group = at[1] / g->k, k = at[1] % g->k;
    for (int64_t c = 0; c < g->c; c++)
        for (int64_t t0 = 0; t0 < g->tap[0]; t0++)
            for (int64_t t1 = 0; t1 < g->tap[1]; t1++)
                for (int64_t t2 = 0; t2 < g->tap[2]; t2++) {
                    int64_t t[3] = {t0, t1, t2}, ao = at[0] * g->a.n + group * g->a.g + c * g->a.c;
                    int64_t fo = g->f_base + group * g->f.g + k * g->f.n + c * g->f.c;
                    bool inside = true;
                    for (int d = 0; d < 3; d++) {
                        int64_t h = at[d + 2] * g->stride[d] - g->pad[d] + t[d] * g->dilation[d];
                        inside = image_at(g->in[d], g->a.s[d], h, &ao) && inside;
                        fo += t[d] * g->f.s[d];
                    }
                    if (inside) add(&s, mica_get(a, ao), mica_get(f, fo));
                }
    return s;
}

static sums dgrad_at(const mica_conv_geometry *g, const mica_view *b, const mica_view *f,
                     const int64_t at[5])
{
    sums s = {0, 0};
    int64_t group = at[1] / g->c, c = at[1] % g->c;
    for (int64_t k = 0; k < g->k; k++)
        for (int64_t t0 = 0; t0 < g->tap[0]; t0++)
            for (int64_t t1 = 0; t1 < g->tap[1]; t1++)
                for (int64_t t2 = 0; t2 < g->tap[2]; t2++) {
                    int64_t t[3] = {t0, t1, t2}, bo = at[0] * g->b.n + group * g->b.g + k * g->b.c;
                    int64_t fo = g->f_base + group * g->f.g + k * g->f.n + c * g->f.c;
                    bool inside = true;
                    for (int d = 0; d < 3; d++) {
                        int64_t q;
                        inside = pixel_of(g, d, at[d + 2], t[d], &q) && inside;
                        inside = image_at(g->out[d], g->b.s[d], q, &bo) && inside;
                        fo += t[d] * g->f.s[d];
                    }
                    if (inside) add(&s, mica_get(b, bo), mica_get(f, fo));
                }
    return s;
}

/* at: k (over all groups), c, and the three taps. */
static sums wgrad_at(const mica_conv_geometry *g, const mica_view *a, const mica_view *b,
                     const int64_t at[5])
{
    sums s = {0, 0};
    int64_t group = at[0] / g->k, k = at[0] % g->k;
    for (int64_t n = 0; n < g->n; n++)
        for (int64_t q0 = 0; q0 < g->out[0]; q0++)
            for (int64_t q1 = 0; q1 < g->out[1]; q1++)
                for (int64_t q2 = 0; q2 < g->out[2]; q2++) {
                    int64_t q[3] = {q0, q1, q2};
                    int64_t ao = n * g->a.n + group * g->a.g + at[1] * g->a.c;
                    int64_t bo = n * g->b.n + group * g->b.g + k * g->b.c;
                    bool inside = true;
                    for (int d = 0; d < 3; d++) {
                        int64_t h = q[d] * g->stride[d] - g->pad[d] + at[d + 2] * g->dilation[d];
                        inside = image_at(g->in[d], g->a.s[d], h, &ao) && inside;
                        bo += q[d] * g->b.s[d];
                    }
                    if (inside) add(&s, mica_get(a, ao), mica_get(b, bo));
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

void mica_conv_reference(const void *desc, const mica_view *args, const double *scalars)
{
    mica_conv_desc d = *(const mica_conv_desc *)desc;
    mica_epilogue e = mica_conv_epilogue(&d);
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
        mica_epilogue_apply(&e, &args[MICA_CONV_BIAS], &args[MICA_CONV_SCALE],
                            &args[MICA_CONV_SHIFT], &args[MICA_CONV_RESIDUAL], at[1],
                            out_offset(r.kind, &g, &g.residual, at), &v, &m);
        mica_put(out, o, v, m);
    }
}
