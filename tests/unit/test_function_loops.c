/* SPDX-License-Identifier: Apache-2.0
 * The loops of the element functions against the reference's values, which are libm's in f64: on
 * numbers of every exponent and between, within the units that functions.def promises. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "ops/pointwise/functions.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { COUNT = 1021 }; /* whole vectors, and some left over */

static uint64_t state_of_numbers;

/* splitmix64 */
static uint64_t random_bits(void)
{
    uint64_t z = state_of_numbers += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

static float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static double double_of(uint64_t u)
{
    double f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Any bits; numbers about 1; near 0; within what exponentials take; edges. */
static double number(bool wide, int i)
{
    static const double edges[] = {0,         -0.0, 1,       -1,   0.5,   -0.5,     2,    INFINITY,
                                   -INFINITY, NAN,  FLT_MIN, 1e30, -1e30, 0x1p-149, 88.5, -103.5};
    const double unit = (double)(int64_t)random_bits() * 0x1p-63;
    if (i < (int)(sizeof edges / sizeof *edges)) return edges[i];
    switch (i % 5) {
    case 0:
        return wide ? double_of(random_bits()) : (double)float_of((uint32_t)random_bits());
    case 1:
        return wide ? unit : (double)(float)unit;
    case 2:
        return (double)(float)(unit * 0.01);
    case 3:
        return (double)(float)(unit * (wide ? 745 : 104));
    default:
        return (double)(float)(unit * 8);
    }
}

/* What the arguments' own roundoff, `inner` times, makes of the value. */
static double inner_error(int function, double a, double b, double want, double roundoff)
{
    const double reach = mica_functions[function].inner * roundoff;
    double sum = 0;
    for (int sign = -1; sign <= 1 && reach > 0; sign += 2) {
        sum = fmax(sum, fabs(mica_function_value(function, a * (1 + sign * reach), b, 0) - want));
        sum = fmax(sum, fabs(mica_function_value(function, a, b * (1 + sign * reach), 0) - want));
    }
    return sum;
}

/* Units in the last place that `got` is off by, of which those of inner errors are taken. Beyond
 * the range of the type only infinity is asked for, and about the
 * least normal numbers, where a factor may have been below them, no digits. */
static double units_off(int function, bool wide, double a, double b, double got)
{
    /* of musl 1.2.3 some are finite */
    const bool none = function == MICA_FN_acosh && a < 1 && !wide;
    const double want = none ? NAN : mica_function_value(function, a, b, 0);
    const double epsilon = wide ? DBL_EPSILON : (double)FLT_EPSILON;
    const double least = wide ? DBL_MIN : (double)FLT_MIN, most = wide ? DBL_MAX : (double)FLT_MAX;
    if (isnan(want) || isnan(got)) return isnan(want) && isnan(got) ? 0 : INFINITY;
    if (fabs(want) > most * (1 - 16 * epsilon)) /* may round to infinity */
        return (got > 0) == (want > 0) && fabs(got) >= most * (1 - 32 * epsilon) ? 0 : INFINITY;
    if (isinf(got)) return INFINITY;
    if (fabs(want) < 1024 * least) return fabs(got - want) <= least ? 0 : INFINITY;
    /* As contracts have it; a sum of what may cancel is judged by its terms. */
    const bool sum = mica_functions[function].arity > 1 && mica_functions[function].inner > 0;
    const double ulp = fmax(fabs(want), sum ? fmax(fabs(a), fabs(b)) : 0) * epsilon;
    const double error = fabs(got - want) - inner_error(function, a, b, want, epsilon / 2);
    return fmax(error / ulp, 0);
}

/* Not where it would be libm that is judged, whose functions these loops are; nor integers of a
 * quotient that has been rounded to the type. */
static bool is_judged(int function)
{
    static const int besides[] = {MICA_FN_lgamma, MICA_FN_gamma, MICA_FN_digamma,
                                  MICA_FN_j0,     MICA_FN_j1,    MICA_FN_floordiv};
    const mica_function *f = &mica_functions[function];
    for (size_t i = 0; i < sizeof besides / sizeof *besides; i++)
        if (function == besides[i]) return false;
    return (f->kind == MICA_FUNCTION_REAL || f->kind == MICA_FUNCTION_QUOTIENT) && f->arity <= 2;
}

static void evaluate(int function, bool wide, const double *a, const double *b, double *out)
{
    float x[COUNT], y[COUNT], z[COUNT];
    if (wide) {
        mica_function_f64(function, out, (const double *const[]){a, b, b}, COUNT);
        return;
    }
    for (int i = 0; i < COUNT; i++) x[i] = (float)a[i], y[i] = (float)b[i];
    memcpy(z, x, sizeof z); /* the results' array may be the arguments' */
    mica_function_f32(function, z, (const float *const[]){z, y, y}, COUNT);
    for (int i = 0; i < COUNT; i++) out[i] = (double)z[i];
}

static void judge(int function, bool wide, int rounds)
{
    const mica_function *f = &mica_functions[function];
    const double own = wide ? 1 : 1e-6; /* the reference's, libm's */
    const double allowed = fmax(f->ulps, 0.5) + own;
    static double a[COUNT], b[COUNT], out[COUNT];
    for (int r = 0; r < rounds; r++) {
        for (int i = 0; i < COUNT; i++) a[i] = number(wide, i);
        for (int i = 0; i < COUNT; i++) b[i] = number(wide, (int)(random_bits() % COUNT));
        if (!wide)
            for (int i = 0; i < COUNT; i++) a[i] = (double)(float)a[i], b[i] = (double)(float)b[i];
        evaluate(function, wide, a, b, out);
        for (int i = 0; i < COUNT; i++) {
            const double units = units_off(function, wide, a[i], b[i], out[i]);
            if (!(units <= allowed))
                fail_msg("%s(%a, %a) in f%d is %a, the reference has %a: %.3g units of %.3g",
                         f->name, a[i], b[i], wide ? 64 : 32, out[i],
                         mica_function_value(function, a[i], b[i], 0), units, allowed);
        }
    }
}

static void judge_all(bool wide, int rounds)
{
    int judged = 0;
    state_of_numbers = 1;
    for (int i = 0; i < MICA_FUNCTIONS; i++)
        if (is_judged(i)) judge(i, wide, rounds), judged++;
    assert_true(judged > 60);
}

static void f32_is_within_units(void **state)
{
    (void)state;
    judge_all(false, 40);
}

static void f64_is_within_units(void **state)
{
    (void)state;
    judge_all(true, 40);
}

/* Angles that the loop does not reduce are reduced all the same, wherever they stand, and change
 * nothing about their neighbours. */
static void far_arguments(void **state)
{
    static float x[COUNT], plain[COUNT], mixed[COUNT];
    (void)state;
    for (int i = 0; i < COUNT; i++) x[i] = 0.37f * (float)(i - 400);
    mica_function_f32(MICA_FN_sin, plain, (const float *const[]){x, x, x}, COUNT);
    for (int i = 0; i < COUNT; i += 97) x[i] = 1e30f;
    mica_function_f32(MICA_FN_sin, mixed, (const float *const[]){x, x, x}, COUNT);
    for (int i = 0; i < COUNT; i++)
        if (i % 97)
            assert_memory_equal(&mixed[i], &plain[i], sizeof *mixed);
        else /* mpmath 1.3.0: sin(1000000015047466219876688855040) */
            assert_true(fabsf(mixed[i] - -0x1.95135ep-1f) < 1e-6f);
}

/* Of a product the digits count, even where a factor alone would be subnormal. By mpmath 1.3.0,
 * with 400 digits:
 *     sigmoid = lambda v: 1 / (1 + exp(-v))
 *     silu       x * sigmoid(x)
 *     quick_gelu x * sigmoid(mpf('1.702') * x)
 *     gelu       x * erfc(-x / sqrt(2)) / 2
 *     gelu_tanh  x * sigmoid(2 * sqrt(2 / pi) * (x + mpf('0.044715') * x**3))
 *     mish       x * tanh(log1p(exp(x))) */
static void small_products_have_digits(void **state)
{
    static const struct {
        int function;
        double x, want;
        bool wide;
    } rows[] = {{MICA_FN_silu, -97.5, -4.4186808033451116e-41, false},
                {MICA_FN_silu, -107.25, -2.8334406272155337e-45, false},
                {MICA_FN_silu, -740.5, -1.8813136800609236e-319, true},
                {MICA_FN_quick_gelu, -57.5, -1.8089991934503295e-41, false},
                {MICA_FN_quick_gelu, -62.5, -3.9609969216491736e-45, false},
                {MICA_FN_quick_gelu, -435.5, -5.3801946530698139e-320, true},
                {MICA_FN_gelu, -13.75, -3.5014049344641909e-42, false},
                {MICA_FN_gelu, -14.125, -1.8814489986313061e-44, false},
                {MICA_FN_gelu, -38.25, -7.9547863022184755e-319, true},
                {MICA_FN_gelu_tanh, -10.125, -6.6489241902361355e-39, false},
                {MICA_FN_mish, -97.5, -4.4186808033451116e-41, false},
                {MICA_FN_mish, -107.25, -2.8334406272155337e-45, false},
                {MICA_FN_mish, -740.5, -1.8813136800609236e-319, true}};
    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        const bool wide = rows[r].wide;
        const int function = rows[r].function;
        const double step = wide ? 0x1p-1074 : 0x1p-149, want = rows[r].want;
        const double epsilon = wide ? DBL_EPSILON : (double)FLT_EPSILON;
        static double a[COUNT], out[COUNT];
        for (int i = 0; i < COUNT; i++) a[i] = rows[r].x;
        evaluate(function, wide, a, a, out);
        out[0] = mica_function_value(function, rows[r].x, 0, 0);
        const double allowed = step + mica_functions[function].ulps * epsilon * fabs(want) +
                               inner_error(function, rows[r].x, 0, want, epsilon / 2);
        for (int i = 0; i < COUNT; i++)
            if (!(fabs(out[i] - want) <= allowed))
                fail_msg("%s(%g) in f%d is %g, which should be %g", mica_functions[function].name,
                         rows[r].x, wide ? 64 : 32, out[i], want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f32_is_within_units),
        cmocka_unit_test(f64_is_within_units),
        cmocka_unit_test(far_arguments),
        cmocka_unit_test(small_products_have_digits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
