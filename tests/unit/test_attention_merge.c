/* SPDX-License-Identifier: Apache-2.0
 * Merging parts of attention: by hand, against attention over all keys, parts that saw nothing,
 * what descriptions are refused. */
#include "line.h"

enum { ROWS = 6, D = 5, DV = 7, NEAR = 9, FAR = 4, KEYS = NEAR + FAR };

/* Weights 1/4 and 3/4. */
static void two_parts_by_hand(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        double outs[] = {4, 8, 12, -4}, lses[] = {log(2), log(6)}, out[2], lse[1];
        double *values[MICA_MAX_ARGS] = {outs, lses, out, lse};
        run_ok(engines[e], "attention_merge outs=f64:2x2 lse=f64", values);
        const double want[] = {10, -1}, sum = log(8);
        assert_int_equal(differences(out, want, 2, 0, 1e-15), 0);
        assert_int_equal(differences(lse, &sum, 1, 0, 1e-15), 0);
    }
}

/* Attention over keys 0 to 8 and over the last four, each row of them behind the other's. */
static void parts_are_the_whole(void **state)
{
    (void)state;
    double q[ROWS * D], k[KEYS * D], v[KEYS * DV], out[ROWS * DV], lse[ROWS];
    double outs[2][ROWS * DV], lses[2][ROWS], merged[ROWS * DV], sum[ROWS];
    wave(q, ROWS * D, 1), wave(k, KEYS * D, 2), wave(v, KEYS * DV, 3);
    double *all[MICA_MAX_ARGS] = {q, k, v, out, lse};
    double *near[MICA_MAX_ARGS] = {q, k, v, outs[0], lses[0]};
    double *far[MICA_MAX_ARGS] = {q, k + NEAR * D, v + NEAR * DV, outs[1], lses[1]};
    run_ok("ref", "attention q=f64:1x1x6x5 k=f64:1x1x13x5 v=f64:1x1x13x7 lse=f64", all);
    run_ok("ref", "attention q=f64:1x1x6x5 k=f64:1x1x9x5 v=f64:1x1x9x7 lse=f64", near);
    run_ok("ref", "attention q=f64:1x1x6x5 k=f64:1x1x4x5 v=f64:1x1x4x7 lse=f64", far);
    for (int e = 0; e < 2; e++) {
        double *values[MICA_MAX_ARGS] = {outs[0], lses[0], merged, sum};
        run_ok(engines[e], "attention_merge outs=f64:2x6x7 lse=f64", values);
        assert_int_equal(differences(merged, out, ROWS * DV, 1e-14, 0), 0);
        assert_int_equal(differences(sum, lse, ROWS, 1e-14, 0), 0);
    }
}

static void parts_that_saw_nothing(void **state)
{
    (void)state;
    for (int e = 0; e < 2; e++) {
        double outs[] = {NAN, NAN, 1, 2, NAN, NAN, NAN, NAN}, out[4], lse[2];
        double lses[] = {-INFINITY, 3, -INFINITY, -INFINITY};
        double *values[MICA_MAX_ARGS] = {outs, lses, out, lse};
        run_ok(engines[e], "attention_merge outs=f32:2x2x2 lse=f32", values);
        const double want[] = {0, 0, 1, 2}, sums[] = {-INFINITY, 3};
        assert_int_equal(differences(out, want, 4, 0, 0), 0);
        assert_int_equal(differences(lse, sums, 2, 0, 0), 0);
        run_ok(engines[e], "attention_merge outs=f32:0x2x2 lse=f32", values);
        const double zero[4] = {0};
        assert_int_equal(differences(out, zero, 4, 0, 0), 0);
        assert_true(lse[0] == -INFINITY && lse[1] == -INFINITY);
        run_ok(engines[e], "attention_merge outs=f32:2x2x0 lse=f32", values);
        assert_int_equal(differences(lse, sums, 2, 0, 0), 0);
    }
}

/* Rows with lse (NaN, 0), (+inf, 0), (NaN, -inf) and (0, -2000): weights exp(lse - max) / sum, so
 * NaN and inf - inf make whole rows NaN, and a weight of exp(-2000) = 0 times NaN is NaN. The last
 * row's logarithm is 0. */
static void poison_is_not_hidden(void **state)
{
    (void)state;
    for (int e = 0; e < 4; e++) {
        double outs[] = {1, 2, 3, 4, 5, 6, 7, 8, 1, 1, 1, 1, 1, 1, NAN, 1}, out[8], lse[4];
        double lses[] = {NAN, INFINITY, NAN, 0, 0, 0, -INFINITY, -2000};
        double *values[MICA_MAX_ARGS] = {outs, lses, out, lse};
        run_ok(engines[e / 2],
               e & 1 ? "attention_merge outs=f32:2x4x2 lse=f32"
                     : "attention_merge outs=f64:2x4x2 lse=f64",
               values);
        const double want[] = {NAN, NAN, NAN, NAN, NAN, NAN, NAN, 8}, sums[] = {NAN, NAN, NAN, 0};
        assert_int_equal(differences(out, want, 8, 0, 0), 0);
        assert_int_equal(differences(lse, sums, 4, 0, 0), 0);
    }
}

static void descriptions_are_refused(void **state)
{
    (void)state;
    refuses("attention_merge", "outs has rank 0");
    refuses("attention_merge outs=f32:7", "outs has rank 1");
    refuses("attention_merge outs=e4m3:2x3x4", "outs is e4m3");
    refuses("attention_merge outs=f32:2x3x4 out=f64", "out is f64");
    refuses("attention_merge outs=f64:2x3x4 out=f32", "out is f32");
    refuses("attention_merge outs=f32:2x3x4 lses=f64", "lses is f64, it must be f32");
    refuses("attention_merge outs=bf16:2x3x4 lse=bf16", "lse is bf16, it must be f32");
    refuses("attention_merge outs=f32:2x3x4 lses=f32:3x3", "lses");
    refuses("attention_merge outs=f32:2x3x4 lse=f32:4", "lse");
    refuses("attention_merge outs=f32:2x3x4 out=f32:3x5", "out");
    refuses("attention_merge outs=f32:2x3x4 out=f32:3x4:0x1", "out");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_parts_by_hand),        cmocka_unit_test(parts_are_the_whole),
        cmocka_unit_test(parts_that_saw_nothing),   cmocka_unit_test(poison_is_not_hidden),
        cmocka_unit_test(descriptions_are_refused),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
