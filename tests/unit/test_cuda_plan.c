/* SPDX-License-Identifier: Apache-2.0
 * Plans with several kernels, on a driver and a compiler that keep books: the kernels compile side
 * by side, a run launches each, and where one does not compile nothing is left. */
#define _GNU_SOURCE
#include "mica/mica.h"
#include "plan/context.h"
#include "../fake/help.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>

#include <sched.h>

static const char line[] = "norm pass=bwd kind=batch x=f32:32x64x33x31 scale=f32:64";

static long compiles_at_once(void)
{
    fake_compiles_at_once_fn *most;
    help_find(help_nvrtc, "fake_compiles_at_once", &most);
    return most();
}

static void set_compile_ms(int ms)
{
    fake_compile_ms_fn *set;
    help_find(help_nvrtc, "fake_compile_ms", &set);
    set(ms);
}

static int kernels_of(const mica_plan *plan)
{
    mica_kernel_info info;
    int count = 0;
    while (mica_plan_kernel(plan, count, &info) == MICA_OK) {
        assert_string_equal(info.origin, "compiled");
        count++;
    }
    return count;
}

static void kernels_compile_side_by_side(void **state)
{
    (void)state;
    mica_context *context;
    mica_plan *plan;
    cpu_set_t cpus;
    assert_int_equal(sched_getaffinity(0, sizeof cpus, &cpus), 0);
    assert_int_equal(mica_context_create("cuda:0", &context), MICA_OK);
    set_compile_ms(200);
    long before = help_compiles();
    if (mica_plan_from_text(context, line, NULL, &plan) != MICA_OK) fail_msg("%s", mica_error());
    set_compile_ms(0);
    int kernels = kernels_of(plan);
    assert_true(kernels > 1);
    assert_int_equal(help_compiles() - before, kernels);
    assert_true(compiles_at_once() > 1 || CPU_COUNT(&cpus) == 1);
    mica_plan_destroy(plan);
    mica_context_destroy(context);
    assert_int_equal(help_books().modules, 0);
    assert_int_equal(help_programs(), 0);
}

static void one_that_fails_leaves_nothing(void **state)
{
    (void)state;
    for (long n = 1;; n++) {
        mica_context *context;
        mica_plan *plan = NULL;
        assert_int_equal(mica_context_create("cuda:0", &context), MICA_OK);
        help_fail("cuModuleLoadData", 200, n, false);
        mica_status status = mica_plan_from_text(context, line, NULL, &plan);
        help_fail("*", 0, 0, false);
        mica_plan_destroy(plan);
        mica_context_destroy(context);
        assert_int_equal(help_books().modules, 0);
        if (status == MICA_OK) {
            assert_true(n > 2);
            return;
        }
        assert_null(plan);
        assert_true(n < 20);
    }
}

/* Winograd's errors are larger than other engines': it would be the quickest here. */
static const char filtered[] = "conv x=f32:16x256x14x14:nhwc w=f32:256x256x3x3:nhwc pad=1x1";

/* ---- an engine of many kernels ---- */

enum { KERNELS = 30 };

static mica_status build_many(mica_plan *plan)
{
    mica_kernel **kernels;
    MICA_TRY(mica_plan_state(plan, KERNELS * sizeof *kernels, &kernels));
    for (int i = 0; i < KERNELS; i++) {
        char prologue[64];
        snprintf(prologue, sizeof prologue, "constexpr int NUMBER = %d;\n", i);
        mica_kernel_spec spec = {"ops/pool/pool_bwd_cuda.cu", "pool_bwd", prologue, 0};
        MICA_TRY(mica_plan_add_kernel(plan, &spec, &kernels[i]));
    }
    return MICA_OK;
}

static void plans_have_any_number_of_kernels(void **state)
{
    (void)state;
    static const mica_engine engine = {.name = "many", .cuda = true, .build = build_many};
    const mica_op *op = mica_op_find("transform");
    const mica_candidate candidate = {.engine = &engine};
    mica_transform_desc d = {.x = mica_tensor_packed(MICA_F32, 1, (int64_t[]){8})}, full;
    mica_context *context;
    mica_plan *plan;
    mica_why why;
    assert_int_equal(mica_context_create("cuda:0", &context), MICA_OK);
    assert_int_equal(mica_op_resolve(op, &d, sizeof d, &full, &why), MICA_OK);
    if (mica_plan_build(context, op, &full, &candidate, &(mica_options){0}, &plan) != MICA_OK)
        fail_msg("%s", mica_error());
    assert_int_equal(kernels_of(plan), KERNELS);
    mica_kernel *const *kernels = plan->state;
    for (int i = 0; i < KERNELS; i++) {
        mica_kernel_info info;
        char number[32];
        snprintf(number, sizeof number, "NUMBER = %d;", i);
        mica_kernel_describe(kernels[i], &info);
        assert_non_null(strstr(info.prologue, number));
    }
    mica_plan_destroy(plan);
    mica_context_destroy(context);
    assert_int_equal(help_books().modules, 0);
}

static void some_engines_are_only_taken_by_name(void **state)
{
    (void)state;
    mica_context *context;
    mica_problem *problem;
    mica_verdict v;
    mica_plan *plan;
    bool found = false;
    assert_int_equal(mica_context_create("cuda:0", &context), MICA_OK);
    assert_int_equal(mica_problem_from_text(filtered, &problem), MICA_OK);
    for (int i = 0; mica_problem_verdict(context, problem, i, &v) == MICA_OK; i++) {
        assert_int_equal(v.by_name, !strcmp(v.engine, "winograd") || !strcmp(v.engine, "fft"));
        found |= v.by_name && v.status == MICA_OK;
    }
    assert_true(found);
    if (mica_plan_from_text(context, filtered, NULL, &plan) != MICA_OK)
        fail_msg("%s", mica_error());
    assert_string_not_equal(mica_plan_engine(plan), "winograd");
    double other = mica_plan_predicted(plan);
    mica_plan_destroy(plan);
    mica_options named = {.engine = "winograd"};
    if (mica_plan_from_text(context, filtered, &named, &plan) != MICA_OK)
        fail_msg("%s", mica_error());
    assert_true(mica_plan_predicted(plan) < other);
    mica_contract contract;
    assert_int_equal(mica_plan_contract(plan, &contract, NULL), MICA_OK);
    assert_true(contract.amplify > 1);
    mica_plan_destroy(plan);
    mica_problem_destroy(problem);
    mica_context_destroy(context);
}

static void chunks_keep_to_a_limit(void **state)
{
    (void)state;
    mica_context *context;
    mica_plan *plan;
    mica_options o = {.engine = "winograd"};
    assert_int_equal(mica_context_create("cuda:0", &context), MICA_OK);
    assert_int_equal(mica_plan_from_text(context, filtered, &o, &plan), MICA_OK);
    o.workspace_limit = (int64_t)mica_plan_workspace(plan) / 2;
    mica_plan_destroy(plan);
    assert_int_equal(mica_plan_from_text(context, filtered, &o, &plan), MICA_OK);
    assert_true((int64_t)mica_plan_workspace(plan) <= o.workspace_limit);
    assert_string_not_equal(strrchr(mica_plan_config(plan), '='), "=1");
    mica_plan_destroy(plan);
    o.workspace_limit = MICA_NO_WORKSPACE;
    assert_int_equal(mica_plan_from_text(context, filtered, &o, &plan), MICA_UNSUPPORTED);
    mica_context_destroy(context);
}

/* A device of that name chooses what data/records.txt says, and measures where it is asked to. */
static void shipped_records_choose(void **state)
{
    (void)state;
    mica_context *h200, *other;
    FILE *f = fopen("data/records.txt", "r");
    assert_non_null(f);
    setenv("FAKE_NAME", "NVIDIA H200", 1);
    assert_int_equal(mica_context_create("cuda:0", &h200), MICA_OK);
    unsetenv("FAKE_NAME");
    assert_int_equal(mica_context_create("cuda:0", &other), MICA_OK);
    char row[1024], problem[512], engine[32], config[256];
    mica_options recorded = {.mode = MICA_MODE_RECORDED};
    int rows = 0;
    while (fgets(row, sizeof row, f)) {
        mica_plan *plan;
        *config = 0; /* engines without knobs have none */
        if (*row == '#' || !strstr(row, "| NVIDIA H200 |")) continue;
        if (sscanf(row, "%511[^|]| NVIDIA H200 | %31s | %255[^|]|", problem, engine, config) < 2)
            fail_msg("%s", row);
        while (*config && config[strlen(config) - 1] == ' ') config[strlen(config) - 1] = 0;
        if (mica_plan_from_text(h200, problem, &recorded, &plan) != MICA_OK)
            fail_msg("%s: %s", problem, mica_error());
        assert_string_equal(mica_plan_engine(plan), engine);
        assert_string_equal(mica_plan_config(plan), config);
        assert_true(mica_plan_measured(plan) > 0);
        mica_plan_destroy(plan);
        assert_int_equal(mica_plan_from_text(other, problem, &recorded, &plan), MICA_NOT_FOUND);
        rows++;
    }
    fclose(f);
    assert_true(rows > 0);
    mica_context_destroy(h200);
    mica_context_destroy(other);
}

int main(void)
{
    help_begin(__FILE__);
    help_fakes();
    unsetenv("MICA_KERNEL_DIR"); /* the kernels are mica's own */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_compile_side_by_side),
        cmocka_unit_test(one_that_fails_leaves_nothing),
        cmocka_unit_test(plans_have_any_number_of_kernels),
        cmocka_unit_test(some_engines_are_only_taken_by_name),
        cmocka_unit_test(chunks_keep_to_a_limit),
        cmocka_unit_test(shipped_records_choose),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    help_end();
    return failed;
}
