/* SPDX-License-Identifier: Apache-2.0
 * Reductions: known values of every kind, NaN and infinity, ties, integers past 2^53, results over
 * no elements, values far from zero, expressions in front, refusals, equal bits for any number of
 * threads. */
#include "line.h"

#define VALUES(...) ((double *[MICA_MAX_ARGS]){__VA_ARGS__})

static double one(const char *engine, const char *line, double *x)
{
    double y = -99;
    run_ok(engine, line, VALUES(x, &y));
    return y;
}

typedef struct known {
    const char *kind;
    double want;
} known;

static void known_values(void **state)
{
    (void)state;
    double x[] = {3, -4, 0, 2, 2};
    const known rows[] = {{"sum", 3},
                          {"mean", 0.6},
                          {"prod", 0},
                          {"max", 3},
                          {"min", -4},
                          {"amax", 4},
                          {"norm1", 11},
                          {"norm2", 5.744562646538029},
                          {"any", 1},
                          {"all", 0},
                          {"count", 4},
                          {"logsumexp", 3.5802347948869535},
                          {"var", 6.24},
                          {"var correction=1", 7.8},
                          {"std correction=1", 2.792848008753788},
                          {"argmax", 0},
                          {"argmin", 1}};
    const char *const types[] = {"f64:5", "f32:5", "f32:5:-3"};
    for (int e = 0; e < 2; e++)
        for (int t = 0; t < 3; t++)
            for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
                char line[120];
                snprintf(line, sizeof line, "reduce x=%s kind=%s", types[t], rows[i].kind);
                const double got = one(engines[e], line, x);
                assert_int_equal(differences(&got, &rows[i].want, 1, 0, t ? 3e-7 : 1e-14), 0);
            }
}

/* As PyTorch: NaN wins, and of several the first. */
static void not_a_number(void **state)
{
    (void)state;
    enum { N = 9000 };
    double *x = malloc(2 * N * sizeof *x), y[2];
    const char *const nan[] = {"sum",   "mean",  "prod",      "max", "min", "amax",
                               "norm1", "norm2", "logsumexp", "var", "std"};
    const char *const shapes[] = {"f32:2x9000 axes=1", "f64:2x9000 axes=1", "f32:9000x2 axes=0"};
    for (int e = 0; e < 2; e++)
        for (int s = 0; s < 3; s++) {
            char line[120];
            const int step = s == 2 ? 2 : 1, slice = s == 2 ? 1 : N;
            for (int i = 0; i < N; i++) {
                x[i * step] = 1e-3 * (i % 100);
                x[slice + i * step] = i == 17 ? (double)INFINITY : 1;
            }
            x[5003 * step] = x[6011 * step] = NAN;
            for (size_t k = 0; k < sizeof nan / sizeof *nan; k++) {
                snprintf(line, sizeof line, "reduce kind=%s x=%s", nan[k], shapes[s]);
                run_ok(engines[e], line, VALUES(x, y));
                assert_true(isnan(y[0]));
                const bool variance = k >= 9; /* of infinity there is no deviation */
                assert_int_equal(isnan(y[1]) != 0, variance);
            }
            snprintf(line, sizeof line, "reduce kind=argmax x=%s", shapes[s]);
            run_ok(engines[e], line, VALUES(x, y));
            assert_true(y[0] == 5003 && y[1] == 17);
            snprintf(line, sizeof line, "reduce kind=argmin x=%s", shapes[s]);
            run_ok(engines[e], line, VALUES(x, y));
            assert_true(y[0] == 5003 && y[1] == 0);
            snprintf(line, sizeof line, "reduce kind=logsumexp x=%s", shapes[s]);
            run_ok(engines[e], line, VALUES(x, y));
            assert_true(y[1] == (double)INFINITY);
            /* NaN is not zero. */
            for (int i = 0; i < N; i++) x[i * step] = i == 31 ? (double)NAN : 0;
            snprintf(line, sizeof line, "reduce kind=any x=%s", shapes[s]);
            run_ok(engines[e], line, VALUES(x, y));
            assert_true(y[0] == 1 && y[1] == 1);
            for (int i = 0; i < N; i++) x[i * step] = -(double)INFINITY;
            snprintf(line, sizeof line, "reduce kind=logsumexp x=%s", shapes[s]);
            run_ok(engines[e], line, VALUES(x, y));
            assert_true(y[0] == -(double)INFINITY);
            snprintf(line, sizeof line, "reduce kind=argmax x=%s", shapes[s]);
            run_ok(engines[e], line, VALUES(x, y));
            assert_true(y[0] == 0);
        }
    free(x);
}

/* Positions count x's dimensions, whatever the order of memory, and the first of equals wins. */
static void positions(void **state)
{
    (void)state;
    enum { N = 2 * 3 * 40 * 5 };
    const char *const lines[] = {"reduce kind=argmax x=f32:2x3x40x5 axes=1,2",
                                 "reduce kind=argmax x=f32:2x3x40x5:nhwc axes=1,2",
                                 "reduce kind=argmax x=f32:2x3x40x5:1x400x2x80 axes=1,2",
                                 "reduce kind=argmin x=s32:2x3x40x5:nhwc axes=2,1"};
    double x[N], y[10];
    for (int l = 0; l < 4; l++)
        for (int e = 0; e < 2; e++) {
            const double sign = l == 3 ? -1 : 1;
            for (int i = 0; i < N; i++) x[i] = sign * (i % 7);
            /* In slice (1, 2), of 120 elements: positions 53 = 1 x 40 + 13 and 90 = 2 x 40 + 10. */
            x[600 + (1 * 40 + 13) * 5 + 2] = x[600 + (2 * 40 + 10) * 5 + 2] = sign * 100;
            run_ok(engines[e], lines[l], VALUES(x, y));
            assert_true(y[7] == 53);
            for (int i = 0; i < 10; i++) {
                int first = 0;
                const double *at = x + i / 5 * 600 + i % 5;
                for (int k = 1; k < 120; k++)
                    if (sign * at[k * 5] > sign * at[first * 5]) first = k;
                assert_true(y[i] == first);
            }
        }
}

/* Integers are whole in 64 bits, which doubles are not. */
static void large_integers(void **state)
{
    (void)state;
    const char *const lines[] = {"reduce kind=sum x=s64:3",  "reduce kind=max x=s64:3",
                                 "reduce kind=min x=s64:3",  "reduce kind=argmax x=s64:3",
                                 "reduce kind=prod x=s64:3", "reduce kind=amax x=s64:3"};
    const int64_t x[] = {INT64_MAX - 1, INT64_MAX, INT64_MIN};
    const int64_t want[] = {INT64_MAX - 2, INT64_MAX, INT64_MIN, 1, 0, INT64_MAX};
    for (int e = 0; e < 2; e++)
        for (int l = 0; l < 6; l++) {
            mica_plan *plan;
            mica_options options = {.size = sizeof options, .engine = engines[e]};
            int64_t y = 7;
            assert_int_equal(mica_plan_from_text(context, lines[l], &options, &plan), MICA_OK);
            assert_int_equal(mica_plan_run(plan, &(mica_run){.args = {(void *)x, &y}}), MICA_OK);
            /* A product that wraps around: (2^63 - 2)(2^63 - 1)(-2^63) is 0 in 64 bits. */
            assert_true(y == want[l]);
            mica_plan_destroy(plan);
        }
}

static void nothing(void **state)
{
    (void)state;
    const known rows[] = {{"sum", 0},        {"prod", 1},  {"max", -(double)INFINITY},
                          {"min", INFINITY}, {"amax", 0},  {"norm2", 0},
                          {"any", 0},        {"all", 1},   {"logsumexp", -(double)INFINITY},
                          {"mean", NAN},     {"var", NAN}, {"std", NAN}};
    for (int e = 0; e < 2; e++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            char line[80];
            double x = 0, y[3] = {7, 7, 7};
            snprintf(line, sizeof line, "reduce kind=%s x=f32:3x0 axes=1", rows[i].kind);
            run_ok(engines[e], line, VALUES(&x, y));
            for (int k = 0; k < 3; k++)
                assert_true(isnan(rows[i].want) ? isnan(y[k]) : y[k] == rows[i].want);
        }
    /* Of no truths the largest is false, the smallest true: the least and the greatest there are.
     */
    for (int e = 0; e < 2; e++) {
        double x = 0;
        assert_true(one(engines[e], "reduce kind=max x=bool:0", &x) == 0);
        assert_true(one(engines[e], "reduce kind=min x=bool:0", &x) == 1);
    }
    refuses("reduce kind=argmax x=f32:3x0 axes=1", "argmax over no elements has no result");
}

/* Deviations of values that differ little, squares that f32 does not hold, fewer elements than the
 * correction asks for. */
static void far_from_zero(void **state)
{
    (void)state;
    enum { N = 20000 };
    double *x = malloc(N * sizeof *x);
    for (int e = 0; e < 2; e++) {
        for (int i = 0; i < N; i++) x[i] = 0x1p20 + i % 4;
        assert_true(fabs(one(engines[e], "reduce kind=var x=f32:20000", x) - 1.25) < 1e-5);
        assert_true(fabs(one(engines[e], "reduce kind=var x=f32:10000x2:t", x) - 1.25) < 1e-5);
        assert_true(
            fabs(one(engines[e], "reduce kind=logsumexp x=f32:20000", x) - 0x1p20 - 12.0576) < 0.1);
        x[0] = 3e30, x[1] = 4e30;
        assert_true(fabs(one(engines[e], "reduce kind=norm2 x=f32:2", x) - 5e30) < 1e24);
        assert_true(isnan(one(engines[e], "reduce kind=var x=f32:1 correction=1", x)));
    }
    free(x);
}

/* NumPy: ((x0 - x1) ** 2).sum(1), of the same by columns, and what is broadcast. */
static void mapped(void **state)
{
    (void)state;
    double x[] = {1, -2, 3, 0.5, 4, -1}, x1[] = {0, 1, 2, -3, 0.5, 5}, x2[] = {2, -1}, y[3];
    const double rows[] = {11, 60.5}, columns[] = {13.25, 21.25, 37};
    const double counts[] = {2, 1, 1};
    const double least[] = {-3, -6};
    const char *const types[] = {"f32:2x3", "f64:2x3"};
    char line[160];
    for (int e = 0; e < 2; e++)
        for (int t = 0; t < 2; t++) {
            snprintf(line, sizeof line, "reduce x=%s x1=f32:2x3 map=square(x0-x1) axes=1",
                     types[t]);
            run_ok(engines[e], line, VALUES(x, y, x1));
            assert_int_equal(differences(y, rows, 2, 0, 1e-7), 0);
            snprintf(line, sizeof line, "reduce x=%s x1=f32:2x3 map=sqdiff(x0,x1) axes=0",
                     types[t]);
            run_ok(engines[e], line, VALUES(x, y, x1));
            assert_int_equal(differences(y, columns, 3, 0, 1e-7), 0);
            snprintf(line, sizeof line,
                     "reduce x=%s x1=f32:2x3 x2=f32:2x1 map=x2*x1-x0*x0/2+x2*x0 axes=0", types[t]);
            run_ok(engines[e], line, VALUES(x, y, x1, x2));
            for (int c = 0; c < 3; c++) {
                double sum = 0;
                for (int i = 0; i < 2; i++) {
                    const double a = x[3 * i + c], b = x1[3 * i + c];
                    sum += x2[i] * b - a * a / 2 + x2[i] * a;
                }
                assert_true(fabs(y[c] - sum) < 1e-6);
            }
            snprintf(line, sizeof line, "reduce kind=count x=%s x1=f32:2x3 map=x0>x1 axes=0",
                     types[t]);
            run_ok(engines[e], line, VALUES(x, y, x1));
            assert_int_equal(differences(y, counts, 3, 0, 0), 0);
            snprintf(line, sizeof line, "reduce kind=min x=%s x1=f32:2x3 map=x0-x1 axes=1",
                     types[t]);
            run_ok(engines[e], line, VALUES(x, y, x1));
            assert_int_equal(differences(y, least, 2, 0, 0), 0);
        }
    refuses("reduce x=f32:3x4 x1=f32:4", "x1 is given, map, which it is for, is not");
    refuses("reduce x=f32:3x4 x1=f32:4 map=x0*2", "x1 is given, map does not depend on x1");
    refuses("reduce x=f32:3x4 map=x0*x1", "map, column 4: x1 is not given");
    refuses("reduce x=f32:3x4 map=x0;x0", "map has 2 results, it must have one");
    refuses("reduce x=f32:3x4 map=x0*s1", "map: s1 is not there: reduce has no scalars");
    refuses("reduce x=f32:3x4 map=x0*i0",
            "map, column 4: i0 is along dimension 0, the results have 0");
    refuses("reduce x=f32:3x4 x1=f32:3 map=x0*x1", "dimension 1 from the last is 3, that of x 4");
    refuses("reduce x=f32:4 x1=f32:3x4 map=x0*x1", "x1 has rank 2, more than x with 1");
    refuses("reduce kind=argmax x=f32:4 map=x0*2", "argmax of a map");
    refuses("reduce x=s64:4 map=x0*2", "x is s64; map takes f64");
}

static void refusals(void **state)
{
    (void)state;
    refuses("reduce", "x is needed");
    refuses("reduce x=f32:3x4 axes=2", "axes has 2, x has rank 2");
    refuses("reduce x=f32:3x4 axes=-3", "axes has -3, x has rank 2");
    refuses("reduce x=f32:3x4 axes=1,-1", "axes names dimension 1 twice");
    refuses("reduce x=s32:3x4 kind=mean", "x is s32, mean needs a floating-point type");
    refuses("reduce x=f32:3x4 y=s32:", "y is s32, sum of f32 must be f64, f32, f16 or bf16");
    refuses("reduce x=f32:3x4 kind=any y=f32:", "y is f32, any of f32 must be integers");
    refuses("reduce x=f32:3x4 axes=1 y=f32:4", "dimension 0 of y is 4");
    refuses("reduce x=f32:3x4 axes=1 keepdims=1 y=f32:3", "y has rank 1");
    refuses("reduce pass=bwd kind=argmax x=f32:4", "pass is bwd, argmax has no gradient");
    refuses("reduce pass=bwd kind=count x=f32:4", "count has no gradient");
    refuses("reduce pass=bwd x=s32:4", "x is s32, in bwd it must be f64, f32, f16 or bf16");
    refuses("reduce pass=bwd map=square(x0) x=f32:4", "a map has its gradient in pointwise");
    refuses("reduce pass=bwd x=f32:4x3 axes=1 dy=f32:3", "dimension 0 of dy is 3");
    refuses("reduce pass=bwd x=f32:4x3 axes=1 dx=f32:3x4", "dimension 0 of dx is 3, of x 4");
}

static void threads_do_not_show(void **state)
{
    (void)state;
    enum { N = 300000 };
    const char *const lines[] = {"reduce x=f32:300000",
                                 "reduce kind=logsumexp x=f32:300000",
                                 "reduce kind=var x=bf16:2x150000 axes=1",
                                 "reduce kind=norm2 x=f64:300000",
                                 "reduce x=f32:30000x10 axes=0",
                                 "reduce x=f32:3x1000x100 axes=1",
                                 "reduce x=f32:300000 map=sin(x0)*x0"};
    double *x = malloc(N * sizeof *x), few[300], many[300];
    wave(x, N, 3);
    int before = omp_get_max_threads();
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        memset(few, 0, sizeof few), memset(many, 0, sizeof many);
        omp_set_num_threads(1);
        run_ok("cpu", lines[i], VALUES(x, few));
        omp_set_num_threads(5);
        run_ok("cpu", lines[i], VALUES(x, many));
        assert_memory_equal(few, many, sizeof few);
        assert_true(few[0] != 0 && isfinite(few[0]));
    }
    omp_set_num_threads(before);
    free(x);
}

/* Ties, zeros, infinities: as PyTorch's autograd. */
static void gradients_are_those_of_others(void **state)
{
    (void)state;
    enum { ROWS = 4, N = 3 * ROWS };
    static const struct {
        const char *kind;
        double x[N], dx[N], y[ROWS];
    } rows[] = {
#include "../judges/reduce_gradients.h"
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int form = 0; form < 8; form++) {
            const bool wide = form & 1, across = form & 2;
            double x[N], dx[N], want[N], dy[] = {1.5, -2, 0.25, 3};
            char line[160];
            for (int k = 0; k < N; k++) {
                const int from = across ? k % ROWS * 3 + k / ROWS : k;
                x[k] = rows[i].x[from], want[k] = rows[i].dx[from];
            }
            snprintf(line, sizeof line, "reduce pass=bwd kind=%s x=%s:%s axes=%d", rows[i].kind,
                     wide ? "f64" : "f32", across ? "3x4" : "4x3", !across);
            double *values[MICA_MAX_ARGS] = {
                [MICA_REDUCE_X] = x, [MICA_REDUCE_DY] = dy, [MICA_REDUCE_DX] = dx};
            run_ok(form & 4 ? "ref" : "compose", line, values);
            assert_int_equal(differences(dx, want, N, wide ? 1e-14 : 1e-6, wide ? 1e-13 : 3e-6), 0);
            double y[ROWS];
            values[MICA_REDUCE_Y] = y;
            snprintf(line, sizeof line, "reduce kind=%s x=%s:%s axes=%d", rows[i].kind,
                     wide ? "f64" : "f32", across ? "3x4" : "4x3", !across);
            const bool of_any_p = strstr(line, "norm p=") && !strstr(line, "p=1 ") &&
                                  !strstr(line, "p=2 ") && !strstr(line, "p=inf");
            run_ok(form & 4 ? "ref" : of_any_p ? "compose" : "cpu", line, values);
            assert_int_equal(
                differences(y, rows[i].y, ROWS, wide ? 1e-14 : 1e-6, wide ? 1e-13 : 3e-6), 0);
        }
}

/* NaN: the largest, shared among NaN; a magnitude; no other kind hides it. */
static void gradients_of_nan(void **state)
{
    (void)state;
    double x[] = {1, NAN, NAN, 4}, dy[] = {3}, dx[4];
    const double shared[] = {0, 1.5, 1.5, 0}, magnitude[] = {0, NAN, NAN, 0};
    double *values[MICA_MAX_ARGS] = {
        [MICA_REDUCE_X] = x, [MICA_REDUCE_DY] = dy, [MICA_REDUCE_DX] = dx};
    const char *const both[] = {"compose", "ref"};
    for (int e = 0; e < 2; e++) {
        run_ok(both[e], "reduce pass=bwd kind=max x=f32:4", values);
        assert_int_equal(differences(dx, shared, 4, 0, 0), 0);
        run_ok(both[e], "reduce pass=bwd kind=min x=f32:4", values);
        assert_int_equal(differences(dx, shared, 4, 0, 0), 0);
        run_ok(both[e], "reduce pass=bwd kind=amax x=f32:4", values);
        assert_int_equal(differences(dx, magnitude, 4, 0, 0), 0);
        run_ok(both[e], "reduce pass=bwd kind=logsumexp x=f32:4", values);
        for (int i = 0; i < 4; i++) assert_true(isnan(dx[i]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_values),
        cmocka_unit_test(not_a_number),
        cmocka_unit_test(positions),
        cmocka_unit_test(large_integers),
        cmocka_unit_test(nothing),
        cmocka_unit_test(far_from_zero),
        cmocka_unit_test(mapped),
        cmocka_unit_test(refusals),
        cmocka_unit_test(threads_do_not_show),
        cmocka_unit_test(gradients_are_those_of_others),
        cmocka_unit_test(gradients_of_nan),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
