/* SPDX-License-Identifier: Apache-2.0
 * quantize_rows: values by hand, exactly the codes of quantize where what is in front is exact,
 * rows of zeros and of NaN; refusals. */
#include "line.h"

#define VALUES(...) ((double *[MICA_MAX_ARGS]){__VA_ARGS__})

static const char *const ways[] = {"compose", "ref"};

static void run(const char *engine, const char *line, double *const *values)
{
    if (line_run(engine, line, values, NULL) != MICA_OK) fail_msg("%s: %s", line, mica_error());
}

/* u of 3, 4: mean of squares 12.5. */
static void norms(void **state)
{
    (void)state;
    double x[] = {1, 2}, residual[] = {2, 2}, weight[] = {1, -2}, bias[] = {0, 1};
    for (int e = 0; e < 2; e++) {
        double y[2], scale[1] = {0.01}, sum[2];
        run(ways[e],
            "quantize_rows norm=rms x=f32:1x2 residual=f32 weight=f32 bias=f32 y=s8 "
            "scale=f32:1 eps=1e-12",
            VALUES(x, residual, weight, bias, y, scale, sum));
        assert_true(y[0] == 85 && y[1] == -126); /* 0.84853 and 1 - 2.26274 */
        assert_true(sum[0] == 3 && sum[1] == 4);
        weight[1] = -3;
        run(ways[e],
            "quantize_rows pass=amax norm=layer x=f32:1x2 residual=f32 weight=f32 y=s8 eps=1e-12",
            VALUES(x, residual, weight, NULL, y, scale, sum));
        assert_true(y[0] == -42 && y[1] == -127); /* -1 and -3 */
        assert_true(fabs(scale[0] * 127 - 3) < 1e-6);
        weight[1] = -2;
    }
}

/* relu of integers times integers is exact: so are scales and codes. */
static void as_quantize(void **state)
{
    (void)state;
    static const char *const types[] = {"e4m3", "e5m2", "s8", "u8"};
    double x[96], v[48], y[48], codes[48], scale[6], made[6];
    for (int i = 0; i < 96; i++) x[i] = i * 37 % 23 - 11;
    for (int r = 0; r < 2; r++)
        for (int c = 0; c < 24; c++) v[r * 24 + c] = fmax(x[r * 48 + c], 0) * x[r * 48 + 24 + c];
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (int e = 0; e < 2; e++) {
            char line[160];
            snprintf(line, sizeof line, "quantize pass=amax x=f32:2x24 y=%s block=1x8", types[t]);
            run("cpu", line, VALUES(v, codes, made));
            snprintf(line, sizeof line,
                     "quantize_rows pass=amax act=relu gated=1 x=f32:2x48 y=%s group=8", types[t]);
            run(ways[e], line, VALUES(x, NULL, NULL, NULL, y, scale));
            assert_memory_equal(scale, made, sizeof scale);
            assert_memory_equal(y, codes, sizeof y);
        }
}

static void edges(void **state)
{
    (void)state;
    double x[] = {0, 0, NAN, 1, INFINITY, 1};
    for (int e = 0; e < 2; e++) {
        double y[6], scale[3];
        run(ways[e], "quantize_rows pass=amax x=f32:3x2 y=e4m3",
            VALUES(x, NULL, NULL, NULL, y, scale));
        assert_true(scale[0] == 0 && y[0] == 0 && y[1] == 0);
        assert_true(isnan(scale[1]) && isnan(y[2]) && isnan(y[3]));
        assert_true(isinf(scale[2]) && isnan(y[4]) && y[5] == 0);
        run(ways[e], "quantize_rows pass=amax norm=rms x=f32:3x2 y=s8",
            VALUES(x, NULL, NULL, NULL, y, scale));
        assert_true(isnan(scale[1]) && y[2] == 0 && y[3] == 0);
    }
}

static void refusals(void **state)
{
    (void)state;
    static const char *const lines[][2] = {
        {"quantize_rows x=f32:4x7 y=s8 gated=1", "7 columns"},
        {"quantize_rows norm=rms act=silu x=f32:4x8 y=s8", "act with norm=rms"},
        {"quantize_rows norm=rms gated=1 x=f32:4x8 y=s8", "gated with norm=rms"},
        {"quantize_rows x=f32:4x8 y=s8 weight=f32", "weight with norm=none"},
        {"quantize_rows x=f32:4x8 y=s8 group=-3", "group is -3"},
        {"quantize_rows norm=rms x=f16:4x8 y=s8 weight=bf16", "weight is bf16"},
        {"quantize_rows norm=rms x=f32:4x8 y=s8 eps=-1", "eps is -1"},
        {"quantize_rows x=f32:4x8 y=s4", "y is s4"},
        {"quantize_rows pass=amax x=f32:4x8 y=s8 scale=f32:1", "scale"},
        {"quantize_rows norm=rms x=f32:4x8 y=s8 sum=f32:4x8", "residual"},
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) refuses(lines[i][0], lines[i][1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms),
        cmocka_unit_test(as_quantize),
        cmocka_unit_test(edges),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
