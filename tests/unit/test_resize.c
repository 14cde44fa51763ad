/* SPDX-License-Identifier: Apache-2.0
 * Resizing before PyTorch and onnx (tests/judges/resize.py): values and gradients of all modes.
 * Where implementations differ, the right value by exact fractions: halves of nearest, nearest
 * against nearest-exact, corners, scales against sizes, borders of antialias. Bytes; infinities
 * beside elements without a weight; refusals; equal bits for any number of threads. */
#include "line.h"

#include <float.h>

#define VALUES(...) ((double *[MICA_MAX_ARGS]){__VA_ARGS__})

enum { MOST = 128 };
static const struct judged {
    const char *line;
    double tolerance;
    int count;
    double values[MOST];
} judged[] = {
#include "../judges/resize.h"
};

/* As the judges have it: tests/judges/resize.py. */
static void numbers(double *to, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] = (double)((37 * i + 11) % 64 - 31) / 8;
}

static void before_judges(void **state)
{
    (void)state;
    double in[MOST], out[MOST];
    numbers(in, MOST);
    for (size_t i = 0; i < sizeof judged / sizeof *judged; i++)
        for (int e = 0; e < 2; e++) {
            const struct judged *j = &judged[i];
            const bool bwd = strstr(j->line, "pass=bwd") != NULL;
            run_ok(engines[e], j->line, bwd ? VALUES(out, in) : VALUES(in, out));
            if (differences(out, j->values, j->count, j->tolerance, j->tolerance))
                fail_msg("%s", j->line);
        }
}

static void gives(const char *line, double *x, int n, const double *want)
{
    double y[MOST];
    for (int e = 0; e < 2; e++) {
        run_ok(engines[e], line, VALUES(x, y));
        if (differences(y, want, n, 1e-14, 0)) fail_msg("%s on %s", line, engines[e]);
    }
}
#define WANT(...)                                                                                  \
    sizeof((double[]){__VA_ARGS__}) / sizeof(double), (double[])                                   \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

/* What lies halfway between elements, and what rounding of sizes and scales does to it. */
static void traps(void **state)
{
    (void)state;
    double x[64];
    for (int i = 0; i < 64; i++) x[i] = i;
    /* (o + 1/2) 2 - 1/2 = 1/2, 5/2: halves go down or up by the rule, not to even. */
    gives("resize x=f64:1x1x4 y=f64:1x1x2", x, WANT(0, 2));
    gives("resize nearest=round_prefer_ceil x=f64:1x1x4 y=f64:1x1x2", x, WANT(1, 3));
    /* PyTorch's nearest and nearest-exact: floor(o 3 / 2) and floor((o + 1/2) 3 / 2). */
    gives("resize coordinates=asymmetric nearest=floor x=f64:1x1x6 y=f64:1x1x4", x,
          WANT(0, 1, 3, 4));
    gives("resize nearest=round_prefer_ceil x=f64:1x1x6 y=f64:1x1x4", x, WANT(0, 2, 3, 5));
    /* 41 / 49 is no binary fraction, 49 times it is 41: the last of each row, o X / Y = X exactly;
     * what f32 has of it lies below. */
    double y[64];
    for (int e = 0; e < 2; e++)
        for (int big = 2; big <= 60; big++)
            for (int small = 1; small < big; small++) {
                char line[120];
                snprintf(line, sizeof line,
                         "resize coordinates=asymmetric nearest=floor x=f64:1x1x%d y=f64:1x1x%d",
                         small, big);
                run_ok(engines[e], line, VALUES(x, y));
                for (int o = 0; o < big; o++) {
                    if (y[o] == o * small / big) continue;
                    fail_msg("%s: y[%d] is %g", line, o, y[o]);
                }
            }
    /* 0.1 as f64 is more than 0.1, and 1 / 0.1 is 10. */
    gives("resize coordinates=asymmetric nearest=floor x=f64:1x1x30 scale_w=0.1", x,
          WANT(0, 10, 20));
    /* Corners meet; of one element the first. */
    gives("resize mode=linear coordinates=align_corners x=f64:1x1x3 y=f64:1x1x5", x,
          WANT(0, 0.5, 1, 1.5, 2));
    gives("resize mode=linear coordinates=align_corners x=f64:1x1x3 y=f64:1x1x1", x, WANT(0));
    gives("resize mode=linear x=f64:1x1x3 y=f64:1x1x1", x, WANT(1));
    gives("resize mode=linear coordinates=pytorch_half_pixel x=f64:1x1x3 y=f64:1x1x1", x, WANT(0));
    /* 5 * 0.5 is 2.5, y has 2: by the scale a step is 2, by the sizes 2.5. */
    gives("resize mode=linear x=f64:1x1x5 scale_w=0.5", x, WANT(0.5, 2.5));
    gives("resize mode=linear x=f64:1x1x5 y=f64:1x1x2", x, WANT(0.75, 3.25));
    gives("resize mode=linear coordinates=half_pixel_symmetric x=f64:1x1x5 scale_w=0.5", x,
          WANT(1, 3));
    /* A step of 2 from -1/2 + 1/2 + 1/2: weights 3 3 1 / 8 where the first lies outside, else 1 3
     * 3 1. */
    gives("resize mode=linear antialias=1 x=f64:1x1x6 y=f64:1x1x3", x,
          WANT((3 * 1 + 1 * 2) / 7.0, 2.5, (3 * 5 + 3 * 4 + 1 * 3) / 7.0));
    gives("resize mode=linear antialias=1 border=edge x=f64:1x1x6 y=f64:1x1x3", x,
          WANT((3 * 1 + 1 * 2) / 8.0, 2.5, (1 * 5 + 3 * 5 + 3 * 4 + 1 * 3) / 8.0));
}

static void bytes(void **state)
{
    (void)state;
    double x[4] = {0, 255, 2, 5};
    /* 63.75, 191.25, ...; halves to even: 3.5 of 2 and 5. */
    gives("resize mode=linear x=u8:1x1x2 y=u8:1x1x4", x, WANT(0, 64, 191, 255));
    gives("resize mode=linear coordinates=align_corners x=u8:1x1x4 y=u8:1x1x7", x,
          WANT(0, 128, 255, 128, 2, 4, 5));
    /* Cubic overshoots saturate. */
    double edge[4] = {0, 0, 255, 255};
    gives("resize mode=cubic x=u8:1x1x4 y=u8:1x1x8", edge, WANT(0, 0, 0, 58, 197, 255, 255, 255));
    double signs[2] = {-128, 127};
    gives("resize mode=linear x=s8:1x1x2 y=s8:1x1x4", signs, WANT(-128, -64, 63, 127));
    /* A sum of thirds is 1: what is constant stays. */
    double same[9] = {201, 201, 201, 201, 201, 201, 201, 201, 201};
    gives("resize mode=linear antialias=1 x=u8:1x1x3x3 y=u8:1x1x2x2", same,
          WANT(201, 201, 201, 201));
}

static void infinities(void **state)
{
    (void)state;
    double x[3] = {1, INFINITY, NAN};
    gives("resize mode=linear x=f64:1x1x3 y=f64:1x1x3", x, WANT(1, INFINITY, NAN));
    gives("resize mode=cubic coordinates=align_corners x=f64:1x1x3 y=f64:1x1x3", x,
          WANT(1, INFINITY, NAN));
    double dx[3], dy[3] = {1, 2, NAN};
    for (int e = 0; e < 2; e++) {
        run_ok(engines[e],
               "resize pass=bwd mode=linear coordinates=asymmetric x=f64:1x1x3 y=f64:1x1x3",
               VALUES(dx, dy));
        assert_true(dx[0] == 1 && dx[1] == 2 && isnan(dx[2]));
    }
}

/* Rows overshoot the type's end, columns make of that what it holds. */
static void near_the_end(void **state)
{
    (void)state;
    const char *const lines[] = {"resize mode=cubic x=f32:1x1x4x4 y=f32:1x1x8x8",
                                 "resize mode=cubic x=f32:1x4x4x4:nhwc y=f32:1x4x8x8:nhwc"};
    double x[64] = {0}, got[256], want[256];
    for (int i = 0; i < 64; i++)
        if (i / 4 % 4 >= 2 && i % 4 == 1) x[i] = FLT_MAX;
    for (int l = 0; l < 2; l++) {
        run_ok("cpu", lines[l], VALUES(x, got));
        run_ok("ref", lines[l], VALUES(x, want));
        if (differences(got, want, l ? 256 : 64, 1e30, 1e-5)) fail_msg("%s", lines[l]);
        assert_true(isfinite(want[5 * 8 + 1]) && want[5 * 8 + 1] > 0);
    }
}

static void refusals(void **state)
{
    (void)state;
    refuses("resize", "x is needed");
    refuses("resize x=f32:3x4 scale_w=2", "x has rank 2; resize takes N x C and one to three axes");
    refuses("resize x=f32:1x1x4x4 scale_w=2", "y is needed, or scale_h");
    refuses("resize x=f32:1x1x4 scale_w=0", "scale_w is 0, it must be more than 0");
    refuses("resize x=f32:1x1x4 scale_w=-1", "scale_w is -1, it must be more than 0");
    refuses("resize x=f32:1x1x4 scale_w=nan", "not a finite number");
    refuses("resize x=f32:1x1x4 scale_w=0.1",
            "axis w has 4 elements in x and 0 in y: 0 only in both");
    refuses("resize x=f32:1x1x4 scale_w=1e30", "scale_w is 1e+30: y would have more than 2^48");
    refuses("resize x=f32:1x1x4 scale_h=2 scale_w=2",
            "scale_h is given, x has 1 axes: the last are w");
    refuses("resize x=f32:1x1x4 y=f32:1x1x0", "axis w has 4 elements in x and 0 in y");
    refuses("resize x=f32:1x1x4 y=f32:1x1x5 scale_w=2", "axis w of y is 5, x times scale_w is 8");
    refuses("resize x=f32:1x1x4 y=f32:1x2x5", "dimension 1 of y is 2, x has 1");
    refuses("resize x=f32:1x1x4 y=f32:1x1x4x4", "y has rank 4, x has 3");
    refuses("resize x=s32:1x1x4 y=s32:1x1x4", "x is s32");
    refuses("resize pass=bwd x=u8:1x1x4 y=u8:1x1x4", "x is u8; the gradient takes f64");
    refuses("resize antialias=1 x=f32:1x1x4 y=f32:1x1x4",
            "antialias is given, it belongs to linear and");
    refuses("resize mode=area scale_w=2 x=f32:1x1x4",
            "scale_w is given, area follows from the sizes");
    refuses("resize mode=area coordinates=asymmetric x=f32:1x1x4 y=f32:1x1x4",
            "coordinates is given");
    refuses("resize cubic=-0.5 x=f32:1x1x4 y=f32:1x1x4",
            "cubic is given, it belongs to mode=cubic");
    refuses("resize from_w=0.5 x=f32:1x1x4 y=f32:1x1x4",
            "from_w is given, it belongs to tf_crop_and_resize");
    mica_plan *plan = NULL;
    const mica_resize_desc d = {.x = {.dtype = MICA_F32, .rank = 3, .dims = {1, 1, 4}},
                                .scale_w = NAN};
    assert_int_equal(mica_resize_plan(context, &d, NULL, &plan), MICA_INVALID);
    assert_non_null(strstr(mica_error(), "scale_w: not a finite number"));
}

static void threads_do_not_show(void **state)
{
    (void)state;
    enum { LONG = 400000 };
    const char *const lines[] = {
        "resize mode=linear x=f32:2x3x120x130 y=f32:2x3x240x260",
        "resize mode=cubic x=f32:2x3x120x130:nhwc y=f32:2x3x240x260:nhwc",
        "resize mode=linear antialias=1 x=bf16:2x3x240x260 y=bf16:2x3x50x61"};
    double *x = malloc(LONG * sizeof *x), *few = malloc(LONG * sizeof *x);
    double *many = malloc(LONG * sizeof *x);
    wave(x, LONG, 3);
    const int before = omp_get_max_threads();
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        memset(few, 0, LONG * sizeof *few), memset(many, 0, LONG * sizeof *many);
        omp_set_num_threads(1);
        run_ok("cpu", lines[i], VALUES(x, few));
        omp_set_num_threads(5);
        run_ok("cpu", lines[i], VALUES(x, many));
        assert_memory_equal(few, many, LONG * sizeof *few);
        assert_true(few[1] != 0 && isfinite(few[1000]));
    }
    omp_set_num_threads(before);
    free(x), free(few), free(many);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(before_judges),
        cmocka_unit_test(traps),
        cmocka_unit_test(bytes),
        cmocka_unit_test(infinities),
        cmocka_unit_test(near_the_end),
        cmocka_unit_test(refusals),
        cmocka_unit_test(threads_do_not_show),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
