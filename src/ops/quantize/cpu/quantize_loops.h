/* SPDX-License-Identifier: Apache-2.0
 * Vector loops over the elements of a piece in `real`, each with a scale and a zero point of its
 * own. The including file says what quantize_body.h asks for. */
#include "ops/quantize/quantize_body.h"

MICA_CLONES
static void CODE_NAME(coded_integers)(real low, real top, const real *x, const real *scale,
                                      const real *zero, real *q, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        q[i] = CODE_NAME(coded_integer)(low, top, x[i], scale[i], zero[i]);
}

MICA_CLONES
static void CODE_NAME(coded_floats)(real top, real nan, const real *x, const real *scale, real *q,
                                    int64_t n)
{
    for (int64_t i = 0; i < n; i++) q[i] = CODE_NAME(coded_float)(top, nan, x[i], scale[i]);
}

static void CODE_NAME(coded_run)(int code, const real *x, const real *scale, const real *zero,
                                 real *q, int64_t n)
{
    const real top = (real)CODE_TOP(code), low = (real)CODE_LOW(code);
    if (CODE_IS_FLOAT(code))
        CODE_NAME(coded_floats)(top, CODE_NAME(coded_nan)(code), x, scale, q, n);
    else
        CODE_NAME(coded_integers)(low, top, x, scale, zero, q, n);
}

MICA_CLONES
static void CODE_NAME(decoded_run)(const real *code, const real *scale, const real *zero, real *v,
                                   int64_t n)
{
    for (int64_t i = 0; i < n; i++) v[i] = CODE_NAME(decoded)(code[i], scale[i], zero[i]);
}
