/* SPDX-License-Identifier: Apache-2.0
 * quantize and dequantize: blocks that follow from scales, halves of bytes that are nobody's,
 * scales of every geometry by hand, refusals. Values of every type are compared with PyTorch's and
 * ml_dtypes' by tests/judges/quantized.py, and in tests/extremes.txt. */
#include "line.h"

#define VALUES(...) ((double *[MICA_MAX_ARGS]){__VA_ARGS__})

static mica_tensor tensor_of(const char *line, int arg)
{
    mica_problem *p;
    mica_arg_info info;
    if (mica_problem_from_text(line, &p) != MICA_OK) fail_msg("%s: %s", line, mica_error());
    assert_int_equal(mica_problem_arg(p, arg, &info), MICA_OK);
    mica_problem_destroy(p);
    return info.tensor;
}

static void same_text(const char *line, const char *shorter)
{
    mica_problem *p;
    char text[512];
    if (mica_problem_from_text(line, &p) != MICA_OK) fail_msg("%s: %s", line, mica_error());
    mica_problem_text(p, text, sizeof text);
    assert_string_equal(text, shorter);
    mica_problem_destroy(p);
}

static void shapes(void **state)
{
    (void)state;
    char text[128];
    static const char *const rows[][2] = {
        {"quantize x=f32:33x100 y=s8 block=8x32", "f32:5x4"},
        {"quantize x=f32:33x100 y=s8 block=1", "f32:33x1"},
        {"quantize x=f32:33x100 y=s8 block=0x1 scale=bf16", "bf16:1x100"},
        {"quantize x=f32:33x100 y=s8", "f32:1x1"},
        {"quantize x=f32:33x100 y=s8 scale=f32:1", "f32:1"},
        {"quantize pass=amax x=f32:2x64 y=e2m1 block=1x16 scale=e4m3", "e4m3:2x4"},
        {"dequantize x=u4:3x0x5 block=1x1x2", "f32:3x0x3"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const mica_tensor t = tensor_of(rows[i][0], MICA_QUANTIZE_SCALE);
        mica_tensor_text(&t, text, sizeof text);
        assert_string_equal(text, rows[i][1]);
    }
    /* 100 columns in 4 blocks are 25 each, and nothing but the scale says so; whole ones are 0. */
    same_text("quantize x=f32:33x100 y=s8 block=33x25",
              "quantize x=f32:33x100 y=s8:33x100 scale=f32:1x4");
    same_text("quantize x=f32:33x100 y=s8 block=50x100", "quantize x=f32:33x100 y=s8:33x100");
    const mica_tensor zero =
        tensor_of("quantize pass=minmax x=f32:4x6 y=u4 block=1x3", MICA_QUANTIZE_ZERO);
    mica_tensor_text(&zero, text, sizeof text);
    assert_string_equal(text, "u4:4x2");
}

/* A row of three halves leaves the fourth as it was. */
static void halves(void **state)
{
    (void)state;
    float x[] = {1, 2, 3, 4, 5, 6}, scale = 1;
    for (int e = 0; e < 2; e++) {
        mica_quantize_desc d = {
            .x = mica_tensor_packed(MICA_F32, 2, (int64_t[]){2, 3}),
            .y = {.dtype = MICA_U4, .rank = 2, .dims = {2, 3}, .strides = {4, 1}}};
        mica_options options = {.engine = engines[e]};
        mica_plan *plan;
        uint8_t y[4] = {0xff, 0xff, 0xee, 0xee};
        assert_int_equal(mica_quantize_plan(context, &d, &options, &plan), MICA_OK);
        mica_run run = {.args = {x, y, &scale}};
        assert_int_equal(mica_plan_run(plan, &run), MICA_OK);
        assert_int_equal(y[0], 0x21);
        assert_int_equal(y[1], 0xf3);
        assert_int_equal(y[2], 0x54);
        assert_int_equal(y[3], 0xe6);
        mica_plan_destroy(plan);
    }
}

/* Squares of 2 by 2 of 3 x 3: by hand. */
static void squares(void **state)
{
    (void)state;
    double x[] = {127, 1, -254, 2, 3, 4, 508, -5, 12.7}, y[9], scale[4];
    static const double codes[] = {127, 1, -127, 2, 3, 2, 127, -1, 127};
    for (int e = 0; e < 2; e++) {
        const char *line = "quantize pass=amax x=f32:3x3 y=s8 block=2x2";
        assert_int_equal(line_run(engines[e], line, VALUES(x, y, scale), NULL), MICA_OK);
        assert_memory_equal(y, codes, sizeof y);
        assert_true(scale[0] == 1 && scale[1] == 2 && scale[2] == 4);
        assert_true(fabs(scale[3] - 0.1) < 1e-8);
    }
}

/* Many of one number by chance: of its two neighbours, in shares that make its mean. */
static void chances(void **state)
{
    (void)state;
    enum { N = 1 << 16 };
    static const struct chance {
        const char *type;
        double x, below, above;
    } rows[] = {{"s8", 0.3, 0, 1},        {"s8", -2.75, -3, -2},    {"u8", 254.5, 254, 255},
                {"s4", 6.9, 6, 7},        {"u4", 0.001, 0, 1},      {"e4m3", 17.7, 16, 18},
                {"e4m3", -0.003, -2, -1}, {"e5m2", 3.1, 3, 3.5},    {"e5m2", 4e-5, 3, 2},
                {"e2m1", 4.5, 4, 6},      {"e2m1", -0.2, -0.5, 0},  {"e4m3", 400, 384, 416},
                {"e4m3", 1000, 448, 448}, {"s8", -200, -128, -128}, {"e2m1", 1.5, 1.5, 1.5}};
    double *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y), scale = 1;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        struct chance c = rows[r];
        char line[128];
        /* of e4m3 below 2^-6, of e5m2 below 2^-14: numbers of least units */
        if (c.x == -0.003) c.below = -2 * 0x1p-9, c.above = -0x1p-9;
        if (c.x == 4e-5) c.below = 0x1p-15, c.above = 0x1p-15 + 0x1p-16;
        snprintf(line, sizeof line, "quantize rounding=stochastic x=f64:%d y=%s scale=f32:1", N,
                 c.type);
        for (int e = 0; e < 2; e++) {
            double rng[] = {9, 1};
            int64_t above = 0;
            for (int i = 0; i < N; i++) x[i] = c.x;
            assert_int_equal(
                line_run(engines[e], line, VALUES(x, y, &scale, NULL, NULL, rng), NULL), MICA_OK);
            for (int i = 0; i < N; i++) {
                if (y[i] != c.below && y[i] != c.above)
                    fail_msg("%s of %s: %.9g becomes %.9g", line, engines[e], c.x, y[i]);
                above += y[i] == c.above;
            }
            const double share = c.above > c.below ? (c.x - c.below) / (c.above - c.below) : 1;
            /* five standard deviations */
            if (fabs((double)above / N - share) > 5 * sqrt(share * (1 - share) / N))
                fail_msg("%s of %s: %.9g goes up %lld times of %d", line, engines[e], c.x,
                         (long long)above, N);
        }
    }
    free(x), free(y);
}

/* What an element becomes depends on its index: parts of a tensor are parts of its codes. */
static void parts(void **state)
{
    (void)state;
    enum { ROWS = 7, COLS = 33 };
    double x[ROWS * COLS], all[ROWS * COLS], part[ROWS * 9], scale = 1, other[ROWS * COLS];
    for (int i = 0; i < ROWS * COLS; i++) x[i] = i * 0.37 - 40;
    for (int e = 0; e < 2; e++) {
        double rng[] = {5, 2}, from[ROWS * 9];
        const char *whole = "quantize rounding=stochastic x=f32:7x33 y=s8 scale=f32:1";
        const char *some =
            "quantize rounding=stochastic x=f32:7x9 y=s8 scale=f32:1 first=11 steps=33x1";
        assert_int_equal(line_run(engines[e], whole, VALUES(x, all, &scale, NULL, NULL, rng), NULL),
                         MICA_OK);
        for (int i = 0; i < ROWS * 9; i++) from[i] = x[i / 9 * COLS + 11 + i % 9];
        assert_int_equal(
            line_run(engines[e], some, VALUES(from, part, &scale, NULL, NULL, rng), NULL), MICA_OK);
        for (int i = 0; i < ROWS * 9; i++) assert_true(part[i] == all[i / 9 * COLS + 11 + i % 9]);
        rng[1] = 3;
        assert_int_equal(
            line_run(engines[e], whole, VALUES(x, other, &scale, NULL, NULL, rng), NULL), MICA_OK);
        assert_memory_not_equal(other, all, sizeof all);
    }
}

static void refusals(void **state)
{
    (void)state;
    refuses("quantize x=f32:4x4 y=s8 rng=s64:2", "rng is for rounding=stochastic");
    refuses("quantize rounding=stochastic x=f32:4x4 y=s8 rng=s64:3", "rng has 1 dimensions and 3");
    refuses("quantize rounding=stochastic x=f32:4x4 y=s8 first=-1", "indices reach from -1");
    refuses("quantize rounding=down x=f32:4x4 y=s8", "down");
    refuses("quantize x=f32:4x4", "y is needed");
    refuses("quantize x=f32:4x4 y=f16", "y is f16");
    refuses("quantize x=s32:4x4 y=s8", "x is s32");
    refuses("quantize x=f32:4x4 y=s8 scale=s32:1", "scale is s32");
    refuses("quantize x=f32:4x4 y=s8 scale=f64:1", "scale is f64, x is not");
    refuses("quantize x=f32:4x4 y=s8 scale=f32:4", "scale has rank 1 and 4 elements");
    refuses("quantize x=f32:4x4 y=s8 scale=f32:3x1", "no length of blocks makes that many of 4");
    refuses("quantize x=f32:4x4 y=s8 scale=f32:5x1", "no length of blocks makes that many of 4");
    refuses("quantize x=f32:4x4 y=s8 scale=f32:2x1 block=1x1", "scale");
    refuses("quantize x=f32:4x4 y=s8 block=-1", "block[0] is -1");
    refuses("quantize x=f32:4x4 y=s8 block=1x1x2", "x has no such dimension");
    refuses("quantize x=f32:3x3x3x3x3 y=s8 block=2x2x2x2x2", "5 dimensions end in shorter blocks");
    refuses("quantize x=f32:4x4x4x4x4 y=s8 block=2x2x2x2x2", "blocks of more than 8 dimensions");
    refuses("quantize x=f32:4x4 y=s8 zero=u8", "zero is u8, y is s8");
    refuses("quantize x=f32:4x4 y=e4m3 zero=s8", "zero is s8, y is e4m3");
    refuses("quantize x=f32:4x4 y=s8 zero=s8:4x1", "zero");
    refuses("quantize pass=amax x=f32:4x4 y=s8 zero=s8", "zero is for pass given");
    refuses("quantize pass=minmax x=f32:4x4 y=e4m3", "y is e4m3, pass minmax makes");
    refuses("quantize pass=minmax x=f32:4x4 y=s8 global_scale=f32:1", "not for pass minmax");
    refuses("quantize x=f32:4x4 y=s8 global_scale=f32:2", "global_scale has 2 elements");
    refuses("quantize x=f32:4x4 y=s8 global_scale=f16:1", "global_scale is f16");
    refuses("quantize pass=amax x=f32:4x4 y=s8 scale=f32:4x4:0x1", "scale");
    refuses("dequantize x=f32:4x4", "x is f32");
    refuses("dequantize x=s8:4x4 y=s8", "y is s8");
    refuses("dequantize x=s8:4x4 scale=f64", "scale is f64, y is not");
    refuses("dequantize x=e4m3:4x4 zero=s8", "zero is s8, x is e4m3");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes),  cmocka_unit_test(halves), cmocka_unit_test(squares),
        cmocka_unit_test(chances), cmocka_unit_test(parts),  cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
