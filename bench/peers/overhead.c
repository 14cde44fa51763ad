/* SPDX-License-Identifier: Apache-2.0
 * What mica costs the host beside the driver: for each problem line, in turn, the raw
 * cuLaunchKernel of the plan's kernels with the plan's arguments, mica_plan_run of the same plan,
 * and planning it again from the plan cache. On the CPU there is no raw launch: the run of a tiny
 * problem is all cost. Needs the library's inside, hence linked statically, and built on demand:
 *
 *     cmake --build build --target bench_overhead
 *     build/bench_overhead cuda:0 COMMIT "activation act=relu x=f32:8" >> overhead.jsonl
 *
 * Prints JSON lines of set "overhead" with the fields of `mica bench --json`; "difference" is of
 * the runs and the raw launches of one round. */
#define _GNU_SOURCE
#include "mica/mica.h"
#include "cuda/driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 41, CALLS = 200 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- raw launches: the driver's entry in the library's table is replaced for one run ---- */

static int (*driver_launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            unsigned, void *, void **, void **);
static double raw_seconds;

/* Times the launch that the plan asks for, with its own arguments, again and again. */
static int launch_often(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                        unsigned bz, unsigned shared, void *stream, void **args, void **extra)
{
    double start = now();
    int code = 0;
    for (int i = 0; i < CALLS && code == 0; i++)
        code = driver_launch(f, gx, gy, gz, bx, by, bz, shared, stream, args, extra);
    raw_seconds += now() - start;
    return code;
}

static mica_status time_raw(const mica_plan *plan, const mica_run *run, double *seconds)
{
    raw_seconds = 0;
    driver_launch = mica_driver.cuLaunchKernel;
    mica_driver.cuLaunchKernel = launch_often;
    mica_status status = mica_plan_run(plan, run);
    mica_driver.cuLaunchKernel = driver_launch;
    *seconds = raw_seconds;
    return status;
}

/* ---- a line ---- */

typedef struct subject {
    mica_context *context;
    const mica_problem *problem;
    const char *line, *device, *commit, *driver;
    mica_plan *plan;
    mica_run run;
    void *memory[MICA_MAX_ARGS + 1];
} subject;

static mica_status time_runs(const subject *s, double *seconds)
{
    double start = now();
    mica_status status = MICA_OK;
    for (int i = 0; i < CALLS && status == MICA_OK; i++) status = mica_plan_run(s->plan, &s->run);
    *seconds = now() - start;
    return status;
}

static mica_status time_plans(const subject *s, double *seconds)
{
    double start = now();
    mica_status status = MICA_OK;
    for (int i = 0; i < CALLS && status == MICA_OK; i++) {
        mica_plan *plan;
        status = mica_plan_problem(s->context, s->problem, NULL, &plan);
        if (status == MICA_OK) mica_plan_destroy(plan);
    }
    *seconds = now() - start;
    return status;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Times are of one call, in milliseconds as everywhere in result files. */
static void print(const subject *s, const char *what, double *seconds)
{
    qsort(seconds, ROUNDS, sizeof *seconds, compare);
    double ms = 1e3 / CALLS;
    printf("{\"set\": \"overhead\", \"line\": \"%s\", \"engine\": \"%s\", \"ms\": %.9f, "
           "\"p10\": %.9f, \"p90\": %.9f, \"n\": %d, \"tflops\": null, \"gbps\": null, "
           "\"roofline\": null, \"commit\": \"%s\", \"device\": \"%s\", \"driver\": \"%s\", "
           "\"run\": \"%ld\"}\n",
           s->line, what, ms * seconds[ROUNDS / 2], ms * seconds[ROUNDS / 10],
           ms * seconds[ROUNDS - 1 - ROUNDS / 10], ROUNDS, s->commit, s->device, s->driver,
           (long)time(NULL));
}

static mica_status measure(const subject *s, bool cuda)
{
    double raw[ROUNDS], runs[ROUNDS], plans[ROUNDS], over[ROUNDS];
    mica_status status = MICA_OK;
    for (int r = -1; r < ROUNDS; r++) {
        int at = r < 0 ? 0 : r; /* the first round warms up */
        raw[at] = 0;
        if (cuda) status = time_raw(s->plan, &s->run, &raw[at]);
        /* Between timings, lest a full queue makes launches wait for the device. */
        if (status == MICA_OK) status = mica_synchronize(s->context, NULL);
        if (status == MICA_OK) status = time_runs(s, &runs[at]);
        if (status == MICA_OK) status = mica_synchronize(s->context, NULL);
        if (status == MICA_OK) status = time_plans(s, &plans[at]);
        if (status != MICA_OK) return status;
        over[at] = runs[at] - raw[at];
    }
    if (cuda) print(s, "peer/cuLaunchKernel", raw);
    print(s, "mica_plan_run", runs);
    if (cuda) print(s, "difference", over);
    print(s, "mica_plan_problem", plans);
    return MICA_OK;
}

static mica_status bind(subject *s)
{
    mica_arg_info info;
    mica_status status = MICA_OK;
    for (int i = 0; status == MICA_OK && mica_problem_arg(s->problem, i, &info) == MICA_OK; i++) {
        if (info.dir == MICA_UNUSED) continue;
        int64_t first, span = mica_tensor_span(&info.tensor, &first);
        status = mica_malloc(s->context, span, &s->memory[i]);
        if (status == MICA_OK) status = mica_memset(s->context, s->memory[i], 0, span, NULL);
        s->run.args[i] = (char *)s->memory[i] - first;
    }
    size_t bytes = mica_plan_workspace(s->plan);
    if (status == MICA_OK && bytes)
        status = mica_malloc(s->context, (int64_t)bytes, &s->memory[MICA_MAX_ARGS]);
    s->run.workspace = s->memory[MICA_MAX_ARGS];
    return status;
}

static mica_status measure_line(subject s, bool cuda)
{
    mica_problem *problem = NULL;
    mica_status status = mica_problem_from_text(s.line, &problem);
    s.problem = problem;
    if (status == MICA_OK) status = mica_plan_problem(s.context, problem, NULL, &s.plan);
    if (status == MICA_OK) s.run.scalars = mica_problem_scalars(problem);
    if (status == MICA_OK) status = bind(&s);
    if (status == MICA_OK) status = measure(&s, cuda);
    for (int i = 0; i <= MICA_MAX_ARGS; i++) mica_free(s.context, s.memory[i]);
    mica_plan_destroy(s.plan);
    if (problem) mica_problem_destroy(problem);
    return status;
}

int main(int argc, char **argv)
{
    static char tiny[] = "activation act=relu x=f32:8";
    char *usual[] = {tiny};
    if (argc < 3) {
        fprintf(stderr, "usage: %s DEVICE COMMIT [LINE...]\n", argv[0]);
        return 2;
    }
    char **lines = argc > 3 ? argv + 3 : usual;
    int count = argc > 3 ? argc - 3 : 1, code = 0;
    mica_context *context;
    if (mica_context_create(argv[1], &context) != MICA_OK) {
        fprintf(stderr, "%s\n", mica_error());
        return 1;
    }
    bool cuda = !strncmp(argv[1], "cuda", 4);
    mica_device_info info;
    char driver[32] = "";
    mica_context_info(context, &info);
    if (cuda) snprintf(driver, sizeof driver, "%d", mica_driver_version());
    for (int i = 0; i < count; i++) {
        subject s = {.context = context,
                     .line = lines[i],
                     .device = info.model,
                     .commit = argv[2],
                     .driver = driver};
        if (measure_line(s, cuda) == MICA_OK) continue;
        fprintf(stderr, "%s: %s\n", lines[i], mica_error());
        code = 1;
    }
    mica_context_destroy(context);
    return code;
}
