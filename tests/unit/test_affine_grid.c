/* SPDX-License-Identifier: Apache-2.0
 * affine_grid before PyTorch (tests/judges/affine_grid.py): both passes, axes of one output;
 * gradients of no outputs; refusals. */
#include "line.h"

#define VALUES(...) ((double *[MICA_MAX_ARGS]){__VA_ARGS__})

enum { GRID = 2 * 12 * 3, THETA = 2 * 3 * 4 };
static const struct judged {
    int axes;
    const char *sizes;
    int align;
    double theta[THETA], dgrid[GRID], grid[GRID], dtheta[THETA];
} judged[] = {
#include "../judges/affine_grid.h"
};

static const char *const all[] = {"cpu", "ref"};

static void before_pytorch(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof judged / sizeof *judged; i++)
        for (int e = 0; e < 2; e++) {
            const struct judged *j = &judged[i];
            const int theta = 2 * j->axes * (j->axes + 1);
            int count = 2 * j->axes;
            double in[GRID], grid[GRID], dtheta[THETA];
            char line[200];
            for (const char *at = j->sizes; at; at = strchr(at, 'x') ? strchr(at, 'x') + 1 : NULL)
                count *= atoi(at);
            memcpy(in, j->theta, sizeof j->theta);
            int made = snprintf(line, sizeof line,
                                "affine_grid theta=f64:2x%dx%d grid=f64:2x%sx%d align_corners=%d",
                                j->axes, j->axes + 1, j->sizes, j->axes, j->align);
            assert_true(made < (int)sizeof line);
            run_ok(all[e], line, VALUES(in, grid));
            if (differences(grid, j->grid, count, 1e-14, 1e-13)) fail_msg("%s", line);
            memcpy(in, j->dgrid, sizeof j->dgrid);
            made = snprintf(line, sizeof line,
                            "affine_grid pass=bwd dgrid=f64:2x%sx%d align_corners=%d", j->sizes,
                            j->axes, j->align);
            assert_true(made < (int)sizeof line);
            run_ok(all[e], line, VALUES(NULL, NULL, in, dtheta));
            if (differences(dtheta, j->dtheta, theta, 1e-13, 1e-12)) fail_msg("%s", line);
        }
}

static void no_outputs(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        double nothing[1] = {0}, dtheta[6];
        const double zeros[6] = {0};
        run_ok(all[e], "affine_grid pass=bwd dgrid=f32:1x0x7x2",
               VALUES(NULL, NULL, nothing, dtheta));
        assert_int_equal(differences(dtheta, zeros, 6, 0, 0), 0);
    }
}

static void refusals(void **state)
{
    (void)state;
    refuses("affine_grid theta=f32:1x2x3 grid=f32:1x5x2", "the grid has rank 3");
    refuses("affine_grid theta=f32:1x2x3 grid=f32:1x5x5x3", "N x 2 axes x 2");
    refuses("affine_grid theta=f32:1x3x3 grid=f32:1x5x5x2", "theta");
    refuses("affine_grid theta=f32:2x2x3 grid=f32:1x5x5x2", "theta");
    refuses("affine_grid theta=f32:1x2x3 grid=bf16:1x5x5x2", "bf16");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(before_pytorch),
                                       cmocka_unit_test(no_outputs), cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, open_context, close_context);
}
