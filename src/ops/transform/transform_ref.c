/* SPDX-License-Identifier: Apache-2.0
 * The transform family's truth. */
#include "ops/transform/transform.h"
#include "cpu/cpu.h"
#include "ops/convert/integer.h"

#include <math.h>
#include <string.h>

/* s64 has more digits than a double. On the way to f64 it rounds to nearest; on the way to shorter
 * types it must not be rounded twice, so lost digits leave an odd last bit. */
static double load(const mica_view *x, int64_t offset, mica_dtype to)
{
    if (x->t.dtype != MICA_S64 || to == MICA_F64 || to == MICA_S64) return mica_get(x, offset);
    int64_t v = ((const int64_t *)x->data)[offset];
    double d = (double)v;
    if (d != 0x1p63 && (int64_t)d == v) return d;
    /* d was rounded: take the odd one of the two doubles around v. */
    double other = nextafter(d, d == 0x1p63 || (int64_t)d > v ? -INFINITY : INFINITY);
    uint64_t bits;
    memcpy(&bits, &d, sizeof bits);
    return bits & 1 ? d : other;
}

static void copy_bits(const mica_view *x, int64_t xo, const mica_view *y, int64_t yo)
{
    size_t bytes = (size_t)mica_dtype_bits(x->t.dtype) / 8;
    memcpy((char *)y->data + yo * (int64_t)bytes, (const char *)x->data + xo * (int64_t)bytes,
           bytes);
}

void mica_transform_reference(const void *desc, const mica_view *args, const double *scalars)
{
    const mica_transform_desc *d = desc;
    const mica_view *x = &args[MICA_TRANSFORM_X], *y = &args[MICA_TRANSFORM_Y];
    double alpha = scalars[MICA_TRANSFORM_ALPHA], beta = scalars[MICA_TRANSFORM_BETA];
    bool plain = alpha == 1 && beta == 0;
    /* Results for a check go to doubles, whatever y's type: then there are no bits to keep. */
    bool bits = plain && d->x.dtype == d->y.dtype && !y->mag && y->t.dtype == d->y.dtype;
    mica_tensor source = mica_transform_source(d, &x->t);
    int64_t count = mica_tensor_count(&source);
#pragma omp parallel for num_threads(mica_cpu_threads()) schedule(static)
    for (int64_t i = 0; i < count; i++) {
        int64_t xo = mica_offset(&source, i), yo = mica_offset(&y->t, i);
        if (bits) {
            copy_bits(x, xo, y, yo);
            continue;
        }
        double v = plain ? load(x, xo, d->y.dtype) : alpha * mica_get(x, xo);
        double magnitude = fabs(v);
        if (beta != 0) {
            double old = mica_get(y, yo);
            magnitude += fabs(beta * old);
            v = fma(alpha, mica_get(x, xo), beta * old);
        }
        mica_put(y, yo, mica_round_integer(d->y.dtype, v), magnitude);
    }
}
