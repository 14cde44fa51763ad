/* SPDX-License-Identifier: Apache-2.0
 * Hosts whose threads take signals all the time: plans and runs come to the same, and find and
 * leave handlers and masks as they are. */
#define _GNU_SOURCE
#include "guest.h"

#include <signal.h>
#include <stdatomic.h>
#include <sys/time.h>

static atomic_int taken; /* two threads may be in the handler at a time */
static long long count;

static void take(int number)
{
    (void)number;
    atomic_fetch_add_explicit(&taken, 1, memory_order_relaxed);
}

static void beat(int microseconds)
{
    struct itimerval every = {.it_interval = {.tv_usec = microseconds},
                              .it_value = {.tv_usec = microseconds}};
    assert_int_equal(setitimer(ITIMER_REAL, &every, NULL), 0);
}

static void run_while_signals_come(mica_context *context, guest_case *c)
{
    if (guest_run(context, c) != MICA_OK)
        fail_msg("%s ; engine=%s: %s", c->line, c->engine, mica_error());
    guest_keep(c);
    guest_fill(c, MICA_FILL_RANDOM);
    beat(200);
    mica_status status = guest_run(context, c);
    beat(0);
    if (status != MICA_OK) fail_msg("%s ; engine=%s: %s", c->line, c->engine, mica_error());
    if (!guest_same(c)) fail_msg("%s ; engine=%s: other results", c->line, c->engine);
    count++;
}

static void read_handlers(struct sigaction *handlers)
{
    for (int i = 1; i < 32; i++) (void)sigaction(i, NULL, &handlers[i]);
}

static void signals_are_the_hosts(void **state)
{
    (void)state;
    static struct sigaction before[32], after[32];
    sigset_t mask, mask_after;
    struct sigaction own = {.sa_handler = take}; /* calls are interrupted, not begun again */
    assert_int_equal(sigaction(SIGALRM, &own, NULL), 0);
    read_handlers(before);
    assert_int_equal(pthread_sigmask(SIG_SETMASK, NULL, &mask), 0);
    mica_context *context = guest_context("cpu");
    guest_each(context, 8, 1e6, NULL, run_while_signals_come);
    mica_context_destroy(context);
    read_handlers(after);
    assert_int_equal(pthread_sigmask(SIG_SETMASK, NULL, &mask_after), 0);
    for (int i = 1; i < 32; i++) {
        if (before[i].sa_handler != after[i].sa_handler)
            fail_msg("signal %d has another handler", i);
        assert_int_equal(sigismember(&mask, i), sigismember(&mask_after, i));
    }
    print_message("%lld plans, %d signals\n", count, (int)taken);
    assert_true(count > 200 && taken > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(signals_are_the_hosts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
