/* SPDX-License-Identifier: Apache-2.0
 * roi_align before torchvision (tests/judges/roi_align.py): mean and greatest, both rules of
 * alignment, gradients; pictures given apart; what is documented of regions that are no numbers, of
 * infinities, ties and empty tensors; refusals; equal bits for any number of threads. */
#include "line.h"

#define VALUES(...) ((double *[MICA_MAX_ARGS]){__VA_ARGS__})

enum { X = 2 * 2 * 5 * 6, K = 7, Y = K * 2 * 2 * 3 };
static const struct judged {
    const char *mode;
    int aligned, sampling;
    double scale;
    double x[X], rois[5 * K], dy[Y], y[Y], argmax[Y], dx[X];
} judged[] = {
#include "../judges/roi_align.h"
};

static void before_torchvision(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof judged / sizeof *judged; i++)
        for (int e = 0; e < 2; e++)
            for (int last = 0; last < 2; last++) {
                const struct judged *j = &judged[i];
                const bool pool = !strcmp(j->mode, "pool");
                const char *order = last ? ":nhwc" : "";
                double x[X], rois[5 * K], dy[Y], y[Y], argmax[Y], dx[X];
                char fields[160], line[320];
                memcpy(x, j->x, sizeof x);
                memcpy(rois, j->rois, sizeof rois);
                memcpy(dy, j->dy, sizeof dy);
                snprintf(fields, sizeof fields,
                         "mode=%s aligned=%d sampling=%d scale=%.17g rois=f64:7x5 size=2x3 %s",
                         j->mode, j->aligned, j->sampling, j->scale, pool ? "argmax=s64" : "");
                snprintf(line, sizeof line, "roi_align %s x=f64:2x2x5x6%s", fields, order);
                run_ok(engines[e], line, VALUES(x, rois, NULL, y, argmax));
                if (differences(y, j->y, Y, 1e-14, 1e-12)) fail_msg("%s: y", line);
                if (pool && differences(argmax, j->argmax, Y, 0, 0)) fail_msg("%s: argmax", line);
                snprintf(line, sizeof line, "roi_align pass=bwd %s dx=f64:2x2x5x6%s", fields,
                         order);
                run_ok(engines[e], line, VALUES(NULL, rois, NULL, NULL, argmax, dy, dx));
                if (differences(dx, j->dx, X, 1e-13, 1e-12)) fail_msg("%s: dx", line);
            }
}

/* Regions of a row of 1 to 4, two bins along it. */
static void edges(void **state)
{
    (void)state;
    const struct {
        const char *fields;
        double n, x1, x2, want[2];
    } rows[] = {
        {"sampling=1", NAN, 0, 2, {0, 0}}, /* pictures that are none */
        {"sampling=1", 1, 0, 2, {0, 0}},
        {"sampling=1", -1, 0, 2, {0, 0}},
        {"sampling=1", 0, NAN, 2, {0, 0}}, /* regions that are none */
        {"sampling=1", 0, 0, INFINITY, {0, 0}},
        {"mode=max", 0, -INFINITY, 2, {0, 0}},
        {"mode=pool", 0, NAN, 2, {0, 0}},
        {"", 0, -3e38, 3e38, {0, 0}},
        {"", 0, -1e20, 1e20, {0, 0}},
        {"sampling=1", 0, 0, 2, {1.5, 2.5}}, /* samples at 0.5, 1.5 */
        {"sampling=1 aligned=1", 0, 0.5, 2.5, {1.5, 2.5}},
        {"sampling=1", 0, -2, 0, {0, 1}},      /* at -1.5, beside; at -0.5, the first */
        {"sampling=1", 0, 3, 5, {4, 0}},       /* at 3.5, the last; at 4.5, beside */
        {"sampling=1", 0, 2, 2, {3.25, 3.75}}, /* 1 long; aligned: nothing */
        {"sampling=1 aligned=1", 0, 2.5, 2.5, {3, 3}},
        {"aligned=1", 0, 2.5, 2.5, {0, 0}}, /* no samples */
        {"aligned=1", 0, 2.5, 1, {0, 0}},   /* the wrong way round */
        {"mode=pool", 0, 0.5, 2.5, {3, 4}}, /* halves away from zero: elements 1 to 3 */
        {"mode=pool", 0, 0.49999997, 1, {1, 2}},
        {"mode=pool", 0, 7, 9, {0, 0}},
        {"mode=pool", 0, -1e6, 1e6, {1, 4}},
        {"mode=max sampling=1", 0, 1, 3, {1.5, 2}}, /* halves of 3 and of 4 */
        {"mode=max sampling=1", 0, 3, 5, {4, 0}},
    };
    for (int e = 0; e < 2; e++)
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            double x[] = {1, 2, 3, 4}, y[2], rois[] = {rows[r].n, rows[r].x1, 0, rows[r].x2, 0.5};
            char line[160];
            if (strstr(rows[r].fields, "aligned")) rois[2] = 0.5, rois[4] = 1;
            snprintf(line, sizeof line, "roi_align %s x=f32:1x1x1x4 rois=f32:1x5 size=1x2",
                     rows[r].fields);
            run_ok(engines[e], line, VALUES(x, rois, NULL, y));
            if (differences(y, rows[r].want, 2, 1e-6, 0)) fail_msg("%s: row %zu", line, r);
        }
}

/* A sample at -1 is still inside: as at 0, the element 1 has the weight 0 there, and 0 * -2 is the
 * greatest product. */
static void a_sample_at_minus_one(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        double x[] = {-1, -2, -3, -4}, y, rois[] = {0, -2, 0, 0, 0.5};
        run_ok(engines[e], "roi_align mode=max sampling=1 x=f32:1x1x1x4 rois=f32:1x5 size=1x1",
               VALUES(x, rois, NULL, &y));
        assert_true(y == 0);
    }
}

/* Of equal elements the first; NaN before all; infinity where it is not read, and times 0. */
static void elements(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        double x[] = {-INFINITY, -INFINITY, 2, 5, 5, NAN}, y[3], argmax[3];
        double rois[] = {0, 0, 0, 1, 0, 0, 2, 0, 4, 0, 0, 4, 0, 5, 0};
        run_ok(engines[e], "roi_align mode=pool x=f32:1x1x1x6 rois=f32:3x5 size=1x1 argmax=s32",
               VALUES(x, rois, NULL, y, argmax));
        assert_int_equal(differences(y, (double[]){-INFINITY, 5, NAN}, 3, 0, 0), 0);
        assert_int_equal(differences(argmax, (double[]){0, 3, 5}, 3, 0, 0), 0);
        double z[] = {1, INFINITY, 3, 4};
        run_ok(engines[e], "roi_align sampling=1 aligned=1 x=f32:1x1x1x4 rois=f32:1x5 size=1x1",
               VALUES(z, ((double[]){0, 0.5, 0.5, 0.5, 0.5}), NULL, y));
        assert_true(isnan(y[0])); /* at 0: the second has the weight 0 */
        run_ok(engines[e], "roi_align sampling=1 aligned=1 x=f32:1x1x1x4 rois=f32:1x5 size=1x1",
               VALUES(z, ((double[]){0, 2.5, 0.5, 2.5, 0.5}), NULL, y));
        assert_true(y[0] == 3);
    }
}

/* Pictures given apart are those of the first column. */
static void batches(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        double x[2 * 12], five[15], four[12], n[3], y[2][12];
        wave(x, 24, 1);
        for (int k = 0; k < 3; k++) {
            n[k] = five[5 * k] = k % 2;
            for (int i = 0; i < 4; i++) four[4 * k + i] = five[5 * k + 1 + i] = 0.4 * k + i;
        }
        run_ok(engines[e], "roi_align x=f32:2x1x3x4 rois=f32:3x5 size=2x2",
               VALUES(x, five, NULL, y[0]));
        run_ok(engines[e], "roi_align x=f32:2x1x3x4 rois=f32:3x4 batch=s64 size=2x2",
               VALUES(x, four, n, y[1]));
        assert_memory_equal(y[0], y[1], sizeof y[0]);
    }
}

static void nothing(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        double x[1] = {0}, rois[15] = {0, 0, 0, 1, 1, 0, 0, 0, 1, 1}, y[36], dx[24], argmax[36];
        const double zeros[36] = {0};
        for (int i = 0; i < 36; i++) argmax[i] = 7;
        run_ok(engines[e], "roi_align pass=bwd dx=f32:2x3x2x2 rois=f32:0x5 size=2x2",
               VALUES(NULL, x, NULL, NULL, NULL, x, dx));
        assert_int_equal(differences(dx, zeros, 24, 0, 0), 0);
        run_ok(engines[e], "roi_align x=f32:2x3x0x4 rois=f32:3x5 size=2x2",
               VALUES(x, rois, NULL, y));
        assert_int_equal(differences(y, zeros, 36, 0, 0), 0);
        run_ok(engines[e], "roi_align mode=pool x=f32:0x3x4x4 rois=f32:3x5 size=2x2 argmax=s32",
               VALUES(x, rois, NULL, y, argmax));
        assert_int_equal(differences(y, zeros, 36, 0, 0), 0);
        for (int i = 0; i < 36; i++) assert_true(argmax[i] == -1);
    }
}

static void same_bits(void **state)
{
    (void)state;
    enum { N = 2 * 40 * 9 * 7, D = 30 * 40 * 9 };
    static double rois[150], dy[D], dx[2][N];
    wave(dy, D, 3);
    for (int i = 0; i < 150; i++)
        rois[i] = i % 5 ? (i % 5 < 3 ? 0 : 4) + i * 7 % 11 / 3.0 : i / 5 % 2;
    for (int k = 0; k < 2; k++) {
        omp_set_num_threads(k ? 3 : 1);
        run_ok("cpu", "roi_align pass=bwd dx=f32:2x40x9x7 rois=f32:30x5 size=3x3",
               VALUES(NULL, rois, NULL, NULL, NULL, dy, dx[k]));
    }
    assert_memory_equal(dx[0], dx[1], sizeof dx[0]);
}

static void refusals(void **state)
{
    (void)state;
    refuses("roi_align x=f32:1x2x4 rois=f32:3x5 size=2x2", "x has rank 3");
    refuses("roi_align x=f32:1x2x4x4 rois=f32:3x4 size=2x2", "regions are K x 5");
    refuses("roi_align x=f32:1x2x4x4 rois=f32:3x5 batch=s32:3 size=2x2", "K x 4");
    refuses("roi_align x=f32:1x2x4x4 rois=f32:3x4 batch=s32:2 size=2x2", "batch");
    refuses("roi_align x=f32:1x2x4x4 rois=f32:3x5", "neither y nor two sizes");
    refuses("roi_align x=f32:1x2x4x4 rois=f32:3x5 size=2", "neither y nor two sizes");
    refuses("roi_align x=f32:1x2x4x4 rois=f32:3x5 size=2x2 y=f32:3x2x2x3", "y");
    refuses("roi_align x=f32:1x2x4x4 rois=f16:3x5 size=2x2", "it must be f32 or f32");
    refuses("roi_align x=f32:1x2x4x4 rois=f32:3x5 size=2x2 sampling=-1", "sampling is -1");
    refuses("roi_align x=f32:1x2x4x4 rois=f32:3x5 size=2x2 sampling=4097", "0 to 4096");
    refuses("roi_align mode=pool x=f32:1x1x65536x32768 rois=f32:3x5 size=2x2 argmax=s32", "argmax");
    refuses("roi_align pass=bwd mode=max dx=f32:1x2x4x4 rois=f32:3x5 size=2x2", "no gradient");
    refuses("roi_align pass=bwd mode=pool dx=f32:1x2x4x4 rois=f32:3x5 size=2x2",
            "argmax is needed");
    refuses("roi_align pass=bwd x=f32:1x2x4x4 rois=f32:3x5 size=2x2", "dx");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(before_torchvision),
                                       cmocka_unit_test(edges),
                                       cmocka_unit_test(a_sample_at_minus_one),
                                       cmocka_unit_test(elements),
                                       cmocka_unit_test(batches),
                                       cmocka_unit_test(nothing),
                                       cmocka_unit_test(same_bits),
                                       cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, open_context, close_context);
}
