/* SPDX-License-Identifier: Apache-2.0
 * deform_conv on values computed by hand, by the conventions of torchvision.ops.deform_conv2d and
 * ONNX's DeformConv (offsets of a tap along H, then along W; offset groups before taps; zeros
 * beside x, bilinear up to there); beside conv where offsets are 0; places that are no numbers,
 * elements whose weight is 0; empty tensors; refusals. */
#include "line.h"

#define VALUES(...) ((double *[MICA_MAX_ARGS]){__VA_ARGS__})

static const char *const both[] = {"gemm", "ref"};

/* Offsets of 0 are a convolution; whole ones read other elements. */
static void beside_conv(void **state)
{
    (void)state;
    enum { X = 2 * 4 * 6 * 5, W = 6 * 2 * 9, Y = 2 * 6 * 3 * 5 };
    double x[X], w[W], bias[6], offset[2 * 18 * 15] = {0}, mask[2 * 9 * 15], want[Y], y[Y];
    wave(x, X, 1);
    wave(w, W, 2);
    wave(bias, 6, 3);
    for (int i = 0; i < 2 * 9 * 15; i++) mask[i] = 1;
    run_ok("ref",
           "conv x=f64:2x4x6x5 w=f64:6x2x3x3 pad=1x1 stride=2x1 groups=2 epilogue=bias bias=f64",
           VALUES(x, w, want, bias));
    for (int e = 0; e < 2; e++) {
        run_ok(both[e],
               "deform_conv x=f64:2x4x6x5 w=f64:6x2x3x3 pad=1x1 stride=2x1 groups=2 bias=f64",
               VALUES(x, w, offset, NULL, bias, y));
        assert_int_equal(differences(y, want, Y, 1e-13, 1e-13), 0);
        run_ok(
            both[e],
            "deform_conv x=f64:2x4x6x5 w=f64:6x2x3x3 pad=1x1 stride=2x1 groups=2 mask=f64 bias=f64",
            VALUES(x, w, offset, mask, bias, y));
        assert_int_equal(differences(y, want, Y, 1e-13, 1e-13), 0);
    }
}

/* One tap on the row 1 2 3 4, moved along it. */
static void along_a_row(void **state)
{
    (void)state;
    const struct {
        double by[4], want[4];
    } rows[] = {
        {{0, 0, 0, 0}, {1, 2, 3, 4}},
        {{0.5, 0.5, 0.5, 0.5}, {1.5, 2.5, 3.5, 2}}, /* at 3.5 half of 4 and half of nothing */
        {{-0.25, -0.25, -0.25, -0.25}, {0.75, 1.75, 2.75, 3.75}},
        {{-1, -2, 1, 1}, {0, 0, 4, 0}}, /* at -1 and at 4 nothing */
        {{-0.75, 3, -2, -3.5}, {0.25, 0, 1, 0.5}},
        {{NAN, INFINITY, -INFINITY, 0}, {0, 0, 0, 4}},
        {{1e30, -1e30, 0, 0}, {0, 0, 3, 4}},
    };
    for (int e = 0; e < 2; e++)
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            double x[] = {1, 2, 3, 4}, w[] = {1}, offset[8] = {0}, y[4];
            memcpy(offset + 4, rows[r].by, sizeof rows[r].by);
            run_ok(both[e], "deform_conv x=f32:1x1x1x4 w=f32:1x1x1x1",
                   VALUES(x, w, offset, NULL, NULL, y));
            if (differences(y, rows[r].want, 4, 0, 0)) fail_msg("row %zu", r);
            /* The same along a column: the first offset is along H. */
            memcpy(offset, rows[r].by, sizeof rows[r].by);
            memset(offset + 4, 0, 4 * sizeof *offset);
            run_ok(both[e], "deform_conv x=f32:1x1x4x1 w=f32:1x1x1x1",
                   VALUES(x, w, offset, NULL, NULL, y));
            if (differences(y, rows[r].want, 4, 0, 0)) fail_msg("column %zu", r);
        }
}

/* Two taps across, two offset groups of a channel: ((o T + t) 2 + axis). One window. */
static void order_of_offsets(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        double x[] = {1, 2, 3, 4, 10, 20, 30, 40}, w[] = {1, 100, 1000, 10000}, y[1];
        double offset[] = {1, 0, 0, -1, 0, 1, 1, 0}, mask[] = {1, 2, 3, 0.5};
        /* x: 1 2 / 3 4 and 10 20 / 30 40; taps at (0,0) and (0,1) of each channel. Channel 0: down
         * to 3; left to 1. Channel 1: right to 20; down to 40. */
        run_ok(both[e], "deform_conv x=f64:1x2x2x2 w=f64:1x2x1x2 stride=2x1 offset_groups=2",
               VALUES(x, w, offset, NULL, NULL, y));
        assert_true(y[0] == 3 + 100 * 1 + 1000 * 20 + 10000 * 40);
        run_ok(both[e],
               "deform_conv x=f64:1x2x2x2 w=f64:1x2x1x2 stride=2x1 offset_groups=2 mask=f64",
               VALUES(x, w, offset, mask, NULL, y));
        assert_true(y[0] == 3 + 2 * 100 * 1 + 3 * 1000 * 20 + 0.5 * 10000 * 40);
        /* One offset group: both channels move alike. */
        run_ok(both[e], "deform_conv x=f64:1x2x2x2 w=f64:1x2x1x2 stride=2x1",
               VALUES(x, w, offset, NULL, NULL, y));
        assert_true(y[0] == 3 + 100 * 1 + 1000 * 30 + 10000 * 10);
    }
}

/* Between four elements: 3/4 of the way down, 1/4 across. */
static void between_four(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        double x[] = {1, 2, 3, 4}, w[] = {1}, offset[8] = {0.75, 0, 0, 0, 0.25, 0, 0, 0}, y[4];
        run_ok(both[e], "deform_conv x=f32:1x1x2x2 w=f32:1x1x1x1",
               VALUES(x, w, offset, NULL, NULL, y));
        assert_true(y[0] == 0.25 * (0.75 * 1 + 0.25 * 2) + 0.75 * (0.75 * 3 + 0.25 * 4));
    }
}

/* Elements whose weight is 0 are not read; a mask of 0 is a factor. */
static void infinities(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        double x[] = {1, INFINITY, 3, NAN}, w[] = {1}, offset[8] = {0}, y[4];
        double mask[] = {0, 0, 1, 1};
        run_ok(both[e], "deform_conv x=f32:1x1x1x4 w=f32:1x1x1x1",
               VALUES(x, w, offset, NULL, NULL, y));
        assert_int_equal(differences(y, (double[]){1, INFINITY, 3, NAN}, 4, 0, 0), 0);
        run_ok(both[e], "deform_conv x=f32:1x1x1x4 w=f32:1x1x1x1 mask=f32",
               VALUES(x, w, offset, mask, NULL, y));
        assert_int_equal(differences(y, (double[]){0, NAN, 3, NAN}, 4, 0, 0), 0);
    }
}

static void nothing(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        double none[1] = {0}, offset[18 * 4] = {0}, bias[] = {5, 7}, y[8];
        run_ok(both[e], "deform_conv x=f32:1x0x2x2 w=f32:2x0x3x3 pad=1x1 bias=f32",
               VALUES(none, none, offset, NULL, bias, y));
        assert_int_equal(differences(y, (double[]){5, 5, 5, 5, 7, 7, 7, 7}, 8, 0, 0), 0);
    }
}

static void same_bits(void **state)
{
    (void)state;
    enum { X = 2 * 6 * 11 * 13, O = 2 * 36 * 11 * 13, Y = 2 * 5 * 11 * 13 };
    static double x[X], w[5 * 6 * 9], offset[O], y[2][Y];
    wave(x, X, 1);
    wave(w, 5 * 6 * 9, 2);
    wave(offset, O, 3);
    for (int k = 0; k < 2; k++) {
        omp_set_num_threads(k ? 3 : 1);
        run_ok("gemm", "deform_conv x=f32:2x6x11x13 w=f32:5x6x3x3 pad=1x1 offset_groups=2",
               VALUES(x, w, offset, NULL, NULL, y[k]));
    }
    assert_memory_equal(y[0], y[1], sizeof y[0]);
}

static void refusals(void **state)
{
    (void)state;
    refuses("deform_conv x=f32:2x4x6 w=f32:6x4x3x3", "x has rank 3");
    refuses("deform_conv x=f32:2x4x6x7 w=f32:6x3x3x3", "groups is 1, of 4 channels, w is 6 x 3");
    refuses("deform_conv x=f32:2x4x6x7 w=f32:5x2x3x3 groups=2", "w is 5 x 2");
    refuses("deform_conv x=f32:2x4x6x7 w=f32:6x4x3x3 offset_groups=3", "offset_groups is 3");
    refuses("deform_conv x=f32:2x4x6x7 w=f32:6x4x9x3", "a window spans 9");
    refuses("deform_conv x=f32:2x4x6x7 w=f32:6x4x3x3 stride=-1", "stride of axis 0 is -1");
    refuses("deform_conv x=f32:2x4x6x7 w=f32:6x4x3x3 pad=-1", "pad of axis 0 is -1");
    refuses("deform_conv x=f32:2x4x6x7 w=f32:6x4x3x3 offset=f32:2x9x4x5", "offset");
    refuses("deform_conv x=f32:2x4x6x7 w=f32:6x4x3x3 mask=f32:2x18x4x5", "mask");
    refuses("deform_conv x=f32:2x4x6x7 w=f16:6x4x3x3", "w is f16");
    refuses("deform_conv x=f32:2x4x6x7 w=f32:6x4x3x3 y=f32:2x6x6x7", "y");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(beside_conv),      cmocka_unit_test(along_a_row),
        cmocka_unit_test(order_of_offsets), cmocka_unit_test(between_four),
        cmocka_unit_test(infinities),       cmocka_unit_test(nothing),
        cmocka_unit_test(same_bits),        cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, open_context, close_context);
}
