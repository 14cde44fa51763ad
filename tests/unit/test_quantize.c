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

static void refusals(void **state)
{
    (void)state;
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
        cmocka_unit_test(shapes),
        cmocka_unit_test(halves),
        cmocka_unit_test(squares),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
