/* SPDX-License-Identifier: Apache-2.0
 * Fractional max pooling and max unpooling before PyTorch (tests/judges/unpool.py), in f64 and f32
 * and with channels last; samples beside 0 to 1, indices twice and outside; refusals. */
#include "line.h"

#define VALUES(...) ((double *[MICA_MAX_ARGS]){__VA_ARGS__})

enum { MOST = 448 };
static const struct judged {
    const char *type, *x_shape, *y_shape, *samples_shape, *window;
    int elements, windows;
    double x[MOST], samples[16], y[MOST], indices[MOST], dy[MOST], dx[MOST];
    double once[MOST], z[MOST], dz[MOST], dv[MOST];
} judged[] = {
#include "../judges/unpool.h"
};

static int axes_of(const struct judged *j)
{
    int axes = -1;
    for (const char *c = j->x_shape; *c; c++) axes += *c == 'x';
    return axes;
}

static void fractional_before_pytorch(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof judged / sizeof *judged; i++)
        for (int e = 0; e < 4; e++) {
            const struct judged *j = &judged[i];
            const char *last = e < 2 ? "" : axes_of(j) == 2 ? ":nhwc" : ":ndhwc";
            double x[MOST], samples[16], y[MOST], indices[MOST], dx[MOST];
            char line[512], fields[400];
            memcpy(x, j->x, sizeof x);
            memcpy(samples, j->samples, sizeof samples);
            snprintf(fields, sizeof fields,
                     "x=%s:%s%s y=%s:%s%s window=%s samples=%s:%s indices=s32", j->type, j->x_shape,
                     last, j->type, j->y_shape, last, j->window, j->type, j->samples_shape);
            snprintf(line, sizeof line, "pool %s", fields);
            run_ok(engines[e % 2], line, VALUES(x, y, indices, NULL, NULL, samples));
            if (differences(y, j->y, j->windows, 0, 0) ||
                differences(indices, j->indices, j->windows, 0, 0))
                fail_msg("%s: %s", engines[e % 2], line);
            memcpy(y, j->dy, sizeof y);
            snprintf(line, sizeof line, "pool pass=bwd %s", fields);
            run_ok(engines[e % 2], line, VALUES(dx, y, indices, NULL, NULL, samples));
            if (differences(dx, j->dx, j->elements, 0, 0)) fail_msg("%s: %s", engines[e % 2], line);
        }
}

static void unpool_before_pytorch(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof judged / sizeof *judged; i++)
        for (int e = 0; e < 4; e++) {
            const struct judged *j = &judged[i];
            const char *last = e < 2 ? "" : axes_of(j) == 2 ? ":nhwc" : ":ndhwc";
            double x[MOST], at[MOST], z[MOST], dv[MOST];
            char line[512];
            memcpy(x, j->y, sizeof x);
            memcpy(at, j->once, sizeof at);
            snprintf(line, sizeof line, "max_unpool x=%s:%s indices=s64:%s%s y=%s:%s%s", j->type,
                     j->y_shape, j->y_shape, last, j->type, j->x_shape, last);
            run_ok(engines[e % 2], line, VALUES(x, at, z));
            if (differences(z, j->z, j->elements, 0, 0)) fail_msg("%s", line);
            memcpy(z, j->dz, sizeof z);
            snprintf(line, sizeof line, "max_unpool pass=bwd indices=s32:%s dy=%s:%s%s", j->y_shape,
                     j->type, j->x_shape, last);
            run_ok(engines[e % 2], line, VALUES(NULL, at, NULL, z, dv));
            if (differences(dv, j->dv, j->windows, 0, 0)) fail_msg("%s", line);
        }
}

/* NaN and below 0 are 0, above 1 is 1. a = 3 / 2: starts 0 1 3, and with s = 1 floor(1.5 + 1.5 i) -
 * 1. */
static void samples_beside_the_range(void **state)
{
    (void)state;
    const double odd[] = {NAN, -0.5, -INFINITY, 0, 1, 1.5, INFINITY};
    for (int e = 0; e < 2; e++)
        for (int i = 0; i < 7; i++) {
            double x[] = {5, 4, 3, 2, 1}, y[3], at[3], s = odd[i];
            const double low[] = {5, 4, 2}, high[] = {5, 3, 2}, low_at[] = {0, 1, 3},
                         high_at[] = {0, 2, 3};
            run_ok(engines[e], "pool x=f32:1x1x5 y=f32:1x1x3 window=2 samples=f32 indices=s64",
                   VALUES(x, y, at, NULL, NULL, &s));
            assert_int_equal(differences(y, i < 4 ? low : high, 3, 0, 0), 0);
            assert_int_equal(differences(at, i < 4 ? low_at : high_at, 3, 0, 0), 0);
        }
}

/* An index that is not in its own window is left out, wherever it points to. */
static void indices_that_lie(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        double dy[] = {1, 10, 100}, s = 0, dx[5], at[] = {2, 1, 3}, out[] = {-1, 5, 1e15};
        const double want[] = {0, 10, 0, 100, 0}, none[5] = {0};
        const char *line = "pool pass=bwd x=f32:1x1x5 y=f32:1x1x3 window=2 samples=f64 indices=s64";
        run_ok(engines[e], line, VALUES(dx, dy, at, NULL, NULL, &s));
        assert_int_equal(differences(dx, want, 5, 0, 0), 0);
        run_ok(engines[e], line, VALUES(dx, dy, out, NULL, NULL, &s));
        assert_int_equal(differences(dx, none, 5, 0, 0), 0);
    }
}

/* The last of equal indices stays; those outside are left out, and have no gradient. */
static void unpooled_twice_and_outside(void **state)
{
    (void)state;
    static const char *const orders[] = {"1x1x2x3", "1x1x2x3:9x9x1x2", "1x1x2x3:9x9x4x-1"};
    for (int e = 0; e < 6; e++) {
        double x[] = {1, 2, 3, 4, 5, 6, 7}, at[] = {4, 1, 4, 6, -1, 1e15, 0};
        double y[6], dy[] = {10, 20, 30, 40, 50, 60}, dx[7];
        const double want[] = {7, 2, 0, 0, 3, 0}, gradient[] = {50, 20, 50, 0, 0, 0, 10};
        char line[256];
        snprintf(line, sizeof line, "max_unpool x=f32:1x1x7x1 indices=s64:1x1x7x1 y=f32:%s",
                 orders[e / 2]);
        run_ok(engines[e % 2], line, VALUES(x, at, y));
        if (differences(y, want, 6, 0, 0)) fail_msg("%s", line);
        snprintf(line, sizeof line, "max_unpool pass=bwd indices=s64:1x1x7x1 dy=f32:%s",
                 orders[e / 2]);
        run_ok(engines[e % 2], line, VALUES(NULL, at, NULL, dy, dx));
        if (differences(dx, gradient, 7, 0, 0)) fail_msg("%s", line);
    }
}

/* Nothing to take from, nowhere to go. */
static void nothing(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        double at[] = {0, 1}, dy[1], dx[] = {5, 5}, y[] = {5, 5, 5}, empty[1];
        run_ok(engines[e], "max_unpool pass=bwd indices=s64:1x1x2 dy=f32:1x1x0",
               VALUES(NULL, at, NULL, dy, dx));
        assert_true(dx[0] == 0 && dx[1] == 0);
        run_ok(engines[e], "max_unpool x=f32:1x1x0 indices=s64:1x1x0 y=f32:1x1x3",
               VALUES(empty, empty, y));
        assert_true(y[0] == 0 && y[1] == 0 && y[2] == 0);
    }
}

static void refusals(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"pool x=f32:1x2x5 window=2 samples=f32:1x2x1", "y is needed"},
        {"pool x=f32:1x2x5 y=f32:1x2x3 samples=f32:1x2x1", "window of axis 0 is 0"},
        {"pool x=f32:1x2x5 y=f32:1x2x3 window=6 samples=f32:1x2x1", "a window spans 6, x only 5"},
        {"pool x=f32:1x2x5 y=f32:1x2x3 window=2 stride=3 samples=f32:1x2x1", "stride is given"},
        {"pool x=f32:1x2x5 y=f32:1x2x3 window=2 pad=1 samples=f32:1x2x1", "pad is given"},
        {"pool x=f32:1x2x5 y=f32:1x2x3 window=2 dilation=2 samples=f32:1x2x1", "dilation is given"},
        {"pool x=f32:1x2x5 y=f32:1x2x3 window=2 ceil=1 samples=f32:1x2x1", "ceil is given"},
        {"pool x=f32:1x2x5 y=f32:1x2x3 adaptive=1 samples=f32:1x2x1", "adaptive is given"},
        {"pool mode=avg x=f32:1x2x5 y=f32:1x2x3 window=2 samples=f32:1x2x1", "only mode=max"},
        {"pool x=f32:1x2x5 y=f32:1x2x3 window=2 samples=f32:1x2x2", "dimension 2 of samples is 2"},
        {"pool x=f32:1x2x5 y=f32:1x2x3 window=2 samples=s32:1x2x1", "samples is s32"},
        {"pool x=f32:1x2x5 y=f32:1x3x3 window=2 samples=f32:1x2x1", "dimension 1 of y is 3"},
        {"max_unpool x=f32:1x2x5 y=f32:1x2x9", "indices is needed"},
        {"max_unpool x=f32:1x2x5 indices=s64:1x2x5", "y is needed"},
        {"max_unpool x=f32:1x2x5 indices=s64:1x2x4 y=f32:1x2x9", "dimension 2 of indices is 4"},
        {"max_unpool x=f32:1x2x5 indices=s64:1x2x5 y=f32:1x3x9", "dimension 1 of y is 3"},
        {"max_unpool x=f32:1x2x5 indices=s64:1x2x5 y=f32:1x2x9x9", "y has rank 4"},
        {"max_unpool x=f32:2x5 indices=s64:2x5 y=f32:2x9", "x has rank 2"},
        {"max_unpool x=f32:1x2x5 indices=u8:1x2x5 y=f32:1x2x9", "indices is u8"},
        {"max_unpool x=f32:1x2x5 indices=s64:1x2x5 y=f64:1x2x9", "y is f64, x is f32"},
        {"max_unpool pass=bwd indices=s64:1x2x5", "dy is needed"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) refuses(rows[i][0], rows[i][1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fractional_before_pytorch),
        cmocka_unit_test(unpool_before_pytorch),
        cmocka_unit_test(samples_beside_the_range),
        cmocka_unit_test(indices_that_lie),
        cmocka_unit_test(unpooled_twice_and_outside),
        cmocka_unit_test(nothing),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests_name("unpool", tests, open_context, close_context);
}
