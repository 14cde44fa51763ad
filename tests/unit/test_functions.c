/* SPDX-License-Identifier: Apache-2.0
 * exp and its relatives in f32 against libm in double, on floats of every exponent. */
#include "ops/convert/cpu/functions_f32.h"

#include <float.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

typedef struct function {
    const char *name;
    float (*value)(float x);
    double (*want)(double x);
    float low, high;
    double units; /* at most, in the last place */
} function;

static float normal(float x)
{
    float density;
    return mica_normal_f32(x, &density);
}
static float density(float x)
{
    float e;
    (void)mica_normal_f32(x, &e);
    return e;
}
static float exp_all(float x)
{
    return mica_exp_f32(x);
}
static float exp_negative(float x)
{
    return mica_exp_negative_f32(x);
}
static float expm1_negative(float x)
{
    return mica_expm1_negative_f32(x);
}
static float log1p_short(float x)
{
    return mica_log1p_f32(x);
}
static float tanh_all(float x)
{
    return mica_tanh_f32(x);
}
static float sigmoid(float x)
{
    return mica_sigmoid_f32(x);
}
static float softplus(float x)
{
    return mica_softplus_f32(x, 1);
}

static double want_normal(double x)
{
    return 0.5 * erfc(-x * M_SQRT1_2);
}
static double want_density(double x)
{
    return exp(-x * x / 2);
}
static double want_sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}
static double want_softplus(double x)
{
    return log1p(exp(x));
}

static const function functions[] = {
    {"exp", exp_all, exp, -104, 88.7f, 2},
    {"exp_negative", exp_negative, exp, -104, 0, 2},
    {"expm1_negative", expm1_negative, expm1, -200, 0, 2},
    {"log1p", log1p_short, log1p, 0, 1, 2},
    {"tanh", tanh_all, tanh, -20, 20, 3},
    {"sigmoid", sigmoid, want_sigmoid, -87, 87, 3},
    {"softplus", softplus, want_softplus, -87, 87, 4},
    {"normal", normal, want_normal, -3, 8, 10},
    {"normal, far", normal, want_normal, -8, -3, 40},
    {"density", density, want_density, -3, 3, 6},
};

static double units_off(float got, double want)
{
    double ulp = exp2(fmax(floor(log2(fabs(want))) - 23, -149));
    return fabs((double)got - want) / ulp;
}

static double worst_of(const function *f)
{
    double worst = 0;
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += 99991) {
        float x = mica_float_of((uint32_t)bits);
        if (!(x >= f->low && x <= f->high)) continue;
        double want = f->want((double)x);
        if (want != 0) worst = fmax(worst, units_off(f->value(x), want));
    }
    for (int i = 0; i <= 1 << 18; i++) { /* evenly, too */
        float x = f->low + (f->high - f->low) * (float)i / (1 << 18);
        double want = f->want((double)x);
        if (want != 0) worst = fmax(worst, units_off(f->value(x), want));
    }
    return worst;
}

static void within_units(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        double worst = worst_of(&functions[i]);
        if (!(worst > 0.4 && worst <= functions[i].units))
            fail_msg("%s: %.3g units, %.3g are allowed", functions[i].name, worst,
                     functions[i].units);
    }
}

static void edges(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        assert_true(isnan(functions[i].value(NAN)));
    assert_true(mica_exp_f32(INFINITY) == INFINITY && mica_exp_f32(-INFINITY) == 0);
    assert_true(mica_exp_negative_f32(-INFINITY) == 0 && mica_exp_negative_f32(0) == 1);
    assert_true(mica_expm1_negative_f32(-INFINITY) == -1 && mica_expm1_negative_f32(0) == 0);
    assert_true(mica_tanh_f32(INFINITY) == 1 && mica_tanh_f32(-INFINITY) == -1);
    assert_true(signbit(mica_tanh_f32(-0.0f)) && mica_tanh_f32(-0.0f) == 0);
    assert_true(mica_sigmoid_f32(INFINITY) == 1 && mica_sigmoid_f32(-INFINITY) == 0);
    assert_true(softplus(INFINITY) == INFINITY && softplus(-INFINITY) == 0);
    assert_true(normal(INFINITY) == 1 && normal(-INFINITY) == 0 && normal(FLT_MAX) == 1);
    assert_true(mica_log1p_f32(0) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(within_units),
        cmocka_unit_test(edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
