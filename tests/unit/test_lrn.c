/* SPDX-License-Identifier: Apache-2.0
 * lrn before PyTorch (tests/judges/lrn.py): three kinds, both passes; on which side windows of even
 * size reach farther, by ONNX's words; sums that drift, overflow or vanish; refusals. */
#include "line.h"

#define VALUES(...) ((double *[MICA_MAX_ARGS]){__VA_ARGS__})

enum { COUNT = 2 * 6 * 3 * 4 };
static const struct judged {
    const char *fields;
    int means;
    double x[COUNT], of[COUNT], dy[COUNT], y[COUNT], dx[COUNT], dmeans[COUNT];
} judged[] = {
#include "../judges/lrn.h"
};

static const char *const all[] = {"cpu", "ref"};

static void before_pytorch(void **state)
{
    (void)state;
    static const char *const layouts[] = {"", ":nhwc"};
    for (size_t i = 0; i < sizeof judged / sizeof *judged; i++)
        for (int e = 0; e < 4; e++) {
            const struct judged *j = &judged[i];
            double x[COUNT], means[COUNT], dy[COUNT], y[COUNT], dx[COUNT], dmeans[COUNT];
            char line[300];
            memcpy(x, j->x, sizeof x), memcpy(means, j->of, sizeof means);
            memcpy(dy, j->dy, sizeof dy);
            int made = snprintf(line, sizeof line, "lrn %s x=f64:2x6x3x4%s%s", j->fields,
                                layouts[e / 2], j->means ? " means=f64" : "");
            assert_true(made < (int)sizeof line);
            run_ok(all[e % 2], line, VALUES(x, j->means ? means : NULL, y));
            if (differences(y, j->y, COUNT, 1e-14, 1e-13)) fail_msg("%s", line);
            made = snprintf(line, sizeof line, "lrn pass=bwd %s x=f64:2x6x3x4%s%s", j->fields,
                            layouts[e / 2], j->means ? " means=f64 dmeans=f64" : "");
            assert_true(made < (int)sizeof line);
            run_ok(all[e % 2], line,
                   VALUES(x, j->means ? means : NULL, NULL, dy, dx, j->means ? dmeans : NULL));
            if (differences(dx, j->dx, COUNT, 1e-13, 1e-12)) fail_msg("%s", line);
            if (j->means && differences(dmeans, j->dmeans, COUNT, 1e-13, 1e-12))
                fail_msg("%s", line);
        }
}

/* ONNX: from max(0, c - floor((size - 1) / 2)) to min(C - 1, c + ceil((size - 1) / 2)); the square
 * of the one element that is not 0 shows in whose windows it lies. */
static void even_sizes(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        double x[5] = {1e-8, 1e-8, 3, 1e-8, 1e-8}, y[5];
        const double after[5] = {1e-9, 1e-9, 0.3, 1e-9, 1e-8},
                     before[5] = {1e-8, 1e-9, 0.3, 1e-9, 1e-9};
        run_ok(all[e], "lrn size=4 alpha=4 beta=1 x=f64:1x5x1", VALUES(x, NULL, y));
        assert_int_equal(differences(y, after, 5, 0, 1e-12), 0);
        run_ok(all[e], "lrn extra=before size=4 alpha=4 beta=1 x=f64:1x5x1", VALUES(x, NULL, y));
        assert_int_equal(differences(y, before, 5, 0, 1e-12), 0);
        run_ok(all[e], "lrn size=4 sum=1 alpha=1 beta=1 x=f64:1x5x1", VALUES(x, NULL, y));
        assert_int_equal(differences(y, after, 5, 0, 1e-12), 0);
    }
}

/* A large element that left the window leaves nothing behind. */
static void no_drift(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        double x[64], y[64], want[64];
        for (int i = 0; i < 64; i++) x[i] = i ? 1 : 1e8, want[i] = 0.25;
        want[0] = 1e-8, want[1] = 1e-16, want[63] = 1 / 3.0;
        run_ok(all[e], "lrn size=3 sum=1 alpha=1 beta=1 x=f32:1x64", VALUES(x, NULL, y));
        assert_int_equal(differences(y, want, 64, 0, 1e-6), 0);
    }
}

/* x (3 x^2)^-beta where x^2 is neither; and its gradient, dy (1 - 2 beta) of x of one element. */
static void far_out(void **state)
{
    (void)state;
    static const struct {
        const char *type;
        double x, within;
    } far[] = {{"f32", 0x1p120, 1e-6},
               {"f32", 0x1p-100, 1e-6},
               {"f64", 0x1p1000, 1e-14},
               {"f64", 0x1p-900, 1e-14},
               {"bf16", 0x1p100, 1e-2}};
    for (int e = 0; e < 2; e++)
        for (size_t i = 0; i < sizeof far / sizeof *far; i++) {
            double x[3], y[3], dy[1] = {4}, dx[1];
            char line[200];
            const double v = far[i].x, third = pow(v, -0.5) / pow(3, 0.75),
                         half = pow(v, -0.5) / pow(2, 0.75);
            const double want[3] = {half, third, half};
            for (int k = 0; k < 3; k++) x[k] = v;
            snprintf(line, sizeof line, "lrn size=3 sum=1 alpha=1 k=0 x=%s:1x3", far[i].type);
            run_ok(all[e], line, VALUES(x, NULL, y));
            assert_int_equal(differences(y, want, 3, 0, far[i].within), 0);
            snprintf(line, sizeof line, "lrn pass=bwd beta=0.25 sum=1 alpha=1 k=0 x=%s:1x1",
                     far[i].type);
            run_ok(all[e], line, VALUES(x, NULL, NULL, dy, dx));
            const double slope[1] = {2 / sqrt(v)};
            assert_int_equal(differences(dx, slope, 1, 0, far[i].within), 0);
        }
}

static void refusals(void **state)
{
    (void)state;
    refuses("lrn x=f32:5", "x has rank 1; kind across takes 2 to 5");
    refuses("lrn kind=within x=f32:5x5", "x has rank 2; kind within takes 3 to 5");
    refuses("lrn x=f32:1x1x1x1x1x1", "rank 6");
    refuses("lrn kind=within x=f32:2x3x4 means=f32", "means are given, kind within takes none");
    refuses("lrn size=0 x=f32:2x3x4", "size");
    refuses("lrn size=-1 x=f32:2x3x4", "size is -1");
    refuses("lrn alpha=-1 x=f32:2x3x4", "alpha is -1");
    refuses("lrn k=-1 x=f32:2x3x4", "k is -1");
    refuses("lrn beta=-0.5 x=f32:2x3x4", "beta is -0.5");
    refuses("lrn beta=1001 x=f32:2x3x4", "beta is 1001");
    refuses("lrn x=f32:2x3x4 y=bf16:2x3x4", "bf16");
    refuses("lrn x=f32:2x3x4 y=f32:2x3x5", "y");
    refuses("lrn pass=bwd kind=divisive x=f32:2x3x4 dmeans=f32", "means");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(before_pytorch),
                                       cmocka_unit_test(even_sizes), cmocka_unit_test(no_drift),
                                       cmocka_unit_test(far_out), cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, open_context, close_context);
}
