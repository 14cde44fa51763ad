/* SPDX-License-Identifier: Apache-2.0
 * deform_conv on values computed by hand, by the conventions of torchvision.ops.deform_conv2d and
 * ONNX's DeformConv (offsets of a tap along H, then along W; offset groups before taps; zeros
 * beside x, bilinear up to there); before torchvision (tests/judges/deform_conv.py), gradients
 * included; beside conv where offsets are 0; places that are no numbers, elements whose weight is
 * 0; derivatives at whole places; empty tensors; refusals. */
#include "line.h"

#define VALUES(...) ((double *[MICA_MAX_ARGS]){__VA_ARGS__})

static const char *const both[] = {"gemm", "ref"};

enum { MOST = 1024, X = 4 * 4 * 4 };
static const struct judged {
    const char *fields, *w_dims;
    int mask, bias, y_count, offset_count;
    double x[X], w[64], offset[MOST], mask_values[MOST / 2], bias_values[4], dy[128], y[128], dx[X],
        dw[64], doffset[MOST], dmask[MOST / 2], dbias[4];
} judged[] = {
#include "../judges/deform_conv.h"
};

static void judge_gradients(const char *engine, const char *order, const struct judged *j)
{
    static double offset[MOST], mask[MOST / 2], doffset[MOST], dmask[MOST / 2];
    double x[X], w[64], bias[4], dy[128], y[128], dx[X], dw[64], dbias[4];
    char line[320];
    const char *masked = j->mask ? "mask=f64" : "";
    memcpy(x, j->x, sizeof x), memcpy(w, j->w, sizeof w), memcpy(dy, j->dy, sizeof dy);
    memcpy(offset, j->offset, sizeof offset), memcpy(bias, j->bias_values, sizeof bias);
    memcpy(mask, j->mask_values, sizeof mask);
    snprintf(line, sizeof line, "deform_conv x=f64:1x4x4x4%s w=f64:%s %s %s %s", order, j->w_dims,
             j->fields, masked, j->bias ? "bias=f64" : "");
    run_ok(engine, line, VALUES(x, w, offset, mask, bias, y));
    if (differences(y, j->y, j->y_count, 1e-13, 1e-12)) fail_msg("%s %s: y", engine, line);
    snprintf(line, sizeof line,
             "deform_conv pass=dgrad x=f64:1x4x4x4%s w=f64:%s %s %s dx=f64 doffset=f64 %s", order,
             j->w_dims, j->fields, masked, j->mask ? "dmask=f64" : "");
    run_ok(engine, line, VALUES(x, w, offset, mask, NULL, NULL, dy, dx, doffset, dmask));
    if (differences(dx, j->dx, X, 1e-13, 1e-12)) fail_msg("%s %s: dx", engine, line);
    if (differences(doffset, j->doffset, j->offset_count, 1e-13, 1e-12))
        fail_msg("%s %s: doffset", engine, line);
    if (j->mask && differences(dmask, j->dmask, j->offset_count / 2, 1e-13, 1e-12))
        fail_msg("%s %s: dmask", engine, line);
    snprintf(line, sizeof line, "deform_conv pass=wgrad x=f64:1x4x4x4%s dw=f64:%s %s %s %s", order,
             j->w_dims, j->fields, masked, j->bias ? "dbias=f64" : "");
    run_ok(engine, line,
           VALUES(x, NULL, offset, mask, NULL, NULL, dy, NULL, NULL, NULL, dw, dbias));
    const int64_t outputs = j->w_dims[0] - '0';
    int64_t count = outputs;
    for (const char *c = j->w_dims + 1; *c; c++) count *= *c == 'x' ? 1 : *c - '0';
    if (differences(dw, j->dw, count, 1e-13, 1e-12)) fail_msg("%s %s: dw", engine, line);
    if (j->bias && differences(dbias, j->dbias, outputs, 1e-13, 1e-12))
        fail_msg("%s %s: dbias", engine, line);
}

static void before_torchvision(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof judged / sizeof *judged; i++)
        for (int e = 0; e < 2; e++) {
            judge_gradients(both[e], "", &judged[i]);
            judge_gradients(both[e], ":nhwc", &judged[i]);
        }
}

/* One tap on the row 1 2 4 8: at whole places the derivative towards greater ones, also at -1;
 * elements without a part in it are not read. */
static void derivatives_of_places(void **state)
{
    (void)state;
    const struct {
        double by[4], want[4];
    } rows[] = {
        {{0, 0, 0, 0}, {1, 2, 4, -8}}, /* behind 8 is 0 */
        {{0.5, 0.5, 0.5, 0.5}, {1, 2, 4, -8}},
        {{-1, -2, 1, 1}, {1, 1, -8, 0}}, /* at -1, -1, 3 and 4 */
        {{-1.5, NAN, INFINITY, -1e30}, {0, 0, 0, 0}},
    };
    for (int e = 0; e < 2; e++)
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            double x[] = {1, 2, 4, 8}, w[] = {1}, dy[] = {1, 1, 1, 1}, offset[8] = {0}, to[8];
            memcpy(offset + 4, rows[r].by, sizeof rows[r].by);
            run_ok(both[e], "deform_conv pass=dgrad x=f32:1x1x1x4 w=f32:1x1x1x1 doffset=f32",
                   VALUES(x, w, offset, NULL, NULL, NULL, dy, NULL, to));
            if (differences(to + 4, rows[r].want, 4, 0, 0)) fail_msg("%s, row %zu", both[e], r);
        }
    for (int e = 0; e < 2; e++) {
        double x[] = {1, 3, INFINITY, NAN}, w[] = {1}, dy[] = {1, 0, 0, 0}, offset[8] = {0}, to[8];
        double mask[] = {1, 1, 1, 1}, dmask[4];
        run_ok(both[e],
               "deform_conv pass=dgrad x=f32:1x1x1x4 w=f32:1x1x1x1 mask=f32 doffset=f32 dmask=f32",
               VALUES(x, w, offset, mask, NULL, NULL, dy, NULL, to, dmask));
        assert_true(to[4] == 2 && dmask[0] == 1 && to[0] == -1 && dmask[1] == 0);
    }
}

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
    static double dx[2][X], doffset[2][O];
    for (int k = 0; k < 2; k++) {
        omp_set_num_threads(k ? 3 : 1);
        run_ok("gemm",
               "deform_conv pass=dgrad x=f32:2x6x11x13 w=f32:5x6x3x3 pad=1x1 offset_groups=2 "
               "dx=f32 doffset=f32",
               VALUES(x, w, offset, NULL, NULL, NULL, y[0], dx[k], doffset[k]));
    }
    assert_memory_equal(dx[0], dx[1], sizeof dx[0]);
    assert_memory_equal(doffset[0], doffset[1], sizeof doffset[0]);
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
    refuses("deform_conv x=f32:2x4x6x7 w=f32:6x4x3x3 pad=1 pad_extra=-2",
            "pad_extra of axis 0 is -2");
    refuses("deform_conv x=f32:2x4x6x7 w=f32:6x4x3x3 offset=f32:2x9x4x5", "offset");
    refuses("deform_conv x=f32:2x4x6x7 w=f32:6x4x3x3 mask=f32:2x18x4x5", "mask");
    refuses("deform_conv x=f32:2x4x6x7 w=f16:6x4x3x3", "w is f16");
    refuses("deform_conv x=f32:2x4x6x7 w=f32:6x4x3x3 y=f32:2x6x6x7", "y");
    refuses("deform_conv pass=dgrad x=f32:2x4x6x7 w=f32:6x4x3x3", "neither dx nor doffset");
    refuses("deform_conv pass=dgrad x=f32:2x4x6x7 w=f32:6x4x3x3 dmask=f32", "dmask without mask");
    refuses("deform_conv pass=dgrad x=f32:2x4x6x7 w=f32:6x4x3x3 dx=f16", "dx is f16");
    refuses("deform_conv pass=dgrad x=f32:2x4x6x7 w=f32:6x4x3x3 dx=f32:2x4x6x8", "dx");
    refuses("deform_conv pass=wgrad x=f32:2x4x6x7", "dw is needed");
    refuses("deform_conv pass=wgrad x=f32:2x4x6x7 dw=f32:6x3x3x3", "dw is 6 x 3");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(before_torchvision), cmocka_unit_test(derivatives_of_places),
        cmocka_unit_test(beside_conv),        cmocka_unit_test(along_a_row),
        cmocka_unit_test(order_of_offsets),   cmocka_unit_test(between_four),
        cmocka_unit_test(infinities),         cmocka_unit_test(nothing),
        cmocka_unit_test(same_bits),          cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, open_context, close_context);
}
