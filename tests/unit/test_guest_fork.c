/* SPDX-License-Identifier: Apache-2.0
 * Processes that fork while other threads plan: the child plans and runs. */
#include "guest.h"

#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 128, PLANNERS = 3, SECONDS = 30 };

static char *lines[MOST];
static int line_count;
static mica_context *shared; /* so small a cache that threads are in it all the time */
static atomic_bool end;

static void collect(mica_context *context, guest_case *c)
{
    (void)context;
    if (line_count < MOST) lines[line_count++] = strdup(c->line);
}

static void *plan_all_the_time(void *user)
{
    int i = (int)(intptr_t)user;
    while (!atomic_load(&end)) {
        mica_plan *plan;
        if (mica_plan_from_text(shared, lines[i++ % line_count], NULL, &plan) == MICA_OK)
            mica_plan_destroy(plan);
    }
    return NULL;
}

/* One line by whatever engine is chosen; what is exact is what the engine `ref` gives. */
static bool runs(mica_context *context, const char *line)
{
    guest_case c = {.line = line};
    if (mica_problem_from_text(line, &c.problem) != MICA_OK) return false;
    guest_open(&c);
    guest_fill(&c, MICA_FILL_EXACT);
    snprintf(c.engine, sizeof c.engine, "ref");
    bool ok = guest_run(context, &c) == MICA_OK;
    guest_keep(&c);
    guest_fill(&c, MICA_FILL_EXACT);
    *c.engine = 0;
    ok = ok && guest_run(context, &c) == MICA_OK;
    if (!ok) fprintf(stderr, "%s: %s\n", line, mica_error());
    if (ok && mica_problem_exact(c.problem) && !guest_equal(&c)) {
        fprintf(stderr, "%s: other results\n", line);
        ok = false;
    }
    guest_close(&c);
    mica_problem_destroy(c.problem);
    return ok;
}

static int child(int turn)
{
    mica_context *own;
    alarm(SECONDS); /* a lock that nobody gives back */
    for (int i = 0; i < 4; i++)
        if (!runs(shared, lines[(5 * turn + i) % line_count])) return 1;
    if (mica_context_create("cpu", &own) != MICA_OK) return 2;
    for (int i = 0; i < 4; i++)
        if (!runs(own, lines[(5 * turn + i) % line_count])) return 3;
    mica_context_destroy(own);
    return 0;
}

static void children_plan_and_run(void **state)
{
    (void)state;
    pthread_t threads[PLANNERS];
    shared = guest_context("cpu");
    guest_each(shared, 3, 1e6, "ref", collect);
    assert_true(line_count > 20);
    mica_context_cache_limit(shared, 64 << 10);
    for (intptr_t i = 0; i < PLANNERS; i++)
        pthread_create(&threads[i], NULL, plan_all_the_time, (void *)(7 * i));
    const char *given = getenv("GUEST_TIMES");
    for (int i = 0; i < (given ? atoi(given) : 100); i++) {
        int status;
        pid_t pid = fork();
        if (pid == 0) _exit(child(i));
        waitpid(pid, &status, 0);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            fail_msg("fork %d: status 0x%x", i, (unsigned)status);
    }
    atomic_store(&end, true);
    for (int i = 0; i < PLANNERS; i++) pthread_join(threads[i], NULL);
    mica_context_destroy(shared);
}

/* oneDNN after a fork of a process that had opened it: refused with the rule, not a hang; and plans
 * that were made with it run by loops of ours. */
static void onednn_is_refused_in_a_child(void **state)
{
    (void)state;
    const char *line = "gemm a=f32:37x64 b=f32:64x40";
    mica_options named = {.engine = "onednn"};
    mica_plan *plan, *other;
    mica_context *context = guest_context("cpu");
    mica_status status = mica_plan_from_text(context, line, &named, &plan);
    if (status != MICA_OK) {
        print_message("no oneDNN: %s\n", mica_error());
        mica_context_destroy(context);
        skip();
    }
    guest_case c = {.line = line, .engine = "onednn"};
    assert_int_equal(mica_problem_from_text(line, &c.problem), MICA_OK);
    guest_open(&c);
    guest_fill(&c, MICA_FILL_EXACT);
    assert_int_equal(guest_run(context, &c), MICA_OK);
    guest_keep(&c);
    guest_fill(&c, MICA_FILL_EXACT);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(SECONDS);
        if (mica_plan_from_text(context, line, &named, &other) != MICA_FORKED_PROCESS) _exit(1);
        if (!strstr(mica_error(), "forked after oneDNN")) _exit(2);
        mica_run run = {0};
        memcpy(run.args, c.data, sizeof run.args);
        size_t bytes = (mica_plan_workspace(plan) + 255) / 256 * 256;
        if (bytes) run.workspace = aligned_alloc(256, bytes);
        if (mica_plan_run(plan, &run) != MICA_OK || !guest_equal(&c)) _exit(3);
        mica_plan_destroy(plan);
        mica_context_destroy(context);
        _exit(0);
    }
    int ended;
    waitpid(pid, &ended, 0);
    assert_true(WIFEXITED(ended));
    assert_int_equal(WEXITSTATUS(ended), 0);
    guest_close(&c);
    mica_problem_destroy(c.problem);
    mica_plan_destroy(plan);
    mica_context_destroy(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(children_plan_and_run),
        cmocka_unit_test(onednn_is_refused_in_a_child),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
