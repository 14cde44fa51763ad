/* SPDX-License-Identifier: Apache-2.0
 * Engines made of steps: the memory of what lives at different times, scalars, failures. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "mica/mica.h"
#include "base/memory.h"
#include "ops/compose/compose.h"
#include "plan/context.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 100, BYTES = N * sizeof(float) };

static mica_context *ctx;
static const char *recipe;

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

/* A recipe is a word of letters for each step: from, to, and flags. x and y are the run's, other
 * letters temporaries (capitals thrice as large); + takes the scalars, ? only with a beta, 2 is
 * made twice in the same place. */
static mica_memory memory_of(mica_compose *c, mica_memory *known, char letter)
{
    if (letter == 'x') return mica_compose_arg(MICA_TRANSFORM_X);
    if (letter == 'y') return mica_compose_arg(MICA_TRANSFORM_Y);
    mica_memory *m = &known[letter - 'A'];
    if (m->arg == 0) *m = mica_compose_temporary(c, letter < 'a' ? 3 * BYTES : BYTES);
    return *m;
}

static void list_steps(mica_compose *c)
{
    mica_memory known['z' - 'A' + 1] = {0};
    mica_transform_desc d = {.x = mica_tensor_packed(MICA_F32, 1, (int64_t[]){N})};
    for (const char *s = recipe; *s; s += strcspn(s, " "), s += *s == ' ') {
        mica_compose_step(c, "transform", &d, sizeof d, NULL);
        mica_compose_bind(c, MICA_TRANSFORM_X, memory_of(c, known, s[0]));
        mica_compose_bind(c, MICA_TRANSFORM_Y, memory_of(c, known, s[1]));
        if (s[2] == '+') mica_compose_scale(c);
        if (s[2] == '?') mica_compose_if_beta(c);
        if (s[2] == '2') mica_compose_repeat(c, 2);
        if (s[2] == '2') mica_compose_advance(c, MICA_TRANSFORM_X, 0);
    }
}

static mica_status build(mica_plan *plan)
{
    mica_compose c = {0};
    list_steps(&c);
    return mica_compose_build(plan, &c);
}

static mica_status plan_by(const mica_engine *engine, mica_plan **plan)
{
    const mica_op *op = mica_op_find("transform");
    const mica_candidate candidate = {.engine = engine};
    mica_transform_desc d = {.x = mica_tensor_packed(MICA_F32, 1, (int64_t[]){N})}, full;
    mica_why why;
    assert_int_equal(mica_op_resolve(op, &d, sizeof d, &full, &why), MICA_OK);
    return mica_plan_build(ctx, op, &full, &candidate, &(mica_options){0}, plan);
}

static mica_status plan_of(const char *steps, mica_plan **plan)
{
    static const mica_engine engine = {.name = "steps", .build = build, .run = mica_compose_run};
    recipe = steps;
    return plan_by(&engine, plan);
}

/* Runs it and gives its workspace; y = alpha x + beta old, of x = 1, 2, ... and old = 1000. */
static size_t check(const char *steps, const double *scalars, float alpha, float beta)
{
    static float x[N], y[N];
    mica_plan *plan;
    if (plan_of(steps, &plan) != MICA_OK) fail_msg("%s: %s", steps, mica_error());
    size_t bytes = mica_plan_workspace(plan);
    void *workspace = aligned_alloc(256, bytes + 256);
    memset(workspace, 0xff, bytes + 256);
    for (int i = 0; i < N; i++) x[i] = (float)i + 1, y[i] = 1000;
    const mica_run run = {.args = {x, y}, .workspace = workspace, .scalars = scalars};
    assert_int_equal(mica_plan_run(plan, &run), MICA_OK);
    for (int i = 0; i < N; i++)
        if (y[i] != alpha * x[i] + beta * 1000) fail_msg("%s: y[%d] is %g", steps, i, y[i]);
    for (size_t i = bytes; i < bytes + 256; i++)
        assert_int_equal(((unsigned char *)workspace)[i], 0xff);
    free(workspace);
    mica_plan_destroy(plan);
    return bytes;
}

static void memory_is_shared_by_lifetime(void **state)
{
    (void)state;
    enum { S = 512, L = 1280 };
    static const struct {
        const char *steps;
        size_t bytes;
    } rows[] = {
        {"xy", 0},
        {"xa ay", S},
        {"xa ab by", 2 * S},
        {"xa ab bc cd de ef fg gh hi ij jk kl lm mn no op pq qr rs st tu uv vw wy", 2 * S},
        {"xa xb xc xd ay by cy dy", 4 * S}, /* all at the fourth step */
        {"xa ab ac by cy ay", 3 * S},       /* a to the end */
        {"xa ay xb by xc cy", S},           /* one after the other */
        {"xA Ay xb by", L},
        {"xa ab bA Ay", L + S}, /* a beside b, below A */
        {"xA xb AB by By", 2 * L + S},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(check(rows[i].steps, NULL, 1, 0), rows[i].bytes);
}

/* What the steps' plans need lies beside what lives meanwhile. */
static void plans_have_their_workspace(void **state)
{
    (void)state;
    mica_plan *plan;
    mica_options compose = {.engine = "compose"};
    const char *copied = "mha q=f32:2x5x16 heads=2 qh=f32:2x2x5x8 kh=f32:2x2x5x8 vh=f32:2x2x5x8 "
                         "oh=f32:2x2x5x8";
    assert_int_equal(mica_plan_from_text(ctx, copied, &compose, &plan), MICA_OK);
    size_t most = 0;
    for (int i = 0; i < plan->child_count; i++)
        if (plan->children[i]->workspace > most) most = plan->children[i]->workspace;
    assert_true(most > 0);
    assert_in_range(mica_plan_workspace(plan), most, most + (4 * 2 * 5 * 16 * 4 + 4 * 255));
    mica_plan_destroy(plan);
}

static void scalars_go_where_they_are_wanted(void **state)
{
    (void)state;
    const double scaled[] = {3, 0}, added[] = {3, 2}, plain[] = {1, 0};
    check("xa ay+", scaled, 3, 0);
    check("xa+ ay", scaled, 3, 0);
    check("xa ay+", added, 3, 2);
    check("xa ay+", NULL, 1, 0);
    check("xa ay", added, 1, 0);
    /* Steps that are left out without a beta: y is not read then. */
    check("ya? xb by+", added, 3, 2);
    check("xy ay?", plain, 1, 0);
    check("xy xa ay?", added, 1, 0);
}

/* Halves change places by way of a temporary; of an argument that is bound twice the last holds. */
static mica_status build_swap(mica_plan *plan)
{
    const int64_t half = BYTES / 2;
    mica_compose c = {0};
    mica_memory t = mica_compose_temporary(&c, BYTES), x = mica_compose_arg(MICA_TRANSFORM_X);
    mica_memory y = mica_compose_arg(MICA_TRANSFORM_Y);
    mica_transform_desc d = {.x = mica_tensor_packed(MICA_F32, 1, (int64_t[]){N / 2})};
    mica_transform_desc all = {.x = mica_tensor_packed(MICA_F32, 1, (int64_t[]){N})};
    for (int i = 0; i < 2; i++) {
        x.at = i * half;
        mica_memory to = t;
        to.at = half - i * half;
        mica_compose_step(&c, "transform", &d, sizeof d, "cpu");
        mica_compose_bind(&c, MICA_TRANSFORM_X, x);
        mica_compose_bind(&c, MICA_TRANSFORM_Y, to);
    }
    mica_compose_step(&c, "transform", &all, sizeof all, NULL);
    mica_compose_pass(&c, 2);
    mica_compose_bind(&c, MICA_TRANSFORM_X, t);
    mica_compose_bind(&c, MICA_TRANSFORM_Y, y);
    return mica_compose_build(plan, &c);
}

static void offsets_and_bindings(void **state)
{
    (void)state;
    static const mica_engine engine = {
        .name = "swap", .build = build_swap, .run = mica_compose_run};
    static float x[N], y[N];
    static _Alignas(256) char workspace[512];
    mica_plan *plan;
    assert_int_equal(plan_by(&engine, &plan), MICA_OK);
    assert_int_equal(mica_plan_workspace(plan), sizeof workspace);
    for (int i = 0; i < N; i++) x[i] = (float)i;
    assert_int_equal(mica_plan_run(plan, &(mica_run){.args = {x, y}, .workspace = workspace}),
                     MICA_OK);
    for (int i = 0; i < N; i++) assert_true(y[i] == (float)((i + N / 2) % N));
    mica_plan_destroy(plan);
}

/* A step of one row of three numbers, run for each of 4 x 5 rows that lie apart: from x to a
 * temporary with the loops changed, then as it is to y. The innermost loop is said first. */
enum { ROW = 3, INNER = 5, OUTER = 4 };

static void add_rows(mica_compose *c, mica_memory from, mica_memory to, bool transposed)
{
    const int64_t row = ROW * sizeof(float);
    mica_transform_desc d = {.x = mica_tensor_packed(MICA_F32, 1, (int64_t[]){ROW})};
    mica_compose_step(c, "transform", &d, sizeof d, NULL);
    mica_compose_bind(c, MICA_TRANSFORM_X, from);
    mica_compose_bind(c, MICA_TRANSFORM_Y, to);
    mica_compose_repeat(c, INNER);
    mica_compose_advance(c, MICA_TRANSFORM_X, row);
    mica_compose_advance(c, MICA_TRANSFORM_Y, transposed ? OUTER * row : row);
    mica_compose_repeat(c, OUTER);
    mica_compose_advance(c, MICA_TRANSFORM_X, INNER * row);
    mica_compose_advance(c, MICA_TRANSFORM_Y, transposed ? row : INNER * row);
}

static mica_status build_rows(mica_plan *plan)
{
    mica_compose c = {0};
    mica_memory t = mica_compose_temporary(&c, ROW * INNER * OUTER * sizeof(float));
    mica_memory x = mica_compose_arg(MICA_TRANSFORM_X), y = mica_compose_arg(MICA_TRANSFORM_Y);
    mica_transform_desc d = {.x = mica_tensor_packed(MICA_F32, 1, (int64_t[]){ROW})};
    x.at = y.at = 2 * ROW * sizeof(float);
    add_rows(&c, x, t, true);
    add_rows(&c, t, y, false);
    mica_compose_step(&c, "transform", &d, sizeof d, NULL); /* nothing is left to move it */
    mica_compose_pass(&c, 2);
    mica_compose_step(&c, "transform", &d, sizeof d, NULL); /* never run */
    mica_compose_pass(&c, 2);
    mica_compose_bind(&c, MICA_TRANSFORM_Y, y);
    mica_compose_repeat(&c, 0);
    mica_compose_advance(&c, MICA_TRANSFORM_Y, sizeof(float));
    return mica_compose_build(plan, &c);
}

static void steps_are_repeated(void **state)
{
    (void)state;
    static const mica_engine engine = {
        .name = "rows", .build = build_rows, .run = mica_compose_run};
    static float x[N], y[N];
    static _Alignas(256) char workspace[256];
    mica_plan *plan;
    assert_int_equal(plan_by(&engine, &plan), MICA_OK);
    assert_int_equal(mica_plan_workspace(plan), sizeof workspace);
    assert_int_equal(plan->child_count, 4);
    for (int i = 0; i < N; i++) x[i] = (float)i + 1;
    /* Twice: a run leaves nothing behind. */
    for (int again = 0; again < 2; again++) {
        for (int i = 0; i < N; i++) y[i] = -1;
        assert_int_equal(mica_plan_run(plan, &(mica_run){.args = {x, y}, .workspace = workspace}),
                         MICA_OK);
        for (int i = 0; i < N; i++) {
            const int row = i / ROW - 2, from = row % OUTER * INNER + row / OUTER + 2;
            const bool inside = row >= 0 && row < INNER * OUTER;
            const float expected = i < ROW ? x[i] : inside ? x[from * ROW + i % ROW] : -1;
            if (y[i] != expected) fail_msg("y[%d] is %g, not %g", i, y[i], expected);
        }
    }
    mica_plan_destroy(plan);
}

/* The sum of the steps' times, that of a named engine where one is named. */
static void times_add_up(void **state)
{
    (void)state;
    mica_device_info device;
    assert_int_equal(mica_context_info(ctx, &device), MICA_OK);
    mica_transform_desc d = {.x = mica_tensor_packed(MICA_F32, 1, (int64_t[]){N})};
    mica_compose one = {0}, two = {0}, named = {0}, repeated = {0};
    mica_compose_step(&one, "transform", &d, sizeof d, NULL);
    mica_compose_step(&two, "transform", &d, sizeof d, NULL);
    mica_compose_step(&two, "transform", &d, sizeof d, NULL);
    mica_compose_step(&named, "transform", &d, sizeof d, "ref");
    mica_compose_step(&repeated, "transform", &d, sizeof d, NULL);
    mica_compose_repeat(&repeated, 4);
    mica_compose_repeat(&repeated, 2);
    double ms = mica_compose_predict(&one, &device);
    assert_true(ms > 0);
    assert_true(mica_compose_predict(&two, &device) == 2 * ms);
    assert_true(mica_compose_predict(&repeated, &device) == 8 * ms);
    assert_true(mica_compose_predict(&named, &device) > ms);
}

/* Every allocation fails once: a status, and nothing is left (sanitizers look). */
static void every_allocation_may_fail(void **state)
{
    (void)state;
    int failures = 0;
    for (long n = 1;; n++) {
        mica_plan *plan;
        mica_fault_set(MICA_FAULT_ALLOC, n, false);
        mica_status status = plan_of("xa ab bc2 cd de ef fg gy", &plan);
        long seen = mica_fault_count(MICA_FAULT_ALLOC);
        mica_fault_set(MICA_FAULT_ALLOC, 0, false);
        if (status == MICA_OK) mica_plan_destroy(plan);
        if (seen < n) break;
        if (status == MICA_OK) continue; /* the plan cache forgoes an entry */
        assert_int_equal(status, MICA_OUT_OF_MEMORY);
        failures++;
    }
    assert_true(failures > 20);
}

static mica_status build_too_much(mica_plan *plan)
{
    mica_compose c = {0};
    recipe = "xa ay";
    list_steps(&c);
    c.temporaries[0] = SIZE_MAX - 100;
    return mica_compose_build(plan, &c);
}

static void sizes_that_overflow_are_refused(void **state)
{
    (void)state;
    static const mica_engine engine = {.name = "steps", .build = build_too_much};
    mica_plan *plan;
    assert_int_equal(plan_by(&engine, &plan), MICA_UNSUPPORTED);
    assert_non_null(strstr(mica_error(), "overflows"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_shared_by_lifetime),
        cmocka_unit_test(plans_have_their_workspace),
        cmocka_unit_test(scalars_go_where_they_are_wanted),
        cmocka_unit_test(offsets_and_bindings),
        cmocka_unit_test(steps_are_repeated),
        cmocka_unit_test(times_add_up),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(sizes_that_overflow_are_refused),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
