/* SPDX-License-Identifier: Apache-2.0
 * Any bytes as a problem line. Whatever is accepted
 *   - is written as a line that is accepted and written the same again,
 *   - has a plan on the CPU that needs no workspace (each operation promises one),
 *   - gets an answer from every engine of every GPU generation, refusals with a reason, and from at
 *     least one a yes.
 * Nothing is run: sizes are whatever the bytes say. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mica/mica.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const devices[] = {"cpu", "sm_80", "sm_89", "sm_90a"};
enum { DEVICES = sizeof devices / sizeof *devices };

static void require(bool truth, const char *what, const char *line)
{
    if (truth) return;
    fprintf(stderr, "fuzz_problem: %s\nREPRO: %s\nmica_error: %s\n", what, line, mica_error());
    abort();
}

/* NULL where the machine lacks what the device needs; said once. */
static mica_context *device(int index)
{
    static mica_context *contexts[DEVICES];
    static bool tried[DEVICES];
    if (!tried[index]) {
        tried[index] = true;
        mica_status status = mica_context_create(devices[index], &contexts[index]);
        if (status != MICA_OK) {
            fprintf(stderr, "fuzz_problem: goes on without %s: %s\n", devices[index], mica_error());
            contexts[index] = NULL;
        }
        require(index > 0 || status == MICA_OK, "there is always a CPU", "");
    }
    return contexts[index];
}

/* The line of a problem, to be freed. */
static char *line_of(const mica_problem *problem, const char *source)
{
    int length = mica_problem_text(problem, NULL, 0);
    require(length > 0, "a problem has a line", source);
    char *line = malloc((size_t)length + 1);
    if (!line) abort();
    require(mica_problem_text(problem, line, (size_t)length + 1) == length, "its length is stable",
            source);
    return line;
}

static void check_fixpoint(const mica_problem *problem, const char *source)
{
    char *line = line_of(problem, source);
    mica_problem *again = NULL;
    require(mica_problem_from_text(line, &again) == MICA_OK, "the written line is read", line);
    char *twice = line_of(again, line);
    if (strcmp(line, twice) != 0) fprintf(stderr, "first  %s\nsecond %s\n", line, twice);
    require(strcmp(line, twice) == 0, "the written line is written the same again", source);
    mica_problem_destroy(again);
    free(twice);
    free(line);
}

static void check_cpu_plan(const mica_problem *problem, const char *source)
{
    const mica_options none = {.workspace_limit = MICA_NO_WORKSPACE};
    mica_plan *plan = NULL;
    mica_status status = mica_plan_problem(device(0), problem, &none, &plan);
    if (status == MICA_OUT_OF_MEMORY) return;
    require(status == MICA_OK, "a sound problem has a plan without workspace", source);
    require(mica_plan_workspace(plan) == 0, "no workspace means none", source);
    require(mica_plan_describe(plan, NULL, 0) > 0, "a plan has a line", source);
    mica_plan_destroy(plan);
}

static void check_verdicts(int index, const mica_problem *problem, const char *source)
{
    mica_context *context = device(index);
    if (!context) return;
    mica_verdict verdict = {.engine = "none"};
    int engines = 0, willing = 0;
    for (; mica_problem_verdict(context, problem, engines, &verdict) == MICA_OK; engines++) {
        willing += verdict.status == MICA_OK;
        require(verdict.status == MICA_OK || verdict.status == MICA_UNSUPPORTED,
                "an engine says yes or no", source);
        require(verdict.status == MICA_OK || verdict.reason[0], "a refusal has a reason", source);
    }
    if (!willing)
        fprintf(stderr, "%s: the last of %d engines is %s: %s\n", devices[index], engines,
                verdict.engine, verdict.reason);
    require(willing > 0, "some engine takes every sound problem", source);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *source = malloc(size + 1);
    if (!source) abort();
    memcpy(source, data, size);
    source[size] = 0;

    mica_problem *problem = NULL;
    mica_status status = mica_problem_from_text(source, &problem);
    if (status == MICA_OK) {
        check_fixpoint(problem, source);
        check_cpu_plan(problem, source);
        for (int i = 0; i < DEVICES; i++) check_verdicts(i, problem, source);
        mica_problem_destroy(problem);
    } else {
        require(problem == NULL, "a failed call leaves its result alone", source);
        require(mica_error()[0], "a refusal has a reason", source);
    }
    free(source);
    return 0;
}
