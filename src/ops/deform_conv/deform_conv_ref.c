/* SPDX-License-Identifier: Apache-2.0
 * The truth of deformable convolution: plain loops, with the errors (ops/numbers.h) of the values
 * that are read between elements and rounded to x's type. */
#include "ops/deform_conv/deform_conv.h"
#include "ops/numbers.h"

typedef struct truth {
    const mica_deform_conv_desc *d;
    const mica_view *args;
    mica_accuracy accuracy;
} truth;

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

/* What tap (r, s) of window (p, q) reads in channel c. */
static mica_number tap(const truth *t, int64_t n, int64_t c, int64_t r, int64_t s, int64_t p,
                       int64_t q)
{
    const mica_deform_conv_desc *d = t->d;
    const mica_view *offset = &t->args[MICA_DEFORM_CONV_OFFSET];
    const mica_view *mask = &t->args[MICA_DEFORM_CONV_MASK];
    const int64_t group = c / (d->x.dims[1] / d->offset_groups);
    const int64_t k = (group * d->w.dims[2] + r) * d->w.dims[3] + s;
    double h = (double)(p * d->stride[0] - d->pad[0] + r * d->dilation[0]);
    double w = (double)(q * d->stride[1] - d->pad[1] + s * d->dilation[1]);
    h += at(offset, n, 2 * k, p, q), w += at(offset, n, 2 * k + 1, p, q);
    if (d->x.dtype != MICA_F64) h = (double)(float)h, w = (double)(float)w;
    mica_number v = between(t, n, c, h, w);
    if (mask->data)
        v = mica_number_product(&t->accuracy, v, mica_number_exact(at(mask, n, k, p, q)));
    return mica_number_rounded(&t->accuracy, v);
}

static mica_number output(const truth *t, int64_t n, int64_t k, int64_t p, int64_t q)
{
    const mica_deform_conv_desc *d = t->d;
    const mica_view *w = &t->args[MICA_DEFORM_CONV_W], *bias = &t->args[MICA_DEFORM_CONV_BIAS];
    const int64_t channels = d->w.dims[1], first = k / (d->w.dims[0] / d->groups) * channels;
    mica_number_sum sum = {0};
    for (int64_t c = 0; c < channels; c++)
        for (int64_t r = 0; r < d->w.dims[2]; r++)
            for (int64_t s = 0; s < d->w.dims[3]; s++)
                mica_number_add(&t->accuracy, &sum, tap(t, n, first + c, r, s, p, q),
                                mica_number_exact(at(w, k, c, r, s)));
    if (bias->data)
        mica_number_add(&t->accuracy, &sum,
                        mica_number_exact(mica_get(bias, k * bias->t.strides[0])),
                        mica_number_exact(1));
    return mica_number_total(&t->accuracy, &sum);
}

void mica_deform_conv_reference(const void *desc, const mica_view *views, const double *scalars)
{
    const mica_deform_conv_desc *d = desc;
    const mica_view *y = &views[MICA_DEFORM_CONV_Y];
    const int64_t *size = y->t.dims, *step = y->t.strides;
    const truth t = {d, views, mica_accuracy_of(&mica_op_deform_conv, d, d->x.dtype, false)};
    (void)scalars;
    for (int64_t n = 0; n < size[0]; n++)
        for (int64_t k = 0; k < size[1]; k++)
            for (int64_t p = 0; p < size[2]; p++)
                for (int64_t q = 0; q < size[3]; q++)
                    mica_number_put(&t.accuracy, y,
                                    n * step[0] + k * step[1] + p * step[2] + q * step[3],
                                    output(&t, n, k, p, q));
}
