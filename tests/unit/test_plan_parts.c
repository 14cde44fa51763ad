/* SPDX-License-Identifier: Apache-2.0
 * Plans have any number of children, kernels and bookings. */
#include "plan.h"
#include "base/memory.h"
#include "plan/context.h"

#include <stdlib.h>

/* ---- plans of many parts ---- */

enum { PARTS = 100 };

static mica_status build_parts(mica_plan *plan)
{
    mica_activation_desc d = {.act = MICA_ACT_RELU};
    mica_plan **children;
    MICA_TRY(mica_plan_state(plan, PARTS * sizeof *children, &children));
    for (int64_t i = 0; i < PARTS; i++) {
        size_t offset;
        d.x = mica_tensor_packed(MICA_F32, 1, (int64_t[]){i + 1});
        MICA_TRY(mica_book(plan, "part", (size_t)i + 1, &offset));
        MICA_TRY(
            mica_plan_child_create(plan, "activation", &d, sizeof d, NULL, &children[i], NULL));
    }
    return MICA_OK;
}

static mica_status run_parts(const mica_plan *plan, const mica_run *run)
{
    mica_plan *const *children = plan->state;
    for (int i = 0; i < PARTS; i++) {
        float *x = run->args[0], *y = run->args[1];
        size_t at = (size_t)i * PARTS;
        MICA_TRY(mica_plan_child_run(children[i], &(mica_run){.args = {x + at, y + at}}));
    }
    return MICA_OK;
}

static mica_status plan_parts(mica_plan **plan)
{
    static const mica_engine engine = {.name = "parts", .build = build_parts, .run = run_parts};
    const mica_op *op = mica_op_find("transform");
    const mica_candidate candidate = {.engine = &engine};
    mica_transform_desc d = {.x = mica_tensor_packed(MICA_F32, 1, (int64_t[]){PARTS * PARTS})};
    mica_transform_desc full;
    mica_why why;
    assert_int_equal(mica_op_resolve(op, &d, sizeof d, &full, &why), MICA_OK);
    return mica_plan_build(ctx, op, &full, &candidate, &(mica_options){0}, plan);
}

static void plans_have_any_number_of_parts(void **state)
{
    (void)state;
    static float x[PARTS * PARTS], y[PARTS * PARTS];
    mica_plan *plan;
    const char *name;
    size_t offset, bytes;
    assert_int_equal(plan_parts(&plan), MICA_OK);
    assert_int_equal(mica_plan_workspace(plan), PARTS * 256);
    for (int i = 0; i < PARTS; i++) {
        assert_int_equal(mica_plan_booking(plan, i, &name, &offset, &bytes), MICA_OK);
        assert_int_equal(offset, i * 256);
        assert_int_equal(bytes, i + 1);
    }
    assert_int_equal(mica_plan_booking(plan, PARTS, &name, &offset, &bytes), MICA_INVALID);
    for (int i = 0; i < PARTS * PARTS; i++) x[i] = (float)(i % 3);
    void *workspace = aligned_alloc(256, PARTS * 256);
    assert_int_equal(mica_plan_run(plan, &(mica_run){.args = {x, y}, .workspace = workspace}),
                     MICA_OK);
    for (int i = 0; i < PARTS; i++)
        for (int k = 0; k < PARTS; k++)
            assert_true(y[i * PARTS + k] == (k <= i ? x[i * PARTS + k] : 0));
    free(workspace);
    mica_plan_destroy(plan);
    /* Each allocation of that fails once. */
    for (long n = 1;; n++) {
        mica_fault_set(MICA_FAULT_ALLOC, n, false);
        mica_status status = plan_parts(&plan);
        bool passed = mica_fault_count(MICA_FAULT_ALLOC) >= n;
        mica_fault_set(MICA_FAULT_ALLOC, 0, false);
        if (status == MICA_OK) mica_plan_destroy(plan);
        if (!passed) break;
        if (status != MICA_OK) assert_int_equal(status, MICA_OUT_OF_MEMORY);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_have_any_number_of_parts),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
