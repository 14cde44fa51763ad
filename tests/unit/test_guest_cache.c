/* SPDX-License-Identifier: Apache-2.0
 * The plan cache's bound is what is held: resident memory stays within half as much again, by every
 * family and engine of the CPU, and is given back. With GUEST_LINES=FILE, by hand, the shapes are
 * those of the file, each by each engine that takes it:
 *
 *     tests/random_problems build/mica 1 4000 > lines
 *     GLIBC_TUNABLES=glibc.malloc.tcache_count=0 GUEST_LINES=lines
 * build/tests/unit/test_guest_cache
 *
 * without what malloc keeps for each thread: a piece of each size, from pages all over the heap.
 * bench/results/epyc-2core/cache.txt is what that says. */
#define _GNU_SOURCE
#include "guest.h"

#include <malloc.h>
#include <unistd.h>

enum { LIMIT = 8 << 20, TIMES = 120 };

static long long plans;

/* shared: pages of files among them, which are code that has run. */
static int64_t resident(int64_t *shared)
{
    long long all = 0, pages = 0, of_files = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%lld %lld %lld", &all, &pages, &of_files), 3);
    fclose(f);
    if (shared) *shared = of_files * sysconf(_SC_PAGESIZE);
    return pages * sysconf(_SC_PAGESIZE);
}

/* Other limits of the workspace are other plans. */
static void plan_many(mica_context *context, const guest_case *c, int times)
{
    for (int i = 0; i < times; i++) {
        mica_plan *plan;
        mica_options options = {.engine = c->engine, .workspace_limit = (int64_t)1 << 40 | i};
        if (mica_plan_problem(context, c->problem, &options, &plan) != MICA_OK)
            fail_msg("%s ; engine=%s: %s", c->line, c->engine, mica_error());
        mica_plan_destroy(plan);
        plans++;
    }
}

static void warm(mica_context *context, guest_case *c)
{
    plan_many(context, c, 1);
}

static int64_t base, most;

static void fill_the_cache(mica_context *context, guest_case *c)
{
    mica_stats stats;
    plan_many(context, c, TIMES);
    assert_int_equal(mica_context_stats(context, &stats), MICA_OK);
    assert_true(stats.plan_bytes <= LIMIT);
    int64_t more = resident(NULL) - base;
    if (more > LIMIT * 3 / 2) { /* what malloc keeps of plans that are gone is not held */
        malloc_trim(0);
        more = resident(NULL) - base;
    }
    if (more > most) most = more;
    if (more > LIMIT * 3 / 2)
        fail_msg("%s ; engine=%s: the cache says %lld KB, resident are %lld more", c->line,
                 c->engine, (long long)stats.plan_bytes >> 10, (long long)more >> 10);
}

static long long shapes;

static void plan_once(mica_context *context, guest_case *c)
{
    mica_stats stats;
    plan_many(context, c, 1);
    if (plans % 64) return;
    assert_int_equal(mica_context_stats(context, &stats), MICA_OK);
    int64_t more = resident(NULL) - base;
    if (more > most) most = more;
    if (more > LIMIT * 3 / 2 && stats.plan_bytes <= LIMIT)
        fail_msg("%s ; engine=%s: plan %lld: the cache says %lld KB, resident are %lld more",
                 c->line, c->engine, plans, (long long)stats.plan_bytes >> 10,
                 (long long)more >> 10);
}

/* Each line of the file by each engine; those that make no problem are passed over. */
static void plan_lines(mica_context *context, const char *path)
{
    char line[4096];
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        mica_problem *problem;
        line[strcspn(line, "\n")] = 0;
        if (mica_problem_from_text(line, &problem) != MICA_OK) continue;
        shapes++;
        mica_verdict v;
        for (int i = 0; mica_problem_verdict(context, problem, i, &v) == MICA_OK; i++) {
            guest_case c = {.line = line, .problem = problem}; /* without memory of its own */
            snprintf(c.engine, sizeof c.engine, "%s", v.engine);
            if (v.status == MICA_OK) plan_once(context, &c);
        }
        mica_problem_destroy(problem);
    }
    fclose(f);
}

static void the_bound_is_what_is_held(void **state)
{
    (void)state;
    mica_context *context = guest_context("cpu");
    guest_each(context, 3, 1e9, NULL, warm);
    malloc_trim(0);
    int64_t shared, shared_then;
    base = resident(&shared);
    size_t used = mallinfo2().uordblks;
    assert_int_equal(mica_context_cache_limit(context, LIMIT), MICA_OK);
    const char *lines = getenv("GUEST_LINES");
    if (lines)
        plan_lines(context, lines);
    else
        guest_each(context, 3, 1e9, NULL, fill_the_cache);
    mica_stats stats;
    assert_int_equal(mica_context_stats(context, &stats), MICA_OK);
    print_message("%lld shapes, %lld plans; the cache has %lld KB, resident are %lld more, at most "
                  "%lld\n",
                  shapes, plans, (long long)stats.plan_bytes >> 10,
                  (long long)(resident(NULL) - base) >> 10, (long long)most >> 10);
    assert_true(stats.plan_bytes > LIMIT / 2);
    mica_context_destroy(context);
    malloc_trim(0);
    int64_t left = resident(&shared_then) - base;
    left -= shared_then - shared; /* code that ran for the first time stays */
    long long kept = (long long)mallinfo2().uordblks - (long long)used;
    print_message("left: %lld KB resident, %lld KB of malloc\n", (long long)left >> 10, kept >> 10);
    if (left > LIMIT / 8) fail_msg("%lld KB are not given back", (long long)left >> 10);
    if (kept > LIMIT / 64) fail_msg("%lld KB are not freed", kept >> 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_bound_is_what_is_held)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
