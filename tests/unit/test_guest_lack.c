/* SPDX-License-Identifier: Apache-2.0
 * Each allocation of a plan fails once, by every operation and engine: that is lack of memory,
 * never a refusal, and never another config in silence. */
#include "guest.h"

#include "base/memory.h"

static long long failures, plans;

static void fail_each(mica_context *context, guest_case *c)
{
    mica_plan *plan;
    char config[256];
    if (guest_plan(context, c, &plan) != MICA_OK)
        fail_msg("%s ; engine=%s: %s", c->line, c->engine, mica_error());
    snprintf(config, sizeof config, "%s", mica_plan_config(plan));
    mica_plan_destroy(plan);
    plans++;
    for (long n = 1;; n++) {
        mica_fault_set(MICA_FAULT_ALLOC, n, false);
        mica_status status = guest_plan(context, c, &plan);
        long seen = mica_fault_count(MICA_FAULT_ALLOC);
        mica_fault_set(MICA_FAULT_ALLOC, 0, false);
        failures += status == MICA_OUT_OF_MEMORY;
        if (status == MICA_OUT_OF_MEMORY) continue;
        if (status != MICA_OK)
            fail_msg("%s ; engine=%s: allocation %ld fails: %s", c->line, c->engine, n,
                     mica_error());
        if (strcmp(mica_plan_config(plan), config) != 0)
            fail_msg("%s ; engine=%s: allocation %ld fails: config %s, not %s", c->line, c->engine,
                     n, mica_plan_config(plan), config);
        mica_plan_destroy(plan);
        if (seen < n) return;
    }
}

static void every_allocation_of_every_engine(void **state)
{
    (void)state;
    mica_context *context = guest_context("cpu");
    guest_each(context, 2, 1e6, NULL, fail_each);
    mica_context_destroy(context);
    print_message("%lld plans, %lld failures\n", plans, failures);
    assert_true(plans > 100 && failures > plans);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_allocation_of_every_engine)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
