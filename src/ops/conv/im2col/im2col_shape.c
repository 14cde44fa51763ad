/* SPDX-License-Identifier: Apache-2.0
 * From a convolution to classes of pixels and maps of TMA. */
#include "ops/conv/im2col/im2col_shape.h"

#include <stdlib.h>
#include <string.h>

enum { UNIT = 8 }; /* elements of 16 bytes: what strides of a map are multiples of */

static const char *const names[] = {"x", "w", "y"}; /* by argument */

/* ---- one axis ---- */

static int64_t gcd(int64_t a, int64_t b)
{
    return b ? gcd(b, a % b) : a;
}

/* A class along one axis. */
typedef struct lane {
    int64_t first; /* its first pixel; the next is g.stride further in dgrad, else 1 */
    int64_t count, start, taps, filter, filter_step;
} lane;

static lane forward_lane(const mica_conv_geometry *g, int axis)
{
    return (lane){
        .count = g->out[axis], .start = -g->pad[axis], .taps = g->tap[axis], .filter_step = 1};
}

/* Pixels h = first + s i of a, whose taps r = r0 + (s / gcd) j read p = i + c - (d / gcd) j of b.
 * Taps are counted from the last: TMA only goes forward from where it starts. */
static lane gradient_lane(const mica_conv_geometry *g, int axis, int64_t first)
{
    int64_t s = g->stride[axis], d = g->dilation[axis], common = gcd(d, s);
    lane l = {.first = first, .count = first < g->in[axis] ? (g->in[axis] - first - 1) / s + 1 : 0};
    int64_t r = 0, most = s / common < g->tap[axis] ? s / common : g->tap[axis];
    while (r < most && (first + g->pad[axis] - r * d) % s != 0) r++;
    if (r == most) return l;
    l.taps = (g->tap[axis] - 1 - r) / (s / common) + 1;
    l.start = (first + g->pad[axis] - r * d) / s - (l.taps - 1) * (d / common);
    l.filter = r + (l.taps - 1) * (s / common);
    l.filter_step = -(s / common);
    return l;
}

/* A lane of axes that the tensors do not have is one pixel and one tap. */
static int64_t upper_corner(const mica_conv_sm90_shape *s, const lane *l, int axis)
{
    int64_t read = s->roles.dgrad ? s->g.out[axis] : s->g.in[axis];
    return l->start + (l->count - 1) * s->step[axis] - (read - 1);
}

static mica_status lane_ok(const mica_conv_sm90_shape *s, const lane *l, int axis, mica_why *why)
{
    static const int corner_limit[] = {0, 32768, 128, 16}, tap_limit[] = {0, 65535, 255, 31};
    int64_t limit = corner_limit[s->axes], upper = upper_corner(s, l, axis),
            reach = (l->taps - 1) * s->tap_step[axis];
    if (l->start < -limit || l->start >= limit || upper < -limit || upper >= limit)
        return mica_refuse(why,
                           "the first pixel read on axis %d is %lld and the last %lld past the "
                           "image, in %d dimensions the rule is -%lld to %lld",
                           axis + s->axes - 2, (long long)l->start, (long long)upper, s->axes,
                           (long long)limit, (long long)limit - 1);
    if (reach > tap_limit[s->axes])
        return mica_refuse(why,
                           "the last tap on axis %d is %lld pixels from the first, in %d "
                           "dimensions the limit is %d",
                           axis + s->axes - 2, (long long)reach, s->axes, tap_limit[s->axes]);
    return MICA_OK;
}

/* ---- classes ---- */

static mica_status add_class(mica_conv_sm90_shape *s, const mica_conv_desc *d, const lane lanes[3],
                             mica_why *why)
{
    const mica_conv_strides *to = mica_conv_sm90_strides(s);
    int64_t pixels = s->g.n, taps = 1;
    for (int i = 0; i < 3; i++) {
        pixels *= lanes[i].count;
        taps *= lanes[i].taps;
    }
    if (pixels == 0) return MICA_OK;
    if (s->class_count == MICA_CONV_CLASSES)
        return mica_refuse(why, "strides of %lld x %lld x %lld make more than %d classes of pixels",
                           s->g.stride[0], s->g.stride[1], s->g.stride[2], MICA_CONV_CLASSES);
    mica_conv_class *c = &s->classes[s->class_count];
    memset(c, 0, sizeof *c);
    for (int i = 0; i < 3; i++) {
        const lane *l = &lanes[i];
        if (taps > 0 && i >= 3 - s->axes) MICA_TRY(lane_ok(s, l, i, why));
        c->count[i] = (int)l->count;
        c->out += l->first * to->s[i];
        c->residual += l->first * s->g.residual.s[i];
        if (taps == 0) continue;
        c->start[i] = (int)l->start;
        c->taps[i] = (int)l->taps;
        c->filter[i] = (int)(d->flip ? s->g.tap[i] - 1 - l->filter : l->filter);
        c->filter_step[i] = (int)(d->flip ? -l->filter_step : l->filter_step);
    }
    c->pixels = (int)pixels;
    s->class_count++;
    return MICA_OK;
}

static int by_weight(const void *p, const void *q)
{
    const mica_conv_class *a = p, *b = q;
    return b->taps[0] * b->taps[1] * b->taps[2] - a->taps[0] * a->taps[1] * a->taps[2];
}

static mica_status make_classes(mica_conv_sm90_shape *s, const mica_conv_desc *d, mica_why *why)
{
    const mica_conv_geometry *g = &s->g;
    bool dgrad = s->roles.dgrad;
    for (int i = 0; i < 3; i++) {
        s->step[i] = dgrad ? 1 : (int)g->stride[i];
        s->tap_step[i] =
            (int)(dgrad ? g->dilation[i] / gcd(g->dilation[i], g->stride[i]) : g->dilation[i]);
        if (s->step[i] > 8) return mica_refuse(why, "the stride is %d, TMA's limit 8", s->step[i]);
    }
    if (!dgrad) {
        lane lanes[3] = {forward_lane(g, 0), forward_lane(g, 1), forward_lane(g, 2)};
        return add_class(s, d, lanes, why);
    }
    int64_t remainders[3]; /* that occur in the image */
    for (int i = 0; i < 3; i++) {
        remainders[i] = g->stride[i] < g->in[i] ? g->stride[i] : g->in[i];
        if (remainders[i] > MICA_CONV_CLASSES)
            return mica_refuse(why, "the stride is %lld, this engine's gradient goes up to %d",
                               g->stride[i], MICA_CONV_CLASSES);
    }
    for (int64_t i = 0; i < remainders[0]; i++)
        for (int64_t j = 0; j < remainders[1]; j++)
            for (int64_t k = 0; k < remainders[2]; k++) {
                lane lanes[3] = {gradient_lane(g, 0, i), gradient_lane(g, 1, j),
                                 gradient_lane(g, 2, k)};
                MICA_TRY(add_class(s, d, lanes, why));
            }
    qsort(s->classes, (size_t)s->class_count, sizeof *s->classes, by_weight);
    return MICA_OK;
}

/* ---- what a map can describe ---- */

static mica_status stride_ok(int64_t size, int64_t stride, int unit, const char *name,
                             mica_why *why)
{
    if (size <= 1 || (stride > 0 && stride % unit == 0)) return MICA_OK;
    return mica_refuse(
        why, "%s has a stride of %lld elements, this engine's are positive multiples of %d bytes",
        name, (long long)stride, 2 * unit);
}

static mica_status lengths_ok(const mica_tensor *t, const char *name, mica_why *why)
{
    for (int i = 0; i < t->rank; i++)
        if (t->dims[i] < 1 || t->dims[i] > INT32_MAX)
            return mica_refuse(why, "%s is %lld long on dimension %d, the rule is 1 to 2147483647",
                               name, (long long)t->dims[i], i);
    return MICA_OK;
}

mica_status mica_conv_sm90_image_ok(const mica_tensor *t, const char *name, mica_why *why)
{
    if (t->dims[1] % UNIT || t->dims[1] == 0 || t->strides[1] != 1)
        return mica_refuse(why,
                           "%s has %lld channels %lld elements apart, this engine reads multiples "
                           "of 8 side by side",
                           name, (long long)t->dims[1], (long long)t->strides[1]);
    MICA_TRY(lengths_ok(t, name, why));
    for (int i = 0; i < t->rank; i++)
        if (i != 1) MICA_TRY(stride_ok(t->dims[i], t->strides[i], UNIT, name, why));
    return MICA_OK;
}

mica_status mica_conv_sm90_result_ok(const mica_conv_sm90_shape *s, const mica_conv_desc *d,
                                     mica_why *why)
{
    const mica_tensor *out = mica_conv_tensor(d, s->roles.out);
    if (s->out != s->in)
        return mica_refuse(why, "%s is %s, this engine stores what it reads, %s",
                           names[s->roles.out], mica_dtype_name(s->out), mica_dtype_name(s->in));
    return mica_tensor_count(out) ? mica_conv_sm90_image_ok(out, names[s->roles.out], why)
                                  : MICA_OK;
}

/* The filter's dimension that is read or written side by side: 0 its filters, 1 its channels. */
static mica_status filter_ok(const mica_tensor *w, int unit, int *inner, mica_why *why)
{
    *inner = w->strides[1] == 1 ? 1 : 0;
    if (w->strides[*inner] != 1)
        return mica_refuse(why,
                           "w has strides of %lld and %lld for its filters and channels, one must "
                           "be 1",
                           (long long)w->strides[0], (long long)w->strides[1]);
    for (int i = 0; i < w->rank; i++)
        if (i != *inner) MICA_TRY(stride_ok(w->dims[i], w->strides[i], unit, "w", why));
    return MICA_OK;
}

static mica_status sizes_ok(const mica_conv_sm90_shape *s, mica_why *why)
{
    const mica_conv_geometry *g = &s->g;
    const long long *written = mica_conv_sm90_size(s);
    double pixels = (double)g->n * (double)written[0] * (double)written[1] * (double)written[2];
    double weights = (double)g->groups * (double)g->k * (double)g->c * (double)g->tap[0] *
                     (double)g->tap[1] * (double)g->tap[2];
    double most = INT32_MAX - 1024, cols = (double)g->groups * (double)mica_conv_sm90_columns(s);
    if (cols < 1) return mica_refuse(why, "the result has no channels");
    if (pixels > most || weights > most || pixels * cols / 8192 > most)
        return mica_refuse(why,
                           "%.10g pixels, %.10g weights and %.10g columns: tiles and pixels are "
                           "counted in 31 bits",
                           pixels, weights, cols);
    return MICA_OK;
}

/* ---- pixels in one row ---- */

/* Whether all pixels lie at one distance, which becomes that of the innermost axis. */
static bool put_in_one_row(const mica_conv_geometry *g, mica_conv_strides *t)
{
    const long long sizes[] = {g->in[2], g->in[1], g->in[0], g->n};
    const long long strides[] = {t->s[2], t->s[1], t->s[0], t->n};
    long long count = 1, pitch = t->s[2];
    for (int i = 0; i < 4; i++) {
        if (sizes[i] == 1) continue;
        if (count == 1)
            pitch = strides[i];
        else if (strides[i] != pitch * count)
            return false;
        count *= sizes[i];
    }
    t->s[2] = pitch;
    return true;
}

static void merge_pixels(mica_conv_sm90_shape *s)
{
    mica_conv_geometry g = s->g;
    if (!mica_conv_is_pointwise(&g)) return;
    if (!put_in_one_row(&g, &g.a) || !put_in_one_row(&g, &g.b)) return;
    if (s->residual && !put_in_one_row(&g, &g.residual)) return;
    g.in[2] = g.out[2] = g.n * g.in[0] * g.in[1] * g.in[2];
    g.n = g.in[0] = g.in[1] = g.out[0] = g.out[1] = 1;
    s->g = g;
    s->axes = 1;
}

static bool is_wide(const mica_tensor *t, const mica_conv_geometry *g, int64_t channels)
{
    const mica_conv_strides *at = &g->residual;
    const int64_t steps = channels | at->n | at->s[0] | at->s[1] | at->s[2];
    return mica_dtype_bits(t->dtype) == 16 && mica_access_along(t->dtype, at->c, steps) == 8;
}

/* ---- planes ---- */

/* A channel's pixels side by side in one row. */
static bool is_row(const mica_tensor *t)
{
    int64_t count = 1;
    for (int i = t->rank - 1; i > 1; i--) {
        if (t->dims[i] != 1 && t->strides[i] != count) return false;
        count *= t->dims[i];
    }
    return count > 1 && t->strides[1] >= count;
}

static mica_status plane_ok(const mica_tensor *t, const char *name, mica_why *why)
{
    MICA_TRY(lengths_ok(t, name, why));
    MICA_TRY(stride_ok(t->dims[1], t->strides[1], UNIT, name, why));
    return stride_ok(t->dims[0], t->strides[0], UNIT, name, why);
}

static bool are_planes(const mica_conv_sm90_shape *s, const mica_conv_desc *d, int takes)
{
    return (takes & MICA_CONV_SM90_PLANES) && s->roles.wgrad && mica_conv_is_pointwise(&s->g) &&
           is_row(mica_conv_tensor(d, s->roles.image)) &&
           is_row(mica_conv_tensor(d, s->roles.other));
}

static mica_status make_planes(mica_conv_sm90_shape *s, const mica_conv_desc *d, mica_why *why)
{
    mica_conv_geometry *g = &s->g;
    MICA_TRY(plane_ok(mica_conv_tensor(d, s->roles.image), names[s->roles.image], why));
    MICA_TRY(plane_ok(mica_conv_tensor(d, s->roles.other), names[s->roles.other], why));
    if (g->c % UNIT)
        return mica_refuse(why, "%lld channels, this engine's gradient stores multiples of 8",
                           (long long)g->c);
    int64_t row = g->in[0] * g->in[1] * g->in[2];
    double padded = (double)g->n * (double)conv_ceil_div(row, MICA_CONV_BLOCK) * MICA_CONV_BLOCK;
    if (padded > INT32_MAX - 1024)
        return mica_refuse(why, "%lld images of %lld pixels: blocks of 64 are counted in 31 bits",
                           g->n, (long long)row);
    s->planes = true;
    s->axes = 1;
    g->in[2] = g->out[2] = row;
    g->in[0] = g->in[1] = g->out[0] = g->out[1] = 1;
    g->a.s[2] = g->b.s[2] = 1;
    return MICA_OK;
}

mica_status mica_conv_sm90_shape_make(const mica_conv_desc *d, int takes, mica_conv_sm90_shape *s,
                                      mica_why *why)
{
    memset(s, 0, sizeof *s);
    s->roles = mica_conv_roles_of(d);
    bool dgrad = s->roles.dgrad, wgrad = s->roles.wgrad;
    s->axes = d->x.rank - 2;
    s->in = mica_conv_tensor(d, s->roles.image)->dtype;
    s->out = mica_conv_tensor(d, s->roles.out)->dtype;
    if (s->in != MICA_BF16 && s->in != MICA_F16)
        return mica_refuse(why, "%s is %s, this engine multiplies bf16 and f16",
                           names[s->roles.image], mica_dtype_name(s->in));
    if (d->groups != 1 && !(takes & MICA_CONV_SM90_GROUPS))
        return mica_refuse(why, "groups is %lld, this engine has 1", (long long)d->groups);
    mica_conv_geometry_make(d, &s->g);
    if (are_planes(s, d, takes)) {
        MICA_TRY(make_planes(s, d, why));
        MICA_TRY(sizes_ok(s, why));
        return make_classes(s, d, why);
    }
    MICA_TRY(
        mica_conv_sm90_image_ok(mica_conv_tensor(d, s->roles.image), names[s->roles.image], why));
    if (wgrad) {
        MICA_TRY(mica_conv_sm90_image_ok(mica_conv_tensor(d, s->roles.other), names[s->roles.other],
                                         why));
    } else {
        int inner;
        /* groups of 4 channels: TMA does not read their filter */
        int unit = d->groups > 1 && d->w.dims[1] == UNIT / 2 ? UNIT / 2 : UNIT;
        MICA_TRY(filter_ok(&d->w, unit, &inner, why));
        s->filter_mn = inner == (dgrad ? 1 : 0);
    }
    MICA_TRY(sizes_ok(s, why));
    s->residual = mica_tensor_given(&d->residual);
    s->stats = conv_has_batch_stats(d);
    if (takes & MICA_CONV_SM90_MERGED) merge_pixels(s);
    s->residual_wide = s->residual && is_wide(&d->residual, &s->g, mica_conv_sm90_columns(s));
    return make_classes(s, d, why);
}

double mica_conv_sm90_residual_ms(const mica_conv_sm90_shape *s, const mica_device_info *device)
{
    const double each_ms =
        1.07e-6; /* of a multiprocessor: 64 channels of 256 x 56 x 56 on an H200 */
    const long long *size = mica_conv_sm90_size(s);
    if (!s->residual || s->residual_wide) return 0;
    double pixels = (double)s->g.n * (double)size[0] * (double)size[1] * (double)size[2];
    return pixels * (double)(s->g.groups * mica_conv_sm90_columns(s)) * each_ms / device->units;
}

/* ---- maps ---- */

/* Strides of dimensions that are 1 long are never walked, but must be legal. */
static int64_t stride_bytes(int64_t size, int64_t stride)
{
    return size > 1 ? 2 * stride : 16;
}

static void pixel_map(const mica_conv_sm90_shape *s, const long long size[3],
                      const mica_conv_strides *at, int64_t channels, int pixels,
                      mica_tensor_map_spec *m)
{
    *m = (mica_tensor_map_spec){.dtype = s->in,
                                .rank = s->axes + 2,
                                .dims = {channels},
                                .swizzle_bytes = 128,
                                .im2col = true,
                                .channels_per_pixel = MICA_CONV_BLOCK,
                                .pixels_per_column = (uint32_t)pixels};
    for (int i = 0; i < s->axes; i++) {
        m->dims[i + 1] = size[2 - i];
        m->stride_bytes[i + 1] = stride_bytes(size[2 - i], at->s[2 - i]);
    }
    m->dims[s->axes + 1] = s->g.n;
    m->stride_bytes[s->axes + 1] = stride_bytes(s->g.n, at->n);
}

/* Of each image so many pixels of 64 channels. */
static void plane_map(const mica_conv_sm90_shape *s, const mica_conv_strides *at, int64_t channels,
                      int pixels, mica_tensor_map_spec *m)
{
    *m = (mica_tensor_map_spec){
        .dtype = s->in,
        .rank = 3,
        .dims = {s->g.out[2], channels, s->g.n},
        .stride_bytes = {0, stride_bytes(channels, at->c), stride_bytes(s->g.n, at->n)},
        .box = {(uint32_t)pixels, MICA_CONV_BLOCK, 1},
        .swizzle_bytes = 128};
}

int64_t mica_conv_sm90_pixel_blocks(const mica_conv_sm90_shape *s)
{
    if (s->planes) return s->g.n * conv_ceil_div(s->g.out[2], MICA_CONV_BLOCK);
    return conv_ceil_div(s->classes[0].pixels, MICA_CONV_BLOCK);
}

void mica_conv_sm90_image_map(const mica_conv_sm90_shape *s, int class_index, int pixels,
                              mica_tensor_map_spec *m)
{
    if (s->planes) {
        plane_map(s, &s->g.a, s->g.groups * s->g.c, pixels, m);
        return;
    }
    bool dgrad = s->roles.dgrad;
    const mica_conv_class *c = &s->classes[class_index];
    const long long *size = dgrad ? s->g.out : s->g.in;
    pixel_map(s, size, dgrad ? &s->g.b : &s->g.a, s->g.groups * mica_conv_sm90_terms(s), pixels, m);
    for (int i = 0; i < s->axes; i++) {
        int axis = 2 - i;
        m->element_strides[i + 1] = (uint32_t)s->step[axis];
        m->lower[i] = c->start[axis];
        m->upper[i] =
            (int)(c->start[axis] + (c->count[axis] - 1) * s->step[axis] - (size[axis] - 1));
    }
}

void mica_conv_sm90_grad_map(const mica_conv_sm90_shape *s, int pixels, mica_tensor_map_spec *m)
{
    if (s->planes)
        plane_map(s, &s->g.b, s->g.groups * s->g.k, pixels, m);
    else
        pixel_map(s, s->g.out, &s->g.b, s->g.groups * s->g.k, pixels, m);
}

void mica_conv_sm90_window_map(const mica_conv_sm90_shape *s, bool of_a, int channels, int width,
                               int height, mica_tensor_map_spec *m)
{
    const long long *size = of_a ? s->g.in : s->g.out;
    const mica_conv_strides *at = of_a ? &s->g.a : &s->g.b;
    int last = s->axes + 1, count[] = {width, height, 1};
    *m = (mica_tensor_map_spec){.dtype = s->in,
                                .rank = last + 1,
                                .dims = {s->g.groups * (of_a ? s->g.c : s->g.k)},
                                .box = {(uint32_t)channels, 1, 1, 1, 1},
                                .swizzle_bytes = 2 * channels};
    for (int i = 0; i < s->axes; i++) {
        uint32_t step = of_a ? (uint32_t)s->step[2 - i] : 1; /* in a box, too */
        m->dims[i + 1] = size[2 - i];
        m->stride_bytes[i + 1] = stride_bytes(size[2 - i], at->s[2 - i]);
        m->box[i + 1] = (uint32_t)count[i] * step;
        m->element_strides[i + 1] = step;
    }
    m->dims[last] = s->g.n;
    m->stride_bytes[last] = stride_bytes(s->g.n, at->n);
}

void mica_conv_sm90_residual_map(const mica_conv_sm90_shape *s, const mica_conv_desc *d,
                                 const mica_tensor_map_spec *result, mica_tensor_map_spec *m)
{
    const mica_conv_strides *at = &s->g.residual;
    int last = s->axes + 1;
    mica_why why;
    *m = (mica_tensor_map_spec){0};
    if (!s->residual || mica_dtype_bits(d->residual.dtype) != mica_dtype_bits(s->out)) return;
    if (mica_conv_sm90_image_ok(&d->residual, "residual", &why) != MICA_OK) return;
    *m = *result;
    m->dtype = d->residual.dtype;
    for (int i = 0; i < s->axes; i++)
        m->stride_bytes[i + 1] = stride_bytes(m->dims[i + 1], at->s[2 - i]);
    m->stride_bytes[last] = stride_bytes(m->dims[last], at->n);
}

void mica_conv_sm90_filter_map(const mica_conv_sm90_shape *s, const mica_conv_desc *d, int channels,
                               int cols, mica_tensor_map_spec *m)
{
    int inner = d->w.strides[1] == 1 ? 1 : 0, last = s->axes + 1;
    *m = (mica_tensor_map_spec){.dtype = s->in,
                                .rank = s->axes + 2,
                                .dims = {d->w.dims[inner]},
                                .box = {(uint32_t)channels, 1, 1, 1, 1},
                                .swizzle_bytes = 2 * channels};
    for (int i = 0; i < s->axes; i++) {
        int at = d->w.rank - 1 - i;
        int64_t size =
            at < 2 ? 1 : d->w.dims[at]; /* the shape may have an axis more than the filter */
        m->dims[i + 1] = size;
        m->stride_bytes[i + 1] = stride_bytes(size, d->w.strides[at]);
    }
    m->dims[last] = d->w.dims[1 - inner];
    m->stride_bytes[last] = stride_bytes(d->w.dims[1 - inner], d->w.strides[1 - inner]);
    m->box[last] = (uint32_t)(s->filter_mn ? channels : cols);
}
