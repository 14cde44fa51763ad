/* SPDX-License-Identifier: Apache-2.0
 * Vector loops of fake_quantize in `real`. The including file says what quantize_body.h asks for.
 */
#include "ops/quantize/quantize_body.h"
#include "ops/quantize/fake_quantize_body.h"

/* zero: NULL is 0 for all. */
MICA_CLONES
static void CODE_NAME(fake_integers)(const fake *f, const real *x, const real *scale,
                                     const real *zero, const real *dy, real *out, int64_t n)
{
    const real low = (real)f->low, top = (real)f->top;
    const bool product = f->product;
    MICA_INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        const real r = CODE_NAME(fake_quotient)(product, x[i], scale[i]), z = zero ? zero[i] : 0;
        if (dy)
            out[i] = CODE_NAME(fake_integer_passes)(low, top, r, z) ? dy[i] : 0;
        else
            out[i] = CODE_NAME(fake_integer)(low, top, product ? low : z, r, scale[i], z);
    }
}

MICA_CLONES
static void CODE_NAME(fake_floats)(const fake *f, const real *x, const real *scale, const real *dy,
                                   real *out, int64_t n)
{
    const real top = (real)f->top;
    const int digits = CODE_DIGITS(f->code), least = CODE_LEAST(f->code);
    const bool product = f->product;
    MICA_INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        const real r = CODE_NAME(fake_quotient)(product, x[i], scale[i]);
        const real q = x[i] == 0 && scale[i] == 0 ? 0 : r;
        if (dy)
            out[i] = q >= -top && q <= top ? dy[i] : 0;
        else
            out[i] = CODE_NAME(fake_float)(digits, least, top, q, scale[i]);
    }
}

static void CODE_NAME(fake_block)(const void *desc, int variant, void *const *v,
                                  const void *numbers, int64_t n)
{
    const real *ends = numbers;
    const mica_fake_quantize_desc *d = desc;
    const fake f = {.code = mica_fake_quantize_code(d),
                    .product = d->rule == MICA_FAKE_QUANTIZE_PRODUCT,
                    .low = (double)ends[FAKE_LOW],
                    .top = (double)ends[FAKE_TOP]};
    (void)variant;
    const real *x = v[FAKE_X], *scale = v[FAKE_SCALE], *zero = v[FAKE_ZERO], *dy = v[FAKE_DY];
    if (CODE_IS_FLOAT(f.code))
        CODE_NAME(fake_floats)(&f, x, scale, dy, v[FAKE_OUT], n);
    else
        CODE_NAME(fake_integers)(&f, x, scale, zero, dy, v[FAKE_OUT], n);
}
