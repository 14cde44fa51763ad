/* SPDX-License-Identifier: Apache-2.0
 * Operations on ops/index: known values of each, indices outside, nothing to take from, types of
 * less than a byte, in place, equal bits for any number of threads, refusals. */
#include "line.h"

#define VALUES(...) ((double *[MICA_MAX_ARGS]){__VA_ARGS__})

static void expect(const char *line, double *const *values, const double *got, const double *want,
                   int n)
{
    for (int e = 0; e < 2; e++) {
        run_ok(engines[e], line, values);
        if (differences(got, want, n, 0, 0)) fail_msg("%s: %s", engines[e], line);
    }
}

/* The examples of pad.h. */
static void padding(void **state)
{
    (void)state;
    double x[] = {1, 2, 3, 4}, y[8] = {0}, dx[4] = {0};
    double dy[] = {1, 10, 100, 1000, 1e4, 1e5, 1e6, 1e7};
    expect("pad x=f32:4 before=2 after=2 value=9", VALUES(x, y), y,
           (double[]){9, 9, 1, 2, 3, 4, 9, 9}, 8);
    expect("pad mode=reflect x=f32:4 before=2 after=2", VALUES(x, y), y,
           (double[]){3, 2, 1, 2, 3, 4, 3, 2}, 8);
    expect("pad mode=edge x=f32:4 before=2 after=2", VALUES(x, y), y,
           (double[]){1, 1, 1, 2, 3, 4, 4, 4}, 8);
    expect("pad mode=wrap x=f32:4 before=2 after=2", VALUES(x, y), y,
           (double[]){3, 4, 1, 2, 3, 4, 1, 2}, 8);
    expect("pad x=f32:4 before=-1 after=-2", VALUES(x, y), y, (double[]){2}, 1);
    expect("pad mode=reflect pass=bwd dx=f64:4 before=2 after=2", VALUES(NULL, NULL, dy, dx), dx,
           (double[]){100, 10001010, 1010001, 1e5}, 4);
    expect("pad mode=edge pass=bwd dx=f64:4 before=2 after=2", VALUES(NULL, NULL, dy, dx), dx,
           (double[]){111, 1000, 1e4, 11100000}, 4);
    expect("pad x=s4:3 before=1 after=1 value=-8", VALUES((double[]){1, -2, 7}, y), y,
           (double[]){-8, 1, -2, 7, -8}, 5);
}

static void gathering(void **state)
{
    (void)state;
    double x[] = {1, 2, 3, 4, 5, 6}, y[9] = {0}, index[] = {2, -1, 0, 3, 0}, dx[6] = {0};
    double dy[] = {1, 10, 100, 1000, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9};
    expect("gather x=f32:3x2 index=s64:4", VALUES(x, index, y), y,
           (double[]){5, 6, 0, 0, 1, 2, 0, 0}, 8);
    expect("gather x=f32:3x2 index=s32:4 negative=1", VALUES(x, index, y), y,
           (double[]){5, 6, 5, 6, 1, 2, 0, 0}, 8);
    expect("gather pass=bwd dx=f64:3x2 index=s64:5 negative=1", VALUES(NULL, index, NULL, dy, dx),
           dx, (double[]){1e8 + 1e4, 1e9 + 1e5, 0, 0, 101, 1010}, 6);
    expect("gather pass=bwd dx=f64:3x2 index=s64:5 negative=1 padding=1",
           VALUES(NULL, index, NULL, dy, dx), dx, (double[]){0, 0, 0, 0, 101, 1010}, 6);
    expect("gather mode=elements x=f32:3x2 index=s64:1x2", VALUES(x, index, y), y, (double[]){5, 0},
           2);
    expect("gather mode=nd x=f32:3x2 index=s64:1x2 negative=1", VALUES(x, index, y), y,
           (double[]){6}, 1);
    /* Nothing to take from, nothing to give. */
    expect("gather x=f32:0x2 index=s64:2", VALUES(x, index, y), y, (double[]){0, 0, 0, 0}, 4);
    expect("gather pass=bwd dx=f32:3x2 index=s64:0", VALUES(NULL, index, NULL, dy, dx), dx,
           (double[6]){0}, 6);
    double extremes[] = {0x1p62, -0x1p63};
    expect("gather x=f32:3x2 index=s64:2 negative=1", VALUES(x, extremes, y), y, (double[4]){0}, 4);
}

static void scattering(void **state)
{
    (void)state;
    double x[] = {1, 2, 3, 4}, index[] = {2, 0, 2, 4}, u[] = {5, 6, 7, 8}, y[4] = {0};
    static const struct {
        const char *reduction;
        double want[4];
    } rows[] = {{"none", {6, 2, 7, 4}},
                {"add", {7, 2, 15, 4}},
                {"mul", {6, 2, 105, 4}},
                {"max", {6, 2, 7, 4}},
                {"min", {1, 2, 3, 4}}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        static const char *const types[] = {"f32", "bf16", "s32", "u4"};
        for (int t = 0; t < (rows[i].want[2] > 15 ? 3 : 4); t++) {
            char line[100];
            snprintf(line, sizeof line, "scatter reduction=%s x=%s:4 index=s64:4",
                     rows[i].reduction, types[t]);
            expect(line, VALUES(x, index, u, y), y, rows[i].want, 4);
            const int onto[] = {MICA_SCATTER_Y, MICA_SCATTER_X};
            assert_int_equal(line_run("cpu", line, VALUES(x, index, u, NULL), onto), MICA_OK);
        }
    }
}

static void parts(void **state)
{
    (void)state;
    double a[] = {1, 2, 3, 4}, b[] = {5, 6}, y[12] = {0}, join[] = {1, 2, 5, 3, 4, 6};
    expect("concat x0=f32:2x2 x1=f32:2x1 axis=-1",
           VALUES(a, b, NULL, NULL, NULL, NULL, NULL, NULL, y), y, join, 6);
    expect("concat pass=bwd x0=f32:2x2 x1=f32:2x1 axis=1",
           VALUES(a, b, NULL, NULL, NULL, NULL, NULL, NULL, join), b, (double[]){5, 6}, 2);
    expect("slice x=f32:6 start=-1 step=-2", VALUES(join, y), y, (double[]){6, 3, 2}, 3);
    expect("slice pass=bwd dx=f32:4 start=1 step=2", VALUES(NULL, NULL, b, y), y,
           (double[]){0, 5, 0, 6}, 4);
    expect("tile x=f32:2 repeats=2 shift=1", VALUES(b, y), y, (double[]){6, 5, 6, 5}, 4);
    expect("tile pass=bwd dx=f32:2 repeats=2 shift=1", VALUES(NULL, NULL, a, y), y,
           (double[]){6, 4}, 2);
    for (int e = 0; e < 2; e++) {
        double whole[] = {1, 2, 3, 4};
        run_ok(engines[e], "slice pass=write x=f32:4 start=3 step=-2", VALUES(whole, b));
        assert_int_equal(differences(whole, (double[]){1, 6, 3, 5}, 4, 0, 0), 0);
    }
}

/* Sums of unequal numbers in f32: another order gives other bits. */
static void threads(void **state)
{
    (void)state;
    enum { UPDATES = 20000, ROWS = 7 };
    static const char *const lines[] = {"gather pass=bwd dx=f32:7x1 index=s64:20000",
                                        "gather pass=bwd dx=bf16:7x1 index=s64:20000"};
    static double index[UPDATES], dy[UPDATES], dx[ROWS], one[ROWS];
    wave(dy, UPDATES, 0);
    for (int i = 0; i < UPDATES; i++) index[i] = i * 31 % (ROWS + 1);
    for (int l = 0; l < 2; l++)
        for (int n = 1; n < 5; n++) {
            omp_set_num_threads(n);
            run_ok("cpu", lines[l], VALUES(NULL, index, NULL, dy, n == 1 ? one : dx));
            if (n > 1) assert_memory_equal(one, dx, sizeof dx);
        }
}

static void refusals(void **state)
{
    (void)state;
    refuses("pad x=f32:3x5 before=1x1 y=f32:4x7", "dimension 1 of y is 7, of the padded x 6");
    refuses("pad pass=bwd dx=f32:3x5 before=1x1 dy=f32:4", "dy has rank 1, the padded dx has 2");
    refuses("pad x=f32:3x5 before=1x1 y=f16:4x6", "y is f16, x is f32; they must agree");
    refuses("pad x=f32:3 before=-2 after=-2", "dimension 0 is -1");
    refuses("pad mode=edge x=f32:0 before=1", "mode=edge needs an element");
    refuses("pad x=f32:3 before=1x1", "before[1] is 1");
    refuses("gather x=f32:3x5", "index is needed");
    refuses("gather pass=bwd index=s32:3", "dx is needed");
    refuses("gather x=f32:3x5 index=f32:3", "index is f32, it must be s32, s64 or u32");
    refuses("gather x=f32:3x5 index=s32:3 y=f16:3x5", "y is f16, x is f32; they must agree");
    refuses("gather x=f32:3x5 index=s64:3 axis=2", "axis is 2");
    refuses("gather mode=elements x=f32:3x5 index=s64:4x5 axis=1", "dimension 0 of index is 4");
    refuses("gather mode=nd x=f32:3x5 index=s64:4x3", "index has 3 coordinates");
    refuses("scatter x=f32:3x5 index=s64:3x5 u=f32:3x4", "dimension 1 of u is 4");
    refuses("scatter x=f32:3x5 index=s64:3x5 u=f16:3x5", "u is f16, x is f32; they must agree");
    refuses("scatter x=f32:3x5 index=s64:3x5 y=f32:3x4", "dimension 1 of y is 4, of x 5");
    refuses("concat x0=f32:3x5 x1=f32:4x5 axis=1", "dimension 0 of x1 is 4");
    refuses("concat x0=f32:3x5 y=f32:3x6 axis=1", "y has 6 along axis 1");
    refuses("concat x0=f32:3 x1=f16:3", "x1 is f16, x0 is f32; they must agree");
    refuses("concat x1=f32:3", "x0 is needed");
    refuses("slice x=f32:5 y=f32:3 start=3", "3 from 3 on");
    refuses("slice pass=bwd dx=f32:5 dy=f16:3", "dy is f16, dx is f32; they must agree");
    refuses("slice x=f32:5 step=0", "step[0] 0");
    refuses("tile x=f32:5 y=f32:11 repeats=2", "dimension 0 of y is 11, of the repeated x 10");
    refuses("tile x=f32:5 y=f32:5x2 repeats=2", "y has rank 2, the repeated x has 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(padding), cmocka_unit_test(gathering), cmocka_unit_test(scattering),
        cmocka_unit_test(parts),   cmocka_unit_test(threads),   cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
