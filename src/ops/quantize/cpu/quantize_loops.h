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

/* Each with a word of its own. */
MICA_CLONES
static void CODE_NAME(chance_integers)(real low, real top, const real *x, const real *scale,
                                       const real *zero, const uint32_t *word, real *q, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        q[i] = CODE_NAME(integer_by_chance)(low, top, div_of(x[i], scale[i]), zero[i], word[i]);
}

MICA_CLONES
static void CODE_NAME(chance_floats)(int digits, int least, real *q, const uint32_t *word,
                                     int64_t n)
{
    for (int64_t i = 0; i < n; i++) q[i] = CODE_NAME(float_by_chance)(digits, least, q[i], word[i]);
}

static void CODE_NAME(chance_run)(int code, const real *x, const real *scale, const real *zero,
                                  const uint32_t *word, real *q, int64_t n)
{
    const real top = (real)CODE_TOP(code), low = (real)CODE_LOW(code);
    if (!CODE_IS_FLOAT(code)) {
        CODE_NAME(chance_integers)(low, top, x, scale, zero, word, q, n);
        return;
    }
    CODE_NAME(coded_floats)(top, CODE_NAME(coded_nan)(code), x, scale, q, n);
    CODE_NAME(chance_floats)(CODE_DIGITS(code), CODE_LEAST(code), q, word, n);
}

MICA_CLONES
static void CODE_NAME(decoded_run)(const real *code, const real *scale, const real *zero, real *v,
                                   int64_t n)
{
    for (int64_t i = 0; i < n; i++) v[i] = CODE_NAME(decoded)(code[i], scale[i], zero[i]);
}
