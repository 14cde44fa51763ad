/* SPDX-License-Identifier: Apache-2.0
 * Hosts with a floating-point environment of their own: results do not depend on it, nothing traps,
 * and the host finds it as it was, on all of OpenMP's threads. */
#define _GNU_SOURCE
#include "guest.h"

#include <fenv.h>
#include <omp.h>

#if defined(__x86_64__)
enum {
    PLAIN = 0x1f80,
    FLUSHING = 0x9fc0,
    DOWN = 0x3f80,
    TO_ZERO = 0x7f80,
    TRAPPING = 0x1f80 & ~0xe80
};

static void set(unsigned state)
{
    __builtin_ia32_ldmxcsr(state);
}

/* GCC's runtime leaves threads what a region set; LLVM's gives its caller back what it had, and the
 * others what that one has. */
static void set_all(unsigned state)
{
#pragma omp parallel
    set(state);
    set(state);
}

static bool all_have(unsigned state)
{
    bool all = true;
#pragma omp parallel reduction(&& : all)
    all = __builtin_ia32_stmxcsr() == state;
    return all;
}

static long long count;

/* Division by zero, overflow and invalid trap. Random numbers are finite, and so are results. */
static void in_every_state(mica_context *context, guest_case *c)
{
    static const unsigned states[] = {FLUSHING, DOWN, TO_ZERO, TRAPPING};
    static const mica_fill fills[] = {MICA_FILL_RANDOM, MICA_FILL_EXTREME};
    for (int f = 0; f < 2; f++) {
        set_all(PLAIN);
        guest_fill(c, fills[f]);
        if (guest_run(context, c) != MICA_OK)
            fail_msg("%s ; engine=%s: %s", c->line, c->engine, mica_error());
        guest_keep(c);
        for (size_t i = 0; i < sizeof states / sizeof *states; i++) {
            guest_fill(c, fills[f]);
            set_all(states[i]);
            mica_status status = guest_run(context, c);
            bool kept = all_have(states[i]);
            set_all(PLAIN);
            if (status != MICA_OK) fail_msg("%s ; engine=%s: %s", c->line, c->engine, mica_error());
            if (!kept)
                fail_msg("%s ; engine=%s: state 0x%x is lost", c->line, c->engine, states[i]);
            if (!guest_same(c))
                fail_msg("%s ; engine=%s: other results in state 0x%x", c->line, c->engine,
                         states[i]);
        }
    }
    count++;
}

static void every_operation_and_engine(void **state)
{
    (void)state;
    mica_context *context = guest_context("cpu");
    guest_each(context, 5, 2e5, NULL, in_every_state);
    mica_context_destroy(context);
    print_message("%lld plans\n", count);
    assert_true(count > 200);
}

/* A thread whose first act is to run a plan of another one's, beside a team that flushes. */
static void *run_elsewhere(void *user)
{
    guest_case *c = user;
    set_all(FLUSHING);
    set(PLAIN);
    mica_context *context = guest_context("cpu");
    guest_fill(c, MICA_FILL_EXTREME);
    assert_int_equal(guest_run(context, c), MICA_OK);
    mica_context_destroy(context);
    return NULL;
}

static void teams_that_differ_from_their_master(void **state)
{
    (void)state;
    mica_context *context = guest_context("cpu");
    pthread_t thread;
    guest_case c = {.line = "activation act=identity x=f32:1048576", .engine = "cpu"};
    assert_int_equal(mica_problem_from_text("activation act=leaky_relu x=f32:1048576", &c.problem),
                     MICA_OK);
    guest_open(&c);
    guest_fill(&c, MICA_FILL_EXTREME);
    assert_int_equal(guest_run(context, &c), MICA_OK);
    guest_keep(&c);
    pthread_create(&thread, NULL, run_elsewhere, &c);
    pthread_join(thread, NULL);
    assert_true(guest_same(&c));
    guest_close(&c);
    mica_problem_destroy(c.problem);
    mica_context_destroy(context);
}

int main(void)
{
    omp_set_dynamic(0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation_and_engine),
        cmocka_unit_test(teams_that_differ_from_their_master),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void)
{
    return 77; /* the states are x86's */
}
#endif
