/* SPDX-License-Identifier: Apache-2.0
 * The element functions of s64, in blocks: the rows of functions.def that whole numbers have. */
#include "ops/pointwise/functions.h"
#include "cpu/cpu.h"

#include <stdbool.h>

#define POINTWISE __attribute__((always_inline, unused)) static inline
#include "ops/pointwise/functions_whole_body.h"

typedef whole_t real;

/* What rows take and give: functions.h. */
#define ROW_SAME(name, value)                                                                      \
    POINTWISE whole_t fn_##name(whole_t a, whole_t b, whole_t c)                                   \
    {                                                                                              \
        (void)a, (void)b, (void)c;                                                                 \
        return value;                                                                              \
    }
#define ROW_TEST(name, value)                                                                      \
    POINTWISE double fn_##name(whole_t a, whole_t b, whole_t c)                                    \
    {                                                                                              \
        (void)a, (void)b, (void)c;                                                                 \
        return (double)(value);                                                                    \
    }
#define ROW_PICK(name, value)                                                                      \
    POINTWISE whole_t fn_##name(double a, whole_t b, whole_t c)                                    \
    {                                                                                              \
        return value;                                                                              \
    }
#define ROW_WHOLE(name, value)                                                                     \
    POINTWISE whole_t fn_##name(double a)                                                          \
    {                                                                                              \
        return value;                                                                              \
    }
#define ROW_QUOTIENT(name, value) ROW_SAME(name, value)
#define ROW_KEEP(name, value)     ROW_SAME(name, value)
#define ROW_BITS(name, value)     ROW_SAME(name, value)
#define ROW_HIDDEN(name, value)   ROW_TEST(name, value)
#define ROW_REAL(name, value)
#define ROW_CLASS(name, value)
#define ROW_LOGIC(name, value)
#define ROW_CAST(name, value)
#define FUNCTION(name, kind, arity, exact, ulps, inner, value, ...) ROW_##kind(name, value)
#include "ops/pointwise/functions.def"

typedef whole_t same_row(whole_t a, whole_t b, whole_t c);
typedef double test_row(whole_t a, whole_t b, whole_t c);
typedef whole_t pick_row(double a, whole_t b, whole_t c);
typedef whole_t whole_row(double a);

POINTWISE void map_same(same_row *f, void *to, const void *const *in, int64_t n)
{
    whole_t *out = to;
    const whole_t *a = in[0], *b = in[1], *c = in[2];
    MICA_INDEPENDENT
    for (int64_t i = 0; i < n; i++) out[i] = f(a[i], b[i], c[i]);
}

POINTWISE void map_test(test_row *f, void *to, const void *const *in, int64_t n)
{
    double *out = to;
    const whole_t *a = in[0], *b = in[1], *c = in[2];
    MICA_INDEPENDENT
    for (int64_t i = 0; i < n; i++) out[i] = f(a[i], b[i], c[i]);
}

POINTWISE void map_pick(pick_row *f, void *to, const void *const *in, int64_t n)
{
    whole_t *out = to;
    const double *a = in[0];
    const whole_t *b = in[1], *c = in[2];
    MICA_INDEPENDENT
    for (int64_t i = 0; i < n; i++) out[i] = f(a[i], b[i], c[i]);
}

POINTWISE void map_whole(whole_row *f, void *to, const void *const *in, int64_t n)
{
    whole_t *out = to;
    const double *a = in[0];
    MICA_INDEPENDENT
    for (int64_t i = 0; i < n; i++) out[i] = f(a[i]);
}

#define MAP_SAME(name)     map_same(fn_##name, out, in, n)
#define MAP_QUOTIENT(name) map_same(fn_##name, out, in, n)
#define MAP_KEEP(name)     map_same(fn_##name, out, in, n)
#define MAP_BITS(name)     map_same(fn_##name, out, in, n)
#define MAP_TEST(name)     map_test(fn_##name, out, in, n)
#define MAP_HIDDEN(name)   map_test(fn_##name, out, in, n)
#define MAP_PICK(name)     map_pick(fn_##name, out, in, n)
#define MAP_WHOLE(name)    map_whole(fn_##name, out, in, n)
#define MAP_REAL(name)     (void)0
#define MAP_CLASS(name)    (void)0
#define MAP_LOGIC(name)    (void)0
#define MAP_CAST(name)     (void)0

void mica_function_s64(int function, void *out, const void *const in[MICA_FUNCTION_ARGS], int64_t n)
{
    switch ((mica_function_id)function) {
#define FUNCTION(name, kind, ...)                                                                  \
    case MICA_FN_##name:                                                                           \
        MAP_##kind(name);                                                                          \
        return;
#include "ops/pointwise/functions.def"
    default: /* formulas are none */
        return;
    }
}
