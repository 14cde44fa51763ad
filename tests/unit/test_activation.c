/* SPDX-License-Identifier: Apache-2.0
 * relu of every 16-bit float, which the CPU forms on the bits: NaN stays, of zeros either sign.
 * Tails and near overflows of every function against numbers computed apart; infinities and NaN. */
#include "line.h"
#include "activation_truth.h"

#include <float.h>
#include <stdbool.h>

enum { ALL = 1 << 16 };

static void run(mica_context *ctx, const char *type, const char *engine, uint16_t *x, uint16_t *y)
{
    char line[64];
    mica_plan *plan;
    mica_options only = {.engine = engine};
    snprintf(line, sizeof line, "activation act=relu x=%s:%d", type, ALL);
    assert_int_equal(mica_plan_from_text(ctx, line, &only, &plan), MICA_OK);
    mica_run r = {.args = {[MICA_ACTIVATION_X] = x, [MICA_ACTIVATION_Y] = y}};
    assert_int_equal(mica_plan_run(plan, &r), MICA_OK);
    mica_plan_destroy(plan);
}

static void check_type(const char *type, int infinity)
{
    static uint16_t x[ALL], y[ALL], want[ALL];
    mica_context *ctx;
    assert_int_equal(mica_context_create("cpu", &ctx), MICA_OK);
    for (int i = 0; i < ALL; i++) x[i] = (uint16_t)i;
    run(ctx, type, "cpu", x, y);
    run(ctx, type, "ref", x, want);
    for (int i = 0; i < ALL; i++) {
        int size = y[i] & 0x7fff;
        bool nan = (i & 0x7fff) > infinity, zeros = size == 0 && (want[i] & 0x7fff) == 0;
        if (nan ? size <= infinity : y[i] != want[i] && !zeros)
            fail_msg("%s: relu of %04x is %04x, not %04x", type, (unsigned)i, y[i], want[i]);
    }
    mica_context_destroy(ctx);
}

static void test_relu_of_every_bf16(void **state)
{
    (void)state;
    check_type("bf16", 0x7f80);
}

static void test_relu_of_every_f16(void **state)
{
    (void)state;
    check_type("f16", 0x7c00);
}

typedef struct truth {
    const char *act;
    double a, v, value, slope;
} truth;

static const truth truths[] = {
#define X(act, a, v, value, slope) {act, a, v, value, slope},
    ACTIVATION_TRUTH(X)
#undef X
};

/* The contract of mica/activation.h: 8 units in the last place; where the exponent of a tail is
 * rounded, s being the function's share of v, 8 (1 + |ln s|); 64 subnormal units. A slope of two
 * terms may lose half its digits where they cancel: none of the points lies there. */
static double units_allowed(const truth *t)
{
    bool rounded = strstr(t->act, "gelu") != NULL, scaled = t->a != 1 && t->v < 0;
    double share = rounded ? t->value / t->v : 1;
    double lost = share > 0 ? -log(share) : 1000;
    return 8 * (1 + (scaled ? fabs(t->a * t->v) : lost));
}

static void close_to(const char *line, const truth *t, double got, double want, double units,
                     bool wide)
{
    double tiny = 64 * (wide ? 0x1p-1074 : 0x1p-149), most = wide ? DBL_MAX : FLT_MAX;
    double error = units * (wide ? DBL_EPSILON : FLT_EPSILON) * fabs(want);
    bool ok =
        fabs(want) > most ? got == copysign(INFINITY, want) : fabs(got - want) <= error + tiny;
    if (!ok)
        fail_msg("%s at %g: got %.17g want %.17g, within %.3g units", line, t->v, got, want, units);
}

static void test_tails(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof truths / sizeof *truths; i++) {
        const truth *t = &truths[i];
        for (int k = 0; k < 4; k++) {
            bool wide = k & 1;
            const char *engine = engines[k / 2], *type = wide ? "f64" : "f32";
            double x = t->v, one = 1, y, dx;
            char line[128];
            snprintf(line, sizeof line, "activation act=%s act_a=%g x=%s:1", t->act, t->a, type);
            double *values[MICA_MAX_ARGS] = {[MICA_ACTIVATION_X] = &x,
                                             [MICA_ACTIVATION_Y] = &y,
                                             [MICA_ACTIVATION_DY] = &one,
                                             [MICA_ACTIVATION_DX] = &dx};
            run_ok(engine, line, values);
            close_to(line, t, y, t->value, units_allowed(t), wide);
            snprintf(line, sizeof line, "activation pass=bwd act=%s act_a=%g x=%s:1", t->act, t->a,
                     type);
            run_ok(engine, line, values);
            close_to(line, t, dx, t->slope, 2 * units_allowed(t), wide);
        }
    }
}

/* Value and slope at -inf, inf and NaN: those of the formula in IEEE arithmetic (-inf times 0 is
 * NaN, inf / inf, too), and limits, of slopes; NaN passes in all. */
static void test_infinities(void **state)
{
    (void)state;
    static const struct {
        const char *act;
        double low, high, slope_low, slope_high;
    } rows[] = {
        {"relu", 0, INFINITY, 0, 1},
        {"leaky_relu", -INFINITY, INFINITY, 0.01, 1},
        {"elu", -1, INFINITY, 0, 1},
        {"sigmoid", 0, 1, 0, 0},
        {"tanh", -1, 1, 0, 0},
        {"silu", NAN, INFINITY, 0, 1},
        {"gelu", NAN, INFINITY, 0, 1},
        {"gelu_tanh", NAN, INFINITY, 0, 1},
        {"quick_gelu", NAN, INFINITY, 0, 1},
        {"softplus", 0, INFINITY, 0, 1},
        {"softsign", NAN, NAN, 0, 0},
        {"mish", NAN, INFINITY, 0, 1},
        {"hard_sigmoid", 0, 1, 0, 0},
        {"hard_swish", NAN, INFINITY, 0, 1},
        {"hard_tanh", -1, 1, 0, 0},
        {"relu6", 0, 6, 0, 0},
        {"squared_relu", 0, INFINITY, 0, INFINITY},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (int k = 0; k < 8; k++) {
            static const char *const types[] = {"f32", "f64", "bf16", "f16"};
            double x[] = {-INFINITY, INFINITY, NAN}, ones[] = {1, 1, 1}, y[3], dx[3];
            const double want[] = {rows[i].low, rows[i].high, NAN};
            const double slopes[] = {rows[i].slope_low, rows[i].slope_high, NAN};
            char line[128];
            double *values[MICA_MAX_ARGS] = {[MICA_ACTIVATION_X] = x,
                                             [MICA_ACTIVATION_Y] = y,
                                             [MICA_ACTIVATION_DY] = ones,
                                             [MICA_ACTIVATION_DX] = dx};
            snprintf(line, sizeof line, "activation act=%s x=%s:3", rows[i].act, types[k / 2]);
            run_ok(engines[k & 1], line, values);
            if (differences(y, want, 3, 0, 0)) fail_msg("%s on %s", line, engines[k & 1]);
            snprintf(line, sizeof line, "activation pass=bwd act=%s x=%s:3", rows[i].act,
                     types[k / 2]);
            run_ok(engines[k & 1], line, values);
            if (differences(dx, slopes, 3, 0, 0.01)) fail_msg("%s on %s", line, engines[k & 1]);
        }
    }
}

/* min(max(v, a), b): a bound may be infinite, and where a is above b the value is b. */
static void test_clip(void **state)
{
    (void)state;
    static const struct {
        const char *bounds;
        double want[5];
    } rows[] = {
        {"act_a=-2 act_b=inf", {-2, -2, 1, 3e38, INFINITY}},
        {"act_a=-inf act_b=2", {-INFINITY, -3, 1, 2, 2}},
        {"act_a=-inf act_b=inf", {-INFINITY, -3, 1, 3e38, INFINITY}},
        {"act_a=2 act_b=-1", {-1, -1, -1, -1, -1}},
        {"act_a=inf act_b=inf", {INFINITY, INFINITY, INFINITY, INFINITY, INFINITY}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (int k = 0; k < 4; k++) {
            double x[] = {-INFINITY, -3, 1, 3e38, INFINITY}, y[5];
            char line[128];
            double *values[MICA_MAX_ARGS] = {x, y};
            snprintf(line, sizeof line, "activation act=clip %s x=%s:5", rows[i].bounds,
                     k & 1 ? "f64" : "f32");
            run_ok(engines[k / 2], line, values);
            if (differences(y, rows[i].want, 5, 0, 1e-6)) fail_msg("%s", line);
        }
    }
    refuses("activation act=clip act_a=nan x=f32:5", "act_a=nan: not a number");
}

/* The plan of a line by an engine and a config; NULL: the engine does not take it. */
static mica_plan *planned(const char *line, const char *engine, const char *config)
{
    mica_problem *p;
    mica_plan *plan = NULL;
    assert_int_equal(mica_problem_from_text(line, &p), MICA_OK);
    mica_options o = {.engine = engine, .config = config};
    if (mica_plan_problem(context, p, &o, &plan) != MICA_OK) plan = NULL;
    mica_problem_destroy(p);
    return plan;
}

/* In an epilogue, too, NaN stays, by each engine and config: oneDNN's clips would make a bound of
 * it, and its relu is the only one that may, which the contract says. */
static void test_nan_in_epilogues(void **state)
{
    (void)state;
    enum { MOST = 2 * 8 * 7 * 7 };
    static const char *const acts[] = {
        "relu", "leaky_relu act_a=0", "clip act_a=-1 act_b=3", "hard_tanh", "relu6", "elu"};
    static const struct {
        const char *engine, *config, *line;
    } rows[] = {{"ref", NULL, "gemm a=f32:4x12 b=f32:12x24 epilogue="},
                {"cpu", NULL, "gemm a=f32:4x12 b=f32:12x24 epilogue="},
                {"onednn", "via=0", "gemm a=f32:4x12 b=f32:12x24 epilogue="},
                {"onednn", "via=1", "gemm a=f32:4x12 b=f32:12x24 epilogue="},
                {"ref", NULL, "conv x=f32:2x8x7x7 w=f32:8x8x1x1 epilogue="},
                {"cpu", NULL, "conv x=f32:2x8x7x7 w=f32:8x8x1x1 epilogue="},
                {"onednn", "formats=0", "conv x=f32:2x8x7x7 w=f32:8x8x1x1 epilogue="},
                {"onednn", "formats=1", "conv x=f32:2x8x7x7 w=f32:8x8x1x1 epilogue="},
                {"onednn", "formats=2", "conv x=f32:2x8x7x7 w=f32:8x8x1x1 epilogue="}};
    static float a[MOST], b[MOST], y[MOST];
    for (int i = 0; i < MOST; i++) a[i] = (float)(i % 7 - 3), b[i] = (float)(i % 5 - 2);
    a[5] = NAN;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (size_t k = 0; k < sizeof acts / sizeof *acts; k++) {
            char line[160];
            mica_contract contract;
            snprintf(line, sizeof line, "%s%s", rows[r].line, acts[k]);
            mica_plan *plan = planned(line, rows[r].engine, rows[r].config);
            if (!plan) continue;
            void *space = aligned_alloc(256, (mica_plan_workspace(plan) / 256 + 1) * 256);
            mica_run run = {.args = {a, b, y}, .workspace = space};
            assert_int_equal(mica_plan_run(plan, &run), MICA_OK);
            assert_int_equal(mica_plan_contract(plan, &contract, NULL), MICA_OK);
            assert_true(!contract.hides_nan || (!strcmp(rows[r].engine, "onednn") && k < 2));
            /* Row 0 of a, or pixel 5 of channel 0, is in y[0] or y[5]. */
            const float got = rows[r].line[0] == 'g' ? y[0] : y[5];
            if (!isnan(got) && !contract.hides_nan)
                fail_msg("%s: %s: %g", line, rows[r].engine, (double)got);
            free(space);
            mica_plan_destroy(plan);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_relu_of_every_bf16),
        cmocka_unit_test(test_relu_of_every_f16),
        cmocka_unit_test(test_tails),
        cmocka_unit_test(test_infinities),
        cmocka_unit_test(test_clip),
        cmocka_unit_test(test_nan_in_epilogues),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
