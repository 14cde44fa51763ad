/* SPDX-License-Identifier: Apache-2.0
 * Softmax: known values, limits, refusals, gradients by finite differences, in place, the vector
 * exponential, equal bits for any number of threads. Variants: values of others
 * (tests/judges/softmax.py), slices of nothing, noise. */
#include "line.h"
#include "ops/reduce/cpu/rows.h"

#include <float.h>

/* exp(1..3) over their sum, to 8 digits, as every textbook has it. */
static void known_values(void **state)
{
    (void)state;
    const char *const types[] = {"f64", "f32"};
    double x[] = {1, 2, 3}, y[3], want[] = {0.09003057317, 0.24472847105, 0.66524095577};
    double want_log[] = {-2.40760596444, -1.40760596444, -0.40760596444};
    for (int e = 0; e < 2; e++) {
        for (int t = 0; t < 2; t++) {
            char line[80];
            snprintf(line, sizeof line, "softmax x=%s:3 axis=0", types[t]);
            run_ok(engines[e], line, (double *[MICA_MAX_ARGS]){x, y});
            assert_int_equal(differences(y, want, 3, 0, t ? 2e-7 : 1e-10), 0);
            snprintf(line, sizeof line, "softmax x=%s:3 axis=0 log=1", types[t]);
            run_ok(engines[e], line, (double *[MICA_MAX_ARGS]){x, y});
            assert_int_equal(differences(y, want_log, 3, 0, t ? 2e-7 : 1e-10), 0);
        }
    }
    /* The comparison notices a softmax that forgot its last element. */
    double mutant[] = {exp(-1) / (1 + exp(-1)), 1 / (1 + exp(-1)), want[2]};
    assert_int_equal(differences(mutant, want, 3, 0, 1e-6), 2);
}

static void limits(void **state)
{
    (void)state;
    const double inf = INFINITY;
    double x[] = {1000, 1000, -1000, -inf, 0, -inf, -inf, -inf, -inf,
                  inf,  0,    0,     NAN,  0, 0,    -120, 120,  -120};
    double want[] = {0.5, 0.5, 0,   0,   1,   0,   NAN,       NAN, NAN,
                     NAN, NAN, NAN, NAN, NAN, NAN, exp(-240), 1,   exp(-240)};
    double want_log[] = {
        -log(2), -log(2), -2000 - log(2), -inf, 0,   -inf, NAN, NAN, NAN, NAN, NAN, NAN, NAN,
        NAN,     NAN,     -240,           0,    -240};
    double y[18];
    /* Along contiguous rows, and side by side (the transposed layout has enough neighbours after
     * repetition below). */
    for (int e = 0; e < 2; e++) {
        run_ok(engines[e], "softmax x=f32:6x3 axis=1", (double *[MICA_MAX_ARGS]){x, y});
        assert_int_equal(differences(y, want, 18, 1e-45, 1e-6), 0);
        run_ok(engines[e], "softmax x=f64:6x3 axis=1", (double *[MICA_MAX_ARGS]){x, y});
        assert_int_equal(differences(y, want, 18, 0, 1e-12), 0);
        run_ok(engines[e], "softmax x=f32:6x3 axis=1 log=1", (double *[MICA_MAX_ARGS]){x, y});
        assert_int_equal(differences(y, want_log, 18, 0, 1e-6), 0);
    }
    double wide[36], wide_want[36], wide_y[36]; /* 12 slices: worked side by side */
    for (int i = 0; i < 36; i++) wide[i] = x[i % 18], wide_want[i] = want[i % 18];
    run_ok("cpu", "softmax x=f32:12x3 axis=1", (double *[MICA_MAX_ARGS]){wide, wide_y});
    assert_int_equal(differences(wide_y, wide_want, 36, 1e-45, 1e-6), 0);
}

static void refusals(void **state)
{
    (void)state;
    refuses("softmax axis=0", "x is needed");
    refuses("softmax pass=bwd x=f32:2x3 axis=1", "y is needed");
    refuses("softmax x=f32:2x3 axis=2", "axis is 2, x has rank 2: -2 to 1 are legal");
    refuses("softmax x=f32:2x3 axis=-3", "axis is -3");
    refuses("softmax x=f32: axis=0", "axis is 0, x has rank 0");
    refuses("softmax x=e4m3:2x3 axis=1", "x is e4m3, it must be f64, f32, f16 or bf16");
    refuses("softmax x=f32:2x3 y=s32:2x3 axis=1", "y is s32");
    refuses("softmax x=f32:2x3 y=f32:2x4 axis=1", "dimension 1 of y is 4, of x 3");
    refuses("softmax pass=bwd y=f32:2x3 dy=f32:3x2 axis=1", "dimension 0 of dy is 3, of y 2");
    refuses("softmax x=f32:2x3 y=f32:2x3:0x1 axis=1", "share memory");
    refuses("softmax x=f32:2x3 axis=1 kind=sparsemax log=1", "log of a sparsemax");
    refuses("softmax x=f32:2x3 axis=1 hard=1", "hard is for kind gumbel, this is softmax");
    refuses("softmax x=f32:2x3 axis=1 kind=gumbel hard=1 log=1", "log of a hard choice");
    refuses("softmax pass=bwd y=f32:2x3 axis=1 kind=gumbel hard=1", "hard in bwd");
    refuses("softmax x=f32:2x3 axis=1 tau=2", "tau is 2 for kind gumbel, this is softmax");
    refuses("softmax x=f32:2x3 axis=1 kind=gumbel tau=0", "must lie between 1e-30 and 1e30");
    refuses("softmax x=f32:2x3 axis=1 kind=gumbel tau=-1", "tau is -1, it must lie");
    refuses("softmax x=f32:2x3 axis=1 mask=u8:2x1", "dimension 1 of mask is 1, of x or y 3");
    refuses("softmax x=f32:2x3 axis=1 mask=s32", "mask is s32, it must be");
    refuses("softmax x=f32:2x3 axis=1 kind=gumbel rng=s64:3",
            "rng has 1 dimensions and 3 elements");
}

/* sum of w y */
static double weighted(const char *line, double *x, const double *w, double *y, int n)
{
    double sum = 0;
    run_ok("ref", line, (double *[MICA_MAX_ARGS]){x, y});
    for (int i = 0; i < n; i++) sum += w[i] * y[i];
    return sum;
}

static void finite_differences(void **state)
{
    (void)state;
    enum { N = 4 * 5 * 3 };
    for (int form = 0; form < 6; form++) {
        char fwd[80], bwd[80];
        int axis = form % 3, logarithm = form / 3;
        snprintf(fwd, sizeof fwd, "softmax x=f64:4x5x3 axis=%d log=%d", axis, logarithm);
        snprintf(bwd, sizeof bwd, "softmax pass=bwd y=f64:4x5x3 axis=%d log=%d", axis, logarithm);
        double x[N], w[N], y[N], dx[N], other[N], want[N];
        wave(x, N, 0.1);
        wave(w, N, 2);
        const double eps = 1e-6;
        for (int i = 0; i < N; i++) {
            double old = x[i];
            x[i] = old + eps;
            double up = weighted(fwd, x, w, other, N);
            x[i] = old - eps;
            want[i] = (up - weighted(fwd, x, w, other, N)) / (2 * eps);
            x[i] = old;
        }
        weighted(fwd, x, w, y, N);
        for (int e = 0; e < 2; e++) {
            run_ok(engines[e], bwd, (double *[MICA_MAX_ARGS]){NULL, y, w, dx});
            assert_int_equal(differences(dx, want, N, 1e-5, 1e-3), 0);
        }
        /* A gradient that leaves the sum out is noticed. */
        for (int i = 0; i < N; i++) dx[i] = logarithm ? w[i] : y[i] * w[i];
        assert_true(differences(dx, want, N, 1e-5, 1e-3) > N / 2);
    }
}

static void in_place(void **state)
{
    (void)state;
    const char *const types[] = {"f64", "f32", "bf16"}, *const shapes[] = {"3x5000", "40x7",
                                                                           "9x20"};
    double *x = malloc(15000 * sizeof *x), *y = malloc(15000 * sizeof *y);
    double *apart = malloc(15000 * sizeof *apart);
    for (int form = 0; form < 18; form++) {
        char fwd[80], bwd[80];
        const char *type = types[form % 3], *shape = shapes[form / 3 % 3];
        snprintf(fwd, sizeof fwd, "softmax x=%s:%s axis=1 log=%d", type, shape, form / 9);
        snprintf(bwd, sizeof bwd, "softmax pass=bwd y=%s:%s axis=1 log=%d", type, shape, form / 9);
        int n = form / 3 % 3 == 0 ? 15000 : form / 3 % 3 == 1 ? 280 : 180;
        wave(x, n, 1);
        run_ok("cpu", fwd, (double *[MICA_MAX_ARGS]){x, apart});
        int on_x[] = {MICA_SOFTMAX_Y, MICA_SOFTMAX_X}, on_dy[] = {MICA_SOFTMAX_DX, MICA_SOFTMAX_DY};
        assert_int_equal(line_run("cpu", fwd, (double *[MICA_MAX_ARGS]){x, y}, on_x), MICA_OK);
        assert_memory_equal(y, apart, (size_t)n * sizeof *y);
        double *dx = malloc((size_t)n * sizeof *dx);
        run_ok("cpu", bwd, (double *[MICA_MAX_ARGS]){NULL, y, x, apart});
        assert_int_equal(line_run("cpu", bwd, (double *[MICA_MAX_ARGS]){NULL, y, x, dx}, on_dy),
                         MICA_OK);
        assert_memory_equal(dx, apart, (size_t)n * sizeof *dx);
        free(dx);
    }
    free(x), free(y), free(apart);
}

static void threads_do_not_show(void **state)
{
    (void)state;
    const char *const lines[] = {"softmax x=f32:1x150000 axis=1", "softmax x=f32:15000x10 axis=1",
                                 "softmax x=bf16:30000x5 axis=0",
                                 "softmax x=f32:15x10000 axis=0 log=1"};
    enum { N = 150000 };
    double *x = malloc(N * sizeof *x), *one = malloc(N * sizeof *one),
           *many = malloc(N * sizeof *x);
    wave(x, N, 3);
    int before = omp_get_max_threads();
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        omp_set_num_threads(1);
        run_ok("cpu", lines[i], (double *[MICA_MAX_ARGS]){x, one});
        omp_set_num_threads(5);
        run_ok("cpu", lines[i], (double *[MICA_MAX_ARGS]){x, many});
        assert_memory_equal(one, many, N * sizeof *one);
    }
    omp_set_num_threads(before);
    free(x), free(one), free(many);
}

/* Over the whole range, in steps that hit all exponents and many digits. */
static void exponential_is_accurate(void **state)
{
    (void)state;
    enum { N = 1 << 16 };
    float *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y);
    double worst = 0, worst_subnormal = 0;
    for (int i = 0; i < N; i++) x[i] = -103.9f + 192.6f * (float)i / N;
    mica_row_exp(x, 0, 1, 0, N, y);
    for (int i = 0; i < N; i++) {
        double want = exp((double)x[i]);
        bool subnormal = want < 0x1p-126;
        double ulp = subnormal ? 0x1p-149 : exp2(floor(log2(want)) - 23);
        double error = fabs((double)y[i] - want) / ulp;
        double *w = subnormal ? &worst_subnormal : &worst;
        *w = fmax(*w, error);
    }
    assert_true(worst > 0.4 && worst <= MICA_EXP_ULPS);
    assert_true(worst_subnormal > 0.4 && worst_subnormal <= 1);
    float edge[] = {NAN, INFINITY, -INFINITY, 0, -200, 100}, out[6];
    mica_row_exp(edge, 0, 1, 0, 6, out);
    assert_true(isnan(out[0]) && isinf(out[1]) && isinf(out[5]));
    assert_true(out[2] == 0 && out[3] == 1 && out[4] == 0);
    free(x), free(y);
}

/* ---- variants ---- */

static const char *const variant_engines[] = {"cpu_variants", "ref"};

static void variants_are_those_of_others(void **state)
{
    (void)state;
    enum { N = 6 };
    static const struct {
        const char *fields;
        double x[N], mask[N], y[N], dy[N], dx[N];
    } rows[] = {
#include "../judges/softmax.h"
    };
    const struct {
        const char *type;
        double tolerance;
    } types[] = {{"f64", 1e-14}, {"f32", 1e-6}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int form = 0; form < 4; form++) {
            const char *engine = variant_engines[form % 2], *type = types[form / 2].type;
            const double tolerance = types[form / 2].tolerance;
            double x[N], mask[N], y[N], dy[N], dx[N];
            char line[160];
            memcpy(x, rows[i].x, sizeof x), memcpy(mask, rows[i].mask, sizeof mask);
            memcpy(dy, rows[i].dy, sizeof dy);
            snprintf(line, sizeof line, "softmax x=%s:6 axis=0 %s", type, rows[i].fields);
            double *values[MICA_MAX_ARGS] = {[MICA_SOFTMAX_X] = x,
                                             [MICA_SOFTMAX_Y] = y,
                                             [MICA_SOFTMAX_DY] = dy,
                                             [MICA_SOFTMAX_DX] = dx,
                                             [MICA_SOFTMAX_MASK] = mask};
            run_ok(engine, line, values);
            assert_int_equal(differences(y, rows[i].y, N, tolerance, tolerance), 0);
            snprintf(line, sizeof line, "softmax pass=bwd y=%s:6 axis=0 %s", type, rows[i].fields);
            run_ok(engine, line, values);
            assert_int_equal(differences(dx, rows[i].dx, N, tolerance, tolerance), 0);
        }
}

/* Nothing that is left out shows, be it NaN; what is left decides, -inf and NaN too. */
static void masks_leave_out(void **state)
{
    (void)state;
    const double inf = INFINITY;
    enum { ROWS = 6, N = 3 * ROWS };
    double x[N] = {NAN, inf, -inf, NAN, 1, 1, -inf, -inf, 5, NAN, 1, 2, inf, 1, 2, inf, 1, 3};
    double bytes[N] = {0, 0, 0, 0, 1, 1, 1, 1, 0, 1, 1, 0, 1, 1, 0, 0, 1, 1}, added[N];
    const double low = 1 / (1 + exp(2)), high = 1 / (1 + exp(-2));
    const double want[N] = {0,   0,   0, 0,   0.5, 0.5, NAN, NAN, 0,
                            NAN, NAN, 0, NAN, NAN, 0,   0,   low, high};
    const double sparse[N] = {0, 0, 0, 0, 0.5, 0.5, NAN, NAN, 0, NAN, NAN, 0, NAN, NAN, 0, 0, 0, 1};
    for (int i = 0; i < N; i++) added[i] = bytes[i] != 0 ? 0 : -inf;
    for (int form = 0; form < 8; form++) {
        const char *type = form / 2 % 2 ? "f64" : "f32";
        double y[N], dx[N], dy[N], want_log[N];
        double *values[MICA_MAX_ARGS] = {[MICA_SOFTMAX_X] = x,
                                         [MICA_SOFTMAX_Y] = y,
                                         [MICA_SOFTMAX_DY] = dy,
                                         [MICA_SOFTMAX_DX] = dx,
                                         [MICA_SOFTMAX_MASK] = form / 4 ? added : bytes};
        char line[120];
        const char *const lines[] = {"softmax x=%s:6x3 axis=1 mask=%s",
                                     "softmax x=%s:6x3 axis=1 log=1 mask=%s",
                                     "softmax x=%s:6x3 axis=1 kind=sparsemax mask=%s",
                                     "softmax pass=bwd y=%s:6x3 axis=1 mask=%s",
                                     "softmax pass=bwd y=%s:6x3 axis=1 kind=sparsemax mask=%s",
                                     "softmax pass=bwd y=%s:6x3 axis=1 log=1 mask=%s"};
        for (int l = 0; l < 6; l++) {
            snprintf(line, sizeof line, lines[l], type, form / 4 ? "f32" : "u8");
            for (int i = 0; i < N; i++) want_log[i] = log(want[i]);
            for (int i = 0; i < N && l >= 3; i++)
                dy[i] = bytes[i] != 0 ? (double)i : NAN, y[i] = NAN;
            for (int i = 15; i < N && l >= 3; i++) y[i] = l == 5 ? want_log[i] : want[i];
            run_ok(variant_engines[form % 2], line, values);
            if (l < 3) {
                const double *const wants[] = {want, want_log, sparse};
                assert_int_equal(differences(y, wants[l], N, 0, 1e-6), 0);
                continue;
            }
            /* Of slices with something: dy of what is left out does not count. */
            for (int i = 0; i < N; i++)
                if (bytes[i] == 0) assert_true(dx[i] == 0);
            const double p = l == 4 ? -0.5 : -low * high;
            if (l != 5) assert_true(fabs(dx[16] - p) < 1e-6 && fabs(dx[17] + p) < 1e-6);
            if (l == 5) assert_true(fabs(dx[16] - (16 - low * 33)) < 1e-5);
        }
    }
}

/* By the words that random draws: F.gumbel_softmax's formula with the noise -log(-log(1 - u)), and
 * its choice. */
static void gumbel_is_that_of_random(void **state)
{
    (void)state;
    enum { ROWS = 40, COLUMNS = 25, N = ROWS * COLUMNS };
    static double x[N], words[2 * N], y[N], want[N], hard[N], rng[] = {20261128, 3};
    wave(x, N, 0.5);
    for (int form = 0; form < 4; form++) {
        const bool wide = form / 2;
        char line[120];
        snprintf(line, sizeof line, "random kind=bits y=%s:%d", "u32", wide ? 2 * N : N);
        run_ok("cpu", line, (double *[MICA_MAX_ARGS]){words, rng});
        memset(hard, 0, sizeof hard);
        for (int r = 0; r < ROWS; r++) {
            double sum = 0;
            int place = r * COLUMNS;
            for (int i = r * COLUMNS; i < (r + 1) * COLUMNS; i++) {
                const double high = wide ? words[2 * i + 1] : 0;
                const double u = wide ? (floor((words[2 * i] + 0x1p32 * fmod(high, 4096)) / 4096) +
                                         floor(high / 4096) * 0x1p32 + 0.5) *
                                            0x1p-52
                                      : (floor(words[i] / 2) + 0.5) * 0x1p-31;
                const double shown = wide ? x[i] : (double)(float)x[i];
                const double z = (1.5 * shown - log(-log1p(-u))) / 0.7;
                want[i] = exp(z);
                sum += want[i];
                if (want[i] > want[place]) place = i;
            }
            for (int i = r * COLUMNS; i < (r + 1) * COLUMNS; i++) want[i] /= sum;
            hard[place] = 1;
        }
        double *values[MICA_MAX_ARGS] = {
            [MICA_SOFTMAX_X] = x, [MICA_SOFTMAX_Y] = y, [MICA_SOFTMAX_RNG] = rng};
        const char *type = wide ? "f64" : "f32", *engine = variant_engines[form % 2];
        snprintf(line, sizeof line, "softmax kind=gumbel x=%s:40x25 axis=1 scale=1.5 tau=0.7",
                 type);
        run_ok(engine, line, values);
        assert_int_equal(differences(y, want, N, 0, wide ? 1e-9 : 1e-5), 0);
        strcat(line, " hard=1");
        run_ok(engine, line, values);
        assert_int_equal(differences(y, hard, N, 0, 0), 0);
    }
}

/* The last noise of the largest word, and of the least: no infinity. Means of Gumbel's distribution
 * are Euler's constant. */
static void noise_is_finite_and_has_its_mean(void **state)
{
    (void)state;
    enum { N = 1 << 18 };
    static double x[N], y[N];
    double rng[] = {7, 0}, sum = 0;
    double *values[MICA_MAX_ARGS] = {
        [MICA_SOFTMAX_X] = x, [MICA_SOFTMAX_Y] = y, [MICA_SOFTMAX_RNG] = rng};
    /* log y = g - log(sum(exp(g))), and exp(-g) is exponential, of mean 1. */
    run_ok("cpu_variants", "softmax kind=gumbel log=1 x=f32:262144 axis=0", values);
    double least = 0, log_sum = 0;
    for (int i = 0; i < N; i++) sum += y[i] / N, least = fmin(least, y[i]);
    for (int i = 0; i < N; i++) log_sum += exp(-(y[i] - sum)) / N;
    /* The mean of exp(-g) is 1, so log_sum is exp(mean of g). */
    assert_true(fabs(log(log_sum) - 0.57721566) < 0.01);
    assert_true(isfinite(least) && least - sum > -4);
}

/* Nothing is larger than -inf, whatever the length; a NaN is passed over. Compilers begin
 * reductions of their own at other numbers. */
static void maxima_begin_at_infinity(void **state)
{
    enum { N = 100 };
    float x[N];
    double wide[N];
    (void)state;
    for (int n = 0; n <= N; n++) {
        for (int i = 0; i < n; i++) x[i] = -INFINITY, wide[i] = -(double)INFINITY;
        assert_true(mica_row_max(x, n) == -INFINITY);
        assert_true(mica_row_max_f64(wide, n) == -(double)INFINITY);
        if (n < 2) continue;
        x[n - 1] = -FLT_MAX, x[0] = NAN, wide[n - 1] = -DBL_MAX, wide[0] = (double)NAN;
        assert_true(mica_row_max(x, n) == -FLT_MAX);
        assert_true(mica_row_max_f64(wide, n) == -DBL_MAX);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_values),
        cmocka_unit_test(limits),
        cmocka_unit_test(refusals),
        cmocka_unit_test(finite_differences),
        cmocka_unit_test(in_place),
        cmocka_unit_test(threads_do_not_show),
        cmocka_unit_test(exponential_is_accurate),
        cmocka_unit_test(maxima_begin_at_infinity),
        cmocka_unit_test(variants_are_those_of_others),
        cmocka_unit_test(masks_leave_out),
        cmocka_unit_test(gumbel_is_that_of_random),
        cmocka_unit_test(noise_is_finite_and_has_its_mean),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
