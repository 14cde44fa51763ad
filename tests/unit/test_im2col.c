/* SPDX-License-Identifier: Apache-2.0
 * im2col before PyTorch's unfold and fold (tests/judges/im2col.py), in every type and with pairs or
 * windows side by side; padding at the end alone; what nothing reads; each pass as the other's
 * gradient; refusals; equal bits for any number of threads. */
#include "line.h"

#define VALUES(...) ((double *[MICA_MAX_ARGS]){__VA_ARGS__})

enum { MOST = 256 };
static const struct judged {
    const char *image, *columns, *fields;
    int elements, numbers;
    double x[MOST], y[MOST], dy[MOST], dx[MOST];
} judged[] = {
#include "../judges/im2col.h"
};
static const char *const types[] = {"f64", "f32", "f16", "bf16"};

static void before_pytorch(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof judged / sizeof *judged; i++)
        for (int e = 0; e < 2; e++)
            for (int t = 0; t < 8; t++) {
                const struct judged *j = &judged[i];
                const char *type = types[t % 4], *order = t < 4 ? "" : ":nhwc";
                const char *pairs = t < 4 ? "" : ":t";
                double in[MOST], out[MOST];
                char line[320];
                memcpy(in, j->x, sizeof in);
                snprintf(line, sizeof line, "im2col x=%s:%s%s y=%s:%s%s %s", type, j->image, order,
                         type, j->columns, pairs, j->fields);
                run_ok(engines[e], line, VALUES(in, out));
                if (differences(out, j->y, j->numbers, 0, 0)) fail_msg("%s", line);
                memcpy(in, j->dy, sizeof in);
                snprintf(line, sizeof line, "im2col pass=bwd dx=%s:%s%s dy=%s:%s%s %s", type,
                         j->image, order, type, j->columns, pairs, j->fields);
                run_ok(engines[e], line, VALUES(NULL, NULL, in, out));
                if (differences(out, j->dx, j->elements, 0, 0)) fail_msg("%s", line);
            }
}

/* One axis by hand, padded by 1 before and 3 behind: PyTorch has no such padding, ONNX has. */
static void padding_behind(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        double x[] = {1, 2, 3, 4}, y[6], dx[4];
        const double want[] = {0, 2, 4, 2, 4, 0}, sums[] = {0, 4, 0, 8};
        run_ok(engines[e], "im2col x=f32:1x1x4 kernel=2 stride=2 pad=1 pad_extra=2 dilation=2",
               VALUES(x, y));
        assert_int_equal(differences(y, want, 6, 0, 0), 0);
        run_ok(engines[e],
               "im2col pass=bwd dx=f32:1x1x4 kernel=2 stride=2 pad=1 pad_extra=2 dilation=2",
               VALUES(NULL, NULL, y, dx));
        assert_int_equal(differences(dx, sums, 4, 0, 0), 0);
    }
}

/* No element at all: the columns are zeros; gaps between windows have no gradient, whatever dy is.
 */
static void nothing(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        double x[1] = {0}, y[12], dy[] = {NAN, INFINITY}, dx[4];
        const double zeros[12] = {0};
        run_ok(engines[e], "im2col x=f32:1x1x0x2 kernel=2x2 pad=1x0", VALUES(x, y));
        assert_int_equal(differences(y, zeros, 4, 0, 0), 0);
        run_ok(engines[e], "im2col pass=bwd dx=f32:1x1x4 stride=3", VALUES(NULL, NULL, dy, dx));
        assert_true(isnan(dx[0]) && dx[1] == 0 && dx[2] == 0 && isinf(dx[3]));
    }
}

/* <unfold(x), u> = <x, fold(u)> */
static void adjoint(void **state)
{
    (void)state;
    enum { X = 2 * 3 * 5 * 6 * 7, Y = 2 * 36 * 32 };
    static double x[X], y[Y], u[Y], dx[X];
    const char *const fields = "kernel=2x3x2 stride=1x2x2 pad=0x1x1 dilation=1x2x1";
    wave(x, X, 1), wave(u, Y, 2);
    for (int e = 0; e < 2; e++) {
        char line[160];
        double left = 0, right = 0;
        snprintf(line, sizeof line, "im2col x=f64:2x3x5x6x7 y=f64:2x36x32 %s", fields);
        run_ok(engines[e], line, VALUES(x, y));
        snprintf(line, sizeof line, "im2col pass=bwd dx=f64:2x3x5x6x7 dy=f64:2x36x32 %s", fields);
        run_ok(engines[e], line, VALUES(NULL, NULL, u, dx));
        for (int i = 0; i < Y; i++) left += y[i] * u[i];
        for (int i = 0; i < X; i++) right += x[i] * dx[i];
        assert_true(fabs(left) > 1e-3 && fabs(left - right) < 1e-10);
    }
}

static void same_bits(void **state)
{
    (void)state;
    enum { X = 3 * 17 * 30 * 31, Y = 3 * 17 * 9 * 30 * 31 };
    static double dy[Y], dx[2][X];
    wave(dy, Y, 3);
    for (int k = 0; k < 2; k++) {
        omp_set_num_threads(k ? 3 : 1);
        run_ok("cpu", "im2col pass=bwd dx=f32:3x17x30x31 kernel=3x3 pad=1x1",
               VALUES(NULL, NULL, dy, dx[k]));
    }
    assert_memory_equal(dx[0], dx[1], sizeof dx[0]);
}

static void refusals(void **state)
{
    (void)state;
    refuses("im2col x=f32:2x3", "the image has rank 2");
    refuses("im2col x=f32:1x1x1x1x1x1", "the image has rank 6");
    refuses("im2col x=s32:1x1x4x4", "must be f64, f32, f16 or bf16");
    refuses("im2col x=f32:1x1x4x4 kernel=5x2",
            "axis 0: a window spans 5, the image with its padding only 4");
    refuses("im2col x=f32:1x1x4x4 kernel=2x2 pad=-1x0", "pad of axis 0 is -1");
    refuses("im2col x=f32:1x1x4x4 kernel=0x2", "kernel");
    refuses("im2col x=f32:1x1x4x4 kernel=2x2 stride=0x1", "stride");
    refuses("im2col x=f32:1x1x4 kernel=2x2", "kernel has a value for axis 1, the image has 1 axes");
    refuses("im2col x=f32:1x1x4x4 kernel=2x2 y=f32:1x4x8", "y");
    refuses("im2col x=f32:1x1x4x4 kernel=2x2 y=f16:1x4x9", "y is f16, x is f32");
    refuses("im2col pass=bwd dx=f32:1x2x4x4 kernel=2x2 dy=f32:1x4x9", "dy");
    refuses("im2col x=f32:1x1x4x4 pad=281474976710656x281474976710656", "at most 2^48");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(before_pytorch), cmocka_unit_test(padding_behind),
        cmocka_unit_test(nothing),        cmocka_unit_test(adjoint),
        cmocka_unit_test(same_bits),      cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, open_context, close_context);
}
