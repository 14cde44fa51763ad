/* SPDX-License-Identifier: Apache-2.0
 * The functions in C, for the type `real` that the including file defines beside FORMS(name): a
 * function of libm by its name in that type. */
#include "ops/pointwise/functions.h"
#include "base/tensor.h"
#include "cpu/cpu.h"

#define POINTWISE __attribute__((always_inline, unused)) static inline

POINTWISE real infinity_of(void)
{
    return (real)__builtin_inf();
}

/* Rounded once, from either type. */
static real round_through(mica_dtype type, real v)
{
    char element[8];
    mica_dtype_store(type)(element, 0, (double)v);
    return (real)mica_dtype_load(type)(element, 0);
}

POINTWISE real round_f16(real v)
{
    return round_through(MICA_F16, v);
}

POINTWISE real round_bf16(real v)
{
    return round_through(MICA_BF16, v);
}

#include "ops/pointwise/functions_body.h"

/* Rows as functions; what a row has no use for is not touched. */
#define FUNCTION(name, kind, arity, exact, ulps, inner, value, ...)                                \
    POINTWISE real fn_##name(real a, real b, real c)                                               \
    {                                                                                              \
        (void)a, (void)b, (void)c;                                                                 \
        return (real)(value);                                                                      \
    }
#include "ops/pointwise/functions.def"

typedef real row_function(real a, real b, real c);

/* Elements in whole vectors of any machine: loops for these alone take a third of the space. So n
 * is a multiple, and is rounded for the compiler to know. */
enum { MICA_WHOLE = 64 / sizeof(real) };

POINTWISE void map(row_function *f, real *out, const real *const *in, int64_t n)
{
    const real *a = in[0], *b = in[1], *c = in[2];
    if (n <= 0) return;
    n = (n + MICA_WHOLE - 1) & -MICA_WHOLE;
    MICA_INDEPENDENT
    for (int64_t i = 0; i < n; i++) out[i] = f(a[i], b[i], c[i]);
}
