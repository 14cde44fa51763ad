/* SPDX-License-Identifier: Apache-2.0
 * integer_gemm: ONNX's own example of MatMulInteger, a correction by azp as cutlass_scaled_mm_azp
 * states it, results in bytes at halves and past the ends, sums past 2^31 on the way; refusals. */
#include "line.h"

#define VALUES(...) ((double *[MICA_MAX_ARGS]){__VA_ARGS__})

static const char *const ways[] = {"compose", "ref"};

static void run(const char *engine, const char *line, double *const *values)
{
    if (line_run(engine, line, values, NULL) != MICA_OK) fail_msg("%s: %s", line, mica_error());
}

/* test_matmulinteger of the onnx package. */
static void as_onnx(void **state)
{
    (void)state;
    double a[] = {11, 7, 3, 10, 6, 2, 9, 5, 1, 8, 4, 0}, b[] = {1, 4, 2, 5, 3, 6};
    double zero_a[] = {12}, zero_b[] = {0};
    const double want[] = {-38, -83, -44, -98, -50, -113, -56, -128};
    for (int e = 0; e < 2; e++) {
        double y[8];
        run(ways[e], "integer_gemm a=u8:4x3 b=u8:3x2 zero_a=u8:1 zero_b=u8:1",
            VALUES(a, b, y, zero_a, zero_b));
        assert_memory_equal(y, want, sizeof y);
    }
}

/* scale_a scale_b (a b - azp colsum(b)) + bias, azp of each token. */
static void with_azp(void **state)
{
    (void)state;
    enum { M = 3, K = 37, N = 5 };
    double a[M * K], b[K * N], azp[M] = {-128, 127, 5}, sums[N] = {0}, y[M * N], made[M * N];
    double scale_a[M] = {0.5, 0.25, 2}, scale_b[N] = {1, 0.125, 4, 2, 0.5}, bias[N];
    for (int i = 0; i < M * K; i++) a[i] = i * 71 % 256 - 128;
    for (int i = 0; i < K * N; i++) b[i] = i * 53 % 256 - 128, sums[i % N] += b[i];
    for (int n = 0; n < N; n++) bias[n] = n - 2;
    for (int e = 0; e < 2; e++) {
        run(ways[e],
            "integer_gemm a=s8:3x37 b=s8:37x5 y=f32 zero_a=s32:3 sums_b=s32:5 scale_a=f32:3 "
            "scale_b=f32:5 bias=f32",
            VALUES(a, b, y, azp, NULL, sums, scale_a, scale_b, bias));
        run(ways[e],
            "integer_gemm a=s8:3x37 b=s8:37x5 y=f32 zero_a=s32:3 scale_a=f32:3 scale_b=f32:5 "
            "bias=f32",
            VALUES(a, b, made, azp, NULL, NULL, scale_a, scale_b, bias));
        for (int i = 0; i < M * N; i++) {
            const int m = i / N, n = i % N;
            double sum = 0;
            for (int k = 0; k < K; k++) sum += a[m * K + k] * b[k * N + n];
            const double want = scale_a[m] * scale_b[n] * (sum - azp[m] * sums[n]) + bias[n];
            if (y[i] != want || made[i] != want)
                fail_msg("%s: %g and %g, not %g", ways[e], y[i], made[i], want);
        }
    }
}

/* Halves to even before the zero point; past the ends. */
static void to_bytes(void **state)
{
    (void)state;
    double a[] = {1, 3, 5, -3, 100, -100}, b[] = {1}, scale[] = {2}, zero[] = {3}, high[] = {200};
    const double want[] = {3, 5, 5, 1, 53, -47}, unsigned_want[] = {200, 202, 202, 198, 250, 150};
    for (int e = 0; e < 2; e++) {
        double y[6];
        run(ways[e], "integer_gemm a=s8:6x1 b=s8:1x1 y=s8 scale_y=f32 zero_y=s8",
            VALUES(a, b, y, NULL, NULL, NULL, NULL, NULL, NULL, scale, zero));
        assert_memory_equal(y, want, sizeof y);
        run(ways[e], "integer_gemm a=s8:6x1 b=s8:1x1 y=u8 scale_y=f32 zero_y=u8",
            VALUES(a, b, y, NULL, NULL, NULL, NULL, NULL, NULL, scale, high));
        assert_memory_equal(y, unsigned_want, sizeof y);
        b[0] = 100;
        run(ways[e], "integer_gemm a=s8:6x1 b=s8:1x1 y=s8", VALUES(a, b, y));
        assert_true(y[0] == 100 && y[1] == 127 && y[3] == -128);
        b[0] = 1;
    }
}

/* zero_a sums_b is past 2^31 where the result is not. */
static void wraps(void **state)
{
    (void)state;
    double a[] = {1, 2}, b[] = {1, 1}, zero[] = {1 << 30}, sums[] = {2}, y[1];
    const double want = 3 - 2147483648.0;
    for (int e = 0; e < 2; e++) {
        run(ways[e], "integer_gemm a=s8:1x2 b=s8:2x1 zero_a=s32:1 sums_b=s32",
            VALUES(a, b, y, zero, NULL, sums));
        assert_true(y[0] == want);
    }
}

/* The longest rows of which every product of codes fits s32, and one more. */
static void longest(void **state)
{
    enum { K = 65793 };
    static double a[K], b[K];
    double y[1], zero[] = {1};
    (void)state;
    for (int i = 0; i < K; i++) a[i] = 255, b[i] = -128;
    for (int e = 0; e < 2; e++) {
        run(ways[e], "integer_gemm a=u8:1x65793 b=s8:65793x1 zero_a=u8:1", VALUES(a, b, y, zero));
        assert_true(y[0] == -254.0 * 128 * K);
    }
    mica_problem *p;
    mica_plan *plan;
    const mica_options options = {.engine = "compose"};
    assert_int_equal(mica_problem_from_text("integer_gemm a=u8:1x65794 b=s8:65794x1", &p), MICA_OK);
    assert_int_equal(mica_plan_problem(context, p, &options, &plan), MICA_UNSUPPORTED);
    mica_problem_destroy(p);
    assert_non_null(strstr(mica_error(), "a has 65794 columns, sums of up to 65793 codes"));
}

static void refusals(void **state)
{
    (void)state;
    refuses("integer_gemm a=s8:3x4 b=s8:5x6", "4 columns, b has 5 rows");
    refuses("integer_gemm a=s8:3x4 b=s8:2x4x6", "b 3");
    refuses("integer_gemm a=s8:3x4 b=s8:4x6 zero_a=u8:1", "zero_a is u8");
    refuses("integer_gemm a=s8:3x4 b=s8:4x6 zero_a=s8:2", "zero_a");
    refuses("integer_gemm a=s8:3x4 b=s8:4x6 sums_b=s32", "zero_a");
    refuses("integer_gemm a=s8:3x4 b=s8:4x6 y=s32 scale_a=f32:1", "scale_a with a y of s32");
    refuses("integer_gemm a=s8:3x4 b=s8:4x6 y=f32 scale_y=f32", "scale_y is for");
    refuses("integer_gemm a=s8:3x4 b=s8:4x6 y=s8 zero_y=u8", "zero_y is u8");
    refuses("integer_gemm a=f32:3x4 b=s8:4x6", "a is f32");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_onnx), cmocka_unit_test(with_azp), cmocka_unit_test(to_bytes),
        cmocka_unit_test(wraps),   cmocka_unit_test(longest),  cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
