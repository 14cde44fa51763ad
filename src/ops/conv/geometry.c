/* SPDX-License-Identifier: Apache-2.0
 * From a descriptor to the plain convolution. */
#include "ops/conv/geometry.h"

#include <stdlib.h>
#include <string.h>

mica_conv_roles mica_conv_roles_of(const mica_conv_desc *d)
{
    static const int kinds[2][3] = {
        {MICA_CONV_KIND_FWD, MICA_CONV_KIND_DGRAD, MICA_CONV_KIND_WGRAD},
        {MICA_CONV_KIND_DGRAD, MICA_CONV_KIND_FWD, MICA_CONV_KIND_WGRAD}};
    static const int outs[3] = {MICA_CONV_Y, MICA_CONV_X, MICA_CONV_W};
    mica_conv_roles r = {.kind = kinds[d->transposed][d->pass],
                         .a = d->transposed ? MICA_CONV_Y : MICA_CONV_X,
                         .b = d->transposed ? MICA_CONV_X : MICA_CONV_Y,
                         .f = MICA_CONV_W,
                         .out = outs[d->pass]};
    r.dgrad = r.kind == MICA_CONV_KIND_DGRAD;
    r.wgrad = r.kind == MICA_CONV_KIND_WGRAD;
    r.image = r.dgrad ? r.b : r.a;
    r.other = r.wgrad ? r.b : r.f;
    return r;
}

const mica_tensor *mica_conv_tensor(const mica_conv_desc *d, int arg)
{
    return arg == MICA_CONV_X ? &d->x : arg == MICA_CONV_W ? &d->w : &d->y;
}

bool mica_conv_is_empty(const mica_conv_desc *d)
{
    return mica_tensor_count(mica_conv_tensor(d, mica_conv_roles_of(d).out)) == 0;
}

/* Spatial axis i of a tensor of that rank stands at geometry axis i + 3 - axes. */
static int axis_at(int rank, int i)
{
    return i + 3 - (rank - 2);
}

static mica_conv_strides image_strides(const mica_tensor *t, int64_t channels)
{
    mica_conv_strides s = {.n = t->strides[0], .c = t->strides[1], .g = channels * t->strides[1]};
    for (int i = 0; i < t->rank - 2; i++) s.s[axis_at(t->rank, i)] = t->strides[i + 2];
    return s;
}

void mica_conv_geometry_make(const mica_conv_desc *d, mica_conv_geometry *g)
{
    mica_conv_roles roles = mica_conv_roles_of(d);
    const mica_tensor *a = mica_conv_tensor(d, roles.a), *b = mica_conv_tensor(d, roles.b);
    const mica_tensor *w = &d->w;
    memset(g, 0, sizeof *g);
    g->n = a->dims[0];
    g->groups = d->groups;
    g->c = a->dims[1] / d->groups;
    g->k = b->dims[1] / d->groups;
    for (int i = 0; i < 3; i++)
        g->in[i] = g->out[i] = g->tap[i] = g->stride[i] = g->dilation[i] = 1;
    g->a = image_strides(a, g->c);
    g->b = image_strides(b, g->k);
    if (mica_tensor_given(&d->residual))
        g->residual = image_strides(&d->residual, d->transposed ? g->c : g->k);
    g->f = (mica_conv_strides){.n = w->strides[0], .g = g->k * w->strides[0], .c = w->strides[1]};
    for (int i = 0; i < a->rank - 2; i++) {
        int at = axis_at(a->rank, i);
        g->in[at] = a->dims[i + 2];
        g->out[at] = b->dims[i + 2];
        g->tap[at] = w->dims[i + 2];
        g->stride[at] = d->stride[i];
        g->dilation[at] = d->dilation[i];
        g->pad[at] = d->pad[i];
        g->f.s[at] = w->strides[i + 2];
        if (d->flip) {
            g->f_base += (w->dims[i + 2] - 1) * w->strides[i + 2];
            g->f.s[at] = -w->strides[i + 2];
        }
    }
}

int64_t mica_conv_terms(const mica_conv_desc *d)
{
    mica_conv_geometry g;
    mica_conv_geometry_make(d, &g);
    int64_t taps = g.tap[0] * g.tap[1] * g.tap[2];
    switch (mica_conv_roles_of(d).kind) {
    case MICA_CONV_KIND_FWD:
        return taps * g.c;
    case MICA_CONV_KIND_DGRAD:
        return taps * g.k;
    default:
        return g.n * g.out[0] * g.out[1] * g.out[2];
    }
}

/* How many i of 0, 1, ... n - 1 have 0 <= base + i * step < size. */
static int64_t count_inside(int64_t base, int64_t step, int64_t n, int64_t size)
{
    int64_t first = base < 0 ? conv_ceil_div(-base, step) : 0;
    int64_t end = base < size ? conv_ceil_div(size - base, step) : 0;
    if (end > n) end = n;
    return end > first ? end - first : 0;
}

/* Taps of one pixel's gradient that meet a pixel q of b, where q * stride = at + pad - t *
 * dilation: of every `period`th tap, from the first for which that can be. */
static int64_t met_by_pixel(const mica_conv_geometry *g, int axis, int64_t at, int64_t period)
{
    int64_t stride = g->stride[axis], dilation = g->dilation[axis], tap = g->tap[axis];
    for (int64_t t = 0; t < period && t < tap; t++) {
        int64_t position = at + g->pad[axis] - t * dilation;
        if (position % stride != 0) continue;
        int64_t last = (g->out[axis] - 1) * stride;
        return count_inside(last - position, period * dilation, conv_ceil_div(tap - t, period),
                            last + 1);
    }
    return 0;
}

static int64_t common_divisor(int64_t a, int64_t b)
{
    while (b) {
        int64_t rest = a % b;
        a = b, b = rest;
    }
    return a;
}

int64_t mica_conv_most_met(const mica_conv_geometry *g, int kind, int axis)
{
    int64_t in = g->in[axis], out = g->out[axis], tap = g->tap[axis], met = 0, most = 0;
    int64_t stride = g->stride[axis], dilation = g->dilation[axis], pad = g->pad[axis];
    bool dgrad = kind == MICA_CONV_KIND_DGRAD, wgrad = kind == MICA_CONV_KIND_WGRAD;
    int64_t period = stride / common_divisor(stride, dilation);
    int64_t sums = dgrad ? in : wgrad ? tap : out;
    int64_t bound = dgrad ? conv_ceil_div(tap, period) : wgrad ? out : tap;
    for (int64_t at = 0; at < sums && most < bound; at++) {
        if (dgrad)
            met = met_by_pixel(g, axis, at, period);
        else if (wgrad)
            met = count_inside(at * dilation - pad, stride, out, in);
        else
            met = count_inside(at * stride - pad, dilation, tap, in);
        if (met > most) most = met;
    }
    return most;
}

bool mica_conv_misses(const mica_conv_geometry *g)
{
    bool misses = false;
    for (int i = 0; i < 3; i++) {
        if (g->in[i] == 0 || g->out[i] == 0 || g->tap[i] == 0) return false;
        misses |= mica_conv_most_met(g, MICA_CONV_KIND_WGRAD, i) == 0;
    }
    return misses;
}

/* 2 pad + pad_extra - dilation (tap - 1): what padding adds and the filter takes. */
static bool slack(const mica_conv_desc *d, int axis, int64_t tap, int64_t *result)
{
    int64_t reach, pads;
    if (__builtin_mul_overflow(d->dilation[axis], tap - 1, &reach)) return false;
    if (__builtin_add_overflow(d->pad[axis], d->pad[axis], &pads)) return false;
    if (__builtin_add_overflow(pads, d->pad_extra[axis], &pads)) return false;
    return !__builtin_sub_overflow(pads, reach, result);
}

bool mica_conv_out_size(const mica_conv_desc *d, int axis, int64_t in, int64_t tap, int64_t *out)
{
    int64_t room;
    if (!slack(d, axis, tap, &room) || __builtin_add_overflow(in, room, &room)) return false;
    if (room < 1) {
        /* an image without pixels convolves to one without pixels */
        *out = 0;
        return in == 0;
    }
    *out = (room - 1) / d->stride[axis] + 1;
    return true;
}

bool mica_conv_in_size(const mica_conv_desc *d, int axis, int64_t out, int64_t tap, int64_t extra,
                       int64_t *in)
{
    int64_t room;
    if (!slack(d, axis, tap, &room)) return false;
    if (out == 0) {
        *in = extra;
        return true;
    }
    if (__builtin_mul_overflow(out - 1, d->stride[axis], in)) return false;
    return !__builtin_add_overflow(*in, 1, in) && !__builtin_sub_overflow(*in, room, in) &&
           !__builtin_add_overflow(*in, extra, in) && *in >= 0;
}

mica_epilogue mica_conv_epilogue(const mica_conv_desc *d)
{
    mica_conv_desc *e = (mica_conv_desc *)(uintptr_t)d;
    return (mica_epilogue){.steps = e->epilogue,
                           .bias = &e->bias,
                           .scale = &e->scale,
                           .shift = &e->shift,
                           .residual = &e->residual,
                           .act_a = &e->act_a,
                           .act_b = &e->act_b};
}

bool mica_conv_positions_fit_s32(const mica_conv_geometry *g)
{
    const double most = 1 << 30;
    for (int i = 0; i < 3; i++) {
        double reach = (double)g->tap[i] * (double)g->dilation[i] + (double)llabs(g->pad[i]);
        if (reach + (double)g->in[i] > most || (double)g->out[i] * (double)g->stride[i] > most)
            return false;
    }
    return true;
}

void mica_conv_epilogue_args(const mica_conv_desc *d, mica_epilogue_args *a)
{
    a->act_a = d->act_a;
    a->act_b = d->act_b;
    if (mica_tensor_given(&d->bias)) a->bias_stride = d->bias.strides[0];
    if (mica_tensor_given(&d->scale)) a->scale_stride = d->scale.strides[0];
    if (mica_tensor_given(&d->shift)) a->shift_stride = d->shift.strides[0];
}

bool mica_conv_is_pointwise(const mica_conv_geometry *g)
{
    for (int i = 0; i < 3; i++)
        if (g->tap[i] != 1 || g->stride[i] != 1 || g->pad[i] != 0 || g->in[i] != g->out[i])
            return false;
    return true;
}
