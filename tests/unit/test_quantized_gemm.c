/* SPDX-License-Identifier: Apache-2.0
 * quantized_gemm: bytes of codes and blocks, multiplied as gguf, bitsandbytes and PyTorch have it
 * (tests/judges/quantized_gemm.py); scales that are no numbers; shapes; refusals. */
#include "line.h"

enum { M = 2, N = 3, K = 512, ARGS = 6 };

static const struct judged {
    const char *line;
    double y[M * N], most[M * N];
} judged[] = {
#include "../judges/quantized_gemm.h"
};

/* splitmix64 (Steele, Lea, Flood 2014), as the judge has it. */
static uint64_t bits_of(uint64_t seed, uint64_t i)
{
    uint64_t z = seed + (i + 1) * 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

/* Seeds are the argument's place: x 1, w 2, scales 3, zeros 4. */
static void fill_bytes(uint64_t seed, int64_t n, bool every, uint8_t *to)
{
    for (int64_t i = 0; i < n; i++) {
        to[i] = (uint8_t)(bits_of(seed, (uint64_t)i) >> 56);
        if (i % 2 == 1 || i % 17 == 0 || every) to[i] &= 0xbf;
    }
}

static void fill_numbers(uint64_t seed, int64_t n, float *to)
{
    for (int64_t i = 0; i < n; i++) to[i] = (float)((int)(bits_of(seed, (uint64_t)i) % 17) - 8) / 8;
}

static void fill_argument(int arg, const mica_tensor *t, void *to)
{
    const int64_t n = mica_tensor_count(t);
    const bool floats = t->dtype == MICA_E4M3 || t->dtype == MICA_E5M2;
    if (arg == MICA_QUANTIZED_GEMM_SCALES)
        for (int64_t i = 0; i < n; i++)
            ((float *)to)[i] = 0.25f + (float)(bits_of(3, (uint64_t)i) % 16) / 16;
    else if (t->dtype == MICA_F32)
        fill_numbers(arg == MICA_QUANTIZED_GEMM_X ? 1 : 4, n, to);
    else
        fill_bytes(arg == MICA_QUANTIZED_GEMM_W ? 2 : 4, (n * mica_dtype_bits(t->dtype) + 7) / 8,
                   floats, to);
}

static void as_packages(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof judged / sizeof *judged; i++)
        for (int e = 0; e < 2; e++) {
            mica_problem *p;
            mica_plan *plan;
            mica_run run = {0};
            float y[M * N];
            if (mica_problem_from_text(judged[i].line, &p) != MICA_OK)
                fail_msg("%s: %s", judged[i].line, mica_error());
            mica_options options = {.engine = engines[e]};
            assert_int_equal(mica_plan_problem(context, p, &options, &plan), MICA_OK);
            mica_arg_info info;
            for (int a = 0; mica_problem_arg(p, a, &info) == MICA_OK; a++) {
                if (info.dir == MICA_UNUSED) continue;
                run.args[a] = malloc((size_t)(mica_tensor_count(&info.tensor) * 4));
                if (a != MICA_QUANTIZED_GEMM_Y) fill_argument(a, &info.tensor, run.args[a]);
            }
            assert_int_equal(mica_plan_workspace(plan), 0);
            assert_int_equal(mica_plan_run(plan, &run), MICA_OK);
            memcpy(y, run.args[MICA_QUANTIZED_GEMM_Y], sizeof y);
            for (int j = 0; j < M * N; j++)
                if (!(fabs((double)y[j] - judged[i].y[j]) <= 1e-6 * judged[i].most[j]))
                    fail_msg("%s, %s: [%d] is %.9g, not %.9g", judged[i].line, engines[e], j,
                             (double)y[j], judged[i].y[j]);
            for (int a = 0; a < ARGS; a++) free(run.args[a]);
            mica_plan_destroy(plan);
            mica_problem_destroy(p);
        }
}

/* Every format and type of codes is judged. */
static void all_judged(void **state)
{
    (void)state;
    int codes = 0, blocks = 0;
    for (size_t i = 0; i < sizeof judged / sizeof *judged; i++)
        (strstr(judged[i].line, "format=") ? &blocks : &codes)[0]++;
    assert_int_equal(blocks, MICA_BLOCK_FORMAT_FP4 + 1);
    assert_int_equal(codes, 7 + 4 + 1);
}

/* (3 - 1) 0.5 (2) - (5 - 1) 0.5 ... by hand, with alpha and bias; two groups of 2. */
static void by_hand(void **state)
{
    (void)state;
    double x[] = {1, 2, 3, 4}, w[] = {3, 5, 0, 7}, scales[] = {0.5, 2}, zeros[] = {1, 4},
           bias[] = {10}, y[1];
    for (int e = 0; e < 2; e++) {
        run_ok(engines[e], "quantized_gemm x=f32:1x4 w=u4:1x4 group=2 zeros=u4 bias=f32 alpha=2",
               (double *[]){x, w, y, scales, zeros, bias});
        assert_true(y[0] == 2 * (0.5 * (2 * 1 + 4 * 2) + 2 * (-4 * 3 + 3 * 4)) + 10);
        run_ok(engines[e], "quantized_gemm x=bf16:1x4 w=s8:1x4 scales=f32:1 y=f32",
               (double *[]){x, w, y, scales, NULL, NULL});
        assert_true(y[0] == 0.5 * (3 + 10 + 28));
        run_ok(engines[e], "quantized_gemm x=f32:1x0 w=s8:1x0 bias=f32",
               (double *[]){x, w, y, scales, NULL, bias});
        assert_true(y[0] == 10);
    }
}

static void scales_of_no_size(void **state)
{
    (void)state;
    const double bad[] = {INFINITY, NAN};
    double x[] = {1, 2}, w[] = {3, 5}, scales[1], y[1];
    for (int e = 0; e < 2; e++) {
        scales[0] = 0;
        run_ok(engines[e], "quantized_gemm x=f32:1x2 w=s8:1x2",
               (double *[]){x, w, y, scales, NULL, NULL});
        assert_true(y[0] == 0);
        for (int i = 0; i < 2; i++) {
            scales[0] = bad[i];
            run_ok(engines[e], "quantized_gemm x=f32:1x2 w=s8:1x2",
                   (double *[]){x, w, y, scales, NULL, NULL});
            const bool finite = isfinite(y[0]);
            assert_false(finite);
        }
    }
}

static void shapes(void **state)
{
    (void)state;
    static const char *const rows[][3] = {
        {"quantized_gemm x=bf16:5x100 w=u4:7x100 group=32", "2", "bf16:5x7"},
        {"quantized_gemm x=bf16:5x100 w=u4:7x100 group=32", "3", "f32:7x4"},
        {"quantized_gemm x=f16:5x100 w=s8:7x100 y=f32", "3", "f32:7x1"},
        {"quantized_gemm x=f16:5x100 w=u4:7x100 scales=bf16:7x5 zeros=u4", "4", "u4:7x5"},
        {"quantized_gemm format=nf4 x=f32:2x256 w=u8:5x128 group=128", "3", "f32:5x2"},
        {"quantized_gemm x=bf16:5x100 w=u4:7x100 bias=f32", "5", "f32:7"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[128];
        mica_problem *p;
        mica_arg_info info;
        if (mica_problem_from_text(rows[i][0], &p) != MICA_OK) fail_msg("%s", mica_error());
        assert_int_equal(mica_problem_arg(p, rows[i][1][0] - '0', &info), MICA_OK);
        mica_tensor_text(&info.tensor, text, sizeof text);
        assert_string_equal(text, rows[i][2]);
        mica_problem_destroy(p);
    }
}

static void refusals(void **state)
{
    (void)state;
    refuses("quantized_gemm x=f32:2x64", "w is needed");
    refuses("quantized_gemm x=f32:2x64 w=f32:3x64", "w is f32");
    refuses("quantized_gemm x=s8:2x64 w=s8:3x64", "x is s8");
    refuses("quantized_gemm x=f32:2x64 w=s8:3x63", "w has 63 columns, x has 64; both are K");
    refuses("quantized_gemm x=f32:2x3x64 w=s8:3x64", "x has rank 3, w 2");
    refuses("quantized_gemm x=f32:2x64 w=s8:3x64 scales=f32:3x33", "scales has 33 columns");
    refuses("quantized_gemm x=f32:2x64 w=s8:3x64 group=32 scales=f32:3x3", "scales");
    refuses("quantized_gemm x=f32:2x64 w=s8:3x64 group=0", "group");
    refuses("quantized_gemm x=f32:2x64 w=s8:3x64 scales=s8:1", "scales is s8");
    refuses("quantized_gemm x=f32:2x64 w=e4m3:3x64 zeros=f32:1", "zeros are for integers");
    refuses("quantized_gemm x=f32:2x64 w=s8:3x64 zeros=u8:1", "zeros is u8, it must be of w's");
    refuses("quantized_gemm x=f32:2x64 w=s8:3x64 bias=f32:2", "bias");
    refuses("quantized_gemm x=f32:2x64 w=s8:3x64 y=f32:2x4", "y");
    refuses("quantized_gemm format=q9_k x=f32:2x256 w=u8:3x144", "q9_k");
    refuses("quantized_gemm format=q4_k x=f32:2x200 w=u8:3x144",
            "K is 200, a block of q4_k is 256 elements: they must be whole");
    refuses("quantized_gemm format=q4_k x=f32:2x256 w=u8:3x143", "rows of w are 143 bytes");
    refuses("quantized_gemm format=q4_k x=f32:2x256 w=s8:3x144", "w is s8, blocks of q4_k");
    refuses("quantized_gemm format=q4_k x=f32:2x256 w=u8:3x144 group=128", "group is 128");
    refuses("quantized_gemm format=q4_k x=f32:2x256 w=u8:3x144 scales=f32:1", "hold theirs");
    refuses("quantized_gemm format=q4_k x=f32:2x256 w=u8:3x144 zeros=u8:1", "zeros are for codes");
    refuses("quantized_gemm format=nf4 x=f32:2x96 w=u8:3x48 group=48", "group is 48");
    refuses("quantized_gemm format=nf4 x=f32:2x64 w=u8:3x32 scales=f16:3x1", "scales is f16");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_packages), cmocka_unit_test(all_judged),
        cmocka_unit_test(by_hand),     cmocka_unit_test(scales_of_no_size),
        cmocka_unit_test(shapes),      cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
