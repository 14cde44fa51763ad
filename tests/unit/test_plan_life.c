/* SPDX-License-Identifier: Apache-2.0
 * Plans are shared, outlive their context, and survive lack of memory, threads and forks. */
#include "plan.h"
#include "base/memory.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- cache ---- */

static void cache_is_shared_and_bounded(void **state)
{
    (void)state;
    mica_context *c;
    mica_stats stats;
    assert_int_equal(mica_context_create("cpu", &c), MICA_OK);
    mica_context_cache_limit(c, 64 << 10);
    for (int i = 0; i < 2000; i++) {
        char line[64];
        mica_plan *plan;
        snprintf(line, sizeof line, "activation x=f32:%d", i % 1000 + 1);
        assert_int_equal(mica_plan_from_text(c, line, NULL, &plan), MICA_OK);
        mica_plan_destroy(plan);
        mica_context_stats(c, &stats);
        assert_true(stats.plan_bytes <= 64 << 10);
    }
    assert_true(stats.plans > 2 && stats.plans < 1000);
    int64_t hits = stats.plan_hits;
    mica_plan *a, *b;
    mica_activation_desc d = {.act = MICA_ACT_RELU,
                              .x = {.dtype = MICA_F32, .rank = 1, .dims = {999999}}};
    assert_int_equal(mica_activation_plan(c, &d, NULL, &a), MICA_OK);
    assert_int_equal(mica_activation_plan(c, &d, NULL, &b), MICA_OK);
    assert_ptr_equal(a, b);
    mica_context_stats(c, &stats);
    assert_int_equal(stats.plan_hits, hits + 1);
    /* The determinism flag and the workspace limit are part of the key. */
    mica_plan *e;
    mica_options o = {.nondeterministic = true};
    assert_int_equal(mica_activation_plan(c, &d, &o, &e), MICA_OK);
    assert_ptr_not_equal(a, e);
    mica_plan_destroy(e);
    mica_plan_destroy(a);
    mica_plan_destroy(b);
    mica_context_destroy(c);
}

static void plans_outlive_their_context(void **state)
{
    (void)state;
    mica_context *c;
    mica_plan *plan;
    float x[4] = {-1, 1, -2, 2}, y[4];
    assert_int_equal(mica_context_create("cpu", &c), MICA_OK);
    assert_int_equal(mica_plan_from_text(c, "activation act=relu x=f32:4", NULL, &plan), MICA_OK);
    mica_context_destroy(c);
    assert_int_equal(mica_plan_run(plan, &(mica_run){.args = {x, y}}), MICA_OK);
    assert_true(y[0] == 0 && y[3] == 2);
    mica_plan_destroy(plan);
}

/* What a reference does not write of an argument keeps its old value, and has no error. */
static void a_reference_sets_all_magnitudes(void **state)
{
    (void)state;
    mica_problem *problem;
    float x[6] = {1, 2, 3, 4, 5, 6}, y[2] = {-7, 8};
    double values[6], magnitudes[6] = {9, 9, 9, 9, 9, 9};
    const double want[6] = {1, -7, 3, 8, 5, 6}, bounds[6] = {0, 7, 0, 8, 0, 0};
    const char *line = "slice pass=write x=f32:6 y=f32:2 start=1 step=2";
    assert_int_equal(mica_problem_from_text(line, &problem), MICA_OK);
    void *args[MICA_MAX_ARGS] = {x, y};
    double *results[MICA_MAX_ARGS] = {values}, *errors[MICA_MAX_ARGS] = {magnitudes};
    assert_int_equal(mica_problem_reference(problem, args, results, errors), MICA_OK);
    assert_memory_equal(values, want, sizeof want);
    assert_memory_equal(magnitudes, bounds, sizeof bounds);
    mica_problem_destroy(problem);
}

/* ---- faults: the n-th allocation fails, once and for ever ---- */

static mica_status whole_life(void)
{
    mica_context *c;
    mica_plan *plan;
    mica_problem *problem;
    float x[6] = {-1, 2, -3, 4, -5, 6}, y[6];
    mica_status status = mica_context_create("cpu", &c);
    if (status != MICA_OK) return status;
    status = mica_plan_from_text(c, "activation act=relu x=f32:6", NULL, &plan);
    if (status == MICA_OK) {
        status = mica_plan_run(plan, &(mica_run){.args = {x, y}});
        mica_plan_destroy(plan);
    }
    if (status == MICA_OK) status = mica_problem_from_text("activation x=f32:6", &problem);
    if (status == MICA_OK) {
        void *args[MICA_MAX_ARGS] = {x, y};
        status = mica_problem_reference(problem, args, NULL, NULL);
        mica_problem_destroy(problem);
    }
    mica_context_destroy(c);
    return status;
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    for (int persistent = 0; persistent < 2; persistent++) {
        int failures = 0;
        for (long n = 1;; n++) {
            mica_fault_set(MICA_FAULT_ALLOC, n, persistent);
            mica_status status = whole_life();
            long seen = mica_fault_count(MICA_FAULT_ALLOC);
            mica_fault_set(MICA_FAULT_ALLOC, 0, false);
            if (seen < n) {
                assert_int_equal(status, MICA_OK);
                break;
            }
            /* The cache may forgo an entry; anything else reports it. */
            if (status != MICA_OK) {
                assert_int_equal(status, MICA_OUT_OF_MEMORY);
                failures++;
            }
            assert_int_equal(whole_life(), MICA_OK);
        }
        assert_true(failures >= 4);
    }
}

/* ---- threads and fork ---- */

static void *hammer(void *seed)
{
    unsigned r = (unsigned)(uintptr_t)seed;
    for (int i = 0; i < 3000; i++) {
        char line[64];
        mica_plan *plan;
        float x[40], y[40];
        r = r * 1103515245u + 12345u;
        int n = 1 + (int)(r >> 16) % 40;
        for (int k = 0; k < n; k++) x[k] = (float)(k - 20);
        snprintf(line, sizeof line, "activation act=relu x=f32:%d", n);
        if (mica_plan_from_text(ctx, line, NULL, &plan) != MICA_OK) return (void *)1;
        if (mica_plan_run(plan, &(mica_run){.args = {x, y}}) != MICA_OK) return (void *)1;
        for (int k = 0; k < n; k++)
            if (y[k] != (x[k] > 0 ? x[k] : 0)) return (void *)1;
        mica_plan_destroy(plan);
        if (i % 500 == 0) mica_context_cache_limit(ctx, (int64_t)(r % 100000));
    }
    return NULL;
}

static void threads_share_a_context(void **state)
{
    (void)state;
    pthread_t threads[4];
    for (uintptr_t i = 0; i < 4; i++) pthread_create(&threads[i], NULL, hammer, (void *)(i + 1));
    for (int i = 0; i < 4; i++) {
        void *result;
        pthread_join(threads[i], &result);
        assert_null(result);
    }
    mica_context_cache_limit(ctx, 64 << 20);
}

static void forked_children_compute_on_the_cpu(void **state)
{
    (void)state;
    enum { N = 1 << 20 };
    float *x = calloc(N, sizeof *x), *y = calloc(N, sizeof *y);
    mica_plan *plan = plan_of("activation act=relu x=f32:1048576");
    mica_run run = {.args = {x, y}};
    assert_int_equal(mica_plan_run(plan, &run), MICA_OK); /* the pool exists now */
    pid_t child = fork();
    if (child == 0) {
        x[N - 1] = 3;
        alarm(20);
        _exit(mica_plan_run(plan, &run) == MICA_OK && y[N - 1] == 3 ? 0 : 1);
    }
    int status;
    waitpid(child, &status, 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    mica_plan_destroy(plan);
    free(x);
    free(y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cache_is_shared_and_bounded),
        cmocka_unit_test(plans_outlive_their_context),
        cmocka_unit_test(a_reference_sets_all_magnitudes),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(threads_share_a_context),
        cmocka_unit_test(forked_children_compute_on_the_cpu),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
