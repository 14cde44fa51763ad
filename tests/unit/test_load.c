/* SPDX-License-Identifier: Apache-2.0
 * Disturbed measurements: the verdict on given counters and times, and what the planner makes of a
 * machine whose CPUs are all busy. */
#define _GNU_SOURCE
#include "mica/mica.h"

#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

/* ---- the verdict ---- */

/* Two CPUs, a second, both used by two threads of this process. */
static const mica_load zero = {.cpus = 2}, quiet = {.seconds = 1,
                                                    .ran = 2,
                                                    .waited = 0.02,
                                                    .switches = 30,
                                                    .busy = 2.02,
                                                    .cpus = 2};
static const double steady[] = {1, 1.1, 1, 1.2, 1, 1.1, 1.3, 1, 1.1, 1.1};
enum { STEADY = sizeof steady / sizeof *steady };

/* "" if it counts as undisturbed. */
static const char *verdict(mica_load from, mica_load to, bool cuda)
{
    static char why[160];
    bool disturbed = mica_load_disturbed(&from, &to, cuda, steady, STEADY, why, sizeof why);
    assert_int_equal(disturbed, *why != 0);
    return why;
}

static void counters_judge(void **state)
{
    (void)state;
    mica_load now = quiet, from = zero;
    assert_string_equal(verdict(zero, quiet, false), "");
    now.waited = 0.15; /* 7 % */
    assert_string_equal(verdict(zero, now, false), "");
    now.waited = 0.3; /* 13 % */
    assert_string_equal(verdict(zero, now, false),
                        "its threads waited for a CPU in 13 % of their time, more than 10");
    assert_string_equal(verdict(zero, now, true), ""); /* a GPU's times */
    /* What stood on the counters before does not count. */
    from.waited = 0.2;
    assert_string_equal(verdict(from, now, false), "");
    /* Hardly anything ran: no share means anything. */
    now.ran = 0.001;
    now.waited = 0.01;
    now.busy = 0.02;
    assert_string_equal(verdict(zero, now, false), "");

    now = quiet;
    now.stolen = 0.5;
    assert_string_equal(verdict(zero, now, false),
                        "the hypervisor took 20 % of the CPU time, more than 10");
    /* One of ten threads that wait is this one's; a neighbour on the other CPU has 45 %. */
    now = (mica_load){.seconds = 1, .ran = 1, .busy = 1.9, .cpus = 2};
    assert_string_equal(verdict(zero, now, false),
                        "other programs had 45 % of the CPUs, more than 40");
    now.cpus = 64; /* of 64 CPUs that is next to nothing */
    assert_string_equal(verdict(zero, now, false), "");
}

/* Kernels that do not count waiting, or show no statistics at all. */
static void counters_that_are_missing(void **state)
{
    (void)state;
    mica_load from = zero, now = quiet;
    from.waited = now.waited = -1;
    assert_string_equal(verdict(from, now, false), "");
    now.switches = 300;
    assert_string_equal(verdict(from, now, false),
                        "its threads lost their CPU 150 times a second, more than 100");
    now.switches = 30;
    from.busy = now.busy = -1;
    assert_string_equal(verdict(from, now, false), "");
}

static void times_judge(void **state)
{
    (void)state;
    char why[160];
    /* In any order; one outlier in ten is nobody's fault, two are. */
    const double one[] = {1, 1, 90, 1, 1, 1, 1, 1, 1, 1}, two[] = {9, 1, 1, 1, 1, 1, 8, 1, 1, 1};
    const double wide[] = {1, 1, 1, 1, 1, 2.5, 2.5, 2.5, 2.5, 2.5}, few[] = {1, 1, 1, 9};
    assert_false(mica_load_disturbed(&zero, &quiet, false, one, 10, why, sizeof why));
    assert_true(mica_load_disturbed(&zero, &quiet, false, two, 10, why, sizeof why));
    assert_string_equal(why, "the 90th percentile is 8 times the 10th, more than 3");
    assert_false(mica_load_disturbed(&zero, &quiet, false, wide, 10, why, sizeof why));
    assert_true(mica_load_disturbed(&zero, &quiet, true, wide, 10, why, sizeof why));
    assert_string_equal(why, "the 90th percentile is 2.5 times the 10th, more than 2");
    assert_false(mica_load_disturbed(&zero, &quiet, false, few, 4, why, sizeof why));
    assert_false(mica_load_disturbed(&zero, &quiet, false, NULL, 0, why, sizeof why));
    assert_string_equal(why, "");
    /* Without room for the reason, and cut short. */
    assert_true(mica_load_disturbed(&zero, &quiet, false, two, 10, NULL, 0));
    assert_true(mica_load_disturbed(&zero, &quiet, false, two, 10, why, 4));
    assert_string_equal(why, "the");
}

/* ---- a busy machine ---- */

enum { PER_CPU = 1, MOST = PER_CPU * CPU_SETSIZE };
static pid_t spinners[MOST];
static int spinning;

/* PER_CPU programs on each CPU that this process may use. */
static int spin(void **state)
{
    (void)state;
    cpu_set_t allowed, one;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 1;
    for (size_t i = 0; i < MOST; i++) {
        if (!CPU_ISSET(i / PER_CPU, &allowed)) continue;
        pid_t child = fork();
        if (child < 0) return 1;
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            CPU_ZERO(&one);
            CPU_SET(i / PER_CPU, &one);
            if (sched_setaffinity(0, sizeof one, &one) != 0) _exit(1);
            for (volatile unsigned n = 0;; n++) continue;
        }
        spinners[spinning++] = child;
    }
    return 0;
}

static int stop(void **state)
{
    (void)state;
    while (spinning > 0) {
        kill(spinners[--spinning], SIGKILL);
        waitpid(spinners[spinning], NULL, 0);
    }
    return 0;
}

static void busy_cpus_are_noticed(void **state)
{
    (void)state;
    char why[160];
    mica_load from, to;
    mica_load_read(&from);
    do mica_load_read(&to);
    while (to.ran - from.ran < 0.2);
    assert_true(to.seconds > from.seconds && to.cpus > 0);
    assert_true(mica_load_disturbed(&from, &to, false, NULL, 0, why, sizeof why));
    print_message("%s\n", why);
}

static int lines_of(const char *path)
{
    FILE *f = fopen(path, "r");
    int lines = 0;
    for (int c; f && (c = fgetc(f)) != EOF;) lines += c == '\n';
    if (f) fclose(f);
    return lines;
}

/* Nothing is chosen from such a measurement and nothing recorded, unless the caller wants that. */
static void the_planner_falls_back(void **state)
{
    (void)state;
    const char *line = "gemm a=f32:384x384 b=f32:384x384";
    const mica_options measure = {.mode = MICA_MODE_MEASURE, .measure_ms = 300},
                       model = {.mode = MICA_MODE_MODEL};
    char path[] = "/tmp/mica-records-XXXXXX";
    close(mkstemp(path));
    mica_context *c;
    mica_plan *estimated, *plan;
    mica_device_info before, after;
    assert_int_equal(mica_context_create("cpu", &c), MICA_OK);
    assert_int_equal(mica_plan_from_text(c, line, &model, &estimated), MICA_OK);
    assert_string_equal(mica_plan_disturbed(estimated), "");
    assert_int_equal(mica_plan_from_text(c, line, &measure, &plan), MICA_OK);
    print_message("%s\n", mica_plan_disturbed(plan));
    assert_true(*mica_plan_disturbed(plan));
    assert_true(mica_plan_measured(plan) == 0);
    assert_string_equal(mica_plan_engine(plan), mica_plan_engine(estimated));
    assert_string_equal(mica_plan_config(plan), mica_plan_config(estimated));
    mica_plan_destroy(plan);
    mica_context_info(c, &before);
    assert_int_equal(mica_context_fit(c), MICA_DISTURBED);
    mica_context_info(c, &after);
    assert_memory_equal(&before, &after, sizeof after);
    assert_int_equal(mica_context_save_records(c, path), MICA_OK);
    assert_int_equal(lines_of(path), 0);
    /* The next one is not answered from the cache of plans. */
    assert_int_equal(mica_context_keep_disturbed(NULL, true), MICA_INVALID);
    assert_int_equal(mica_context_keep_disturbed(c, true), MICA_OK);
    assert_int_equal(mica_plan_from_text(c, line, &measure, &plan), MICA_OK);
    assert_string_equal(mica_plan_disturbed(plan), "");
    assert_true(mica_plan_measured(plan) > 0);
    mica_plan_destroy(plan);
    assert_int_equal(mica_context_save_records(c, path), MICA_OK);
    assert_int_equal(lines_of(path), 1);
    mica_plan_destroy(estimated);
    mica_context_destroy(c);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counters_judge),
        cmocka_unit_test(counters_that_are_missing),
        cmocka_unit_test(times_judge),
        cmocka_unit_test_setup_teardown(busy_cpus_are_noticed, spin, stop),
        cmocka_unit_test_setup_teardown(the_planner_falls_back, spin, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
