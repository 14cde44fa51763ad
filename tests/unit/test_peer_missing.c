/* SPDX-License-Identifier: Apache-2.0
 * Peer engines where their libraries are not: a quiet refusal that says where was looked. */
#define _GNU_SOURCE
#include "mica/mica.h"
#include "../fake/help.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>

static mica_context *context;

static void assert_missing(const char *line, const char *engine, const char *path)
{
    mica_problem *problem;
    mica_verdict v = {0};
    mica_plan *plan;
    bool found = false;
    assert_int_equal(mica_problem_from_text(line, &problem), MICA_OK);
    for (int i = 0; mica_problem_verdict(context, problem, i, &v) == MICA_OK && !found; i++)
        if ((found = !strcmp(v.engine, engine))) break;
    assert_true(found);
    assert_true(v.peer);
    assert_int_equal(v.status, MICA_UNSUPPORTED);
    assert_non_null(strstr(v.reason, path));
    mica_options o = {.engine = engine, .nondeterministic = true};
    assert_int_equal(mica_plan_problem(context, problem, &o, &plan), MICA_UNSUPPORTED);
    assert_non_null(strstr(mica_error(), path));
    /* nor does it come in by itself */
    o = (mica_options){.mode = MICA_MODE_ESTIMATE};
    if (mica_plan_problem(context, problem, &o, &plan) == MICA_OK) {
        assert_null(strstr(mica_plan_engine(plan), "peer/"));
        mica_plan_destroy(plan);
    }
    mica_problem_destroy(problem);
}

static void a_missing_library_is_a_quiet_refusal(void **state)
{
    (void)state;
    assert_missing("conv x=f32:1x4x4x4 w=f32:4x4x3x3", "peer/cudnn", "/nowhere/libcudnn.so.9");
    assert_missing("gemm a=f32:4x4 b=f32:4x4", "peer/cublaslt",
                   "MICA_CUBLASLT=nowhere is not an absolute path");
}

int main(void)
{
    help_begin(__FILE__);
    help_fakes();
    setenv("MICA_CUDNN", "/nowhere/libcudnn.so.9", 1);
    setenv("MICA_CUBLASLT", "nowhere", 1);
    if (mica_context_create("cuda:0", &context) != MICA_OK) return 99;
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_missing_library_is_a_quiet_refusal)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    mica_context_destroy(context);
    help_end();
    return failed;
}
