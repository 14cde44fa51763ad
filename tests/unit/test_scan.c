/* SPDX-License-Identifier: Apache-2.0
 * Scans before PyTorch (tests/judges/scan.py): values, positions and gradients with ties, zeros,
 * NaN and infinities; integers past 2^53 and their wrapping; long rows, which are cut into parts;
 * results on operands; refusals; equal bits for any number of threads. */
#include "line.h"

#define VALUES(...) ((double *[MICA_MAX_ARGS]){__VA_ARGS__})

enum { N = 12 };
static const struct judged {
    const char *kind;
    int segmented, exclusive, reverse, gradient;
    double x[N], flags[N], dy[N], y[N], index[N], dx[N];
} judged[] = {
#include "../judges/scan.h"
};

static void *copied(void *to, const double *from)
{
    return memcpy(to, from, N * sizeof *from);
}

static void before_pytorch(void **state)
{
    (void)state;
    const char *const axes[] = {"1x12 axis=1", "12x1 axis=0"};
    double x[N], flags[N], dy[N], y[N], index[N], dx[N];
    for (size_t i = 0; i < sizeof judged / sizeof *judged; i++)
        for (int e = 0; e < 2; e++)
            for (int a = 0; a < 2; a++) {
                const struct judged *j = &judged[i];
                const bool extreme = j->kind[0] == 'm';
                char line[320], shape[8] = "", with[40] = "", places[40] = "";
                memcpy(shape, axes[a], 4);
                if (j->segmented) snprintf(with, sizeof with, "flags=u8:%s", shape);
                if (extreme) snprintf(places, sizeof places, "index=s64:%s", shape);
                const int made = snprintf(line, sizeof line,
                                          "scan kind=%s x=f64:%s %s %s exclusive=%d reverse=%d",
                                          j->kind, axes[a], with, places, j->exclusive, j->reverse);
                assert_true(made < (int)sizeof line);
                run_ok(engines[e], line,
                       VALUES(copied(x, j->x), copied(flags, j->flags), y, extreme ? index : NULL));
                if (differences(y, j->y, N, 0, 1e-14)) fail_msg("%s: y", line);
                if (extreme && differences(index, j->index, N, 0, 0)) fail_msg("%s: index", line);
                if (!j->gradient) continue;
                const bool logs = j->kind[0] == 'l';
                snprintf(
                    line, sizeof line,
                    "scan pass=bwd kind=%s dy=f64:%s x=f64:%s %s%s %s %s exclusive=%d reverse=%d",
                    j->kind, axes[a], shape, logs ? "y=f64:" : "", logs ? shape : "", with, places,
                    j->exclusive, j->reverse);
                run_ok(engines[e], line,
                       VALUES(copied(x, j->x), copied(flags, j->flags), copied(y, j->y),
                              copied(index, j->index), copied(dy, j->dy), dx));
                if (differences(dx, j->dx, N, 1e-13, 1e-12)) fail_msg("%s: dx", line);
            }
}

/* Integers are whole in 64 bits, and wrap around in the type that they are stored in. */
static void integers(void **state)
{
    (void)state;
    const struct {
        const char *line;
        int64_t want[4];
    } rows[] = {
        {"scan x=s64:4", {INT64_MAX - 1, -3, INT64_MAX - 1, INT64_MAX}},
        {"scan kind=prod x=s64:4", {INT64_MAX - 1, INT64_MIN + 2, INT64_MIN + 2, INT64_MIN + 2}},
        {"scan kind=max x=s64:4", {INT64_MAX - 1, INT64_MAX, INT64_MAX, INT64_MAX}},
        {"scan kind=min x=s64:4", {INT64_MAX - 1, INT64_MAX - 1, INT64_MIN + 1, INT64_MIN + 1}},
        {"scan kind=max x=s64:4 exclusive=1", {INT64_MIN, INT64_MAX - 1, INT64_MAX, INT64_MAX}},
    };
    const int64_t x[] = {INT64_MAX - 1, INT64_MAX, INT64_MIN + 1, 1};
    for (int e = 0; e < 2; e++) {
        for (size_t l = 0; l < sizeof rows / sizeof *rows; l++) {
            mica_plan *plan;
            mica_options options = {.size = sizeof options, .engine = engines[e]};
            int64_t y[4] = {7, 7, 7, 7};
            assert_int_equal(mica_plan_from_text(context, rows[l].line, &options, &plan), MICA_OK);
            assert_int_equal(mica_plan_run(plan, &(mica_run){.args = {(void *)x, NULL, y}}),
                             MICA_OK);
            assert_memory_equal(y, rows[l].want, sizeof y);
            mica_plan_destroy(plan);
        }
        /* As torch.cumsum and torch.cumprod of int8 with dtype=int8 have it, and of int32. */
        double small[] = {100, 100, -3, 5}, y[4];
        run_ok(engines[e], "scan x=s8:4 y=s8:4", VALUES(small, NULL, y));
        assert_true(y[0] == 100 && y[1] == -56 && y[2] == -59 && y[3] == -54);
        run_ok(engines[e], "scan kind=prod x=s8:4 y=s8:4", VALUES(small, NULL, y));
        assert_true(y[0] == 100 && y[1] == 16 && y[2] == -48 && y[3] == 16);
        run_ok(engines[e], "scan kind=prod x=s32:4 y=u8:4", VALUES(small, NULL, y));
        assert_true(y[0] == 100 && y[1] == 16 && y[2] == 208 && y[3] == 16);
        /* A maximum that does not fit is the nearest. */
        double large[] = {-200, 100, 300, 5};
        run_ok(engines[e], "scan kind=max x=s32:4 y=s8:4", VALUES(large, NULL, y));
        assert_true(y[0] == -128 && y[1] == 100 && y[2] == 127 && y[3] == 127);
    }
}

/* Rows that are cut into parts, with segments and positions across them, against the plain loops.
 */
static void parts(void **state)
{
    (void)state;
    enum { LONG = 70000 };
    const char *const lines[] = {
        "scan kind=max x=f32:%s index=s64:%s flags=u8:%s axis=%d",
        "scan kind=min x=f32:%s index=s32:%s axis=%d reverse=1 exclusive=1",
        "scan kind=sum x=f64:%s flags=u8:%s axis=%d reverse=1",
        "scan kind=logsumexp x=f64:%s flags=u8:%s axis=%d exclusive=1",
        "scan kind=logsumexp x=f64:%s axis=%d reverse=1"};
    double *x = malloc(LONG * sizeof *x), *flags = calloc(LONG, sizeof *flags);
    double *got[2][2];
    for (int i = 0; i < 4; i++) got[i / 2][i % 2] = calloc(LONG, sizeof *x);
    wave(x, LONG, 2);
    for (int i = 0; i < LONG; i++) x[i] = rint(8 * x[i]) / 8;
    for (int i = 5; i < LONG; i += 9001) flags[i] = 1;
    for (size_t l = 0; l < sizeof lines / sizeof *lines; l++)
        for (int axis = 0; axis < 2; axis++) {
            const char *shape = axis ? "1x70000" : "7000x10";
            const bool flagged = strstr(lines[l], "flags"), index = strstr(lines[l], "index");
            char line[200];
            if (flagged && index)
                snprintf(line, sizeof line, lines[l], shape, shape, shape, axis);
            else if (flagged || index)
                snprintf(line, sizeof line, lines[l], shape, shape, axis);
            else
                snprintf(line, sizeof line, lines[l], shape, axis);
            for (int e = 0; e < 2; e++)
                run_ok(engines[e], line, VALUES(x, flags, got[e][0], index ? got[e][1] : NULL));
            assert_int_equal(differences(got[0][0], got[1][0], LONG, 1e-9, 1e-13), 0);
            if (index) assert_int_equal(differences(got[0][1], got[1][1], LONG, 0, 0), 0);
        }
    for (int i = 0; i < 4; i++) free(got[i / 2][i % 2]);
    free(x), free(flags);
}

static void in_place(void **state)
{
    (void)state;
    enum { COUNT = 300 * 40 };
    const char *const lines[] = {"scan x=f32:300x40 axis=0", "scan x=f32:300x40 axis=1 exclusive=1",
                                 "scan kind=max x=f32:300x40 axis=0 reverse=1"};
    double *x = malloc(COUNT * sizeof *x), *apart = malloc(COUNT * sizeof *x);
    double *onto = malloc(COUNT * sizeof *x);
    wave(x, COUNT, 1);
    for (int l = 0; l < 3; l++) {
        run_ok("cpu", lines[l], VALUES(x, NULL, apart));
        assert_int_equal(
            line_run("cpu", lines[l], VALUES(x, NULL, onto), (int[]){MICA_SCAN_Y, MICA_SCAN_X}),
            MICA_OK);
        assert_memory_equal(apart, onto, COUNT * sizeof *x);
    }
    free(x), free(apart), free(onto);
}

static void refusals(void **state)
{
    (void)state;
    refuses("scan", "x is needed");
    refuses("scan x=f32:3x4 axis=2", "axis is 2, x has rank 2");
    refuses("scan pass=bwd dy=f32:3x4 axis=-3", "axis is -3, dy has rank 2");
    refuses("scan x=f32:3x4 index=s64:3x4", "index is for max and min, this is sum");
    refuses("scan kind=max x=f32:3x4 index=u8:3x4", "index is u8, it must be s32 or s64");
    refuses("scan kind=max x=u8:3000000000 index=s32:3000000000", "3000000000 positions need s64");
    refuses("scan kind=logsumexp x=s32:3", "x is s32, logsumexp needs a floating-point type");
    refuses("scan x=f32:3 y=s32:3", "y is s32, sum of f32 must be f64, f32, f16 or bf16");
    refuses("scan x=s32:3 y=bool:3", "y is bool, sum of s32 must be s8, u8, s32, u32 or s64");
    refuses("scan x=f32:3 flags=f32:3", "flags is f32");
    refuses("scan x=f32:3x4 flags=u8:4x3", "dimension 0 of flags is 4");
    refuses("scan pass=bwd x=f32:3", "dy is needed");
    refuses("scan pass=bwd kind=prod dy=f32:3", "x is needed for bwd of prod");
    refuses("scan pass=bwd kind=min dy=f32:3", "index is needed for bwd of min");
    refuses("scan pass=bwd kind=logsumexp x=f32:3 dy=f32:3", "y is needed for bwd of logsumexp");
    refuses("scan pass=bwd kind=prod x=s32:3 dy=f32:3", "x is s32, what has a gradient is");
}

static void threads_do_not_show(void **state)
{
    (void)state;
    enum { LONG = 300000 };
    const char *const lines[] = {"scan x=f32:300000", "scan kind=prod x=f32:2x150000 axis=1",
                                 "scan kind=logsumexp x=f32:300000", "scan x=bf16:30000x10 axis=0",
                                 "scan x=f32:300x1000 axis=1"};
    double *x = malloc(LONG * sizeof *x), *few = malloc(LONG * sizeof *x);
    double *many = malloc(LONG * sizeof *x);
    wave(x, LONG, 3);
    int before = omp_get_max_threads();
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        memset(few, 0, LONG * sizeof *few), memset(many, 0, LONG * sizeof *many);
        omp_set_num_threads(1);
        run_ok("cpu", lines[i], VALUES(x, NULL, few));
        omp_set_num_threads(5);
        run_ok("cpu", lines[i], VALUES(x, NULL, many));
        assert_memory_equal(few, many, LONG * sizeof *few);
        assert_true(few[1] != 0 && isfinite(few[LONG - 1]));
    }
    omp_set_num_threads(before);
    free(x), free(few), free(many);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(before_pytorch), cmocka_unit_test(integers),
        cmocka_unit_test(parts),          cmocka_unit_test(in_place),
        cmocka_unit_test(refusals),       cmocka_unit_test(threads_do_not_show),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
