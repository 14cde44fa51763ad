/* SPDX-License-Identifier: Apache-2.0
 * The truth of deformable convolution and its gradients: plain loops, with the errors
 * (ops/numbers.h) of the values that are read between elements and rounded to x's type, and of the
 * gradients of columns, which are, too. */
#include "ops/deform_conv/deform_conv.h"
#include "ops/numbers.h"

#include "base/memory.h"

typedef struct truth {
    const mica_deform_conv_desc *d;
    const mica_view *args;
    mica_accuracy accuracy;
    mica_accuracy products; /* of sums over channels of y alone */
} truth;

/* The tap (r, s), all taps being k-th of their offset group, of window (p, q). */
typedef struct tap_place {
    int64_t n, group, r, s, k, p, q;
    double h, w; /* where it reads */
    mica_number mask;
} tap_place;

static double at(const mica_view *v, int64_t a, int64_t b, int64_t c, int64_t d)
{
    const int64_t *s = v->t.strides;
    return mica_get(v, a * s[0] + b * s[1] + c * s[2] + d * s[3]);
}

/* x at a place: the sum of the elements around it by their distances, and of their magnitudes. */
static mica_number between(const truth *t, int64_t n, int64_t c, double h, double w)
{
    const mica_view *x = &t->args[MICA_DEFORM_CONV_X];
    mica_number sum = {0, 0};
    if (!(h > -1 && h < (double)x->t.dims[2] && w > -1 && w < (double)x->t.dims[3])) return sum;
    for (double i = floor(h); i <= floor(h) + 1; i++)
        for (double j = floor(w); j <= floor(w) + 1; j++) {
            const double weight = (1 - fabs(h - i)) * (1 - fabs(w - j));
            const bool beside =
                i < 0 || j < 0 || i >= (double)x->t.dims[2] || j >= (double)x->t.dims[3];
            if (beside || !(weight > 0)) continue;
            const double v = weight * at(x, n, c, (int64_t)i, (int64_t)j);
            sum.v += v;
            sum.error += 8 * fabs(v); /* of weights, of the product, of the sum */
        }
    sum.error = mica_number_known(sum.error);
    return sum;
}

/* Not inlined: gcc 12 leaves out both conversions where it makes a vector of two of them. */
__attribute__((noinline)) static double rounded(bool wide, double place)
{
    return wide ? place : (double)(float)place;
}

static tap_place place_of(const truth *t, int64_t n, int64_t group, int64_t r, int64_t s, int64_t p,
                          int64_t q)
{
    const mica_deform_conv_desc *d = t->d;
    const mica_tensor *filter = mica_deform_conv_filter(d);
    const mica_view *offset = &t->args[MICA_DEFORM_CONV_OFFSET];
    const mica_view *mask = &t->args[MICA_DEFORM_CONV_MASK];
    const int64_t k = (group * filter->dims[2] + r) * filter->dims[3] + s;
    const double h = (double)(p * d->stride[0] - d->pad[0] + r * d->dilation[0]);
    const double w = (double)(q * d->stride[1] - d->pad[1] + s * d->dilation[1]);
    const double places[] = {h + at(offset, n, 2 * k, p, q), w + at(offset, n, 2 * k + 1, p, q)};
    const bool wide = d->x.dtype == MICA_F64;
    return (tap_place){n,
                       group,
                       r,
                       s,
                       k,
                       p,
                       q,
                       rounded(wide, places[0]),
                       rounded(wide, places[1]),
                       mica_number_exact(mask->data ? at(mask, n, k, p, q) : 1)};
}

/* What it reads in channel c. */
static mica_number tap(const truth *t, const tap_place *o, int64_t c)
{
    mica_number v = between(t, o->n, c, o->h, o->w);
    if (t->args[MICA_DEFORM_CONV_MASK].data) v = mica_number_product(&t->accuracy, v, o->mask);
    return mica_number_rounded(&t->accuracy, v);
}

static mica_number output(const truth *t, int64_t n, int64_t k, int64_t p, int64_t q)
{
    const mica_deform_conv_desc *d = t->d;
    const mica_view *w = &t->args[MICA_DEFORM_CONV_W], *bias = &t->args[MICA_DEFORM_CONV_BIAS];
    const int64_t channels = d->w.dims[1], first = k / (d->w.dims[0] / d->groups) * channels;
    const int64_t of_group = d->x.dims[1] / d->offset_groups;
    mica_number_sum sum = {0};
    for (int64_t c = 0; c < channels; c++)
        for (int64_t r = 0; r < d->w.dims[2]; r++)
            for (int64_t s = 0; s < d->w.dims[3]; s++) {
                const tap_place o = place_of(t, n, (first + c) / of_group, r, s, p, q);
                mica_number_add(&t->accuracy, &sum, tap(t, &o, first + c),
                                mica_number_exact(at(w, k, c, r, s)));
            }
    if (bias->data)
        mica_number_add(&t->accuracy, &sum,
                        mica_number_exact(mica_get(bias, k * bias->t.strides[0])),
                        mica_number_exact(1));
    return mica_number_total(&t->accuracy, &sum);
}

static int64_t offset_of(const mica_view *v, int64_t a, int64_t b, int64_t c, int64_t d)
{
    const int64_t *s = v->t.strides;
    return a * s[0] + b * s[1] + c * s[2] + d * s[3];
}

static void forward(const truth *t)
{
    const mica_view *y = &t->args[MICA_DEFORM_CONV_Y];
    const int64_t *size = y->t.dims;
    for (int64_t n = 0; n < size[0]; n++)
        for (int64_t k = 0; k < size[1]; k++)
            for (int64_t p = 0; p < size[2]; p++)
                for (int64_t q = 0; q < size[3]; q++)
                    mica_number_put(&t->accuracy, y, offset_of(y, n, k, p, q),
                                    output(t, n, k, p, q));
}

/* ---- gradients of x, offsets, mask ---- */

/* Squares of the smallest errors vanish: of those all are counted. */
static mica_number total_of(const mica_accuracy *a, const mica_number_sum *sum)
{
    mica_number n = mica_number_total(a, sum);
    if (sum->squares < DBL_MIN) n.error += sum->linear;
    return n;
}

/* Of what a tap reads in channel c. */
static mica_number gradient(const truth *t, const tap_place *o, int64_t c)
{
    const mica_deform_conv_desc *d = t->d;
    const mica_view *w = &t->args[MICA_DEFORM_CONV_W], *dy = &t->args[MICA_DEFORM_CONV_DY];
    const int64_t channels = d->w.dims[1], outputs = d->w.dims[0] / d->groups;
    const int64_t first = c / channels * outputs;
    mica_number_sum sum = {0};
    for (int64_t k = first; k < first + outputs; k++)
        mica_number_add(&t->products, &sum, mica_number_exact(at(w, k, c % channels, o->r, o->s)),
                        mica_number_exact(at(dy, o->n, k, o->p, o->q)));
    mica_number total = total_of(&t->products, &sum);
    total.error += (double)outputs * t->accuracy.least; /* products may be subnormal */
    return mica_number_rounded(&t->accuracy, total);
}

/* A corner (i, j) of the four around a place: false if it is beside x. */
typedef struct corner {
    int64_t h, w;
    double weight[2], slope[2]; /* along H and W */
} corner;

static bool corner_of(const truth *t, const tap_place *o, int i, int j, corner *to)
{
    const mica_tensor *x = &t->d->x;
    const double h = floor(o->h) + i, w = floor(o->w) + j;
    if (!(h >= 0 && h < (double)x->dims[2] && w >= 0 && w < (double)x->dims[3])) return false;
    *to = (corner){
        (int64_t)h, (int64_t)w, {1 - fabs(o->h - h), 1 - fabs(o->w - w)}, {i ? 1 : -1, j ? 1 : -1}};
    return true;
}

/* Adds to a sum: a gradient times an element of x times a factor, nothing of the factor 0. Engines
 * multiply with the factor last. */
static void add(const truth *t, mica_number_sum *sum, mica_number gradient, double x, double factor)
{
    const mica_accuracy *a = &t->accuracy;
    if (!(factor != 0)) return;
    const long double by = (long double)x * factor, v = by * gradient.v;
    const double e = mica_number_known((double)(fabsl(by) * gradient.error + 4 * fabsl(v)));
    const double error = fabs(gradient.v * x) < a->most / 4 ? e : (double)INFINITY;
    sum->v += v;
    sum->size += (double)fabsl(v);
    sum->linear += error;
    sum->squares += error * error;
}

static void put_product(const truth *t, const mica_view *to, int64_t offset,
                        const mica_number_sum *sum, mica_number mask)
{
    const mica_number total = total_of(&t->accuracy, sum);
    mica_number_put(&t->accuracy, to, offset, mica_number_product(&t->accuracy, total, mask));
}

static void slopes_of_tap(const truth *t, const tap_place *o)
{
    const mica_view *x = &t->args[MICA_DEFORM_CONV_X];
    const mica_view *doffset = &t->args[MICA_DEFORM_CONV_DOFFSET];
    const mica_view *dmask = &t->args[MICA_DEFORM_CONV_DMASK];
    const int64_t of_group = t->d->x.dims[1] / t->d->offset_groups;
    mica_number_sum sums[3] = {0};
    corner e;
    for (int64_t c = o->group * of_group; c < (o->group + 1) * of_group; c++) {
        const mica_number g = gradient(t, o, c);
        for (int i = 0; i < 4; i++) {
            if (!corner_of(t, o, i / 2, i % 2, &e)) continue;
            const double v = at(x, o->n, c, e.h, e.w);
            add(t, &sums[0], g, v, e.slope[0] * e.weight[1]);
            add(t, &sums[1], g, v, e.weight[0] * e.slope[1]);
            add(t, &sums[2], g, v, e.weight[0] * e.weight[1]);
        }
    }
    for (int i = 0; i < 2 && doffset->data; i++)
        put_product(t, doffset, offset_of(doffset, o->n, 2 * o->k + i, o->p, o->q), &sums[i],
                    o->mask);
    if (dmask->data)
        put_product(t, dmask, offset_of(dmask, o->n, o->k, o->p, o->q), &sums[2],
                    mica_number_exact(1));
}

/* Elements of dx from the first-th on. */
typedef struct window {
    int64_t first, count;
    mica_number_sum *sums;
} window;

static void scatter_tap(const truth *t, const tap_place *o, const window *to)
{
    const mica_tensor *x = &t->d->x;
    const int64_t of_group = x->dims[1] / t->d->offset_groups;
    corner e;
    for (int64_t c = o->group * of_group; c < (o->group + 1) * of_group; c++) {
        const int64_t plane = (o->n * x->dims[1] + c) * x->dims[2] * x->dims[3] - to->first;
        if (plane >= to->count || plane + x->dims[2] * x->dims[3] <= 0) continue;
        const mica_number g = gradient(t, o, c);
        for (int i = 0; i < 4; i++) {
            if (!corner_of(t, o, i / 2, i % 2, &e)) continue;
            const double weight = e.weight[0] * e.weight[1];
            const int64_t cell = plane + e.h * x->dims[3] + e.w;
            if (!(weight > 0) || cell < 0 || cell >= to->count) continue;
            const mica_number factor = {weight, 4 * weight};
            mica_number_add(&t->accuracy, &to->sums[cell], g,
                            mica_number_product(&t->accuracy, factor, o->mask));
        }
    }
}

/* Calls for each tap of each window; to NULL: the slopes. */
static void each_tap(const truth *t, const window *to)
{
    const mica_deform_conv_desc *d = t->d;
    for (int64_t n = 0; n < d->x.dims[0]; n++)
        for (int64_t o = 0; o < d->offset_groups; o++)
            for (int64_t k = 0; k < d->w.dims[2] * d->w.dims[3]; k++)
                for (int64_t i = 0; i < d->dy.dims[2] * d->dy.dims[3]; i++) {
                    const tap_place place = place_of(t, n, o, k / d->w.dims[3], k % d->w.dims[3],
                                                     i / d->dy.dims[3], i % d->dy.dims[3]);
                    if (to)
                        scatter_tap(t, &place, to);
                    else
                        slopes_of_tap(t, &place);
                }
}

/* All at once, or in windows where there is no memory for all. */
static void scatter(const truth *t)
{
    enum { FEW = 64 };
    const mica_view *dx = &t->args[MICA_DEFORM_CONV_DX];
    const int64_t cells = mica_tensor_count(&dx->t);
    mica_number_sum few[FEW], *all = mica_alloc((size_t)cells * sizeof *all);
    window w = {.sums = all ? all : few};
    for (; w.first < cells; w.first += w.count) {
        w.count = all || cells - w.first < FEW ? cells - w.first : FEW;
        for (int64_t i = 0; i < w.count; i++) w.sums[i] = (mica_number_sum){0};
        each_tap(t, &w);
        for (int64_t i = 0; i < w.count; i++)
            mica_number_put(&t->accuracy, dx, mica_offset(&dx->t, w.first + i),
                            total_of(&t->accuracy, &w.sums[i]));
    }
    mica_release(all);
}

/* ---- gradients of filter and bias ---- */

static mica_number filter_sum(const truth *t, int64_t k, int64_t c, int64_t r, int64_t s)
{
    const mica_deform_conv_desc *d = t->d;
    const mica_view *dy = &t->args[MICA_DEFORM_CONV_DY];
    const int64_t channel = k / (d->dw.dims[0] / d->groups) * d->dw.dims[1] + c;
    const int64_t group = channel / (d->x.dims[1] / d->offset_groups);
    mica_number_sum sum = {0};
    for (int64_t n = 0; n < d->dy.dims[0]; n++)
        for (int64_t p = 0; p < d->dy.dims[2]; p++)
            for (int64_t q = 0; q < d->dy.dims[3]; q++) {
                const tap_place o = place_of(t, n, group, r, s, p, q);
                mica_number_add(&t->accuracy, &sum, tap(t, &o, channel),
                                mica_number_exact(at(dy, n, k, p, q)));
            }
    return total_of(&t->accuracy, &sum);
}

static void bias_sums(const truth *t)
{
    const mica_view *dy = &t->args[MICA_DEFORM_CONV_DY], *to = &t->args[MICA_DEFORM_CONV_DBIAS];
    const int64_t *size = dy->t.dims;
    for (int64_t k = 0; k < size[1]; k++) {
        mica_number_sum sum = {0};
        for (int64_t n = 0; n < size[0]; n++)
            for (int64_t p = 0; p < size[2]; p++)
                for (int64_t q = 0; q < size[3]; q++)
                    mica_number_add(&t->accuracy, &sum, mica_number_exact(at(dy, n, k, p, q)),
                                    mica_number_exact(1));
        mica_number_put(&t->accuracy, to, k * to->t.strides[0], total_of(&t->accuracy, &sum));
    }
}

static void filter_sums(const truth *t)
{
    const mica_view *dw = &t->args[MICA_DEFORM_CONV_DW];
    const int64_t *size = dw->t.dims;
    for (int64_t k = 0; k < size[0]; k++)
        for (int64_t c = 0; c < size[1]; c++)
            for (int64_t r = 0; r < size[2]; r++)
                for (int64_t s = 0; s < size[3]; s++)
                    mica_number_put(&t->accuracy, dw, offset_of(dw, k, c, r, s),
                                    filter_sum(t, k, c, r, s));
}

void mica_deform_conv_reference(const void *desc, const mica_view *views, const double *scalars)
{
    const mica_deform_conv_desc *d = desc;
    truth t = {.d = d,
               .args = views,
               .accuracy = mica_accuracy_of(&mica_op_deform_conv, d, d->x.dtype, false)};
    (void)scalars;
    if (d->pass == MICA_DEFORM_CONV_FWD) forward(&t);
    if (d->pass == MICA_DEFORM_CONV_WGRAD) {
        filter_sums(&t);
        if (views[MICA_DEFORM_CONV_DBIAS].data) bias_sums(&t);
    }
    if (d->pass != MICA_DEFORM_CONV_DGRAD) return;
    t.products = t.accuracy;
    if (t.accuracy.rounding > 1) { /* tensor cores */
        t.accuracy.sums = t.accuracy.growth;
        t.products.sums = fmax(t.accuracy.growth, (double)d->w.dims[0] / 4 + 46);
    }
    if (views[MICA_DEFORM_CONV_DOFFSET].data || views[MICA_DEFORM_CONV_DMASK].data)
        each_tap(&t, NULL);
    if (views[MICA_DEFORM_CONV_DX].data) scatter(&t);
}
