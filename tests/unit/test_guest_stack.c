/* SPDX-License-Identifier: Apache-2.0
 * Threads with small stacks: planning and running keep within 64 KiB of the caller's. */
#define _GNU_SOURCE
#include "fake/help.h"
#include "guest.h"

/* Of the caller's 64 KiB the system takes its thread's book-keeping and static thread-local memory.
 */
enum { STACK = 64 << 10 };

typedef struct call {
    mica_context *context;
    guest_case *c;
    mica_status status;
    char error[256];
} call;

static void *plan_and_run(void *user)
{
    call *k = user;
    k->status = guest_run(k->context, k->c);
    if (k->status != MICA_OK) snprintf(k->error, sizeof k->error, "%.255s", mica_error());
    return NULL;
}

static void *only_plan(void *user)
{
    call *k = user;
    mica_plan *plan;
    k->status = guest_plan(k->context, k->c, &plan);
    if (k->status == MICA_OK) mica_plan_destroy(plan);
    return NULL;
}

static void on_small_stack(void *(*work)(void *), call *k)
{
    pthread_attr_t attr;
    pthread_t thread;
    size_t least = (size_t)sysconf(_SC_THREAD_STACK_MIN);
    assert_int_equal(pthread_attr_init(&attr), 0);
    assert_int_equal(pthread_attr_setstacksize(&attr, least > STACK ? least : STACK), 0);
    assert_int_equal(pthread_create(&thread, &attr, work, k), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    pthread_attr_destroy(&attr);
}

static long long count;

static void compare(mica_context *context, guest_case *c)
{
    call k = {.context = context, .c = c};
    if (guest_run(context, c) != MICA_OK)
        fail_msg("%s ; engine=%s: %s", c->line, c->engine, mica_error());
    guest_keep(c);
    guest_fill(c, MICA_FILL_RANDOM);
    on_small_stack(plan_and_run, &k);
    if (k.status != MICA_OK) fail_msg("%s ; engine=%s: %s", c->line, c->engine, k.error);
    if (!guest_same(c)) fail_msg("%s ; engine=%s: other results", c->line, c->engine);
    count++;
}

static void every_operation_and_engine(void **state)
{
    (void)state;
    mica_context *context = guest_context("cpu");
    guest_each(context, 24, 1e6, NULL, compare);
    mica_context_destroy(context);
    print_message("%lld plans\n", count);
    assert_true(count > 500);
}

static void plan(mica_context *context, guest_case *c)
{
    call k = {.context = context, .c = c};
    on_small_stack(only_plan, &k);
    count++;
}

/* With the stand-ins for driver and compiler: what stands before a GPU's work is ours. */
static void every_engine_of_a_gpu(void **state)
{
    (void)state;
    count = 0;
    mica_context *context = guest_context("sm_90a");
    guest_each(context, 3, 1e18, NULL, plan);
    mica_context_destroy(context);
    print_message("%lld plans\n", count);
    assert_true(count > 100);
}

int main(void)
{
    help_begin(__FILE__);
    help_fakes();
    unsetenv("MICA_KERNEL_DIR"); /* the kernels are mica's own */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation_and_engine),
        cmocka_unit_test(every_engine_of_a_gpu),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    help_end();
    return failed;
}
