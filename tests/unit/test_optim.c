/* SPDX-License-Identifier: Apache-2.0
 * Optimiser steps: trajectories against the formulas of PyTorch's documentation (torch.optim.SGD,
 * Adam, AdamW) written out again in double, values worked out by hand, refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "mica/mica.h"
#include "base/random.h"
#include "base/tensor.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { N = 67, STEPS = 10 };

static mica_context *context;

static int open_context(void **state)
{
    (void)state;
    return mica_context_create("cpu", &context) != MICA_OK;
}

static int close_context(void **state)
{
    (void)state;
    mica_context_destroy(context);
    return 0;
}

static mica_plan *make_plan(const char *line, const char *engine)
{
    mica_plan *plan;
    mica_options options = {.engine = engine};
    if (mica_plan_from_text(context, line, &options, &plan) != MICA_OK)
        fail_msg("%s: %s", line, mica_error());
    return plan;
}

static void step(const mica_plan *plan, void *p, void *grad, void *m, void *v, void *master,
                 const double *scalars)
{
    mica_run run = {.args = {p, grad, m, v, master}, .scalars = scalars};
    if (mica_plan_run(plan, &run) != MICA_OK) fail_msg("%s", mica_error());
}

static const char *const engines[] = {"cpu", "ref"};

/* ---- the formulas again, element by element, with mistakes to choose from ---- */

typedef enum mistake {
    NONE,
    NO_BIAS_CORRECTION,
    EPS_INSIDE_ROOT,
    STEP_FROM_ZERO,
    DECAY_OF_THE_OTHER_ADAM,
    FIRST_STEP_DAMPENED,
    FORGOTTEN_LOOK_AHEAD,
    UNSCALED_GRADIENT,
    WRONG_DIRECTION,
    BETAS_SWAPPED
} mistake;

typedef struct settings {
    const char *line; /* without p */
    mica_optim_rule rule;
    double momentum, dampening, beta1, beta2, eps, decay;
    bool nesterov, maximize;
} settings;

typedef struct parameter {
    double p, m, v;
} parameter;

/* torch.optim.SGD: "if t > 1: b = mu b + (1 - tau) g else b = g; g = g + mu b or b". */
static void expect_sgd(const settings *s, parameter *w, double g, double lr, int t, mistake wrong)
{
    g += s->decay * w->p;
    if (s->momentum != 0) {
        if (t > 1 || wrong == FIRST_STEP_DAMPENED)
            w->m = s->momentum * w->m + (1 - s->dampening) * g;
        else
            w->m = g;
        if (s->nesterov && wrong != FORGOTTEN_LOOK_AHEAD)
            g += s->momentum * w->m;
        else
            g = w->m;
    }
    w->p -= lr * g;
}

static void expect_adam(const settings *s, parameter *w, double g, double lr, int t, mistake wrong)
{
    double beta1 = wrong == BETAS_SWAPPED ? s->beta2 : s->beta1;
    double beta2 = wrong == BETAS_SWAPPED ? s->beta1 : s->beta2;
    bool apart = (s->rule == MICA_OPTIM_ADAMW) != (wrong == DECAY_OF_THE_OTHER_ADAM);
    if (apart)
        w->p -= lr * s->decay * w->p;
    else
        g += s->decay * w->p;
    w->m = beta1 * w->m + (1 - beta1) * g;
    w->v = beta2 * w->v + (1 - beta2) * g * g;
    double m = w->m, v = w->v;
    if (wrong != NO_BIAS_CORRECTION) {
        int power = wrong == STEP_FROM_ZERO ? t + 1 : t;
        m /= 1 - pow(beta1, power);
        v /= 1 - pow(beta2, power);
    }
    w->p -= lr * m / (wrong == EPS_INSIDE_ROOT ? sqrt(v + s->eps) : sqrt(v) + s->eps);
}

static void expect(const settings *s, parameter *w, double grad, const double *scalars,
                   mistake wrong)
{
    double lr = scalars[MICA_OPTIM_LR], scale = scalars[MICA_OPTIM_GRAD_SCALE];
    int t = (int)scalars[MICA_OPTIM_STEP];
    double g = wrong == UNSCALED_GRADIENT ? grad : scale * grad;
    if (s->maximize != (wrong == WRONG_DIRECTION)) g = -g;
    if (s->rule == MICA_OPTIM_SGD)
        expect_sgd(s, w, g, lr, t, wrong);
    else
        expect_adam(s, w, g, lr, t, wrong);
}

static const settings all[] = {
    {.line = "rule=sgd"},
    {.line = "rule=sgd weight_decay=0.1", .decay = 0.1},
    {.line = "rule=sgd momentum=0.9", .momentum = 0.9},
    {.line = "rule=sgd momentum=0.9 dampening=0.3", .momentum = 0.9, .dampening = 0.3},
    {.line = "rule=sgd momentum=0.8 nesterov=1 weight_decay=0.05",
     .momentum = 0.8,
     .nesterov = true,
     .decay = 0.05},
    {.line = "rule=sgd momentum=0.9 dampening=0.5 weight_decay=0.1 maximize=1",
     .momentum = 0.9,
     .dampening = 0.5,
     .decay = 0.1,
     .maximize = true},
    {.line = "rule=adam", MICA_OPTIM_ADAM, 0, 0, 0.9, 0.999, 1e-8, 0, false, false},
    {.line = "rule=adam weight_decay=0.1 maximize=1",
     MICA_OPTIM_ADAM,
     0,
     0,
     0.9,
     0.999,
     1e-8,
     0.1,
     false,
     true},
    {.line = "rule=adam beta1=0.5 beta2=0.75 eps=0.125 weight_decay=0.2",
     MICA_OPTIM_ADAM,
     0,
     0,
     0.5,
     0.75,
     0.125,
     0.2,
     false,
     false},
    {.line = "rule=adamw", MICA_OPTIM_ADAMW, 0, 0, 0.9, 0.999, 1e-8, 0, false, false},
    {.line = "rule=adamw weight_decay=0.1 maximize=1",
     MICA_OPTIM_ADAMW,
     0,
     0,
     0.9,
     0.999,
     1e-8,
     0.1,
     false,
     true},
    {.line = "rule=adamw beta1=0.5 beta2=0.75 eps=0.125 weight_decay=0.2",
     MICA_OPTIM_ADAMW,
     0,
     0,
     0.5,
     0.75,
     0.125,
     0.2,
     false,
     false},
};
enum { ALL = sizeof all / sizeof *all };

/* Largest difference from the formulas along STEPS steps, with another lr and grad_scale each. */
static double deviation(const settings *s, mica_dtype type, const char *engine, mistake wrong)
{
    char line[256];
    double p[N], grad[N], m[N] = {0}, v[N] = {0}, worst = 0;
    parameter want[N] = {{0}};
    mica_store_fn store = mica_dtype_store(type);
    mica_load_fn load = mica_dtype_load(type);
    snprintf(line, sizeof line, "optim %s p=%s:%d", s->line, mica_dtype_name(type), N);
    mica_plan *plan = make_plan(line, engine);
    for (int i = 0; i < N; i++) {
        store(p, i, mica_random_normal(1, (uint64_t)i));
        want[i].p = load(p, i);
    }
    for (int t = 1; t <= STEPS; t++) {
        double scalars[] = {0.1 / t, t, t % 3 ? 0.5 : 2};
        for (int i = 0; i < N; i++) {
            store(grad, i, mica_random_normal((uint64_t)t + 1, (uint64_t)i));
            expect(s, &want[i], load(grad, i), scalars, wrong);
        }
        step(plan, p, grad, m, v, NULL, scalars);
        for (int i = 0; i < N; i++) {
            worst = fmax(worst, fabs(load(p, i) - want[i].p));
            if (s->momentum != 0 || s->rule != MICA_OPTIM_SGD)
                worst = fmax(worst, fabs(load(m, i) - want[i].m));
            if (s->rule != MICA_OPTIM_SGD) worst = fmax(worst, fabs(load(v, i) - want[i].v));
        }
    }
    mica_plan_destroy(plan);
    return worst;
}

static const struct {
    mica_dtype type;
    double most; /* values are below 10; an error of p does not grow from step to step */
} precisions[] = {{MICA_F64, 1e-13}, {MICA_F32, 5e-6}};

static void trajectories_follow_the_formulas(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++)
        for (int e = 0; e < 2; e++)
            for (int i = 0; i < ALL; i++) {
                double d = deviation(&all[i], precisions[k].type, engines[e], NONE);
                if (!(d <= precisions[k].most))
                    fail_msg("%s, %s, %s: off by %g", all[i].line,
                             mica_dtype_name(precisions[k].type), engines[e], d);
            }
}

static void every_mistake_is_noticed(void **state)
{
    (void)state;
    static const struct {
        int settings;
        mistake wrong;
    } mutants[] = {
        {3, FIRST_STEP_DAMPENED},      {4, FORGOTTEN_LOOK_AHEAD}, {0, UNSCALED_GRADIENT},
        {0, WRONG_DIRECTION},          {5, WRONG_DIRECTION},      {6, NO_BIAS_CORRECTION},
        {6, STEP_FROM_ZERO},           {6, BETAS_SWAPPED},        {8, EPS_INSIDE_ROOT},
        {7, DECAY_OF_THE_OTHER_ADAM},  {7, WRONG_DIRECTION},      {8, UNSCALED_GRADIENT},
        {10, DECAY_OF_THE_OTHER_ADAM}, {11, EPS_INSIDE_ROOT},     {11, STEP_FROM_ZERO}};
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < sizeof mutants / sizeof *mutants; i++) {
            double d =
                deviation(&all[mutants[i].settings], precisions[k].type, "cpu", mutants[i].wrong);
            if (!(d > 10 * precisions[k].most))
                fail_msg("%s: mistake %d stays unnoticed, off by %g", all[mutants[i].settings].line,
                         mutants[i].wrong, d);
        }
}

/* ---- by hand ---- */

/* Binary fractions: every product and sum is exact. */
static void sgd_by_hand(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        mica_plan *plan = make_plan("optim p=f32:2 momentum=0.5 dampening=0.25", engines[e]);
        float p[] = {1, -2}, grad[] = {0.5F, 4}, m[] = {NAN, NAN};
        step(plan, p, grad, m, NULL, NULL, (double[]){0.5, 1, 1});
        assert_true(m[0] == 0.5F && m[1] == 4); /* m = g, not (1 - dampening) g */
        assert_true(p[0] == 0.75F && p[1] == -4);
        step(plan, p, grad, m, NULL, NULL, (double[]){0.5, 2, 0.5});
        assert_true(m[0] == 0.4375F && m[1] == 3.5F); /* 0.5 m + 0.75 (0.5 grad) */
        assert_true(p[0] == 0.53125F && p[1] == -5.75F);
        mica_plan_destroy(plan);

        plan = make_plan("optim p=f32:2 momentum=0.5 nesterov=1 weight_decay=0.25", engines[e]);
        float q[] = {2, -4};
        step(plan, q, grad, m, NULL, NULL, (double[]){0.5, 1, 1});
        assert_true(m[0] == 1 && m[1] == 3);          /* grad + 0.25 p */
        assert_true(q[0] == 1.25F && q[1] == -6.25F); /* - 0.5 (g + 0.5 m) */
        mica_plan_destroy(plan);
    }
}

/* m^ = g and v^ = g^2 at step 1, whatever the betas: p moves by lr g / (|g| + eps). */
static void first_step_of_adam(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        mica_plan *plan = make_plan("optim rule=adam p=f64:4 eps=0.5", engines[e]);
        double p[] = {1, 1, 1, 1}, grad[] = {0.5, -1.5, 0, 1e-150}, m[4] = {0}, v[4] = {0};
        step(plan, p, grad, m, v, NULL, (double[]){0.125, 1, 1});
        assert_true(fabs(p[0] - 0.9375) < 1e-15); /* 1 - 0.125 * 0.5 / 1 */
        assert_true(fabs(p[1] - 1.09375) < 1e-15);
        assert_true(p[2] == 1 && p[3] == 1);
        assert_true(fabs(m[0] - 0.05) < 1e-16 && fabs(v[0] - 0.00025) < 1e-18);
        mica_plan_destroy(plan);
    }
}

/* A gradient of 2e19: g^2 is 4e38, past f32, but v = (1 - beta2) g g is 4e35. At step 1 m^ = g and
 * v^ = g^2, so p moves by lr; with v infinite it would stay for ever. */
static void large_gradients_move(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        mica_plan *plan = make_plan("optim rule=adam p=f32:1", engines[e]);
        float p[] = {1}, grad[] = {2e19F}, m[1] = {0}, v[1] = {0};
        step(plan, p, grad, m, v, NULL, (double[]){0.125, 1, 1});
        assert_true(fabsf(v[0] / 4e35F - 1) < 1e-6F && fabsf(p[0] - 0.875F) < 1e-6F);
        mica_plan_destroy(plan);
    }
}

/* ---- master copies ---- */

/* Steps far below the spacing of bf16 add up in the master, and p is its rounding all along. */
static void master_holds_what_p_cannot(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        mica_plan *plan = make_plan("optim p=bf16:3 grad=f32:3 master=f32:3", engines[e]);
        uint16_t p[] = {0xffff, 0xffff, 0xffff}; /* NaN: must not be read */
        float grad[] = {1, -1, 0}, master[] = {1, 1, 1};
        for (int t = 1; t <= 64; t++) {
            step(plan, p, grad, NULL, NULL, master, (double[]){0x1p-13, t, 1});
            for (int i = 0; i < 3; i++) assert_int_equal(p[i], mica_f32_to_bf16(master[i]));
            assert_true(master[0] == 1 - (float)t * 0x1p-13F);
        }
        assert_true(mica_bf16_to_f32(p[0]) == 1 - 0x1p-7F);
        assert_true(mica_bf16_to_f32(p[1]) == 1 + 0x1p-7F);
        assert_true(mica_bf16_to_f32(p[2]) == 1);
        mica_plan_destroy(plan);
    }
}

/* Even where sums are formed in f64: 1 + 2^-8 + 2^-40 is 1 + 2^-7 in bf16, but its f32 is a tie
 * that goes to 1. */
static void p_is_the_rounding_of_the_stored_master(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        mica_plan *plan = make_plan("optim p=bf16:1 grad=f64:1 master=f32:1", engines[e]);
        uint16_t p = 0;
        double grad = -(0x1p-8 + 0x1p-40);
        float master = 1;
        step(plan, &p, &grad, NULL, NULL, &master, (double[]){1, 1, 1});
        assert_true(master == 1 + 0x1p-8F);
        assert_true(mica_bf16_to_f32(p) == 1);
        mica_plan_destroy(plan);
    }
}

/* ---- relations ---- */

static void run_once(const char *line, float *p, float *grad, float *m, float *v)
{
    mica_plan *plan = make_plan(line, "cpu");
    step(plan, p, grad, m, v, NULL, (double[]){0.1, 2, 1});
    mica_plan_destroy(plan);
}

/* Ascending is descending along the negated gradient, bit for bit; so are strided copies. */
static void maximize_and_strides_keep_bits(void **state)
{
    (void)state;
    float p[3][3 * N], grad[3][3 * N], m[3][3 * N], v[3][3 * N];
    for (int i = 0; i < 3 * N; i++)
        for (int k = 0; k < 3; k++) {
            int from = k == 2 ? i / 3 : i; /* of the third set every third element counts */
            p[k][i] = (float)mica_random_normal(1, (uint64_t)from);
            m[k][i] = (float)mica_random_normal(2, (uint64_t)from);
            v[k][i] = (float)fabs(mica_random_normal(3, (uint64_t)from));
            grad[k][i] = (float)mica_random_normal(4, (uint64_t)from) * (k == 1 ? -1.0F : 1.0F);
        }
    run_once("optim rule=adam p=f32:67 weight_decay=0.1", p[0], grad[0], m[0], v[0]);
    run_once("optim rule=adam p=f32:67 weight_decay=0.1 maximize=1", p[1], grad[1], m[1], v[1]);
    run_once("optim rule=adam p=f32:67:3 grad=f32:67:3 m=f32:67:3 v=f32:67:3 weight_decay=0.1",
             p[2], grad[2], m[2], v[2]);
    assert_memory_equal(p[0], p[1], N * sizeof(float));
    assert_memory_equal(m[0], m[1], N * sizeof(float));
    for (int i = 0; i < N; i++) {
        assert_true(p[0][i] == p[2][3 * i] && m[0][i] == m[2][3 * i] && v[0][i] == v[2][3 * i]);
        assert_true(p[2][3 * i + 1] == (float)mica_random_normal(1, (uint64_t)i));
    }
}

/* ---- descriptions ---- */

static void inference(void **state)
{
    (void)state;
    mica_arg_info info;
    mica_plan *plan = make_plan("optim rule=adamw p=bf16:2x3x4x5:nhwc", "cpu");
    assert_int_equal(mica_plan_arg(plan, MICA_OPTIM_M, &info), MICA_OK);
    assert_true(info.dir == MICA_INOUT && info.tensor.dtype == MICA_F32);
    assert_true(info.tensor.strides[1] == 1 && info.tensor.strides[3] == 3);
    mica_plan_arg(plan, MICA_OPTIM_GRAD, &info);
    assert_true(info.dir == MICA_IN && info.tensor.dtype == MICA_BF16);
    mica_plan_arg(plan, MICA_OPTIM_MASTER, &info);
    assert_int_equal(info.dir, MICA_UNUSED);
    mica_plan_destroy(plan);
    plan = make_plan("optim p=f64:5", "cpu");
    mica_plan_arg(plan, MICA_OPTIM_M, &info);
    assert_int_equal(info.dir, MICA_UNUSED);
    mica_plan_destroy(plan);
    plan = make_plan("optim p=f64:5 momentum=0.1", "cpu");
    mica_plan_arg(plan, MICA_OPTIM_M, &info);
    assert_true(info.dir == MICA_INOUT && info.tensor.dtype == MICA_F64);
    mica_plan_destroy(plan);
}

static void refusals_name_value_and_rule(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"optim", "p is needed"},
        {"optim p=s32:3", "p is s32, it must be f64, f32, f16 or bf16"},
        {"optim p=f32:3 grad=e4m3:3", "grad is e4m3"},
        {"optim p=f32:3 grad=f32:4", "grad"},
        {"optim rule=adam p=f32:3x4 v=f32:4x3", "v"},
        {"optim p=f32:3x2:0x1", "p"},
        {"optim p=bf16:3 master=bf16:3", "master is bf16, it must be f32"},
        {"optim p=f64:3 master=f32:3", "p is f64"},
        {"optim p=f32:3 momentum=-0.5", "momentum is -0.5"},
        {"optim p=f32:3 dampening=0.5", "dampening is 0.5, it needs momentum"},
        {"optim p=f32:3 nesterov=1", "nesterov with momentum 0"},
        {"optim p=f32:3 nesterov=1 momentum=0.9 dampening=0.1", "dampening 0.1"},
        {"optim rule=adam p=f32:3 momentum=0.9", "momentum 0.9"},
        {"optim rule=adamw p=f32:3 nesterov=1", "nesterov 1"},
        {"optim rule=adam p=f32:3 beta1=1", "beta1 is 1, it must be at least 0 and below 1"},
        {"optim rule=adam p=f32:3 beta2=-0.25", "beta2 is -0.25"},
        {"optim rule=adam p=f32:3 eps=1e-40", "eps is 1e-40"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mica_plan *plan = NULL;
        mica_status status = mica_plan_from_text(context, cases[i][0], NULL, &plan);
        if (status != MICA_INVALID || !strstr(mica_error(), cases[i][1]))
            fail_msg("%s: %s, \"%s\"", cases[i][0], mica_status_name(status), mica_error());
    }
    mica_plan *plan = make_plan("optim rule=adam p=f32:1", "cpu");
    float one[4] = {1, 1, 1, 1};
    mica_run run = {.args = {one, one + 1, one + 2, one + 3}, .scalars = (double[]){0.1, 0, 1}};
    assert_int_equal(mica_plan_run(plan, &run), MICA_INVALID);
    assert_non_null(strstr(mica_error(), "step is 0, it counts from 1"));
    assert_true(one[0] == 1 && one[2] == 1 && one[3] == 1);
    mica_plan_destroy(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trajectories_follow_the_formulas),
        cmocka_unit_test(every_mistake_is_noticed),
        cmocka_unit_test(sgd_by_hand),
        cmocka_unit_test(first_step_of_adam),
        cmocka_unit_test(large_gradients_move),
        cmocka_unit_test(master_holds_what_p_cannot),
        cmocka_unit_test(p_is_the_rounding_of_the_stored_master),
        cmocka_unit_test(maximize_and_strides_keep_bits),
        cmocka_unit_test(inference),
        cmocka_unit_test(refusals_name_value_and_rule),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
