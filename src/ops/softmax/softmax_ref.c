/* SPDX-License-Identifier: Apache-2.0
 * Softmax, the truth. Magnitudes: an f32 engine computes x - max with an error of one unit of its
 * size, which exp turns into a relative error of the exponential and, weighted, of the sum. The
 * tolerance multiplies magnitudes by the growth of a sum of n terms, which that error does not
 * take part in: so it enters divided by it. */
#include "ops/softmax/softmax.h"
#include "ops/softmax/variants/variants.h"
#include "ops/reduce/cpu/rows.h"
#include "cpu/cpu.h"

#include <math.h>

/* Units that rounding a sum of n terms may add up to (the contract's phi, in units). */
static double growth(int64_t n)
{
    return fmax(1, fmin((double)n, 4 * sqrt((double)n)));
}

static void forward(const mica_softmax_desc *d, const mica_view *x, int64_t xo, const mica_view *y,
                    int64_t yo)
{
    int64_t n = x->t.dims[d->axis], xs = x->t.strides[d->axis], ys = y->t.strides[d->axis];
    double max = -INFINITY, spread = 0;
    long double exact = 0; /* the truth of f64 results needs more than f64 */
    for (int64_t a = 0; a < n; a++) max = fmax(max, mica_get(x, xo + a * xs));
    for (int64_t a = 0; a < n; a++) {
        double v = mica_get(x, xo + a * xs) - max, e = exp(v);
        exact += (long double)e;
        spread += e > 0 ? e * fabs(v) : 0;
    }
    double sum = (double)exact;
    spread /= sum;
    double by = 1 / growth(n);
    for (int64_t a = 0; a < n; a++) {
        double v = mica_get(x, xo + a * xs) - max;
        if (d->log) {
            mica_put(y, yo + a * ys, v - log(sum), 1 + (fabs(v) + log(sum) + spread) * by);
        } else {
            double p = exp(v) / sum;
            mica_put(y, yo + a * ys, p, p > 0 ? p * (1 + (fabs(v) + spread) * by) : p);
        }
    }
}

static void backward(const mica_softmax_desc *d, const mica_view *y, int64_t yo,
                     const mica_view *dy, int64_t dyo, const mica_view *dx, int64_t dxo)
{
    int64_t n = y->t.dims[d->axis], ys = y->t.strides[d->axis], dys = dy->t.strides[d->axis];
    int64_t dxs = dx->t.strides[d->axis];
    double magnitude = 0;
    long double exact = 0;
    for (int64_t a = 0; a < n; a++) {
        double g = mica_get(dy, dyo + a * dys);
        double v = d->log ? g : g * mica_get(y, yo + a * ys);
        exact += (long double)v;
        magnitude += fabs(v);
    }
    double sum = (double)exact;
    for (int64_t a = 0; a < n; a++) {
        double v = mica_get(y, yo + a * ys), g = mica_get(dy, dyo + a * dys);
        if (d->log) {
            double p = exp(v);
            mica_put(dx, dxo + a * dxs, g - p * sum,
                     fabs(g) + (1 + 2 * MICA_EXP_ULPS / growth(n)) * p * magnitude);
        } else {
            mica_put(dx, dxo + a * dxs, v * (g - sum), fabs(v) * (fabs(g) + magnitude));
        }
    }
}

void mica_softmax_reference(const void *desc, const mica_view *args, const double *scalars)
{
    const mica_softmax_desc *d = desc;
    (void)scalars;
    if (mica_softmax_is_variant(d)) {
        mica_softmax_variants_reference(d, args);
        return;
    }
    mica_softmax_operands o = mica_softmax_operands_of(d);
    const mica_view *v[3];
    mica_tensor slices[3];
    for (int t = 0; t < o.count; t++) {
        v[t] = &args[o.arg[t]];
        slices[t] = mica_softmax_without_axis(&v[t]->t, d->axis);
    }
    int64_t count = v[0]->t.dims[d->axis] ? mica_tensor_count(&slices[0]) : 0;
#pragma omp parallel for num_threads(mica_cpu_threads())
    for (int64_t i = 0; i < count; i++) {
        int64_t first[3] = {0};
        for (int t = 0; t < o.count; t++) first[t] = mica_offset(&slices[t], i);
        if (o.count == 2)
            forward(d, v[0], first[0], v[1], first[1]);
        else
            backward(d, v[0], first[0], v[1], first[1], v[2], first[2]);
    }
}
