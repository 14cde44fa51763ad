/* SPDX-License-Identifier: Apache-2.0
 * Normalisation: values worked out by hand, refusals, gradients by finite differences, data on
 * which one-pass variances fail, empty and single-element sets, in place, NULL results, equal bits
 * for any number of threads. */
#include "line.h"

#define VALUES(...)                                                                                \
    (double *[MICA_MAX_ARGS])                                                                      \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

/* ---- values ---- */

/* Biased variance of 1..4 is 1.25: (x - 2.5) / sqrt(1.25001), as PyTorch's layer_norm prints. */
static double four[] = {1, 2, 3, 4};
static const double four_want[] = {-1.341635420, -0.447211807, 0.447211807, 1.341635420};

static void layer_and_rms(void **state)
{
    (void)state;
    double y[4], scale[] = {1, 2, -1, 0.5}, bias[] = {0, 1, 2, 3}, mean, rstd, want[4];
    for (int e = 0; e < 2; e++) {
        run_ok(engines[e], "norm x=f64:1x4", VALUES([MICA_NORM_X] = four, [MICA_NORM_Y] = y));
        assert_int_equal(differences(y, four_want, 4, 1e-9, 0), 0);
        run_ok(engines[e], "norm x=f32:1x4 scale=f32:4 bias=f32:4 mean=f32:1 rstd=f32:1",
               VALUES([MICA_NORM_X] = four, [MICA_NORM_SCALE] = scale, [MICA_NORM_BIAS] = bias,
                      [MICA_NORM_Y] = y, [MICA_NORM_MEAN] = &mean, [MICA_NORM_RSTD] = &rstd));
        for (int i = 0; i < 4; i++) want[i] = four_want[i] * scale[i] + bias[i];
        assert_int_equal(differences(y, want, 4, 1e-6, 0), 0);
        assert_true(fabs(mean - 2.5) < 1e-6 && fabs(rstd - 0.894423613) < 1e-6);
        /* (9 + 16) / 2 = 12.5; 3 / sqrt(12.50001) */
        double x[] = {3, 4}, rms_want[] = {0.848527798, 1.131370397};
        run_ok(engines[e], "norm kind=rms x=f64:2", VALUES([MICA_NORM_X] = x, [MICA_NORM_Y] = y));
        assert_int_equal(differences(y, rms_want, 2, 1e-8, 0), 0);
    }
}

static void residual_sum_and_activation(void **state)
{
    (void)state;
    double x[] = {1, 1, 2, 2}, r[] = {0, 1, 1, 2}, y[4], sum[4], want[4];
    for (int i = 0; i < 4; i++) want[i] = fmax(four_want[i], 0);
    for (int e = 0; e < 2; e++) {
        run_ok(engines[e], "norm x=bf16:1x4 residual=bf16:1x4 y=f32:1x4 act=relu",
               VALUES([MICA_NORM_X] = x, [MICA_NORM_RESIDUAL] = r, [MICA_NORM_Y] = y,
                      [MICA_NORM_SUM] = sum));
        assert_int_equal(differences(y, want, 4, 1e-6, 0), 0);
        assert_int_equal(differences(sum, four, 4, 0, 0), 0);
    }
}

/* Channel 0 holds 1 2 5 6: mean 3.5, variance 4.25, unbiased 17/3; channel 1 is 2 higher. PyTorch:
 * running = 0.9 running + 0.1 new, the variance unbiased. */
static void batch(void **state)
{
    (void)state;
    double x[] = {1, 2, 3, 4, 5, 6, 7, 8}, y[8], mean[2], rstd[2], want[8];
    double rstd_want = 1 / sqrt(4.25001), mean_want[] = {3.5, 5.5};
    for (int i = 0; i < 8; i++) want[i] = (x[i] - mean_want[i / 2 % 2]) * rstd_want;
    const char *const layouts[] = {"", ":nwc"};
    for (int e = 0; e < 4; e++) {
        double rm[] = {0, 10}, rv[] = {1, 2}, rm_want[] = {0.35, 9.55};
        double rv_want[] = {0.9 + 1.7 / 3, 1.8 + 1.7 / 3};
        char line[160];
        snprintf(line, sizeof line,
                 "norm kind=batch x=f64:2x2x2%s mean=f64:2 rstd=f64:2 running_mean=f64:2 "
                 "running_var=f64:2",
                 layouts[e / 2]);
        run_ok(engines[e % 2], line,
               VALUES([MICA_NORM_X] = x, [MICA_NORM_Y] = y, [MICA_NORM_MEAN] = mean,
                      [MICA_NORM_RSTD] = rstd, [MICA_NORM_RUNNING_MEAN] = rm,
                      [MICA_NORM_RUNNING_VAR] = rv));
        assert_int_equal(differences(y, want, 8, 1e-12, 0), 0);
        assert_int_equal(differences(mean, mean_want, 2, 1e-12, 0), 0);
        assert_true(fabs(rstd[0] - rstd_want) < 1e-12 && fabs(rstd[1] - rstd_want) < 1e-12);
        assert_int_equal(differences(rm, rm_want, 2, 1e-12, 0), 0);
        assert_int_equal(differences(rv, rv_want, 2, 1e-12, 0), 0);
        /* infer: (x - rm) / sqrt(rv + eps), and nothing is updated */
        double before[] = {rm[0], rm[1], rv[0], rv[1]}, infer_want[8];
        for (int i = 0; i < 8; i++)
            infer_want[i] = (x[i] - rm[i / 2 % 2]) / sqrt(rv[i / 2 % 2] + 1e-5);
        snprintf(line, sizeof line, "norm kind=batch mode=infer x=f64:2x2x2%s", layouts[e / 2]);
        run_ok(engines[e % 2], line,
               VALUES([MICA_NORM_X] = x, [MICA_NORM_Y] = y, [MICA_NORM_RUNNING_MEAN] = rm,
                      [MICA_NORM_RUNNING_VAR] = rv));
        assert_int_equal(differences(y, infer_want, 8, 1e-12, 0), 0);
        assert_true(rm[0] == before[0] && rm[1] == before[1]);
        assert_true(rv[0] == before[2] && rv[1] == before[3]);
    }
}

/* x is 1 3: mean 2, variance ((1 - 2)^2 + (3 - 2)^2) / 2 = 1, unbiased 2. With momentum 1
 * running_var is all new: 2 as PyTorch has it, 1 as ONNX. One value has variance 0, and no unbiased
 * one. Types of statistics alone are enough. */
static void running_variance(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++)
        for (int biased = 0; biased < 2; biased++) {
            double x[] = {1, 3}, y[2], mean[1], rstd[1], rm[] = {9}, rv[] = {9};
            char line[160];
            snprintf(line, sizeof line,
                     "norm kind=batch momentum=1 x=f32:2x1 running_mean=f32 running_var=f32 "
                     "mean=f32 rstd=f32 running_biased=%d",
                     biased);
            run_ok(engines[e], line,
                   VALUES([MICA_NORM_X] = x, [MICA_NORM_Y] = y, [MICA_NORM_MEAN] = mean,
                          [MICA_NORM_RSTD] = rstd, [MICA_NORM_RUNNING_MEAN] = rm,
                          [MICA_NORM_RUNNING_VAR] = rv));
            assert_true(rm[0] == 2 && rv[0] == 2 - biased && mean[0] == 2);
        }
    double x[] = {5}, y[1], rv[] = {9};
    run_ok("cpu", "norm kind=batch momentum=1 x=f32:1x1 running_var=f32 running_biased=1",
           VALUES([MICA_NORM_X] = x, [MICA_NORM_Y] = y, [MICA_NORM_RUNNING_VAR] = rv));
    assert_true(rv[0] == 0);
    refuses("norm kind=layer x=f32:2x6 running_biased=1", "only batch has");
}

/* Deviations of 3e19: their squares, 9e38, leave f32. No result may be 0, as 1 / sqrt(inf) makes
 * it. */
static void overflowing_squares_show(void **state)
{
    (void)state;
    const char *const lines[] = {"norm kind=layer x=f32:1x4", "norm kind=rms x=f32:1x4",
                                 "norm kind=batch x=f32:4x1", "norm kind=instance x=f32:1x1x4"};
    for (int i = 0; i < 4; i++) {
        double x[] = {3e19, -3e19, 1e19, 2e19}, y[4];
        run_ok("cpu", lines[i], VALUES([MICA_NORM_X] = x, [MICA_NORM_Y] = y));
        for (int k = 0; k < 4; k++) assert_true(isnan(y[k]));
    }
}

/* Pairs 1 3 and 10 14: means 2 and 12, variances 1 and 4. */
static void group_and_instance(void **state)
{
    (void)state;
    double x[] = {1, 3, 10, 14}, y[4], a = 1 / sqrt(1.00001), b = 2 / sqrt(4.00001);
    double want[] = {-a, a, -b, b}, scale[] = {1, 2, 3, 4}, scaled[] = {-a, 2 * a, -3 * b, 4 * b};
    for (int e = 0; e < 2; e++) {
        run_ok(engines[e], "norm kind=group groups=2 x=f64:1x4x1",
               VALUES([MICA_NORM_X] = x, [MICA_NORM_Y] = y));
        assert_int_equal(differences(y, want, 4, 1e-12, 0), 0);
        run_ok(engines[e], "norm kind=group groups=2 x=f64:1x4x1 scale=f64:4",
               VALUES([MICA_NORM_X] = x, [MICA_NORM_Y] = y, [MICA_NORM_SCALE] = scale));
        assert_int_equal(differences(y, scaled, 4, 1e-12, 0), 0);
        run_ok(engines[e], "norm kind=instance x=f64:1x2x2",
               VALUES([MICA_NORM_X] = x, [MICA_NORM_Y] = y));
        assert_int_equal(differences(y, want, 4, 1e-12, 0), 0);
    }
}

/* ---- numerics ---- */

/* Mean 1e4, deviation 1, in f32: the corrected two passes keep six digits of rstd; E[x^2] - mean^2
 * keeps none, and the comparison sees that. Long sets and short rows, which have loops of their
 * own.
 */
static void far_from_zero(void **state)
{
    (void)state;
    enum { N = 30000, SHORT = 1000 };
    static const struct {
        const char *line;
        int n;
    } cases[] = {{"norm x=f32:1x30000 mean=f32:1 rstd=f32:1", N},
                 {"norm x=f32:1x1000 mean=f32:1 rstd=f32:1", SHORT},
                 {"norm kind=batch x=f32:30000x1 mean=f32:1 rstd=f32:1", N},
                 {"norm kind=instance x=f32:1x1x30000:60000x60000x2 mean=f32:1x1 rstd=f32:1x1 "
                  "y=f32:1x1x30000",
                  N}};
    static double x[N], y[N];
    for (int i = 0; i < N; i++) x[i] = (float)(1e4 + sqrt(2) * sin(0.7 * i + 1e-4 * i * (double)i));
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        int n = cases[c].n;
        double mean = 0, var = 0, got_mean, got_rstd;
        float sum = 0, squares = 0;
        for (int i = 0; i < n; i++) {
            mean += x[i] / n;
            sum += (float)x[i], squares += (float)x[i] * (float)x[i];
        }
        for (int i = 0; i < n; i++) var += (x[i] - mean) * (x[i] - mean) / n;
        double rstd = 1 / sqrt(var + 1e-5);
        assert_true(fabs(rstd - 1) < 0.05);
        float one_pass = squares / (float)n - sum / (float)n * (sum / (float)n);
        assert_true(!(fabs(1 / sqrt((double)one_pass + 1e-5) - rstd) < 1e-2 * rstd));
        for (int e = 0; e < 2; e++) {
            run_ok(engines[e], cases[c].line,
                   VALUES([MICA_NORM_X] = x, [MICA_NORM_Y] = y, [MICA_NORM_MEAN] = &got_mean,
                          [MICA_NORM_RSTD] = &got_rstd));
            assert_true(fabs(got_mean - mean) < 1e-3); /* half a unit of f32 at 1e4 is 5e-4 */
            assert_true(fabs(got_rstd - rstd) < 2e-6 * rstd);
            for (int i = 0; i < n; i++) assert_true(fabs(y[i] - (x[i] - mean) * rstd) < 2e-3);
        }
    }
}

/* NaN and infinity spoil their own set and no other. */
static void one_bad_element(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        for (int bad = 0; bad < 2; bad++) {
            double x[5 * 40], y[5 * 40];
            wave(x, 5 * 40, 0.1);
            x[2 * 40 + 17] = bad ? INFINITY : NAN;
            run_ok(engines[e], "norm x=f32:5x40", VALUES([MICA_NORM_X] = x, [MICA_NORM_Y] = y));
            for (int i = 0; i < 5 * 40; i++) assert_int_equal(isnan(y[i]) != 0, i / 40 == 2);
        }
    }
}

/* ---- gradients ---- */

typedef struct gradient_case {
    const char *problem, *statistics;
    int n, channels;
} gradient_case;

static const gradient_case gradient_cases[] = {
    {"axes=2 x=f64:2x3x4 scale=f64:3x4 bias=f64:3x4", "mean=f64:2 rstd=f64:2", 24, 12},
    {"x=f64:6x4:t scale=f64:4 bias=f64:4", "mean=f64:6 rstd=f64:6", 24, 4},
    {"kind=rms x=f64:6x4 scale=f64:4 bias=f64:4", "rstd=f64:6", 24, 4},
    {"kind=batch x=f64:2x3x4 scale=f64:3 bias=f64:3", "mean=f64:3 rstd=f64:3", 24, 3},
    {"kind=batch x=f64:2x3x4:nwc scale=f64:3 bias=f64:3", "mean=f64:3 rstd=f64:3", 24, 3},
    {"kind=batch mode=infer x=f64:2x3x4 scale=f64:3 bias=f64:3", "", 24, 3},
    {"kind=group groups=2 x=f64:2x4x3 scale=f64:4 bias=f64:4", "mean=f64:2x2 rstd=f64:2x2", 24, 4},
    {"kind=instance x=f64:2x3x4:nwc scale=f64:3 bias=f64:3", "mean=f64:2x3 rstd=f64:2x3", 24, 3},
};

typedef struct gradient_data {
    double x[24], scale[12], bias[12], rm[12], rv[12], weights[24];
    double y[24], mean[24], rstd[24], dx[24], dscale[12], dbias[12];
    double *forward[MICA_MAX_ARGS], *backward[MICA_MAX_ARGS];
} gradient_data;

static void gradient_start(gradient_data *d)
{
    wave(d->x, 24, 0.3), wave(d->scale, 12, 1.3), wave(d->bias, 12, 2.1);
    wave(d->weights, 24, 4.7), wave(d->rm, 12, 0.9);
    for (int i = 0; i < 12; i++) d->rv[i] = 0.5 + 0.1 * i;
    double *forward[] = {
        [MICA_NORM_X] = d->x,    [MICA_NORM_SCALE] = d->scale, [MICA_NORM_BIAS] = d->bias,
        [MICA_NORM_Y] = d->y,    [MICA_NORM_MEAN] = d->mean,   [MICA_NORM_RSTD] = d->rstd,
        [MICA_NORM_DBIAS] = NULL};
    memcpy(d->forward, forward, sizeof forward);
    d->forward[MICA_NORM_RUNNING_MEAN] = d->rm, d->forward[MICA_NORM_RUNNING_VAR] = d->rv;
    memcpy(d->backward, d->forward, sizeof d->forward);
    d->backward[MICA_NORM_DY] = d->weights, d->backward[MICA_NORM_DX] = d->dx;
    d->backward[MICA_NORM_DSCALE] = d->dscale, d->backward[MICA_NORM_DBIAS] = d->dbias;
}

static double weighted(const char *line, const gradient_data *d)
{
    double sum = 0;
    run_ok("ref", line, (double *const *)d->forward);
    for (int i = 0; i < 24; i++) sum += d->weights[i] * d->y[i];
    return sum;
}

/* Central differences: eps 1e-6, atol 1e-5, rtol 1e-3. */
static int slopes_differ(const char *line, const gradient_data *d, double *input, int n,
                         const double *got)
{
    double want[24];
    for (int i = 0; i < n; i++) {
        double at = input[i];
        input[i] = at + 1e-6;
        double high = weighted(line, d);
        input[i] = at - 1e-6;
        double low = weighted(line, d);
        input[i] = at;
        want[i] = (high - low) / 2e-6;
    }
    return differences(got, want, n, 1e-5, 1e-3);
}

static void gradients(void **state)
{
    (void)state;
    static const char *const acts[] = {"identity", "gelu", "silu", "tanh"};
    for (size_t c = 0; c < sizeof gradient_cases / sizeof *gradient_cases; c++) {
        for (int k = 0; k < 4; k++) {
            const gradient_case *g = &gradient_cases[c];
            gradient_data d;
            char forward[200], backward[200];
            gradient_start(&d);
            snprintf(forward, sizeof forward, "norm %s %s act=%s", g->problem, g->statistics,
                     acts[k]);
            snprintf(backward, sizeof backward, "norm pass=bwd %s act=%s", g->problem, acts[k]);
            for (int e = 0; e < 2; e++) {
                run_ok("ref", forward, d.forward); /* mean and rstd */
                run_ok(engines[e], backward, d.backward);
                assert_int_equal(slopes_differ(forward, &d, d.x, 24, d.dx), 0);
                assert_int_equal(slopes_differ(forward, &d, d.scale, g->channels, d.dscale), 0);
                assert_int_equal(slopes_differ(forward, &d, d.bias, g->channels, d.dbias), 0);
            }
        }
    }
    /* The comparison notices one wrong sign. */
    gradient_data d;
    gradient_start(&d);
    run_ok("ref", "norm x=f64:6x4 mean=f64:6 rstd=f64:6", d.forward);
    run_ok("ref", "norm pass=bwd x=f64:6x4", d.backward);
    d.dx[7] = -d.dx[7];
    assert_int_equal(slopes_differ("norm x=f64:6x4 mean=f64:6 rstd=f64:6", &d, d.x, 24, d.dx), 1);
}

/* bwd reads the sum; its dx is the gradient of x and of the residual alike. */
static void gradient_of_residual(void **state)
{
    (void)state;
    const char *line = "norm x=f64:6x4 residual=f64:6x4 scale=f64:4 mean=f64:6 rstd=f64:6 act=silu";
    for (int e = 0; e < 2; e++) {
        gradient_data d;
        double residual[24], sum[24];
        gradient_start(&d);
        wave(residual, 24, 5.5);
        d.forward[MICA_NORM_RESIDUAL] = residual, d.forward[MICA_NORM_SUM] = sum;
        run_ok(engines[e], line, d.forward);
        d.backward[MICA_NORM_X] = sum;
        run_ok(engines[e], "norm pass=bwd x=f64:6x4 scale=f64:4 act=silu", d.backward);
        double at_sum[24];
        memcpy(at_sum, sum, sizeof sum); /* later runs overwrite it */
        assert_int_equal(slopes_differ(line, &d, d.x, 24, d.dx), 0);
        assert_int_equal(slopes_differ(line, &d, residual, 24, d.dx), 0);
        assert_int_equal(differences(sum, at_sum, 24, 1e-5, 0), 0);
    }
}

/* Behind the affine step the residual has a gradient of its own, which is dbias' before it is
 * summed. */
static void gradient_of_residual_behind(void **state)
{
    (void)state;
    static const char *const kinds[] = {
        "kind=batch x=f64:2x3x4 scale=f64:3 bias=f64:3",
        "kind=batch x=f64:2x3x4:nwc scale=f64:3 bias=f64:3 mode=infer",
        "kind=group groups=1 x=f64:2x3x4:nwc scale=f64:3 bias=f64:3",
        "kind=instance x=f64:2x3x4 scale=f64:3 bias=f64:3",
    };
    static const char *const statistics[] = {
        "mean=f64:3 rstd=f64:3", "", "mean=f64:2x1 rstd=f64:2x1", "mean=f64:2x3 rstd=f64:2x3"};
    static const char *const acts[] = {"identity", "silu", "tanh"};
    for (int c = 0; c < 4 * 3 * 2; c++) {
        const char *problem = kinds[c % 4], *act = acts[c / 4 % 3];
        char forward[200], backward[200];
        gradient_data d;
        double residual[24], dresidual[24], alone[24];
        gradient_start(&d);
        wave(residual, 24, 5.5);
        d.forward[MICA_NORM_RESIDUAL] = d.backward[MICA_NORM_RESIDUAL] = residual;
        d.backward[MICA_NORM_DRESIDUAL] = dresidual;
        snprintf(forward, sizeof forward, "norm %s residual=f64:2x3x4 %s act=%s", problem,
                 statistics[c % 4], act);
        snprintf(backward, sizeof backward,
                 "norm pass=bwd %s residual=f64:2x3x4 dresidual=f64:2x3x4 act=%s", problem, act);
        run_ok("ref", forward, d.forward); /* mean and rstd */
        run_ok(engines[c / 12], backward, d.backward);
        assert_int_equal(slopes_differ(forward, &d, d.x, 24, d.dx), 0);
        assert_int_equal(slopes_differ(forward, &d, d.scale, 3, d.dscale), 0);
        assert_int_equal(slopes_differ(forward, &d, d.bias, 3, d.dbias), 0);
        assert_int_equal(slopes_differ(forward, &d, residual, 24, dresidual), 0);
        memcpy(alone, dresidual, sizeof alone); /* the same without dx */
        memset(dresidual, 0, sizeof dresidual);
        d.backward[MICA_NORM_DX] = NULL;
        run_ok("ref", forward, d.forward);
        run_ok(engines[c / 12], backward, d.backward);
        assert_memory_equal(dresidual, alone, sizeof alone);
    }
}

/* ---- edges ---- */

static void empty_sets(void **state)
{
    (void)state;
    double none[1] = {0}, zeros[5] = {0}, got[5], rstd[5], roots[5], scale[] = {1, 2, 3, 4, 5};
    for (int i = 0; i < 5; i++) roots[i] = 1 / sqrt(1e-5);
    for (int e = 0; e < 2; e++) {
        run_ok(engines[e], "norm x=f64:5x0 mean=f64:5 rstd=f64:5",
               VALUES([MICA_NORM_X] = none, [MICA_NORM_MEAN] = got, [MICA_NORM_RSTD] = rstd));
        assert_int_equal(differences(got, zeros, 5, 0, 0), 0);
        assert_int_equal(differences(rstd, roots, 5, 0, 1e-12), 0);
        const char *const lines[] = {"norm pass=bwd x=f64:0x5 scale=f64:5 bias=f64:5",
                                     "norm pass=bwd kind=batch x=f64:0x5x3 scale=f64:5 dbias=f64:5",
                                     "norm pass=bwd kind=group groups=5 x=f64:2x5x0 scale=f64:5"};
        for (int l = 0; l < 3; l++) {
            double dbias[5] = {0};
            double stats[10] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
            run_ok(engines[e], lines[l],
                   VALUES([MICA_NORM_X] = none, [MICA_NORM_DY] = none, [MICA_NORM_SCALE] = scale,
                          [MICA_NORM_MEAN] = stats, [MICA_NORM_RSTD] = stats,
                          [MICA_NORM_DSCALE] = got, [MICA_NORM_DBIAS] = dbias));
            assert_int_equal(differences(got, zeros, 5, 0, 0), 0);
            assert_int_equal(differences(dbias, zeros, 5, 0, 0), 0);
        }
        double rm[] = {1, 2, 3}, rv[] = {4, 5, 6}, rm_want[] = {1, 2, 3}, rv_want[] = {4, 5, 6};
        run_ok(engines[e], "norm kind=batch x=f64:0x3x2 running_mean=f64:3 running_var=f64:3",
               VALUES([MICA_NORM_X] = none, [MICA_NORM_RUNNING_MEAN] = rm,
                      [MICA_NORM_RUNNING_VAR] = rv));
        assert_int_equal(differences(rm, rm_want, 3, 0, 0), 0);
        assert_int_equal(differences(rv, rv_want, 3, 0, 0), 0);
    }
}

/* One element per set: no deviation, y is the bias. */
static void sets_of_one(void **state)
{
    (void)state;
    double x[] = {3, -4, 5, 6, 7, 8}, bias[] = {1, 2, 3}, y[6], want[] = {1, 2, 3, 1, 2, 3};
    for (int e = 0; e < 2; e++) {
        run_ok(engines[e], "norm kind=instance x=f32:2x3x1 bias=f32:3",
               VALUES([MICA_NORM_X] = x, [MICA_NORM_BIAS] = bias, [MICA_NORM_Y] = y));
        assert_int_equal(differences(y, want, 6, 0, 0), 0);
        run_ok(engines[e], "norm kind=batch x=f32:1x3 bias=f32:3",
               VALUES([MICA_NORM_X] = x, [MICA_NORM_BIAS] = bias, [MICA_NORM_Y] = y));
        assert_int_equal(differences(y, want, 3, 0, 0), 0);
    }
}

static void in_place(void **state)
{
    (void)state;
    enum { N = 7 * 300 };
    static double x[N], r[N], want[N], got[N], sum[N], dy[N];
    double scale[300], dscale[300], dscale_want[300], stats[7] = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 1};
    wave(x, N, 0), wave(r, N, 1), wave(dy, N, 2), wave(scale, 300, 3);
    const char *forward = "norm x=f32:7x300 residual=f32:7x300 act=silu";
    const char *backward = "norm pass=bwd x=f32:7x300 scale=f32:300";
    for (int e = 0; e < 2; e++) {
        double **out = VALUES([MICA_NORM_X] = x, [MICA_NORM_RESIDUAL] = r, [MICA_NORM_Y] = want,
                              [MICA_NORM_SUM] = sum);
        run_ok(engines[e], forward, out);
        out[MICA_NORM_Y] = got;
        const int y_on_x[] = {MICA_NORM_Y, MICA_NORM_X};
        assert_int_equal(line_run(engines[e], forward, out, y_on_x), MICA_OK);
        assert_int_equal(differences(got, want, N, 0, 0), 0);
        const int sum_on_residual[] = {MICA_NORM_SUM, MICA_NORM_RESIDUAL};
        assert_int_equal(line_run(engines[e], forward, out, sum_on_residual), MICA_OK);
        assert_int_equal(differences(got, want, N, 0, 0), 0);
        out = VALUES([MICA_NORM_X] = x, [MICA_NORM_SCALE] = scale, [MICA_NORM_MEAN] = stats,
                     [MICA_NORM_RSTD] = stats, [MICA_NORM_DY] = dy, [MICA_NORM_DX] = want,
                     [MICA_NORM_DSCALE] = dscale_want);
        run_ok(engines[e], backward, out);
        out[MICA_NORM_DX] = got, out[MICA_NORM_DSCALE] = dscale;
        const int dx_on_dy[] = {MICA_NORM_DX, MICA_NORM_DY};
        assert_int_equal(line_run(engines[e], backward, out, dx_on_dy), MICA_OK);
        assert_int_equal(differences(got, want, N, 0, 0), 0);
        assert_int_equal(differences(dscale, dscale_want, 300, 0, 0), 0);
        const int y_on_residual[] = {MICA_NORM_Y, MICA_NORM_RESIDUAL};
        out = VALUES([MICA_NORM_X] = x, [MICA_NORM_RESIDUAL] = r);
        assert_int_equal(line_run(engines[e], forward, out, y_on_residual), MICA_INVALID);
    }
}

/* dx, dscale, dbias and sum may be left out at run time. */
static void results_left_out(void **state)
{
    (void)state;
    mica_plan *plan;
    float x[6] = {1, 2, 3, 4, 5, 7}, dy[6] = {1, 0, 0, 2, -1, 0}, mean[3] = {1, 2, 3};
    float rstd[3] = {1, 1, 1}, scale[3] = {1, 2, 3}, dx[6], dscale[3], dbias[3], all[12];
    const char *const lines[] = {"norm pass=bwd kind=batch x=f32:2x3 scale=f32:3 dbias=f32:3",
                                 "norm pass=bwd kind=instance x=f32:2x3 scale=f32:3 dbias=f32:3 "
                                 "mean=f32:2x3:0x1 rstd=f32:2x3:0x1"};
    for (int e = 0; e < 4; e++) {
        mica_options options = {.engine = engines[e % 2]};
        assert_int_equal(mica_plan_from_text(context, lines[e / 2], &options, &plan), MICA_OK);
        mica_run run = {.args = {[MICA_NORM_X] = x,
                                 [MICA_NORM_DY] = dy,
                                 [MICA_NORM_SCALE] = scale,
                                 [MICA_NORM_MEAN] = mean,
                                 [MICA_NORM_RSTD] = rstd,
                                 [MICA_NORM_DX] = dx,
                                 [MICA_NORM_DSCALE] = dscale,
                                 [MICA_NORM_DBIAS] = dbias}};
        assert_int_equal(mica_plan_run(plan, &run), MICA_OK);
        memcpy(all, dx, sizeof dx), memcpy(all + 6, dscale, sizeof dscale);
        memcpy(all + 9, dbias, sizeof dbias);
        for (int left = 0; left < 8; left++) { /* bit i set: result i is left out */
            memset(dx, 0, sizeof dx), memset(dscale, 0, sizeof dscale);
            memset(dbias, 0, sizeof dbias);
            run.args[MICA_NORM_DX] = left & 1 ? NULL : dx;
            run.args[MICA_NORM_DSCALE] = left & 2 ? NULL : dscale;
            run.args[MICA_NORM_DBIAS] = left & 4 ? NULL : dbias;
            assert_int_equal(mica_plan_run(plan, &run), MICA_OK);
            if (!(left & 1)) assert_memory_equal(dx, all, sizeof dx);
            if (!(left & 2)) assert_memory_equal(dscale, all + 6, sizeof dscale);
            if (!(left & 4)) assert_memory_equal(dbias, all + 9, sizeof dbias);
        }
        mica_plan_destroy(plan);
    }
}

static void bits_do_not_depend_on_threads(void **state)
{
    (void)state;
    enum { N = 3 * 5 * 20000 };
    static double x[N], dy[N], stats[60000], first[N], got[N], sums[2][20000];
    const char *const lines[] = {
        "norm kind=batch x=f32:3x5x20000",
        "norm kind=batch x=f32:3x5x20000:nwc",
        "norm axes=3 x=f32:3x5x20000",
        "norm pass=bwd x=f32:15x20000 dscale=f32:20000",
        "norm pass=bwd kind=batch x=f32:3x5x20000:nwc dscale=f32:5",
        "norm pass=bwd kind=group groups=1 x=f32:3x5x20000 dscale=f32:5",
    };
    wave(x, N, 0.2), wave(dy, N, 0.7), wave(stats, 60000, 0.5);
    for (size_t l = 0; l < sizeof lines / sizeof *lines; l++) {
        for (int threads = 1; threads <= 5; threads++) {
            double *to = threads == 1 ? first : got, *sum = sums[threads > 1];
            omp_set_num_threads(threads);
            run_ok("cpu", lines[l],
                   VALUES([MICA_NORM_X] = x, [MICA_NORM_DY] = dy, [MICA_NORM_MEAN] = stats,
                          [MICA_NORM_RSTD] = stats, [MICA_NORM_Y] = to, [MICA_NORM_DX] = to,
                          [MICA_NORM_DSCALE] = sum));
            if (threads == 1) continue;
            assert_int_equal(memcmp(first, got, sizeof first), 0);
            assert_int_equal(memcmp(sums[0], sums[1], sizeof sums[0]), 0);
        }
    }
    omp_set_num_threads(2);
}

/* ---- descriptors ---- */

static void refusals(void **state)
{
    (void)state;
    refuses("norm kind=layer", "x is needed");
    refuses("norm x=f32:2x3 axes=3", "axes is 3, x has rank 2");
    refuses("norm kind=batch x=f32:2x3 axes=2", "axes is 2 with kind=batch");
    refuses("norm kind=batch x=f32:7", "x has rank 1, kind=batch needs channels");
    refuses("norm kind=group x=f32:2x6 groups=4", "groups is 4, it must divide the 6 channels");
    refuses("norm kind=group x=f32:2x6", "groups is 0");
    refuses("norm kind=layer x=f32:2x6 groups=2", "groups is 2 with kind=layer");
    refuses("norm kind=layer mode=infer x=f32:2x6", "only batch has running statistics");
    refuses("norm kind=batch x=f32:2x6 residual=f32:2x6 sum=f32:2x6", "sum with kind=batch");
    refuses("norm kind=batch x=f32:2x6 residual=f32:2x5", "dimension 1 of residual is 5, of x 6");
    refuses("norm pass=bwd x=f32:2x6 dresidual=f32:2x6", "dresidual with kind=layer");
    refuses("norm pass=bwd kind=batch x=f32:2x6 dresidual=s32:2x6", "dresidual is s32");
    refuses("norm x=f32:2x6 sum=f32:2x6", "without a residual");
    refuses("norm kind=rms x=f32:2x6 mean=f32:2", "mean with kind=rms");
    refuses("norm x=f32:2x6 running_var=f32:6", "only batch has them");
    refuses("norm kind=batch x=f32:1x6x1 running_var=f32:6", "1 value per channel");
    refuses("norm x=f32:2x6 scale=f32:5", "dimension 0 of scale is 5, of the last axes of x 6");
    refuses("norm kind=batch x=f32:2x6 bias=f32:5", "dimension 0 of bias is 5, of x's channels 6");
    refuses("norm x=f32:2x6 scale=f16:6", "scale is f16, it must be f32 or x's f32");
    refuses("norm x=bf16:2x6 mean=bf16:2", "mean is bf16, statistics of bf16 are f32");
    refuses("norm x=f64:2x6 rstd=f32:2", "rstd is f32, statistics of f64 are f64");
    refuses("norm x=f32:2x6 rstd=f32:6", "dimension 0 of rstd is 6, of the statistics 2");
    refuses("norm x=s8:2x6", "x is s8, it must be f64, f32, f16 or bf16");
    refuses("norm x=f32:2x6 y=f32:6x2", "dimension 0 of y is 6, of x 2");
    refuses("norm x=f32:2x6 eps=-1", "eps is -1");
    refuses("norm kind=batch x=f32:2x6 momentum=1.5", "momentum is 1.5");
    refuses("norm x=f32:2x6 y=f32:2x6:0x1", "share memory");
}

/* What bwd infers, and that lines come back as they were. */
static void inference(void **state)
{
    (void)state;
    const char *const rows[][2] = {
        {"norm kind=layer axes=1 x=f32:2x6 y=f32:2x6 eps=1e-5", "norm x=f32:2x6"},
        {"norm pass=bwd x=f32:2x6 scale=f32:6 bias=f32:6",
         "norm pass=bwd x=f32:2x6 scale=f32:6 dbias=f32:6"},
        {"norm pass=bwd x=bf16:2x6 scale=f32:6 bias=f32:6 dscale=f32:6 act=relu mean=f32:2",
         "norm pass=bwd x=bf16:2x6 scale=f32:6 bias=f32:6 act=relu"},
        {"norm kind=batch mode=infer x=f32:2x6 running_mean=f32:6 mean=f32:6",
         "norm kind=batch mode=infer x=f32:2x6"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mica_problem *p;
        char text[256];
        assert_int_equal(mica_problem_from_text(rows[i][0], &p), MICA_OK);
        mica_problem_text(p, text, sizeof text);
        assert_string_equal(text, rows[i][1]);
        mica_problem_destroy(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layer_and_rms),
        cmocka_unit_test(residual_sum_and_activation),
        cmocka_unit_test(batch),
        cmocka_unit_test(group_and_instance),
        cmocka_unit_test(far_from_zero),
        cmocka_unit_test(one_bad_element),
        cmocka_unit_test(gradients),
        cmocka_unit_test(gradient_of_residual),
        cmocka_unit_test(gradient_of_residual_behind),
        cmocka_unit_test(empty_sets),
        cmocka_unit_test(sets_of_one),
        cmocka_unit_test(in_place),
        cmocka_unit_test(results_left_out),
        cmocka_unit_test(bits_do_not_depend_on_threads),
        cmocka_unit_test(refusals),
        cmocka_unit_test(running_variance),
        cmocka_unit_test(overflowing_squares_show),
        cmocka_unit_test(inference),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
