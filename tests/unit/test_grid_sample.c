/* SPDX-License-Identifier: Apache-2.0
 * grid_sample before PyTorch (tests/judges/grid_sample.py): every mode, padding and alignment, both
 * gradients; what is documented of NaN and infinities; ties; refusals; equal bits for any number of
 * threads. */
#include "line.h"

#define VALUES(...) ((double *[MICA_MAX_ARGS]){__VA_ARGS__})

enum { OUTPUTS = 10, MOST = 48, CHANNELS = 2 };
static const struct judged {
    int axes;
    const char *mode, *padding;
    int align;
    double x[MOST], grid[3 * OUTPUTS], dy[CHANNELS * OUTPUTS], y[CHANNELS * OUTPUTS], dx[MOST],
        dgrid[3 * OUTPUTS];
} judged[] = {
#include "../judges/grid_sample.h"
};

static void before_pytorch(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof judged / sizeof *judged; i++)
        for (int e = 0; e < 2; e++)
            for (int last = 0; last < 2; last++) {
                const struct judged *j = &judged[i];
                const bool flat = j->axes == 2;
                const char *x = flat ? "1x2x4x3" : "1x2x2x4x3",
                           *grid = flat ? "1x2x5x2" : "1x1x2x5x3";
                const char *order = !last ? "" : flat ? ":nhwc" : ":ndhwc";
                double in[3][MOST], y[MOST], dx[MOST], dgrid[MOST];
                char line[320];
                memcpy(in[0], j->x, sizeof j->x);
                memcpy(in[1], j->grid, sizeof j->grid);
                memcpy(in[2], j->dy, sizeof j->dy);
                int made = snprintf(line, sizeof line,
                                    "grid_sample mode=%s padding=%s align_corners=%d x=f64:%s%s "
                                    "grid=f64:%s",
                                    j->mode, j->padding, j->align, x, order, grid);
                assert_true(made < (int)sizeof line);
                run_ok(engines[e], line, VALUES(in[0], in[1], y));
                const int outputs = CHANNELS * OUTPUTS;
                if (differences(y, j->y, outputs, 1e-14, 1e-12)) fail_msg("%s: y", line);
                made = snprintf(line, sizeof line,
                                "grid_sample pass=bwd mode=%s padding=%s align_corners=%d "
                                "x=f64:%s%s dx=f64:%s%s grid=f64:%s dgrid=f64:%s",
                                j->mode, j->padding, j->align, x, order, x, order, grid, grid);
                assert_true(made < (int)sizeof line);
                run_ok(engines[e], line, VALUES(in[0], in[1], NULL, in[2], dx, dgrid));
                if (differences(dx, j->dx, flat ? 24 : 48, 1e-13, 1e-12)) fail_msg("%s: dx", line);
                if (differences(dgrid, j->dgrid, j->axes * OUTPUTS, 1e-13, 1e-11))
                    fail_msg("%s: dgrid", line);
            }
}

/* Elements 1 to 4 of one row, sampled along it. */
static void edges(void **state)
{
    (void)state;
    const struct {
        const char *fields;
        double g[4], want[4];
    } rows[] = {
        {"mode=nearest", {-0.5, 0, 0.5, -1}, {1, 3, 3, 1}}, /* u = 0.5, 1.5, 2.5, -0.5: to even */
        {"padding=border", {NAN, INFINITY, -INFINITY, 0}, {1, 4, 1, 2.5}},
        {"mode=nearest padding=border", {NAN, INFINITY, -INFINITY, 0.1}, {1, 4, 1, 3}},
        {"padding=reflection", {NAN, INFINITY, -INFINITY, -1.5}, {1, 1, 1, 1.5}},
        {"padding=reflection", {-1, 1, -1.25, 1.25}, {1, 4, 1, 4}}, /* on the border; at a centre */
        {"padding=zeros", {NAN, INFINITY, -INFINITY, 1}, {0, 0, 0, 2}},
        {"mode=nearest", {NAN, INFINITY, -INFINITY, 1e30}, {0, 0, 0, 0}},
        {"mode=bicubic", {NAN, INFINITY, -INFINITY, 1e30}, {NAN, NAN, NAN, 0}},
        {"mode=bicubic padding=border", {NAN, INFINITY, -1e30, 1e30}, {NAN, NAN, 1, 4}},
    };
    for (int e = 0; e < 2; e++)
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            double x[] = {1, 2, 3, 4}, grid[8] = {0}, y[4];
            char line[160];
            for (int i = 0; i < 4; i++) grid[2 * i] = rows[r].g[i];
            snprintf(line, sizeof line, "grid_sample %s x=f32:1x1x1x4 grid=f32:1x1x4x2",
                     rows[r].fields);
            run_ok(engines[e], line, VALUES(x, grid, y));
            if (differences(y, rows[r].want, 4, 1e-6, 0)) fail_msg("%s: row %zu", line, r);
        }
}

/* Bicubic moves taps: u = -0.9 with a border reads 1 1 1 2, not 1 at the border alone. */
static void taps_not_coordinates(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        double x[] = {1, 2, 3, 4}, grid[] = {2 * (-0.9 + 0.5) / 4 - 1, 0}, y[1];
        const double t = 0.1, w = -0.75 * (1 - t) * t * t;
        run_ok(engines[e], "grid_sample mode=bicubic padding=border x=f64:1x1x1x4 grid=f64:1x1x1x2",
               VALUES(x, grid, y));
        assert_true(fabs(y[0] - (1 + w)) < 1e-12);
        /* f64 goes on where f32 ends. */
        run_ok(engines[e], "grid_sample mode=bicubic padding=border x=f64:1x1x1x4 grid=f64:1x1x1x2",
               VALUES(x, ((double[]){1e300, 0}), y));
        assert_true(y[0] == 4);
    }
}

/* A dimension without elements leaves gradients of zeros. */
static void nothing(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        double x[1] = {0}, grid[8] = {0}, dx[6], dgrid[8];
        const double zeros[8] = {0};
        run_ok(engines[e], "grid_sample pass=bwd dx=f32:1x1x2x3 grid=f32:1x0x4x2",
               VALUES(NULL, x, NULL, x, dx));
        assert_int_equal(differences(dx, zeros, 6, 0, 0), 0);
        run_ok(engines[e], "grid_sample pass=bwd x=f32:1x0x2x3 grid=f32:1x1x4x2 dgrid=f32:1x1x4x2",
               VALUES(x, grid, NULL, x, NULL, dgrid));
        assert_int_equal(differences(dgrid, zeros, 8, 0, 0), 0);
        double y[4] = {1, 2, 3, 4}, in[6] = {1, 2, 3, 4, 5, 6};
        run_ok(engines[e],
               "grid_sample pass=bwd mode=nearest x=f32:1x1x2x3 grid=f32:1x1x4x2 dgrid=f32:1x1x4x2",
               VALUES(in, grid, NULL, y, NULL, dgrid));
        assert_int_equal(differences(dgrid, zeros, 8, 0, 0), 0);
    }
}

static void same_bits(void **state)
{
    (void)state;
    enum { X = 2 * 20 * 9 * 7, G = 2 * 30 * 20 * 2, Y = 2 * 20 * 30 * 20 };
    static double x[X], grid[G], dy[Y], dx[2][X], dgrid[2][G];
    const char *const line = "grid_sample pass=bwd x=f32:2x20x9x7 dx=f32:2x20x9x7 "
                             "grid=f32:2x30x20x2 dgrid=f32:2x30x20x2";
    wave(x, X, 1), wave(grid, G, 2), wave(dy, Y, 3);
    for (int k = 0; k < 2; k++) {
        omp_set_num_threads(k ? 3 : 1);
        run_ok("cpu", line, VALUES(x, grid, NULL, dy, dx[k], dgrid[k]));
    }
    assert_memory_equal(dx[0], dx[1], sizeof dx[0]);
    assert_memory_equal(dgrid[0], dgrid[1], sizeof dgrid[0]);
}

static void refusals(void **state)
{
    (void)state;
    refuses("grid_sample x=f32:1x2x4 grid=f32:1x5x1", "x has rank 3");
    refuses("grid_sample x=f32:1x2x4x4 grid=f32:1x5x5x3", "3 coordinates");
    refuses("grid_sample mode=bicubic x=f32:1x2x4x4x4 grid=f32:1x5x5x5x3", "bicubic takes two");
    refuses("grid_sample x=bf16:1x2x4x4 grid=f16:1x5x5x2", "it must be f32 or bf16");
    refuses("grid_sample x=f32:2x2x4x4 grid=f32:1x5x5x2", "x has 2 samples");
    refuses("grid_sample x=f32:1x2x0x4 grid=f32:1x5x5x2", "axis 0 of x has no element");
    refuses("grid_sample pass=bwd x=f32:1x2x4x4 grid=f32:1x5x5x2", "neither dx nor dgrid");
    refuses("grid_sample pass=bwd dx=f32:1x2x4x4 grid=f32:1x5x5x2 dgrid=f32:1x5x5x2", "x");
    refuses("grid_sample pass=bwd x=bf16:1x2x4x4 grid=f32:1x5x5x2 dgrid=bf16:1x5x5x2", "dgrid");
    refuses("grid_sample x=f32:1x2x4x4 y=f32:1x2x5x4 grid=f32:1x5x5x2", "y");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(before_pytorch),
                                       cmocka_unit_test(edges),
                                       cmocka_unit_test(taps_not_coordinates),
                                       cmocka_unit_test(nothing),
                                       cmocka_unit_test(same_bits),
                                       cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, open_context, close_context);
}
