/* SPDX-License-Identifier: Apache-2.0
 * grouped_gemm: values worked out by hand, rows of no group, groups that are none, agreement with
 * gemm group by group, rules; and gemm with scales of blocks against scales of lines. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "mica/mica.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static mica_context *ctx;

static int open_context(void **state)
{
    (void)state;
    return mica_context_create("cpu", &ctx) != MICA_OK;
}

static int close_context(void **state)
{
    (void)state;
    mica_context_destroy(ctx);
    return 0;
}

static const char *const engines[] = {"cpu", "ref"};
enum { ENGINES = sizeof engines / sizeof *engines };

static void run(const char *line, const char *engine, const mica_run *r)
{
    mica_plan *plan;
    if (mica_plan_from_text(ctx, line, &(mica_options){.engine = engine}, &plan) != MICA_OK)
        fail_msg("%s: %s", line, mica_error());
    if (mica_plan_run(plan, r) != MICA_OK) fail_msg("%s: %s", line, mica_error());
    mica_plan_destroy(plan);
}

static void expect(const char *what, const float *got, const float *want, int count)
{
    for (int i = 0; i < count; i++)
        if (got[i] != want[i])
            fail_msg("%s: element %d is %g, not %g", what, i, (double)got[i], (double)want[i]);
}

/* ---- values ---- */

/* Rows 0 and 1 belong to group 0, row 2 to group 2, row 3 to none. */
static void runs_of_rows(void **state)
{
    (void)state;
    const float a[] = {1, 2, 3, 4, 5, 6, 7, 8}, b[] = {1, 10, 2, 20, 3, 30}, bias[] = {0, 5, -5};
    const int32_t ends[] = {2, 2, 3};
    for (int e = 0; e < ENGINES; e++) {
        float c[] = {-1, -1, -1, -1};
        run("grouped_gemm a=f32:4x2 b=f32:3x2x1 epilogue=bias", engines[e],
            &(mica_run){.args = {[MICA_GROUPED_GEMM_A] = (void *)(uintptr_t)a,
                                 [MICA_GROUPED_GEMM_B] = (void *)(uintptr_t)b,
                                 [MICA_GROUPED_GEMM_C] = c,
                                 [MICA_GROUPED_GEMM_BIAS] = (void *)(uintptr_t)bias,
                                 [MICA_GROUPED_GEMM_GROUPS] = (void *)(uintptr_t)ends}});
        expect(engines[e], c, (const float[]){21, 43, 195 - 5, -1}, 4);
    }
}

static void rooms(void **state)
{
    (void)state;
    const float a[] = {1, 2, 3, 4, 5, 6}, b[] = {10, 100};
    const int64_t rows[] = {1, 2};
    for (int e = 0; e < ENGINES; e++) {
        float c[] = {-1, -1, -1, -1, -1, -1};
        run("grouped_gemm a=f32:2x3x1 b=f32:2x1x1 groups=s64:2", engines[e],
            &(mica_run){.args = {[MICA_GROUPED_GEMM_A] = (void *)(uintptr_t)a,
                                 [MICA_GROUPED_GEMM_B] = (void *)(uintptr_t)b,
                                 [MICA_GROUPED_GEMM_C] = c,
                                 [MICA_GROUPED_GEMM_GROUPS] = (void *)(uintptr_t)rows}});
        expect(engines[e], c, (const float[]){10, -1, -1, 400, 500, -1}, 6);
    }
}

static void runs_of_terms(void **state)
{
    (void)state;
    const float a[] = {1, 2, 3, 4, 5}, b[] = {10, 100, 1000, 10000, 7};
    const int32_t ends[] = {1, 1, 4};
    for (int e = 0; e < ENGINES; e++) {
        float c[] = {-1, -1, -1};
        run("grouped_gemm pass=wgrad a=f32:1x5 b=f32:5x1 groups=s32:3", engines[e],
            &(mica_run){.args = {[MICA_GROUPED_GEMM_A] = (void *)(uintptr_t)a,
                                 [MICA_GROUPED_GEMM_B] = (void *)(uintptr_t)b,
                                 [MICA_GROUPED_GEMM_C] = c,
                                 [MICA_GROUPED_GEMM_GROUPS] = (void *)(uintptr_t)ends}});
        expect(engines[e], c, (const float[]){10, 0, 43200}, 3);
    }
}

/* Ends that fall, are negative or lie past the rows make groups that are empty or end there. */
static void groups_that_are_none(void **state)
{
    (void)state;
    const float a[] = {1, 2, 3, 4}, b[] = {1, 10, 100, 1000};
    const int32_t ends[] = {-7, 3, 1, 99};
    for (int e = 0; e < ENGINES; e++) {
        float c[] = {-1, -1, -1, -1};
        run("grouped_gemm a=f32:4x1 b=f32:4x1x1", engines[e],
            &(mica_run){.args = {[MICA_GROUPED_GEMM_A] = (void *)(uintptr_t)a,
                                 [MICA_GROUPED_GEMM_B] = (void *)(uintptr_t)b,
                                 [MICA_GROUPED_GEMM_C] = c,
                                 [MICA_GROUPED_GEMM_GROUPS] = (void *)(uintptr_t)ends}});
        expect(engines[e], c, (const float[]){10, 20, 30, 4000}, 4);
    }
}

/* One block of each: the scales of blocks are those of tensors. */
static void blocks_of_gemm(void **state)
{
    (void)state;
    enum { M = 2, K = 130, N = 3 };
    static uint8_t a[M * K], b[K * N];
    memset(a, 0x38, sizeof a); /* 1 in e4m3 */
    memset(b, 0x40, sizeof b); /* 2 */
    const float scale_a[] = {1, 2, 3, 4}, scale_b[] = {0.5f, 8};
    for (int e = 0; e < ENGINES; e++) {
        float c[M * N];
        run("gemm a=e4m3:2x130 b=e4m3:130x3 scale_a=f32:2x2 scale_b=f32:2x1", engines[e],
            &(mica_run){.args = {[MICA_GEMM_A] = a,
                                 [MICA_GEMM_B] = b,
                                 [MICA_GEMM_C] = c,
                                 [MICA_GEMM_SCALE_A] = (void *)(uintptr_t)scale_a,
                                 [MICA_GEMM_SCALE_B] = (void *)(uintptr_t)scale_b}});
        const float low = 256 * 0.5f + 4 * 2 * 8, high = 256 * 3 * 0.5f + 4 * 4 * 8;
        expect(engines[e], c, (const float[]){low, low, low, high, high, high}, M * N);
    }
}

/* ---- rules ---- */

static void refused(const char *line, const char *reason)
{
    mica_problem *p;
    assert_int_equal(mica_problem_from_text(line, &p), MICA_INVALID);
    if (!strstr(mica_error(), reason))
        fail_msg("%s\n  says %s\n  without %s", line, mica_error(), reason);
}

static void rules(void **state)
{
    (void)state;
    refused("grouped_gemm a=f32:4x2", "b is needed");
    refused("grouped_gemm a=f32:4x2 b=f32:2x3", "a has rank 2, b 2");
    refused("grouped_gemm a=f32:4x2 b=f32:3x5x3", "a has 2 columns, b has 5 rows");
    refused("grouped_gemm a=f32:4x4x2 b=f32:3x2x3", "a begins with 4, there are 3 groups");
    refused("grouped_gemm a=f32:4x2 b=f32:3x2x3 groups=s32:4", "there are 3 groups");
    refused("grouped_gemm a=f32:4x2 b=f32:3x2x3 groups=f32:3", "must be s32 or s64");
    refused("grouped_gemm a=f32:4x2 b=f32:3x2x3 c=f32:3x4x3", "c has rank 3");
    refused("grouped_gemm a=f32:4x2 b=f32:3x2x3 expected=-1", "must not be negative");
    refused("grouped_gemm a=f32:4x2 b=f32:3x2x3 epilogue=bias bias=f32:2x3", "there are 3 groups");
    refused("grouped_gemm a=f32:4x2 b=f32:3x2x3 epilogue=bias bias=f32:3x4",
            "of bias is 4, of the");
    refused("grouped_gemm a=f32:4x2 b=f32:3x2x3 epilogue=residual residual=f32:4x2", "of c 3");
    refused("grouped_gemm a=f32:4x2 b=f32:3x2x3 scale_b=f32:3", "for 8-bit inputs");
    refused("grouped_gemm a=e4m3:4x200 b=e4m3:3x200x5 scale_a=f32:4x2", "scale_b is none");
    refused("grouped_gemm a=e4m3:4x200 b=e4m3:3x200x5 scale_a=f32:4x2 scale_b=f32:3x2x2", "2 x 1");
    refused("grouped_gemm pass=wgrad a=f32:4x2 b=f32:2x3", "needs groups, or c");
    refused("grouped_gemm pass=wgrad a=f32:4x2 b=f32:1x2x3", "wgrad takes a as M x K");
    refused("gemm a=e4m3:2x4x200 b=e4m3:200x5 scale_a=f32:4x2 scale_b=f32:2x1", "grouped_gemm");
    refused("gemm a=s8:4x200 b=s8:200x5 scale_a=f32:4x2 scale_b=f32:2x1", "e4m3 and e5m2");
}

/* What inference finds is left out of the line. */
static void lines(void **state)
{
    (void)state;
    const char *const pairs[][2] = {
        {"grouped_gemm a=bf16:9x8 b=bf16:3x8x5 groups=s32:3 c=bf16:9x5",
         "grouped_gemm a=bf16:9x8 b=bf16:3x8x5"},
        {"grouped_gemm pass=wgrad a=bf16:4x9:t b=bf16:9x5 c=bf16:3x4x5",
         "grouped_gemm pass=wgrad a=bf16:4x9:t b=bf16:9x5 c=bf16:3x4x5"},
        {"grouped_gemm a=f32:2x9x8 b=f32:2x8x5 bias=f32:2x5 epilogue=bias expected=4",
         "grouped_gemm a=f32:2x9x8 b=f32:2x8x5 epilogue=bias expected=4"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        mica_problem *p;
        char text[300];
        if (mica_problem_from_text(pairs[i][0], &p) != MICA_OK) fail_msg("%s", mica_error());
        mica_problem_text(p, text, sizeof text);
        assert_string_equal(text, pairs[i][1]);
        mica_problem_destroy(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_of_rows),   cmocka_unit_test(rooms),
        cmocka_unit_test(runs_of_terms),  cmocka_unit_test(groups_that_are_none),
        cmocka_unit_test(blocks_of_gemm), cmocka_unit_test(rules),
        cmocka_unit_test(lines),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
