/* SPDX-License-Identifier: Apache-2.0
 * From a convolution to linear positions, classes and widths of accesses. */
#include "ops/conv/sm80/sm80.h"

#include <string.h>

/* ---- axes ---- */

static bool is_plain(const mica_conv_geometry *g, int d)
{
    return g->tap[d] == 1 && g->stride[d] == 1 && g->pad[d] == 0 && g->in[d] == g->out[d];
}

static bool continues(const mica_conv_strides *s, int d, long long size)
{
    return s->s[d - 1] == s->s[d] * size;
}

static void copy_axis(mica_conv_geometry *g, int to, int from)
{
    g->in[to] = g->in[from], g->out[to] = g->out[from], g->tap[to] = g->tap[from];
    g->stride[to] = g->stride[from], g->dilation[to] = g->dilation[from];
    g->pad[to] = g->pad[from];
    g->a.s[to] = g->a.s[from], g->b.s[to] = g->b.s[from], g->f.s[to] = g->f.s[from];
    g->residual.s[to] = g->residual.s[from];
}

static void clear_axis(mica_conv_geometry *g, int d)
{
    g->in[d] = g->out[d] = g->tap[d] = g->stride[d] = g->dilation[d] = 1;
    g->pad[d] = 0;
    g->a.s[d] = g->b.s[d] = g->f.s[d] = g->residual.s[d] = 0;
}

/* Joins axis d - 1 to d if neither has taps and memory goes on from one to the other. */
static bool merge(mica_conv_geometry *g, int d)
{
    if (!is_plain(g, d) || !is_plain(g, d - 1) || g->in[d - 1] == 1) return false;
    long long inner = g->in[d], outer = g->in[d - 1];
    if (inner == 1)
        copy_axis(g, d, d - 1);
    else if (!continues(&g->a, d, inner) || !continues(&g->b, d, inner) ||
             !continues(&g->residual, d, inner))
        return false;
    g->in[d] = g->out[d] = inner * outer;
    for (int e = d - 1; e > 0; e--) copy_axis(g, e, e - 1);
    clear_axis(g, 0);
    return true;
}

static void merge_axes(mica_conv_geometry *g)
{
    while (merge(g, 2) || merge(g, 1)) continue;
}

static int axes_of(const mica_conv_geometry *g)
{
    for (int d = 0; d < 2; d++)
        if (!is_plain(g, d) || g->in[d] != 1) return 3 - d;
    return 1;
}

/* ---- roles ---- */

static const mica_conv_strides *read_strides(const conv_sm80_shape *s)
{
    return s->kind == MICA_CONV_KIND_DGRAD ? &s->g.b : &s->g.a;
}

static const mica_conv_strides *counted_strides(const conv_sm80_shape *s)
{
    return s->kind == MICA_CONV_KIND_DGRAD ? &s->g.a : &s->g.b;
}

static const long long *read_size(const conv_sm80_shape *s)
{
    return s->kind == MICA_CONV_KIND_DGRAD ? s->g.out : s->g.in;
}

static const long long *counted_size(const conv_sm80_shape *s)
{
    return s->kind == MICA_CONV_KIND_DGRAD ? s->g.in : s->g.out;
}

/* ---- classes ---- */

conv_sm80_phase conv_sm80_phase_of(const conv_sm80_shape *s, int axis, int64_t phase)
{
    const mica_conv_geometry *g = &s->g;
    conv_sm80_phase p = {.tap_step = 1, .taps = g->tap[axis]};
    if (s->kind != MICA_CONV_KIND_DGRAD) {
        p.pixels = g->out[axis];
        p.base = -g->pad[axis];
        return p;
    }
    int64_t stride = g->stride[axis], dilation = g->dilation[axis], taps = g->tap[axis];
    p.pixels = (g->in[axis] - phase + stride - 1) / stride;
    while (p.tap_step * dilation % stride) p.tap_step++;
    while (p.first_tap < p.tap_step && p.first_tap < taps &&
           (phase + g->pad[axis] - p.first_tap * dilation) % stride)
        p.first_tap++;
    bool reached = p.first_tap < taps && p.first_tap < p.tap_step;
    p.taps = reached ? (taps - 1 - p.first_tap) / p.tap_step + 1 : 0;
    if (!reached) p.first_tap = 0;
    p.base = reached ? (phase + g->pad[axis] - p.first_tap * dilation) / stride : 0;
    return p;
}

int64_t conv_sm80_rows(const conv_sm80_shape *s)
{
    const mica_conv_geometry *g = &s->g;
    if (s->kind == MICA_CONV_KIND_WGRAD) return g->tap[0] * g->tap[1] * g->tap[2] * s->channels;
    int64_t rows = g->n;
    for (int d = 0; d < 3; d++) rows *= conv_sm80_phase_of(s, d, 0).pixels;
    return rows;
}

int64_t conv_sm80_terms(const conv_sm80_shape *s)
{
    const mica_conv_geometry *g = &s->g;
    if (s->kind == MICA_CONV_KIND_WGRAD) return g->n * g->out[0] * g->out[1] * g->out[2];
    return g->tap[0] * g->tap[1] * g->tap[2] * s->channels;
}

/* ---- widths of accesses ---- */

/* From pixel to pixel of all groups; `pixels`: along the innermost axis. */
static int64_t image_steps(const conv_sm80_shape *s, const mica_conv_strides *t,
                           const long long *size, bool pixels)
{
    int64_t steps = mica_access_step(t->n, s->g.n) | mica_access_step(t->g, s->g.groups);
    for (int d = 0; d < 2; d++) steps |= mica_access_step(t->s[d], size[d]);
    return steps | (pixels ? size[2] : mica_access_step(t->s[2], size[2]));
}

/* Along the channels of an image; `channels`: all of them stand behind one tap. */
static int channel_vector(const conv_sm80_shape *s, mica_dtype dtype, const mica_conv_strides *t,
                          const long long *size, int64_t channels)
{
    return mica_access_along(dtype, t->c, image_steps(s, t, size, false) | channels);
}

/* Along the pixels of an image's innermost axis. */
static int pixel_vector(const conv_sm80_shape *s, mica_dtype dtype, const mica_conv_strides *t,
                        const long long *size, int64_t channels)
{
    return mica_access_along(dtype, t->s[2],
                             image_steps(s, t, size, true) | mica_access_step(t->c, channels));
}

/* From filter to filter and, where `taps` are apart, from tap to tap. */
static int64_t filter_steps(const conv_sm80_shape *s, int64_t filters, bool taps)
{
    const mica_conv_geometry *g = &s->g;
    int64_t steps =
        mica_access_step(g->f.n, filters) | mica_access_step(g->f.g, g->groups) | g->f_base;
    for (int d = 0; d < 3 && taps; d++) steps |= mica_access_step(g->f.s[d], g->tap[d]);
    return steps;
}

/* Whether pairs follow each other in the filter in the order in which they are counted. */
static bool is_linear(const conv_sm80_shape *s)
{
    const mica_conv_geometry *g = &s->g;
    int64_t next = 1;
    if (!s->tap_fast) {
        if (s->channels > 1 && g->f.c != 1) return false;
        next = s->channels;
    }
    for (int d = 2; d >= 0; d--) {
        if (g->tap[d] > 1 && g->f.s[d] != next) return false;
        next *= g->tap[d];
    }
    return !s->tap_fast || s->channels <= 1 || g->f.c == next;
}

/* Along the pairs of a filter whose channel is that of the image (forward, wgrad). */
static int pair_vector(const conv_sm80_shape *s, mica_dtype dtype)
{
    if (is_linear(s)) return mica_access_along(dtype, 1, filter_steps(s, s->cols, false));
    if (s->tap_fast) return 1;
    return mica_access_along(dtype, s->g.f.c, filter_steps(s, s->cols, true) | s->channels);
}

/* Along the columns of a filter (dgrad). */
static int column_vector(const conv_sm80_shape *s, mica_dtype dtype)
{
    return mica_access_along(dtype, s->g.f.c, filter_steps(s, s->channels, true));
}

static void choose_image(conv_sm80_shape *s, mica_mma_operand *o)
{
    const mica_conv_geometry *g = &s->g;
    const mica_conv_strides *t = read_strides(s);
    bool wgrad = s->kind == MICA_CONV_KIND_WGRAD, channels_fast = !s->tap_fast;
    o->k_fast = channels_fast != wgrad;
    if (channels_fast)
        o->vector = channel_vector(s, o->dtype, t, read_size(s), s->channels);
    else if (is_plain(g, 2)) /* a row of pixels is a row of the image */
        o->vector = pixel_vector(s, o->dtype, t, read_size(s), s->channels);
    else
        o->vector = 1;
}

static void choose_other(conv_sm80_shape *s, mica_mma_operand *o)
{
    const mica_conv_geometry *g = &s->g;
    switch (s->kind) {
    case MICA_CONV_KIND_FWD:
        o->k_fast = is_linear(s) || g->f.c == 1 || g->f.n != 1;
        o->vector = o->k_fast ? pair_vector(s, o->dtype) : 1;
        break;
    case MICA_CONV_KIND_DGRAD:
        o->k_fast = g->f.c != 1;
        o->vector = o->k_fast ? 1 : column_vector(s, o->dtype);
        break;
    default:
        o->k_fast = g->b.c != 1 || s->cols == 1;
        o->vector = o->k_fast ? pixel_vector(s, o->dtype, &g->b, g->out, s->cols)
                              : channel_vector(s, o->dtype, &g->b, g->out, s->cols);
    }
}

static void choose_out(conv_sm80_shape *s, mica_mma_tile *t)
{
    const mica_conv_strides *counted = counted_strides(s);
    const long long *size = counted_size(s);
    if (s->kind == MICA_CONV_KIND_WGRAD) {
        t->c_n_fast = s->g.f.n == 1 && s->cols > 1;
        t->c_vector = t->c_n_fast ? 1 : pair_vector(s, t->c);
    } else {
        t->c_n_fast = counted->c == 1 && s->cols > 1;
        t->c_vector = 1;
        if (t->c_n_fast)
            t->c_vector = channel_vector(s, t->c, counted, size, s->cols);
        else if (s->phases[2] == 1)
            t->c_vector = pixel_vector(s, t->c, counted, size, s->cols);
    }
    if (t->c_vector > 8) t->c_vector = 8;
}

void conv_sm80_shape_make(const mica_conv_desc *d, conv_sm80_shape *s)
{
    mica_conv_roles roles = mica_conv_roles_of(d);
    memset(s, 0, sizeof *s);
    mica_conv_geometry_make(d, &s->g);
    merge_axes(&s->g);
    s->kind = roles.kind;
    s->axes = axes_of(&s->g);
    bool dgrad = s->kind == MICA_CONV_KIND_DGRAD, wgrad = s->kind == MICA_CONV_KIND_WGRAD;
    s->channels = dgrad ? s->g.k : s->g.c;
    s->cols = dgrad ? s->g.c : s->g.k;
    s->class_count = 1;
    for (int i = 0; i < 3; i++) {
        int64_t stride = dgrad ? s->g.stride[i] : 1, in = s->g.in[i] > 1 ? s->g.in[i] : 1;
        s->phases[i] = stride < in ? stride : in;
        s->class_count *= s->phases[i]; /* at most 2^93 / ...: see accepts, which looks first */
    }
    s->tap_fast = read_strides(s)->c != 1 || s->channels == 1;
    mica_mma_tile *t = &s->tile;
    t->a.dtype = mica_conv_tensor(d, roles.image)->dtype;
    t->b.dtype = mica_conv_tensor(d, wgrad ? roles.b : roles.f)->dtype;
    t->c = mica_conv_tensor(d, roles.out)->dtype;
    t->precise = t->a.dtype == MICA_F32 && d->compute != MICA_COMPUTE_TF32;
    choose_image(s, &t->a);
    choose_other(s, &t->b);
    choose_out(s, t);
    /* bytes are transposed one by one as they are stored to shared memory */
    bool bytes = mica_dtype_bits(t->a.dtype) == 8;
    if (bytes && !t->a.k_fast) t->a.vector = 1;
    if (bytes && !t->b.k_fast) t->b.vector = 1;
}

/* ---- arguments ---- */

static void fill_class(const conv_sm80_shape *s, int64_t number, conv_sm80_args *a,
                       conv_sm80_class *c)
{
    const mica_conv_geometry *g = &s->g;
    const mica_conv_strides *counted = counted_strides(s);
    int64_t pixels = g->n, taps = 1;
    c->filter = g->f_base;
    for (int d = 2; d >= 0; d--) {
        int64_t phase = number % s->phases[d];
        number /= s->phases[d];
        conv_sm80_phase p = conv_sm80_phase_of(s, d, phase);
        c->pixels[d] = mica_fastdiv_make(p.pixels > 1 ? (unsigned)p.pixels : 1);
        c->taps[d] = mica_fastdiv_make(p.taps > 1 ? (unsigned)p.taps : 1);
        c->base[d] = (int)p.base;
        c->place += phase * counted->s[d];
        c->residual += phase * g->residual.s[d];
        c->filter += p.first_tap * g->f.s[d];
        pixels *= p.pixels;
        taps *= p.taps;
        a->filter_s[d] = p.tap_step * g->f.s[d]; /* alike in all classes */
        a->tap_step[d] = s->kind == MICA_CONV_KIND_DGRAD
                             ? (int)-(p.tap_step * g->dilation[d] / g->stride[d])
                             : (int)g->dilation[d];
    }
    c->pixel_count = (int)pixels;
    c->tap_count = (int)taps;
}

void conv_sm80_args_make(const conv_sm80_shape *s, int64_t first, conv_sm80_args *a)
{
    const mica_conv_geometry *g = &s->g;
    const mica_conv_strides *read = read_strides(s), *counted = counted_strides(s);
    bool dgrad = s->kind == MICA_CONV_KIND_DGRAD, wgrad = s->kind == MICA_CONV_KIND_WGRAD;
    for (int d = 0; d < 3; d++) {
        long long step = dgrad ? g->stride[d] : 1;
        a->size[d] = (int)read_size(s)[d];
        a->pixel_step[d] = dgrad ? 1 : (int)g->stride[d];
        a->image_s[d] = read->s[d];
        a->place_s[d] = step * counted->s[d];
        a->residual_s[d] = step * g->residual.s[d];
    }
    a->image_n = read->n, a->image_c = read->c, a->image_g = read->g;
    a->place_n = counted->n;
    a->residual_n = g->residual.n, a->residual_g = g->residual.g;
    a->residual_col = g->residual.c;
    a->filter_c = dgrad ? g->f.n : g->f.c;
    a->other_col = wgrad ? g->b.c : dgrad ? g->f.c : g->f.n;
    a->other_g = wgrad ? g->b.g : g->f.g;
    a->out_col = wgrad ? g->f.n : counted->c;
    a->out_g = wgrad ? g->f.g : counted->g;
    a->groups = (int)g->groups;
    a->cols = (int)s->cols;
    a->channels = mica_fastdiv_make(s->channels > 1 ? (unsigned)s->channels : 1);
    int64_t left = s->class_count - first;
    a->class_count = left < CONV_SM80_CLASSES ? (int)left : CONV_SM80_CLASSES;
    for (int i = 0; i < a->class_count; i++) fill_class(s, first + i, a, &a->classes[i]);
    /* no channels: every sum is empty */
    for (int i = 0; i < a->class_count && s->channels == 0; i++) a->classes[i].tap_count = 0;
}
