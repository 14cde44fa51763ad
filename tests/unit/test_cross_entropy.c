/* SPDX-License-Identifier: Apache-2.0
 * Cross-entropy: known values, ignored and illegal labels, refusals, gradients by finite
 * differences, in place, equal bits for any number of threads. */
#include "line.h"

#define VALUES(...) ((double *[MICA_MAX_ARGS]){__VA_ARGS__})

/* log(e + e^2 + e^3) = 3.40760596444, by hand from there. */
static void known_values(void **state)
{
    (void)state;
    const char *const types[] = {"f64", "f32"};
    double x[] = {1, 2, 3, 3, 2, 1}, labels[] = {2, 2}, none[2], one, lse[2];
    double want[] = {0.40760596444, 2.40760596444}, want_lse[] = {3.40760596444, 3.40760596444};
    for (int e = 0; e < 2; e++) {
        for (int t = 0; t < 2; t++) {
            double relative = t ? 3e-7 : 2e-11;
            char line[120];
            snprintf(line, sizeof line, "cross_entropy reduction=none x=%s:2x3 lse=%s:2", types[t],
                     types[t]);
            run_ok(engines[e], line, VALUES(x, labels, none, lse));
            assert_int_equal(differences(none, want, 2, 0, relative), 0);
            assert_int_equal(differences(lse, want_lse, 2, 0, relative), 0);
            snprintf(line, sizeof line, "cross_entropy reduction=sum x=%s:2x3", types[t]);
            run_ok(engines[e], line, VALUES(x, labels, &one));
            assert_int_equal(differences(&one, (double[]){want[0] + want[1]}, 1, 0, relative), 0);
            snprintf(line, sizeof line, "cross_entropy x=%s:2x3", types[t]);
            run_ok(engines[e], line, VALUES(x, labels, &one));
            assert_int_equal(differences(&one, (double[]){1.40760596444}, 1, 0, relative), 0);
            /* 0.9 loss + 0.1 (lse - 2) */
            snprintf(line, sizeof line, "cross_entropy reduction=none x=%s:2x3 smoothing=0.1",
                     types[t]);
            run_ok(engines[e], line, VALUES(x, labels, none));
            assert_int_equal(
                differences(none, (double[]){0.50760596444, 2.30760596444}, 2, 0, relative), 0);
        }
    }
}

/* What smoothing adds is a mean of differences: where logits are large, one of logits would lose
 * what they differ by, or overflow. */
static void far_from_zero(void **state)
{
    (void)state;
    const double base[] = {0, 1e38, -1e38, 0x1p20, -0x1p20, 0x1p23};
    enum { N = 6, C = 4 };
    double x[N * C], labels[N] = {0, 0, 0, 0, 0, 0}, loss[N], want[N];
    for (int r = 0; r < N; r++) {
        for (int c = 0; c < C; c++) x[r * C + c] = base[r] + (c == 0);
        want[r] = fabs(base[r]) > 1e30 ? log(4) : log(1 + 3 * exp(-1)) + 0.1 * 0.75;
    }
    /* Rows one by one, long ones in chunks and side by side. */
    for (int e = 0; e < 2; e++) {
        run_ok(engines[e], "cross_entropy reduction=none x=f32:6x4 smoothing=0.1",
               VALUES(x, labels, loss));
        assert_int_equal(differences(loss, want, N, 0, 3e-7), 0);
        run_ok(engines[e], "cross_entropy reduction=none x=f64:6x4 smoothing=0.1",
               VALUES(x, labels, loss));
        assert_int_equal(differences(loss + 3, want + 3, N - 3, 0, 1e-9), 0);
    }
    enum { LONG = 9000 };
    const char *const lines[] = {"cross_entropy reduction=none x=f32:2x9000 smoothing=0.1",
                                 "cross_entropy reduction=none x=f32:9x9000:t smoothing=0.1",
                                 "cross_entropy reduction=none x=f64:2x9000 smoothing=0.1"};
    const int rows[] = {2, 9, 2};
    double *wide = malloc(9 * LONG * sizeof *wide), zero[9] = {0}, got[9], far[9];
    /* The maximum rises from chunk to chunk; the label's logit is the first. */
    double sum = 0, mean = 0, most = 2 + (LONG - 1) / 1000;
    for (int c = 0; c < LONG; c++) {
        double below = most - (2 + c / 1000);
        sum += exp(-below), mean += below / LONG;
    }
    for (int r = 0; r < 9; r++) {
        far[r] = log(sum) + 0.9 * (most - 2) + 0.1 * mean;
        for (int c = 0; c < LONG; c++)
            wide[r * LONG + c] = 0x1p22 * (r % 2 ? -1 : 1) + 2 + c / 1000;
    }
    for (int l = 0; l < 3; l++)
        for (int e = 0; e < 2; e++) {
            run_ok(engines[e], lines[l], VALUES(wide, zero, got));
            assert_int_equal(differences(got, far, rows[l], 0, 1e-6), 0);
        }
    free(wide);
}

static void ignored_rows(void **state)
{
    (void)state;
    double x[] = {1, 2, 3, NAN, NAN, INFINITY, 3, 2, 1}, labels[] = {2, -100, 2}, loss[3], one;
    double all[] = {-100, -100, -100}, dx[9], dloss = 1, zero[9] = {0};
    double want[] = {0.40760596444, 0, 2.40760596444};
    for (int e = 0; e < 2; e++) {
        const char *engine = engines[e];
        run_ok(engine, "cross_entropy reduction=none x=f32:3x3 ignore=1 ignore_index=-100",
               VALUES(x, labels, loss));
        assert_int_equal(differences(loss, want, 3, 0, 3e-7), 0);
        run_ok(engine, "cross_entropy x=f32:3x3 ignore=1 ignore_index=-100",
               VALUES(x, labels, &one));
        assert_int_equal(differences(&one, (double[]){1.40760596444}, 1, 0, 3e-7), 0);
        /* As PyTorch: the mean over no rows is NaN, the sum 0, and both gradients are 0. */
        run_ok(engine, "cross_entropy x=f32:3x3 ignore=1 ignore_index=-100", VALUES(x, all, &one));
        assert_true(isnan(one));
        run_ok(engine, "cross_entropy x=f32:3x3 reduction=sum ignore=1 ignore_index=-100",
               VALUES(x, all, &one));
        assert_true(one == 0);
        run_ok(engine, "cross_entropy pass=bwd x=f32:3x3 ignore=1 ignore_index=-100 smoothing=0.1",
               VALUES(x, all, NULL, NULL, &dloss, dx));
        assert_int_equal(differences(dx, zero, 9, 0, 0), 0);
        /* Side by side: classes strided, eight and more rows next to each other. */
        double wide[27], labels9[9], dx27[27];
        for (int i = 0; i < 27; i++) wide[i] = x[i % 9];
        for (int i = 0; i < 9; i++) labels9[i] = labels[i % 3];
        run_ok(engine, "cross_entropy pass=bwd x=f32:9x3 ignore=1 ignore_index=-100 reduction=sum",
               VALUES(wide, labels9, NULL, NULL, &dloss, dx27));
        for (int i = 0; i < 27; i++) assert_true(i % 9 / 3 == 1 ? dx27[i] == 0 : dx27[i] != 0);
    }
    /* No rows at all. */
    run_ok("cpu", "cross_entropy x=f32:0x5", VALUES(x, labels, &one));
    assert_true(isnan(one));
    run_ok("cpu", "cross_entropy x=f32:0x5 reduction=sum", VALUES(x, labels, &one));
    assert_true(one == 0);
}

static void labels_out_of_range(void **state)
{
    (void)state;
    const double bad[] = {-1, 3, 1e6, -0x1p63, 0x1p62};
    double x[30], labels[10], loss[10], dloss[10], dx[30], one;
    wave(x, 30, 0);
    for (int b = 0; b < 5; b++) {
        for (int e = 0; e < 2; e++) {
            for (int i = 0; i < 10; i++) labels[i] = i == 4 ? bad[b] : i % 3, dloss[i] = 1;
            run_ok(engines[e], "cross_entropy reduction=none x=f32:10x3", VALUES(x, labels, loss));
            for (int i = 0; i < 10; i++) assert_int_equal(isnan(loss[i]) != 0, i == 4);
            run_ok(engines[e], "cross_entropy x=f32:10x3", VALUES(x, labels, &one));
            assert_true(isnan(one));
            const char *const lines[] = {
                "cross_entropy pass=bwd reduction=none x=f32:10x3",
                "cross_entropy pass=bwd reduction=none x=f64:10x3 smoothing=0.1",
                "cross_entropy pass=bwd reduction=none x=bf16:10x3:16x1"};
            for (int l = 0; l < 3; l++) {
                run_ok(engines[e], lines[l], VALUES(x, labels, NULL, NULL, dloss, dx));
                for (int i = 0; i < 30; i++) assert_int_equal(isnan(dx[i]) != 0, i / 3 == 4);
            }
        }
    }
}

/* ---- against PyTorch (tests/judges/cross_entropy.py) ---- */

enum { ELEMENTS = 24, ARGUMENTS = MICA_CROSS_ENTROPY_DTARGET + 1 };
typedef struct judgement {
    const char *line;
    double values[ARGUMENTS][ELEMENTS]; /* by argument */
    int counts[ARGUMENTS];              /* 0: there is none */
} judgement;

static const judgement judgements[] = {
#include "../judges/cross_entropy.h"
};
enum { JUDGEMENTS = sizeof judgements / sizeof *judgements };

/* The judgement's line with that type for '@'. */
static void spell(char *line, const char *begin, const judgement *j, const char *type)
{
    line += sprintf(line, "%s ", begin);
    for (const char *c = j->line; *c; c++)
        line += *c == '@' ? sprintf(line, "%s", type) : sprintf(line, "%c", *c);
}

static void compare(const judgement *j, const char *line, int arg, const double *got, double units)
{
    for (int i = 0; i < j->counts[arg]; i++) {
        const double want = j->values[arg][i];
        if (isnan(want) ? isnan(got[i]) : fabs(got[i] - want) <= units * (1 + fabs(want))) continue;
        fail_msg("%s: argument %d, element %d is %.17g, PyTorch's %.17g", line, arg, i, got[i],
                 want);
    }
}

static void judge(const judgement *j, const char *engine, const char *type, double units)
{
    char line[400];
    double loss[ELEMENTS], dx[ELEMENTS], dtarget[ELEMENTS], *values[MICA_MAX_ARGS] = {0};
    for (int i = 0; i < ARGUMENTS; i++) values[i] = (double *)j->values[i];
    values[MICA_CROSS_ENTROPY_LOSS] = loss;
    values[MICA_CROSS_ENTROPY_DX] = dx;
    values[MICA_CROSS_ENTROPY_DTARGET] = dtarget;
    spell(line, "cross_entropy", j, type);
    run_ok(engine, line, values);
    compare(j, line, MICA_CROSS_ENTROPY_LOSS, loss, units);
    spell(line, "cross_entropy pass=bwd", j, type);
    if (j->counts[MICA_CROSS_ENTROPY_DTARGET]) sprintf(line + strlen(line), " dtarget=%s", type);
    run_ok(engine, line, values);
    compare(j, line, MICA_CROSS_ENTROPY_DX, dx, units);
    compare(j, line, MICA_CROSS_ENTROPY_DTARGET, dtarget, units);
}

static void judged(void **state)
{
    (void)state;
    for (const judgement *j = judgements; j < judgements + JUDGEMENTS; j++) {
        judge(j, "ref", "f64", 1e-13);
        judge(j, "targets", "f64", 1e-13);
        judge(j, "targets", "f32", 2e-6);
    }
}

static void refusals(void **state)
{
    (void)state;
    refuses("cross_entropy x=f32:4x7 weight=f32:4", "dimension 0 of weight is 4");
    refuses("cross_entropy x=f32:4x7 weight=s32:7", "weight is s32, it must be");
    refuses("cross_entropy x=f32:4x7 target=f32:4x7", "target is for targets=probabilities");
    refuses("cross_entropy pass=bwd x=f32:4x7 dtarget=f32", "dtarget is for targets=probabilities");
    refuses("cross_entropy targets=probabilities x=f32:4x7 target=f32:4", "target has rank 1");
    refuses("cross_entropy targets=probabilities x=f32:4x7 labels=s64:4",
            "labels is for targets=classes");
    refuses("cross_entropy targets=probabilities x=f32:4x7 ignore=1",
            "ignore is for targets=classes");
    refuses("cross_entropy input=log_probs x=f32:4x7 lse=f32", "lse is for input=logits");
    refuses("cross_entropy", "x is needed");
    refuses("cross_entropy x=f32:7", "x has rank 1");
    refuses("cross_entropy x=s8:4x7", "x is s8, it must be");
    refuses("cross_entropy x=f32:4x7 labels=u8:4", "labels is u8, it must be s32 or s64");
    refuses("cross_entropy x=f32:4x7 labels=s64:7", "dimension 0 of labels is 7");
    refuses("cross_entropy x=f32:4x7x2 labels=s64:4", "labels has rank 1");
    refuses("cross_entropy x=f32:4x7 loss=f32:4", "loss has 4 elements, reduction=mean needs one");
    refuses("cross_entropy x=f32:4x7 reduction=none loss=f32:5", "dimension 0 of loss is 5");
    refuses("cross_entropy pass=bwd x=f32:4x7 dx=f32:7x4", "dimension 0 of dx is 7");
    refuses("cross_entropy x=f32:4x7 lse=f32:7", "dimension 0 of lse is 7");
    refuses("cross_entropy x=f32:4x7 smoothing=1.5", "smoothing is 1.5, 0 to 1 are legal");
    refuses("cross_entropy x=f32:4x7 smoothing=-0.1", "smoothing is -0.1");
}

static double total(const char *line, double *x, double *labels, const double *dloss, int losses)
{
    double loss[12], sum = 0;
    run_ok("ref", line, VALUES(x, labels, loss));
    for (int i = 0; i < losses; i++) sum += dloss[i] * loss[i];
    return sum;
}

static void finite_differences(void **state)
{
    (void)state;
    enum { N = 2 * 5 * 6, ROWS = 12 };
    const char *const reductions[] = {"mean", "sum", "none"};
    for (int form = 0; form < 12; form++) {
        int losses = form % 3 == 2 ? ROWS : 1;
        char fwd[160], bwd[160];
        const char *fields = form / 6 ? "smoothing=0.2" : "";
        const char *ignore = form / 3 % 2 ? "ignore=1 ignore_index=3" : "";
        snprintf(fwd, sizeof fwd, "cross_entropy x=f64:2x5x6 reduction=%s %s %s",
                 reductions[form % 3], fields, ignore);
        snprintf(bwd, sizeof bwd, "cross_entropy pass=bwd x=f64:2x5x6 reduction=%s %s %s",
                 reductions[form % 3], fields, ignore);
        double x[N], labels[ROWS], dloss[ROWS], dx[N], want[N];
        wave(x, N, 0.5);
        wave(dloss, ROWS, 2);
        for (int i = 0; i < ROWS; i++) labels[i] = i * 7 % 5;
        const double eps = 1e-6;
        for (int i = 0; i < N; i++) {
            double old = x[i];
            x[i] = old + eps;
            double up = total(fwd, x, labels, dloss, losses);
            x[i] = old - eps;
            want[i] = (up - total(fwd, x, labels, dloss, losses)) / (2 * eps);
            x[i] = old;
        }
        for (int e = 0; e < 2; e++) {
            run_ok(engines[e], bwd, VALUES(x, labels, NULL, NULL, dloss, dx));
            assert_int_equal(differences(dx, want, N, 1e-5, 1e-3), 0);
        }
        /* A gradient of twice the size is noticed in every row that counts. */
        for (int i = 0; i < N; i++) dx[i] *= 2;
        assert_true(differences(dx, want, N, 1e-5, 1e-3) > N / 2);
    }
}

static void in_place(void **state)
{
    (void)state;
    const char *const lines[] = {"cross_entropy pass=bwd x=f32:3x5000",
                                 "cross_entropy pass=bwd x=bf16:30x500 smoothing=0.1",
                                 "cross_entropy pass=bwd x=f32:2x15x500", /* strided classes */
                                 "cross_entropy pass=bwd x=f64:30x500"};
    enum { N = 15000 };
    double *x = malloc(N * sizeof *x), *labels = calloc(1000, sizeof *labels), dloss = 0.5;
    double *apart = malloc(N * sizeof *apart), *dx = malloc(N * sizeof *dx);
    wave(x, N, 1);
    for (int i = 0; i < 1000; i++) labels[i] = i % 15;
    for (size_t l = 0; l < sizeof lines / sizeof *lines; l++) {
        int onto[] = {MICA_CROSS_ENTROPY_DX, MICA_CROSS_ENTROPY_X};
        run_ok("cpu", lines[l], VALUES(x, labels, NULL, NULL, &dloss, apart));
        assert_int_equal(line_run("cpu", lines[l], VALUES(x, labels, NULL, NULL, &dloss, dx), onto),
                         MICA_OK);
        assert_memory_equal(dx, apart, N * sizeof *dx);
    }
    free(x), free(labels), free(apart), free(dx);
}

static void threads_do_not_show(void **state)
{
    (void)state;
    const char *const lines[] = {"cross_entropy x=f32:15000x10", "cross_entropy x=f32:3x50000",
                                 "cross_entropy x=bf16:2x15x5000 reduction=sum",
                                 "cross_entropy x=f64:1500x100 smoothing=0.1",
                                 "cross_entropy input=log_probs x=f32:15000x10"};
    enum { N = 150000 };
    double *x = malloc(N * sizeof *x), *labels = calloc(15000, sizeof *labels), one, many;
    wave(x, N, 3);
    int before = omp_get_max_threads();
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        omp_set_num_threads(1);
        const char *engine = strstr(lines[i], "log_probs") ? "targets" : "cpu";
        run_ok(engine, lines[i], VALUES(x, labels, &one));
        omp_set_num_threads(5);
        run_ok(engine, lines[i], VALUES(x, labels, &many));
        assert_true(one == many && isfinite(one));
    }
    omp_set_num_threads(before);
    free(x), free(labels);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_values), cmocka_unit_test(far_from_zero),
        cmocka_unit_test(ignored_rows), cmocka_unit_test(labels_out_of_range),
        cmocka_unit_test(refusals),     cmocka_unit_test(finite_differences),
        cmocka_unit_test(in_place),     cmocka_unit_test(threads_do_not_show),
        cmocka_unit_test(judged),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
